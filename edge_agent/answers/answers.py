"""Answers to others: admits questions within limits, and processes each until it is answered.

A question is admitted before its bytes are read or have even arrived; then it is parsed, given to
the lanes, and answered, each step by any thread that is free. At any moment: asked = answered +
failed + refused + waiting.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.containment import converted
from ..core.errors import AgentError, RequestError, SampleError
from ..core.types import Array, Kind, Outcome, Sample
from ..inference.engines.generator import UNLOAD_SECONDS
from ..inference.engines.generator_process import FullError, GeneratorProcess
from ..inference.model import Model
from ..models.store.catalog import Catalog
from ..mqtt import payloads
from ..runtime.pipelines.runner import Runner
from .asked import DRAIN_SECONDS, PIPELINE, ROOM, STOPPING, Asked, AskedModels, OnFailed
from .credit import Credit
from .errors import (
    RefusedError,
    StoppingError,
    TooLargeError,
    UnknownModelError,
    no_version,
    unknown,
)
from .joining import OtherWindowError, joined, submit_parts
from .ticket import Answer, Ticket
from .workers import Workers

if TYPE_CHECKING:
    from .question import Question  # and NumPy with it

log = logging.getLogger(__name__)

MOST = 32
"""Most questions in progress at a time."""
MOST_BYTES = 256 * 2**20
"""Limit for their pictures and tensors together, which a single question may exceed."""
ANSWER_SECONDS = 60.0
"""Time after which a question is given up: an engine hangs, or its model loads too slowly."""
FULL = f"{MOST} questions are being read or answered; ask again later"
NO_ROOM = f"{ROOM} rows or texts of questions wait to be inferred; ask again later"


class Answers:
    """Answers questions. Any thread may ask; nothing is started or loaded before one does."""

    def __init__(
        self,
        runner: Runner,
        catalog: Catalog,
        on_failed: OnFailed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ready = True
        """False: the agent is stopping, and takes no more questions."""
        self._runner = runner
        self.catalog = catalog
        self._clock = clock
        self._workers = Workers("infer", runner.threads, self.behind)
        self.models = AskedModels(runner, catalog, self._workers, on_failed, clock)
        self._lock = threading.Lock()
        """Guards everything below."""
        self._open: set[Ticket] = set()
        self._credit = Credit(clock)
        self._counts = dict.fromkeys(("asked", "answered", "failed", "refused"), 0)
        self._latency_ms: deque[float] = deque(maxlen=1000)
        self._seq = itertools.count()

    # What may be asked

    @property
    def names(self) -> list[str]:
        """The names of the models that may be asked."""
        return list(self.models.routes())

    @property
    def most_bytes(self) -> int:
        """Largest question accepted, bytes."""
        return int(self._runner.settings.infer.max_mb * 2**20)

    def behind(self) -> bool:
        """Whether frames have priority over questions for the processor, too."""
        return bool(self._runner.pipelines)

    # A question

    def admit(self, model: str, size: int = 0, version: str | None = None) -> Ticket:
        """Admit a question to a model, or only to *version*, or refuse it at once.

        Raises:
            UnknownModelError: it may not be asked.
            RefusedError: there are too many questions at the moment, or the agent is stopping.
            TooLargeError: the question is too large.
        """
        with self._lock:
            self._counts["asked"] += 1
            self._counts["refused"] += 1  # undone below
            if model not in self.names:
                raise UnknownModelError(unknown(model, self.names))
            self.check_size(size)
            if not self.ready:
                raise StoppingError(STOPPING, DRAIN_SECONDS)
            if len(self._open) >= MOST:
                raise RefusedError(FULL, 1.0)
            rate = self._runner.settings.infer.per_s
            if wait := self._credit.take(rate, max(1.0, rate)):
                raise RefusedError(f"more than infer.per_s = {rate:g} requests a second", wait)
            self._counts["refused"] -= 1
            ticket = Ticket(model, version, self._clock())
            self._open.add(ticket)
            return ticket

    def admit_own(self, model: str) -> Ticket:
        """Admit a question from this device itself, regardless of the limits for others."""
        ticket = Ticket(model, None, self._clock())
        with self._lock:
            self._counts["asked"] += 1
            self._open.add(ticket)
        return ticket

    def check_size(self, size: int) -> None:
        """Check that a question is not too large."""
        if size > self.most_bytes:
            most = self._runner.settings.infer.max_mb
            raise TooLargeError(f"larger than {most:g} MB, which infer.max_mb allows")

    def ask(self, ticket: Ticket, parse: Callable[[Any, Kind], Question]) -> None:
        """Submit a question; never waits."""
        self.models.when_open(ticket.model, ticket.version, partial(self._begin, ticket, parse))

    def look(self, model: str, version: str | None) -> Future[tuple[Model, list[str]]]:
        """Load a model if necessary; return one of its versions, and the names of all."""
        if model not in self.names:
            raise UnknownModelError(unknown(model, self.names))
        future: Future[tuple[Model, list[str]]] = Future()

        def done(asked: Asked) -> None:
            try:
                found, servings = self.models.serving(asked)
                if isinstance(found, GeneratorProcess):
                    raise UnknownModelError(f"{found.id} is of task generate, without tensors")
                versions = [s.model.manifest.version for s in servings if s.model is not None]
                if version is not None and version not in versions:
                    raise UnknownModelError(no_version(model, version, versions))
            except AgentError as problem:
                future.set_exception(problem)
            else:
                future.set_result((found, versions))

        self.models.when_open(model, version, done)
        return future

    def _begin(self, ticket: Ticket, parse: Callable[[Any, Kind], Question], asked: Asked) -> None:
        put = partial(self._put, ticket, parse, asked)
        if isinstance(asked.queue, GeneratorProcess) or not self._runner.can_give_results():
            put()
        else:
            asked.turns.wait(ticket, partial(self._workers.do, put))

    def _put(self, ticket: Ticket, parse: Callable[[Any, Kind], Question], asked: Asked) -> None:
        """Parse a question, and give it to the lanes."""
        if ticket.future.done():
            return  # given up while it waited for a worker
        try:
            model, servings = self.models.serving(asked)
            if isinstance(model, GeneratorProcess):  # its first word may be told before the last
                _check_version(ticket, model.folder.manifest.version)
            question = parse(model, asked.kind)
            if len(servings) > 1 and (question.rows > 1 or question.more):
                raise SampleError("of several versions: ask one at a time, or name a version")
            self._hold(ticket, question)
            if asked.kind == "picture" and question.tensors is None and isinstance(model, Model):
                question = replace(question, early=model.prepare_data(question.data))
            # The bytes are kept only where they may have to be read again.
            again = partial(self._put, ticket, parse) if question.cut else None
            self._submit(ticket, question, asked, again)
        except AgentError as problem:
            if isinstance(problem, RefusedError) and self.models.replaced(asked):
                self.ask(ticket, parse)
            else:
                self._settle(ticket, problem)
        except Exception as problem:  # noqa: BLE001 - bad bytes only fail their question
            self._settle(ticket, converted(problem, "the question", SampleError))

    def _submit(
        self,
        ticket: Ticket,
        question: Question,
        asked: Asked,
        again: Callable[[Asked], None] | None = None,
    ) -> None:
        queue = asked.queue
        if queue is None:
            raise StoppingError(STOPPING, DRAIN_SECONDS)
        inner: list[Future[Outcome]] = []
        if isinstance(queue, GeneratorProcess):
            try:
                inner = [queue.submit(question.data.tobytes(), question.more, ticket.hear)]
            except FullError as problem:
                raise RefusedError(str(problem), 1.0) from None
        else:
            inner = submit_parts(queue, question, RefusedError(NO_ROOM, 1.0))
        left = len(inner)
        with self._lock:
            given_up = ticket not in self._open
            ticket.inner = () if given_up else tuple(inner)

        def take(_: object) -> None:
            nonlocal left
            with self._lock:
                left -= 1
                last = not left
            if last and (question.raw or question.rows > 1):
                self._workers.do(partial(self._take, ticket, question, asked, again))
            elif last:
                # A short answer takes the lane less time than another thread would to wake up.
                self._take(ticket, question, asked, again)

        for one in inner:
            one.add_done_callback(take)
            if given_up:
                one.cancel()

    def _hold(self, ticket: Ticket, question: Question) -> None:
        arrays: list[Array] = [*(question.tensors or {"": question.data}).values(), *question.more]
        size = sum(array.nbytes for array in arrays)
        with self._lock:
            held = sum(each.held for each in self._open)
            if held and held + size > MOST_BYTES:
                raise RefusedError(
                    f"decoded, it takes {size // 2**20} MiB, and others that are being answered "
                    f"take {held // 2**20} MiB of {MOST_BYTES // 2**20}; ask again later",
                    1.0,
                )
            ticket.held = size

    def _take(
        self,
        ticket: Ticket,
        question: Question,
        asked: Asked,
        again: Callable[[Asked], None] | None,
    ) -> None:
        """Join the outcomes of the lanes into the answer to a question."""
        if not ticket.inner:
            return  # given up meanwhile
        try:
            outcomes = [one.result() for one in ticket.inner]
            if len({outcome.model for outcome in outcomes}) > 1:
                # The model was exchanged between rows, but one version must answer all of them.
                self._submit(ticket, question, asked)
                return
            outcome = joined(outcomes)
            _check_version(ticket, outcome.model.partition("@")[2])
        except OtherWindowError as problem:
            if ticket.version not in {None, problem.version} or again is None:
                self._settle(ticket, problem)
            else:  # it has its turn
                self.models.when_open(ticket.model, problem.version, again)
        except CancelledError:
            self._settle(ticket, StoppingError(STOPPING, DRAIN_SECONDS))
        except AgentError as problem:
            self._settle(ticket, problem)
        except Exception as problem:  # noqa: BLE001 - rows may give outputs of different shapes
            self._settle(ticket, converted(problem, "joining the rows", SampleError))
        else:
            picture = question.tensors is None and question.data.ndim == 3
            sample = Sample(
                *(question.data, next(self._seq), time.time_ns(), ticket.since), picture=picture
            )
            self._settle(ticket, Answer(sample, outcome, question.warnings))

    def _settle(self, ticket: Ticket, found: Answer | AgentError) -> None:
        """Settle a question with its answer or its error; only the first one counts."""
        with self._lock:
            if ticket not in self._open:
                return
            self._open.remove(ticket)
            # A cycle would keep a picture in memory until the next garbage collection.
            inner, ticket.inner = ticket.inner, ()
            if isinstance(found, Answer):
                self._counts["answered"] += 1
                self._latency_ms.append((self._clock() - ticket.since) * 1e3)
            else:
                self._counts["refused" if isinstance(found, RefusedError) else "failed"] += 1
        for one in inner:
            one.cancel()  # unless it is done
        if isinstance(found, Answer):
            ticket.future.set_result(found)
        else:
            ticket.future.set_exception(found.with_traceback(None))

    def give_up(self, ticket: Ticket, why: AgentError | None = None) -> None:
        """Give up a question whose sender has gone, or has sent nothing."""
        self._settle(ticket, why or RequestError("nobody is waiting for the answer anymore"))

    # All questions

    def tick(self) -> None:
        """Give up questions that have taken too long; called every second or so."""
        late = self._clock() - ANSWER_SECONDS
        with self._lock:
            old = [ticket for ticket in self._open if max(ticket.since, ticket.heard) < late]
        self.models.tick()
        for ticket in old:
            self.give_up(ticket, RefusedError(f"no answer within {ANSWER_SECONDS:.0f} s", 1.0))

    def drain(self) -> None:
        """Stop taking questions, and wait until those in progress are answered."""
        with self._lock:
            self.ready = False
            left = list(self._open)
        deadline = time.monotonic() + DRAIN_SECONDS
        for ticket in left:
            try:
                ticket.future.exception(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                self.give_up(ticket, StoppingError(STOPPING, DRAIN_SECONDS))

    def close(self) -> None:
        """End the threads once their waiting work is done."""
        self.models.close(UNLOAD_SECONDS)
        self._workers.close()

    def health(self) -> dict[str, Any]:
        """Return the counts for health; empty if nothing may be asked or has been."""
        with self._lock:
            if not self.names and not self._counts["asked"]:
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


def _check_version(ticket: Ticket, served: str) -> None:
    if ticket.version not in {None, served}:
        raise UnknownModelError(no_version(ticket.model, ticket.version, [served]))
