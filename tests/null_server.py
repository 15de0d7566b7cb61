"""A small HTTP server that answers Triton inference requests with one fixed valid response.

Run it in a process of its own: ``python -m tests.null_server --mode ok``. It prints its port and
ends when its standard input is closed, so that none is ever left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from loadgen.null_server import GOOD, HEAD, NullProtocol, http, serve

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


ERROR_200 = http("200 OK", b'{"error":"no instance left"}')
SHORT_200 = http("200 OK", HEAD + bytes(8), f"Inference-Header-Content-Length: {len(HEAD)}")
UNAVAILABLE = http("503 Service Unavailable", b'{"error":"busy"}')


class Null(NullProtocol):
    served = 0
    free_at = 0.0

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    modes = ["ok", "delay", "queue", "503", "hang", "close", "cut", "error200", "short200"]
    parser.add_argument("--mode", choices=modes, default="ok")
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--stall-at", type=int, default=0, help="stand still at this request")
    options = parser.parse_args()
    asyncio.run(serve(lambda: Null(options)))


if __name__ == "__main__":
    main()
