"""Compares what a model gives on this device with what it gave where it was made.

By task, so that the last bits of another processor do not count: the same best class, the same
boxes, tensors close to each other.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass

import numpy as np

from .errors import ModelError
from .model import Model
from .records import Anomaly, Array, Classes, Detections, Findings, Tensors

GOLDEN = "golden.npz"
MAX_GOLDEN_BYTES = 256 * 2**20
IOU = 0.5
SHARE = 0.95
"""Of the boxes that must be found again, and of the cases whose best class must agree."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two sets of outputs agree."""

    passed: bool
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One golden input and what came out of it."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]


def read_golden(model: Model) -> list[Case]:
    """Read the golden cases of a model; none where it has no such file.

    Raises:
        ModelError: the file is damaged, or its arrays do not fit the network.

    """
    path = model.folder.path / GOLDEN
    if not path.is_file():
        return []
    if path.stat().st_size > MAX_GOLDEN_BYTES:
        raise ModelError(f"{GOLDEN}: larger than {MAX_GOLDEN_BYTES >> 20} MiB")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, MemoryError) as problem:
        raise ModelError(f"{GOLDEN}: cannot be read: {problem}") from None
    specs = {f"input/{spec.name}": spec for spec in model.engine.inputs}
    specs |= {f"output/{spec.name}": spec for spec in model.engine.outputs}
    unknown = sorted(set(arrays) - set(specs))
    missing = sorted(name for name in specs if name.startswith("input/") and name not in arrays)
    if unknown or missing:
        raise ModelError(
            f"{GOLDEN}: expected {', '.join(sorted(specs))}; "
            f"{'lacks ' + ', '.join(missing) if missing else 'unknown: ' + ', '.join(unknown)}"
        )
    if not any(name.startswith("output/") for name in arrays):
        raise ModelError(f"{GOLDEN}: holds no output/<tensor>")
    stacked = {name: _stack(array, len(specs[name].shape), name) for name, array in arrays.items()}
    counts = {name: len(array) for name, array in stacked.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ModelError(f"{GOLDEN}: every array needs the same number of cases, found {counts}")
    return [
        Case(
            {
                n.removeprefix("input/"): np.ascontiguousarray(a[i])
                for n, a in stacked.items()
                if n.startswith("input/")
            },
            {
                n.removeprefix("output/"): a[i]
                for n, a in stacked.items()
                if n.startswith("output/")
            },
        )
        for i in range(next(iter(counts.values())))
    ]


def _stack(array: Array, rank: int, name: str) -> Array:
    """Give an array its case axis where it has none."""
    if array.ndim == rank:
        return array[None]
    if array.ndim == rank + 1:
        return array
    raise ModelError(
        f"{GOLDEN}: {name}: expected {rank} axes, or {rank + 1} with one of cases; found {array.ndim}"
    )


def compare_golden(model: Model) -> Agreement | None:
    """Run the golden inputs and compare; None where there are none.

    Raises:
        ModelError: the file is damaged.
        EngineError: the engine failed on it.
        SampleError: what came out is not finite.

    """
    cases = read_golden(model)
    if not cases:
        return None
    tolerance = model.manifest.trial.tolerance
    failures = []
    for index, case in enumerate(cases):
        outputs = model.raw(case.inputs)
        agreement = compare_outputs(model, case.inputs, case.outputs, outputs, tolerance)
        if not agreement.passed:
            failures.append(f"case {index}: {agreement.why}")
    if failures and len(failures) > (1 - SHARE) * len(cases):
        more = f" (and {len(failures) - 1} more of {len(cases)} cases)" if len(failures) > 1 else ""
        return Agreement(False, failures[0] + more)
    return Agreement(True, f"{len(cases)} case{'s' if len(cases) > 1 else ''} agree")


def compare_outputs(
    model: Model, inputs: Tensors, expected: Tensors, found: Tensors, tolerance: float
) -> Agreement:
    """Compare two sets of outputs of one input, by the model's task."""
    if model.manifest.task in {"detection", "classification", "anomaly"} and set(expected) == set(
        found
    ):
        return compare_findings(
            model.decode(expected, inputs), model.decode(found, inputs), tolerance
        )
    for name, wanted in expected.items():
        distance = relative_l2(wanted, found[name])
        if not distance <= tolerance:
            return Agreement(
                False, f"output {name}: relative distance {distance:.3g}, allowed {tolerance:g}"
            )
    return Agreement(True, "all tensors close")


def compare_findings(expected: Findings, found: Findings, tolerance: float) -> Agreement:
    """Compare what two models, or two engines, make of the same input."""
    match expected, found:
        case Detections(), Detections():
            share = matched(expected, found)
            return Agreement(
                share >= SHARE,
                f"{share:.0%} of {max(len(expected), len(found))} boxes found again, {SHARE:.0%} wanted",
            )
        case Classes(), Classes():
            one, other = expected.labels[:1], found.labels[:1]
            return Agreement(
                one == other,
                f"best class {' '.join(other) or 'none'}, expected {' '.join(one) or 'none'}",
            )
        case Anomaly(), Anomaly():
            distance = abs(found.score - expected.score) / max(abs(expected.score), 1e-9)
            return Agreement(
                distance <= tolerance,
                f"score {found.score:.4g}, expected {expected.score:.4g} within {tolerance:.0%}",
            )
        case _:
            return Agreement(type(expected) is type(found), "of the same kind")


def matched(expected: Detections, found: Detections) -> float:
    """Give the share of boxes that both have: same label, IoU of at least 0.5, each used once."""
    most = max(len(expected), len(found))
    if most == 0:
        return 1.0
    free = set(range(len(found)))
    hits = 0
    for index, label in enumerate(expected.labels):
        best, best_iou = -1, IOU
        for other in free:
            if found.labels[other] != label:
                continue
            overlap = iou(expected.boxes[index], found.boxes[other])
            if overlap >= best_iou:
                best, best_iou = other, overlap
        if best >= 0:
            free.remove(best)
            hits += 1
    return hits / most


def iou(one: Array, other: Array) -> float:
    """Intersection over union of two boxes x1, y1, x2, y2."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    inter = float(width * height)
    area = float(
        (one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1])
    )
    return inter / max(area - inter, 1e-9)


def relative_l2(expected: Array, found: Array) -> float:
    """Distance of two tensors, relative to the first one's length; infinite where not comparable."""
    if expected.shape != found.shape:
        return float("inf")
    one, other = expected.astype(np.float64), found.astype(np.float64)
    if not np.isfinite(other).all():
        return float("inf")
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(one)), 1e-9))
