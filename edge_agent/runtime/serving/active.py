"""Which loaded model stands behind each name that a pipeline uses, and how it is exchanged."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ...config.settings import Arm
from ...core.errors import AgentError, BarredError, ModelError
from ...core.frozen import record
from ...core.listeners import Listeners
from ...core.names import version_key
from ...core.types import Kind
from ...device.allocator import trim_memory
from ...inference.model import Model
from ...models.manifest import ModelFolder
from ..scheduler.board import Board

if TYPE_CHECKING:
    # Not on the way to the first result.
    from ...models.store.catalog import Library
    from .loader import ModelLoader
    from .shadow import Shadow

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0


@record
class Exchange:
    """One model in another's place."""

    retired: list[Model]
    """What serves nothing any more; to be retired."""
    swap_ms: float
    frames_dropped: int


@dataclass(slots=True, eq=False)
class Serving:
    """What "face" or "face@3" stands for at the moment."""

    arm: Arm
    kind: Kind
    model: Model | None = None
    problem: str | None = None
    """Why there is no model."""
    broken: bool = False
    """The model is there but not fit to run, rather than not there."""
    shadow: Shadow | None = None
    """A candidate that looks at the same frames."""
    passed: list[str] = field(default_factory=list)
    """Engines that should have served it and could not."""
    lazy: bool = False
    """Loaded when it is first needed, and unloaded when it has nothing to do."""
    crops: int = 1
    """As how many parts of one frame it may be given, as a second stage; 1: it is none."""

    @property
    def reference(self) -> str:
        return self.arm.reference


