"""What is drawn onto snapshots and try.jpg."""

from __future__ import annotations

from itertools import combinations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.bundled import bundled
from edge_agent.core.types import Detections
from edge_agent.runtime.pipelines.draw import annotate, color_of
from tests.helpers.small_models import plain

WIDTH, HEIGHT = 640, 384
Picture = NDArray[np.uint8]


def drawn(*boxes: tuple[str, tuple[int, int, int, int]], roi: bool = False) -> Picture:
    """Draw boxes onto a gray frame, the best first."""
    found = Detections(
        np.array([box for _, box in boxes], np.float32).reshape(-1, 4),
        np.full(len(boxes), 0.5, np.float32),
        tuple(label for label, _ in boxes),
    )
    region = (100, 50, 5000, 300) if roi else None
    picture: Picture = annotate(plain(90, WIDTH, HEIGHT), found, region)
    return picture


def bars(picture: Picture, label: str) -> list[tuple[int, int, int, int]]:
    """Find the bars in a label's color: x, y, width, height; lines are too thin to be one."""
    mask = (np.abs(picture.astype(int) - color_of(label)).sum(axis=2) < 12).astype(np.uint8)
    # The letters are filled, and what is thinner than a bar taken away.
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((11, 11), np.uint8))
    mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, np.ones((9, 9), np.uint8))
    count, _, stats, _ = cv2.connectedComponentsWithStats(mask)
    return [tuple(map(int, stats[n][:4])) for n in range(1, count)]  # type: ignore[misc]


@pytest.mark.parametrize(
    "box",
    [
        (600, 100, 638, 160),
        (600, 0, 639, 60),
        (0, 0, 30, 383),
        (610, 350, 639, 383),
        (-40, 300, 20, 500),
        (0, 0, 639, 383),
    ],
)
def test_a_label_is_whole_wherever_its_box_is(box: tuple[int, int, int, int]) -> None:
    """At every edge of the picture the bar has the size that it has in the middle."""
    (middle,) = bars(drawn(("missing-hole", (200, 200, 300, 300))), "missing-hole")
    (bar,) = bars(drawn(("missing-hole", box)), "missing-hole")
    assert abs(bar[2] - middle[2]) <= 2
    assert abs(bar[3] - middle[3]) <= 2


def test_labels_do_not_cover_each_other() -> None:
    """Of boxes that lie on one another every label can be read."""
    labels = ("good", "crack", "chip", "missing-hole", "dent")
    picture = drawn(*((label, (560, 100 + n, 638, 170 + n)) for n, label in enumerate(labels)))
    for label in labels:
        (alone,) = bars(drawn((label, (200, 200, 300, 300))), label)
        (bar,) = bars(picture, label)
        assert abs(bar[2] - alone[2]) <= 2, label
        assert abs(bar[3] - alone[3]) <= 2, label


def test_the_region_of_interest_is_drawn() -> None:
    """A white frame with a dark edge, inside the picture where the region reaches beyond it."""
    picture = drawn(roi=True)
    assert (picture[50, 110:630] == 255).all()
    assert (picture[60:290, 100] == 255).all()
    assert (picture[60:290, WIDTH - 1] == 255).all()
    assert (picture[49, 110:630] == 0).all()
    assert (picture[60:290, 105:630] == 90).all()


def test_colors_are_neither_pale_nor_alike() -> None:
    """Those of the bundled detector's labels: strong, and told apart."""
    labels = (bundled("models") / "parts-inspection" / "labels.txt").read_text().split()
    colors = [np.array(color_of(label), int) for label in labels]
    assert all(color.max() - color.min() > 150 for color in colors)
    assert all(np.abs(one - other).max() > 100 for one, other in combinations(colors, 2))
    green = color_of("good")
    assert green.index(max(green)) == 1
