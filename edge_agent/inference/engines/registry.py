"""The known engines, their capabilities, and the opening of a network on one of them.

Light: an engine's library is loaded when a network is opened on it, or its devices are asked for.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from ...core.containment import contained
from ...core.errors import EngineError
from ...core.frozen import record

if TYPE_CHECKING:
    from mmap import mmap

    from ..folding.cut import InputCut
    from .engine import CheckedNetwork, Engine, EngineChoice, FixShapes

QUICK_WAY = {"way": "quick"}
"""Stands for an engine's options in verdicts on its quick way to load a network."""

PreparedKind = Literal["graph", "blob"]
"""graph: the optimized graph in stages and weights that are mapped; loading can begin before the
rest of the program is imported, and weights may come and go. blob: the compiled network, exported
and imported as one file."""


@record(kw_only=True)
class Capabilities:
    """One engine, whatever the machine."""

    title: str
    """Its name for people."""
    module: str
    """Defines `open_network`; importing it loads the engine's library."""
    package: str
    """Import name of the library."""
    distributions: tuple[str, ...]
    """Packages that bring the library, the usual one first."""
    formats: Mapping[str, str]
    """Network files that it reads: by suffix, what such a file is called."""
    survey: Callable[[], tuple[str, Mapping[str, str]]]
    """Loads the library; returns its version and the devices there are, by the name that a profile
    uses, with their names for people."""
    drivers: Mapping[str, str] = field(default_factory=dict)
    """By device in capitals: what must have a driver loaded: intel, nvidia, amd or npu. Of a device
    not listed only `survey` can tell."""
    virtual_devices: frozenset[str] = frozenset()
    """Devices in capitals that only choose among others."""
    plain: Mapping[str, Any] = field(default_factory=dict)
    """Options of a session on the CPU that computes each operator as it stands in the file."""
    open_batch: bool = False
    """Whether a network that leaves its batch open, once loaded, takes any number of samples. Else
    it is compiled for each number."""
    prepared: PreparedKind | None = None
    """Kind of prepared form that is made of its networks on the CPU; None: none."""
    prepared_module: str = ""
    """Defines `open_prepared`; importing it loads the engine's library."""
    maker_module: str = ""
    """Defines `make_form`, likewise."""
    runs_arriving: bool = False
    """Whether a network can run on the CPU while its weights arrive."""
    quick_module: str = ""
    """Defines `QuickLoad`, which loads a network on the CPU sooner than `open_network`, to run
    slower, and `check`, for what it takes; that needs no engine."""


def _survey_openvino() -> tuple[str, Mapping[str, str]]:
    import openvino as ov

    core = ov.Core()
    devices = {
        device: str(core.get_property(device, "FULL_DEVICE_NAME"))
        for device in core.available_devices
    }
    return ov.__version__, devices


_OPENVINO = Capabilities(
    title="OpenVINO",
    module="edge_agent.inference.engines.ov",
    package="openvino",
    distributions=("openvino",),
    formats={".onnx": "ONNX", ".xml": "OpenVINO IR", ".tflite": "TensorFlow Lite"},
    survey=_survey_openvino,
    drivers={"GPU": "intel", "NPU": "npu"},
    virtual_devices=frozenset({"AUTO", "MULTI", "HETERO", "BATCH"}),
    plain={"LP_TRANSFORMS_MODE": "NO"},
    prepared="blob",
    prepared_module="edge_agent.inference.prepared.ov_engine",
    maker_module="edge_agent.inference.prepared.compile.ov_blob",
)


def _survey_onnxruntime() -> tuple[str, Mapping[str, str]]:
    import onnxruntime as ort

    # What this build brings; whether a provider comes up is only seen when a session is made.
    names = ort.get_available_providers()
    return ort.__version__, {name.removesuffix("ExecutionProvider"): name for name in names}


_ONNXRUNTIME = Capabilities(
    title="ONNX Runtime",
    module="edge_agent.inference.engines.ort",
    package="onnxruntime",
    # Builds that bring other providers install the same package under these names.
    distributions=(
        "onnxruntime",
        "onnxruntime-gpu",
        "onnxruntime-openvino",
        "onnxruntime-migraphx",
    ),
    formats={".onnx": "ONNX"},
    survey=_survey_onnxruntime,
    drivers={"CUDA": "nvidia", "TENSORRT": "nvidia", "NVTENSORRTRTX": "nvidia", "MIGRAPHX": "amd"},
    plain={"graph_optimization_level": "none"},
    open_batch=True,
    prepared="graph",
    prepared_module="edge_agent.inference.prepared.engine",
    maker_module="edge_agent.inference.prepared.compile.onnx_graph",
    runs_arriving=True,
    quick_module="edge_agent.inference.engines.ort_quick",
)


ENGINES: Mapping[str, Capabilities] = {"openvino": _OPENVINO, "onnxruntime": _ONNXRUNTIME}
"""By its name in settings and profiles, what an engine can do: a new one is a module and its
capabilities here."""

if TYPE_CHECKING:
    EngineName = str
    WantedEngine = str
else:
    # What settings and profiles may name is checked against exactly these.
    EngineName = Literal[tuple(ENGINES)]
    WantedEngine = Literal[("auto", *ENGINES)]


def capabilities(name: EngineName) -> Capabilities:
    """Return an engine's capabilities, without loading its library."""
    return ENGINES[name]


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
    """Return when a folder changed last, nanoseconds; 0 if it does not exist."""
    try:
        return os.stat(place).st_mtime_ns  # noqa: PTH116 - pathlib's is slower, and often asked
    except OSError:
        return 0


def _dist_infos(places: Sequence[str]) -> dict[str, Path]:
    """Return the folder with the metadata of each installed distribution.

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
    """List the engines that read network files with a suffix, such as ".onnx"."""
    return [name for name in ENGINES if suffix in capabilities(name).formats]


def plain_choice(suffix: str) -> EngineChoice | None:
    """Return the choice that others are compared with: the session that optimizes least.

    Returns:
        None if no engine has such a session.
    """
    from .engine import EngineChoice

    # The last one that reads it: it optimizes least.
    for name in reversed(readers(suffix)):
        if options := capabilities(name).plain:
            return EngineChoice(name, options=options)
    return None


def quick_engines(network: Path) -> list[EngineName]:
    """List the engines that have a quick way to load such a network."""
    able = readers(network.suffix.lower())
    return [name for name in able if capabilities(name).quick_module]


def check_quick(
    choice: EngineChoice, network: Path, read: Callable[[Path], bytes | mmap] = Path.read_bytes
) -> CheckedNetwork:
    """Check a network that is to be loaded the quick way of an engine, which is not needed yet.

    Raises:
        ModelError: the network is not fit to run.
        EngineError: it has to be loaded in another way.
    """
    with contained(network.name):
        module = import_module(capabilities(choice.engine).quick_module)
        checked: CheckedNetwork = module.check(choice, network, read)
        return checked


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

    Raises:
        EngineError: the wanted engine cannot run such a file.
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


def engine_words(text: str) -> str:
    """Replace each engine label in a text with the form that readers know: "onnxruntime:CPU"."""
    return re.sub(r"\b(onnxruntime:\w+?)ExecutionProvider\b", r"\1", text)
