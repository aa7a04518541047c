"""When the quantization steps in a network's file say what its integers mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...core.types import TensorSpec
from ..decoders import SCORED
from ..manifest import InputSpec, Manifest, ModelFolder
from .facts import MOST_INTEGER_SCALE, NetworkFacts

_BYTES = frozenset({"int8", "uint8"})


Steps = Mapping[str, tuple[float, int]]
"""Scale and zero point by name of an output."""


def with_steps(
    folder: ModelFolder,
    inputs: Iterable[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    pictures: bool,
) -> tuple[Manifest, Steps]:
    """Return a model's manifest with the steps that its file states, where they matter.

    Also return those of outputs, where there are several and the manifest gives none for all.

    Raises:
        ModelError: see `tflite_metadata.in_steps`.
    """
    given, takes = folder.manifest, {one.dtype for one in inputs}
    if not _matter(folder, takes, {one.dtype for one in outputs}, pictures=pictures):
        return given, {}  # the file need not be read again
    from .check_onnx import inspect
    from .tflite_metadata import in_steps

    facts = inspect(folder.network)
    several = len(outputs) > 1 and (given.output.scale, given.output.zero_point) == (1, 0)
    steps = facts.steps if several else {}
    return in_steps(given, facts, pictures=pictures), {
        one.name: steps[one.name] for one in outputs if one.name in steps
    }


def step_between(told: InputSpec, used: InputSpec) -> float:
    """Return how many units of the manifest's `scale` an integer's step is; 1: it was no step."""
    (before, *_), (after, *_) = _scales(told), _scales(used)
    return after / before if before else 1.0


def _scales(given: InputSpec) -> Sequence[float]:
    return (given.scale,) if isinstance(given.scale, int | float) else given.scale or (1.0,)


def _matter(folder: ModelFolder, takes: set[str], gives: set[str], *, pictures: bool) -> bool:
    """Whether a network has integers; of an ONNX file, only where the manifest is of floats."""
    if folder.network.suffix == ".tflite":
        return any("int" in dtype for dtype in takes | gives)
    given, output = folder.manifest.input, folder.manifest.output
    gives_floats = (output.scale, output.zero_point) == (1, 0)
    if given.is_signal:
        takes_floats = (given.mean, given.scale) == ((), ())
    else:
        # Pixels do not fit int8 as they are.
        unfit = pictures and "int8" in takes
        takes_floats = unfit or max(map(abs, _scales(given))) > MOST_INTEGER_SCALE
    return folder.network.suffix == ".onnx" and (
        (bool(_BYTES & gives) and gives_floats) or (bool(_BYTES & takes) and takes_floats)
    )


def lost_scores(task: str, facts: NetworkFacts) -> float | None:
    """Return the step of the only output, with scores in it, if it is too large for a score."""
    step = max(facts.coarse.values(), default=0.0)
    return step if task in SCORED and len(facts.outputs) == 1 and step >= 1 else None
