"""From results to events: applies one pipeline's tracks, zones, lines and rules in order.

As a stage the engine adds tracks and zones to a result and checks the rules before the result is
published: by then its events are on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from ..config.settings import Pipeline
from ..core.threads import DiskLock, Waiting
from ..core.types import Detections, Outcome, Sample, Values
from ..runtime.pipelines.sinks import Shape
from .conditions import Conditions, Crossings, Moves, Stays
from .event import UPDATE_SECONDS, Event, EventLog, Holds, Why, always
from .occupancy import TrackedObjects, View
from .totals import LineTotals
from .tracker import LOWEST_SCORE

FIRST_SECONDS = 1 / 30
"""Assumed seconds before a first result."""
MOST_KINDS = 16
"""Most kinds of messages of a sensor, by the values in them, of which the latest is kept."""
WAY_SECONDS = 1.0
"""How long what a sensor says may be on its way to the rules."""


class RuleEngine:
    """Tracks, zones, lines and rules of one pipeline. Any thread may call it."""

    tracking_score: float | None = LOWEST_SCORE

    def __init__(
        self,
        settings: Pipeline,
        *,
        apart: float | None,
        name_event: Callable[[], str],
        emit: Callable[[Sequence[Event]], None],
        totals: LineTotals,
        holds: Holds = always,
        waiting: Waiting = nullcontext,
        first_track: int = 1,
    ) -> None:
        """Start without objects; the first track will have the number *first_track*.

        *apart*: seconds between captures that are all inferred at any speed, so that the time
        follows from their numbers; None: from the clock. *emit* accepts simultaneous events and
        stores them, with the totals of lines.
        """
        self._apart = apart
        self._totals = totals
        self._holds = holds
        self._lock = DiskLock(waiting)
        self._log = EventLog(settings.name, name_event, emit, settings.ask, holds)
        self._objects = objects = TrackedObjects(settings, first_track)
        self._settings = settings
        self._crossings = Crossings(settings, objects, self._log, totals)
        self._moves = Moves(objects, self._log)
        self._stays = Stays(objects, self._log)
        self._conditions = Conditions(settings, objects.occupancy, self._log)
        self._latest: dict[tuple[str, ...], Outcome] = {}
        """Of a sensor, the latest result with these values since it was opened, oldest first."""
        self._results = 0
        """Number of results with objects since the source was opened."""
        self._updated = 0.0
        self._valid_after = -math.inf
        """Results of earlier samples, which lanes may still have, are ignored."""

    def apply(self, settings: Pipeline, *, told: bool = True) -> None:
        """Go on with other zones, lines, rules, units and questions.

        Objects keep their tracks; what has not changed keeps its state and its events. Events of
        what has changed end; what is new judges what a silent sensor has said, if that is *told*
        for good: its values are still known. A camera's next frame does that, so that the event
        has its picture.
        """
        with self._lock:
            log, objects = self._log, self._objects
            log.forget([each.name for each in self._settings.rules if each not in settings.rules])
            self._settings, log.asks = settings, settings.ask
            objects.apply(settings, log.now)
            self._crossings = Crossings(settings, objects, log, self._totals, self._crossings)
            self._moves = Moves(objects, log)
            self._stays = Stays(objects, log, self._stays)
            latest = self._latest.values() if told else ()
            self._conditions = Conditions(
                settings, objects.occupancy, log, self._conditions, latest
            )
            self._flush()

    def process(self, sample: Sample, outcome: Outcome, weak: Detections | None) -> Outcome:
        """Add tracks and zones to a result, and check the rules.

        *weak* detections, below the threshold, only continue tracks.
        """
        with self._lock:
            if sample.since <= self._valid_after:
                return outcome
            seconds = self._go_on(sample)
            if not sample.follows:
                self._conditions.interrupt()
            found, counts, least = outcome.findings, None, None
            if isinstance(found, Detections):
                height, width = sample.data.shape[:2]
                staged = None
                if outcome.then:
                    from ..runtime.pipelines.second_stage import labels_found

                    staged = labels_found(len(found), outcome.then)
                found, view = self._objects.update(
                    found, weak, seconds, (width, height), self._log.now, staged
                )
                outcome = replace(outcome, findings=found)
                self._results += 1
                self._look_at_objects(view)
                counts = self._objects.occupancy.count()
                least = self._objects.least() if outcome.lost else counts
            if not sample.picture:
                self._keep(outcome)
            self._conditions.step(outcome, counts, least, self._results)
            if sample.since - self._updated >= UPDATE_SECONDS:
                self._updated = sample.since
                self._stays.update()
            self._flush()
            return outcome

    def _flush(self) -> None:
        self._log.flush()
        if self._totals.crossed:  # a line without a rule, or before its rule
            self._totals.keep()

    def _keep(self, outcome: Outcome) -> None:
        found = outcome.findings
        names = {*found.values, *found.unknown} if isinstance(found, Values) else set[str]()
        kind = tuple(sorted(names))
        self._latest.pop(kind, None)
        self._latest[kind] = outcome
        if len(self._latest) > MOST_KINDS:
            del self._latest[next(iter(self._latest))]

    def _go_on(self, sample: Sample) -> float:
        """Make *sample* the current one; return the seconds since the one before, in its scene."""
        if self._log.seq < 0:
            seconds = FIRST_SECONDS
        elif self._apart is not None:
            seconds = (sample.seq - self._log.seq) * self._apart
        else:
            seconds = sample.since - self._log.arrived
        if self._apart is not None and sample.picture:
            sample = replace(sample, at=self._log.now + seconds)
        self._log.go_on(sample)
        return seconds

    def _look_at_objects(self, view: View) -> None:
        parts = (self._crossings, self._stays, self._moves)
        for part in parts:
            part.step(view)
        for part in parts:
            part.end(view.ended)
        self._objects.occupancy.forget(view.ended)
        self._stays.advance()

    def advance_time(self, sample: Sample) -> None:
        with self._lock:
            if self._log.seq < 0 or sample.since <= self._valid_after:
                return
            # The next motion begins now.
            self._go_on(sample)
            self._stays.advance()
            self._conditions.advance()
            self._flush()

    def tick(self, now: float, time_ns: int, *, silent: bool = False) -> None:
        """End the events of rules whose hours or mode are over, though no result comes.

        *now*: monotonic seconds; *time_ns*: the wall clock. Hours must be over by both clocks, if
        the samples have their times from another one: else a late sample would begin the event
        again. *silent*: no result comes because nothing changes, so that events may also begin.
        """
        log = self._log
        with self._lock, log.without_sample():
            if silent and log.seq >= 0:
                log.held_until = now
                log.let_pass(now - WAY_SECONDS)
                self._conditions.begin_due()
            if self._apart is None:  # the time of a recording passes with its results
                log.let_pass(now)
            for part in (self._stays, self._conditions):
                part.end_over(lambda rule: not (log.holds(rule) or self._holds(rule, time_ns)))
            self._flush()

    # Called by others

    @property
    def unsettled(self) -> bool:
        """Whether further results will tell, though nothing moves, if what it tracks is there."""
        return self._objects.is_unsettled(self._log.now)

    @property
    def next_track(self) -> int:
        """The number of the next track."""
        return self._objects.tracker.next

    @property
    def changed(self) -> bool:
        """Whether `counts` may have changed since they were last read."""
        return self._objects.occupancy.changed

    def counts(self, *, seen: bool = True) -> dict[str, dict[str, int]]:
        """Return how many objects of each label are in each zone; *seen*: clear `changed`."""
        with self._lock:
            if seen:
                self._objects.occupancy.changed = False
            return self._objects.counts()

    def shapes(self) -> list[Shape]:
        with self._lock:  # `apply` changes both
            settings, inside = self._settings, self._objects.counts()
        shapes = [
            Shape(zone.polygon, True, f"{zone.name} {sum(inside[zone.name].values())}")
            for zone in settings.zones
        ]
        totals = self._totals.of([line.name for line in settings.lines])["lines"]
        for line in settings.lines:
            ways = {way: sum(counts.values()) for way, counts in totals[line.name].items()}
            text = f"{line.name} in {ways['in']} out {ways['out']}"
            shapes.append(Shape(line.points, False, text))
        return shapes

    def source_lost(self, *, switched_off: bool, at: float) -> None:
        self._finish("stopped" if switched_off else "lost", at)

    def close(self, why: Why) -> None:
        """End all events: the pipeline stops or gets other settings."""
        self._finish(why, math.inf)

    def _finish(self, why: Why, valid_after: float) -> None:
        with self._lock:
            self._valid_after = valid_after
            self._stays.finish(why)
            self._conditions.finish(why)
            # They get new tracks, which begin where these were last seen.
            self._crossings.end(self._objects.tracker.alive)
            self._flush()
            self._objects.reset()
            self._log.seq = -1
            self._latest.clear()
            self._results = 0
