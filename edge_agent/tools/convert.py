"""Conversion of a file in another format to a model folder that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.child import ask
from ..core.containment import contained
from ..core.errors import EngineError, ModelError, UsageError
from ..core.text import counted
from ..core.types import TensorSpec
from ..inference.agreement import EIGHT_BITS, Margin, distance_within
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import open_engine
from ..inference.golden import Case, read_cases
from ..inference.model import load_model
from ..models.files.check_onnx import check_network, inspect
from ..models.files.facts import NetworkFacts
from ..models.importing import PYTORCH, hint_of
from ..models.manifest import GOLDEN, MANIFEST, load
from ..models.npz import read_npz
from ..models.questions import as_toml
from .evaluation import Progress
from .golden_cases import CASES, clearest, try_folder, write_golden
from .listed import comparable
from .pytorch_file import recognize
from .wake_word import is_micro_wake_word, is_wake_word

TOLERANCE = 1e-3
"""Greatest relative L2 distance of an output from the original's: other kernels sum in another
order."""
TOLERANCE_16 = 2e-2
"""The same for 16-bit numbers."""
_TORCH = (
    "PyTorch is not installed ({missing}); pip install torch onnxscript --extra-index-url "
    "https://download.pytorch.org/whl/cpu"
)
_LITERT = "LiteRT is not installed, which runs a .tflite; pip install ai-edge-litert"


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion."""

    facts: NetworkFacts
    assumed: tuple[str, ...]
    left: tuple[str, ...]
    """Questions to answer in the manifest before it is correct."""
    needed: str | None
    """Why it cannot serve before that, or None if it can."""
    golden: str
    """Description of the golden cases."""
    distances: Mapping[str, float]
    """By engine: the worst relative distance of an output from the original's."""
    refused: Mapping[str, str]
    """Reasons by engine, for engines that cannot run it."""
    tolerance: float


def convert(
    path: Path,
    inputs: Sequence[TensorSpec],
    engines_for: Callable[[Path], Sequence[EngineChoice]],
    folder: Path,
    progress: Progress,
) -> Conversion:
    """Convert a file, and check that it computes the same on every engine.

    Raises:
        UsageError: a library is not installed, or the inputs do not fit the file.
        ModelError: it cannot be converted, or does not compute the same.
        EngineError: no engine runs it.
    """
    kind = _kind(path)
    if inputs and kind != "script":
        raise UsageError(f"--input: {path} already describes its inputs; leave it out")
    if path.suffix != ".onnx":
        _check_installed(kind)
    said = _make(path, kind, inputs, folder, progress)
    network = next(one for one in folder.iterdir() if one.suffix in {".onnx", ".tflite", ".xml"})
    facts = inspect(network)
    tolerance = _tolerance(facts)
    margin = Margin(tolerance, facts=lambda: facts)
    cases = _cases(folder / GOLDEN, str(path), facts)
    engines = list(engines_for(network))
    distances: dict[str, float] = {}
    refused: dict[str, str] = {}
    for choice in engines:
        name = f"{choice.engine}:{choice.device}"
        progress(f"comparing on {name}", len(distances), len(engines))
        try:
            distances[name], worst = _distance(network, cases, choice, margin, facts.detected)
        except EngineError as problem:
            refused[name] = str(problem)
            continue
        if not distances[name] <= tolerance:
            raise ModelError(
                f"{path}: as {network.suffix.lstrip('.')} on {name}, output {worst} is "
                f"{distances[name]:.2g} off what the original gives (relative distance; allowed "
                f"{tolerance:g}): nothing is written"
            )
    if not distances:
        why = "; ".join(f"{name}: {problem}" for name, problem in refused.items())
        raise EngineError(f"{path}: no engine can run the result: {why}")
    left = tuple(said["left"])
    able = [choice for choice in engines if f"{choice.engine}:{choice.device}" in distances]
    needed, kept = _needed(folder, cases, able, excused=bool(left))
    manifest = folder / MANIFEST
    manifest.write_text(as_toml(left) + manifest.read_text(encoding="utf-8"), encoding="utf-8")
    return Conversion(
        facts,
        tuple(said["assumed"]),
        left,
        needed,
        f"{counted(kept, 'case')} {said['golden']}",
        distances,
        refused,
        tolerance,
    )


