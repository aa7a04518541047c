"""An event: what a rule has seen, on its way to the broker. Section 3 of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..config.settings import Rule
from ..core.frozen import record
from ..core.types import Array
from ..mqtt import payloads

State = Literal["once", "begin", "update", "end"]
Why = Literal["over", "stopped", "reloaded", "lost"]


@record(quick=True, eq=False)
class Event:
    """One message of an event."""

    id: str
    """Unique, and safe in a topic."""
    rule: Rule
    pipeline: str
    state: State
    seq: int
    time_ns: int
    began_ns: int
    facts: Mapping[str, Any]
    """What was seen, by key of the payload: label, score, track, box, zone, line, count …"""
    picture: Array | None = None
    """The frame, uint8 (height, width, 3), BGR; where the rule wants a picture."""

    @property
    def label(self) -> str:
        """What it is about; empty: nothing with a name."""
        return str(self.facts.get("label", ""))


def payload(event: Event, device: str, session: str, *, clock: bool = True) -> dict[str, Any]:
    """Return the payload of an event.

    Args:
        event: to be published.
        device: that publishes it.
        session: of the run in which it occurred.
        clock: whether its time can be right.

    """
    made = {
        "schema": payloads.SCHEMA,
        "device": device,
        "session": session,
        "pipeline": event.pipeline,
        "seq": event.seq,
        "time": payloads.iso(event.time_ns),
        "event": event.id,
        "rule": event.rule.name,
        "when": event.rule.when,
        "state": event.state,
        "began": payloads.iso(event.began_ns),
        **event.facts,
    }
    if not clock:
        made["clock"] = payloads.UNSET
    return made
