"""The rule engines of all pipelines, and what they count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ..config.rules import Action
from ..config.settings import Pipeline
from ..mqtt import payloads
from ..runtime.pipelines.sinks import Sinks
from .combined import CombinedRules
from .event import Event, Why
from .event_log import Holds, always
from .rule_engine import RuleEngine
from .totals import TotalsFile

COUNT_SECONDS = 1.0
"""Between two messages of counts."""


class RuleEngines:
    """One engine for each pipeline that needs one. Any thread may call it."""

    def __init__(
        self,
        totals: TotalsFile,
        sinks: Sinks,
        *,
        name_event: Callable[[], str],
        emit: Callable[[Sequence[Event]], None],
        holds: Holds = always,
        combined: CombinedRules | None = None,
    ) -> None:
        """Begin without engines.

        *name_event* returns another name for an event, *emit* takes the events of one moment and
        keeps them.
        """
        self._holds = holds
        self._combined = combined
        self._totals = totals
        self._sinks = sinks
        self._name_event = name_event
        self._emit = emit
        self._engines: dict[str, tuple[RuleEngine, Pipeline]] = {}
        self._published_at = 0.0
        self._publishing = threading.Lock()
        """Held while counts are published, and while the engine goes whose they are: the topic of
        one that is gone is cleared once."""

    def open(self, settings: Pipeline, *, lossless: bool) -> RuleEngine:
        """Make the engine of a pipeline, instead of the one that it has."""
        engine = RuleEngine(
            settings,
            lossless=lossless,
            name_event=self._name_event,
            emit=self._emit,
            totals=self._totals.of(settings.name),
            holds=self._holds,
        )
        self._engines[settings.name] = (engine, settings)
        return engine

    def close(self, name: str, why: Why) -> None:
        """End the events of a pipeline that goes, or goes on with other settings."""
        with self._publishing:
            engine, _ = self._engines.pop(name, (None, None))
        if engine is not None:
            engine.close(why)

    def close_all(self, why: Why) -> None:
        """End all events; the engines are still counted."""
        for engine, _ in list(self._engines.values()):
            engine.close(why)

    def reset(self, name: str) -> bool:
        """Reset the line counts of a pipeline; return False if it has none."""
        _, settings = self._engines.get(name, (None, None))
        if settings is None or not settings.lines:
            return False
        self._totals.of(name).reset()
        return True

    def counting(self) -> list[str]:
        """Return the pipelines that have zones or lines."""
        engines = list(self._engines.values())
        return [settings.name for _, settings in engines if settings.zones or settings.lines]

    def completed(self, events: Sequence[Event]) -> list[Event]:
        """Return the events of rules over pipelines that these complete."""
        return [] if self._combined is None else list(self._combined.step(events))

    def actions(self) -> Iterator[Action]:
        """Yield what the rules do."""
        yield from () if self._combined is None else self._combined.actions()
        for _, settings in list(self._engines.values()):
            for rule in settings.rules:
                yield from rule.do

    def publish_counts(self, *, at_once: bool = False) -> None:
        """Publish what is in the zones and has crossed the lines, where it has changed.

        *at_once*: also within a second after the last time.
        """
        now = time.monotonic()
        if now - self._published_at < COUNT_SECONDS and not at_once:
            return
        self._published_at = now
        # First to the disk, so that what was published is known after a power cut.
        crossed = self._totals.save()
        for name in self.counting():
            engine, settings = self._engines.get(name, (None, None))
            if engine is None or settings is None or not (engine.changed or name in crossed):
                continue
            lines = [line.name for line in settings.lines]
            counts = {
                "schema": payloads.SCHEMA,
                "zones": engine.counts(),
                **self._totals.of(name).of(lines),
            }
            with self._publishing:
                if self._engines.get(name, (None,))[0] is engine:
                    self._give(name, counts)

    def _give(self, pipeline: str, counts: dict[str, object]) -> None:
        self._sinks.give(lambda sink: sink.counts(pipeline, counts))
