"""The rule engines of all pipelines with their counts, and the rules over several pipelines.

Such a rule fires when all its events occur within some seconds of each other.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from ..config.rules import Action, CombinedRule
from ..config.settings import Pipeline, Settings
from ..core.threads import Waiting
from ..mqtt import payloads
from ..runtime.pipelines.sinks import Sinks
from .event import Event, Holds, Why, always
from .rule_engine import RuleEngine
from .totals import TotalsFile

COUNT_SECONDS = 1.0
"""Least time between count messages."""
TICK_SECONDS = 1.0
"""Least time between looks at what is over without a result."""


@dataclass(slots=True, eq=False)
class RuleEngines:
    """One engine for each pipeline that needs one. Any thread may call it."""

    totals: TotalsFile
    sinks: Sinks
    name_event: Callable[[], str]
    """Returns a new event name."""
    emit: Callable[[Sequence[Event]], None]
    """Accepts simultaneous events and stores them, with the totals of the pipelines' lines."""
    keep_totals: Callable[[str], object]
    """Stores the totals of the lines of a pipeline."""
    holds: Holds = always
    waiting: Waiting = nullcontext
    combined: CombinedRules | None = None
    """The rules over several pipelines."""
    silent_since: Callable[[str], float] = lambda _name: -math.inf
    """See `Pipeline.silent_since`."""
    is_unknown: Callable[[str], bool] = lambda _name: False
    """See `Runner.is_unknown`."""
    _engines: dict[str, tuple[RuleEngine, Pipeline]] = field(default_factory=dict)
    _next_tracks: dict[str, int] = field(default_factory=dict)
    """The next track number by pipeline, so that other settings begin none anew."""
    _ticked_at: float = 0.0
    _away_at: float = field(default_factory=time.monotonic)
    """When the broker was last away, monotonic seconds."""
    _published_at: float = 0.0
    _publishing: threading.Lock = field(default_factory=threading.Lock)
    """Held while counts are published or an engine is removed, so that nothing is published on the
    topic of a removed engine after it was cleared."""

    def open(self, settings: Pipeline, *, apart: float | None) -> RuleEngine:
        """Create the engine of a pipeline, replacing the present one."""
        totals = self.totals.of(settings.name)
        totals.keep = partial(self.keep_totals, settings.name)
        engine = RuleEngine(
            settings,
            apart=apart,
            name_event=self.name_event,
            emit=self.emit,
            totals=totals,
            holds=self.holds,
            waiting=self.waiting,
            first_track=self._next_tracks.get(settings.name, 1),
        )
        self._engines[settings.name] = (engine, settings)
        return engine

    def apply(self, settings: Pipeline) -> RuleEngine | None:
        """Let the engine of a pipeline go on with other rules; None: it has none."""
        engine, _ = self._engines.get(settings.name, (None, None))
        if engine is not None:
            engine.apply(settings, told=not self.is_unknown(settings.name))
            self._engines[settings.name] = engine, settings
        return engine

    def close(self, name: str, why: Why) -> None:
        """End the events of a pipeline that is removed or gets other settings."""
        with self._publishing:
            engine, _ = self._engines.pop(name, (None, None))
        if engine is not None:
            engine.close(why)
            self._next_tracks[name] = engine.next_track

    def close_all(self, why: Why) -> None:
        """End all events; the counts stay available."""
        for engine, _ in list(self._engines.values()):
            engine.close(why)

    def reset(self, name: str) -> bool:
        """Reset the line counts of a pipeline; return False if it has none."""
        _, settings = self._engines.get(name, (None, None))
        if settings is None or not settings.lines:
            return False
        self.totals.of(name).reset()
        return True

    def counting(self) -> list[str]:
        """Return the pipelines that have zones or lines."""
        engines = list(self._engines.values())
        return [settings.name for _, settings in engines if settings.zones or settings.lines]

    def completed(self, events: Sequence[Event]) -> list[Event]:
        """Return the events of rules over several pipelines that *events* complete."""
        return [] if self.combined is None else list(self.combined.step(events))

    def actions(self) -> Iterator[Action]:
        """Yield the actions of the rules."""
        yield from () if self.combined is None else self.combined.actions()
        for _, settings in list(self._engines.values()):
            for rule in settings.rules:
                yield from rule.do

    def tick(self, *, connected: bool) -> None:
        """Begin and end the events of which time alone decides, at most once a second.

        *connected*: whether the broker, which has what some sensors say, is there.
        """
        now = time.monotonic()
        if not connected:
            self._away_at = now
        if now - self._ticked_at < TICK_SECONDS:
            return
        self._ticked_at = now
        for name, (engine, _) in list(self._engines.items()):
            silent = self.silent_since(name) > self._away_at
            engine.tick(time.monotonic(), time.time_ns(), silent=silent)

    def publish_counts(self, *, at_once: bool = False) -> None:
        """Publish the counts of zones and lines that have changed.

        *at_once*: even within a second of the last time.
        """
        now = time.monotonic()
        if now - self._published_at < COUNT_SECONDS and not at_once:
            return
        self._published_at = now
        # First to the disk, so that published counts are known after a power cut.
        crossed = self.totals.save()
        for name in self.counting():
            engine, settings = self._engines.get(name, (None, None))
            if engine is None or settings is None or not (engine.changed or name in crossed):
                continue
            lines = [line.name for line in settings.lines]
            counts = {
                "schema": payloads.SCHEMA,
                "zones": engine.counts(),
                **self.totals.of(name).of(lines),
            }
            with self._publishing:
                if self._engines.get(name, (None,))[0] is engine:
                    self._give(name, counts)

    def _give(self, pipeline: str, counts: dict[str, object]) -> None:
        self.sinks.give(lambda sink: sink.counts(pipeline, counts))


