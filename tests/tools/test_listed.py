"""Lists of boxes on two engines: what rounding cannot change is compared, nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from edge_agent.tools.listed import comparable, without_rest

DETECTED = {"boxes_yxyx": "b", "classes": "c", "scores": "s"}


def outputs(scores: list[float], classes: list[int]) -> dict[str, NDArray[Any]]:
    """Make the outputs of a detector; boxes are told apart by their class."""
    return {
        "s": np.array([scores], np.float32),
        "c": np.array([classes], np.float32),
        "b": np.array([classes], np.float32)[..., None].repeat(4, axis=2),
    }


def test_google_coco_ssd_mobilenet_v1_boxes_of_nearly_equal_scores_change_places() -> None:
    """The first box leads clearly; of the others the order, and the last, are rounding's."""
    one = outputs([0.51, 0.16, 0.15, 0.14], [27, 31, 30, 29])
    other = outputs([0.51, 0.16, 0.15, 0.14], [27, 30, 31, 5])
    pairs = comparable(one, other, DETECTED)
    assert_array_equal(pairs["c"], [[27], [27]])
    assert_array_equal(pairs["b"][0], [[27] * 4])
    assert pairs["s"][1] is other["s"]
    wrong = comparable(one, outputs([0.51, 0.16, 0.15, 0.14], [7, 31, 30, 29]), DETECTED)
    assert_array_equal(wrong["c"], [[27], [7]])


def test_other_outputs_are_compared_whole() -> None:
    """A network without a list of boxes, and lists of different lengths."""
    one, other = outputs([0.5, 0.5], [1, 2]), outputs([0.5, 0.5, 0.1], [1, 2, 3])
    assert comparable(one, other, DETECTED)["c"][0] is one["c"]
    assert comparable(one, one, {})["c"][0] is one["c"]


def test_litert_leaves_memory_behind_the_boxes_that_it_counts() -> None:
    """A golden file must not hold a box with a score of 1e20."""
    given = outputs([0.9, 1e20, np.nan], [1, 7, 8]) | {"n": np.array([1], np.float32)}
    cleared = without_rest(given, DETECTED)
    assert_array_equal(cleared["s"], np.array([[0.9, 0, 0]], np.float32))
    assert_array_equal(cleared["c"], [[1, 0, 0]])
    assert without_rest(given, {})["s"] is given["s"]


def test_thesis_mobnetssd_lists_of_integers_are_left_as_they_are() -> None:
    """Their count, order and scores are in steps that are not known here."""
    given = {name: each.astype(np.int8) for name, each in outputs([90, 89], [1, 2]).items()}
    given["n"] = np.array([-118], np.int8)
    assert without_rest(given, DETECTED)["s"] is given["s"]
    pairs = comparable(given, given, DETECTED)
    assert pairs["c"][0] is given["c"]
