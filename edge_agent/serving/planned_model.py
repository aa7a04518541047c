"""A model as the next start will load it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..core.types import Kind
    from .choice import LoadWay


class PlannedModel(NamedTuple):
    """A model that a start loads first, and how."""

    name: str
    version: str | None
    """The version in the pipeline's settings; None: the live one."""
    kind: Kind
    folder: Any
    """Packed `ModelFolder`."""
    choice: Any
    """Packed `EngineChoice`."""
    form: str
    """Folder of the prepared form; empty if there is none."""
    way: LoadWay = "whole"
    """The way to load it; "prepared" if it has a form."""
    unverified: bool = False
    """Whether its engine must be checked, not being known to compute it correctly."""

    @property
    def reference(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"
