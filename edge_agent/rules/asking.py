"""Asks servers about events, and publishes their answers.

Bounded in number and time, in separate threads: nothing here delays a frame.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..config.asks import Ask, Server
from ..config.settings import Settings
from ..config.templates import fill
from ..core.containment import contained
from ..core.errors import WebError
from ..core.frozen import record
from ..mqtt import payloads
from .actions import SideBySide
from .servers import Answer, Question, ask

log = logging.getLogger(__name__)

MOST = 16
"""Most waiting questions, each with its picture; the oldest are dropped."""
TRIES = 3
PAUSE_SECONDS = 1.0
"""Pause before the second try; twice as long before the third."""
OWN = frozenset({"schema", "device", "session", "pipeline", "seq", "event", "began", "box"})
"""Keys of an event that a model does not need."""
AskLocal = Callable[[str, str, bytes | None, float], tuple[str, int]]
"""Takes a model's name, a text, a JPEG and seconds; returns its answer and the token count."""


@record(eq=False)
class _Asked:
    """A question in progress."""

    ask: Ask
    event: Mapping[str, Any]
    """As published."""
    picture: bytes | None


class Asking:
    """Asks questions, and passes on the answers. One thread calls `run`; others call the rest."""

    def __init__(
        self, settings: Callable[[], Settings], publish: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        """Begin without questions; *publish* takes a pipeline and the payload of an answer."""
        self.answered = 0
        self.failed = 0
        self.skipped = 0
        """Number of events not asked about because of `at_most`."""
        self.local: AskLocal | None = None
        """Asks a model of this device; None: not yet."""
        self._settings = settings
        self._publish = publish
        self._queue = SideBySide(self._carry_out, lambda asked: asked.ask.whom, MOST)
        self._recent: dict[tuple[str, Ask], deque[float]] = {}
        """Times of recent questions by pipeline, monotonic seconds."""
        self._lock = threading.Lock()
        self._failing: dict[str, str] = {}
        """Why the latest question got no answer, by server or model."""

    # Called by the events' thread

    def put(
        self, ask: Ask, event: Mapping[str, Any], picture: bytes | None, *, unseen: bool = False
    ) -> None:
        """Ask about an event soon, unless `at_most` was reached.

        One that is *unseen* has lost its picture, and is reported instead.
        """
        most, seconds = ask.most
        recent = self._recent.setdefault((event["pipeline"], ask), deque(maxlen=most))
        now = time.monotonic()
        if len(recent) == most and now - recent[0] < seconds:
            with self._lock:
                self.skipped += 1
            return
        if unseen:
            self._fail(_Asked(ask, event, None), "there was no room for its picture")
            return
        recent.append(now)
        oldest = self._queue.put(_Asked(ask, event, picture))
        if oldest is not None:
            self._fail(oldest, "too many events wait for it")

    # Called by the thread, and by those of single questions

    def run(self) -> None:
        """Ask waiting questions, one at a time per server, until closed."""
        self._queue.run()

    def close(self, seconds: float) -> None:
        """End within *seconds*; unfinished questions are given up and reported."""
        for asked in self._queue.close(seconds):
            self._fail(asked, "the agent stops")

    def _carry_out(self, asked: _Asked) -> None:
        facts = {key: value for key, value in asked.event.items() if key not in OWN}
        told = {**asked.event.get("anomaly", {}), **asked.event}
        question = Question(
            fill(asked.ask.prompt, told),
            f"The event, as JSON: {payloads.encode(facts).decode()}",
            asked.picture,
        )
        began = time.monotonic()
        until = began + asked.ask.timeout_s
        for number in range(TRIES):
            try:
                with contained("the answer", WebError):  # whatever a server sends
                    answer = self._ask(asked.ask, question, max(0.001, until - time.monotonic()))
            except WebError as problem:
                pause = max(problem.pause_s, PAUSE_SECONDS * 2**number)
                last = number == TRIES - 1 or time.monotonic() + pause >= until
                if not problem.again or last or self._queue.closing.wait(pause):
                    self._fail(asked, str(problem))
                    return
            else:
                break
        ms = payloads.number((time.monotonic() - began) * 1e3, 1)
        tokens = {} if answer.tokens is None else {"tokens": answer.tokens}
        with self._lock:
            self.answered += 1
            self._failing.pop(asked.ask.whom, None)
        self._give(asked, {"text": answer.text, **tokens, "ms": ms})

    def _ask(self, to: Ask, question: Question, seconds: float) -> Answer:
        if to.model is not None:
            if self.local is None:
                raise WebError("the agent is starting")
            text = f"{question.prompt}\n\n{question.facts}"
            return Answer(*self.local(to.model, text, question.picture, seconds))
        servers: Sequence[Server] = self._settings().servers
        server = next((each for each in servers if each.name == to.server), None)
        if server is None:
            raise WebError("the settings have no such server any more", again=False)
        return ask(server, question, seconds)

    def _fail(self, asked: _Asked, why: str) -> None:
        with self._lock:
            self.failed += 1
            begins = asked.ask.whom not in self._failing
            self._failing[asked.ask.whom] = why
        if begins:  # only the first of a series
            log.warning("ask: %s: %s", asked.ask.whom, why)
        self._give(asked, {"error": why})

    def _give(self, asked: _Asked, said: Mapping[str, Any]) -> None:
        event, who = asked.event, asked.ask
        whom = {"model": who.model} if who.server is None else {"server": who.server}
        about = {key: event[key] for key in ("device", "session", "pipeline")}
        payload = {
            "schema": payloads.SCHEMA,
            **about,
            "time": payloads.iso(time.time_ns()),
            "event": event["event"],
            "rule": event["rule"],
            **whom,
            **said,
        }
        self._publish(event["pipeline"], payload)

    # For health

    def problems(self) -> list[str]:
        """Return why there was no answer, for each server and model still in use."""
        wanted = {ask.whom for pipeline in self._settings().pipelines for ask in pipeline.ask}
        with self._lock:
            return [f"ask: {whom}: {why}" for whom, why in self._failing.items() if whom in wanted]

    def health(self) -> dict[str, Any]:
        """Return the counts of answers for health."""
        with self._lock:
            return {"answered": self.answered, "failed": self.failed, "skipped": self.skipped}
