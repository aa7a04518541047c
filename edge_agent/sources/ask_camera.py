"""Why a network camera's stream did not open, which OpenCV does not tell: the camera is asked.

One request by hand, DESCRIBE (RTSP) or GET (HTTP), first without user and password, then with those
of the URL as the camera wants them (Basic or Digest). Of the answer only the head is read.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

PORTS: Mapping[str, int] = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
SECONDS = 2.0
"""For connecting, and for each answer."""
MAX_HEAD = 16 * 1024


class _Answer(NamedTuple):
    """The head of what the camera said."""

    status: int
    reason: str
    challenges: tuple[str, ...]
    """Values of WWW-Authenticate."""


def why_closed(url: str) -> str:
    """Return why the stream at *url* did not open, with the mend; no secret of the URL is in it."""
    parts = urlsplit(url)
    host, port = _place(parts)
    try:
        answer = _ask(parts, None)
        if answer is not None and answer.status == 401 and parts.username is not None:
            answer = _ask(parts, _authorization(parts, answer.challenges)) or answer
    except OSError as problem:
        # Where a password holds an unescaped "/", what stands for the host is not one.
        where = "there" if "@" in parts.path else f"at {host} port {port}"
        why = problem.strerror or str(problem)
        return f"nothing answers {where}: {why}; is the camera on and reachable?"
    return _meaning(answer, f"{host} port {port}", login=parts.username is not None)


def _meaning(answer: _Answer | None, where: str, *, login: bool) -> str:
    status = None if answer is None else answer.status
    if status == 401 and login:
        return (
            f"{where} refuses user and password (401); are they right, and what is special in "
            "them percent-encoded?"
        )
    if status == 401:
        return f"{where} wants user and password (401); write user:password@ before the host"
    if status == 403:
        return f"{where} forbids it (403); give this user the right to view, in the camera"
    if status == 404:
        return f"{where} has no stream of this path (404); look it up in the camera's manual"
    if answer is None or 200 <= answer.status < 400:
        return f"{where} answers, but not with a video stream; check the path (a player shows more)"
    return f"{where} answers {answer.status} {answer.reason}; check the path, or restart the camera"


def _place(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or PORTS[parts.scheme.lower()]


def _ask(parts: SplitResult, login: str | None) -> _Answer | None:
    """Send one request; None: what answers speaks another language, or not at all.

    Raises:
        OSError: nobody listens there.
    """
    host, port = _place(parts)
    lines = [" ".join(_request(parts)), f"Host: {host}:{port}", "CSeq: 1"]
    lines += [f"Authorization: {login}"] if login else []
    with socket.create_connection((host, port), timeout=SECONDS) as plain:
        try:
            channel = plain
            if parts.scheme.lower() in {"rtsps", "https"}:
                # Cameras sign their own certificates, and FFmpeg takes those, too.
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                channel = context.wrap_socket(plain, server_hostname=host)
            channel.sendall("\r\n".join([*lines, "", ""]).encode("utf-8", "replace"))
            head = b""
            deadline = time.monotonic() + SECONDS
            while b"\r\n\r\n" not in head and len(head) < MAX_HEAD:
                channel.settimeout(max(0.01, deadline - time.monotonic()))
                received = channel.recv(4096)
                if not received:
                    break
                head += received
        except OSError:
            return None
    return _parsed(head.partition(b"\r\n\r\n")[0].decode("utf-8", "replace"))


def _parsed(head: str) -> _Answer | None:
    first, *rest = head.split("\r\n")
    found = re.match(r"(?:RTSP|HTTP)/\d\.\d (\d{3}) ?(.{0,60})", first)
    if found is None:
        return None
    named = [line.partition(":") for line in rest]
    challenges = [value.strip() for key, _, value in named if key.lower() == "www-authenticate"]
    return _Answer(int(found[1]), found[2], tuple(challenges))


def _request(parts: SplitResult) -> tuple[str, str, str]:
    """Return method, address and protocol."""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme.lower() in {"http", "https"}:
        return "GET", path, "HTTP/1.0"
    address = parts.netloc.rpartition("@")[2]
    return "DESCRIBE", f"{parts.scheme}://{address}{path}", "RTSP/1.0"


def _authorization(parts: SplitResult, challenges: tuple[str, ...]) -> str:
    """Answer the challenge of a camera: Digest (RFC 2617) where it offers that, else Basic."""
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    digest = next((text for text in challenges if text.lower().startswith("digest ")), None)
    if digest is None:
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    given = {
        key.lower(): quoted or plain
        for key, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|([^\s,]+))', digest)
    }
    method, uri, _ = _request(parts)
    realm, nonce = given.get("realm", ""), given.get("nonce", "")
    middle, extra = nonce, ""
    if "auth" in given.get("qop", "").split(","):
        own = secrets.token_hex(8)
        middle, extra = f"{nonce}:00000001:{own}:auth", f', qop=auth, nc=00000001, cnonce="{own}"'
    response = _md5(f"{_md5(f'{user}:{realm}:{password}')}:{middle}:{_md5(f'{method}:{uri}')}")
    return (
        f'Digest username="{user}", realm="{realm}", nonce="{nonce}", uri="{uri}", '
        f'response="{response}"{extra}'
    )


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
