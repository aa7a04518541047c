"""An event, on its way from a rule or anything else to the sinks. Section 3 of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..config.asks import Ask
from ..config.rules import Action
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
    rule: str
    """The name of what has made it."""
    when: str
    """What kind of event it is: for a rule, its kind."""
    pipeline: str
    """On whose topic it is published."""
    state: State
    seq: int | None
    """Of the sample that it is about; None: of none."""
    time_ns: int
    began_ns: int
    facts: Mapping[str, Any]
    """What was seen, by key of the payload: label, score, track, box, zone, line, count …"""
    qos: int = 1
    actions: tuple[Action, ...] = ()
    """What is to be done."""
    picture: Array | None = None
    """The frame, uint8 (height, width, 3), BGR; where it is to be published or asked about …"""
    crop: bool = False
    """… of what is around the box."""
    shown: bool = True
    """Whether the picture is to be published."""
    asks: tuple[Ask, ...] = ()
    """What is asked about it."""
    clip: bool = False
    """Whether a clip of it is to be kept, …"""
    since: float = 0.0
    """… around this moment, monotonic seconds."""
    unseen: bool = False
    """There was no room for its picture."""

    @property
    def label(self) -> str:
        """What it is about; empty: nothing with a name."""
        return str(self.facts.get("label", ""))


def payload(event: Event, device: str, session: str, *, clock: bool = True) -> dict[str, Any]:
    """Return the payload of an event; *clock*: its time can be right."""
    made = {
        "schema": payloads.SCHEMA,
        "device": device,
        "session": session,
        "pipeline": event.pipeline,
        "seq": event.seq,
        "time": payloads.iso(event.time_ns),
        "event": event.id,
        "rule": event.rule,
        "when": event.when,
        "state": event.state,
        "began": payloads.iso(event.began_ns),
        **event.facts,
    }
    if event.seq is None:
        del made["seq"]
    if not clock:
        made["clock"] = payloads.UNSET
    return made
