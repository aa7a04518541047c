"""A model as the next start will load it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ...core.types import Kind


class PlannedModel(NamedTuple):
    """A model that a start loads at once, and the prepared form that it is loaded from."""

    name: str
    version: str | None
    """As the pipeline has it; None: the live one."""
    kind: Kind
    folder: Any
    """Packed `ModelFolder`."""
    choice: Any
    """Packed `EngineChoice`."""
    form: str
    """Folder of the prepared form."""
