"""A web server of a test's own on a loopback port, whose handler says what it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers each request by its `answer`, keeps the connection open, and prints nothing."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """What a kind of server does with the request."""
        raise NotImplementedError

    def _answer(self) -> None:
        self.answer()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    @property
    def sends_body(self) -> bool:
        """Whether the request is one whose answer has a body."""
        return self.command != "HEAD"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


@contextmanager
def serving(handler: type[Handler], **attributes: object) -> Iterator[str]:
    """The URL of a server until the block ends. `attributes` are those of its handlers."""
    server = _Server(("127.0.0.1", 0), type(handler.__name__, (handler,), attributes))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
