"""What the receiving side says of transfers, on their topics. Section 5 of the interface."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ...mqtt import payloads

log = logging.getLogger(__name__)


class Replies:
    """Says how far a transfer is, and what is wanted next."""

    def __init__(self, device: str, publish: Callable[[str, Mapping[str, Any]], bool]) -> None:
        """Prepare.

        Args:
            device: who we are.
            publish: says something on the topic of a transfer; False without a connection.

        """
        self._device = device
        self._publish = publish

    def say(self, transfer: str, state: str, *, have: int = 0, total: int = 0, **more: Any) -> bool:
        """Say how far it is; False without a connection.

        Args:
            transfer: which.
            state: one of section 5.
            have: blocks that are here.
            total: blocks that there are to be.
            more: `list`, `need` or `why`.

        """
        percent = 100.0 * have / total if total else 0.0
        return self._publish(
            transfer,
            {
                "schema": payloads.SCHEMA,
                "device": self._device,
                "transfer": transfer,
                "state": state,
                "have": have,
                "total": total,
                "percent": round(percent, 1),
                **more,
            },
        )

    def reject(self, transfer: str, why: str) -> None:
        """Say that it does not come in."""
        log.warning("push %s: rejected: %s", transfer, why)
        self.say(transfer, "rejected", why=why)
