"""Where events go: journal, sinks, pictures, actions.

Events are in the journal once rule engines or others have submitted them. A thread does the rest,
which may be late: publishing, pictures, counts, actions.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..config.rules import Action
from ..config.settings import Settings
from ..core.errors import SampleError
from ..mqtt.client import Client
from ..mqtt.topics import Topics
from ..runtime.pipelines.sinks import Sinks
from .actions import MESSAGES, Actions
from .asking import Asking
from .engines import CombinedRules, RuleEngines
from .event import Event, Holds, always, payload
from .evidence import Clips, Evidence, render
from .journal import Entry, Journal, Payload
from .totals import TotalsFile

log = logging.getLogger(__name__)

MOST = 10_000
"""Events that may wait for the thread."""
MOST_PICTURES = 8
"""Of them with a picture: a frame takes megabytes."""
TICK_SECONDS = 0.25
END_SECONDS = 0.5
"""For the broker to acknowledge the last events."""
POST_SECONDS = 2.0
"""Time for web servers to receive posts, and to answer."""


LATE_SECONDS = 5.0
"""Between an event and its message, from which on health is degraded."""
LATE_HINT = "have fewer rules, or fewer pictures of them"


@dataclass(slots=True, eq=False)
class Queued:
    """An event that waits for the dispatcher's thread."""

    event: Event
    payload: Payload
    entry: Entry | None
    """In the journal, of one of QoS 1."""
    since: float
    """Monotonic seconds."""


