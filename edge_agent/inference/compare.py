"""How models and engines are compared: distance, agreement, probe inputs and races.

Findings are compared by task, so that the last bits of another processor do not count: the same
best class, the same boxes, tensors close to each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..core.types import (
    Anomaly,
    Array,
    Classes,
    Detections,
    Findings,
    RawTensors,
    Tensors,
    TensorSpec,
    Values,
)

if TYPE_CHECKING:
    from .model import Model

IOU = 0.5
SHARE = 0.95
"""Of the boxes that must be found again, and of the cases whose best class must agree."""
LISTED = 7
"""Most columns of a list of boxes: image, class, score and corners."""
LIKENESS = 0.9
"""Least cosine of two outputs, where nothing is found that could be compared. A broken kernel gives
no likeness at all (openvino#37446: -0.08)."""
INFINITE = float("inf")


def relative_distance(expected: Array, found: Array) -> float:
    """Return the L2 distance of two tensors relative to the first, whatever their types.

    Infinite where shapes differ or *found* is not finite.
    """
    if expected.shape != found.shape or not np.isfinite(found).all():
        return INFINITE
    return _distance(expected, found, 1e-9)


def strict_distance(expected: Array, found: Array) -> float:
    """Return the relative L2 distance of two tensors; 0 only where they are the same bit for bit.

    Infinite where shapes or types differ, where NaN differs, and of what is no number.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return INFINITE
    if expected.tobytes() == found.tobytes():
        return 0.0
    if not np.issubdtype(expected.dtype, np.number):
        return INFINITE
    distance = _distance(expected, found, 1e-30)
    return INFINITE if np.isnan(distance) else distance


def _distance(expected: Array, found: Array, least: float) -> float:
    """Return the relative distance; *least* is taken for the norm of a smaller tensor."""
    one, other = expected.astype(np.float64), found.astype(np.float64)
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(one)), least))


def cosine(one: Array, other: Array) -> float:
    """Return the cosine similarity of two tensors of one size; 1 where one is zero."""
    first, second = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    norm = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norm if norm > 0 else 1.0


def probe_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, Array]:
    """Return ordinary inputs of a network: seeded noise, as zeros can be quicker than any picture.

    Sizes that are open are 1.
    """
    random = np.random.default_rng(seed)
    return {spec.name: probe_input(spec, random) for spec in specs}


def probe_input(spec: TensorSpec, random: np.random.Generator, loudness: float = 1.0) -> Array:
    """Return noise for one input: floats about zero, integers over what a byte can hold.

    Args:
        spec: of the input.
        random: where the noise comes from.
        loudness: factor of how far the noise goes from its middle.

    """
    shape = tuple(size or 1 for size in spec.shape)
    kind = np.dtype(spec.dtype)
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu":
        # Negative only where a byte is: wider integers may be indices.
        low, high = (-128, 127) if kind == np.int8 else (0, 255)
        middle = (low + high + 1) // 2
        span = round((high - middle) * loudness)
        return random.integers(middle - span, middle + span, shape, endpoint=True).astype(kind)
    return (random.standard_normal(shape) * loudness).astype(kind)


def race(runs: Sequence[Callable[[int], object]], rounds: int) -> list[list[float]]:
    """Time functions in turns, so that what disturbs one disturbs all.

    Args:
        runs: each is called with the number of the round.
        rounds: how often.

    Returns:
        Of each the milliseconds of every round.

    """
    took: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        for run, times in zip(runs, took, strict=True):
            start = time.perf_counter()
            run(number)
            times.append((time.perf_counter() - start) * 1e3)
    return took


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two sets of outputs agree."""

    passed: bool
    why: str


def compare_outputs(
    model: Model, inputs: Tensors, expected: Tensors, found: Tensors, tolerance: float
) -> Agreement:
    """Compare two sets of outputs of one input, by the model's task."""
    if model.manifest.task in {"detection", "classification", "anomaly"} and set(expected) == set(
        found
    ):
        wanted, given = model.decode(expected, inputs), model.decode(found, inputs)
        agreement = compare_findings(wanted, given, tolerance)
        # A list whose length the network decides may differ by a box in doubt.
        fitting = all(found[name].shape == one.shape for name, one in expected.items())
        if agreement.passed and fitting and finds_nothing(wanted) and finds_nothing(given):
            return alike(expected, found)
        return agreement
    return _compare_tensors(expected, found, tolerance)


def compare_findings(
    expected: Findings, found: Findings, tolerance: float, doubt: float = 0.0
) -> Agreement:
    """Compare what two models, or one model on two engines, find in the same input.

    Args:
        expected: findings of one.
        found: findings of the other.
        tolerance: of numbers, relative.
        doubt: score below which a box may be missing: what is just above the threshold for one
            engine is just below it for the next.

    """
    match expected, found:
        case Detections(), Detections():
            share = matched(expected, found, doubt)
            return Agreement(
                share >= SHARE,
                f"{share:.0%} of {max(len(expected), len(found))} boxes found again, "
                f"{SHARE:.0%} wanted",
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
        case Values(), Values():
            return _compare_tensors(_numbers(expected.values), _numbers(found.values), tolerance)
        case RawTensors(), RawTensors():
            return _compare_tensors(expected.tensors, found.tensors, tolerance)
        case _:
            return Agreement(False, f"{type(found).__name__}, expected {type(expected).__name__}")


def finds_nothing(findings: Findings) -> bool:
    """Whether there is no box, or no class, that could be compared."""
    if isinstance(findings, Classes):
        return not findings.labels
    return isinstance(findings, Detections) and not len(findings)


def alike(expected: Tensors, found: Tensors) -> Agreement:
    """Compare all outputs of two engines as numbers, whatever they mean."""
    for name, one in expected.items():
        other = found.get(name)
        if other is None or not np.issubdtype(one.dtype, np.number):
            continue
        if one.size != other.size:
            return Agreement(False, f"output {name}: {one.size} numbers and {other.size}")
        if np.isfinite(one).all() and not np.isfinite(other).all():
            return Agreement(False, f"output {name}: holds values that are not finite")
        likeness = cosine(_unordered(one), _unordered(other))
        if likeness < LIKENESS:
            return Agreement(False, f"output {name}: cosine {likeness:.2f}, {LIKENESS} wanted")
    return Agreement(True, "outputs are alike")


def _unordered(array: Array) -> Array:
    """Return a list of boxes with each column by itself in order.

    Of noise, or where nothing is found, the last digits decide which boxes come first.
    """
    listed = array.ndim == 3 and array.shape[2] <= LISTED < array.shape[1]
    return np.sort(array, axis=1) if listed else array


def _numbers(values: Mapping[str, float]) -> dict[str, Array]:
    return {name: np.array([value]) for name, value in values.items()}


def _compare_tensors(expected: Tensors, found: Tensors, tolerance: float) -> Agreement:
    for name, wanted in expected.items():
        distance = relative_distance(wanted, found[name]) if name in found else float("inf")
        if not distance <= tolerance:
            return Agreement(
                False, f"output {name}: relative distance {distance:.3g}, allowed {tolerance:g}"
            )
    return Agreement(True, "all tensors close")


def matched(expected: Detections, found: Detections, doubt: float = 0.0) -> float:
    """Return the share of boxes that both have: same label, IoU of at least 0.5, each used once.

    Boxes below *doubt* that only one of them has do not count.
    """
    free = set(range(len(found)))
    hits = alone = 0
    for index, label in enumerate(expected.labels):
        best, best_iou = -1, IOU
        for other in free:
            if found.labels[other] != label:
                continue
            shared = overlap(expected.boxes[index], found.boxes[other])
            if shared >= best_iou:
                best, best_iou = other, shared
        if best >= 0:
            free.remove(best)
            hits += 1
        elif expected.scores[index] >= doubt:
            alone += 1
    alone = max(alone, sum(1 for other in free if found.scores[other] >= doubt))
    return hits / (hits + alone) if hits + alone else 1.0


def overlap(one: Array, other: Array) -> float:
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
