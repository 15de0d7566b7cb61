"""Servers that notices are sent to: HTTP and SMTP, real ones on the loopback interface."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_string
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Web:
    """What was posted to it, and what it answers: the ``statuses`` one after another, then 200."""

    port: int
    statuses: list[int] = field(default_factory=list)
    location: str = ""
    slow_s: float = 0.0
    posted: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/T0/B0/{SECRET}"


SECRET = "a-secret-in-the-path"


@contextmanager
def web() -> Iterator[Web]:
    seen = Web(port=0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            time.sleep(seen.slow_s)
            length = int(self.headers["Content-Length"])
            seen.posted.append((self.path, json.loads(self.rfile.read(length))))
            self.send_response(seen.statuses.pop(0) if seen.statuses else 200)
            if seen.location:
                self.send_header("Location", seen.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        seen.port = port
        yield seen


@dataclass
class Mail:
    """What it took. ``replies`` go out in place of the usual one, by command; ``login`` is what a
    client must log in with; ``unknown`` is an address that it takes nothing for."""

    port: int
    replies: dict[str, str] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    unknown: str | None = None
    took: list[Message] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        user = ":".join(self.login) + "@" if self.login else ""
        return f"smtp://{user}127.0.0.1:{self.port}"

    def reply(self, command: str, line: str) -> str | None:
        if command == "RCPT" and self.unknown and self.unknown in line:
            return f"550 {self.unknown} is unknown"
        return self.replies.get(command)


@contextmanager
def mail() -> Iterator[Mail]:
    seen = Mail(port=0)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 here")
            while line := self.rfile.readline().decode().strip():
                command = line.split()[0].upper()
                seen.commands.append(command)
                self._say(seen.reply(command, line) or self._answer(command, line))
                if command == "DATA" and "DATA" not in seen.replies:
                    seen.took.append(message_from_string(self._text()))
                    self._say("250 taken")
                if command == "QUIT":
                    return

        def _answer(self, command: str, line: str) -> str:
            if command == "EHLO":
                return "250-here\r\n250 AUTH PLAIN" if seen.login else "250 here"
            if command == "AUTH":
                secret = line.rsplit(maxsplit=1)[-1]
                _, user, password = base64.b64decode(secret).decode().split("\0")
                return "235 yes" if (user, password) == seen.login else f"535 no {password}"
            return {"DATA": "354 go on", "QUIT": "221 bye"}.get(command, "250 yes")

        def _text(self) -> str:
            lines = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
            return "\n".join(lines)

        def _say(self, words: str) -> None:
            self.wfile.write(f"{words}\r\n".encode())

    with _serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        seen.port = port
        yield seen


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[int]:
    server.daemon_threads = True  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
