"""Puts a package on the broker for many devices, over a connection that may break."""

from __future__ import annotations

import time
from contextlib import suppress

from ..core.backoff import Backoff
from ..core.errors import BrokerError
from ..core.text import counted
from ..delivery.sender import RetainedPackage
from ..mqtt.one_shot import OneShotClient, is_loss
from .progress import Progress, say

RECONNECT_SECONDS = 0.5


def lay(
    client: OneShotClient, package: RetainedPackage, patience: float = 60.0, *, again: bool = False
) -> str:
    """Put a package on the broker; return why devices cannot draw it; empty: they can.

    All is sent again where the connection breaks: the broker may have lost what came. *again*:
    only if it does not lie there any more.

    Raises:
        BrokerError: the broker refuses it, or no more of it came there for *patience* seconds.
    """
    progress, backoff = Progress(), Backoff(RECONNECT_SECONDS, most=10.0)
    moved, most, losses = time.monotonic(), 0, 0

    def sent(done: int, total: int) -> None:
        nonlocal moved, most, losses
        if done > most:
            moved, most, losses = time.monotonic(), done, 0
        if not again:
            progress("sending block", done, total)

    while True:
        try:
            return "" if again and package.lies_there() else package.place(sent)
        except BrokerError as problem:
            if not is_loss(client, problem):
                if most:
                    _take_back(client, package)
                raise
            why, losses = str(problem), losses + 1
        finally:
            progress.close()
        if time.monotonic() - moved > patience:
            break
        if losses == 1:
            say(f"{why}; trying again")
        time.sleep(backoff.pause())
        reconnect(client, moved + patience)
    _take_back(client, package)
    raise BrokerError(
        f"no more of the package came to the broker for {patience:.0f} s;{limited(losses)} {why}"
    )


def _take_back(client: OneShotClient, package: RetainedPackage) -> None:
    """Remove what came to the broker, unless it lies there whole, and for others."""
    with suppress(BrokerError):
        client.reconnect()
        if not package.lies_there():
            package.clear()


def limited(losses: int) -> str:
    """Return what to look at where the connection was lost so often; empty: it was not."""
    words = (
        f" the connection was lost {counted(losses, 'time')}: if the broker limits the size of"
        " messages (message_size_limit of mosquitto), let it take 66000 bytes; its access list may"
        " also lack `write` for this user;"
    )
    return words if losses else ""


def reconnect(client: OneShotClient, deadline: float) -> None:
    """Reconnect to a broker that was restarted.

    Raises:
        BrokerError: it is not back at *deadline*, monotonic seconds.
    """
    while True:
        try:
            client.reconnect()
            client.settle()
            return
        except BrokerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RECONNECT_SECONDS)
