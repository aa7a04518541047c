"""Events: one message of each, and the log of a pipeline in which they begin, are updated and end.

Section 3 of the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ..config.asks import Ask
from ..config.rules import Action, CombinedRule, Rule
from ..core.frozen import record
from ..core.types import Array, Sample
from ..mqtt import payloads

State = Literal["once", "begin", "update", "end"]
Why = Literal["over", "stopped", "reloaded", "lost"]


@record(quick=True, eq=False)
class Event:
    """One message of an event."""

    id: str
    """Unique, and safe in a topic."""
    rule: str
    """The name of its rule, or whatever else made it."""
    when: str
    """The kind of event; for a rule, its kind."""
    pipeline: str
    """On whose topic it is published."""
    state: State
    seq: int | None
    """Of the sample that it is about; None: of none."""
    time_ns: int
    began_ns: int
    facts: Mapping[str, Any]
    """Facts by key of the payload: label, score, track, box, zone, line, count …"""
    qos: int = 1
    actions: tuple[Action, ...] = ()
    """Actions to be done."""
    picture: Array | None = None
    """The frame, uint8 (height, width, 3), BGR; where it is to be published or asked about …"""
    crop: bool = False
    """… cropped to the surroundings of the box."""
    shown: bool = True
    """Whether the picture is to be published."""
    asks: tuple[Ask, ...] = ()
    """Questions to ask about it."""
    clip: bool = False
    """Whether a clip of it is to be kept, …"""
    since: float = 0.0
    """… around this moment, monotonic seconds."""
    unseen: bool = False
    """There was no room for its picture."""

    @property
    def label(self) -> str:
        """The label of its object; empty if it has none."""
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


UPDATE_SECONDS = 1.0
BETTER_SCORE = 0.05
"""An update is due where the score is so much better than in the message before."""


Holds = Callable[[Rule | CombinedRule, int], bool]


def always(rule: Rule | CombinedRule, time_ns: int) -> bool:
    """Let a rule hold at all times."""
    del rule, time_ns
    return True


class OngoingEvent:
    """An event between its begin and its end."""

    __slots__ = ("began", "began_ns", "facts", "id", "rule", "score", "updated")

    def __init__(
        self, rule: Rule, name: str, now: float, time_ns: int, facts: dict[str, Any]
    ) -> None:
        self.rule = rule
        self.id = name
        self.began = self.updated = now
        """Monotonic seconds."""
        self.began_ns = time_ns
        self.facts = facts
        self.score = float(facts.get("score", 0.0))
        """The best that was told."""

    def is_better(self, facts: Mapping[str, Any]) -> bool:
        """Whether *facts* have a score that is worth an update."""
        return float(facts.get("score", 0.0)) >= self.score + BETTER_SCORE


class EventLog:
    """Makes events, and none of a rule within `cooldown_s` after one. One thread at a time."""

    def __init__(
        self,
        pipeline: str,
        name_event: Callable[[], str],
        emit: Callable[[Sequence[Event]], None],
        asks: Sequence[Ask] = (),
        holds: Holds = always,
    ) -> None:
        """Begin without events.

        *name_event* returns another name for an event; *emit* takes the events of one moment: all
        that leave the engine pass here.
        """
        self._holds = holds
        self.seq = -1
        """Of the latest sample, …"""
        self.now = 0.0
        """… when it was captured, monotonic seconds, …"""
        self.time_ns = 0
        self.picture: Array | None = None
        """… and its frame, while its rules are looked at."""
        self._pipeline = pipeline
        self._name_event = name_event
        self._emit = emit
        self._asks = asks
        self._made: list[Event] = []
        self._silent_until: dict[tuple[str, str], float] = {}
        """By rule and label."""

    def go_on(self, sample: Sample) -> None:
        """Make *sample* the present; its picture may go with events that want one."""
        self.seq, self.now, self.time_ns = sample.seq, sample.since, sample.time_ns
        self.picture = sample.data if sample.picture else None

    def flush(self) -> None:
        """Hand over the events that were made since the last time."""
        made, self._made, self.picture = self._made, [], None
        if made:
            self._emit(made)

    def is_silent(self, rule: Rule, facts: Mapping[str, Any]) -> bool:
        """Whether a rule does not hold now, or its cooldown goes on, for this label."""
        if not self.holds(rule):
            return True
        return self.now < self._silent_until.get(_key(rule, facts), 0.0)

    def holds(self, rule: Rule) -> bool:
        """Whether a rule holds now, by its hours and modes."""
        return self._holds(rule, self.time_ns)

    def once(self, rule: Rule, facts: dict[str, Any]) -> None:
        """Report an event without duration."""
        if self.is_silent(rule, facts):
            return
        self._silence(rule, facts)
        moment = OngoingEvent(rule, self._name_event(), self.now, self.time_ns, facts)
        self._send("once", moment, facts)

    def begin(self, rule: Rule, facts: dict[str, Any]) -> OngoingEvent | None:
        """Begin an event; None: the rule is silent."""
        if self.is_silent(rule, facts):
            return None
        event = OngoingEvent(rule, self._name_event(), self.now, self.time_ns, facts)
        self._send("begin", event, facts)
        return event

    def update(self, event: OngoingEvent, facts: Mapping[str, Any]) -> None:
        """Report more of an event."""
        event.updated = self.now
        event.score = max(event.score, float(facts.get("score", 0.0)))
        event.facts |= facts
        self._send("update", event, event.facts)

    def end(self, event: OngoingEvent, why: Why, facts: Mapping[str, Any] | None = None) -> None:
        """End an event, with further facts for its end."""
        seconds = round(max(0.0, self.now - event.began), 3)
        self._silence(event.rule, event.facts)
        told = {**event.facts, **(facts or {}), "seconds": seconds, "why": why}
        self._send("end", event, told)

    def _silence(self, rule: Rule, facts: Mapping[str, Any]) -> None:
        if rule.cooldown_s:
            self._silent_until[_key(rule, facts)] = self.now + rule.cooldown_s

    def _send(self, state: State, event: OngoingEvent, facts: Mapping[str, Any]) -> None:
        rule = event.rule
        shown = rule.picture != "none"
        first = state in {"once", "begin"}
        asks = tuple(ask for ask in self._asks if first and rule.name in (ask.rules or [rule.name]))
        pictured = (shown and state != "end") or asks
        self._made.append(
            Event(
                event.id,
                rule.name,
                rule.when,
                self._pipeline,
                state,
                max(0, self.seq),
                self.time_ns,
                event.began_ns,
                dict(facts),
                rule.qos,
                rule.do,
                self.picture if pictured else None,
                rule.picture == "crop",
                shown,
                asks,
                rule.clip,
                self.now,
            )
        )


def _key(rule: Rule, facts: Mapping[str, Any]) -> tuple[str, str]:
    return rule.name, str(facts.get("label", ""))
