"""The TLS context of a connection to the broker. Imported only where TLS is used."""

from __future__ import annotations

import ssl

from ..config.settings import Broker
from ..core.errors import UsageError


def make_context(broker: Broker) -> ssl.SSLContext:
    """Return a TLS context with the certificates of `[broker]`.

    Raises:
        UsageError: a file is missing or malformed.

    """
    context = ssl.create_default_context()
    files: tuple[tuple[str, str | None], ...] = (
        ("ca_file", broker.ca_file),
        ("cert_file", broker.cert_file),
        ("key_file", broker.key_file),
    )
    for key, name in files:
        if name is None:
            continue
        try:
            with open(name, "rb"):  # noqa: PTH123 - only to check whether it can be
                pass
        except OSError as problem:
            raise UsageError(f"broker.{key}: {name}: {problem.strerror}") from None
    try:
        if broker.ca_file is not None:
            context.load_verify_locations(broker.ca_file)
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
