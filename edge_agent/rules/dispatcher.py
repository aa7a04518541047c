"""Dispatches events to journal, sinks, pictures and actions.

Events are in the journal as soon as they are submitted. A thread does the rest, which may take
longer: publishing, pictures, counts, actions.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config.rules import Action
from ..config.settings import Settings
from ..core.errors import RequestError, SampleError
from ..core.plain_record import DoubtError, read_plain
from ..core.text import counted
from ..core.threads import Waiting
from ..mqtt.client import Client
from ..mqtt.topics import Topics
from ..runtime.pipelines.sinks import Sinks
from .actions import Actions, targets_of, topic_of
from .asking import Asking
from .clips import Clips
from .engines import CombinedRules, RuleEngines
from .event import Event, Holds, always, payload
from .evidence import Crowd, Evidence
from .journal import Entry, Journal, Payload
from .rendering import render
from .totals import TotalsFile

log = logging.getLogger(__name__)

MOST = 10_000
"""Most events waiting for the thread."""
MOST_PICTURES = 8
"""Most of them with a picture, which takes megabytes."""
TICK_SECONDS = 0.25
END_SECONDS = 0.5
"""Time for the broker to acknowledge the last events."""
POST_SECONDS = 2.0
"""Time for web servers to receive and answer the last posts."""


LATE_SECONDS = 5.0
"""Delay between an event and its message that makes health degraded."""
LATE_HINT = "use fewer rules, or fewer with pictures"


@dataclass(slots=True, eq=False)
class Queued:
    """An event that waits for the dispatcher's thread."""

    event: Event
    payload: Payload
    entry: Entry | None
    """Its entry in the journal, where it has one."""
    since: float
    """Monotonic seconds."""


