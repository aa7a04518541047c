"""Filters of findings, and masks: what is left out, and what stays exactly as it was."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.config.settings import Pipeline
from edge_agent.config.shapes import line_trouble, polygon_trouble
from edge_agent.core.types import Classes, Detections
from edge_agent.runtime.pipelines.frame_path import Filter
from edge_agent.runtime.pipelines.masks import Masks


def pipeline(**keys: object) -> Pipeline:
    """Make the settings of a pipeline."""
    return Pipeline(name="p", source="dir:.", model="m", **keys)  # type: ignore[arg-type]


FOUND = Detections(
    np.array([[0, 0, 10, 10], [0, 0, 40, 40], [5, 5, 25, 45], [1, 1, 9, 39]], np.float32),
    np.array([0.9, 0.8, 0.55, 0.3], np.float32),
    ("person", "car", "dog", "person"),
    np.zeros((4, 5, 2), np.float32),
)


def kept(**keys: object) -> list[tuple[str, float]]:
    """Filter FOUND at a threshold of 0.5; gives labels and scores."""
    found = Filter(pipeline(**keys)).kept(FOUND, 0.5)
    assert isinstance(found, Detections)
    assert found.points is not None
    assert len(found.points) == len(found.boxes) == len(found)
    pairs = zip(found.labels, found.scores, strict=True)
    return [(label, round(float(score), 2)) for label, score in pairs]


def test_only_the_wanted_labels_leave() -> None:
    """Detections of other labels are left out, with their boxes and points."""
    assert kept(labels=("car", "dog")) == [("car", 0.8), ("dog", 0.55)]


def test_a_label_can_have_a_lower_and_a_higher_threshold_than_the_others() -> None:
    """A label's own threshold counts instead of the pipeline's, whichever is higher."""
    assert kept(thresholds={"person": 0.25, "car": 0.85}) == [
        ("person", 0.9),
        ("dog", 0.55),
        ("person", 0.3),
    ]
    assert Filter(pipeline(thresholds={"person": 0.25, "car": 0.85})).least == 0.25


def test_a_box_must_have_both_sides_of_min_box() -> None:
    """A detection that is too narrow or too low is left out."""
    assert kept(min_box=(20, 40)) == [("car", 0.8), ("dog", 0.55)]


def test_without_filters_nothing_is_copied() -> None:
    """What passes as a whole is the same object."""
    assert not Filter(pipeline())
    assert Filter(pipeline(labels=("person", "car", "dog"))).kept(FOUND, 0.1) is FOUND


def test_classes_are_filtered_alike() -> None:
    """Of a classification only the wanted labels leave, in their order."""
    found = Classes(("cat", "dog", "cow"), (0.6, 0.3, 0.1))
    chosen = Filter(pipeline(labels=("dog", "cow"), thresholds={"cow": 0.2}))
    assert chosen.kept(found, 0.0) == Classes(("dog",), (0.3,))
    assert found.above(0.2) == Classes(("cat", "dog"), (0.6, 0.3))


def test_a_mask_leaves_no_pixel_of_its_area() -> None:
    """Overlapping masks are black up to the picture's edge, and all else is untouched."""
    white = np.full((100, 200, 3), 255, np.uint8)
    top = ((0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (0.0, 0.1))
    right = ((0.9, 0.0), (1.0, 0.0), (1.0, 1.0), (0.9, 1.0))
    masked = Masks([top, right]).apply(white)
    assert masked is white
    assert not masked[:11].any()
    assert not masked[:, 180:].any()
    assert (masked[12:, :179] == 255).all()


def test_a_picture_that_may_not_be_written_to_is_copied_for_its_masks() -> None:
    """What a source has lent is not changed."""
    lent = np.full((10, 10, 3), 255, np.uint8)
    lent.flags.writeable = False
    masked = Masks([((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))]).apply(lent)
    assert not masked[:, :5].any()
    assert (lent == 255).all()


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([[0, 0], [1, 1]], "3 to 256 points, found 2"),
        ([[0, 0], [1, 1], [1, 0], [0, 1]], "crosses itself"),
        ([[0, 0], [0.5, 0.5], [1, 1]], "has no area"),
        ([[0, 0], [1, 0], [2, 1]], "from 0 to 1"),
        ([[0, 0], [1, 0], [float("nan"), 1]], "from 0 to 1"),
        ([[0, 0], [1, 0], [1]], "expected [x, y]"),
        ([[i / 1e4, i % 2] for i in range(10_000)], "3 to 256 points, found 10000"),
    ],
)
def test_what_is_no_polygon_is_refused_with_the_reason(
    points: list[list[float]], words: str
) -> None:
    """One line says what is wrong with the points."""
    assert words in (polygon_trouble(points) or "")


def test_what_is_a_polygon_passes() -> None:
    """Corners in either direction, also of a shape that is not convex."""
    assert polygon_trouble([[0, 0], [1, 0], [1, 1], [0.5, 0.2], [0, 1]]) is None
    assert polygon_trouble([[0, 0], [0, 1], [1, 1], [1, 0]]) is None
    assert line_trouble([[0, 0], [1, 1]]) is None
    assert "same" in (line_trouble([[0, 0], [0, 0]]) or "")
