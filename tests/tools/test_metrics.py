"""Figures of accuracy, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.core.types import Anomaly, Classes, Detections
from edge_agent.tools.evaluation import Scores
from edge_agent.tools.metrics import Truth, auc, mean_average_precision, top1
from edge_agent.tools.quantize import Row, score_shift

BOX = [0.0, 0.0, 10.0, 10.0]
OTHER = [50.0, 50.0, 60.0, 60.0]


def boxes(*found: tuple[str, float, list[float]]) -> Detections:
    """Make detections."""
    return Detections(
        np.array([box for _, _, box in found], np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in found], np.float32),
        tuple(label for label, _, _ in found),
    )


def truth(*shown: tuple[str, list[float]]) -> Truth:
    """Make what a picture shows."""
    corners = np.array([box for _, box in shown], np.float32).reshape(-1, 4)
    return Truth(None, corners, tuple(label for label, _ in shown))


def test_top1() -> None:
    """The share of samples whose best class is the true one; none found is wrong."""
    found = [Classes(("a", "b"), (0.9, 0.1)), Classes(("b",), (0.8,)), Classes((), ())]
    assert top1(found, [Truth("a"), Truth("a"), Truth("a")]) == pytest.approx(1 / 3)


def test_auc() -> None:
    """The chance that something abnormal scores higher; a tie counts half."""
    found = [Anomaly(score, 1.0) for score in (1.0, 2.0, 2.0, 3.0)]
    truths = [Truth("normal"), Truth("normal"), Truth("broken"), Truth("broken")]
    assert auc(found, truths) == pytest.approx((1 + 0.5 + 1 + 1) / 4)


def test_average_precision() -> None:
    """Of two true boxes one is found after a false one: precision 1/2 up to recall 1/2."""
    found = [boxes(("a", 0.9, OTHER), ("a", 0.8, BOX)), boxes()]
    truths = [truth(("a", BOX)), truth(("a", BOX))]
    # 51 of 101 recalls, 0 to 0.5, are reached.
    assert mean_average_precision(found, truths) == pytest.approx(0.5 * 51 / 101)


def test_a_second_box_on_the_same_object_is_false() -> None:
    """Each true box can be found once; all found in order is 1."""
    perfect = [boxes(("a", 0.9, BOX), ("b", 0.8, OTHER))]
    truths = [truth(("a", BOX), ("b", OTHER))]
    assert mean_average_precision(perfect, truths) == pytest.approx(1.0)
    twice = [boxes(("a", 0.9, BOX), ("a", 0.8, BOX), ("a", 0.7, OTHER))]
    truths = [truth(("a", BOX), ("a", OTHER))]
    # Recall 1/2 at precision 1, recall 1 at precision 2/3.
    assert mean_average_precision(twice, truths) == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_the_shift_of_scores_is_that_of_samples_in_which_both_find_something() -> None:
    """Faces that fall from 1.00 to 0.81 are told, though the same boxes are found."""
    rows = [
        Row("exact", Scores(1.0, None, (1.0,) * 3, tuple(found)), None)
        for found in ([best(1.0), best(0.9), best()], [best(0.81), best(0.85), best(0.4)])
    ]
    assert score_shift(*rows) == pytest.approx(-0.12)


def best(*scores: float) -> Classes:
    return Classes(tuple("a" for _ in scores), scores)
