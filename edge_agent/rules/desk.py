"""The events of all pipelines on their way: journal, broker, pictures, counts, actions.

One thread takes what the lanes leave here; nothing of it is on the way of a frame.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..config.settings import Pipeline as PipelineSettings
from ..config.settings import Rule, Settings
from ..core.errors import SampleError
from ..mqtt import payloads
from ..mqtt.client import Client
from ..mqtt.topics import Topics
from ..runtime.pipelines.sinks import Sinks
from .actions import MESSAGES, Actions
from .event import Event, Why, payload
from .journal import Journal, Payload
from .pictures import Evidence, render
from .rule_engine import RuleEngine
from .totals import TotalsFile

log = logging.getLogger(__name__)

MOST = 10_000
"""Events that may wait for the thread."""
MOST_PICTURES = 8
"""Of them with a picture: a frame takes megabytes."""
TICK_SECONDS = 0.25
COUNT_SECONDS = 1.0
"""Between two messages of counts."""
END_SECONDS = 0.5
"""For the broker to acknowledge the last events."""
POST_SECONDS = 2.0
"""For web servers to take what is posted of them."""


class Desk:
    """Takes events from scenes, and counts from them; `run` by one thread."""

    def __init__(
        self,
        sinks: Sinks,
        client: Client,
        topics: Topics,
        session: str,
        settings: Callable[[], Settings],
        credible: Callable[[int], bool],
    ) -> None:
        """Read what the last run has left.

        Args:
            sinks: take events, their pictures and counts.
            client: publishes what actions say, and clears topics of what is gone.
            topics: this device's.
            session: of this run.
            settings: returns those that hold.
            credible: whether a time, in nanoseconds since 1970, can be right.

        """
        self.actions = Actions(
            lambda topic, data, qos, retain: client.publish(topic, data, qos=qos, retain=retain),
            lambda: topics.root,
            client.feeds.topics,
        )
        self.lost = 0
        """Events that found no room."""
        self._sinks = sinks
        self._client = client
        self._topics = topics
        self._session = session
        self._settings = settings
        self._credible = credible
        state = settings().state
        self._journal = Journal(state / "events.json")
        self._left, self._ended = self._journal.left()
        self._totals = TotalsFile(state / "counts.json")
        self.evidence = Evidence(state / "evidence")
        self._keep_mb: int | None = None
        """Up to how much pictures were kept when they were last looked through."""
        self._numbers = itertools.count(1)
        self._stem = session.replace("-", "")[:12]
        self._scenes: dict[str, tuple[RuleEngine, PipelineSettings]] = {}
        self._events: deque[Event] = deque()
        self._pictures = 0
        self._changed = threading.Condition()
        self._closing = False
        self._counted = 0.0
        self._publishing = threading.Lock()
        """Held while counts are published, and while the scene goes whose they are: the topic of
        one that is gone is cleared once."""
        client.retained.register(topics.count(""), self._count_topics)

    # RuleEngines

    def open(self, settings: PipelineSettings, *, lossless: bool) -> RuleEngine:
        """Make the scene of a pipeline, instead of the one that it has."""
        scene = RuleEngine(
            settings,
            lossless=lossless,
            name_event=self._name_event,
            emit=self._emit,
            totals=self._totals.of(settings.name),
        )
        self._scenes[settings.name] = (scene, settings)
        return scene

    def close_scene(self, name: str, why: Why) -> None:
        """End what lasts in a pipeline that goes, or goes on with other settings."""
        with self._publishing:
            scene, _ = self._scenes.pop(name, (None, None))
        if scene is not None:
            scene.close(why)

    def reset(self, name: str) -> bool:
        """Begin to count a pipeline's lines anew; False: it has none."""
        _, settings = self._scenes.get(name, (None, None))
        if settings is None or not settings.lines:
            return False
        self._totals.of(name).reset()
        return True

    def _name_event(self) -> str:
        return f"{self._stem}-{next(self._numbers)}"

    def _emit(self, event: Event) -> None:
        """Take an event; called by lanes."""
        with self._changed:
            if event.picture is not None:
                if self._pictures >= MOST_PICTURES:
                    event = replace(event, picture=None)
                else:
                    self._pictures += 1
            if len(self._events) >= MOST:
                self.lost += 1
                return
            self._events.append(event)
            self._changed.notify()

    # The thread

    def run(self) -> None:
        """Publish until closed, then what is left."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._closing, TICK_SECONDS)
                events = list(self._events)
                self._events.clear()
                self._pictures = 0
                closing = self._closing
            self._publish_left()
            self._limit_evidence()
            self._publish(events)
            self._count()
            self.actions.flush()
            self._journal.settle(delivered=self._delivered)
            if closing and not self._events:
                break
        self.actions.close(POST_SECONDS)
        deadline = time.monotonic() + END_SECONDS
        while self._client.connected and not self._delivered and time.monotonic() < deadline:
            self._client.counters()  # takes the acknowledgements
            time.sleep(0.01)
        self._journal.close(delivered=self._delivered)

    def close(self) -> None:
        """End what lasts, and the thread."""
        for name in list(self._scenes):
            self._scenes[name][0].close("stopped")
        with self._changed:
            self._closing = True
            self._changed.notify()

    @property
    def _delivered(self) -> bool:
        return not (self._left or self._ended) and self._sinks.settled

    def _publish_left(self) -> None:
        """Publish what an agent that was killed has left: possible copies, and ends."""
        left, ended = self._left, self._ended
        if not (left or ended) or not self._client.connected:
            return
        self._left, self._ended = [], []
        for each in (*left, *ended):
            self._send(each, 1, replayed=True)
        rules = {
            (pipeline.name, rule.name): rule
            for pipeline in self._settings().pipelines
            for rule in pipeline.rules
        }
        for each in ended:
            place = each["pipeline"], each["rule"]
            lasting = self._journal.lasting(*place)
            # Where it holds again, what was switched on is to stay on, and who shows but one state
            # of a rule has seen its end last.
            for again in lasting:
                self._send(again, 1, replayed=True)
            if place in rules and not lasting:
                self._act(rules[place], each)
        words = "%d events that the last run has left are published again, or ended"
        log.info(words, len(left) + len(ended))

    def _publish(self, events: list[Event]) -> None:
        made = [(event, self._payload(event)) for event in events]
        if made:
            self._journal.add([(each, event.rule.qos) for event, each in made])
        for event, each in made:
            self._send(each, event.rule.qos)
            self._act(event.rule, each)
            if event.picture is not None:
                self._publish_picture(event)

    def _act(self, rule: Rule, made: Payload) -> None:
        state = made["state"]
        for action in rule.do:
            if action.on in {"all", state} or (action.on, state) == ("begin", "once"):
                self.actions.act(action, made)

    def _payload(self, event: Event) -> Payload:
        device = self._topics.device
        clock = self._credible(event.time_ns)
        return payload(event, device, self._session, clock=clock)

    def _send(self, made: Payload, qos: int, *, replayed: bool = False) -> None:
        self._sinks.give(lambda sink: sink.event(made, qos, replayed=replayed))

    def _publish_picture(self, event: Event) -> None:
        try:
            data = render(event)
        except SampleError as problem:
            log.warning("picture of %s: %s", event.id, problem)
            return
        keep_mb = self._settings().evidence.keep_mb
        if keep_mb:
            self.evidence.keep(event.pipeline, event.id, data, keep_mb)
        self._sinks.give(lambda sink: sink.event_picture(event.pipeline, event.id, data))

    def _limit_evidence(self) -> None:
        """Remove the pictures that the settings allow no more, at the start and after a reload."""
        keep_mb = self._settings().evidence.keep_mb
        if keep_mb != self._keep_mb:
            self._keep_mb = keep_mb
            self.evidence.prune(keep_mb)

    def _count(self) -> None:
        """Publish what is in the zones and has crossed the lines, once a second at most."""
        now = time.monotonic()
        if now - self._counted < COUNT_SECONDS and not self._closing:
            return
        self._counted = now
        # First to the disk, so that what was published is known after a power cut.
        crossed = self._totals.save()
        for scene, settings in list(self._scenes.values()):
            if not (settings.zones or settings.lines):
                continue
            if not (scene.changed or settings.name in crossed):
                continue
            made = {
                "schema": payloads.SCHEMA,
                "zones": scene.counts(),
                **self._totals.of(settings.name).of([line.name for line in settings.lines]),
            }
            with self._publishing:
                if self._scenes.get(settings.name, (None,))[0] is scene:
                    self._give_counts(settings.name, made)

    def _give_counts(self, pipeline: str, made: Payload) -> None:
        self._sinks.give(lambda sink: sink.counts(pipeline, made))

    def _count_topics(self) -> list[str]:
        return [
            self._topics.count(name)
            for name, (_, settings) in list(self._scenes.items())
            if settings.zones or settings.lines
        ]

    # For health

    def problems(self) -> list[str]:
        """Return why the device is degraded."""
        to = {
            action.http or MESSAGES
            for _, settings in list(self._scenes.values())
            for rule in settings.rules
            for action in rule.do
        }
        why = self.actions.problem(to)
        found = [f"action: {why}"] if why else []
        return [*found, f"events: {self.lost} were lost for want of room"] if self.lost else found

    def health(self) -> dict[str, Any]:
        """Return what health publishes of actions."""
        return {"done": self.actions.done, "failed": self.actions.failed}