def _kind(path: Path) -> str:
    """Return the kind of a file for conversion."""
    if path.is_file() and path.suffix in {".onnx", ".tflite"} and is_wake_word(path):
        return "wake-word"
    if path.is_file() and path.suffix in {".onnx", ".xml"}:
        raise ModelError(
            f"{path}: needs no conversion: `edge-agent describe {path}` says what add, push, try "
            "and quantize make of it"
        )
    if path.is_file() and path.suffix == ".tflite":
        if is_micro_wake_word(path):
            return "micro-wake-word"
        check_network(path)
        return "tflite"
    if path.is_file() and path.suffix not in PYTORCH and (hint := hint_of(path)):
        raise ModelError(f"{path}: is not converted{hint}")
    return recognize(path)


def _check_installed(kind: str) -> None:
    """Check that the library that runs the original is installed."""
    lite = kind in {"tflite", "wake-word", "micro-wake-word"}
    wanted = ("ai_edge_litert",) if lite else ("torch", "onnxscript")
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        mend = _LITERT if lite else _TORCH
        raise UsageError(mend.format(missing=", ".join(missing)))


def _make(
    path: Path, kind: str, inputs: Sequence[TensorSpec], folder: Path, progress: Progress
) -> dict[str, Any]:
    """Make the folder in a child process, because a damaged file may crash it."""
    progress(f"converting {path.name}", 0, 0)
    question = {
        "path": str(path),
        "kind": kind,
        "inputs": [(list(each.shape), each.dtype) for each in inputs],
        "folder": str(folder),
    }
    said: dict[str, Any] = ask("edge_agent.tools.conversion_worker", question, f"converting {path}")
    return said


def _cases(golden: Path, where: str, facts: NetworkFacts) -> list[Case]:
    """Read the cases of the original, whose outputs have the shapes that it gave them.

    The file may omit shapes of outputs, or state them wrongly, and engines still run it.
    """
    arrays = read_npz(golden, where)
    outputs = [
        replace(spec, shape=arrays[f"output/{spec.name}"].shape[1:]) for spec in facts.outputs
    ]
    return read_cases(golden, where, facts.inputs, outputs)


def _tolerance(facts: NetworkFacts) -> float:
    if facts.quantized:
        return EIGHT_BITS
    half = any(one.dtype == "float16" for one in (*facts.inputs, *facts.outputs))
    return TOLERANCE_16 if half else TOLERANCE


def _distance(
    network: Path,
    cases: Sequence[Case],
    choice: EngineChoice,
    margin: Margin,
    detected: Mapping[str, str],
) -> tuple[float, str]:
    """Return the worst distance of any output on an engine, and which output it is."""
    sizes = {name: each.shape for name, each in cases[0].inputs.items()}
    with contained(f"{choice.engine}:{choice.device}"):
        engine = open_engine(choice, network, lambda _: sizes)
        try:
            worst = (0.0, "")
            for case in cases:
                found = engine.infer(case.inputs)
                for name, (one, other) in comparable(case.outputs, found, detected).items():
                    worst = max(worst, (distance_within(name, one, other, margin), name))
            return worst
        finally:
            engine.close()


def _needed(
    folder: Path, cases: Sequence[Case], engines: Sequence[EngineChoice], *, excused: bool
) -> tuple[str | None, int]:
    """Keep the clearest golden cases and try the folder as a device does.

    Returns:
        What its manifest lacks, and the number of cases kept.
    """
    inputs, outputs = [case.inputs for case in cases], [case.outputs for case in cases]
    kept, lacks = list(range(len(cases)))[:CASES], None
    try:
        made = load(folder)
        model = load_model(made, engines, made.manifest.input.kind, checked=True)
        kept = clearest(model, inputs, outputs)
        model.close()
    except ModelError as problem:
        lacks = str(problem).replace(f"{folder}/", "")  # which is moved
        if not excused:
            raise ModelError(lacks) from problem
    write_golden(folder, [inputs[n] for n in kept], [outputs[n] for n in kept])
    refused = {} if lacks else try_folder(folder, engines)
    if refused:
        why = "; ".join(f"{name}: {problem}" for name, problem in refused.items())
        raise ModelError(f"{load(folder).manifest.id}: {why}")
    return lacks, len(kept)
