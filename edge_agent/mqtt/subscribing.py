"""Subscriptions that the broker has not granted yet.

Without a grant nothing arrives, which would otherwise go unnoticed: results are still published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .connection import Connection, Refusal
from .diagnose import ACCESS_LIST

SILENT_SECONDS = 10.0
"""Time after which a missing SUBACK is a problem."""
RECONNECT_SECONDS = 30.0
"""Time after which a missing SUBACK is a reason to connect again."""
AGAIN_SECONDS = 60.0
"""Time after which refused topics are tried again: an access list may have changed."""
COMMANDS = "commands and pushes"
SHARED = {
    "@rollout": "roll-outs and settings of groups",
    "@package": "packages for many devices",
}
"""What is subscribed to for many devices, by level of the topic; the others are groups."""


@dataclass
class _Request:
    """A SUBSCRIBE without a SUBACK."""

    topics: list[str]
    own: bool
    seconds: float = 0.0


class Subscribing:
    """The subscriptions of successive connections; callers hold the client's lock."""

    def __init__(self, qos: Callable[[str], int]) -> None:
        """Start without any; *qos* returns the QoS for a foreign topic."""
        self._qos = qos
        self.problem: str | None = None
        """Why not all are granted; kept over a new connection until that has granted all."""
        self.granted: set[str] = set()
        """Topic filters that the present broker has granted since they were last asked for."""
        self._requests: dict[int, _Request] = {}
        self._refused: dict[str, tuple[bool, Refusal]] = {}
        """Whether it is the device's own, and why it was refused, by topic filter."""
        self._refused_seconds = 0.0

    def begin(self) -> None:
        """Start over for a new connection."""
        self.granted.clear()
        self._requests.clear()
        self._refused.clear()

    def ask(self, connection: Connection, topics: list[str], *, own: bool) -> None:
        """Subscribe; *own*: topics for commands and pushes, or else foreign topics."""
        if not topics:
            return
        self.granted.difference_update(topics)
        wanted = [(topic, 1 if own else self._qos(topic)) for topic in topics]
        mid = connection.subscribe(wanted, as_published=own)
        if mid is not None:  # None: the connection has just ended
            self._requests[mid] = _Request(topics, own)

    def leave(self, topics: list[str]) -> None:
        """Forget topics."""
        for topic in topics:
            self._refused.pop(topic, None)

    def answered(self, mid: int, refusals: tuple[Refusal | None, ...]) -> bool:
        """Handle a SUBACK and its refusals; return whether there is a new problem."""
        request = self._requests.pop(mid, None)
        if request is None:
            return False
        for topic, refusal in zip(request.topics, refusals, strict=False):
            self._refused.pop(topic, None)
            if refusal is None:
                self.granted.add(topic)
            else:
                self._refused[topic] = (request.own, refusal)
                self._refused_seconds = 0.0
        return self._judge()

    def passed(self, connection: Connection, seconds: float) -> bool:
        """Account for elapsed running time; return whether there is a new problem.

        Tries refused topics again, and gives up a connection that does not answer.
        """
        for request in self._requests.values():
            request.seconds += seconds
        self._refused_seconds += seconds
        if self._refused and self._refused_seconds >= AGAIN_SECONDS:
            self._refused_seconds = 0.0
            for own in (True, False):
                again = [topic for topic, (its, _) in self._refused.items() if its == own]
                self.ask(connection, again, own=own)
        new = self._judge()
        if any(request.seconds >= RECONNECT_SECONDS for request in self._requests.values()):
            connection.give_up(f"it does not answer a subscription for {RECONNECT_SECONDS:.0f} s")
        return new

    def _judge(self) -> bool:
        """Set the worst present problem; return whether it has changed."""
        before = self.problem
        late = [each for each in self._requests.values() if each.seconds >= SILENT_SECONDS]
        if late:
            request = min(late, key=lambda request: not request.own)
            self.problem = (
                f"has not answered the subscription to {request.topics[0]} for "
                f"{SILENT_SECONDS:.0f} s{_effect(request.topics[0], own=request.own)}; look at the "
                "broker's log"
            )
        elif self._refused:
            # The device's own inbox first.
            topic = min(
                self._refused, key=lambda topic: (not self._refused[topic][0], "@" in topic)
            )
            own, why = self._refused[topic]
            self.problem = refused(topic, why, own=own)
        elif not self._requests:
            self.problem = None
        return self.problem not in {None, before}


def refused(topic: str, why: Refusal, *, own: bool) -> str:
    """Return the problem that a subscription was refused, without its subject, the broker."""
    effect = _effect(topic, own=own)
    return f"refused the subscription to {topic}: {why.reason}{effect}; {ACCESS_LIST}"


def _effect(topic: str, *, own: bool) -> str:
    if not own:
        return ""
    shared = next((level for level in topic.split("/") if level.startswith("@")), "")
    what = SHARED.get(shared, f"commands and pushes to {shared}" if shared else COMMANDS)
    return f"; {what} do not arrive"
