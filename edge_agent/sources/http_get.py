"""One HTTP GET of a camera's picture or stream, with the authentication that it requires.

Not with a library, because reads must end when the source is closed, and cameras deviate from HTTP.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import math
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from ..core.errors import SourceError

PORTS: Mapping[str, int] = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
SECONDS = 5.0
"""Time limit for connecting, and for the head of the answer."""
MAX_HEAD = 16 * 1024
_CHUNK = re.compile(rb"(?:\r\n)?([0-9a-fA-F]{1,15})(?![0-9a-fA-F])[^\r\n]*\r\n")
"""The line before a chunk, which begins with its size."""
REDIRECTS = 5
TICK = 0.25
"""Seconds between a reader's checks whether to stop."""


class Answer(NamedTuple):
    """A camera's answer, whose body is still unread."""

    status: int
    headers: Mapping[str, str]
    """Headers by lower-case name; several with one name are joined by commas."""
    channel: socket.socket
    begun: bytes
    """The part of the body that has already arrived."""

    @property
    def media(self) -> str:
        """The media type of the body in lower case; empty: none is given."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def where(url: str) -> str:
    """Return only the host and port of a URL."""
    parts = urlsplit(url)
    if "@" in parts.path:
        return "there"  # a password with an unescaped "/": the parsed host is not one
    return f"{parts.hostname} port {_port(parts)}"


def _port(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme.lower()]


def refusal(status: int, url: str) -> str:
    """Return the meaning of an HTTP or RTSP status, with a fix."""
    place, login = where(url), urlsplit(url).username is not None
    if status == 401 and login:
        return (
            f"{place} refuses user and password (401); are they right, and what is special in "
            "them percent-encoded?"
        )
    if status == 401:
        return f"{place} wants user and password (401); write user:password@ before the host"
    if status == 403:
        return f"{place} forbids it (403); give this user the right to view, in the camera"
    if status == 404:
        return f"{place} has no stream of this path (404); look it up in the camera's manual"
    return f"{place} answers {status}; check the path, or restart the camera"


def unreachable(problem: OSError, url: str) -> str:
    """Return why there is no answer at a URL, with a fix."""
    # A route that discards what is sent is an invalid argument to the kernel.
    nowhere = problem.errno == errno.EINVAL
    why = "no route leads there" if nowhere else problem.strerror or str(problem)
    place = where(url)
    at = place if place == "there" else f"at {place}"
    return f"nothing answers {at}: {why}; is the camera on and reachable?"


def get(url: str, name: str) -> Answer:
    """Request a URL, first without user and password, and follow redirects.

    Raises:
        SourceError: the request is refused, or there is no answer.
    """
    login: str | None = None
    address = url
    for _ in range(2 + REDIRECTS):
        parts = urlsplit(address)
        try:
            answer = _ask(parts, login)
        except TimeoutError:
            raise SourceError(
                f"{name}: {where(address)} is too slow: no answer within {SECONDS:g} s"
            ) from None
        except UnicodeError:
            raise SourceError(f"{name}: {where(address)} is no name of a host") from None
        except OSError as problem:
            raise SourceError(f"{name}: {unreachable(problem, address)}") from None
        if answer is None:
            raise SourceError(f"{name}: {where(address)} answers, but not in HTTP")
        if answer.status == 200:
            return answer
        answer.channel.close()
        user = urlsplit(url)
        same = parts.hostname == user.hostname and (
            parts.port == user.port or _port(parts) == _port(user)
        )
        if answer.status == 401 and login is None and user.username is not None and same:
            login = _authorization(user, parts, answer.headers.get("www-authenticate", ""))
        elif answer.status in {301, 302, 303, 307, 308} and "location" in answer.headers:
            try:
                address, login = urljoin(address, answer.headers["location"]), None
                scheme, _ = urlsplit(address).scheme.lower(), urlsplit(address).port
            except ValueError:
                raise SourceError(f"{name}: {where(url)} redirects to what is no address") from None
            if scheme not in {"http", "https"}:
                raise SourceError(
                    f"{name}: {where(url)} redirects to {scheme[:20]}:, which is not followed from"
                    " http; look up the stream's own address in the camera's manual"
                )
        elif answer.status == 401 and user.username is not None and not same:
            raise SourceError(
                f"{name}: {where(url)} redirects to {where(address)}, which asks for a user; the "
                "password is not sent to another address: give that one"
            )
        else:
            raise SourceError(f"{name}: {refusal(answer.status, url)}")
    raise SourceError(f"{name}: {where(url)} redirects in a loop; check the path")


class Body:
    """The body of an answer as a file."""

    def __init__(self, answer: Answer, closing: threading.Event, silence: float) -> None:
        """Take over an answer; reading ends or fails like `body`."""
        self.media = answer.media
        self._channel = answer.channel
        self._limits = closing, silence
        self._pieces = body(answer, closing, silence)
        self._held = b""

    def again(self, answer: Answer) -> Body:
        """Return the body of another answer, with the same limits."""
        return Body(answer, *self._limits)

    def pieces(self) -> Iterator[bytes]:
        """Yield the rest as it arrives.

        Raises:
            TimeoutError: nothing has arrived for too long.
            OSError: the connection is lost.
        """
        if self._held:
            held, self._held = self._held, b""
            yield held
        yield from self._pieces

    def peek(self, size: int) -> bytes:
        """Return at least the next *size* bytes without consuming them, fewer at the end."""
        while len(self._held) < size and (piece := self._piece()):
            self._held += piece
        return self._held

    def read(self, size: int, /) -> bytes:
        """Read up to *size* bytes; b"" at the end."""
        held = self._held or self._piece()
        self._held = held[size:]
        return held[:size]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _piece(self) -> bytes:
        try:
            return next(self._pieces, b"")
        except OSError:
            return b""


def body(answer: Answer, closing: threading.Event, silence: float) -> Iterator[bytes]:
    """Yield the pieces of a body until it ends, or *closing* is set.

    Raises:
        TimeoutError: nothing has arrived for *silence* seconds.
        OSError: the connection is lost.
    """
    pieces = _pieces(answer, closing, silence)
    if "chunked" not in answer.headers.get("transfer-encoding", "").lower():
        yield from pieces
        return
    held, left = b"", 0
    for piece in pieces:
        held += piece
        while held:
            if left:  # not kept until it is whole: a server may say any size
                yield held[:left]
                held, left = held[left:], max(0, left - len(held))
                continue
            found = _CHUNK.match(held)
            if found is None and len(held) > MAX_HEAD:
                raise ConnectionError("chunks without sizes")
            if found is None:
                break
            left, held = int(found[1], 16), held[found.end() :]
            if left == 0:
                return


def _pieces(answer: Answer, closing: threading.Event, silence: float) -> Iterator[bytes]:
    # A line that comes twice is joined by a comma.
    said = answer.headers.get("content-length", "").partition(",")[0].strip()
    left = float(said) if said.isdecimal() else math.inf
    answer.channel.settimeout(TICK)
    heard = time.monotonic()
    received = answer.begun
    while not closing.is_set():
        if received:
            heard = time.monotonic()
            yield received
            left -= len(received)
        if left <= 0:
            return
        try:
            received = answer.channel.recv(65536)
        except TimeoutError:
            if time.monotonic() - heard > silence:
                raise
            received = b""
            continue
        if not received:
            return


def _ask(parts: SplitResult, login: str | None) -> Answer | None:
    """Send one request; None: the peer uses another protocol, or hangs up."""
    host, port = parts.hostname or "", _port(parts)
    at = f"[{host}]" if ":" in host else host
    lines = [f"GET {_path(parts)} HTTP/1.0", f"Host: {at}:{port}", "Accept: */*"]
    lines += [f"Authorization: {login}"] if login else []
    deadline = time.monotonic() + SECONDS
    channel = socket.create_connection((host, port), timeout=SECONDS)
    try:
        if parts.scheme.lower() == "https":
            # Cameras sign their own certificates.
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            channel = context.wrap_socket(channel, server_hostname=host)
        channel.sendall("\r\n".join([*lines, "", ""]).encode("utf-8", "replace"))
        head = b""
        while (end := re.search(rb"\r?\n\r?\n", head)) is None and len(head) < MAX_HEAD:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            channel.settimeout(left)
            received = channel.recv(4096)
            if not received:
                break
            head += received
    except BaseException:
        channel.close()
        raise
    first, *rest = (head[: end.start()] if end else head).decode(
        "utf-8", "replace"
    ).splitlines() or [""]
    found = re.match(r"(?:HTTP/\d\.\d|ICY) (\d{3})", first)
    if found is None or end is None:
        channel.close()
        return None
    headers: dict[str, str] = {}
    for line in rest:
        key, _, value = line.partition(":")
        known = headers.get(key.strip().lower())
        headers[key.strip().lower()] = f"{known}, {value.strip()}" if known else value.strip()
    return Answer(int(found[1]), headers, channel, head[end.end() :])


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _authorization(user: SplitResult, parts: SplitResult, challenges: str) -> str:
    """Answer a camera's challenge: Digest (RFC 7616) if it is offered, or else Basic."""
    name, password = unquote(user.username or ""), unquote(user.password or "")
    # Each has its own fields, and a camera may offer several.
    offers = re.split(r"(?:^|, *)(?=[\w-]+ +\w+=)", challenges)
    fields = next((each for each in reversed(offers) if each.lower().startswith("digest ")), "")
    given = {
        key.lower(): quoted or plain
        for key, quoted, plain in re.findall(r'\b(\w+)=(?:"([^"]*)"|([^\s,]+))', fields)
    }
    if "nonce" not in given:
        return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
    way = given.get("algorithm", "MD5").upper()

    def hashed(*texts: str) -> str:
        kind = "sha256" if way.startswith("SHA-256") else "md5"
        return hashlib.new(kind, ":".join(texts).encode(), usedforsecurity=False).hexdigest()

    uri, realm, nonce = _path(parts), given.get("realm", ""), given["nonce"]
    own = secrets.token_hex(8)
    secret = hashed(name, realm, password)
    if way.endswith("-SESS"):
        secret = hashed(secret, nonce, own)
    middle, extra = [nonce], f", algorithm={way}" if "algorithm" in given else ""
    if "auth" in re.split(r"[ ,]+", given.get("qop", "")):
        middle = [nonce, "00000001", own, "auth"]
        extra += f', qop=auth, nc=00000001, cnonce="{own}"'
    if "opaque" in given:
        extra += f', opaque="{given["opaque"]}"'
    response = hashed(secret, *middle, hashed("GET", uri))
    return (
        f'Digest username="{name}", realm="{realm}", nonce="{nonce}", uri="{uri}", '
        f'response="{response}"{extra}'
    )