class EventQueue:
    """Events that wait for the dispatcher's thread. Any thread may call it."""

    def __init__(self) -> None:
        self.lost = 0
        """Number of events dropped because the queue was full."""
        self.unseen = Crowd(
            "events without a picture", f"at most {MOST_PICTURES} wait at a time: {LATE_HINT}"
        )
        self.closing = False
        self._events: deque[Queued] = deque()
        self._pictures = 0
        self._changed = threading.Condition()

    def put(self, queued: Queued) -> None:
        """Append an event, without its picture if too many wait."""
        with self._changed:
            if len(self._events) >= MOST:
                self.lost += 1
                if queued.entry is not None:
                    queued.entry.published_at = queued.since
                return
            if queued.event.picture is not None:
                if self._pictures >= MOST_PICTURES:
                    queued.event = replace(queued.event, picture=None, unseen=True)
                    if queued.event.shown:
                        self.unseen.add()
                else:
                    self._pictures += 1
            self._events.append(queued)
            self._changed.notify()

    @property
    def since(self) -> float | None:
        """When the oldest waiting event arrived, monotonic seconds, or None if none waits."""
        with self._changed:
            return self._events[0].since if self._events else None

    def take(self, seconds: float) -> list[Queued]:
        """Return all events; wait up to *seconds* for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self.closing, seconds)
            events, self._events = list(self._events), deque()
            self._pictures = 0
        return events

    def close(self) -> None:
        """Wake every waiting `take`; later ones do not wait."""
        with self._changed:
            self.closing = True
            self._changed.notify()


class EventDispatcher:
    """Writes events to the journal, publishes them and acts on them; one thread calls `run`."""

    def __init__(
        self,
        sinks: Sinks,
        client: Client,
        topics: Topics,
        session: str,
        settings: Callable[[], Settings],
        credible: Callable[[int], bool],
        holds: Holds = always,
        *,
        waiting: Waiting = nullcontext,
    ) -> None:
        """Read the state left by the last run.

        *settings* returns the current settings; *credible* returns whether a time, nanoseconds
        since 1970, may be right. *waiting*: see `journal.Disk`.
        """
        self.actions = Actions(
            client.publish,
            lambda: topics.root,
            client.feeds.topics,
        )
        self.asking = Asking(
            settings, lambda name, said: sinks.give(lambda sink: sink.answer(name, said))
        )
        state = settings().state
        self.clips = Clips(Evidence(state / "evidence"), settings)
        self.clips.follow_settings()  # before their sources are opened
        self._journal = Journal(state / "events.json", topics.device, waiting)
        self._totals = TotalsFile(state / "counts.json", self._journal.totals, credible)
        self.engines = RuleEngines(
            self._totals,
            sinks,
            name_event=self.name_event,
            emit=lambda events: self.submit(*events),
            keep_totals=self._keep_totals,
            holds=holds,
            waiting=waiting,
            combined=CombinedRules(settings, self.name_event, holds),
        )
        self._queue = EventQueue()
        self._sinks = sinks
        self._client = client
        self._origin = topics.device, session
        self._settings = settings
        self._credible = credible
        self._behind: float | None = None
        """Arrival of the oldest event being published, monotonic seconds."""
        self._left = self._journal.left(credible)
        """Unpublished messages of the last run, and ends for the events that it had begun."""
        self._numbers = itertools.count(1)
        client.retained.register(
            topics.count(""), lambda: [topics.count(name) for name in self.engines.counting()]
        )

    @property
    def evidence(self) -> Evidence:
        """The stored pictures and clips of events."""
        return self.clips.evidence

    # May be called by any thread

    def name_event(self) -> str:
        """Return a new event name, unique over devices and runs."""
        return f"{self._origin[1].replace('-', '')[:12]}-{next(self._numbers)}"

    def _is_dated(self, event: Event) -> bool:
        """Whether its times may be right."""
        return self._credible(event.time_ns) and self._credible(event.began_ns)

    def submit(self, *events: Event) -> None:
        """Accept simultaneous events from a rule or any other sender.

        All events are submitted here. When this returns they are in the journal, with the totals of
        the lines that they have crossed; the dispatcher's thread does the rest. An event without a
        rule needs no engine and no settings: its sender chooses its name (`name_event`), pipeline,
        `rule` and `when`. It is published on `event/<pipeline>` with its QoS, and its actions are
        carried out.
        """
        totals = self._totals.crossed({each.pipeline for each in events})
        events += tuple(self.engines.completed(events))
        made = [(payload(each, *self._origin, clock=self._is_dated(each)), each) for each in events]
        due = {each.id: at_end for each in events if (at_end := _due(each))}
        entries = self._journal.add([(said, each.qos) for said, each in made], totals, due)
        now = time.monotonic()
        for (said, each), entry in zip(made, entries, strict=True):
            self._queue.put(Queued(each, said, entry, now))

    def reset(self, pipeline: str) -> bool:
        """Reset the line counts of a pipeline; return False if it has none.

        It is durable unless `unsaved` says why not.

        Raises:
            RequestError: the stored ones cannot be read, and would be back at the next start.
        """
        if self._totals.unread is not None:
            raise RequestError(f"pipeline: {self._totals.unread}")
        if not self.engines.reset(pipeline):
            return False
        self._journal.add([], {pipeline: self._totals.of(pipeline).content()})
        return True

    def _keep_totals(self, pipeline: str) -> None:
        self._journal.add([], self._totals.crossed({pipeline}))

    def unsaved(self) -> list[str]:
        """Return why the latest events and totals may not be on the disk; empty: they are."""
        return self._journal.unsaved()

    # The thread

    def run(self) -> None:
        """Dispatch until closed, then dispatch the remaining events."""
        while self.step(TICK_SECONDS):
            pass
        until = time.monotonic() + POST_SECONDS
        self.actions.close(POST_SECONDS)
        self.asking.close(max(0.0, until - time.monotonic()))
        self.clips.close(END_SECONDS)
        self.evidence.close(END_SECONDS)
        safe = self._safe_until(END_SECONDS)
        self.actions.settle(END_SECONDS)
        self._journal.close(safe, self._undone())

    def step(self, seconds: float = 0.0) -> bool:
        """Dispatch events that wait or arrive within *seconds*; return False once closed."""
        closing = self._queue.closing
        events = self._queue.take(seconds)
        self._publish_left()
        keep_mb = self._settings().evidence.keep_mb
        self.clips.allowance.follow(keep_mb)
        self.clips.follow_settings()
        self._publish(events, keep_mb)
        self.engines.tick(connected=self._client.connected)
        self.engines.publish_counts(at_once=self._queue.closing)
        self.actions.flush()
        self._journal.settle(self._safe_until(), self._undone())
        return not closing

    def close(self) -> None:
        """End ongoing events and the thread."""
        self.engines.close_all("stopped")
        self._queue.close()

    def _safe_until(self, seconds: float = 0.0) -> float:
        """Return the time before which published events are safe; infinite: all are."""
        return min(self._sinks.settle(seconds), time.monotonic() if any(self._left) else math.inf)

    def _undone(self) -> list[tuple[Payload, dict[str, Any]]]:
        return [(dict(said), _plain(each)) for said, each in self.actions.undone()]

    def _publish_left(self) -> None:
        """Publish the messages left by a killed agent: possible copies, and ends."""
        left, ended = self._left
        if not (left or ended) or not self._client.connected:
            return
        self._left = ([], [])
        for each in (*left, *ended):
            self._send(each, 1, replayed=True)
        self._act_left([end for end in left if end["state"] == "end"], ended)
        what = counted(len(left) + len(ended), "event")
        log.info("%s left by the last run: published again, or ended", what)

    def _act_left(self, left: list[Payload], ended: list[Payload]) -> None:
        """Carry out what ends that the last run has left, and ends of its events, cause.

        If the rule is true again, whatever it switched on must stay on: what goes to the same
        topic is left out, or if it names its event, sent with the other's begin after it.
        """
        rules = {
            (pipeline.name, rule.name): rule.do
            for pipeline in self._settings().pipelines
            for rule in pipeline.rules
        }
        again: dict[tuple[str, str], Payload] = {}
        for each in (*left, *ended):
            place, due = (each["pipeline"], each["rule"]), self._journal.due(each["event"])
            if not due and each in left:
                continue
            ongoing = self._journal.ongoing(*place)
            for action in _actions(due) or rules.get(place, ()):
                if action.on not in {"all", "end"}:
                    continue
                topic = topic_of(action, each)
                on = [other for other in ongoing if topic_of(action, other) == topic]
                if on and "{event}" not in (action.payload or ""):
                    continue
                self._act((action,), each)
                again |= {(topic, other["event"]): other for other in on}
        for (topic, _), other in again.items():
            do = rules.get((other["pipeline"], other["rule"]), ())
            begins = tuple(action for action in do if topic_of(action, other) == topic)
            self._act(begins, {**other, "state": "begin"})

    def _publish(self, events: list[Queued], keep_mb: int) -> None:
        for each in events:
            self._behind = each.since
            self._send(each.payload, each.event.qos)
            if each.entry is not None:
                each.entry.published_at = time.monotonic()
            self._act(each.event.actions, each.payload)
            self.clips.take(each.event)
        self._behind = None
        for each in events:
            data = self._picture(each.event, keep_mb)
            for ask in each.event.asks:
                self.asking.put(ask, each.payload, data, unseen=each.event.unseen)

    def _send(self, made: Payload, qos: int, *, replayed: bool = False) -> None:
        self._sinks.give(lambda sink: sink.event(made, qos, replayed=replayed))

    def _act(self, actions: tuple[Action, ...], made: Payload) -> None:
        state = made["state"]
        for action in actions:
            if action.on in {"all", state} or (action.on, state) == ("begin", "once"):
                self.actions.act(action, made)

    def _picture(self, event: Event, keep_mb: int) -> bytes | None:
        """Return the picture of an event, published if wanted; None: it has none."""
        if event.picture is None:
            return None
        try:
            data = render(event)
        except SampleError as problem:
            log.warning("picture of %s: %s", event.id, problem)
            return None
        if event.shown:
            if keep_mb:
                self.evidence.keep(event.pipeline, event.id, data, keep_mb)
            self._sinks.give(lambda sink: sink.event_picture(event.pipeline, event.id, data))
        return data

    # For health

    def problems(self) -> list[str]:
        """Return why the device is degraded."""
        to = {each for action in self.engines.actions() for each in targets_of(action)}
        why = self.actions.problem(to)
        lost = self._queue.lost
        waits = [since for since in (self._behind, self._queue.since) if since is not None]
        late = time.monotonic() - min(waits, default=math.inf)
        return [
            *([f"action: {why}"] if why else []),
            *self.asking.problems(),
            *self.clips.problems(),
            *self.evidence.problems(),
            *self._journal.problems(),
            *([f"events: {lost} were lost for lack of space"] if lost else []),
            *self._queue.unseen.problems(),
            *([f"events: {late:.0f} s late; {LATE_HINT}"] if late > LATE_SECONDS else []),
        ]

    def health(self) -> dict[str, Any]:
        """Return the counts of actions for health, and those of answers if questions are asked."""
        told = {"actions": {"done": self.actions.done, "failed": self.actions.failed}}
        asks = any(pipeline.ask for pipeline in self._settings().pipelines)
        return told | ({"answers": self.asking.health()} if asks else {})


def _due(event: Event) -> list[dict[str, Any]]:
    """Return the actions that the end of an event which begins will cause, for the journal."""
    due = (each for each in event.actions if event.state == "begin" and each.on in {"end", "all"})
    return [_plain(each) for each in due]


def _plain(action: Action) -> dict[str, Any]:
    return {key: value for key, value in asdict(action).items() if value is not None}


def _actions(due: list[dict[str, Any]]) -> tuple[Action, ...]:
    """Return the actions that the journal has kept."""
    made = []
    for each in due:
        with suppress(DoubtError):  # the file is damaged, or of another version
            made.append(read_plain(Action, each))
    return tuple(made)
