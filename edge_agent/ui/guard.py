"""Access control for the page: only its operator's browser, and no other page in it."""

from __future__ import annotations

import asyncio
import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.names import is_local

COOKIE = "edge-agent-ui"
MOST_SESSIONS = 100
MOST_PASSWORD_BYTES = 1024
LOG_IN_SECONDS = 10.0
"""For a password to arrive."""
WRONG_SECONDS = 1.0
"""Delay after a wrong password before the next one is checked, whoever sends it."""
OPEN = ("/", "/session", "/login")
"""Paths answered without the password: the page itself, which contains no data."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Checks every request before the page sees it, and restricts the browser with headers."""

    def __init__(self, app: ASGIApp, *, password: str | None, loopback: bool) -> None:
        """Protect an app; without a *password*, none is required.

        On *loopback*, other host names that resolve to it are refused, so that no foreign page can
        read this one (DNS rebinding).
        """
        self._app = app
        self._password = password
        self._loopback = loopback
        self._sessions: list[str] = []
        self._judging = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it to the page."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        refusal = self._refusal(request)
        if scope["type"] == "websocket":
            if refusal:
                await send({"type": "websocket.close", "code": 1008, "reason": refusal})
            else:
                await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer: ASGIApp = self._app
        if refusal:
            answer = PlainTextResponse(refusal, 403)
        elif scope["path"] == "/session":
            answer = PlainTextResponse("open" if self._is_known(request) else "password")
        elif scope["path"] == "/login" and scope["method"] == "POST":
            answer = await self._log_in(Request(scope, receive))
        await answer(scope, receive, send_safely)

    def _refusal(self, request: HTTPConnection) -> str:
        """Return why a request is refused; "": it is allowed."""
        host, path = request.headers.get("host", ""), request.scope["path"]
        # A name that was made to point to loopback; to a proxy there it is another's, and whoever
        # comes by that has no session of this page's.
        if self._loopback and self._password is None and not is_local(host):
            return "this page answers to localhost only"
        reads = request.scope.get("method") in {"GET", "HEAD"}  # a WebSocket has none
        if not reads and request.headers.get("origin", "").partition("://")[2] != host:
            return "the request comes from another page"
        if path not in OPEN and not path.startswith("/static/") and not self._is_known(request):
            return "log in first"
        return ""

    def _is_known(self, request: HTTPConnection) -> bool:
        return self._password is None or request.cookies.get(COOKIE) in self._sessions

    async def _log_in(self, request: Request) -> Response:
        if self._password is None:
            return PlainTextResponse("no password is needed")
        given = b""
        try:
            async with asyncio.timeout(LOG_IN_SECONDS):
                async for part in request.stream():
                    given += part
                    if len(given) > MOST_PASSWORD_BYTES:
                        return PlainTextResponse("too long for a password", 413)
        except TimeoutError:
            return PlainTextResponse("the password did not come in time", 408)
        async with self._judging:
            if not hmac.compare_digest(given, self._password.encode()):
                await asyncio.sleep(WRONG_SECONDS)
                return PlainTextResponse("wrong password", 403)
        token = secrets.token_urlsafe(32)
        self._sessions = [*self._sessions[-MOST_SESSIONS:], token]
        answer = PlainTextResponse("welcome")
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer
