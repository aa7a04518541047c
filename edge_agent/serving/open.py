"""Loads a model in one of the ways of `choice`.

Imported before NumPy and the engines: each way imports only what it needs.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.containment import contained
from ..core.errors import AgentError, EngineError, ModelError
from ..core.frozen import record
from ..inference.engines.registry import capabilities, check_quick
from .golden_check import GoldenCheck, is_held_to_golden

if TYPE_CHECKING:
    from ..core.types import Kind
    from ..inference.engines.engine import CheckedNetwork, EngineChoice
    from ..inference.model import Model
    from ..inference.prepared.artifact import Artifact
    from ..inference.prepared.load import Load
    from ..models.manifest import ModelFolder


@record
class Forms:
    """The prepared forms of this device's models."""

    state: Path
    """The state folder, which contains them."""
    budget_mb: int
    """Memory limit for all models together, MiB; 0: no limit."""

    def find(
        self, folder: ModelFolder, choice: EngineChoice, kind: Kind, *, make: bool = False
    ) -> Artifact | None:
        """Find the prepared form of a model, or *make* it; return None if there is none.

        Raises:
            ModelError: a file of the model cannot be read.
            ArtifactError: the form cannot be made.
        """
        from ..inference.prepared.compile.cache import find, prepare
        from ..models.store.store import Store

        form = find(self.state, folder.path, choice, kind, self.budget_mb)
        if form is None and make:
            form = prepare(Store(self.state), folder, choice, kind, budget_mb=self.budget_mb)
        return form

    def to_json(self) -> dict[str, Any]:
        """Return the forms' location as JSON, for another process."""
        return {**asdict(self), "state": str(self.state)}


def open_prepared(
    folder: ModelFolder,
    choice: EngineChoice,
    form: Artifact | Load,
    kind: Kind,
    *,
    threads: int | None = None,
) -> Model:
    """Load a model from its prepared form, for the long run.

    Args:
        folder: the model's folder.
        choice: the engine, with the threads of its first frame.
        form: the form to load, or a load that has begun.
        kind: the kind of its samples.
        threads: threads of one inference in the long run; 0: the engine's own number; None:
            neither that nor a warm-up, for an immediate first result.

    Raises:
        EngineError: it cannot be run this way.
    """
    from ..inference.prepared.fallback import load_prepared

    model = load_prepared(folder, choice, form, kind)
    if threads is None:
        return model
    try:
        if model.engine.prepared is not None:
            model.engine.prepared.finish_load(threads or None)
        model.warm_up()
    except AgentError:
        model.close()
        raise
    return model


def open_streamed(
    folder: ModelFolder, choice: EngineChoice, kind: Kind, forms: Forms, *, checked: bool
) -> Model:
    """Load a model larger than the memory budget, reading its weights for every frame.

    That is slower, but possible. Its prepared form is created if there is none.

    Raises:
        ModelError: the model is not fit to run.
        EngineError: it cannot be run this way.
    """
    from ..models.files.check_onnx import check_network

    if not checked:
        check_network(folder.network)
    form = forms.find(folder, choice, kind, make=True)
    if form is None:
        raise EngineError(f"{folder.manifest.id}: has no prepared form to be streamed from")
    return open_prepared(folder, choice, form, kind)


def begin_quick(checked: CheckedNetwork) -> Any:
    """Load a network that `check_quick` has checked.

    Returns:
        The argument *begun* of `open_quick`.

    Raises:
        EngineError: the network cannot be loaded this way.
    """
    with contained(checked.path.name):
        return import_module(capabilities(checked.choice.engine).quick_module).QuickLoad(checked)


def open_quick(folder: ModelFolder, choice: EngineChoice, kind: Kind, begun: Any = None) -> Model:
    """Load a model lightly optimized, for the fastest first correct result.

    Raises:
        ModelError: the model is not fit to run.
        EngineError: it must be loaded in another way.
    """
    # Not needed to begin the load; imported meanwhile.
    from ..inference.model import assemble
    from ..inference.preprocess.inputs import fixed_shapes

    if begun is None:
        begun = begin_quick(check_quick(choice, folder.network))
    with contained(folder.manifest.id, ModelError):
        engine = begun.engine(fixed_shapes(folder.manifest.input, kind))
        try:
            model = assemble(folder, choice, engine, kind)
        except AgentError:
            engine.close()
            raise
    model.loaded_quickly = True
    if is_held_to_golden(folder):
        model.check = GoldenCheck()
    return model
