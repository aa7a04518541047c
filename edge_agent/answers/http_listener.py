"""The service that listens for HTTP if `[http] listen` is set. Needs the extra `http`."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config.answers import Endpoint, Http, parse_listen
from ..core.errors import UsageError
from ..core.logs import ANSWER
from ..core.threads import run_behind
from ..core.web_server import BACKLOG, END_SECONDS, web_server
from .answers import Answers

log = logging.getLogger(__name__)

LIBRARIES = ("starlette", "uvicorn", "httptools", "prometheus_client")
"""Those of the extra; only `/metrics` needs the last one."""


class _Server:
    """A listening socket and its server, until `close`."""

    def __init__(self, listen: str, app: Any, *, behind: bool) -> None:
        try:
            from .http_protocol import BoundedProtocol
        except ModuleNotFoundError as problem:
            raise UsageError(f"http.listen: {missing([problem.name or 'uvicorn'])}") from None
        self.listen = listen
        self.endpoint = parse_listen(listen)
        self._uvicorn = web_server(app, "error", http=BoundedProtocol, loop="asyncio", ws="none")
        try:
            self._socket = bind(self.endpoint)
        except OSError as problem:
            why = os.strerror(problem.errno) if problem.errno else str(problem)
            raise UsageError(f"http.listen: {listen}: {why}") from None
        self._behind = behind
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._behind:
            run_behind()
        self._uvicorn.run([self._socket])

    def hinders(self, listen: str) -> bool:
        """Whether this must be closed first: 127.0.0.1 is not free while 0.0.0.0 listens."""
        port = self.endpoint.port
        return listen != "" and port is not None and parse_listen(listen).port == port

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop listening, after answering those who wait."""
        self._uvicorn.should_exit = True
        self._thread.join(END_SECONDS + 1)
        if self.endpoint.port is None:
            Path(self.endpoint.host).unlink(missing_ok=True)


def bind(endpoint: Endpoint) -> socket.socket:
    """Listen at an endpoint; a socket file that nobody listens on anymore is replaced."""
    if endpoint.port is not None:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        server = socket.create_server(
            (endpoint.host, endpoint.port), family=family, backlog=BACKLOG
        )
        # Inherited by connections; asyncio only sets it for sockets made with a protocol. Without
        # it a body waits 40 ms for the acknowledgment of its head.
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server
    path = Path(endpoint.host)
    if path.exists():
        with socket.socket(socket.AF_UNIX) as probe:
            if not stat.S_ISSOCK(path.stat().st_mode) or probe.connect_ex(str(path)) == 0:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        path.unlink()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    path.chmod(0o660)  # before anyone can connect
    listening.listen(BACKLOG)
    return listening


def missing(besides: Sequence[str] = ()) -> str | None:
    """Return which libraries of the extra are missing, and how to install all of them, or None.

    *besides*: what to name if it has them all.
    """
    lacking = [name.replace("_", "-") for name in LIBRARIES if find_spec(name) is None]
    lacking = lacking or [*besides]
    if not lacking:
        return None
    mend = f"{sys.executable} -m pip install {' '.join(lacking)}"
    return f"needs {', '.join(lacking)}; install with: {mend}"


class HttpListener:
    """The service: listens as the current settings say, or reports why not."""

    name = "http"

    def __init__(
        self,
        http: Callable[[], Http],
        answers: Answers,
        device: str,
        latest: Callable[[], Mapping[str, Any] | None],
    ) -> None:
        self._http = http
        self._answers = answers
        self._device = device
        self._latest = latest
        self._changing = threading.Lock()
        self._server: _Server | None = None
        self._problem: str | None = None
        self._closed = False

    def run(self) -> None:
        """Listen if the settings say so; a separate thread answers."""
        self.settings_changed()

    def settings_changed(self) -> None:
        """Change the address, or stop listening; if that fails, the present address stays.

        One that others can reach does not stay without a token.
        """
        with self._changing:
            wanted, present = self._http().listen, self._server
            self._problem = None
            if self._closed or wanted == ("" if present is None else present.listen):
                return
            if present is not None and (not self._may_stay(present) or present.hinders(wanted)):
                self._close()
            try:
                self._open(wanted)
            except UsageError as problem:
                why = str(problem)
                if present is not None and self._may_stay(present):
                    with suppress(UsageError):
                        if self._server is None:
                            self._open(present.listen)
                        why += f"; http still listens on {present.listen}"
                self._problem = why
                log.error("%s", why, extra=ANSWER)  # noqa: TRY400 - one line, no traceback

    def _may_stay(self, server: _Server) -> bool:
        return server.endpoint.local or self._http().token != ""

    def _open(self, listen: str) -> None:
        """Listen at an address, and no longer at the one before; "": at none."""
        server = None
        if listen:
            server = _Server(listen, self._app(listen), behind=self._answers.behind())
        self._close()
        self._server = server
        log.info("http: %s", listen or "closed", extra=ANSWER)

    def _app(self, listen: str) -> Any:
        try:
            from .http_app import application
        except ModuleNotFoundError as problem:
            raise UsageError(f"http.listen: {missing([problem.name or 'starlette'])}") from None
        local = parse_listen(listen).local
        return application(self._answers, lambda: self._http().token, self._metrics, local=local)

    def _metrics(self) -> bytes:
        from .. import __version__
        from ..health.prometheus import exposition

        return exposition(self._device, __version__, self._latest)

    def problems(self) -> list[str]:
        """Return why the service does not listen."""
        server = self._server
        if self._problem is None and server is not None and not server.alive:
            return [f"http: nothing listens on {server.listen} any more; restart the agent"]
        return [] if self._problem is None else [self._problem]

    def close(self) -> None:
        """Stop listening."""
        with self._changing:
            self._closed = True
            self._close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
