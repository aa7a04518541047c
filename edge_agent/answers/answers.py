"""Answers to others: who may ask what and how much, and what becomes of each question.

A question is admitted first, before its bytes are looked at or even here; then it is parsed, given
to the lanes, and answered, each by whichever thread has time for it. At any moment: asked =
answered + failed + refused + waiting.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from ..core.containment import converted
from ..core.errors import AgentError, RequestError, SampleError
from ..core.frozen import record
from ..core.types import Array, Embeddings, Kind, Outcome, Sample, Timing
from ..inference.model import Model
from ..models.store.catalog import Library
from ..mqtt import payloads
from ..runtime.pipelines.runner import Runner
from ..runtime.scheduler.requests import RequestQueue
from .errors import RefusedError, UnknownModelError
from .workers import Workers

if TYPE_CHECKING:
    from .question import Question  # and NumPy with it

log = logging.getLogger(__name__)

PIPELINE = "@infer"
MOST = 32
"""Questions that are under way at a time."""
MOST_BYTES = 256 * 2**20
"""Of their pictures and tensors, beyond the first."""
ANSWER_SECONDS = 60.0
"""After which a question is given up: an engine hangs, or its model takes too long to load."""
DRAIN_SECONDS = 5.0
STOPPING = "this model takes no questions at the moment; ask again later"
FULL = f"{MOST} questions are being answered; ask again later"


@record
class Answer:
    """What a model has found."""

    sample: Sample
    outcome: Outcome
    warnings: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Asked:
    """A model that may be asked."""

    name: str
    route: str
    """As a pipeline's `model`."""
    kind: Kind = "picture"
    queue: RequestQueue[Model] | None = None
    problem: AgentError | None = None
    """Why it could not be opened."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done once it is open, or cannot be; not empty: it is being opened."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A question that was admitted; `future` gets its answer, or the reason why there is none."""

    model: str
    since: float
    future: Future[Answer] = field(default_factory=Future)
    inner: Future[Outcome] | None = None
    """Of the lanes."""
    found: list[Outcome] = field(default_factory=list)
    """So far, of a question of several samples."""
    held: int = 0
    """Bytes of its arrays."""


