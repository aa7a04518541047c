"""The sending side: offers a package and sends requested blocks, or leaves it on the broker.

On the broker it is retained block by block for devices to draw: it is sent once for any number of
devices at any time, and its sender removes it later. Section 5. Independent of terminals: progress
is in `Sender.progress`.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..config.settings import Broker
from ..core.errors import BrokerError, ModelError
from ..models.packages.blocks import CUT, ENTRY
from ..models.packages.build import Package
from ..models.packages.package import PackageHeader
from ..mqtt.connection import ReceivedMessage, is_acknowledged, parse_object
from ..mqtt.one_shot import OneShotClient
from ..mqtt.payloads import SCHEMA, iso
from ..mqtt.topics import packages
from .protocol import ENDED, LIST_PART_BYTES, MOST_OFFER_SECONDS, WINDOW, numbers_in

OFFER_AGAIN_SECONDS = 3.0
FEW_DEVICES = 50
"""Up to so many devices, each message is handled by itself, and an offer costs little."""
RETURN_SECONDS = 10.0
"""Time for a device that is offline to reconnect; after an outage of the broker, in addition to how
long that was."""
MOST_AWAY = 60.0
"""Limit for that time: the longest pause between attempts. Until then no device counts as lost."""
PROBATION_OFFER_SECONDS = 30.0
"""Interval for asking a device whether probation is over: its message may have been lost."""
RECENT_SECONDS = 1.5
"""A block sent this recently is not sent again: it is in transit to every member of a group, or to
a device that requests it twice, after an offer and by itself."""
LEAST_BLOCK = 256
"""Least bytes of a block: a broker that refuses such a packet also refuses the offer."""
AROUND = 16
"""Most bytes of a PUBLISH packet besides its topic and payload."""


def block_bytes(limit: int | None, root: str, target: str) -> int:
    """Return the largest block, in bytes, for a broker with a packet size limit of *limit*."""
    if limit is None:
        return CUT
    topic = f"{root}/{target}/in/push/{'0' * 32}/block/{'0' * 7}"
    return min(CUT, max(LEAST_BLOCK, limit - len(topic.encode()) - AROUND))


def check_sizes(client: OneShotClient, prefix: str, package: Package, offer: int) -> None:
    """Check that the broker accepts packets of a package's sizes, before sending any.

    Args:
        client: connected to it.
        prefix: topic of the package.
        package: to be sent.
        offer: bytes of its offer.

    Raises:
        BrokerError: it does not.
    """
    limit = client.max_packet
    if limit is None:
        return
    room = limit - len(f"{prefix}/block/{len(package.blocks)}".encode()) - AROUND
    mend = "raise its max_packet_size"
    for what, length, way in (
        ("the offer", offer, mend),
        ("the list of the blocks", min(len(package.front.block_list), LIST_PART_BYTES), mend),
        ("a block", max(package.blocks.lengths), f"give the model folder, or {mend}"),
    ):
        if length > room:
            raise BrokerError(
                f"the broker takes packets of {limit} bytes at most, {what} of "
                f"{package.header.id} has {length}; {way}"
            )


@dataclass(slots=True)
class Progress:
    """The progress of one device."""

    state: str = "offered"
    percent: float = 0.0
    why: str | None = None
    heard_at: float = field(default_factory=time.monotonic)
    details: dict[str, Any] = field(default_factory=dict)
    already: bool = False
    """Whether it was live before this push; the details then come from the earlier push."""
    answered: bool = False
    """Whether it has answered this push; until then it may speak of an earlier one."""
    until: str = "probation"
    """Which state is success: the version serves ("probation"), or has passed it ("live")."""
    lost_at: float | None = None
    """Monotonic time when a member of a group that is offline counts as lost; None: it is online,
    as far as its broker knows."""

    @property
    def shown(self) -> str:
        """The state, or "offline"."""
        return self.state if self.lost_at is None or self.ended else "offline"

    @property
    def lost(self) -> bool:
        """Whether it went offline before it had ended, and has not come back."""
        return self.lost_at is not None and not self.ended and time.monotonic() >= self.lost_at

    @property
    def ended(self) -> bool:
        return self.state in ENDED and not self.waits_for_probation

    @property
    def waits_for_probation(self) -> bool:
        return self.state == "probation" and self.until == "live"


class Sender:
    """Sends one package to one device, or to all devices of a group.

    BrokerError is raised if the broker is gone, or refuses packets of this size.
    """

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
        on_rollout: Callable[[str, bytes], object] = lambda _topic, _payload: None,
    ) -> None:
        """Prepare; *client* must be subscribed to `<root>/+/push/<transfer>` and `<root>/+/status`.

        *drawn*: the package is on the broker, and only devices that cannot draw it are answered.
        *on_rollout* takes what comes on the topics of roll-outs meanwhile: topic and payload.
        """
        self._drawn = drawn
        self._until = until
        self._client = client
        self._prefix = f"{root}/{target}/in/push/{package.transfer}"
        self._root = root
        self._package = package
        self._group = target.startswith("@")
        self._on_rollout = on_rollout
        self._sent: dict[tuple[str, int], float] = {}
        self._offered_at = 0.0
        self._began = iso(time.time_ns())
        """Tells devices the offers of this push from those of another one of the same package."""
        self._offers: dict[str, Any] = {}
        """The receipts of the offers, by their times."""
        self._returning = 0.0
        """Monotonic time until which devices may still be reconnecting."""
        self.progress: dict[str, Progress] = {device: Progress(until=until) for device in devices}
        self.bytes_sent = 0

    @property
    def inbox(self) -> str:
        """What the target must be able to read."""
        return f"{self._prefix.rpartition('/push/')[0]}/#"

    @property
    def done(self) -> bool:
        return all(progress.ended or progress.lost for progress in self.progress.values())

    def reconnected(self, seconds: float) -> None:
        """Give devices time to return, too, after the broker was away for *seconds*."""
        self._returning = time.monotonic() + RETURN_SECONDS + min(MOST_AWAY, seconds)
        for progress in self.progress.values():
            progress.lost_at = None
        self.offer()

    def offer(self) -> None:
        """Publish the offer of the package."""
        offer = {**offer_of(self._package), "time": iso(time.time_ns()), "began": self._began}
        if self._drawn:
            offer["drawn"] = True
        payload = json.dumps(offer).encode()
        check_sizes(self._client, self._prefix, self._package, len(payload))
        self._offered_at = time.monotonic()
        self._sent.clear()  # blocks in transit may have been lost
        self._offers[offer["time"]] = self._publish(f"{self._prefix}/offer", payload)

    @property
    def taken(self) -> bool:
        """Whether the broker has answered an offer, or a device has."""
        answered = (progress.answered for progress in self.progress.values())
        return any(map(is_acknowledged, self._offers.values())) or any(answered)

    def step(self, timeout: float) -> None:
        """Answer a message, of many devices also some that wait; offer again after silence."""
        now = time.monotonic()
        silent = [p for p in self.progress.values() if not p.ended and p.lost_at is None]
        # A device on probation sends nothing until it is over. An offer is answered by all.
        long = all(p.waits_for_probation for p in silent)
        pause = OFFER_AGAIN_SECONDS * max(1.0, len(self.progress) / FEW_DEVICES)
        pause = PROBATION_OFFER_SECONDS if long else min(pause, PROBATION_OFFER_SECONDS)
        if silent and now - max(self._offered_at, *(p.heard_at for p in silent)) > pause:
            self.offer()
        heard = self._client.next(timeout)
        # What is done for all devices at each step must not be done at each message of each.
        for _ in range(len(self.progress) // FEW_DEVICES):
            if heard is None:
                break
            self._answer(heard)
            heard = self._client.next(0.0)
        if heard is not None:
            self._answer(heard)

    def _answer(self, heard: ReceivedMessage) -> None:
        levels = heard.topic.removeprefix(f"{self._root}/").split("/")
        if levels[0] == "@rollout":
            self._on_rollout(heard.topic, heard.payload)
            return
        if len(levels) == 2 and levels[1] == "status":
            self._note_status(levels[0], heard)
            return
        if len(levels) != 3 or levels[1] != "push" or levels[2] != self._package.transfer:
            return
        device = levels[0]
        status = heard.said("push") or {}
        try:
            state = str(status["state"])
            asked = {} if status.get("drawn") is True else status
            parts, blocks = numbers_in(asked.get("list")), numbers_in(asked.get("need"))
        except (ValueError, KeyError, TypeError):
            return
        progress = self.progress.get(device)
        if progress is None:
            if not self._group:
                return
            progress = self.progress[device] = Progress(until=self._until)
        # Agents of earlier versions do not say which offer they answer.
        progress.answered |= status.get("offer", "") in {"", *self._offers}
        if not progress.answered:
            return
        progress.already |= progress.state == "offered" and state in {"live", "probation"}
        progress.state, progress.heard_at = state, time.monotonic()
        progress.lost_at = None
        progress.percent = float(status.get("percent", 0.0))
        progress.why = status.get("why")
        # Earlier details are kept: a device that gets the offer again reports fewer.
        progress.details = {**progress.details, **status}
        for number in parts:
            start = number * LIST_PART_BYTES
            if data := self._package.front.block_list[start : start + LIST_PART_BYTES]:
                self._send("list", number, data)
        for number in blocks:
            if number < len(self._package.blocks):
                self._send("block", number, None)

    def _note_status(self, device: str, heard: ReceivedMessage) -> None:
        """Note whether a member of a group is there: the others do not wait for one that is not."""
        progress = self.progress.get(device)
        if progress is None or not self._group:
            return
        if (heard.body or {}).get("state") != "offline":
            progress.lost_at = None
        elif progress.lost_at is None:
            progress.lost_at = max(time.monotonic() + RETURN_SECONDS, self._returning)

    def _send(self, kind: str, number: int, data: bytes | None) -> None:
        """Send a part only once to devices that requested it at about the same time."""
        now = time.monotonic()
        if now - self._sent.get((kind, number), -RECENT_SECONDS) < RECENT_SECONDS:
            return
        self._sent[kind, number] = now
        payload = self._package.block(number, check=False) if data is None else data
        self.bytes_sent += len(payload)
        self._publish(f"{self._prefix}/{kind}/{number}", payload)

    def _publish(self, topic: str, payload: bytes) -> Any:
        """Publish to devices connected now; one that reconnects later gets nothing unrequested."""
        return self._client.publish(topic, payload, expires_s=MOST_OFFER_SECONDS)


MAX_RETAINED_BYTES = 256 * 2**20
"""Largest package to leave on a broker, which keeps retained messages in memory."""
SENT_SECONDS = 120.0
"""Most time for the broker to acknowledge a window over a slow link."""
READ_BACK_SECONDS = 5.0
CLEARED = 512
"""Number of topics cleared at a time."""


def offer_of(package: Package) -> dict[str, Any]:
    """Return the offer of a package, without a time."""
    offer: dict[str, Any] = {
        "schema": SCHEMA,
        "package": base64.b64encode(package.front.header).decode(),
    }
    if package.front.signature is not None:
        offer["signature"] = base64.b64encode(package.front.signature).decode()
    return offer


class RetainedPackage:
    """One package and the topics that it is retained on.

    BrokerError is raised if the broker cannot be reached, or does not cooperate.
    """

    def __init__(
        self, client: OneShotClient, broker: Broker, package: Package, *, expires_s: int
    ) -> None:
        """Prepare; nothing is sent yet.

        After *expires_s* seconds an MQTT 5 broker removes the package by itself.
        """
        self._client = client
        self._broker = broker
        self._package = package
        self._expires_s = expires_s
        self._topic = f"{packages(broker.topic_root)}/{package.transfer}"
        self._offer = json.dumps(offer_of(package)).encode()
        self.bytes_sent = 0

    def place(self, progress: Callable[[int, int], object]) -> str:
        """Put it on the broker; return why others cannot draw it; empty: they can."""
        size = self._package.header.size
        if size > MAX_RETAINED_BYTES:
            most = MAX_RETAINED_BYTES >> 20
            return f"the package has {size >> 20} MiB, and a broker is to keep {most} at most"
        if not self._client.retains:
            return "the broker keeps no retained messages"
        check_sizes(self._client, self._topic, self._package, len(self._offer))
        self.put(progress)
        if self.lies_there():
            return ""
        self.clear()
        return (
            "what this broker keeps retained cannot be read over another connection: it keeps it "
            "by node, or an access list is in the way"
        )

    def put(self, progress: Callable[[int, int], object]) -> None:
        """Send all of it, the offer last; *progress* gets the number of blocks sent, and of all."""
        done, window = 0, 1  # alone, the first one's refusal is read before the broker hangs up
        parts = self._parts()
        while receipts := [self._publish(*part) for part in islice(parts, window)]:
            self._client.wait_published(receipts, SENT_SECONDS)
            window = WINDOW
            done = min(done + len(receipts), len(self._package.blocks))
            progress(done, len(self._package.blocks))
        self._client.wait_published([self._publish("offer", self._offer)], SENT_SECONDS)

    def _parts(self) -> Iterator[tuple[str, bytes]]:
        listed = self._package.front.block_list
        for number, start in enumerate(range(0, len(listed), LIST_PART_BYTES)):
            yield f"list/{number}", listed[start : start + LIST_PART_BYTES]
        for number in range(len(self._package.blocks)):
            yield f"block/{number}", self._package.block(number)

    def _publish(self, level: str, payload: bytes) -> Any:
        self.bytes_sent += len(payload)
        return self._client.publish(
            f"{self._topic}/{level}", payload, retain=True, expires_s=self._expires_s
        )

    def lies_there(self) -> bool:
        """Whether another connection receives the offer, which was sent last."""
        with OneShotClient(self._broker, []) as reader:
            return reader.read(f"{self._topic}/offer", READ_BACK_SECONDS) == self._offer

    def clear(self) -> None:
        """Remove it from the broker."""
        clear(self._client, self._topic, len(self._package.blocks))


def remove(client: OneShotClient, root: str, transfer: str) -> bool:
    """Remove a package that another sender has put on the broker; False: it is not there.

    Raises:
        BrokerError: the broker does not remove it.
    """
    topic = f"{packages(root)}/{transfer}"
    offer = client.read(f"{topic}/offer", READ_BACK_SECONDS)
    says = None if offer is None else parse_object(offer)
    if says is None:
        return False
    try:
        header = PackageHeader.parse(base64.b64decode(str(says.get("package"))))
    except (ValueError, ModelError):
        return False
    clear(client, topic, header.blocks)
    return True


def clear(client: OneShotClient, topic: str, blocks: int) -> None:
    """Remove a package of *blocks* blocks, the offer last, which gives the topics to remove."""
    parts = math.ceil(blocks * ENTRY.size / LIST_PART_BYTES)
    levels = [f"block/{number}" for number in range(blocks)]
    levels += [f"list/{number}" for number in range(parts)]
    left = iter([*levels, "offer"])
    while some := list(islice(left, CLEARED)):
        receipts = [client.publish(f"{topic}/{level}", b"", retain=True) for level in some]
        client.wait_published(receipts, SENT_SECONDS)
