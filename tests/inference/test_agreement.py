"""What counts as the same."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.core.types import (
    Anomaly,
    Array,
    Classes,
    Detections,
    RawTensors,
    TensorSpec,
    Values,
)
from edge_agent.inference.agreement import (
    Margin,
    compare_findings,
    compare_likeness,
    compare_tensors,
    cosine,
    relative_distance,
    strict_distance,
)
from edge_agent.models.files.facts import NetworkFacts

STRICT, USUAL = Margin(0), Margin(0.05)


def detections(*found: tuple[str, float, tuple[float, float, float, float]]) -> Detections:
    """Make what a detector found, of label, score and box."""
    return Detections(
        np.array([box for _, _, box in found], np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in found], np.float32),
        tuple(label for label, _, _ in found),
    )


CUP = ("cup", 0.9, (0.0, 0.0, 10.0, 10.0))


def matched(one: Detections, other: Detections, margin: Margin = STRICT) -> float:
    """Return the share of boxes that both have."""
    return compare_findings(one, other, margin).share


def test_boxes_match_by_label_and_overlap() -> None:
    """A box found a little aside matches; of another label, or half aside, it does not."""
    aside = ("cup", 0.5, (2.0, 0.0, 12.0, 10.0))  # IoU 8/12
    far = ("cup", 0.9, (5.0, 0.0, 15.0, 10.0))  # IoU 5/15
    other = ("jug", 0.9, (0.0, 0.0, 10.0, 10.0))
    assert matched(detections(CUP), detections(aside)) == 1
    assert matched(detections(CUP), detections(far)) == 0
    assert matched(detections(CUP), detections(other)) == 0


def test_each_box_is_matched_once_and_each_too_many_counts() -> None:
    """Two boxes where one was, or one where two were, are half a match."""
    assert matched(detections(CUP), detections(CUP, CUP)) == 0.5
    assert matched(detections(CUP, CUP), detections(CUP)) == 0.5
    assert matched(detections(), detections()) == 1
    assert matched(detections(), detections(CUP)) == 0


def test_boxes_near_the_threshold_count_only_where_both_have_them() -> None:
    """What is near the threshold may be missing on either side; what is sure may not."""
    unsure = ("cup", 0.52, (50.0, 0.0, 60.0, 10.0))
    for one, other in ((detections(CUP, unsure), detections(CUP)), (detections(), detections(CUP))):
        strict, lenient = matched(one, other), matched(one, other, Margin(0.05, 0.5))
        assert strict < 1
        assert lenient == (1 if len(one) else 0)
        assert matched(other, one, Margin(0.05, 0.5)) == lenient
    assert matched(detections(unsure), detections(unsure), Margin(0.05, 0.5)) == 1
    assert matched(detections(unsure), detections(), Margin(0.05, 0.5)) == 1


def test_nineteen_of_twenty_boxes_are_enough() -> None:
    """95 % of boxes found again pass, fewer do not."""
    boxes = [("cup", 0.9, (20.0 * i, 0.0, 20.0 * i + 10, 10.0)) for i in range(20)]
    all_of_them = detections(*boxes)
    assert compare_findings(all_of_them, detections(*boxes[1:]), STRICT).passed
    assert not compare_findings(all_of_them, detections(*boxes[2:]), STRICT).passed


def test_anomaly_scores_agree_relatively() -> None:
    """A score within the tolerance of what was expected agrees; above it, it does not."""
    assert compare_findings(Anomaly(2.0, 1), Anomaly(2.09, 1), USUAL).passed
    assert not compare_findings(Anomaly(2.0, 1), Anomaly(2.11, 1), USUAL).passed


def test_nothing_found_agrees_with_nothing_found_alone() -> None:
    """No class expected and none found agree; one found instead does not."""
    none = Classes((), ())
    assert compare_findings(none, none, STRICT).passed
    assert not compare_findings(none, Classes(("a",), (1.0,)), STRICT).passed


def test_findings_of_two_kinds_do_not_agree() -> None:
    """A classifier's answer is no detector's."""
    assert not compare_findings(Classes(("a",), (1.0,)), detections(), Margin(1)).passed


def test_a_distance_is_relative_and_infinite_where_there_is_none() -> None:
    """Twice as long is a distance of 1; other shapes and NaN are infinitely far."""
    one = np.ones(4, np.float32)
    assert relative_distance(one, 2 * one) == 1
    assert relative_distance(one, np.ones(5, np.float32)) == float("inf")
    assert relative_distance(one, one * np.float32("nan")) == float("inf")
    # Integers of a quantized network must not wrap around.
    assert relative_distance(np.array([200], np.uint8), np.array([100], np.uint8)) == 0.5


def test_measured_values_agree_within_the_tolerance() -> None:
    """Two models that give numbers are compared number by number."""
    assert compare_findings(Values({"v": 100.0}), Values({"v": 101.0}), USUAL).passed
    assert not compare_findings(Values({"v": 100.0}), Values({"v": 150.0}), USUAL).passed
    raw = RawTensors({"t": np.array([1.0, 2.0])})
    assert not compare_findings(raw, RawTensors({"t": np.array([2.0, 1.0])}), USUAL).passed


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        (np.ones(2, np.float32), np.ones(2, np.float32), 0.0),
        (np.array([np.nan, 1]), np.array([np.nan, 1]), 0.0),
        (np.array([np.nan, 1]), np.array([1.0, 1]), float("inf")),
        (np.ones(2, np.float32), np.ones(2, np.float64), float("inf")),
        (np.ones(2, np.bool_), np.zeros(2, np.bool_), float("inf")),
        (np.full(2, 1e-20), np.full(2, 2e-20), 1.0),
    ],
)
def test_strictly_only_the_same_bits_are_no_distance(
    one: Array, other: Array, distance: float
) -> None:
    """NaN in the same place is the same; another type, or a truth value, is no number near."""
    assert strict_distance(one, other) == pytest.approx(distance)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_outputs_that_hold_no_numbers_are_unlike(wrong: float) -> None:
    """They have no direction that a cosine could tell, unless the reference gives the like."""
    one = np.linspace(0, 0.4, 160, dtype=np.float32).reshape(1, 8, 20)
    bad = one.copy()
    bad[0, 3, 4] = wrong
    agreement = compare_likeness({"y": one}, {"y": bad}, USUAL)
    assert not agreement.passed
    assert "output y: holds values that are not finite" in agreement.why
    assert compare_likeness({"y": bad}, {"y": one}, USUAL).passed


def test_classes_of_boxes_that_are_not_found_are_not_alike() -> None:
    """A traffic-light SSD's worst boxes came in another order, and health called it wrong."""
    scores = np.linspace(0.03, 0.01, 10, dtype=np.float32)[None]
    one = np.array([[0, 3, 1, 0, 0, 2, 0, 3, 0, 0]], np.float32)
    expected = {"classes": one, "scores": scores}
    for kind in ("f4", "i8"):
        found = {"classes": one[:, ::-1].astype(kind), "scores": scores}
        assert compare_likeness(expected | {"classes": one.astype(kind)}, found, USUAL).passed
    assert not compare_likeness(expected, {"classes": one, "scores": 1 - 30 * scores}, USUAL).passed


