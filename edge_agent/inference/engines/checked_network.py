"""A network that has been read and checked, and may be loaded the quick way."""

from __future__ import annotations

from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from .engine import EngineChoice


class CheckedNetwork(NamedTuple):
    """What `check` of an engine's `quick_check_module` returns, and its `QuickLoad` takes."""

    choice: EngineChoice
    path: Path
    """Of its file, which is no longer looked at."""
    data: bytes | mmap
    """The file's content; the engine uses the weights where they lie."""
    graph: bytes
    """The network with its weights outside of it, in a file of the same name."""
    exact: bool
    """Whether sums of eight-bit products are exact here, so that it may be optimized."""
