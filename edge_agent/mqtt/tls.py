"""The certificates of connections: read at the start, and again once they are renewed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.settings import Broker
from ..core.errors import UsageError
from ..core.logs import Latch
from ..core.plain_file import open_plain_file

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

CHECK_DAYS, HEALTH_DAYS = 30, 14
"""How long before a certificate expires `check` and health say so."""
_EXPIRING = {
    "cert_file": ("our certificate", "the broker takes no new connection with it"),
    "ca_file": ("the authority's certificate", "no broker is trusted"),
}
Validity = tuple[datetime, datetime]
"""From when and until when a certificate is valid."""
_PEM = rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----([^-]*)-----END "
_UTC_TIME = 0x17
"""Tag of a time whose year has two digits (RFC 5280, 4.1.2.5.1)."""


class Certificates:
    """Certificates and key from the files of `[broker]`."""

    def __init__(self, broker: Broker) -> None:
        """Read them.

        Raises:
            UsageError: a file is missing or malformed.
        """
        self._broker = broker
        self._files = _files(broker)
        self._context = tls_context(broker)
        self._problem = ""

    def context(self) -> ssl.SSLContext | None:
        """Return a context with what the files hold now, or what they held when it was last whole.

        Certificates expire and are replaced in files of the same names, one after the other.
        """
        files = _files(self._broker)
        if files != self._files:
            try:
                self._context = tls_context(self._broker)
            except UsageError as problem:
                if self._problem != str(problem):
                    self._problem = str(problem)
                    log.warning("%s; the one read before is still used", problem)
            else:
                self._files, self._problem = files, ""
                log.info("broker: the certificates have changed and are read again")
        return self._context


def _files(broker: Broker) -> list[tuple[int, int, int]]:
    """Return what tells whether a file was replaced, for each that exists."""
    if not broker.address.tls:
        return []
    import ssl

    found = []
    system = ssl.get_default_verify_paths().cafile
    for name in filter(None, (system, broker.ca_file, broker.cert_file, broker.key_file)):
        with suppress(OSError):
            status = Path(name).stat()
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return found


def tls_context(broker: Broker) -> ssl.SSLContext | None:
    """Return a TLS context with the certificates of `[broker]`; None without TLS.

    Raises:
        UsageError: a certificate file is missing or malformed.
    """
    if not broker.address.tls:
        return None
    import ssl

    from ..core.tls import client_context

    files: tuple[tuple[str, str | None], ...] = (
        ("ca_file", broker.ca_file),
        ("cert_file", broker.cert_file),
        ("key_file", broker.key_file),
    )
    for key, name in files:
        if name is None:
            continue
        try:
            open_plain_file(name).close()  # only to check whether it can be
        except OSError as problem:
            raise UsageError(f"broker.{key}: {name}: {problem.strerror}") from None
    try:
        context = client_context(broker.ca_file)
    except ssl.SSLError:
        raise UsageError(
            f"broker.ca_file: {broker.ca_file}: holds no certificate in PEM form"
        ) from None
    except OSError as problem:  # it has just been removed
        raise UsageError(f"broker.ca_file: {broker.ca_file}: {problem.strerror}") from None
    try:
        if broker.cert_file is not None:
            context.load_cert_chain(broker.cert_file, broker.key_file, password=lambda: b"")
    except ssl.SSLError:
        raise UsageError(
            f"broker.cert_file: {broker.cert_file} and {broker.key_file}: not a certificate and "
            "its key without a passphrase, in PEM form"
        ) from None
    except OSError as problem:
        words = f"broker.cert_file: {broker.cert_file} and {broker.key_file}: {problem.strerror}"
        raise UsageError(words) from None
    return context


class Renewal:
    """Says in health, and once in the log, that certificates of `[broker]` must be renewed."""

    def __init__(self, broker: Callable[[], Broker]) -> None:
        """Say so of the certificates that the settings name at the time."""
        self._broker = broker
        self._files: list[tuple[int, int, int]] | None = None
        self._ends: Mapping[str, Validity] = {}
        self._changed = False
        self._unfit: list[str] = []
        self._due = Latch()

    def problems(self) -> list[str]:
        """Return a reason for each certificate that expires soon, or has, or cannot be used."""
        broker = self._broker()
        files = _files(broker)
        if files != self._files:
            self._changed, self._unfit = self._files is not None, []
            self._files, self._ends = files, validities(broker)
        elif self._changed or self._unfit:
            # Not as soon as one has changed: they are replaced one after the other.
            self._changed, self._unfit = False, _unfit(broker)
        said = [*self._unfit, *expiring(self._ends, HEALTH_DAYS)]
        if self._due.begins(bool(said)):
            log.warning("%s", "; ".join(said))
        return said


def _unfit(broker: Broker) -> list[str]:
    """Return why the files, which have changed, cannot be used; empty: they can."""
    try:
        tls_context(broker)
    except UsageError as problem:
        return [f"{problem}; what was read before is used, until the next start, which would fail"]
    return []


def expiring(found: Mapping[str, Validity], days: int) -> list[str]:
    """Return a text for each certificate that expires within so many days, or has.

    A clock that has not been set is behind: what has expired by it has.
    """
    now = datetime.now(UTC)
    lines = []
    for key, (begin, end) in found.items():
        # One that is renewed each day has no fortnight.
        if end - now < min(timedelta(days=days), (end - begin) / 3):
            whose, effect = _EXPIRING[key]
            then = f"expires on {end:%Y-%m-%d}; after that" if end > now else f"{expired(end)};"
            lines.append(f"broker: {whose} {then} {effect}: renew broker.{key}")
    return lines


def expired(end: datetime) -> str:
    """Return the words for a certificate that has expired."""
    return f"expired on {end:%Y-%m-%d}, if this device's clock is right"


def validities(broker: Broker) -> dict[str, Validity]:
    """Return when the certificates of `[broker]` are valid, by setting, where that can be read.

    Of `ca_file`, which may hold several authorities, the last; of `cert_file` the first in it,
    which is ours.
    """
    found = {}
    if broker.address.tls:
        from binascii import a2b_base64  # not at the start

        for key, name in (("cert_file", broker.cert_file), ("ca_file", broker.ca_file)):
            with suppress(OSError, ValueError, IndexError):
                if name is not None:
                    with open_plain_file(name) as file:
                        held = [
                            _validity(a2b_base64(each)) for each in re.findall(_PEM, file.read())
                        ]
                    last = max(held, key=itemgetter(1))
                    found[key] = held[0] if key == "cert_file" else last
    return found


def _validity(certificate: bytes) -> Validity:
    """Return when a certificate in DER form is valid (RFC 5280, 4.1).

    Python's ssl tells that of other parties' only; `cryptography` would take 12 MB of memory.
    """
    fields = _elements(_elements(_elements(certificate)[0][1])[0][1])
    # Version, serial number, signature, issuer, validity; version 1 has none.
    begin, end = _elements(fields[4 if fields[0][0] == 0xA0 else 3][1])
    return _time(*begin), _time(*end)


def _time(tag: int, data: bytes) -> datetime:
    time = data.decode()
    if tag == _UTC_TIME:
        time = ("19" if time >= "50" else "20") + time
    return datetime.fromisoformat(f"{time[:8]}T{time[8:]}")


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Return the tags and contents of the elements in *data* (X.690, 8.1)."""
    found, at = [], 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size > 0x7F:
            size, at = int.from_bytes(data[at : at + size - 0x80], "big"), at + size - 0x80
        found.append((tag, data[at : at + size]))
        at += size
    return found
