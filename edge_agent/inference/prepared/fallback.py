"""A model from its prepared form, with the model itself to fall back on."""

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
    """Runs an artifact; where that turns out damaged, the network itself, and no frame is lost."""

    def __init__(
        self, inner: PreparedEngine, folder: ModelFolder, choice: EngineChoice, kind: Kind
    ) -> None:
        """Start with the artifact."""
        self.inner = inner
        self.widened = None
        self.damaged: str | None = None
        """The damage found in the artifact."""
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
        """Build the engine that runs fastest in the long run; see `PreparedForm`."""
        with contained(self._folder.manifest.id):
            return self.inner.finish_load(threads)

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network, as every engine does."""
        try:
            return self._run(self._engine, tensors)
        except ArtifactError as problem:
            return self._run(self._fallback(problem), tensors)

    def _run(self, engine: Engine, tensors: Tensors) -> dict[str, Array]:
        if self.fold is not None and engine.fold is None:
            # Frames are prepared for the artifact; the network could not be loaded like that.
            tensors = self.fold.unfold(tensors)
        return engine.infer(tensors)

    def distrust(self, why: str) -> None:
        """Run the network itself from now on: the artifact's files are damaged."""
        with suppress(ArtifactError):
            self._fallback(ArtifactError(why))

    def _fallback(self, problem: ArtifactError) -> Engine:
        if self.is_streaming:
            # The network itself does not fit in memory. `PrepareTask` makes another artifact.
            if self.damaged is None:
                log.warning("model %s: %s; it is prepared again", self._folder.manifest.id, problem)
            self.damaged = str(problem)
            raise problem
        with self._falling_back:
            if self._engine is self.inner:
                log.warning(
                    "model %s: the prepared form is not used, the model itself is: %s",
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
    """Load a model from its artifact, or go on with a load in progress.

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
    """Whether a model's weights come and go with each frame, for it is larger than the budget."""
    prepared = model.engine.prepared
    return prepared is not None and prepared.is_streaming
