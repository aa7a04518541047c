"""The journal of events: none is lost, and each that has begun is ended, over a kill too.

An event is written here before it is published, and stays until the broker has it or the spool has
written it to disk. One that lasts stays until its end. What is left by an agent that was killed is
published again at the next start, as possible copies, and what had begun is ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.names import is_name
from ..core.state_file import StateFile
from ..mqtt import payloads

SPOOLED_SECONDS = 3.0
"""After so long a message of QoS 1 is on the disk, if the broker has not got it."""
ALIVE_SECONDS = 10.0
"""How often it is noted that events still last."""
MOST = 1000

_STATES = frozenset({"once", "begin", "update", "end"})

Payload = dict[str, Any]


class Journal:
    """Events on their way, and those that last, in a file. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, "events that had begun")
        left = self._file.read(_parse)
        self._left = left if left is not None else ([], [])
        self._fresh: list[tuple[float, Payload]] = []
        """Published or about to be, with when."""
        self._open: dict[str, tuple[float, Payload]] = {}
        """By event that lasts: since when, and its latest message."""
        self._written = 0.0
        self._outdated = bool(left and (left[0] or left[1]))

    def left(self) -> tuple[list[Payload], list[Payload]]:
        """Return what an agent that was killed has left: messages, and the ends of what lasted.

        Both are to be published, in this order.
        """
        fresh, lasting = self._left
        self._left = ([], [])
        ended = {payload["event"] for payload in fresh if payload["state"] == "end"}
        time_now = payloads.iso(time.time_ns())
        ends = [
            {"seconds": 0.0, **payload, "state": "end", "time": time_now, "why": "stopped"}
            for payload in lasting
            if payload["event"] not in ended
        ]
        # Not forgotten before they are delivered, however long the broker is away.
        self._fresh += [(math.inf, payload) for payload in (*fresh, *ends)]
        return fresh, ends

    def ongoing(self, pipeline: str, rule: str) -> list[Payload]:
        """Return the latest message of each event of a rule that goes on now."""
        latest = [payload for _, payload in self._open.values()]
        return [each for each in latest if (each["pipeline"], each["rule"]) == (pipeline, rule)]

    def add(self, events: Sequence[tuple[Payload, int]]) -> None:
        """Write down events that are about to be published, each with its QoS."""
        now = time.monotonic()
        durable = False
        for payload, qos in events:
            state, name = payload["state"], payload["event"]
            if state in {"begin", "update"}:
                self._open[name] = (self._open.get(name, (now,))[0], payload)
                durable = True
            elif state == "end":
                durable = self._open.pop(name, None) is not None or durable
            if qos:
                self._fresh.append((now, payload))
                durable = True
        if durable:
            self._write()

    def settle(self, *, delivered: bool) -> None:
        """Forget what is safe; called every now and then.

        Args:
            delivered: the broker has everything of QoS 1.
        """
        now = time.monotonic()
        kept = [] if delivered else [e for e in self._fresh if now - e[0] < SPOOLED_SECONDS]
        self._outdated |= len(kept) != len(self._fresh)
        self._fresh = kept[-MOST:]
        still = bool(self._open) and now - self._written > ALIVE_SECONDS
        if still or (self._outdated and now - self._written > 1.0):
            self._write()

    def close(self, *, delivered: bool) -> None:
        """Write down what is left at the end of the agent."""
        if delivered:
            self._fresh.clear()
        self._write()

    def _write(self) -> None:
        now = self._written = time.monotonic()
        self._outdated = False
        self._file.save(
            {
                "fresh": [payload for _, payload in self._fresh],
                # As long as they are known to last: the clock may be set meanwhile.
                "open": [
                    {**payload, "seconds": round(now - since, 3)}
                    for since, payload in self._open.values()
                ],
            }
        )


def _parse(content: Mapping[str, Any]) -> tuple[list[Payload], list[Payload]]:
    both = [[dict(each) for each in content[key]] for key in ("fresh", "open")]
    for payload in (*both[0], *both[1]):
        # All of them become levels of topics.
        if not all(is_name(payload[key]) for key in ("event", "rule", "pipeline")):
            raise ValueError("no event")
        if payload["state"] not in _STATES or type(payload.get("seconds", 0.0)) is not float:
            raise ValueError("no event")
    return both[0], both[1]
