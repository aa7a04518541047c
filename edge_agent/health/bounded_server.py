"""An HTTP server for scrapes that any local user may reach but nobody can exhaust.

prometheus_client's own server keeps a thread for each open connection: a few dozen incomplete
requests would reach the thread limit of the whole agent.
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
"""Most connections at a time; a further one replaces the oldest."""
SILENT_SECONDS = 5.0
"""Seconds after which a connection without a complete request is closed."""


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS

    def log_message(self, format: str, *_: Any) -> None:  # noqa: A002 - the library's name
        log.debug("%s: %s", self.client_address, format)


class BoundedServer(ThreadingMixIn, WSGIServer):
    """Answers scrapes of a registry from its creation until `close`."""

    daemon_threads = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self._open: OrderedDict[socket.socket, None] = OrderedDict()
        self._changing = threading.Lock()
        super().__init__((host, port), _Handler)
        self.set_app(make_wsgi_app(registry))

    def close(self) -> None:
        """Stop answering; `serve_forever` must have begun."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread; drop the connection if none can be started."""
        with self._changing:
            oldest = next(iter(self._open)) if len(self._open) >= MOST else None
            if oldest is not None:
                del self._open[oldest]
            self._open[request] = None
        if oldest is not None:
            with contextlib.suppress(OSError):  # the client has hung up meanwhile
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end and closes it
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            log.warning("metrics: no room for another thread; a scrape is not answered")
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was answered or cannot be."""
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback when a client hangs up."""
        del request
        log.debug("%s hung up", client_address)
