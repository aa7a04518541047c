"""A model on what gives the first right result soonest, until what suits it has been found."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.containment import contained
from ..core.errors import AgentError, ModelError
from ..inference.engines.registry import capabilities
from ..inference.quick_check import check_quick
from .golden_check import GoldenCheck, is_held_to_golden

if TYPE_CHECKING:
    from ..core.types import Kind
    from ..inference.engines.engine import CheckedNetwork, EngineChoice
    from ..inference.model import Model
    from ..models.manifest import ModelFolder


def begin_quick(checked: CheckedNetwork) -> Any:
    """Load a network that `check_quick` has checked.

    Returns:
        For `load_quick`.

    Raises:
        EngineError: it has to be loaded in another way.
    """
    with contained(checked.path.name):
        return import_module(capabilities(checked.choice.engine).quick_module).QuickLoad(checked)


def load_quick(folder: ModelFolder, choice: EngineChoice, kind: Kind, begun: Any = None) -> Model:
    """Load a model the quick way.

    Args:
        folder: of the model.
        choice: engine and threads; on the CPU.
        kind: of sample that it will be given.
        begun: what `begin_quick` has returned; None: it is loaded now.

    Raises:
        ModelError: the model is not fit to run.
        EngineError: it has to be loaded in another way.
    """
    # Not needed to begin, and imported meanwhile.
    from ..inference.model import assemble
    from ..inference.preprocess.inputs import fixed_shapes

    if begun is None:
        checked = check_quick(choice, folder.network)
        begun = begin_quick(checked)
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
