"""Parsing of broker URLs."""

from __future__ import annotations

from dataclasses import field
from urllib.parse import unquote, urlsplit

from ..core.errors import UsageError
from ..core.frozen import record


@record
class Address:
    """A parsed broker URL."""

    host: str
    port: int
    tls: bool
    username: str | None
    password: str | None = field(repr=False)

    def __str__(self) -> str:
        """Return the address without credentials."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


def parse_url(url: str) -> Address:
    """Parse a URL mqtt://[user[:password]@]host[:port] or mqtts://…."""
    mend = ""
    if "@" in url:
        mend = (
            "; in user and password percent-encode '@' as %40, '#' as %23, '/' as %2F, '?' as %3F, "
            "or give them as username and password (systemd credential broker.password)"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"the port is not a number from 1 to 65535{mend}") from None
    if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or port == 0:
        # Worded so that redaction does not mistake a part of it for a password.
        raise UsageError(f"begins with mqtt:// or mqtts:// and a host; as mqtt://localhost{mend}")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise UsageError("holds a space or control character; write it as %20")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise UsageError(f"expected nothing after host and port{mend}")
    tls = parts.scheme == "mqtts"
    return Address(
        parts.hostname,
        port or (8883 if tls else 1883),
        tls,
        unquote(parts.username) if parts.username is not None else None,
        unquote(parts.password) if parts.password is not None else None,
    )
