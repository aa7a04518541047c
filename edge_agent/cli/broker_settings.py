"""The settings of a command that talks to a broker."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.errors import UsageError
from .options import load_settings
from .progress import say
from .service_settings import as_the_service


def broker_settings(options: Any) -> Any:
    """Read the settings for a command that talks to a broker; `--broker` replaces the URL.

    Where that names a user, it replaces the user of the settings, too, with the password. Root has
    the variables and credentials of the service with the service's own settings, beside its own.
    """
    from ..config.load import find_file

    own = dict(os.environ)
    with as_the_service(find_file(options.config)) as unread:
        os.environ.update(own)
        if options.broker is None:
            settings = load_settings(options)
        else:
            settings = load_settings(options, change=partial(_at, options.broker))
    if settings.broker.username is not None and settings.broker.password is None:
        for words in unread:
            say(f"note: {words}; for a password set EDGE_AGENT_BROKER__PASSWORD")
    return settings


def _at(url: str, settings: Any) -> Any:
    """Return the settings with another URL of the broker."""
    before = settings.broker
    broker = replace(before, url=url)
    try:
        address = broker.address
    except UsageError as problem:
        raise UsageError(f"--broker: {problem}") from None
    if address.username is not None:
        user = before.username
        with suppress(UsageError):  # the URL that is replaced may be wrong
            user = user or before.address.username
        is_same = user in {None, address.username} and address.password is None
        broker = replace(broker, username=None, password=broker.password if is_same else None)
    if not address.tls:
        broker = replace(broker, ca_file=None, cert_file=None, key_file=None)
    return replace(settings, broker=broker)