class ActiveModels:
    """All servings of the agent; models are built by one thread at a time."""

    def __init__(
        self,
        board: Board[Model],
        library: Callable[[], Library],
        loader: Callable[[], ModelLoader],
        *,
        flows: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        """Begin without any model.

        Args:
            board: whose frames go through them.
            library: gives what models there are; asked when first needed.
            loader: gives how they are loaded; likewise.
            flows: whether any frames are to be expected for a model.

        """
        self._board = board
        self._give_library = library
        self._give_loader = loader
        self._building = threading.Lock()
        self._all: dict[tuple[str, Kind], Serving] = {}
        self.on_change = Listeners()
        """Called when another model serves, or none."""
        self.flows = flows

    @cached_property
    def _library(self) -> Library:
        return self._give_library()

    @cached_property
    def loader(self) -> ModelLoader:
        """How models are loaded on this device."""
        return self._give_loader()

    def serving_for(self, arm: Arm, kind: Kind) -> Serving:
        """Give the serving of *arm*, without a model if it is new."""
        return self._all.setdefault((arm.reference, kind), Serving(arm, kind))

    def all(self) -> list[Serving]:
        return list(self._all.values())

    def put(self, arm: Arm, kind: Kind, model: Model) -> None:
        """Have a model serve that was loaded elsewhere."""
        serving = self.serving_for(arm, kind)
        with self._building, self._board.boundary():
            if serving.model is None:
                serving.model = model

    def load_all(self) -> None:
        """Load every model that is needed and not there."""
        for serving in self.all():
            if serving.model is None and not serving.lazy:
                self.load(serving)

    def load(self, serving: Serving) -> None:
        with self._building:
            if serving.model is not None:
                return
            folder = None
            try:
                folder = self._library.find(serving.arm.name, serving.arm.version)
                model, passed = self._shared(folder, serving) or self.loader.load(
                    folder, serving.kind
                )
            except AgentError as problem:
                # A model that is left alone for its crashes is no reason to end: another may come.
                serving.broken = not isinstance(problem, BarredError) and (
                    folder is not None or not self._absent(serving)
                )
                if serving.problem != str(problem):
                    log.error("model %s: %s", serving.reference, problem)  # noqa: TRY400 - one line, no traceback
                serving.problem = str(problem)
            else:
                with self._board.boundary():
                    # A rollback or a push may have put another version there meanwhile.
                    overtaken = serving.model is not None
                    if not overtaken:
                        serving.model = model
                if overtaken:
                    if not any(other.model is model for other in self._all.values()):
                        model.close()
                    return
                serving.passed, serving.problem, serving.broken = passed, None, False
                for reason in passed:
                    log.warning("model %s: passed over %s", serving.reference, reason)
                log.info(
                    "model %s is live as %s on %s", serving.reference, model.id, model.engine.label
                )
        self.on_change()

    def _absent(self, serving: Serving) -> bool:
        """Whether nothing is meant by it, or nothing but what is yet to be tried: it may come."""
        name, version = serving.arm.name, serving.arm.version
        meant = None if version is None else version_key(version)
        return not any(
            entry.accepted
            and (meant is None or entry.version is None or version_key(entry.version) == meant)
            for entry in self._library.entries(name)
        )

    def _shared(self, folder: ModelFolder, serving: Serving) -> tuple[Model, list[str]] | None:
        """Find the same version already loaded under another reference: "face" and "face@3"."""
        for other in self._all.values():
            model = other.model
            if (
                model is not None
                and other.kind == serving.kind
                and model.folder.path == folder.path
            ):
                return model, other.passed
        return None

    def servings_of(self, name: str) -> list[Serving]:
        """List the servings that follow the live version of a model."""
        return [s for s in self._all.values() if s.arm.name == name and s.arm.version is None]

    def pins(self) -> set[tuple[str, str]]:
        """List name and version of what pipelines have pinned."""
        return {
            (s.arm.name, s.arm.version) for s in self._all.values() if s.arm.version is not None
        }

    def exchange(self, replacements: Mapping[Kind, Model], name: str) -> Exchange:
        """Put new models in the place of what serves *name* now, between two frames.

        Nothing is closed yet: the frames that are on their way through the old models finish.
        """
        start = time.perf_counter()
        before = self.lost_frames()
        with self._board.boundary():
            servings = self.servings_of(name)
            old = {id(s.model): s.model for s in servings if s.model is not None}
            for serving in servings:
                if serving.kind in replacements:
                    serving.model = replacements[serving.kind]
                    serving.problem, serving.broken, serving.shadow = None, False, None
            still = {id(s.model) for s in self._all.values()}
        took = (time.perf_counter() - start) * 1e3
        dropped = self.lost_frames() - before
        self.on_change()
        return Exchange([model for key, model in old.items() if key not in still], took, dropped)

    def unload_idle(self, seconds: float) -> None:
        """Unload lazy models that have had nothing to do for so long."""
        before = time.monotonic() - seconds
        for serving in self.all():
            with self._board.boundary():
                model = serving.model
                idle = (
                    model is not None
                    and serving.lazy
                    and not model.users
                    and model.used_at < before
                )
                if idle:
                    serving.model = None
                    shared = any(other.model is model for other in self._all.values())
            if idle and model is not None:
                log.info("model %s: unloaded, it has had nothing to do", model.id)
                if not shared:
                    self.retire(model)
                self.on_change()

    def replace(self, old: Model, new: Model) -> bool:
        """Put a model in the place of another that loads the same files, between two frames.

        Returns:
            False, and nothing is done, where the other does not serve any more.

        """
        with self._board.boundary():
            servings = [serving for serving in self._all.values() if serving.model is old]
            for serving in servings:
                serving.model = new
            if servings:
                # It is the same version, and goes on counting.
                new.inferred, new.errors = old.inferred + new.inferred, old.errors + new.errors
        if servings:
            self.on_change()
            self.retire(old)
        return bool(servings)

    def reopen(self, old: Model) -> None:
        """Let go of a model and load the same again; frames wait meanwhile."""
        with self._board.boundary():
            servings = [serving for serving in self._all.values() if serving.model is old]
            for serving in servings:
                serving.model = None
        self.retire(old)
        for serving in servings:
            self.load(serving)

    def park(self, name: str) -> Exchange:
        """Take away what serves *name*: frames wait until there is a new one."""
        start = time.perf_counter()
        with self._board.boundary():
            servings = self.servings_of(name)
            old = {id(s.model): s.model for s in servings if s.model is not None}
            for serving in servings:
                serving.model = None
            still = {id(s.model) for s in self._all.values()}
        took = (time.perf_counter() - start) * 1e3
        return Exchange([model for key, model in old.items() if key not in still], took, 0)

    def lost_frames(self) -> int:
        """Count what could be blamed on an exchange: frames that gave way, or failed."""
        accounts = self._board.accounts().values()
        return sum(a.dropped["superseded"] + a.dropped["error"] for a in accounts)

    def release(self, used: set[tuple[str, Kind]]) -> list[Model]:
        """Forget servings that no pipeline uses; gives their models, for `retire`."""
        with self._board.boundary():
            gone = [self._all.pop(key) for key in list(self._all) if key not in used]
            still = {id(serving.model) for serving in self._all.values()}
        models = {id(s.model): s.model for s in gone if s.model is not None}
        return [model for key, model in models.items() if key not in still]

    def retire(self, model: Model) -> None:
        """Close a model when the last frame has left it."""
        if not self._board.drained(model, DRAIN_SECONDS):
            log.error("model %s is stuck in an inference; leaving it in memory", model.id)
            return
        model.close()
        gc.collect()
        # Else the C library keeps what a model of a hundred megabytes has left, piece by piece.
        trim_memory()

    def close(self) -> None:
        for model in {
            id(s.model): s.model for s in self._all.values() if s.model is not None
        }.values():
            if self._board.drained(model, 0.5):
                model.close()


def unusable(servings: Iterable[Serving]) -> ModelError | None:
    """Give the reason where nothing at all can run and no push could be waited for."""
    problems = [serving for serving in servings if serving.model is None]
    if problems and len(problems) == len(list(servings)) and all(s.broken for s in problems):
        return ModelError(str(problems[0].problem))
    return None
