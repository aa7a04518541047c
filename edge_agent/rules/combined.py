"""Rules over pipelines: all of several events within seconds of each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..config.rules import Action, CombinedRule
from ..config.settings import Settings
from .event import Event
from .event_log import Holds

WHEN = "all"
"""What kind of event it is."""


@dataclass(slots=True, eq=False)
class _Member:
    """What is known of one of the events that a rule waits for."""

    latest: Event | None = None
    at: float = 0.0
    """Monotonic seconds, when it occurred or ended."""
    ongoing: set[str] = field(default_factory=set)

    def take(self, event: Event, now: float) -> bool:
        """Note an event; return whether it may complete a rule."""
        if event.state == "end":
            if event.id in self.ongoing:
                self.ongoing.remove(event.id)
                self.at = now
            return False
        if event.state == "begin":
            self.ongoing.add(event.id)
        elif event.state != "once":
            return False
        self.latest, self.at = event, now
        return True

    def is_within(self, seconds: float, now: float) -> bool:
        """Whether it goes on, or was not longer ago than this."""
        if self.ongoing:
            return True
        return self.latest is not None and now - self.at <= seconds


@dataclass(slots=True, eq=False)
class _State:
    """What is known of one rule."""

    rule: CombinedRule
    members: list[_Member]
    silent_until: float = 0.0


class CombinedRules:
    """Looks at the events of all pipelines. Any thread may call it."""

    def __init__(
        self, settings: Callable[[], Settings], name_event: Callable[[], str], holds: Holds
    ) -> None:
        """Begin with nothing seen; *name_event* returns another name for an event."""
        self._settings = settings
        self._name_event = name_event
        self._holds = holds
        self._states: dict[str, _State] = {}
        self._lock = threading.Lock()

    def actions(self) -> Iterator[Action]:
        """Yield what they do."""
        for rule in self._settings().rules:
            yield from rule.do

    def step(self, events: Sequence[Event]) -> Iterator[Event]:
        """Yield the events of the rules that these complete."""
        settings = self._settings()
        if not settings.rules:
            return
        names = {(each.name, rule.name) for each in settings.pipelines for rule in each.rules}
        now = time.monotonic()
        with self._lock:
            for rule in settings.rules:
                state = self._states.get(rule.name)
                if state is None or state.rule != rule:
                    state = _State(rule, [_Member() for _ in rule.all])
                    self._states[rule.name] = state
                for event in events:
                    if self._completes(state, event, names, now):
                        yield self._fire(state, event, now)

    def _completes(
        self, state: _State, event: Event, names: set[tuple[str, str]], now: float
    ) -> bool:
        """Note an event; return whether the rule fires with it."""
        taken = False
        for wanted, member in zip(state.rule.members, state.members, strict=True):
            # A kind is meant where no rule has the name.
            called = event.rule if wanted in names else event.when
            if wanted == (event.pipeline, called) and event.when != WHEN:
                taken = member.take(event, now) or taken
        return (
            taken
            and now >= state.silent_until
            and all(member.is_within(state.rule.within_s, now) for member in state.members)
            and self._holds(state.rule, event.time_ns)
        )

    def _fire(self, state: _State, event: Event, now: float) -> Event:
        """Make the event of a rule; moments that it was made of count for no other."""
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
            self._name_event(),
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
