"""Drawing a package that lies retained on the broker: by subscribing to what is needed of it.

The broker sends what it has kept on a topic at each subscription to it, so that each device goes at
its own pace, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Drawing:
    """The topics that are subscribed to; used by the thread that takes requests."""

    def __init__(
        self,
        prefix: str,
        ask: Callable[[list[str]], object],
        leave: Callable[[list[str]], object],
    ) -> None:
        """Draw nothing yet.

        Args:
            prefix: topic below which packages lie.
            ask: subscribes, also anew.
            leave: unsubscribes.
        """
        self._prefix = prefix
        self._ask = ask
        self._leave = leave
        self._wanted: frozenset[str] = frozenset()
        """Replaced, never changed: the connection's thread reads it."""
        self._came: list[str] = []
        """What has come since topics were last left."""

    def topics(self) -> Iterable[str]:
        """Return what to subscribe to at a new connection."""
        return sorted(self._wanted)

    def ask(self, transfer: str, kind: str, numbers: Iterable[int]) -> None:
        """Have parts of the list or blocks sent, once more where they were; leave what has come."""
        self._want([f"{self._prefix}/{transfer}/{kind}/{number}" for number in numbers])

    def ask_offer(self, transfer: str) -> None:
        """Have the offer of a package sent."""
        self._want([f"{self._prefix}/{transfer}/offer"])

    def _want(self, topics: list[str]) -> None:
        self._leave_now(self._came)
        self._wanted |= frozenset(topics)
        self._ask(topics)

    def wants(self, *levels: str) -> bool:
        """Whether what lies there is wanted."""
        return "/".join((self._prefix, *levels)) in self._wanted

    def came(self, *levels: str) -> None:
        """Record that what lies there has come; its topic is left with the next ones."""
        self._came.append("/".join((self._prefix, *levels)))

    def end(self, transfer: str) -> None:
        """Leave all topics of a package."""
        of = f"{self._prefix}/{transfer}/"
        self._leave_now([topic for topic in self._wanted if topic.startswith(of)])

    def _leave_now(self, topics: Iterable[str]) -> None:
        gone = self._wanted.intersection(topics)
        self._came = [topic for topic in self._came if topic not in gone]
        self._wanted -= gone
        if gone:
            self._leave(sorted(gone))
