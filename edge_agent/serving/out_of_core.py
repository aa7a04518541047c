"""Loads a model larger than the memory budget: its weights are read for every frame.

Slower, but it runs at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.frozen import record
from ..core.types import Kind
from ..inference.engines.engine import EngineChoice
from ..inference.prepared.compile.cache import find, prepare
from ..models.files.check_onnx import check_network
from ..models.manifest import ModelFolder
from ..models.store.store import Store

if TYPE_CHECKING:
    from ..inference.model import Model


@record
class OutOfCore:
    """How models beyond the budget are loaded on this device."""

    state: Path
    """The state folder, where prepared forms lie."""
    choice: EngineChoice
    """Of an engine whose prepared form is a graph; nothing else can run them."""
    budget_mb: int
    """What all models may take, MiB."""

    def load(self, folder: ModelFolder, kind: Kind, *, checked: bool) -> Model:
        """Load a model from its prepared form, which is made if there is none.

        Args:
            folder: of the model.
            kind: of sample that it will be given.
            checked: its network has been checked already.

        Raises:
            ModelError: the model is not fit to run.
            EngineError: it cannot be run so.
        """
        from ..inference.prepared.fallback import load_prepared  # a start chooses without it

        if not checked:
            check_network(folder.network)
        form = find(self.state, folder.path, self.choice, kind, self.budget_mb) or prepare(
            Store(self.state), folder, self.choice, kind, budget_mb=self.budget_mb
        )
        return load_prepared(folder, self.choice, form, kind)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, for another process."""
        return {
            "state": str(self.state),
            "choice": self.choice.words(),
            "budget_mb": self.budget_mb,
        }


def from_json(content: Mapping[str, Any]) -> OutOfCore:
    """Return what `to_json` was called on."""
    return OutOfCore(
        Path(content["state"]), EngineChoice(**content["choice"]), content["budget_mb"]
    )