WHEN = "all"
"""The `when` of its events."""


@dataclass(slots=True, eq=False)
class _Member:
    """The state of one event that a rule waits for."""

    latest: Event | None = None
    at: float = 0.0
    """When it occurred or ended, monotonic seconds."""
    ongoing: set[str] = field(default_factory=set)

    def take(self, event: Event, now: float) -> bool:
        """Record an event; return whether it may complete a rule."""
        if event.state == "begin":
            self.ongoing.add(event.id)
        elif event.state != "once":
            return False
        self.latest, self.at = event, now
        return True

    def end(self, event: Event, now: float) -> None:
        """Record the end of an event, whatever rules are called by now."""
        if event.id in self.ongoing:
            self.ongoing.remove(event.id)
            self.at = now

    def is_within(self, seconds: float, now: float) -> bool:
        """Whether it is ongoing, or was at most *seconds* ago."""
        if self.ongoing:
            return True
        return self.latest is not None and now - self.at <= seconds


@dataclass(slots=True, eq=False)
class _State:
    """The state of one rule."""

    rule: CombinedRule
    members: list[_Member]
    silent_until: float = 0.0


@dataclass(slots=True, eq=False)
class CombinedRules:
    """Checks the events of all pipelines. Any thread may call it."""

    settings: Callable[[], Settings]
    name_event: Callable[[], str]
    holds: Holds
    _states: dict[str, _State] = field(default_factory=dict)
    _ongoing: dict[str, Event] = field(default_factory=dict)
    """The begins of all events that go on, by event: a rule may be added or changed meanwhile."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def actions(self) -> Iterator[Action]:
        """Yield the actions of the rules."""
        for rule in self.settings().rules:
            yield from rule.do

    def step(self, events: Sequence[Event]) -> Iterator[Event]:
        """Yield the events of the rules that *events* complete."""
        settings = self.settings()
        now = time.monotonic()
        names = {(each.name, rule.name) for each in settings.pipelines for rule in each.rules}
        with self._lock:
            self._states = {rule.name: self._state(rule, names, now) for rule in settings.rules}
            for event in events:
                for state in self._states.values():
                    if self._completes(state, event, names, now):
                        yield self._fire(state, event, now)
                if event.state == "begin":
                    self._ongoing[event.id] = replace(event, picture=None)
                elif event.state == "end":
                    self._ongoing.pop(event.id, None)

    def _state(self, rule: CombinedRule, names: set[tuple[str, str]], now: float) -> _State:
        """Return the state of a rule; one that is new, or has changed, knows what goes on."""
        state = self._states.get(rule.name)
        if state is None or state.rule != rule:
            state = _State(rule, [_Member() for _ in rule.all])
            for event in self._ongoing.values():
                self._take(state, event, names, now)
        return state

    def _completes(
        self, state: _State, event: Event, names: set[tuple[str, str]], now: float
    ) -> bool:
        """Record an event; return whether it makes the rule fire."""
        return (
            self._take(state, event, names, now)
            and now >= state.silent_until
            and all(member.is_within(state.rule.within_s, now) for member in state.members)
            and self.holds(state.rule, event.time_ns)
        )

    def _take(self, state: _State, event: Event, names: set[tuple[str, str]], now: float) -> bool:
        """Record an event; return whether it may complete the rule."""
        taken = False
        for wanted, member in zip(state.rule.members, state.members, strict=True):
            # If no rule has the name, it means a kind.
            called = event.rule if wanted in names else event.when
            if event.state == "end":
                member.end(event, now)
            elif wanted == (event.pipeline, called) and event.when != WHEN:
                taken = member.take(event, now) or taken
        return taken

    def _fire(self, state: _State, event: Event, now: float) -> Event:
        """Create the event of a rule; the momentary events that it used count for no other."""
        rule = state.rule
        state.silent_until = now + rule.cooldown_s
        first = state.members[0].latest
        made = {
            name: member.latest.id
            for name, member in zip(rule.all, state.members, strict=True)
            if member.latest is not None
        }
        for member in state.members:
            member.latest = member.latest if member.ongoing else None
        return Event(
            self.name_event(),
            rule.name,
            WHEN,
            rule.pipeline,
            "once",
            None if first is None else first.seq,
            event.time_ns,
            event.time_ns,
            {"events": made},
            rule.qos,
            rule.do,
        )
