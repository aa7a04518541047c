"""The TLS contexts of this program's clients."""

from __future__ import annotations

import ssl


def client_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Return a context that verifies servers by a file of certificates; None: the system's.

    Raises:
        ssl.SSLError: the file holds no certificate in PEM form.
        OSError: it cannot be read.
    """
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13 sets this. It refuses what `openssl x509 -req` signs, as mosquitto-tls(7) has it:
    # "Missing Authority Key Identifier". A device is not to lose its broker by an update.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
