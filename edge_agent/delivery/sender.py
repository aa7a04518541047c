"""The sending side of a push: offers a package and gives what devices ask for. Section 5.

Knows no terminal: progress is in `Sender.progress`, and `step` returns whose it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import BrokerError
from ..models.packages.blocks import CUT
from ..models.packages.build import Package
from ..mqtt.connection import ReceivedMessage
from ..mqtt.one_shot import OneShotClient
from ..mqtt.payloads import iso
from .protocol import ENDED, LIST_PART_BYTES, MOST_OFFER_SECONDS, numbers_in
from .retained_package import offer_of

OFFER_AGAIN_SECONDS = 3.0
PROBATION_OFFER_SECONDS = 30.0
"""After which a device on probation is asked whether it is over: its word may have been lost."""
RECENT_SECONDS = 1.5
"""A block that was sent so recently is on its way: to every member of a group, and to a device
that requests it twice, after an offer and by itself."""
LEAST_BLOCK = 256
"""Where the broker takes no packet of such a block, it takes no offer either."""
AROUND = 16
"""Bytes of a PUBLISH packet beside its topic and payload, at most."""


def block_bytes(limit: int | None, root: str, target: str) -> int:
    """Return how large blocks may be, bytes, for the broker to take them; *limit*: its packets."""
    if limit is None:
        return CUT
    topic = f"{root}/{target}/in/push/{'0' * 32}/block/{'0' * 7}"
    return min(CUT, max(LEAST_BLOCK, limit - len(topic.encode()) - AROUND))


@dataclass(slots=True)
class Progress:
    """How far one device is."""

    state: str = "offered"
    percent: float = 0.0
    why: str | None = None
    heard_at: float = field(default_factory=time.monotonic)
    details: dict[str, Any] = field(default_factory=dict)
    already: bool = False
    """Whether it was live before this push; the details are those of the push that made it so."""
    until: str = "probation"
    """Which state is success: the version serves ("probation"), or has passed it ("live")."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED and not self.waits_for_probation

    @property
    def waits_for_probation(self) -> bool:
        return self.state == "probation" and self.until == "live"


class Sender:
    """One package to one device, or to all of a group."""

    def __init__(
        self,
        client: OneShotClient,
        root: str,
        target: str,
        devices: Iterable[str],
        package: Package,
        *,
        drawn: bool = False,
        until: str = "probation",
    ) -> None:
        """Send nothing yet; *client* listens to `<root>/+/push/<transfer>`.

        *drawn*: the package lies on the broker; only members that cannot draw it are answered.
        """
        self._drawn = drawn
        self._until = until
        self._client = client
        self._prefix = f"{root}/{target}/in/push/{package.transfer}"
        self._root = root
        self._package = package
        self._group = target.startswith("@")
        self._list = package.front.block_list
        self._sent: dict[tuple[str, int], float] = {}
        self._offered_at = 0.0
        self.progress: dict[str, Progress] = {device: Progress(until=until) for device in devices}
        self.bytes_sent = 0

    @property
    def done(self) -> bool:
        return all(progress.ended for progress in self.progress.values())

    def offer(self) -> None:
        """Publish the offer of the package.

        Raises:
            BrokerError: the broker does not take all of it.
        """
        offer = {**offer_of(self._package), "time": iso(time.time_ns())}
        if self._drawn:
            offer["drawn"] = True
        payload = json.dumps(offer).encode()
        self._check_sizes(len(payload))
        self._offered_at = time.monotonic()
        self._sent.clear()  # what was on its way may have been lost
        self._publish(f"{self._prefix}/offer", payload)

    def _check_sizes(self, offer: int) -> None:
        """Check that the broker takes packets of what is sent, before any of it is."""
        limit = self._client.max_packet
        if limit is None:
            return
        room = limit - len(f"{self._prefix}/block/{len(self._package.blocks)}".encode()) - AROUND
        mend = "raise its max_packet_size"
        for what, length, way in (
            ("the offer", offer, mend),
            ("the list of the blocks", min(len(self._list), LIST_PART_BYTES), mend),
            ("a block", max(self._package.blocks.lengths), f"push the model folder, or {mend}"),
        ):
            if length > room:
                raise BrokerError(
                    f"the broker takes packets of {limit} bytes at most, {what} of "
                    f"{self._package.header.id} has {length}; {way}"
                )

    def step(self, timeout: float) -> str | None:
        """Answer one message, or offer again after a silence; return the device that was heard.

        Raises:
            BrokerError: the broker is gone, or does not take packets of this size.
        """
        now = time.monotonic()
        silent = [p for p in self.progress.values() if not p.ended]
        # A device on probation has nothing to say until it is over.
        long = all(p.waits_for_probation for p in silent)
        pause = PROBATION_OFFER_SECONDS if long else OFFER_AGAIN_SECONDS
        if silent and now - max(self._offered_at, *(p.heard_at for p in silent)) > pause:
            self.offer()
        heard = self._client.next(timeout)
        return self._answer(heard) if heard is not None else None

    def _answer(self, heard: ReceivedMessage) -> str | None:
        levels = heard.topic.removeprefix(f"{self._root}/").split("/")
        if len(levels) != 3 or levels[1] != "push" or levels[2] != self._package.transfer:
            return None
        device = levels[0]
        try:
            status = heard.body or {}
            state = str(status["state"])
            percent = float(status.get("percent") or 0.0)
            asked = {} if status.get("drawn") is True else status
            parts, blocks = numbers_in(asked.get("list")), numbers_in(asked.get("need"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        progress = self.progress.get(device)
        if progress is None:
            if not self._group:
                return None
            progress = self.progress[device] = Progress(until=self._until)
        progress.already |= progress.state == "offered" and state in {"live", "probation"}
        progress.state, progress.heard_at = state, time.monotonic()
        progress.percent = percent
        progress.why = status.get("why")
        # What an earlier message has told holds: a device that is offered it once more says less.
        progress.details = {**progress.details, **status}
        for number in parts:
            data = self._list[number * LIST_PART_BYTES : (number + 1) * LIST_PART_BYTES]
            if data:
                self._send("list", number, data)
        for number in blocks:
            if number < len(self._package.blocks):
                self._send("block", number, None)
        return device

    def _send(self, kind: str, number: int, data: bytes | None) -> None:
        """Send a part once to all devices that requested it at about the same time."""
        now = time.monotonic()
        if now - self._sent.get((kind, number), -RECENT_SECONDS) < RECENT_SECONDS:
            return
        self._sent[kind, number] = now
        payload = self._package.block(number, check=False) if data is None else data
        self.bytes_sent += len(payload)
        self._publish(f"{self._prefix}/{kind}/{number}", payload)

    def _publish(self, topic: str, payload: bytes) -> None:
        """Publish for who is there now: a device that comes back later gets nothing uninvited."""
        self._client.publish(topic, payload, expires_s=MOST_OFFER_SECONDS)