class Answers:
    """Answers questions. Any thread may ask; nothing is started or loaded before one does."""

    def __init__(
        self,
        runner: Runner,
        library: Library,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ready = True
        """False: the agent stops, and takes no more questions."""
        self._runner = runner
        self._library = library
        self._clock = clock
        self._workers = Workers("infer", runner.threads)
        self._lock = threading.Lock()
        """Guards all below."""
        self._models: dict[str, _Asked] = {}
        self._open: set[Ticket] = set()
        self._credit, self._credited = inf, clock()
        """Questions that may be asked at once, and when that was so."""
        self._counts = dict.fromkeys(("asked", "answered", "failed", "refused"), 0)
        self._latency_ms: deque[float] = deque(maxlen=1000)
        self._seq = itertools.count()

    # What may be asked

    @property
    def names(self) -> list[str]:
        """The models that may be asked."""
        return list(self._routes())

    @property
    def most_bytes(self) -> int:
        """Of one question."""
        return int(self._runner.settings.infer.max_mb * 2**20)

    def _routes(self) -> dict[str, str]:
        """By name of each model that may be asked: its versions, as a pipeline's `model`."""
        return {
            text.partition(",")[0].partition("@")[0].strip(): text
            for text in self._runner.settings.infer.models
        }

    def settings_changed(self) -> None:
        """Forget the models that may be asked no more, or are split otherwise now."""
        routes, priority = self._routes(), self._runner.settings.infer.priority
        with self._lock:
            gone = [
                each
                for each in self._models.values()
                if routes.get(each.name) != each.route
                or (each.queue is not None and each.queue.priority != priority)
            ]
            for each in gone:
                del self._models[each.name]
        for each in gone:
            if each.queue is not None:
                self._runner.refuse(each.queue)

    # A question

    def admit(self, model: str, size: int = 0) -> Ticket:
        """Admit a question to a model, or refuse it at once.

        Args:
            model: its name.
            size: bytes of it, as far as they are known.

        Raises:
            UnknownModelError: it may not be asked.
            RefusedError: too much is asked at the moment, or the agent stops.
            RequestError: the question is too large.
        """
        with self._lock:
            self._counts["asked"] += 1
            self._counts["refused"] += 1  # taken back below
            if model not in self._routes():
                raise UnknownModelError(_unknown(model, self.names))
            self.check_size(size)
            if not self.ready:
                raise RefusedError(STOPPING, DRAIN_SECONDS)
            if len(self._open) >= MOST:
                raise RefusedError(FULL, 1.0)
            self._take_credit()
            self._counts["refused"] -= 1
            ticket = Ticket(model, self._clock())
            self._open.add(ticket)
            return ticket

    def check_size(self, size: int) -> None:
        """Check that a question is not too large.

        Raises:
            RequestError: it is.
        """
        if size > self.most_bytes:
            most = self._runner.settings.infer.max_mb
            raise RequestError(f"larger than {most:g} MB, which infer.max_mb allows")

    def _take_credit(self) -> None:
        """Count one more question; as many as the settings allow in a second may come at once."""
        rate, now = self._runner.settings.infer.per_s, self._clock()
        saved = self._credit + (now - self._credited) * rate
        self._credit, self._credited = min(saved, max(1.0, rate)), now
        if self._credit < 1.0:
            wait = (1.0 - self._credit) / rate
            raise RefusedError(f"more than infer.per_s = {rate:g} requests a second", wait)
        self._credit -= 1.0

    def ask(self, ticket: Ticket, parse: Callable[[Model, Kind], Question]) -> None:
        """Have a question answered; never waits.

        Args:
            ticket: of the question; its future gets the answer.
            parse: makes the question, given the model that it is for and the kind of its samples.
        """
        with self._lock:
            route = self._routes().get(ticket.model, ticket.model)
            asked = self._models.setdefault(ticket.model, _Asked(ticket.model, route))
            work = partial(self._put, ticket, asked, parse)
            if asked.queue is not None:
                self._workers.do(work)
                return
            asked.waiting.append(work)
            if len(asked.waiting) > 1:
                return
        # Not by a worker: others are asked meanwhile.
        self._runner.threads.spawn("loader", partial(self._load, asked))

    def _load(self, asked: _Asked) -> None:
        """Open the queue of a model, and load what is not there yet."""
        from ..inference.fit import kind_of
        from ..models.describing import inspect_network

        queue = None
        try:
            name, version = asked.name, asked.route.partition(":")[0].partition("@")[2]
            folder = self._library.find(name, version or None)
            known = {each.kind for each in self._runner.active.servings_of(name)}
            asked.kind = known.pop() if known else kind_of(folder, inspect_network(folder.network))
            priority = self._runner.settings.infer.priority
            queue = self._runner.accept(
                *(PIPELINE + "/" + name, asked.route, asked.kind), room=MOST, priority=priority
            )
            asked.problem = None
        except AgentError as problem:
            asked.problem = problem
        except Exception as problem:  # noqa: BLE001 - whatever the model makes of it is its own
            asked.problem = converted(problem, asked.name)
        with self._lock:
            asked.queue, waiting = queue, asked.waiting
            asked.waiting = []
        for work in waiting:
            self._workers.do(work)

    def _put(self, ticket: Ticket, asked: _Asked, parse: Callable[[Model, Kind], Question]) -> None:
        """Parse a question, and give it to the lanes."""
        try:
            queue = asked.queue
            if queue is None:
                raise asked.problem or RefusedError("is being loaded; ask again", 1.0)
            question = parse(self._model(asked, queue), asked.kind)
            self._hold(ticket, question)
            self._submit(ticket, question, queue, question.data)
        except AgentError as problem:
            self._settle(ticket, problem)
            return
        except Exception as problem:  # noqa: BLE001 - a stranger's bytes cost the stranger
            self._settle(ticket, converted(problem, "the question", SampleError))

    def _submit(
        self, ticket: Ticket, question: Question, queue: RequestQueue[Model], data: Array
    ) -> None:
        inner = queue.submit(data, tensors=question.tensors, raw=question.raw)
        ticket.inner = inner
        take = partial(self._take, ticket, question, queue)
        inner.add_done_callback(lambda _: self._workers.do(take))

    def _model(self, asked: _Asked, queue: RequestQueue[Model]) -> Model:
        """Return the model that is likely to answer.

        Raises:
            AgentError: there is none.
        """
        servings = self._runner.answering(queue)
        for serving in servings:
            if serving.model is not None:
                return serving.model
        for serving in servings:
            if serving.problem is not None:
                raise RequestError(f"model {serving.reference}: {serving.problem}")
        raise RefusedError(f"model {asked.name} is being loaded; ask again", 1.0)

    def _hold(self, ticket: Ticket, question: Question) -> None:
        arrays: list[Array] = [*(question.tensors or {"": question.data}).values(), *question.more]
        size = sum(array.nbytes for array in arrays)
        with self._lock:
            held = sum(each.held for each in self._open)
            if held and held + size > MOST_BYTES:
                raise RefusedError(FULL, 1.0)
            ticket.held = size

    def _take(self, ticket: Ticket, question: Question, queue: RequestQueue[Model]) -> None:
        """Take the answer of the lanes; give them the next text of several."""
        assert ticket.inner is not None  # noqa: S101 - it is what was waited for
        try:
            ticket.found.append(ticket.inner.result())
            if len(ticket.found) <= len(question.more):
                if ticket in self._open:  # nobody waits for the rest of one that was given up
                    self._submit(ticket, question, queue, question.more[len(ticket.found) - 1])
                return
            outcome = _joined(ticket.found)
        except CancelledError:
            self._settle(ticket, RefusedError(STOPPING, DRAIN_SECONDS))
        except AgentError as problem:
            self._settle(ticket, problem)
        else:
            picture = question.tensors is None and question.data.ndim == 3
            sample = Sample(
                *(question.data, next(self._seq), time.time_ns(), ticket.since), picture=picture
            )
            self._settle(ticket, Answer(sample, outcome, question.warnings))

    def _settle(self, ticket: Ticket, found: Answer | AgentError) -> None:
        """Give a question its answer, or the reason why there is none; the first one counts."""
        with self._lock:
            if ticket not in self._open:
                return
            self._open.remove(ticket)
            if isinstance(found, Answer):
                self._counts["answered"] += 1
                self._latency_ms.append((self._clock() - ticket.since) * 1e3)
            else:
                self._counts["refused" if isinstance(found, RefusedError) else "failed"] += 1
        if isinstance(found, Answer):
            ticket.future.set_result(found)
        else:
            ticket.future.set_exception(found)

    def give_up(self, ticket: Ticket, why: AgentError | None = None) -> None:
        """Answer no more: whoever has asked has gone, or has sent nothing."""
        if ticket.inner is not None:
            ticket.inner.cancel()
        self._settle(ticket, why or RequestError("nobody waits for the answer any more"))

    # All questions

    def tick(self) -> None:
        """Give up what has taken too long; called every second or so."""
        late = self._clock() - ANSWER_SECONDS
        with self._lock:
            old = [ticket for ticket in self._open if ticket.since < late]
        for ticket in old:
            self.give_up(ticket, RefusedError(f"no answer within {ANSWER_SECONDS:.0f} s", 1.0))

    def drain(self) -> None:
        """Take no more questions, and wait until those under way are answered."""
        with self._lock:
            self.ready = False
            left = list(self._open)
        deadline = time.monotonic() + DRAIN_SECONDS
        for ticket in left:
            try:
                ticket.future.exception(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                break

    def close(self) -> None:
        """End the threads, once what waits for them is done."""
        self._workers.close()

    def health(self) -> dict[str, Any]:
        """Return the counts for health; empty: nothing may be asked, nor has been."""
        with self._lock:
            if not self._routes() and not self._counts["asked"]:
                return {}
            latency = payloads.percentiles(list(self._latency_ms))
            counts = {**self._counts, "waiting": len(self._open), "latency_ms": latency}
            return {"infer": counts}

    def result(self, answer: Answer) -> dict[str, Any]:
        """Return the payload of an answer."""
        identity, sample = self._runner.identity, answer.sample
        age_ms = (self._clock() - sample.since) * 1e3
        payload = payloads.result(
            *(identity.device, identity.session, PIPELINE, sample, answer.outcome), age_ms
        )
        if answer.warnings:
            payload["warnings"] = list(answer.warnings)
        if not identity.credible(sample.time_ns):
            payload["clock"] = payloads.UNSET
        return payload


def ask_payload(payload: bytes) -> Callable[[Model, Kind], Question]:
    """Return what parses a question that has come whole."""

    def parse(model: Model, kind: Kind) -> Question:
        from .question import read_question

        return read_question(payload, model, kind)

    return parse


def _joined(found: list[Outcome]) -> Outcome:
    """Return the outcomes of several texts as one.

    Raises:
        RequestError: versions whose vectors cannot be compared have answered.
    """
    if len(found) == 1:
        return found[0]
    import numpy as np

    if len({each.model for each in found}) > 1:
        raise RequestError("its texts were answered by several versions of the model; ask again")
    vectors = np.concatenate([each.findings.numbers()["embeddings"] for each in found])
    spent = [each.timing for each in found]
    timing = Timing(
        sum(each.preprocess_ms for each in spent),
        sum(each.infer_ms for each in spent),
        sum(each.postprocess_ms for each in spent),
    )
    return replace(found[0], findings=Embeddings(vectors), timing=timing)


def _unknown(model: str, names: list[str]) -> str:
    if not names:
        return "this device answers nobody; name the models in infer.models of its settings"
    return f"model {model} may not be asked here; infer.models has {', '.join(names)}"
