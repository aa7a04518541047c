"""An HTTP server for scrapes that any local user may reach, and nobody can exhaust.

prometheus_client's own has a thread for each connection, for as long as that is open: a few dozen
half requests reach the limit of threads of the whole agent.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import OrderedDict
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

log = logging.getLogger(__name__)

MOST = 8
"""Connections at a time; a further one takes the place of the oldest."""
SILENT_SECONDS = 5.0
"""After which a connection without a whole request is closed."""


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS

    def log_message(self, format: str, *_: Any) -> None:  # noqa: A002 - the library's name
        log.debug("%s: %s", self.client_address, format)


class BoundedServer(ThreadingMixIn, WSGIServer):
    """Answers scrapes of a registry, from its making until `close`."""

    daemon_threads = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self._open: OrderedDict[socket.socket, None] = OrderedDict()
        self._changing = threading.Lock()
        super().__init__((host, port), _Handler)
        self.set_app(make_wsgi_app(registry))

    def close(self) -> None:
        """Stop answering, once `serve_forever` has begun."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; drop the connection if none can be started."""
        with self._changing:
            oldest = next(iter(self._open)) if len(self._open) >= MOST else None
            if oldest is not None:
                del self._open[oldest]
            self._open[request] = None
        if oldest is not None:
            with contextlib.suppress(OSError):  # it has hung up meanwhile
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            log.warning("metrics: no room for another thread; a scrape is not answered")
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is answered, or cannot be."""
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a reader that hangs up."""
        del request
        log.debug("%s hung up", client_address)
