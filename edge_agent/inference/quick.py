"""A model on what gives the first right result soonest, until what suits it has been found."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.containment import contained
from ..core.errors import AgentError, ModelError
from .engines.registry import ENGINES, capabilities
from .model import Model, assemble
from .preprocess.inputs import fixed_shapes

if TYPE_CHECKING:
    from pathlib import Path

    from ..core.types import Kind
    from ..models.manifest import ModelFolder
    from .engines.engine import EngineChoice


def quick_engines(network: Path) -> list[str]:
    """List the engines that have a quick way to load such a network."""
    suffix = network.suffix.lower()
    known = {name: capabilities(name) for name in ENGINES}
    return [name for name, each in known.items() if each.quick_module and suffix in each.formats]


def begin_quick(engine: str, choice: EngineChoice, network: Path) -> Any:
    """Check a network and load it the quick way of an engine.

    Returns:
        For `load_quick`.

    Raises:
        ModelError: the network is not fit to run.
        EngineError: it has to be loaded in another way.

    """
    with contained(network.name):
        return import_module(capabilities(engine).quick_module).QuickLoad(choice, network)


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
    if begun is None:
        begun = begin_quick(choice.engine, choice, folder.network)
    with contained(folder.manifest.id, ModelError):
        engine = begun.engine(fixed_shapes(folder.manifest.input, kind))
        try:
            model = assemble(folder, choice, engine, kind)
        except AgentError:
            engine.close()
            raise
    model.provisional = True
    return model
