"""The known engines, their capabilities, and opening a network on one of them.

An engine's library is only loaded when a network is opened on it, or its devices are listed.
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
"""Used in place of an engine's options in verdicts on its quick way to load a network."""

PreparedKind = Literal["graph", "blob"]
"""graph: the optimized graph in stages, with mapped weights; loading can begin before the rest of
the program is imported, and weights may be loaded and released as needed. blob: the compiled
network, exported and imported as one file."""


@record(kw_only=True)
class Capabilities:
    """What one engine can do, on any machine."""

    title: str
    """Its readable name."""
    module: str
    """Defines `open_network`; importing it loads the engine's library."""
    package: str
    """Import name of the library."""
    distributions: tuple[str, ...]
    """Packages that provide the library, the usual one first."""
    formats: Mapping[str, str]
    """Network files that it reads: the name of the format by suffix."""
    survey: Callable[[], tuple[str, Mapping[str, str]]]
    """Loads the library; returns its version, and the devices found: the readable name by the name
    in profiles."""
    drivers: Mapping[str, str] = field(default_factory=dict)
    """By device in capitals: the hardware whose driver must be loaded: intel, nvidia, amd or npu.
    For devices not listed, only `survey` can tell."""
    virtual_devices: frozenset[str] = frozenset()
    """Devices in capitals that only choose among others."""
    plain: Mapping[str, Any] = field(default_factory=dict)
    """Options of a session on the CPU that computes each operator as written in the file."""
    open_batch: bool = False
    """Whether a loaded network with an open batch takes any number of samples. Otherwise it is
    compiled for each number."""
    prepared: PreparedKind | None = None
    """Kind of prepared form made of its networks on the CPU; None: none."""
    prepared_module: str = ""
    """Defines `open_prepared`; importing it loads the engine's library."""
    maker_module: str = ""
    """Defines `make_form`; importing it loads the engine's library."""
    runs_arriving: bool = False
    """Whether a network can run on the CPU while its weights arrive."""
    quick_module: str = ""
    """Defines `QuickLoad`, which loads a network on the CPU sooner than `open_network` but runs it
    slower, and `check`, which makes its argument without the engine."""


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

    # Providers in this build; whether one works is only known once a session is made.
    names = ort.get_available_providers()
    return ort.__version__, {name.removesuffix("ExecutionProvider"): name for name in names}


_ONNXRUNTIME = Capabilities(
    title="ONNX Runtime",
    module="edge_agent.inference.engines.ort",
    package="onnxruntime",
    # Builds with other providers install the same package under these names.
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
"""Capabilities by the engine's name in settings and profiles. To add an engine, write a module and
list its capabilities here."""

if TYPE_CHECKING:
    EngineName = str
    WantedEngine = str
else:
    # Names in settings and profiles are checked against exactly these.
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
    """Return when a folder last changed, in nanoseconds; 0 if it does not exist."""
    try:
        return os.stat(place).st_mtime_ns  # noqa: PTH116 - pathlib is slower; often called
    except OSError:
        return 0


def _dist_infos(places: Sequence[str]) -> dict[str, Path]:
    """Return the folder with the metadata of each installed distribution.

    Finds the same as `importlib.metadata`, whose import of email modules takes a tenth of a first
    start.
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
    """Import an engine and its library; return its module.

    Raises:
        ImportError: the library is not installed.
    """
    return import_module(capabilities(name).module)


def open_engine(
    choice: EngineChoice, network: Path, fix_shapes: FixShapes, cut: InputCut | None = None
) -> Engine:
    """Load *network* on the engine and device that *choice* names.

    Args:
        choice: engine, device, and options.
        network: path of the network; loading from memory would hold the GIL (measured).
        fix_shapes: decides the sizes that the network leaves open, before it is compiled.
        cut: what may be cut off the network's input; engines that cannot do so ignore it.

    Raises:
        EngineError: the engine is not installed, the device is missing, or it refuses the network.
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
    """Return the choice that others are compared with: the session with the least optimization.

    Returns:
        None if no engine has such a session.
    """
    from .engine import EngineChoice

    # The last engine that reads it optimizes least.
    for name in reversed(readers(suffix)):
        if options := capabilities(name).plain:
            return EngineChoice(name, options=options)
    return None


def quick_engines(network: Path) -> list[EngineName]:
    """List the engines that have a quick way to load a network of this format."""
    able = readers(network.suffix.lower())
    return [name for name in able if capabilities(name).quick_module]


def check_quick(
    choice: EngineChoice, network: Path, read: Callable[[Path], bytes | mmap] = Path.read_bytes
) -> CheckedNetwork:
    """Check a network for an engine's quick way to load it, without loading the engine.

    Raises:
        ModelError: the network cannot run.
        EngineError: it has to be loaded in another way.
    """
    with contained(network.name):
        module = import_module(capabilities(choice.engine).quick_module)
        checked: CheckedNetwork = module.check(choice, network, read)
        return checked


def exclusive_formats() -> Iterator[tuple[str, EngineName]]:
    """Yield the suffixes that only one engine reads, each with that engine."""
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
    """Return the readable names of the engines whose prepared forms are of a kind."""
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
    """Replace each engine label in a text with its readable form: "onnxruntime:CPU"."""
    return re.sub(r"\b(onnxruntime:\w+?)ExecutionProvider\b", r"\1", text)
