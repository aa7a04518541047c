"""The engines there are, what each can do, and the opening of a network on one of them.

Light: an engine's library is loaded when a network is opened on it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from ...core.errors import EngineError

if TYPE_CHECKING:
    from ..folding.cut import InputCut
    from .capabilities import Capabilities, PreparedKind
    from .engine import Engine, EngineChoice, FixShapes

ENGINES: Mapping[str, str] = {
    "openvino": "edge_agent.inference.engines.ov_capabilities",
    "onnxruntime": "edge_agent.inference.engines.ort_capabilities",
}
"""By its name in settings and profiles: the module that states an engine's `CAPABILITIES`. A new
engine is one module and one line here."""

if TYPE_CHECKING:
    EngineName = str
    WantedEngine = str
else:
    # What settings and profiles may name is checked against exactly these.
    EngineName = Literal[tuple(ENGINES)]
    WantedEngine = Literal[("auto", *ENGINES)]


def capabilities(name: EngineName) -> Capabilities:
    """Return what an engine can do, without loading its library."""
    found: Capabilities = import_module(ENGINES[name]).CAPABILITIES
    return found


def is_installed(name: EngineName) -> bool:
    """Whether an engine's library can be imported, as far as is known without doing so."""
    return find_spec(capabilities(name).package) is not None


def installed() -> dict[str, str]:
    """Return the version of each engine that is installed, without loading it."""
    return dict(_installed(tuple((place, _changed(place)) for place in sys.path)))


@lru_cache(maxsize=1)
def _installed(places: tuple[tuple[str, int], ...]) -> dict[str, str]:
    found = _dist_infos([place for place, changed in places if changed])
    versions = {}
    for engine in ENGINES:
        for name in capabilities(engine).distributions:
            if name in found and (version := _version(found[name])):
                versions[engine] = version
                break
    return versions


def _changed(place: str) -> int:
    """Return when a folder changed last, nanoseconds; 0: there is none."""
    try:
        return os.stat(place).st_mtime_ns  # noqa: PTH116 - pathlib's is slower, and often asked
    except OSError:
        return 0


def _dist_infos(places: Sequence[str]) -> dict[str, Path]:
    """Return where the metadata of each installed distribution lies.

    As `importlib.metadata` finds it, which imports modules for mail: a tenth of a first start.
    """
    found: dict[str, Path] = {}
    for place in places:
        with suppress(OSError):
            for entry in Path(place).iterdir():
                if entry.suffix == ".dist-info":
                    name = entry.name.partition("-")[0].lower().replace("_", "-")
                    found.setdefault(name, entry)
    return found


def _version(folder: Path) -> str | None:
    with suppress(OSError), (folder / "METADATA").open(encoding="utf-8") as lines:
        for line in lines:
            key, _, text = line.partition(":")
            if key == "Version":
                return text.strip()
    return None


def load_library(name: EngineName) -> ModuleType:
    """Import an engine with its library; return its module.

    Raises:
        ImportError: the library is not installed.
    """
    return import_module(capabilities(name).module)


def open_engine(
    choice: EngineChoice, network: Path, fix_shapes: FixShapes, cut: InputCut | None = None
) -> Engine:
    """Load *network* on the engine and device that *choice* names.

    Args:
        choice: engine, device and how to run there.
        network: path of the model; loading from memory would hold the GIL (measured).
        fix_shapes: decides the sizes that the network leaves open, before it is compiled.
        cut: what may be cut off the network's input; an engine that cannot leaves it.

    Raises:
        EngineError: the engine is not installed, the device is not there, or it refuses the model.
    """
    try:
        module = load_library(choice.engine)
    except ImportError as problem:
        raise EngineError(f"engine {choice.engine} is not installed: {problem}") from problem
    engine: Engine = module.open_network(choice, network, fix_shapes, cut)
    return engine


def readers(suffix: str) -> list[EngineName]:
    """List the engines that read network files of a suffix, as ".onnx"."""
    return [name for name in ENGINES if suffix in capabilities(name).formats]


def plain_choice(suffix: str) -> EngineChoice | None:
    """Return what others are compared with: a session that optimizes as little as there is.

    Args:
        suffix: of the network's file, as ".onnx".

    Returns:
        None where no engine has such a session.
    """
    from .engine import EngineChoice

    # The last one that reads it: it optimizes least.
    for name in reversed(readers(suffix)):
        if options := capabilities(name).plain:
            return EngineChoice(name, options=options)
    return None


def exclusive_formats() -> Iterator[tuple[str, EngineName]]:
    """Yield the suffixes that a single engine reads, each with that engine."""
    for name in ENGINES:
        for suffix in capabilities(name).formats:
            if readers(suffix) == [name]:
                yield suffix, name


def prepared_kind(choice: EngineChoice) -> PreparedKind | None:
    """Return the kind of prepared form that can be made for *choice*, or None."""
    return capabilities(choice.engine).prepared if choice.device.upper() == "CPU" else None


def runs_arriving(choice: EngineChoice) -> bool:
    """Whether *choice* can run a network while its weights arrive."""
    return choice.device.upper() == "CPU" and capabilities(choice.engine).runs_arriving


def titles(kind: PreparedKind) -> str:
    """Return the names, for people, of the engines whose prepared forms are of a kind."""
    found = [capabilities(name) for name in ENGINES]
    return " or ".join(each.title for each in found if each.prepared == kind)


def engine_order(choices: Sequence[EngineChoice], wanted: str, network: Path) -> list[EngineChoice]:
    """Pick the engines that can read a network's file, in the order given.

    Args:
        choices: what the device profile offers.
        wanted: "auto", or the engine that the settings insist on.
        network: its suffix tells which engines can read it.

    Raises:
        EngineError: what is wanted cannot run such a file.
    """
    from .engine import EngineChoice

    able = readers(network.suffix)
    if not able or len(able) == len(ENGINES):
        return list(choices)
    if wanted not in {"auto", *able}:
        format_name = capabilities(able[0]).formats[network.suffix]
        raise EngineError(
            f"{network.name}: {format_name} runs on {' or '.join(able)} only, "
            f'but engine = "{wanted}" is set; use the .onnx, or engine = "auto"'
        )
    picked = [choice for choice in choices if choice.engine in able]
    lanes = max((choice.lanes for choice in choices), default=1)
    return picked or [EngineChoice(able[0], lanes=lanes)]
