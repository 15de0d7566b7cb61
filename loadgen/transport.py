"""Connections and answers of one HTTP endpoint, on gevent.

Connections are opened as requests need them and kept; there is no limit here, so that a full pool
can never turn the open loop into a closed one. (geventhttpclient's own pool has one, and its
liveness check cannot handle descriptors above 1023.)
"""

from __future__ import annotations

import json
import select
import socket as plain_socket
from typing import Any

import gevent.socket
from gevent.monkey import get_original
from geventhttpclient.response import HTTPSocketResponse

from loadgen.bodies import Body
from loadgen.results import Code

_BLOCK = 64 * 1024
_HEADER_LENGTH = "inference-header-content-length"
_KNOWN_HEADERS = 1024
_TEXT_LENGTH = 500


class Connections:
    """A last-in-first-out pool of keep-alive connections to ``host:port``."""

    def __init__(self, host: str) -> None:
        name, _, port = host.rpartition(":")
        self._address = (name.strip("[]"), int(port))
        self._idle: list[gevent.socket.socket] = []
        self._poll = get_original("select", "poll")

    def take(self) -> gevent.socket.socket:
        """An idle connection that the server has not closed, else a new one."""
        while self._idle:
            connection = self._idle.pop()
            if self._quiet(connection):
                return connection
            connection.close()
        connection = gevent.socket.create_connection(self._address)
        connection.setsockopt(plain_socket.IPPROTO_TCP, plain_socket.TCP_NODELAY, 1)
        return connection

    def give(self, connection: gevent.socket.socket) -> None:
        self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _quiet(self, connection: gevent.socket.socket) -> bool:
        """Whether there is nothing to read, as there must be on an idle connection: the end of
        the stream shows as readable."""
        poll = self._poll()
        poll.register(connection.fileno(), select.POLLIN)
        return not poll.poll(0)


class InferClient:
    """Posts prebuilt bodies to one model and judges the answers. ``texts`` has the first words of
    each kind of failure, by `Code` or HTTP status."""

    def __init__(self, host: str, model: str, bodies: list[Body]) -> None:
        self.texts: dict[int, str] = {}
        self._connections = Connections(host)
        self._requests = [_request(host, model, body) for body in bodies]
        self._answers = Answers()

    def infer(self, number: int) -> tuple[int, int]:
        """Post body ``number`` (modulo their count); returns a `Code` or an HTTP error status, and
        the length of the answer.

        Raises OSError or geventhttpclient's HTTPParseError when the connection breaks; whatever
        is raised, by a time-out of the caller's too, the connection is not used again.
        """
        connection = self._connections.take()
        try:
            connection.sendall(self._requests[number % len(self._requests)])
            response = HTTPSocketResponse(connection, method="POST", block_size=_BLOCK)
            body = response.read()
        except BaseException:
            connection.close()
            raise
        if response.should_close():
            connection.close()
        else:
            self._connections.give(connection)
        code = self._answers.judge(response.status_code, response.get(_HEADER_LENGTH), body)
        if code != Code.OK:
            self.keep(code, _said(body))
        return code, len(body)

    def keep(self, code: int, text: str) -> None:
        """Remember a failure's words, shortened, if they are the first of their kind."""
        if code not in self.texts and text:
            self.texts[code] = text[:_TEXT_LENGTH]

    def close(self) -> None:
        self._connections.close()


def _request(host: str, model: str, body: Body) -> bytes:
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(body.content)}",
    ]
    if body.json_size is not None:
        lines.append("Content-Type: application/octet-stream")
        lines.append(f"Inference-Header-Content-Length: {body.json_size}")
    return "\r\n".join([*lines, "", ""]).encode() + body.content


def _said(body: bytes) -> str:
    """What Triton says in an answer that is an error; of another answer its beginning."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, TypeError, KeyError):
        return body[:_TEXT_LENGTH].decode(errors="replace").strip()


class Answers:
    """Tells a good answer from a bad one.

    The JSON head of a model's answers hardly ever differs between two of them, so a head that was
    found good is remembered, and parsing it costs nothing in the steady state.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}

    def judge(self, status: int, header_length: Any, body: bytes) -> int:
        if status != 200:
            return status
        size = len(body)
        if header_length is not None:
            if not str(header_length).isdigit() or int(header_length) > size:
                return Code.BAD_ANSWER
            size = int(header_length)
        head = body[:size]
        payload = self._known.get(head)
        if payload is None:
            payload = _payload_size(head)
            if payload is None:
                return Code.BAD_ANSWER
            if len(self._known) < _KNOWN_HEADERS and header_length is not None:
                self._known[head] = payload
        return Code.OK if payload == len(body) - size else Code.BAD_ANSWER


def _payload_size(head: bytes) -> int | None:
    """Bytes of binary outputs that an answer's JSON promises; None if it is not a good answer."""
    try:
        answer = json.loads(head)
        if "error" in answer:
            return None
        parameters = [output.get("parameters", {}) for output in answer["outputs"]]
        return sum(int(p.get("binary_data_size", 0)) for p in parameters)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