class EventQueue:
    """Events that wait for the dispatcher's thread. Any thread may call it."""

    def __init__(self) -> None:
        self.lost = 0
        """Events that found no room."""
        self.closing = False
        self._events: deque[Queued] = deque()
        self._pictures = 0
        self._changed = threading.Condition()

    def put(self, queued: Queued) -> None:
        """Append an event, without its picture where too many wait."""
        with self._changed:
            if len(self._events) >= MOST:
                self.lost += 1
                if queued.entry is not None:
                    queued.entry.published_at = queued.since
                return
            if queued.event.picture is not None:
                if self._pictures >= MOST_PICTURES:
                    queued.event = replace(queued.event, picture=None, unseen=True)
                else:
                    self._pictures += 1
            self._events.append(queued)
            self._changed.notify()

    @property
    def since(self) -> float | None:
        """When the oldest waiting event came, monotonic seconds, or None if none waits."""
        with self._changed:
            return self._events[0].since if self._events else None

    def take(self, seconds: float) -> list[Queued]:
        """Return all events; wait for one, but no longer than *seconds*."""
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
    """Writes events to the journal, publishes them and acts on them; `run` by one thread."""

    def __init__(
        self,
        sinks: Sinks,
        client: Client,
        topics: Topics,
        session: str,
        settings: Callable[[], Settings],
        credible: Callable[[int], bool],
        holds: Holds = always,
    ) -> None:
        """Read the state that the last run left.

        *settings* returns the current ones; *credible*: a time, in nanoseconds since 1970, can be
        right.
        """
        self.actions = Actions(
            lambda topic, data, qos, retain: client.publish(topic, data, qos=qos, retain=retain),
            lambda: topics.root,
            client.feeds.topics,
        )
        self.asking = Asking(
            settings, lambda name, said: sinks.give(lambda sink: sink.answer(name, said))
        )
        state = settings().state
        self.clips = Clips(Evidence(state / "evidence"), settings)
        self.clips.follow_settings()  # before their sources are opened
        self._journal = Journal(state / "events.json")
        self._totals = TotalsFile(state / "counts.json", self._journal.totals)
        self.engines = RuleEngines(
            self._totals,
            sinks,
            name_event=self.name_event,
            emit=lambda events: self.submit(*events),
            holds=holds,
            combined=CombinedRules(settings, self.name_event, holds),
        )
        self._queue = EventQueue()
        self._sinks = sinks
        self._client = client
        self._origin = topics.device, session
        self._settings = settings
        self._credible = credible
        self._behind: float | None = None
        """Since when the oldest event that is being published has waited, monotonic seconds."""
        self._left = self._journal.left()
        """Messages of the last run, and ends of events that lasted in it; until published."""
        self._numbers = itertools.count(1)
        client.retained.register(
            topics.count(""), lambda: [topics.count(name) for name in self.engines.counting()]
        )

    @property
    def evidence(self) -> Evidence:
        """The kept pictures and clips of events."""
        return self.clips.evidence

    # What any thread may call

    def name_event(self) -> str:
        """Return a name for another event, unique over devices and runs."""
        return f"{self._origin[1].replace('-', '')[:12]}-{next(self._numbers)}"

    def submit(self, *events: Event) -> None:
        """Accept events of one moment, from a rule or anything else.

        All events come this way. They are in the journal when this returns, with the totals of the
        lines that they have crossed; what follows is done by the dispatcher's thread. One that
        belongs to no rule needs no engine and no settings: its name (`name_event`), pipeline,
        `rule` and `when` are whatever its sender calls them. It is published on `event/<pipeline>`
        with its QoS, and its actions are done.
        """
        events += tuple(self.engines.completed(events))
        made = [
            (payload(each, *self._origin, clock=self._credible(each.time_ns)), each)
            for each in events
        ]
        crossed = {each.pipeline for each in events if each.when == "cross"}
        totals = {name: self._totals.of(name).content() for name in crossed}
        entries = iter(self._journal.add([(said, each.qos) for said, each in made], totals))
        now = time.monotonic()
        for said, each in made:
            self._queue.put(Queued(each, said, next(entries) if each.qos else None, now))

    def reset(self, pipeline: str) -> bool:
        """Reset the line counts of a pipeline, durably; return False if it has none."""
        if not self.engines.reset(pipeline):
            return False
        self._journal.add([], {pipeline: self._totals.of(pipeline).content()})
        return True

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
        self._journal.close(self._safe_until(END_SECONDS))

    def step(self, seconds: float = 0.0) -> bool:
        """Dispatch events that wait, or come within a time; returns False if no more will come."""
        closing = self._queue.closing
        events = self._queue.take(seconds)
        self._publish_left()
        keep_mb = self._settings().evidence.keep_mb
        self.evidence.limit(keep_mb)
        self.clips.follow_settings()
        self._publish(events, keep_mb)
        self.engines.publish_counts(at_once=self._queue.closing)
        self.actions.flush()
        self._journal.settle(self._safe_until())
        return not closing

    def close(self) -> None:
        """End the events that go on, and the thread."""
        self.engines.close_all("stopped")
        self._queue.close()

    def _safe_until(self, seconds: float = 0.0) -> float:
        """Return the time before which what was published is safe; infinite: all is."""
        return min(self._sinks.settle(seconds), time.monotonic() if any(self._left) else math.inf)

    def _publish_left(self) -> None:
        """Publish the messages that a killed agent has left: possible copies, and ends."""
        left, ended = self._left
        if not (left or ended) or not self._client.connected:
            return
        self._left = ([], [])
        for each in (*left, *ended):
            self._send(each, 1, replayed=True)
        rules = {
            (pipeline.name, rule.name): rule
            for pipeline in self._settings().pipelines
            for rule in pipeline.rules
        }
        for each in ended:
            place = each["pipeline"], each["rule"]
            ongoing = self._journal.ongoing(*place)
            # Where it holds again, what was switched on is to stay on, and who shows but one state
            # of a rule has seen its end last.
            for again in ongoing:
                self._send(again, 1, replayed=True)
            if place in rules and not ongoing:
                self._act(rules[place].do, each)
        words = "%d events that the last run has left are published again, or ended"
        log.info(words, len(left) + len(ended))

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
                if each.event.unseen:
                    self.asking.refuse(ask, each.payload, "there was no room for its picture")
                else:
                    self.asking.put(ask, each.payload, data)

    def _send(self, made: Payload, qos: int, *, replayed: bool = False) -> None:
        self._sinks.give(lambda sink: sink.event(made, qos, replayed=replayed))

    def _act(self, actions: tuple[Action, ...], made: Payload) -> None:
        state = made["state"]
        for action in actions:
            if action.on in {"all", state} or (action.on, state) == ("begin", "once"):
                self.actions.act(action, made)

    def _picture(self, event: Event, keep_mb: int) -> bytes | None:
        """Return the picture of an event, published where that is wanted; None: it has none."""
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
        to = {action.http or MESSAGES for action in self.engines.actions()}
        why = self.actions.problem(to)
        lost = self._queue.lost
        waits = [since for since in (self._behind, self._queue.since) if since is not None]
        late = time.monotonic() - min(waits, default=math.inf)
        return [
            *([f"action: {why}"] if why else []),
            *self.asking.problems(),
            *self.clips.problems(),
            *([f"events: {lost} were lost for want of room"] if lost else []),
            *([f"events: {late:.0f} s late; {LATE_HINT}"] if late > LATE_SECONDS else []),
        ]

    def health(self) -> dict[str, Any]:
        """Return the counts of actions for health, and those of answers if anything is asked."""
        told = {"actions": {"done": self.actions.done, "failed": self.actions.failed}}
        asks = any(pipeline.ask for pipeline in self._settings().pipelines)
        return told | ({"answers": self.asking.health()} if asks else {})
