"""The models that may be asked: loaded when the first question comes, kept current, split."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Literal

from ..config.settings import Arm, parse_route
from ..core.containment import converted
from ..core.errors import AgentError, EngineError, ModelError, RequestError
from ..core.types import Kind
from ..device.allocator import keep_freed_memory
from ..inference.engines.generator_process import GeneratorProcess
from ..inference.model import Model
from ..models.manifest import ModelFolder
from ..models.store.catalog import Catalog
from ..runtime.pipelines.runner import Runner
from ..runtime.pipelines.sinks import RECENT_SECONDS
from ..runtime.scheduler.requests import RequestQueue
from ..serving.active import Serving
from ..serving.budget import Held
from .errors import RefusedError, StoppingError, UnknownModelError, unknown
from .generators import RETRY_SECONDS, QuestionSplits, open_generator
from .turns import Turns
from .workers import Workers

log = logging.getLogger(__name__)

PIPELINE = "@infer"
ROOM = 1024
"""Most samples waiting for a lane; a question of several rows has several."""
DRAIN_SECONDS = 5.0
STOPPING = "this model takes no questions at the moment; ask again later"


OnFailed = Callable[[Path, str, Literal["ended", "not loaded"]], None]
"""Called with the folder of a language model that has failed, and why."""


@dataclass(slots=True, eq=False)
class Asked:
    """A model that may be asked questions."""

    name: str
    route: str
    """The versions asked, in the form of a pipeline's `model`."""
    of: str
    """The model or route as named in the settings."""
    kind: Kind = "picture"
    queue: RequestQueue[Model] | GeneratorProcess | None = None
    problem: AgentError | None = None
    """Why it could not be opened."""
    failed: tuple[Path | None, float] = (None, -inf)
    """The folder, if there was one, with which it could not be opened at last, and when."""
    note: str | None = None
    """Which version it stands in for, as that is damaged."""
    renewing: Path | None = None
    """The folder of another version of a language model, which is loaded in its place."""
    lost: tuple[float, str] | None = None
    """When the process of a language model last ended by itself, and why."""
    latest: Model | None = None
    """The model that served last; even when closed, it shows which input is accepted."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Callbacks for when it is open or has failed to open; while any are listed, it is opening."""
    turns: Turns = field(default_factory=Turns)
    """Of its questions, while pipelines deliver."""

    @property
    def arm(self) -> Arm:
        """The version to load, the first of several."""
        return parse_route(self.route)[0]


