"""One exchange with a web server, bounded in time and size. Redirects are not followed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from .containment import words
from .errors import WebError, thread_limit
from .frozen import record

if TYPE_CHECKING:
    import socket
    import ssl
    from http.client import HTTPConnection


@record
class WebReply:
    """A web server's answer."""

    status: int
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    body: bytes

    @property
    def trouble(self) -> str | None:
        """Why the request failed, or None if the status is 2xx."""
        if 200 <= self.status < 300:
            return None
        if 300 <= self.status < 400:
            return f"answered {self.status}; redirects are not followed, name the final address"
        return f"answered {self.status}"

    @property
    def again(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status >= 500 or self.status == 429


def exchange(
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float,
    most_bytes: int = 0,
    tls: ssl.SSLContext | None = None,
) -> WebReply:
    """Post a body, or get a page if there is no body; return the answer.

    Args:
        url: http or https; its user and password are sent as basic authentication.
        body: the data to post.
        headers: in addition to the usual ones.
        seconds: the limit for the whole exchange, up to the last byte of the answer.
        most_bytes: the limit of the answer's body; 0: it is not read.
        tls: for https; None: the system's certificates.

    Raises:
        WebError: there is no answer, or it is too long or not HTTP.
    """
    from http.client import HTTPException

    parts = urlsplit(url)
    late = f"no answer within {seconds:.3g} s"
    until = time.monotonic() + seconds
    connection = _connection(parts, seconds, tls)
    sent = {"User-Agent": "edge-agent", **_login(parts.username, parts.password), **(headers or {})}
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    over = threading.Event()
    timer: threading.Timer | None = None
    try:
        connection.connect()
        # A socket's timeout applies to each read alone: it never expires for a server that sends a
        # byte now and then. An answer that ends with the connection is read after the connection
        # has let go of its socket.
        timer = threading.Timer(max(0.0, until - time.monotonic()), _cut, [connection.sock, over])
        timer.daemon = True
        timer.start()
        connection.request("GET" if body is None else "POST", target, body, sent)
        response = connection.getresponse()
        # Not read(), which reads a chunk of negative size to its end, however long that is.
        buffer = bytearray(most_bytes + 1 if most_bytes else 0)
        data = bytes(buffer[: response.readinto(buffer)]) if most_bytes else b""
        if over.is_set():
            raise WebError(late)
        if len(data) > most_bytes:
            raise WebError(f"the answer is larger than {most_bytes >> 10} KiB")
        if most_bytes and response.length:
            raise WebError("the answer is cut off")
        named = {name.lower(): value for name, value in response.getheaders()}
        return WebReply(response.status, named, data)
    except TimeoutError:
        raise WebError(late) from None
    except (OSError, HTTPException, ValueError) as problem:
        raise WebError(late if over.is_set() else _words(problem)) from None
    except RuntimeError as problem:
        raise WebError(thread_limit(problem) or words(problem)) from None
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def _connection(parts: SplitResult, seconds: float, tls: ssl.SSLContext | None) -> HTTPConnection:
    """Return a connection that has not begun."""
    from http.client import HTTPConnection, HTTPSConnection

    host = parts.hostname or ""
    if parts.scheme == "https":
        return HTTPSConnection(host, parts.port, timeout=seconds, context=tls)
    return HTTPConnection(host, parts.port, timeout=seconds)


def _cut(sock: socket.socket, over: threading.Event) -> None:
    """End a connection that takes too long."""
    import socket

    over.set()
    with suppress(OSError):  # gone already
        # Not SSLSocket's own, which would have the reader go on without TLS.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _words(problem: Exception) -> str:
    untrusted = getattr(problem, "verify_message", None)
    if untrusted is not None:
        return f"its certificate is not trusted: {untrusted}"
    return words(problem) or "answers, but not in HTTP"


def _login(user: str | None, password: str | None) -> dict[str, str]:
    """Return the header of basic authentication if the URL has a user."""
    if user is None:
        return {}
    import base64

    login = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(login).decode()}"}