def test_cosine_of_what_points_the_other_way() -> None:
    """Tensors that are alike but for a factor have 1, opposite ones -1, and a zero tensor 1."""
    one = np.array([[1.0, 2.0]])
    assert cosine(one, 3 * one) == pytest.approx(1)
    assert cosine(one, -one) == pytest.approx(-1)
    assert cosine(one, 0 * one) == 1


@pytest.mark.parametrize(("best", "other", "agree"), [(0.5, 0.48, True), (0.5, 0.3, False)])
def test_a_class_as_likely_as_the_best_is_no_difference(
    best: float, other: float, agree: bool
) -> None:
    """Which of two that are within the margin comes first says nothing."""
    expected = Classes(("a", "b"), (best, other))
    found = Classes(("b", "a"), (best, other))
    assert compare_findings(expected, found, USUAL).passed is agree
    assert not compare_findings(expected, found, STRICT).passed


def test_of_a_thousand_faint_classes_not_every_one_is_the_best() -> None:
    """Scores that are all below the margin still differ."""
    faint = Classes(("a", "b"), (0.04, 0.01))
    assert not compare_findings(faint, Classes(("b", "a"), (0.04, 0.01)), USUAL).passed


SURELY_NOTHING = np.full((1, 1, 4), 1e-8, np.float32)


