"""Whether a network may be loaded the quick way; needs neither NumPy nor an engine."""

from __future__ import annotations

from importlib import import_module
from operator import methodcaller
from typing import TYPE_CHECKING

from ..core.containment import contained
from .engines.registry import ENGINES, capabilities

if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap
    from pathlib import Path

    from .engines.engine import CheckedNetwork, EngineChoice

QUICK_WAY = {"way": "quick"}
"""In the place of an engine's options: what is known of it as `load_quick` loads it."""
_read: Callable[[Path], bytes] = methodcaller("read_bytes")


def quick_engines(network: Path) -> list[str]:
    """List the engines that have a quick way to load such a network."""
    suffix = network.suffix.lower()
    known = {name: capabilities(name) for name in ENGINES}
    return [name for name, each in known.items() if each.quick_module and suffix in each.formats]


def check_quick(
    choice: EngineChoice, network: Path, read: Callable[[Path], bytes | mmap] = _read
) -> CheckedNetwork:
    """Check a network that is to be loaded the quick way of an engine, which is not needed yet.

    Raises:
        ModelError: the network is not fit to run.
        EngineError: it has to be loaded in another way.
    """
    with contained(network.name):
        module = import_module(capabilities(choice.engine).quick_check_module)
        checked: CheckedNetwork = module.check(choice, network, read)
        return checked
