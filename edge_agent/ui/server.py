"""The page's server: files, pictures, and one WebSocket per browser."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from .. import __version__
from ..config.settings import Broker
from ..core.names import is_name
from ..core.text import redact
from ..core.web_server import web_server
from .guard import Guard
from .http_protocol import TimedProtocol
from .operate import Operator
from .reader import Reader
from .site import Site, Viewer

STATIC = Path(__file__).parent / "static"
FRAME_SECONDS = 0.25
"""Least time between two messages to a browser."""
BEAT_SECONDS = 5.0
"""Most time between them: a browser sees no pings, and takes a dead link for silence."""
WATCH_SECONDS = 0.2
"""Time that showing another device takes at least: each has a thread and a connection."""
MOST_REQUEST_BYTES = 64 * 1024
MOST_CONNECTIONS = 256
MOST_ID = 64
"""Most characters of a request's id that are given back."""


class Page:
    """The site, as an application."""

    def __init__(self, broker: Broker, push: Sequence[str] | None) -> None:
        """Start reading from the broker.

        Args:
            broker: the broker to read from.
            push: as for `Operator`; None: the page is read-only.
        """
        self._broker = broker
        self._site = Site(broker.topic_root)
        site = self._site
        self._reader = Reader(broker, site.filters(), site.take, site.told, site.missing)
        self._operator: Operator | None = None
        routes = [
            Route("/", self._index),
            Route("/picture", self._picture),
            WebSocketRoute("/live", self._live),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        if push is not None:
            self._operator = Operator(site, self._reader, broker.topic_root, push)
            routes.append(Route("/push", self._operator.push, methods=["POST"]))
            routes.append(Route("/kept", self._operator.kept, methods=["POST"]))
            routes.append(Route("/rollout", self._operator.rollout, methods=["POST"]))
        self.app = Starlette(routes=routes)

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    async def _index(self, _request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def _picture(self, request: Request) -> Response:
        """Answer with a JPEG that a device has published."""
        asked = (request.query_params.get(key, "") for key in ("device", "kind", "name"))
        data = self._site.picture(*asked)
        if data is None:
            return PlainTextResponse("this picture is not here (any more)", 404)
        return Response(data, media_type="image/jpeg")

    async def _live(self, socket: WebSocket) -> None:
        """Send changes to a browser, and follow which device it shows."""
        await socket.accept()
        viewer = self._site.join()
        sending = asyncio.create_task(self._send(socket, viewer))
        watching: Reader | None = None
        try:
            while True:
                asked = _parse(await socket.receive_text())
                if "watch" in asked:
                    if watching is not None:
                        watching.close()
                    watching = self._watch(viewer, asked["watch"])
                    await asyncio.sleep(WATCH_SECONDS)
                if "do" in asked:
                    self._do(viewer, asked)
        except (WebSocketDisconnect, KeyError, RuntimeError):
            pass  # KeyError: it has sent bytes; RuntimeError: closed while this did not listen
        finally:
            sending.cancel()
            if watching is not None:
                watching.close()
            self._site.leave(viewer)

    def _watch(self, viewer: Viewer, name: object) -> Reader | None:
        """Read the device that a browser shows."""
        if not isinstance(name, str):
            name = None
        self._site.watch(viewer, name)
        # An invalid name cannot be an agent's, and might contain a wildcard.
        if name is None or not is_name(name):
            return None
        return Reader(self._broker, self._site.filters(name), self._site.take)

    def _do(self, viewer: Viewer, asked: dict[str, Any]) -> None:
        """Carry out a browser's request, or refuse it as a device would."""
        read_only = "this page is read-only: start it with --operate"
        error = read_only if self._operator is None else self._operator.command(asked)
        if error:
            says = ["reply", str(asked.get("id"))[:MOST_ID], {"ok": False, "error": error}]
            self._site.answer(viewer, says)

    async def _send(self, socket: WebSocket, viewer: Viewer) -> None:
        hello = {
            "version": __version__,
            "broker": ", ".join(redact(str(node.url)) for node in self._broker.nodes),
            "operate": self._operator is not None,
        }
        frame: dict[str, Any] = {"hello": hello, **self._site.frame(viewer)}
        sent = 0.0
        with suppress(WebSocketDisconnect, RuntimeError):  # it has gone meanwhile
            while True:
                if frame or time.monotonic() - sent > BEAT_SECONDS - FRAME_SECONDS:
                    await socket.send_text(json.dumps(frame, separators=(",", ":")))
                    sent = time.monotonic()
                await asyncio.sleep(FRAME_SECONDS)
                if viewer.behind:
                    await socket.close(1013, "too slow")
                    return
                frame = self._site.frame(viewer)


def _parse(text: str) -> dict[str, Any]:
    try:
        asked = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return asked if isinstance(asked, dict) else {}


def serve(
    broker: Broker,
    listening: socket.socket,
    password: str | None,
    *,
    local: bool,
    push: Sequence[str] | None,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        broker: the broker that feeds the page.
        listening: the bound socket.
        password: what browsers must send; None: no password.
        local: whether the socket only listens on loopback.
        push: as for `Operator`; None: the page is read-only.
    """
    page = Page(broker, push)
    server = web_server(
        Guard(page.app, password=password, loopback=local),
        "warning",
        limit_concurrency=MOST_CONNECTIONS,
        # h11 parses one request at a time; httptools keeps all that arrive together.
        http=TimedProtocol,
        ws="websockets-sansio",
        ws_max_size=MOST_REQUEST_BYTES,
        ws_per_message_deflate=False,
    )
    try:
        server.run(sockets=[listening])
    finally:
        page.close()
