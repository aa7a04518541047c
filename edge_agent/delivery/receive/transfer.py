"""One transfer: the received blocks of a package, and those requested next.

The device requests one window at a time; the sender sends nothing unrequested.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...core.errors import MalformedError
from ...models.packages.blocks import ranges
from ...models.packages.package import PackageHeader
from ...models.store.incoming import Incoming
from ..protocol import LIST_PART_BYTES, WINDOW, StatusTopic
from ..rollout.ledger import Candidate

SILENCE_SECONDS = 2.0
"""Time without a block after which the requested ones are requested again; on a slow link, the time
of four blocks is added, so that blocks in transit are not sent twice."""
FIRST_SECONDS = 10.0
"""The same while the speed of the link is unknown."""
LONGEST_SECONDS = 30.0
DRAWN_SECONDS = 1.0
"""How many seconds' worth of blocks are drawn at a time: a broker that a thousand devices draw from
at once keeps in memory what each of them has requested."""
LACKING_SECONDS = 30.0
"""Time without anything that was requested, after which another node of a cluster is tried: while a
node is away, others may lack what is newly retained (seen with NATS)."""
MOST_LACKING_SECONDS = 600.0
"""Limit for that time, which is doubled each time: perhaps no node has it."""
GONE_SECONDS = 60.0
"""Time without anything that was requested of a package, after which it is said to be missing."""
GONE = (
    f"nothing of its package has come from the broker for {GONE_SECONDS:.0f} s: is it still there "
    "(if not, push it or roll it out again), and may this device read it?"
)
STATUS_SECONDS = 2.0
"""Most time between two messages to the sender, which would otherwise offer again."""


@dataclass(slots=True, eq=False)
class Transfer:
    """One transfer: first the parts of its block list come, then its blocks."""

    id: str
    header_bytes: bytes
    signature: bytes | None
    header: PackageHeader
    candidate: Candidate
    heard_at: float
    """When its sender was last heard; monotonic, like all times here."""
    parts: dict[int, bytes] = field(default_factory=dict)
    """Parts of the block list, until that is complete."""
    incoming: Incoming | None = None
    """Its blocks, once the list is complete."""
    requested: set[int] = field(default_factory=set)
    """Parts or blocks that have been requested but have not come."""
    requested_at: float = 0.0
    arrived_at: float = 0.0
    """When the last part or block came."""
    interval: float = 0.0
    """Recent seconds from one block to the next; 0: not known yet."""
    published_at: float = 0.0
    hurried: bool = False
    """Whether blocks that the trial wants early are being requested."""
    unpublished: bool = False
    """Whether there was no connection for the last request."""
    drawing: Drawing | None = None
    """Set if the package is on the broker; otherwise its sender answers."""

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
        """Record that a part or a block has arrived."""
        now = time.monotonic()
        if self.arrived_at:
            # An interruption of the connection says nothing about its speed.
            gap = min(now - self.arrived_at, FIRST_SECONDS)
            self.interval = gap if not self.interval else 0.8 * self.interval + 0.2 * gap
        self.arrived_at = self.heard_at = now

    def begin_blocks(self, incoming: Incoming) -> None:
        """Receive blocks from now on."""
        self.incoming = incoming
        self.parts.clear()
        self.requested.clear()

    # Requests to the sender

    @property
    def window(self) -> int:
        """Number of blocks to request at a time; when drawing, one until the speed is known."""
        if self.drawing is None:
            return WINDOW
        return max(1, min(WINDOW, int(DRAWN_SECONDS / self.interval))) if self.interval else 1

    def request(self, status: StatusTopic) -> None:
        """Request blocks that are missing and not yet requested, up to a window."""
        self.requested_at = time.monotonic()
        incoming = self.incoming
        if incoming is None:
            kind, have, total = "list", 0, self.header.blocks
            wanted = [n for n in range(self.list_parts) if n not in self.parts][:WINDOW]
            self.requested = set(wanted)
        else:
            self.update_early_trial()  # what it wants is requested now
            kind, have, total = "block", incoming.have, incoming.total
            room = max(0, self.window - len(self.requested))
            missing = incoming.missing(room + len(self.requested))
            wanted = [n for n in missing if n not in self.requested][:room]
            if not wanted:
                return
            self.requested.update(wanted)
        if self.drawing is not None:
            self.drawing.ask(self.id, kind, wanted)
        self.published_at = self.requested_at
        asked = {"list" if incoming is None else "need": [list(each) for each in ranges(wanted)]}
        # Tells the sender that nothing is requested from it, as the package is on the broker.
        drawn = True if self.drawing is not None else None
        self.unpublished = not status.publish(
            self.id, "need", have=have, total=total, drawn=drawn, **asked
        )

    def came(self, kind: str, number: int) -> None:
        """Record that a part or a block need no longer be downloaded."""
        self.requested.discard(number)
        if self.drawing is not None:
            self.drawing.came(self.id, kind, str(number))

    def end_drawing(self) -> None:
        """Stop drawing."""
        if self.drawing is not None:
            self.drawing.end(self.id)

    def request_again(self, status: StatusTopic) -> None:
        """Request as if nothing had been requested."""
        self.requested.clear()
        self.request(status)

    def answer_offer(self, status: StatusTopic) -> None:
        """Answer a repeated offer; blocks in transit are not requested."""
        if self.requested and not self.request_timed_out(time.monotonic()):
            self.publish_progress(status)
        else:
            self.request_again(status)

    def publish_progress(self, status: StatusTopic) -> None:
        """Publish the progress, and request nothing."""
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
        """Tell the early trial about arrived blocks, and request those it wants early."""
        incoming, early = self.incoming, self.candidate.early_trial
        if early is None or incoming is None:
            return
        if early.wish is not None and not self.hurried:
            self.hurried = True
            incoming.request_first(*early.wish)
        granted = self.hurried and incoming.has_requested
        early.arrived(incoming.reach, granted=granted, whole=incoming.complete)


@dataclass(slots=True, eq=False)
class Drawing:
    """Draws packages retained on the broker, by subscribing to the blocks needed.

    The broker sends a topic's retained message at each subscription to it, so that each device goes
    at its own pace, however many there are. Used by the request thread.
    """

    prefix: str
    """Topic below which packages are."""
    subscribe: Callable[[list[str]], bool]
    """Subscribes to topics, or renews subscriptions; False: there is no connection."""
    unsubscribe: Callable[[list[str]], object]
    leave_node: Callable[[str], bool]
    """Connects to another node for a reason, if the broker is a cluster; returns whether it is."""
    _wanted: frozenset[str] = frozenset()
    """Topics wanted; replaced, never changed, because the connection's thread reads it."""
    _came: list[str] = field(default_factory=list)
    """Topics whose message came after the last unsubscription."""
    _lacking_since: float = 0.0
    """Monotonic time since which nothing that is wanted has come over this connection."""
    _patience: float = LACKING_SECONDS

    def topics(self) -> Iterable[str]:
        """Return the topics to subscribe to at a new connection."""
        self._lacking_since = time.monotonic()
        return sorted(self._wanted)

    def ask(self, transfer: str, kind: str, numbers: Iterable[int]) -> None:
        """Request parts of the list or blocks, again if necessary; unsubscribe from those here."""
        self._want([f"{self.prefix}/{transfer}/{kind}/{number}" for number in numbers])

    def ask_offer(self, transfer: str) -> None:
        """Request the offer of a package."""
        self._want([f"{self.prefix}/{transfer}/offer"])

    def _want(self, topics: list[str]) -> None:
        self._leave_now(self._came)
        now = time.monotonic()
        is_new = not self._wanted.issuperset(topics)
        self._wanted |= frozenset(topics)
        if not self.subscribe(topics) or is_new:
            self._lacking_since = now
        why = f"it has sent nothing of a retained package for {self._patience:.0f} s"
        if now - self._lacking_since >= self._patience and self.leave_node(why):
            self._lacking_since = now
            self._patience = min(2 * self._patience, MOST_LACKING_SECONDS)

    def lack(self, transfer: str, now: float) -> str | None:
        """Return the words for a package of which nothing comes; called by any thread."""
        wanted = any(topic.startswith(f"{self.prefix}/{transfer}/") for topic in self._wanted)
        return GONE if wanted and now - self._lacking_since >= GONE_SECONDS else None

    def wants(self, *levels: str) -> bool:
        """Whether the message on this topic is wanted."""
        return "/".join((self.prefix, *levels)) in self._wanted

    def came(self, *levels: str) -> None:
        """Record that the message of a topic has come; it is unsubscribed with the next ones."""
        self._came.append("/".join((self.prefix, *levels)))
        self._lacking_since = time.monotonic()
        if levels[1:] != ("offer",):  # a node may have that alone
            self._patience = LACKING_SECONDS

    def end(self, transfer: str) -> None:
        """Unsubscribe from all topics of a package."""
        of = f"{self.prefix}/{transfer}/"
        self._leave_now([topic for topic in self._wanted if topic.startswith(of)])

    def _leave_now(self, topics: Iterable[str]) -> None:
        gone = self._wanted.intersection(topics)
        self._came = [topic for topic in self._came if topic not in gone]
        self._wanted -= gone
        if gone:
            self.unsubscribe(sorted(gone))
