"""One transfer: what has come of a package, and what is requested next.

The device requests a window at a time; the sender never runs ahead.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from ...core.errors import MalformedError
from ...models.packages.blocks import ranges
from ...models.packages.package import PackageHeader
from ...models.store.incoming import Incoming
from ..protocol import LIST_PART_BYTES, WINDOW, StatusTopic
from ..rollout.ledger import Candidate
from .drawing import Drawing

SILENCE_SECONDS = 2.0
"""Without a block, after which those that were requested are requested again; on a slow link
longer by the time that four blocks take. What is on its way there must not be sent twice."""
FIRST_SECONDS = 10.0
"""The same while the speed of the link is not known."""
LONGEST_SECONDS = 30.0
STATUS_SECONDS = 2.0
"""At most between two messages to the sender, which else offers again."""


@dataclass(slots=True, eq=False)
class Transfer:
    """First the parts of its list come, then its blocks."""

    id: str
    header_bytes: bytes
    signature: bytes | None
    header: PackageHeader
    candidate: Candidate
    heard_at: float
    """When its sender was last heard; like all times here by the monotonic clock."""
    parts: dict[int, bytes] = field(default_factory=dict)
    """Of the block list, until that is complete."""
    incoming: Incoming | None = None
    """Its blocks, since the list is complete."""
    requested: set[int] = field(default_factory=set)
    """Parts or blocks that have been requested and have not come."""
    requested_at: float = 0.0
    arrived_at: float = 0.0
    """When a part or a block came last."""
    interval: float = 0.0
    """Seconds from one to the next, lately; 0: not known yet."""
    published_at: float = 0.0
    hurried: bool = False
    """What the trial wished for is being requested."""
    unpublished: bool = False
    """There was no connection for the last request."""
    drawing: Drawing | None = None
    """Set where the package lies on the broker; else its sender answers."""

    @property
    def list_parts(self) -> int:
        return max(1, math.ceil(self.header.list_bytes / LIST_PART_BYTES))

    def add_part(self, number: int, payload: bytes) -> bytes | None:
        """Add a part of the block list; return the list once it is complete."""
        if len(payload) > LIST_PART_BYTES:
            raise MalformedError(f"larger than the {LIST_PART_BYTES} bytes of a part")
        self.arrived()
        self.parts[number] = payload
        self.came("list", number)
        if len(self.parts) < self.list_parts:
            return None
        return b"".join(self.parts[n] for n in range(self.list_parts))

    def arrived(self) -> None:
        """Record that a part or a block has come."""
        now = time.monotonic()
        if self.arrived_at:
            # A break of the connection says nothing about its speed.
            gap = min(now - self.arrived_at, FIRST_SECONDS)
            self.interval = gap if not self.interval else 0.8 * self.interval + 0.2 * gap
        self.arrived_at = self.heard_at = now

    def begin_blocks(self, incoming: Incoming) -> None:
        """Receive blocks from now on."""
        self.incoming = incoming
        self.parts.clear()
        self.requested.clear()

    # Requests to the sender

    def request(self, status: StatusTopic) -> None:
        """Request what is missing and not requested yet, up to a window."""
        self.requested_at = time.monotonic()
        if self.incoming is None:
            missing = [n for n in range(self.list_parts) if n not in self.parts][:WINDOW]
            self.requested = set(missing)
            self.published_at = self.requested_at
            self.unpublished = not status.publish(
                self.id,
                "need",
                have=0,
                total=self.header.blocks,
                list=_pairs(missing),
                drawn=self._drawn,
            )
            self._draw("list", missing)
            return
        incoming = self.incoming
        self.update_early_trial()  # what it wishes for is requested now
        missing = incoming.missing(WINDOW + len(self.requested))
        wanted = [n for n in missing if n not in self.requested][: WINDOW - len(self.requested)]
        if not wanted:
            return
        self.requested.update(wanted)
        self.published_at = self.requested_at
        self.unpublished = not status.publish(
            self.id,
            "need",
            have=incoming.have,
            total=incoming.total,
            need=_pairs(wanted),
            drawn=self._drawn,
        )
        self._draw("block", wanted)

    @property
    def _drawn(self) -> bool | None:
        """What tells a sender that it is not asked; None where it is."""
        return True if self.drawing is not None else None

    def _draw(self, kind: str, numbers: list[int]) -> None:
        if self.drawing is not None:
            self.drawing.ask(self.id, kind, numbers)

    def came(self, kind: str, number: int) -> None:
        """Record that a part or a block needs not be drawn any more."""
        self.requested.discard(number)
        if self.drawing is not None:
            self.drawing.came(self.id, kind, str(number))

    def end_drawing(self) -> None:
        """Draw nothing more."""
        if self.drawing is not None:
            self.drawing.end(self.id)

    def request_again(self, status: StatusTopic) -> None:
        """Request as if nothing had been requested."""
        self.requested.clear()
        self.request(status)

    def answer_offer(self, status: StatusTopic) -> None:
        """Answer a repeated offer: what is on its way already is not requested."""
        if self.requested and not self.request_timed_out(time.monotonic()):
            self.publish_progress(status)
        else:
            self.request_again(status)

    def publish_progress(self, status: StatusTopic) -> None:
        """Publish how far it is, and request nothing."""
        self.published_at = time.monotonic()
        incoming = self.incoming
        have, total = (incoming.have, incoming.total) if incoming else (0, self.header.blocks)
        status.publish(self.id, "need", have=have, total=total)

    def request_timed_out(self, now: float) -> bool:
        """Whether it is time to request again."""
        patience = FIRST_SECONDS
        if self.interval:
            patience = min(SILENCE_SECONDS + 4 * self.interval, LONGEST_SECONDS)
        return self.unpublished or now - max(self.requested_at, self.arrived_at) >= patience

    # Its trial

    def update_early_trial(self) -> None:
        """Send the early trial what has arrived, and request early what it wishes for."""
        incoming, early = self.incoming, self.candidate.early_trial
        if early is None or incoming is None:
            return
        if early.wish is not None and not self.hurried:
            self.hurried = True
            incoming.request_first(*early.wish)
        granted = self.hurried and incoming.has_requested
        early.arrived(incoming.reach, granted=granted, whole=incoming.complete)


def _pairs(numbers: list[int]) -> list[list[int]]:
    return [[first, last] for first, last in ranges(numbers)]
