"""A server's metrics page, on this machine, for as long as a test wants it."""

import http.server
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

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.server_port}/metrics"
            yield Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2", metrics_url=url)
        finally:
            listening.shutdown()
            thread.join()
