"""One HTTP connection with the bounds that the library leaves open.

uvicorn waits forever for a slow head or body, and accepts heads of any size, any number of
connections, and any number of requests that arrive together on one of them. Content-Length
together with Transfer-Encoding is refused by its parser (httptools).
"""

from __future__ import annotations

import asyncio
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MOST_CONNECTIONS = 256
MOST_HEAD = 16 * 1024
"""Most bytes of a request line and headers."""
MOST_HEADERS = 64
HEAD_SECONDS = 10.0
BODY_SECONDS = 10.0
SLOWEST = 128 * 1024
"""Bytes a second of a body, beyond those seconds."""
LONGEST = 120.0
"""Most seconds for any body."""
MOST_WAITING = 16
"""Requests that may wait on one connection while one before them is being answered."""
WRITE_SECONDS = 30.0
"""Without a reader, once the system's buffers are full."""

CUT_SHORT = "the request is cut short"


class _TooLargeError(Exception):
    """The head is too large; ends parsing."""


class _CrowdedError(Exception):
    """Too many requests wait on the connection; ends parsing."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection; used by the event loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        """Ends the connection unless the expected data comes."""
        self._writing: asyncio.TimerHandle | None = None
        self._in_head = True
        """Whether the next byte belongs to a head."""
        self._head = self._lines = 0
        """Bytes and lines of the head so far; trailers after a body count, too."""
        self._calls = self._loose = 0
        """Bytes since the parser's last call: of a header or a chunk's extension."""
        self._answering: RequestResponseCycle | None = None
        """The request that is being answered; those behind it wait."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MOST_CONNECTIONS:
            self.transport = transport
            self._refuse(503, "too many connections")
            return
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # unread data always has a deadline
        self._await(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self._writes_again()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to keep the connection: a caller may close only the side that sends."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            if self._head:
                self._refuse(400, CUT_SHORT)
            return False
        if not self._in_head:
            if not (cycle.response_started or self.pipeline):
                self._refuse(400, CUT_SHORT)
            return False
        if cycle.scope["path"].endswith("/completions"):
            return False  # a caller who has left looks the same, and a long text is not for nobody
        cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        calls = self._calls
        if self._in_head and self._idle and self._deadline is None:
            self._await(HEAD_SECONDS)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except HttpParserError as problem:
            if isinstance(problem.__context__, _CrowdedError):
                self._refuse_crowd()
            else:
                self.send_400_response("Invalid HTTP request received.")
            return
        # A value that is still to be ended is in none of the parser's calls.
        self._loose = self._loose + len(data) if calls == self._calls else 0
        if self._head + self._loose > MOST_HEAD:
            self._refuse(431, "the head is too large")
        elif self._in_head and self._idle and self._deadline is None:
            # The body of a request answered before has ended, with nothing behind it.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        """Parse bytes; an offer of another protocol is ignored, as Java's client makes of HTTP/2.

        The parser ends a request at such an offer, and leaves its body to the other protocol. So
        another one gets the head without the offer, and then the body.
        """
        left = memoryview(data)
        while True:
            try:
                self.parser.feed_data(left)
            except HttpParserUpgrade as offer:
                left = left[offer.args[0] :]
                head = self._head_without_offer()
                self.parser = HttpRequestParser(self)
                # As uvicorn sets it: a request that is the last one is answered all the same.
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(head)
            else:
                return

    def _head_without_offer(self) -> bytes:
        """Return the head just parsed, without its offer of another protocol."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        kept = [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
        return b"\r\n".join([b"%b %b HTTP/%b" % (method, self.url, version), *kept, b"", b""])

    def send_400_response(self, msg: str) -> None:
        if self._head > MOST_HEAD or self._lines > MOST_HEADERS:
            self._refuse(431, "the head is too large")
        else:
            super().send_400_response(msg)

    def _refuse_crowd(self) -> None:
        """Close the connection; the error stands for the first answer, unless that has begun."""
        if self._answering is not None and self._answering.response_started:
            self.transport.close()
        else:
            self._refuse(429, f"more than {MOST_WAITING} requests wait on this connection")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # Called by the parser

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url), 0)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer could pass for a header that a proxy has taken away
            super().on_header(name, value)
        self._count(len(name) + len(value), 1)

    def _count(self, size: int, lines: int) -> None:
        self._calls += 1
        self._head += size
        self._lines += lines
        if self._head > MOST_HEAD or self._lines > MOST_HEADERS:
            raise _TooLargeError

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise HttpParserError("this is no proxy")
            return  # it comes again
        if len(self.pipeline) >= MOST_WAITING:
            raise _CrowdedError
        self._in_head = False
        length = dict(self.headers).get(b"content-length", b"0")
        size = int(length) if length.isdigit() and len(length) < 16 else 0
        self._await(min(LONGEST, BODY_SECONDS + size / SLOWEST))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._calls += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head, self._lines = True, 0, 0
        self._calls += 1
        if self.parser.should_upgrade():
            return
        self._settle()
        super().on_message_complete()

    # Deadlines

    def _await(self, seconds: float) -> None:
        self._settle()
        self._deadline = self.loop.call_later(seconds, self._give_up)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.pipeline:  # nothing is read while the request before it is being answered
            self._await(BODY_SECONDS)
            return
        answered = self.cycle is not None and self.cycle.response_started and not self._in_head
        if answered:
            self.transport.close()
        else:
            self._refuse(408, "the request came too slowly")

    def pause_writing(self) -> None:
        self._writing = self.loop.call_later(WRITE_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._writes_again()
        super().resume_writing()

    def _writes_again(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _refuse(self, status: int, why: str) -> None:
        """Send an error response directly, and close the connection."""
        if self.transport.is_closing():
            return
        body = f'{{"error": "{why}"}}'
        self.transport.write(
            f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        self.transport.close()
