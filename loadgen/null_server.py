"""A server that does nothing but answer: what the load generator itself can send is measured on it.

``python -m loadgen.null_server [PORT]`` prints its port, and ends when its standard input is
closed, so that none is ever left behind. Several may share a port: the system deals connections
out.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from autotune.core.model_interface import Endpoint

HEAD = json.dumps(
    {
        "model_name": "null",
        "model_version": "1",
        "outputs": [
            {
                "name": "OUT",
                "datatype": "FP32",
                "shape": [1, 4],
                "parameters": {"binary_data_size": 16},
            }
        ],
    }
).encode()
_ROOT = Path(__file__).resolve().parent.parent


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


GOOD = http("200 OK", HEAD + bytes(16), f"Inference-Header-Content-Length: {len(HEAD)}")
"""A whole and valid answer to an inference request."""


class NullProtocol(asyncio.Protocol):
    """Answers every request with `GOOD`, whatever it asks."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (split := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:split]).lower()
            end = split + 4 + content_length(head)
            if len(self._buffer) < end:
                return
            del self._buffer[:end]
            self.answer(head)

    def answer(self, head: bytes) -> None:  # noqa: ARG002 - others look at it
        self.transport.write(GOOD)


def content_length(head: bytes) -> int:
    """Of a request's head in lower case; 0 if it does not say."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    return 0


async def serve(make: Callable[[], asyncio.Protocol], port: int = 0) -> None:
    """On a port of the loopback interface (0: a free one), until standard input is closed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, "127.0.0.1", port, backlog=4096, reuse_port=True)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


@contextmanager
def null_server(processes: int = 1) -> Iterator[Endpoint]:
    """So many processes behind one port, for the time of the context."""
    with ExitStack() as stack:
        port = stack.enter_context(_process(0))
        for _ in range(1, processes):
            stack.enter_context(_process(port))
        yield Endpoint(http=f"127.0.0.1:{port}", grpc="")


@contextmanager
def _process(port: int) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.null_server", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve(NullProtocol, int(sys.argv[1]) if len(sys.argv) > 1 else 0))
