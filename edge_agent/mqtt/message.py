"""What is on its way to the broker: results and events, and the channels that they belong to.

Knows no connection and no disk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

CREDIT = 256
"""Results of a lossless pipeline that may be unconfirmed."""


@dataclass(slots=True, eq=False)
class Channel:
    """The results of one pipeline on their way."""

    name: str
    qos: int
    lossless: bool
    unconfirmed: deque[Message] = field(default_factory=deque)
    """Lossless, QoS 0: sent or waiting, not yet known to have reached the broker."""
    pending: int = 0
    """QoS 1: sent or waiting, not yet acknowledged."""
    published: int = 0
    lost: int = 0

    @property
    def open(self) -> bool:
        """Whether a lossless pipeline may send more."""
        return len(self.unconfirmed) < CREDIT and self.pending < CREDIT


@dataclass(slots=True, eq=False)
class Message:
    """One result or event.

    Encoded when it goes, since its age and whether it is a copy show only then; or when it has to
    wait, since what it is made of, a picture of some MB, need not wait with it.
    """

    channel: Channel
    topic: str
    encode: Callable[[bool], bytes] | None
    """Makes the payload, a JSON object, given whether it may be a copy; None once `body` is."""
    sent: Callable[[bool], object] | None = None
    """Told when it is first handed to a connection, and whether it may be a copy; not to wait, and
    not to publish: the link is locked meanwhile."""
    event: bool = False
    counted: bool = False
    replayed: bool = False
    """Waited out a broken connection, or may be a second copy."""
    body: bytes | None = None
    since: float = 0.0
    """When the body was encoded, by the monotonic clock."""

    def seal(self) -> bytes:
        """Encode it and let go of what it is made of; gives the payload as it was then."""
        return self._seal(copy=True)

    def render(self) -> bytes:
        """Give the payload as it is now."""
        if self.body is None:
            return self._seal(copy=self.replayed)
        return aged(self.body, time.monotonic() - self.since, replayed=self.replayed)

    def _seal(self, *, copy: bool) -> bytes:
        if self.body is None:
            assert self.encode is not None  # noqa: S101
            self.body, self.since, self.encode = self.encode(copy), time.monotonic(), None
        return self.body


def aged(body: bytes, seconds: float, *, replayed: bool) -> bytes:
    """Say of an encoded payload that it has waited.

    Its age, where it tells one, grows by *seconds*; *replayed* is put in or taken out.
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