def test_surely_nothing_never_condemns() -> None:
    """1e-8 beside 1e-7: no engine's Sigmoid is that exact, and neither finds anything."""
    tenfold = 10 * SURELY_NOTHING
    uneven = SURELY_NOTHING * np.array([1, 0, 12, 0], np.float32)
    for found in (tenfold, uneven, 0 * tenfold):
        for compare in (compare_tensors, compare_likeness):
            assert compare({"map": SURELY_NOTHING}, {"map": found}, USUAL).passed
            assert compare({"map": found}, {"map": SURELY_NOTHING}, USUAL).passed
    assert compare_findings(Anomaly(1e-8, 0.5), Anomaly(1e-7, 0.5), USUAL).passed
    assert compare_findings(Values({"v": 1e-8}), Values({"v": 1e-7}), USUAL).passed


def test_above_its_scale_a_number_must_be_as_large() -> None:
    """What is not nothing is compared relative to its size."""
    one = {"map": np.full(4, 0.01, np.float32)}
    assert not compare_tensors(one, {"map": np.full(4, 0.02, np.float32)}, USUAL).passed
    assert not compare_findings(Anomaly(0.6, 0.5), Anomaly(0.5, 0.5), USUAL).passed


def test_an_outputs_range_is_its_scale() -> None:
    """Of chances, five points are as good as none; a single pixel that is found is not."""
    facts = NetworkFacts(
        kind="onnx",
        files=(),
        inputs=(),
        outputs=(),
        makers={"map": "Sigmoid"},
        metadata={},
        nodes=1,
        operators=frozenset(),
        weight_bytes=0,
        quantized=False,
    )
    chances = Margin(0.05, facts=lambda: facts)
    empty = np.zeros((1, 64, 64), np.float32)
    step = empty + np.float32(1 / 256)
    assert compare_tensors({"map": empty}, {"map": step}, chances).passed
    found = empty.copy()
    found[0, 3, 3] = 1
    assert not compare_tensors({"map": empty}, {"map": found}, chances).passed


def test_integers_read_in_steps_have_the_range_of_these() -> None:
    """Degrees of int8 were within the margin of what 255 degrees would be."""
    facts = NetworkFacts(
        kind="onnx",
        files=(),
        inputs=(),
        outputs=(TensorSpec("t", (1, 2), "int8"),),
        makers={},
        metadata={},
        nodes=1,
        operators=frozenset(),
        weight_bytes=0,
        quantized=True,
        steps={"t": (0.1, -128)},
    )
    margin = Margin(0.05, facts=lambda: facts)
    one, near, far = (RawTensors({"t": np.array([20.0, each], "f4")}) for each in (1, 2, 9))
    assert compare_findings(one, near, margin).passed
    assert not compare_findings(one, far, margin).passed


def test_a_disagreement_names_the_tolerance_and_its_key() -> None:
    """So that who maintains the model knows what to set."""
    why = compare_findings(Values({"v": 100.0}), Values({"v": 150.0}), USUAL).why
    assert why == "output v: relative distance 0.5 ([trial] tolerance = 0.05 in model.toml)"
