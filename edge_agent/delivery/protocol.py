"""The transfer protocol of section 5: what sender and receiver share, and the status topic.

Blocks and their list are the package format's: `models.packages.blocks`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger(__name__)

MOST_OFFER_SECONDS = 60
"""Greatest age of an accepted offer; MQTT 5 brokers keep messages of a push no longer."""
LIST_PART_BYTES = 64 * 1024
"""Bytes of a package's block list in one message."""
WINDOW = 32
"""Most parts or blocks that a device requests at a time: a broker silently drops messages that
queue up for a slow receiver (mosquitto's queue holds 1,000)."""
MAX_OFFER_BYTES = 64 * 1024
MOST_OFFERS = 64
"""Transfers whose latest offer is remembered."""
MAX_SINGLE_MESSAGE_BYTES = 256 * 2**20
"""Limit for a package in one message; a larger one is pushed block by block."""
OUTCOMES = frozenset({"live", "rejected"})
"""States that are the last of a push."""
ENDED = OUTCOMES | {"probation"}
"""States after which a sender stops waiting."""

LOW_AGREEMENT = 0.5
"""Share of agreeing shadow frames below which a version goes live with a warning."""

Publish = Callable[[str, Mapping[str, Any]], object]
"""Publishes on the topic of a transfer; False without a connection."""


class StatusTopic:
    """Publishes the progress of a transfer; the publisher adds device, id and time."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._offers: dict[str, tuple[str | None, str | None]] = {}
        """By transfer: time and push of its latest offer, of the latest transfers."""

    def offered(self, transfer: str, time: str | None, push: str | None = None) -> None:
        """Record the time of an offer, by which a sender knows what is said of its own try.

        *push* is the same in all offers of one push, and differs from that of another push.
        """
        self._offers.pop(transfer, None)
        self._offers[transfer] = time, push
        if len(self._offers) > MOST_OFFERS:
            del self._offers[next(iter(self._offers))]

    def push(self, transfer: str) -> str | None:
        """Return the push of a transfer's latest offer, if it names one."""
        return self._offers.get(transfer, (None, None))[1]

    def publish(
        self, transfer: str, state: str, *, have: int = 0, total: int = 0, **more: Any
    ) -> bool:
        """Publish a state of section 5; return False without a connection.

        *have* and *total* count blocks; *more* are further fields, of which None is left out.
        """
        percent = 100.0 * have / total if total else 0.0
        status: dict[str, Any] = {
            "state": state,
            "have": have,
            "total": total,
            "percent": round(percent, 1),
        }
        status |= {key: value for key, value in more.items() if value is not None}
        status["offer"] = self._offers.get(transfer, (None, None))[0]
        return bool(self._publish(transfer, status))

    def reject(self, transfer: str, why: str) -> None:
        """Log and publish that a package is rejected."""
        log.warning("push %s: rejected: %s", transfer, why)
        self.publish(transfer, "rejected", why=why)


def numbers_in(ranges: Any) -> list[int]:
    """List the numbers in [[first, last], …]; at most a few windows of them.

    Raises:
        ValueError: these are not ranges.
    """
    numbers: list[int] = []
    for first, last in ranges or []:
        if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last):
            raise ValueError(ranges)
        numbers.extend(range(first, min(last, first + 8 * WINDOW - 1) + 1))
        if len(numbers) > 8 * WINDOW:
            break
    return numbers


def agreement_words(details: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Describe how far a version that went live had agreed with the previous one.

    Return "agrees with it on 12 of 30 live frames (…)", or None if nothing was compared; and
    whether that is low enough for a warning. *details* come from any device, so in any shape.
    """
    match details.get("shadow"):
        case {"compared": int(compared), "agreement": int() | float() as share} if compared > 0:
            low = share < LOW_AGREEMENT
            words = f"agrees with it on {round(share * compared)} of {compared} live frames"
            if empty := details["shadow"].get("empty"):
                words += f", and nothing was found in {'any' if empty == compared else str(empty)}"
            why = details["shadow"].get("disagreement")
            return (f"{words} ({why})" if why and low else words), low
        case _:
            return None, False
