"""Results and events to publish, and the channels they are published on.

Independent of connections and disks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

CREDIT = 256
"""Most unconfirmed results of a lossless pipeline."""

Delivery = Literal["live", "confirmed", "spooled"]
"""How the messages of a channel are delivered.

live: QoS 0, source that drops. Published now or lost; the first ones wait for the first connection.
confirmed: QoS 0, lossless source. Kept in memory until a barrier shows that they have arrived.
spooled: QoS 1. Kept in memory, later on disk, until the broker acknowledges them.
"""


Answered = Callable[[str | None], object]
"""Called once with None when the broker has a message, or with the reason why it has not. Must
neither wait nor publish, because the client is locked."""


@dataclass(slots=True, eq=False)
class Channel:
    """The results of one pipeline: their delivery and their counts."""

    name: str
    qos: int
    lossless: bool
    unconfirmed: deque[Message] = field(default_factory=deque)
    """Messages with confirmed delivery that are not yet known to have reached the broker."""
    pending: int = 0
    """Number of messages with spooled delivery that are not yet acknowledged."""
    published: int = 0
    lost: int = 0

    @property
    def delivery(self) -> Delivery:
        if self.qos == 1:
            return "spooled"
        return "confirmed" if self.lossless else "live"

    @property
    def has_credit(self) -> bool:
        """Whether a lossless pipeline may publish more."""
        return len(self.unconfirmed) < CREDIT and self.pending < CREDIT


@dataclass(slots=True, eq=False)
class Message:
    """One result or event.

    It is encoded when published, because only then are its age and whether it is a copy known; or
    when it has to wait, so that its source data, such as a picture of some MB, can be released.
    """

    channel: Channel
    topic: str
    encode: Callable[[bool], bytes] | None
    """Returns the payload, a JSON object, given whether it may be a copy; None once encoded."""
    on_published: Callable[[bool], object] | None = None
    """Called when it is first passed to a connection, with whether it may be a copy. Must neither
    wait nor publish, because the client is locked."""
    event: bool = False
    series: str = ""
    """Messages of the same one are published in order; empty: a newer one may go first."""
    closes: bool = False
    """Whether it is the last of its series."""
    counted: bool = False
    """Whether it is counted in `channel.published`."""
    replayed: bool = False
    """Whether it waited for a new connection or may be a copy."""
    body: bytes | None = None
    encoded_at: float = 0.0
    """When the body was encoded, monotonic seconds."""

    def encode_to_wait(self) -> bytes:
        """Encode it and release its source data; return the current payload."""
        return self._encode(copy=True)

    def payload(self) -> bytes:
        """Return the current payload."""
        if self.body is None:
            return self._encode(copy=self.replayed)
        waited = time.monotonic() - self.encoded_at
        return with_age(self.body, waited, replayed=self.replayed)

    def _encode(self, *, copy: bool) -> bytes:
        if self.body is None:
            assert self.encode is not None  # noqa: S101
            self.body, self.encoded_at, self.encode = self.encode(copy), time.monotonic(), None
        return self.body


def with_age(body: bytes, seconds: float, *, replayed: bool) -> bytes:
    """Return an encoded payload updated after *seconds* of waiting.

    Its age, if it has one, grows by *seconds*; the key `replayed` is set or removed.
    """
    import json

    from . import payloads

    payload = json.loads(body)
    timing = payload.get("timing")
    if isinstance(timing, dict) and "age_ms" in timing:
        timing["age_ms"] = payloads.number(timing["age_ms"] + seconds * 1e3, 2)
    payload.pop("replayed", None)
    if replayed:
        payload["replayed"] = True
    return payloads.encode(payload)
