"""Whether two answers of one model agree: from two engines, two versions, or a golden file.

There is one margin, `[trial] tolerance` in the manifest. It is absolute for values on a known
scale: scores of classes and boxes (0 to 1), an anomaly's threshold, the range of an output.
Everything else is compared relative to its own size. Findings within the margin of a threshold may
or may not be reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.areas import Areas
from ..core.containment import contained
from ..core.errors import AgentError
from ..core.frozen import record
from ..core.types import Anomaly, Array, Classes, Detections, Findings, Tensors
from ..models.decoders import BOXED
from .likeness import unmatched

if TYPE_CHECKING:
    from ..models.files.facts import NetworkFacts
    from .model import Model

SHARE = 0.95
"""Share of the boxes that must be found again, and of the golden cases that must agree."""
LEAST_SHARE = 0.5
"""Share of boxes that must be found again, however few the reference itself finds again."""
AS_LIKELY = 0.8
"""A class that may be named best instead of another has at least this share of its score."""
LEAST_COSINE = 0.9
"""Required between two outputs in which nothing is found. The outputs of a broken kernel are not
alike at all (openvino#37446: -0.08)."""
UNKNOWN_SCALE = 1e-4
"""Scale of an output whose range is not known: 5 % of it is above the last digits of functions that
engines approximate (ONNX Runtime's Sigmoid is off by up to 1e-7)."""
LIST_COLUMNS = 7
"""Most columns in a list of boxes: image, class, score, and corners."""
MOST_OF_RANGE = 0.05
"""Share of an output's range by which a number may be off, however large the tolerance is."""
EIGHT_BITS = 0.25
"""Relative distance between outputs of an eight-bit network on two engines that are both right:
each step is rounded. LiteRT's two sets of kernels are up to 0.12 apart on MobileNetV2, ONNX
Runtime's two up to 0.18 (measured)."""
_CHANCES = frozenset({"Sigmoid", "HardSigmoid"})
_CHANCES_8 = _CHANCES | {"Softmax", "SoftMax"}
"""Operators that give probabilities, 0 to 1. Those of a float Softmax add up to 1, so none is small
because nothing is found."""
INFINITE = float("inf")


@record(quick=True)
class Agreement:
    """The degree to which two answers agree."""

    passed: bool
    why: str
    share: float = 1.0
    """Share of the boxes that both have; for anything else 1 or 0."""
    evidence: bool = True
    """False: not passed, but the input tells nothing, as rounding decides the answer to it."""


@record(quick=True, eq=False)
class Margin:
    """How far apart two answers may be and still agree."""

    tolerance: float
    threshold: float = 0.0
    """Least score of reported findings."""
    facts: Callable[[], NetworkFacts] | None = None
    """Reads facts about the outputs from the network's file; None: they are unknown."""

    @property
    def certain(self) -> float:
        """The lowest score at which a result must be reported: not near the threshold."""
        return self.threshold + self.tolerance

    def scale(self, output: str, dtype: str) -> float:
        """Return the range of an output in numbers of a type, or a default if it is unknown."""
        if self.facts is None:
            return UNKNOWN_SCALE
        facts = self.facts()
        if dtype in {"int8", "uint8"}:
            return 255.0
        if facts.makers.get(output) in (_CHANCES_8 if facts.quantized else _CHANCES):
            return 1.0
        step = facts.steps.get(output)
        return UNKNOWN_SCALE if step is None else 255 * step[0]

    def disagreement(self, why: str, share: float = 0.0) -> Agreement:
        """Return a disagreement; its reason names the key that changes the margin."""
        key = f"[trial] tolerance = {self.tolerance:g} in model.toml"
        return Agreement(False, f"{why} ({key})", share)


def margin_of(model: Model, threshold: float | None = None) -> Margin:
    """Return the margin of a model; *threshold*, if given, replaces the manifest's."""
    return Margin(
        model.manifest.trial.tolerance,
        model.threshold if threshold is None else threshold,
        cache(partial(_facts, model.folder.network)),
    )


def _facts(network: Path) -> NetworkFacts:
    """Read the facts in a network's file; imported only when two answers differ."""
    from ..models.files.check_onnx import inspect

    return inspect(network)


@record(quick=True, eq=False)
class Answer:
    """A model's answer to one input."""

    outputs: Tensors
    found: Findings
    """Decoded, in pixels of the network's input."""


def answer_of(model: Model, tensors: Tensors) -> Answer:
    """Run a model on its network's inputs, unfolded.

    Raises:
        AgentError: it fails, or its outputs cannot be decoded.
    """
    outputs = model.run(tensors)
    return Answer(outputs, model.decode(outputs, tensors))


@record(quick=True, eq=False)
class InNoise:
    """What a trusted model makes of an input with noise."""

    of_a_level: Findings
    """With noise of one gray level, 1/255 of the range of each picture, (n, c, h, w) or
    (n, h, w, c)."""
    of_rounding: Iterable[Answer]
    """With noise as small as rounding in every number of a float input, several times."""


ROUNDING = 1e-6
"""Relative; float32 rounds to 6e-8, once for each of many additions."""
TIMES = 8
"""Of several classes, chance may find the same one again and again."""


def answer_in_noise(reference: Model, tensors: Tensors) -> InNoise:
    """Run a trusted model on inputs with noise.

    Raises:
        AgentError: the model fails.
    """
    random = np.random.default_rng(19)
    noisy = dict(tensors)
    for name, array in tensors.items():
        if array.ndim != 4:
            continue
        noise = random.uniform(-1, 1, array.shape)
        if array.dtype.kind == "f":
            noisy[name] = (array + noise * (np.ptp(array) / 255)).astype(array.dtype)
        elif array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            levels = array.astype(np.int64) + np.rint(noise).astype(np.int64)
            noisy[name] = np.clip(levels, limits.min, limits.max).astype(array.dtype)

    def rounded(array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        near = array * (1 + random.uniform(-ROUNDING, ROUNDING, array.shape))
        return np.asarray(near, array.dtype)

    again = (
        answer_of(reference, {name: rounded(array) for name, array in tensors.items()})
        for _ in range(TIMES)
    )
    return InNoise(answer_of(reference, noisy).found, again)


def compare_models(reference: Model, model: Model, tensors: Tensors) -> Agreement:
    """Compare a model's findings in one input, of the unfolded network, on two engines.

    Raises:
        AgentError: one of them fails.
    """
    with contained(model.id):
        expected, found = answer_of(reference, tensors), answer_of(model, tensors)
        return compare_answers(model, expected, found, partial(answer_in_noise, reference, tensors))


def compare_outputs(model: Model, inputs: Tensors, expected: Tensors, found: Tensors) -> Agreement:
    """Compare two sets of outputs for one input, as `compare_answers` does."""
    if not _is_decoded(model) or expected.keys() != found.keys():
        return compare_tensors(expected, found, margin_of(model))
    wanted, given = (
        Answer(outputs, model.decode(outputs, inputs)) for outputs in (expected, found)
    )
    return compare_answers(model, wanted, given)


def compare_answers(
    model: Model,
    expected: Answer,
    found: Answer,
    in_noise: Callable[[], InNoise] | None = None,
) -> Agreement:
    """Compare two answers to one input: by their findings, else by the numbers in the outputs.

    *expected* is the trusted one; *in_noise* returns what the trusted model makes of the same input
    with noise. An input that its rounding decides tells nothing about another engine, and there are
    such for most networks: whoever may send tensors can find some.
    """
    noisy = None if in_noise is None else cache(in_noise)
    agreement = _compare_answers(model, expected, found, noisy)
    if agreement.passed or noisy is None:
        return agreement
    try:
        again = (_compare_answers(model, expected, each, None) for each in noisy().of_rounding)
        steady = all(each.passed for each in again)
    except AgentError:
        steady = False  # so near to it, the trusted model itself fails
    if steady:
        return agreement
    return replace(agreement, why=f"{agreement.why}: by rounding alone", evidence=False)


def _compare_answers(
    model: Model, expected: Answer, found: Answer, in_noise: Callable[[], InNoise] | None
) -> Agreement:
    margin = margin_of(model)
    if not _is_decoded(model):
        states = set(model.manifest.input.state.values())
        results = {name: one for name, one in expected.outputs.items() if name not in states}
        agreement = compare_tensors(results, found.outputs, margin)
        # Facts are read only when answers differ, so that a start does not wait for them.
        if agreement.passed or in_noise is None or not _facts(model.folder.network).quantized:
            return agreement
        wider = replace(margin, tolerance=max(margin.tolerance, EIGHT_BITS))
        return compare_tensors(results, found.outputs, wider)
    agreement = compare_findings(expected.found, found.found, margin)
    if not agreement.passed:
        if in_noise is None or not _is_crowd(in_noise, expected.found, agreement.share, margin):
            return agreement
        return Agreement(True, f"{agreement.why}; no fewer than with noise", agreement.share)
    if _nothing_compared(expected.found, found.found):
        # Lists whose length the network decides may differ by a box near the threshold.
        sizes = all(
            found.outputs[name].shape == one.shape for name, one in expected.outputs.items()
        )
        rest = _without_classes(model, expected.outputs)
        return compare_likeness(rest, found.outputs, margin) if sizes else agreement
    return agreement


def _is_decoded(model: Model) -> bool:
    """Whether findings are compared; for other tasks the outputs are compared instead."""
    return model.manifest.task in BOXED - {"text"} | {"classification", "segmentation", "anomaly"}


def compare_findings(expected: Findings, found: Findings, margin: Margin) -> Agreement:
    """Compare two findings in the same input.

    Boxes: at least `SHARE` of those not near the threshold are found again. Classes: the same one
    is best, or one that is as likely. Numbers: within the margin.
    """
    match expected, found:
        case Detections(), Detections():
            return _compare_boxes(expected, found, margin)
        case Areas(), Areas():
            same = expected.grid.shape == found.grid.shape
            share = float((expected.grid == found.grid).mean()) if same else 0.0
            words = f"{share:.0%} of all cells are of the same class, {SHARE:.0%} wanted"
            passed = share >= SHARE
            return Agreement(True, words, share) if passed else margin.disagreement(words, share)
        case Classes(), Classes():
            return _compare_classes(expected, found, margin)
        case Anomaly(), Anomaly():
            threshold = expected.threshold or margin.threshold
            scale = threshold if np.isfinite(threshold) else UNKNOWN_SCALE
            if abs(found.score - expected.score) <= margin.tolerance * max(
                abs(expected.score), scale
            ):
                return Agreement(True, "score within the tolerance")
            return margin.disagreement(f"score {found.score:.4g}, expected {expected.score:.4g}")
        case _ if type(found) is type(expected):
            return compare_tensors(expected.numbers(), found.numbers(), margin)
        case _:
            why = f"{type(found).__name__}, expected {type(expected).__name__}"
            return margin.disagreement(why)


def _compare_boxes(expected: Detections, found: Detections, margin: Margin) -> Agreement:
    missing, extra, same = unmatched(expected, found, margin.certain)
    differing = max(len(missing), len(extra))
    share = same / (same + differing) if same + differing else 1.0
    words = f"{share:.0%} of {same + differing} boxes found again, {SHARE:.0%} wanted"
    return Agreement(True, words, share) if share >= SHARE else margin.disagreement(words, share)


def _compare_classes(expected: Classes, found: Classes, margin: Margin) -> Agreement:
    one, other = expected.labels[:1], found.labels[:1]
    words = f"best class {' '.join(other) or 'none'}, expected {' '.join(one) or 'none'}"
    if one and other:
        scores = dict(zip(expected.labels, expected.scores, strict=True))
        best = expected.scores[0]
        agree = scores.get(other[0], 0.0) >= max(best - margin.tolerance, best * AS_LIKELY)
        agree |= one == other
    else:
        alone = (*expected.scores[:1], *found.scores[:1])
        agree = not alone or alone[0] < margin.certain
    return Agreement(True, words) if agree else margin.disagreement(words)


def _is_crowd(
    in_noise: Callable[[], InNoise], expected: Findings, share: float, margin: Margin
) -> bool:
    """Whether as many boxes are found again as the reference finds again in noise.

    Among many boxes of equal score, or in a full list, rounding decides which stay. Measured on
    YOLOs with random weights, with noise of one gray level: INT8 and FP16 found 59 to 99 % again
    where the reference found 23 to 91 %; a broken kernel 0 to 38 % where it found 34 to 67 %. With
    a trained network the reference finds all boxes again, and no difference is accepted.
    """
    if not isinstance(expected, Detections) or share < LEAST_SHARE:
        return False
    return share >= compare_findings(expected, in_noise().of_a_level, margin).share


def _nothing_compared(expected: Findings, found: Findings) -> bool:
    """Whether there is nothing to compare: no boxes in either, or no classes in one of them."""
    if isinstance(expected, Classes) and isinstance(found, Classes):
        return not expected.labels or not found.labels
    if isinstance(expected, Detections) and isinstance(found, Detections):
        return not len(expected) and not len(found)
    return False


# Numbers


def compare_tensors(expected: Tensors, found: Tensors, margin: Margin) -> Agreement:
    """Compare outputs: relative L2 distance, or each number within the margin of its scale."""
    for name, wanted in expected.items():
        given = found.get(name)
        if given is None or given.shape != wanted.shape:
            return margin.disagreement(f"output {name}: is missing, or of another size")
        distance = distance_within(name, wanted, given, margin)
        if distance > margin.tolerance:
            return margin.disagreement(f"output {name}: relative distance {distance:.3g}")
    return Agreement(True, "all tensors close")


def compare_likeness(expected: Tensors, found: Tensors, margin: Margin) -> Agreement:
    """Check that outputs are alike: those in which nothing is found, or for inputs of noise."""
    for name, one in expected.items():
        other = found.get(name)
        if other is None or not np.issubdtype(one.dtype, np.number) or _are_classes(one):
            continue
        if one.size != other.size:
            return margin.disagreement(f"output {name}: {one.size} numbers and {other.size}")
        if np.isfinite(one).all() and not np.isfinite(other).all():
            return margin.disagreement(f"output {name}: holds values that are not finite")
        likeness = cosine(_unordered(one), _unordered(other))
        if likeness < LEAST_COSINE and not _near(name, one, other, margin):
            why = f"output {name}: cosine {likeness:.2f}, {LEAST_COSINE} wanted"
            return margin.disagreement(why)
    return Agreement(True, "outputs are alike")


def compare_on_noise(reference: Model, model: Model, tensors: Tensors) -> Agreement:
    """Compare a model's outputs on two engines for inputs of noise, whatever the outputs mean.

    Args:
        reference: the model on the trusted engine.
        model: the model on the other engine.
        tensors: the network's inputs, unfolded.

    Raises:
        AgentError: one of them fails.
    """
    margin = margin_of(model)
    expected = _without_classes(model, reference.run(tensors))
    agreement = compare_likeness(expected, model.run(tensors), margin)
    if agreement.passed:
        return agreement
    pair = f"{model.engine.label} and {reference.engine.label} without optimization disagree"
    return Agreement(False, f"{pair}: {agreement.why}", agreement.share)


def distance_within(name: str, expected: Array, found: Array, margin: Margin) -> float:
    """Return the relative distance of an output of any shape; 0 within the margin of its scale."""
    distance = relative_distance(expected, found)
    near = distance > margin.tolerance and _near(name, expected, found, margin)
    return 0.0 if near else distance


def _near(name: str, one: Array, other: Array, margin: Margin) -> bool:
    """Whether no number in an output differs by more than the margin on the output's scale.

    For class numbers or indices, integers of at least 32 bits: whether nearly all are equal.
    """
    if one.shape != other.shape or one.dtype.kind not in "iuf" or not one.size:
        return False
    if one.dtype.kind in "iu" and one.dtype.itemsize >= 4:
        return bool((one == other).mean() >= SHARE)
    farthest = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
    share = min(margin.tolerance, MOST_OF_RANGE)
    return bool(farthest <= share * margin.scale(name, str(one.dtype)))


def relative_distance(expected: Array, found: Array) -> float:
    """Return the L2 distance of two tensors, of any shape and type, relative to the first.

    Infinite if shapes differ or *found* is not finite.
    """
    if expected.shape != found.shape or not np.isfinite(found).all():
        return INFINITE
    return _distance(expected, found, 1e-9)


def strict_distance(expected: Array, found: Array) -> float:
    """Return the relative L2 distance of two tensors; 0 only if they are equal bit for bit.

    Infinite if shapes, types, or places of NaN differ, or if the tensors hold no numbers.
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
    """Return the distance relative to the norm of *expected*, which counts as *least* or more."""
    one, other = expected.astype(np.float64), found.astype(np.float64)
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(one)), least))


def cosine(one: Array, other: Array) -> float:
    """Return the cosine similarity of two tensors of the same shape; 1 if one is all zeros."""
    first, second = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    norm = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norm if norm > 0 else 1.0


def _without_classes(model: Model, outputs: Tensors) -> Tensors:
    """Return outputs without the one that a manifest names for boxes' classes."""
    classes = model.manifest.output.names.get("classes")
    return {name: array for name, array in outputs.items() if name != classes}


def _are_classes(array: Array) -> bool:
    """Whether an output is a list of class numbers, of which none is near another."""
    if array.ndim != 2 or array.size < 2 or array.dtype.itemsize < 2:  # bytes: quantized numbers
        return False
    return bool(np.isfinite(array).all() and (array == np.rint(array)).all() and array.max() > 1)


def _unordered(array: Array) -> Array:
    """Return a list of boxes (1, n, columns) with each column sorted by itself.

    For noise, or where nothing is found, rounding decides which boxes come first.
    """
    listed = array.ndim == 3 and array.shape[2] <= LIST_COLUMNS < array.shape[1]
    return np.sort(array, axis=1) if listed else array
