"""A small HTTP server that answers Triton inference requests with one fixed valid response.

Run it in a process of its own: ``python -m tests.null_server --mode ok``. It prints its port and
ends when its standard input is closed, so that none is ever left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

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
METADATA = {
    "name": "null",
    "versions": ["1"],
    "platform": "null",
    "inputs": [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [-1, 4]}],
}
CONFIG = {
    "name": "null",
    "max_batch_size": 8,
    "input": [{"name": "IN"}],
    "output": [{"name": "OUT"}],
}


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


GOOD = http("200 OK", HEAD + bytes(16), f"Inference-Header-Content-Length: {len(HEAD)}")
ERROR_200 = http("200 OK", b'{"error":"no instance left"}')
SHORT_200 = http("200 OK", HEAD + bytes(8), f"Inference-Header-Content-Length: {len(HEAD)}")
UNAVAILABLE = http("503 Service Unavailable", b'{"error":"busy"}')


class Null(asyncio.Protocol):
    served = 0
    free_at = 0.0

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (split := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:split].lower()
            at = head.find(b"content-length: ")
            # "inference-header-content-length" ends alike: only the line of that name counts
            while at > 0 and head[at - 1 : at] != b"\n":
                at = head.find(b"content-length: ", at + 1)
            length = int(head[at + 16 : at + 32].split(b"\r\n")[0]) if at >= 0 else 0
            end = split + 4 + length
            if len(self.buffer) < end:
                return
            self.buffer = self.buffer[end:]
            self.answer(head)

    def answer(self, head: bytes) -> None:
        if head.startswith(b"get"):
            document = CONFIG if b"/config " in head else METADATA
            self.transport.write(http("200 OK", json.dumps(document).encode()))
            return
        Null.served += 1
        options = self.options
        if options.stall_at == Null.served:
            time.sleep(options.delay)  # the whole server stands still
        if options.mode == "hang":
            return
        if options.mode == "close":
            self.transport.abort()
            return
        if options.mode == "cut":
            self.transport.write(GOOD[:-8])
            self.transport.close()
            return
        reply = {"503": UNAVAILABLE, "error200": ERROR_200, "short200": SHORT_200}.get(
            options.mode, GOOD
        )
        loop = asyncio.get_running_loop()
        if options.mode == "delay":
            loop.call_later(options.delay, self.write, reply)
        elif options.mode == "queue":  # one after another
            Null.free_at = max(loop.time(), Null.free_at) + options.delay
            loop.call_at(Null.free_at, self.write, reply)
        else:
            self.transport.write(reply)

    def write(self, reply: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(reply)


async def serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Null(options), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    modes = ["ok", "delay", "queue", "503", "hang", "close", "cut", "error200", "short200"]
    parser.add_argument("--mode", choices=modes, default="ok")
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--stall-at", type=int, default=0, help="stand still at this request")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
