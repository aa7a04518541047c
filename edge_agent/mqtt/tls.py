"""The certificates of connections: read at the start, and again once they are renewed."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.settings import Broker
from ..core.errors import UsageError
from ..core.plain_file import open_plain_file

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)


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
    try:
        if broker.cert_file is not None:
            context.load_cert_chain(broker.cert_file, broker.key_file, password=lambda: b"")
    except ssl.SSLError:
        raise UsageError(
            f"broker.cert_file: {broker.cert_file} and {broker.key_file}: not a certificate and "
            "its key without a passphrase, in PEM form"
        ) from None
    return context
