"""A server's metrics page, on this machine, for as long as a test wants it."""

import http.server
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.core.model_interface import Endpoint


@contextmanager
def metrics_page(page: Callable[[], str], status: int = 200) -> Iterator[Endpoint]:
    """``page`` is called at each request."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(page().encode())

        def log_message(self, *_):
            return

    with _serving(http.server.HTTPServer(("127.0.0.1", 0), Page)) as endpoint:
        yield endpoint


@contextmanager
def answering(answer: bytes) -> Iterator[Endpoint]:
    """A server that says this to whoever connects, and hangs up."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.request.sendall(answer)

    with _serving(socketserver.TCPServer(("127.0.0.1", 0), Answer)) as endpoint:
        yield endpoint


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[Endpoint]:
    with server as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.server_address[1]}/metrics"
            yield Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2", metrics_url=url)
        finally:
            listening.shutdown()
            thread.join()