class AskedModels:
    """The models that may be asked. Any thread may call."""

    def __init__(
        self,
        runner: Runner,
        catalog: Catalog,
        workers: Workers,
        on_failed: OnFailed,
        clock: Callable[[], float],
    ) -> None:
        """Load nothing yet; *workers* do what waits for a model."""
        self._runner = runner
        self._catalog = catalog
        self._workers = workers
        self._clock = clock
        self._lock = threading.Lock()
        """Guards everything below."""
        self._models: dict[str, Asked] = {}
        self._on_failed = on_failed
        self._splits = QuestionSplits(catalog)
        runner.active.loader.engines.budget.holders.append(self.held)

    def routes(self) -> dict[str, str]:
        """By name of each model that may be asked: its versions, like a pipeline's `model`."""
        return {
            text.partition(",")[0].partition("@")[0].strip(): text
            for text in self._runner.settings.infer.models
        }

    def settings_changed(self) -> None:
        """Forget models that may no longer be asked, or whose split has changed."""
        routes, priority = self.routes(), self._runner.settings.infer.priority
        with self._lock:
            gone = [
                each
                for each in self._models.values()
                # One that only pipelines ask about their events has no route.
                if not self._may_be_asked(each.name)
                or routes.get(each.name, each.name) != each.of
                or (isinstance(each.queue, RequestQueue) and each.queue.priority != priority)
            ]
            self._models = {key: one for key, one in self._models.items() if one not in gone}
        for each in gone:
            self._close(each.queue)

    def _close(self, queue: RequestQueue[Model] | GeneratorProcess | None) -> None:
        if isinstance(queue, GeneratorProcess):
            queue.close()
        elif queue is not None:
            self._runner.refuse(queue)

    def when_open(self, model: str, version: str | None, work: Callable[[Asked], None]) -> None:
        """Have a worker do something once a model is loaded, or loading has failed."""
        if not self._may_be_asked(model):
            # Removed from the settings since it was admitted.
            unknown_model = UnknownModelError(unknown(model, list(self.routes())))
            self._workers.do(partial(work, Asked(model, model, model, problem=unknown_model)))
            return
        with self._lock:
            asked = self._asked(model, version)
            since = self._clock() - asked.failed[1]
            failed = asked.problem is not None and asked.kind == "generate"
            if asked.queue is not None or (failed and since < RETRY_SECONDS):
                self._workers.do(partial(work, asked))
                return
            asked.waiting.append(partial(work, asked))
            if len(asked.waiting) > 1:
                return
        # Not in a worker, so that other models can be asked meanwhile.
        self._runner.threads.spawn("loader", partial(self._load, asked), patient=True)

    def _may_be_asked(self, name: str) -> bool:
        """Whether others may ask a model, or a pipeline asks it about its events."""
        pipelines = self._runner.settings.pipelines
        return name in self.routes() or any(ask.model == name for p in pipelines for ask in p.ask)

    def _asked(self, model: str, version: str | None) -> Asked:
        of = self.routes().get(model, model)
        arms = parse_route(of) if "," in of else ()
        pinned = {arm.version for arm in arms}
        # A version of several has its own queue; one that none of them names may be the live one.
        if version is not None and version in pinned:
            route = f"{model}@{version}"
        elif version is not None and None in pinned:
            route = model
        else:  # each version of a language model has its own process
            route = (self._splits.choose(arms) if arms else None) or of
        return self._models.setdefault(route, Asked(model, route, of))

    def _load(self, asked: Asked) -> None:
        """Open the queue of a model, unless the settings have changed when it is loaded."""
        queue = self._open(asked)
        with self._lock:
            kept = self._models.get(asked.route) is asked
            asked.queue, waiting = queue if kept else None, asked.waiting
            asked.waiting = []
        if not kept:
            self._close(queue)
            self._runner.active.on_change()
        for work in waiting:
            self._workers.do(work)

    def _open(self, asked: Asked) -> RequestQueue[Model] | GeneratorProcess | None:
        """Return the queue of a model, after loading what is not loaded yet; None: it failed."""
        queue, problem, path = None, None, self._path(asked)
        try:
            queue = self._opened(asked)
        except AgentError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - any failure is the model's
            problem = converted(error, asked.name)
        if problem is not None:
            self._fail(asked, problem, path)
        else:
            asked.problem = None
        return queue

    def _fail(self, asked: Asked, problem: AgentError, path: Path | None) -> None:
        asked.failed = path, self._clock()
        if str(problem) != str(asked.problem):
            log.error("model %s", problem)
        asked.problem = problem
        if path is not None and asked.kind == "generate":
            self._on_failed(path, str(problem), "not loaded")

    def _opened(self, asked: Asked) -> RequestQueue[Model] | GeneratorProcess:
        from ..inference.fit import kind_of
        from ..models.describing import inspect_network

        folder, settings = self._find(asked), self._runner.settings
        if folder.manifest.task == "generate":
            asked.kind = "generate"
            live = self._live(asked)
            if live.path != folder.path:
                asked.renewing = live.path
                asked.note = f"{live.manifest.id}: is damaged; {folder.manifest.version} answers"
            budget = self._runner.active.loader.engines.budget
            return open_generator(folder, settings, budget, partial(self._lost, asked, folder.path))
        known = {each.kind for each in self._runner.active.servings_of(asked.name)}
        asked.kind = known.pop() if known else kind_of(folder, inspect_network(folder.network))
        if asked.kind == "picture":
            keep_freed_memory()
        return self._runner.accept(
            *(f"{PIPELINE}/{asked.route}", asked.route, asked.kind),
            room=ROOM,
            priority=settings.infer.priority,
        )

    def _find(self, asked: Asked) -> ModelFolder:
        return self._runner.active.find(asked.arm.name, asked.arm.version)

    def _live(self, asked: Asked) -> ModelFolder:
        """Find the version to be asked without reading its files, which may take long."""
        return self._catalog.find(asked.arm.name, asked.arm.version)

    def _path(self, asked: Asked) -> Path | None:
        """Return the folder that would be loaded, unless it is damaged; None: there is none."""
        with suppress(ModelError):
            return self._live(asked).path
        return None

    def _lost(self, asked: Asked, path: Path, why: str) -> None:
        """Note that a language model's process has ended; the next question starts another."""
        log.error("model %s", why)
        self._on_failed(path, why, "ended")
        with self._lock:
            asked.queue, asked.lost = None, (self._clock(), why)

    def serving(self, asked: Asked) -> tuple[Model | GeneratorProcess, list[Serving]]:
        """Return the model that will probably answer, and all that may."""
        if asked.queue is None:
            raise asked.problem or StoppingError(STOPPING, DRAIN_SECONDS)
        if isinstance(asked.queue, GeneratorProcess):
            return asked.queue, []
        servings = self._runner.answering(asked.queue)
        for serving in servings:
            if serving.model is not None:
                asked.latest = serving.model
                if (why := self._why_not(serving.model)) is not None:
                    raise RequestError(why)
                return serving.model, servings
        for serving in servings:
            if serving.problem is not None:
                raise RequestError(f"model {serving.reference}: {serving.problem}")
        if asked.latest is not None:
            return asked.latest, servings  # it is being exchanged; submitted questions wait
        raise RefusedError(f"model {asked.name} is being loaded; ask again", 1.0)

    def _why_not(self, model: Model) -> str | None:
        """Return why a loaded model takes no questions, or None if it does."""
        verdicts = self._runner.active.loader.engines.verdicts
        why = None if verdicts is None else verdicts.why_not_asked(model.place)
        return why and f"model {model.id}: {why}"

    def held(self) -> list[Held]:
        """List the language models in memory."""
        with self._lock:
            asked = list(self._models.values())
        return [
            Held(each.queue.folder, each.arm.version is None)
            for each in asked
            if isinstance(each.queue, GeneratorProcess)
        ]

    def tick(self) -> None:
        """Load what is live now in place of another version; called every second or so."""
        with self._lock:
            opened = list(self._models.values())
        for asked in opened:
            if asked.problem is not None and self._path(asked) not in {None, asked.failed[0]}:
                asked.problem = None  # the next question loads it, unless it is loaded already
            if isinstance(asked.queue, GeneratorProcess):
                asked.queue.tick()
                self._keep_current(asked, asked.queue)

    def _keep_current(self, asked: Asked, queue: GeneratorProcess) -> None:
        """Load another version of a language model that is live; until then this one answers."""
        engines = self._runner.active.loader.engines
        try:
            folder = queue.folder if queue.closed else self._live(asked)
        except ModelError:
            place = queue.folder.path
            stored = place.is_relative_to(self._catalog.store.models)
            if asked.arm.version is not None and stored and not place.exists():
                self._forget(asked, queue)  # it has been rejected
            return  # else none is live: the loaded one stays
        if folder.path == queue.folder.path:
            asked.renewing = asked.note = None
        elif folder.path == asked.renewing:
            return  # it is being loaded, or another one stands in for it
        else:
            try:
                engines.budget.check(folder)
            except EngineError as problem:  # there is no room for it: the loaded one stays
                self._fail(asked, problem, folder.path)
                return
        if queue.closed or (
            folder.path != queue.folder.path
            and not (engines.may_stand_beside(folder) and engines.budget.fits_beside(folder))
        ):
            self._forget(asked, queue)  # the next question loads it
        elif folder.path != queue.folder.path:
            asked.renewing = folder.path
            self._runner.threads.spawn("loader", partial(self._renew, asked, queue), patient=True)

    def _forget(self, asked: Asked, queue: GeneratorProcess) -> None:
        with self._lock:
            self._models.pop(asked.route, None)
        queue.close()

    def _renew(self, asked: Asked, queue: GeneratorProcess) -> None:
        fresh = Asked(asked.name, asked.route, asked.of)
        fresh.queue = self._open(fresh)
        with self._lock:
            # Not if its process has ended, or it may not be asked any more.
            wanted = self._models.get(asked.route) is asked and asked.queue is queue
            if wanted and fresh.queue is not None:
                self._models[asked.route] = fresh
            asked.problem, asked.failed = fresh.problem, fresh.failed
        gone = queue if wanted else fresh.queue
        if fresh.queue is not None and isinstance(gone, GeneratorProcess):
            gone.close()

    def replaced(self, asked: Asked) -> bool:
        """Whether others are asked through another queue meanwhile."""
        with self._lock:
            return self._models.get(asked.route) is not asked

    def close(self, seconds: float) -> None:
        """End language models' processes, each within *seconds*."""
        with self._lock:
            queues = [each.queue for each in self._models.values()]
        for queue in queues:
            if isinstance(queue, GeneratorProcess):
                queue.close()
                queue.join(seconds)

    def problems(self) -> list[str]:
        """Return which models cannot be loaded or asked, or whose process has just ended."""
        since = self._clock() - RECENT_SECONDS
        with self._lock:
            asked = list(self._models.values())
        lost = [each.lost[1] for each in asked if each.lost is not None and each.lost[0] > since]
        notes = [each.note for each in asked if each.note is not None]
        names = self.routes()
        loaded = [s.model for s in self._runner.active.all() if s.arm.name in names]
        return [
            *(f"model {why}" for why in (*lost, *notes, *(a.problem for a in asked if a.problem))),
            *(why for model in loaded if model and (why := self._why_not(model)) is not None),
        ]
