"""A network in another format, as conversion sees it: it can be written down and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..core.types import Array, TensorSpec


class Original(Protocol):
    """A loaded network that is to be converted."""

    file: str
    """Name of the network's file in the folder that is made."""
    program: str
    """What runs it, with its version."""
    examples: Sequence[TensorSpec]
    """Its inputs, in order, with the sizes that it was exported with; names do not count."""
    metadata: Mapping[str, str]
    """What its exporter says of it, as an ONNX file has it."""

    def save(self, folder: Path) -> None:
        """Write the network's file into a folder.

        Raises:
            Exception: it cannot be converted.

        """

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run it; arrays in the order of its own inputs and outputs."""
