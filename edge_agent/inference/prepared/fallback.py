"""A model loaded from its prepared form, with the original network as a fallback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ...core.containment import contained
from ...core.errors import ModelError
from ...core.types import Array, Kind, Tensors
from ...models.manifest import ModelFolder
from ..engines.engine import Engine, EngineChoice, PreparedForm
from ..engines.registry import open_engine
from ..model import Model, assemble
from ..preprocess.inputs import fixed_shapes
from .artifact import Artifact, ArtifactError
from .engine import PreparedEngine, accepts_batches, open_artifact

if TYPE_CHECKING:
    from .load import Load

log = logging.getLogger(__name__)


class FallbackEngine:
    """Runs an artifact, or the original network if that is damaged, without losing a frame."""

    def __init__(
        self, inner: PreparedEngine, folder: ModelFolder, choice: EngineChoice, kind: Kind
    ) -> None:
        """Start with the engine of the artifact, *inner*."""
        self.inner = inner
        self.widened = None
        self.damaged: str | None = None
        """The damage found in the artifact, or None."""
        self._engine: Engine = inner
        self._folder = folder
        self._choice = choice
        self._kind = kind
        self._falling_back = threading.Lock()
        self.label = inner.label
        self.inputs = inner.inputs
        self.outputs = inner.outputs
        self.fold = inner.fold

    @property
    def prepared(self) -> PreparedForm:
        return self

    @property
    def folder(self) -> str:
        return self.inner.artifact.folder

    @property
    def is_streaming(self) -> bool:
        return self.inner.is_streaming

    @property
    def accepts_batches(self) -> bool:
        return accepts_batches(self.inner.artifact)

    @property
    def checksums(self) -> Mapping[str, str]:
        artifact = self.inner.artifact
        known: Mapping[str, str] = artifact.table.get("sha256", {})
        return {artifact.path(name): digest for name, digest in known.items()}

    def finish_load(self, threads: int | None = None) -> bool:
        """Build the permanent session; see `PreparedForm`."""
        with contained(self._folder.manifest.id):
            return self.inner.finish_load(threads)

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network; see `Engine`."""
        try:
            return self._run(self._engine, tensors)
        except ArtifactError as problem:
            return self._run(self._fallback(problem), tensors)

    def _run(self, engine: Engine, tensors: Tensors) -> dict[str, Array]:
        if self.fold is not None and engine.fold is None:
            # The input was prepared for the artifact, which the original network differs from.
            tensors = self.fold.unfold(tensors)
        return engine.infer(tensors)

    def distrust(self, why: str) -> None:
        """Run the original network from now on, because the artifact's files are damaged."""
        with suppress(ArtifactError):
            self._fallback(ArtifactError(why))

    def _fallback(self, problem: ArtifactError) -> Engine:
        if self.is_streaming:
            # The original does not fit in memory. `PrepareTask` makes another artifact.
            if self.damaged is None:
                log.warning("model %s: %s; it is prepared again", self._folder.manifest.id, problem)
            self.damaged = str(problem)
            raise problem
        with self._falling_back:
            if self._engine is self.inner:
                log.warning(
                    "model %s: the original network is used instead of the prepared form: %s",
                    self._folder.manifest.id,
                    problem,
                )
                self.damaged = str(problem)
                from ..folding.find import cut_for

                with contained(self._folder.manifest.id):
                    self._engine = open_engine(
                        self._choice,
                        self._folder.network,
                        fixed_shapes(self._folder.manifest.input, self._kind),
                        cut_for(self._folder, self._kind),
                    )
                self.inner.close()
            return self._engine

    def close(self) -> None:
        self._engine.close()


def load_prepared(
    folder: ModelFolder, choice: EngineChoice, source: Artifact | Load, kind: Kind
) -> Model:
    """Load a model from its artifact, or continue a load in progress.

    Raises:
        ArtifactError: the artifact cannot be used.
    """
    try:
        with contained(folder.manifest.id, ArtifactError):
            engine = open_artifact(choice, source, fixed_shapes(folder.manifest.input, kind))
            return assemble(folder, choice, FallbackEngine(engine, folder, choice, kind), kind)
    except ModelError as problem:
        raise ArtifactError(str(problem)) from problem


def is_streaming(model: Model) -> bool:
    """Whether a model's weights are read for each frame, because it exceeds the budget."""
    prepared = model.engine.prepared
    return prepared is not None and prepared.is_streaming
