"""The golden cases of a model folder: inputs, the model's outputs, and which of them are kept.

A case proves nothing if rounding decides the model's own answer: a box at the threshold, two
classes that are equally likely. A device's trial does not count these, and they are only written if
there are no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import AgentError, ModelError
from ..core.types import Anomaly, Array, Classes, Detections, Findings, Tensors, TensorSpec
from ..inference.agreement import EIGHT_BITS
from ..inference.engines.engine import EngineChoice
from ..inference.golden import compare_golden
from ..inference.model import Model
from ..inference.probe import probe_input
from ..models.files.check_onnx import inspect
from ..models.files.facts import NetworkFacts
from ..models.files.infer_layout import picture_input
from ..models.manifest import GOLDEN, MANIFEST, TrialSpec, load
from .evaluation import loaded

CASES = 4
CANDIDATES = 8
"""Number of candidates, of which the clearest are kept."""
CLEAR = 0.02
"""Least distance of a score from its deciding limit: a few eight-bit steps."""
MAX_BYTES = 64 * 2**20
"""Limit for all cases together, unpacked."""
_UNKNOWN = ((127.5,), (64.0,))
"""Mean and scale if unknown: about -2 to 2, the range of most networks' inputs."""


def golden_inputs(
    facts: NetworkFacts, sizes: Sequence[Sequence[int]], given: Mapping[str, Any]
) -> tuple[list[dict[str, Array]], str]:
    """Make golden inputs, and return a description of them.

    Pictures consist of uniform squares, larger from case to case: they compress well, and give
    convolutions edges to find. All other inputs are noise.
    """
    random = np.random.default_rng(0)
    try:
        picture, _ = picture_input(facts, "")
    except ModelError:
        picture = None
    known = "scale" in given or "mean" in given
    total = sum(
        int(np.prod(size)) * np.dtype(spec.dtype).itemsize
        for spec, size in zip(facts.inputs, sizes, strict=True)
    )
    count = max(1, min(CANDIDATES, MAX_BYTES // max(total, 1)))
    cases = [
        {
            spec.name: _picture(spec, size, given if known else None, 4 << number % CASES, random)
            if picture is not None and spec.name == picture.name
            else _noise(TensorSpec(spec.name, tuple(size), spec.dtype), random)
            for spec, size in zip(facts.inputs, sizes, strict=True)
        }
        for number in range(count)
    ]
    if picture is None:
        return cases, "seeded noise"
    if known or "int" in picture.dtype:
        return cases, "seeded pictures, 0 to 255 before mean and scale"
    return cases, "seeded pictures, -2 to 2, as mean and scale are not known"


def _noise(spec: TensorSpec, random: np.random.Generator) -> Array:
    """Return noise for an input; what may be indices, as of a vocabulary, is 0 or 1."""
    if spec.dtype in {"int32", "int64"}:
        return random.integers(0, 2, [size or 1 for size in spec.shape]).astype(spec.dtype)
    return probe_input(spec, random)


def _picture(
    spec: TensorSpec,
    size: Sequence[int],
    given: Mapping[str, Any] | None,
    side: int,
    random: np.random.Generator,
) -> Array:
    """Return a picture, ready for the network, with squares of *side* pixels.

    A network of a fixed batch is given it so many times, as by the agent.
    """
    channels_last = size[1] not in {1, 3}
    height, width, channels = size[1:] if channels_last else (size[2], size[3], size[1])
    few = random.integers(0, 256, (-(-height // side), -(-width // side), channels))
    pixels = few.repeat(side, 0).repeat(side, 1)[:height, :width].astype(np.float64)
    if "int" in spec.dtype and given is None:
        ready = pixels - (128 if spec.dtype == "int8" else 0)
    else:
        mean, scale = _UNKNOWN if given is None else (given.get("mean", 0), given.get("scale", 1))
        ready = (pixels - np.array(mean)) / np.array(scale)
    if "int" in spec.dtype:
        bounds = np.iinfo(spec.dtype)
        ready = np.clip(np.round(ready), bounds.min, bounds.max)
    ready = ready if channels_last else ready.transpose(2, 0, 1)
    return np.ascontiguousarray(ready[None], spec.dtype).repeat(size[0], 0)


def write_golden(folder: Path, inputs: Sequence[Tensors], outputs: Sequence[Tensors]) -> None:
    """Write golden inputs and their outputs, one case each, into a model folder."""
    arrays = {
        f"{part}/{name}": np.stack([each[name] for each in tensors])
        for part, tensors in (("input", inputs), ("output", outputs))
        for name in tensors[0]
    }
    np.savez_compressed(folder / GOLDEN, **arrays)  # type: ignore[arg-type]


def clearest(model: Model, inputs: Sequence[Tensors], outputs: Sequence[Tensors]) -> list[int]:
    """Return the indices of the cases to keep: the first `CASES` clear ones, else the clearest.

    *outputs* are what the network returns for *inputs*, one entry per case.
    """
    threshold = model.threshold
    model.threshold = max(threshold - 2 * CLEAR, 0.0)
    try:
        ranked = [
            _clearance(model.decode(given, taken), threshold)
            for taken, given in zip(inputs, outputs, strict=True)
        ]
    finally:
        model.threshold = threshold
    clear = [number for number, far in enumerate(ranked) if far >= CLEAR][:CASES]
    return clear or [max(range(len(ranked)), key=ranked.__getitem__)]


def _clearance(found: Findings, threshold: float) -> float:
    """Return the distance of the nearest score from its deciding limit, on the scale of scores."""
    match found:
        case Detections():
            return float(np.abs(found.scores - threshold).min(initial=1.0))
        case Classes():
            scores = (*found.scores[:2], 0.0)
            near = [scores[0] - scores[1], abs(scores[0] - threshold)]
            return min(near) if found.labels else 1.0
        case Anomaly():
            return abs(found.score / threshold - 1) if threshold and np.isfinite(threshold) else 1.0
        case _:
            return 1.0


def try_folder(folder: Path, engines: Sequence[EngineChoice]) -> dict[str, str]:
    """Compare a folder's golden outputs on engines as a device's trial does.

    If eight-bit outputs are compared as numbers, the tolerance that they need is written to the
    manifest, up to `EIGHT_BITS`.

    Returns:
        Reasons by engine, for engines that refuse it or cannot run it.
    """
    refused = {}
    for choice in engines:
        name = f"{choice.engine}:{choice.device}"
        try:
            why = _refusal(folder, choice)
        except AgentError as problem:
            why = str(problem)
        if why is not None:
            refused[name] = why
    return refused


def _refusal(folder: Path, choice: EngineChoice) -> str | None:
    made = load(folder)
    with loaded(made, choice) as model:
        agreement = compare_golden(model)
        if agreement is None or agreement.passed:
            return None
        quantized = inspect(made.network).quantized
        if made.manifest.task not in {"raw", "regression"} or not quantized:
            return f"golden: {agreement.why}"
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        for tolerance in np.arange(0.1, EIGHT_BITS + 0.01, 0.05).round(2).tolist():
            manifest = replace(made.manifest, trial=TrialSpec(tolerance=tolerance))
            model.folder = replace(made, manifest=manifest)
            wider = compare_golden(model)
            if wider is not None and wider.passed and "[trial]" not in text:
                more = f"\n[trial]\ntolerance = {tolerance:g}\n"
                (folder / MANIFEST).write_text(text + more, encoding="utf-8")
                return None
        return f"golden: {agreement.why}"
