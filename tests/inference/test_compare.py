"""What counts as the same, what a network is probed with, and how runs are timed."""

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
from edge_agent.inference.compare import (
    alike,
    compare_findings,
    cosine,
    matched,
    probe_input,
    probe_inputs,
    race,
    relative_distance,
    strict_distance,
)


def detections(*found: tuple[str, float, tuple[float, float, float, float]]) -> Detections:
    """Make what a detector found, of label, score and box."""
    return Detections(
        np.array([box for _, _, box in found], np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in found], np.float32),
        tuple(label for label, _, _ in found),
    )


CUP = ("cup", 0.9, (0.0, 0.0, 10.0, 10.0))


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


def test_boxes_in_doubt_count_only_where_both_have_them() -> None:
    """What is near the threshold may be missing on either side; what is sure may not."""
    unsure = ("cup", 0.52, (50.0, 0.0, 60.0, 10.0))
    for one, other in ((detections(CUP, unsure), detections(CUP)), (detections(), detections(CUP))):
        strict, lenient = matched(one, other), matched(one, other, doubt=0.55)
        assert strict < 1
        assert lenient == (1 if len(one) else 0)
        assert matched(other, one, doubt=0.55) == lenient
    assert matched(detections(unsure), detections(unsure), doubt=0.55) == 1
    assert matched(detections(unsure), detections(), doubt=0.55) == 1


def test_nineteen_of_twenty_boxes_are_enough() -> None:
    """95 % of boxes found again pass, fewer do not."""
    boxes = [("cup", 0.9, (20.0 * i, 0.0, 20.0 * i + 10, 10.0)) for i in range(20)]
    all_of_them = detections(*boxes)
    assert compare_findings(all_of_them, detections(*boxes[1:]), 0).passed
    assert not compare_findings(all_of_them, detections(*boxes[2:]), 0).passed


def test_anomaly_scores_agree_relatively() -> None:
    """A score within the tolerance of what was expected agrees; above it, it does not."""
    assert compare_findings(Anomaly(2.0, 1), Anomaly(2.09, 1), 0.05).passed
    assert not compare_findings(Anomaly(2.0, 1), Anomaly(2.11, 1), 0.05).passed


def test_nothing_found_agrees_with_nothing_found_alone() -> None:
    """No class expected and none found agree; one found instead does not."""
    none = Classes((), ())
    assert compare_findings(none, none, 0).passed
    assert not compare_findings(none, Classes(("a",), (1.0,)), 0).passed


def test_findings_of_two_kinds_do_not_agree() -> None:
    """A classifier's answer is no detector's."""
    assert not compare_findings(Classes(("a",), (1.0,)), detections(), 1).passed


def test_a_distance_is_relative_and_infinite_where_there_is_none() -> None:
    """Twice as long is a distance of 1; other shapes and NaN are infinitely far."""
    one = np.ones(4, np.float32)
    assert relative_distance(one, 2 * one) == 1
    assert relative_distance(one, np.ones(5, np.float32)) == float("inf")
    assert relative_distance(one, one * np.float32("nan")) == float("inf")
    # Integers of a quantised network must not wrap around.
    assert relative_distance(np.array([200], np.uint8), np.array([100], np.uint8)) == 0.5


def test_measured_values_agree_within_the_tolerance() -> None:
    """Two models that give numbers are compared number by number."""
    assert compare_findings(Values({"v": 100.0}), Values({"v": 101.0}), 0.05).passed
    assert not compare_findings(Values({"v": 100.0}), Values({"v": 150.0}), 0.05).passed
    raw = RawTensors({"t": np.array([1.0, 2.0])})
    assert not compare_findings(raw, RawTensors({"t": np.array([2.0, 1.0])}), 0.05).passed


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
    agreement = alike({"y": one}, {"y": bad})
    assert not agreement.passed
    assert "output y: holds values that are not finite" in agreement.why
    assert alike({"y": bad}, {"y": one}).passed


def test_cosine_of_what_points_the_other_way() -> None:
    """Tensors that are alike but for a factor have 1, opposite ones -1, and a zero tensor 1."""
    one = np.array([[1.0, 2.0]])
    assert cosine(one, 3 * one) == pytest.approx(1)
    assert cosine(one, -one) == pytest.approx(-1)
    assert cosine(one, 0 * one) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8", "int64", "bool"])
def test_probes_are_noise_that_comes_again(dtype: str) -> None:
    """By their seed, of the type and shape asked for, and wide integers fit for an index."""
    spec = TensorSpec("x", (None, 40), dtype)
    (one,), (other,) = probe_inputs([spec], 3).values(), probe_inputs([spec], 3).values()
    assert (one.shape, one.dtype.name) == ((1, 40), dtype)
    assert np.array_equal(one, other)
    assert len(np.unique(one)) > 1
    assert dtype != "int64" or one.min() >= 0


def test_a_quiet_probe_stays_near_the_middle() -> None:
    """At a tenth of the loudness, integers too."""
    quiet = probe_input(TensorSpec("x", (500,), "uint8"), np.random.default_rng(1), 0.1)
    assert (quiet.min() >= 115, quiet.max() <= 141) == (True, True)


def test_a_race_goes_in_turns() -> None:
    """Each run is called once in every round, after the one before it."""
    order: list[tuple[str, int]] = []
    took = race([lambda n: order.append(("a", n)), lambda n: order.append(("b", n))], 3)
    assert order == [(name, number) for number in range(3) for name in "ab"]
    assert [len(times) for times in took] == [3, 3]
