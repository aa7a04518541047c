"""Events: their messages, and the log of a pipeline in which they begin, are updated and end.

Section 3 of the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """Unique and valid as a topic level."""
    rule: str
    """The name of its rule or other sender."""
    when: str
    """The kind of event; for a rule, the kind of rule."""
    pipeline: str
    """The pipeline on whose topic it is published."""
    state: State
    seq: int | None
    """The `seq` of its sample; None: it has no sample."""
    time_ns: int
    began_ns: int
    facts: Mapping[str, Any]
    """Further keys of the payload: label, score, track, box, zone, line, count …"""
    qos: int = 1
    actions: tuple[Action, ...] = ()
    """Actions to carry out."""
    picture: Array | None = None
    """The frame, uint8 (height, width, 3), BGR, if it will be published or asked about."""
    crop: bool = False
    """Whether to crop the picture to the box and its surroundings."""
    shown: bool = True
    """Whether to publish the picture."""
    asks: tuple[Ask, ...] = ()
    """Questions to ask about it."""
    clip: bool = False
    """Whether to keep a clip of it."""
    since: float = 0.0
    """The time of the event for the clip, monotonic seconds."""
    unseen: bool = False
    """Whether its picture was dropped because too many wait."""

    @property
    def label(self) -> str:
        """The label of its object; empty if it has none."""
        return str(self.facts.get("label", ""))


def payload(event: Event, device: str, session: str, *, clock: bool = True) -> dict[str, Any]:
    """Return the payload of an event; *clock*: whether its time may be right."""
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
"""Rise in score since the previous message that causes an update."""


Holds = Callable[[Rule | CombinedRule, int], bool]


def always(rule: Rule | CombinedRule, time_ns: int) -> bool:
    """Let a rule apply at all times."""
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
        """The best published score."""

    def is_better(self, facts: Mapping[str, Any]) -> bool:
        """Whether *facts* have a score that justifies an update."""
        return float(facts.get("score", 0.0)) >= self.score + BETTER_SCORE


class EventLog:
    """Creates events, respecting each rule's `cooldown_s`. For use by one thread at a time."""

    def __init__(
        self,
        pipeline: str,
        name_event: Callable[[], str],
        emit: Callable[[Sequence[Event]], None],
        asks: Sequence[Ask] = (),
        holds: Holds = always,
    ) -> None:
        """Begin without events.

        *name_event* returns a new event name; *emit* takes simultaneous events: all events of the
        engine go through it.
        """
        self._holds = holds
        self.seq = -1
        """The `seq` of the latest sample."""
        self.now = 0.0
        """When the latest sample was measured: seconds that only go forward, see `Reading.at`."""
        self.arrived = 0.0
        """When it arrived, monotonic seconds."""
        self._ahead = 0.0
        """How far `now` is ahead of `at`, after a source that was opened again."""
        self.held_until = 0.0
        """Until when a silent sensor is known to have changed nothing, monotonic seconds."""
        self.time_ns = 0
        self.picture: Array | None = None
        """The frame of the latest sample, while its rules are checked."""
        self._pipeline = pipeline
        self._name_event = name_event
        self._emit = emit
        self.asks = asks
        self._made: list[Event] = []
        self._silent_until: dict[tuple[str, str], float] = {}
        """End of the cooldown by rule and label."""

    def go_on(self, sample: Sample) -> None:
        """Make *sample* the current one; events may use its picture."""
        at = sample.since if sample.at is None else sample.at
        if self.seq < 0:
            self._ahead = max(0.0, self.now - at)
        self.now = max(self.now, at + self._ahead)
        self.seq, self.arrived, self.time_ns = sample.seq, sample.since, sample.time_ns
        self.picture = sample.data if sample.picture else None

    def let_pass(self, now: float) -> None:
        """Let time pass, up to *now*, monotonic seconds, since the current sample."""
        passed = max(0.0, now - self.arrived)
        self.arrived += passed
        self.now += passed
        self.time_ns += int(passed * 1e9)

    @contextmanager
    def without_sample(self) -> Iterator[None]:
        """Go back to the time of the current sample at the end of the context; see `let_pass`."""
        latest = self.now, self.arrived, self.time_ns
        yield
        self.now, self.arrived, self.time_ns = latest

    def flush(self) -> None:
        """Emit the events created since the last call."""
        made, self._made, self.picture = self._made, [], None
        if made:
            self._emit(made)

    def forget(self, rules: Collection[str]) -> None:
        """End the cooldowns of these rules, which have changed."""
        kept = {key: until for key, until in self._silent_until.items() if key[0] not in rules}
        self._silent_until = kept

    def is_silent(self, rule: Rule, facts: Mapping[str, Any]) -> bool:
        """Whether a rule does not apply now or is in its cooldown for this label."""
        if not self.holds(rule):
            return True
        return self.now < self._silent_until.get(_key(rule, facts), 0.0)

    def holds(self, rule: Rule) -> bool:
        """Whether a rule applies now, given its hours and modes."""
        return self._holds(rule, self.time_ns)

    def once(self, rule: Rule, facts: dict[str, Any]) -> None:
        """Report a momentary event."""
        if self.is_silent(rule, facts):
            return
        self._silence(rule, facts, rule.cooldown_s)
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
        """Report new facts of an event."""
        event.updated = self.now
        event.score = max(event.score, float(facts.get("score", 0.0)))
        event.facts |= facts
        self._send("update", event, event.facts)

    def end(self, event: OngoingEvent, why: Why, facts: Mapping[str, Any] | None = None) -> None:
        """End an event, with further facts for its end."""
        # What ends it is no sample: until then what a silent sensor has said was true.
        held = max(0.0, self.held_until - self.arrived) if why != "over" else 0.0
        # A message may have been on its way when the event began with what a silent sensor said.
        held = max(held, event.began - self.now)
        seconds = round(max(0.0, self.now + held - event.began), 3)
        # What is switched off and on, or gets another rule, begins anew: a cooldown would hide it.
        cooldown_s = event.rule.cooldown_s if why in {"over", "lost"} else 0.0
        self._silence(event.rule, event.facts, cooldown_s)
        told = {**event.facts, **(facts or {}), "seconds": seconds, "why": why}
        self._send("end", event, told, held)

    def _silence(self, rule: Rule, facts: Mapping[str, Any], seconds: float) -> None:
        # Even without a cooldown, for samples from before an end that came without a result.
        self._silent_until[_key(rule, facts)] = self.now + seconds

    def _send(
        self, state: State, event: OngoingEvent, facts: Mapping[str, Any], later: float = 0.0
    ) -> None:
        """Make a message of an event; *later*: seconds after the latest sample."""
        rule = event.rule
        shown = rule.picture != "none"
        first = state in {"once", "begin"}
        asks = tuple(ask for ask in self.asks if first and rule.name in (ask.rules or [rule.name]))
        pictured = (shown and state != "end") or asks
        self._made.append(
            Event(
                event.id,
                rule.name,
                rule.when,
                self._pipeline,
                state,
                max(0, self.seq),
                self.time_ns + int(later * 1e9),
                event.began_ns,
                dict(facts),
                rule.qos,
                rule.do,
                self.picture if pictured else None,
                rule.picture == "crop",
                shown,
                asks,
                rule.clip,
                self.arrived + later,
            )
        )


def _key(rule: Rule, facts: Mapping[str, Any]) -> tuple[str, str]:
    return rule.name, str(facts.get("label", ""))
