"""The health check of `metaq worker`: GET /health answers 200 or 503 and a JSON object, as Kubernetes expects."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from metaq.protocol.errors import ConfigError

__all__ = ["Address", "Health", "health_server"]

_REQUEST_SECONDS = 5.0


class Address(NamedTuple):
    host: str
    port: int


Health = Callable[[], tuple[bool, dict[str, object]]]
"""Returns whether all is well, and the figures that the answer shows. Called on a thread of the server."""


@contextmanager
def health_server(address: Address, health: Health) -> Iterator[int]:
    """Answer GET /health within the `with` block; yield the port. The server is Python's own, for probes and not for
    the public: it has no TLS and no login, and shows nothing but numbers. Raises ConfigError if the port cannot be
    opened.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/health":
                self.send_error(404, "the only page is /health")
                return
            well, figures = health()
            body = json.dumps(figures).encode() + b"\n"
            self.send_response(200 if well else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            """Log nothing: probes come every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET

    try:
        server = Server((address.host, address.port), Handler)
    except OSError as error:
        shown = f"{address.host}:{address.port}"
        raise ConfigError("--health", shown, f"cannot be opened ({error.strerror}): choose another port") from error
    with server:
        thread = threading.Thread(target=server.serve_forever, name="metaq-worker-health", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
