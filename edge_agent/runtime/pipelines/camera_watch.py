"""Watches whether a camera sees its scene: its picture is dark, blurred, frozen or turned.

A small gray copy of one picture a second is looked at; light that changes, noise and what moves
through the picture are no trouble.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ...core.types import Array

LOOK_SECONDS = 1.0
HELD_LOOKS = 5
"""Looks in a row that must agree before anything is said: exposure may jump, a lorry may stop."""
FROZEN_LOOKS = 25
"""Looks without a changed pixel. Coarse video repeats a still scene up to the next key frame."""
LINES = 32
"""Of the picture, that are compared pixel by pixel."""
WIDTH = 320
"""Pixels of the gray copy, or up to twice as many: taken, not averaged, so that they are sharp."""
CELL = 8
"""Side of a cell, in pixels of the copy."""
DARK = 32.0
"""Mean below which a picture in which nothing is seen is dark."""
FLAT = 0.6
"""Deviation of two by two cells below which nothing is seen: noise of 8 levels is less."""
BLURRED = 0.15
"""Strongest curvature of pixels by that of cells. Of sharp pictures the least that was seen is 0.21
(0.19 at a very low bit rate), of pictures blurred by 3 pixels of 640 the most is 0.16."""
CONTRAST = 10.0
"""Curvature of cells below which sharpness is not judged."""
EDGE, EDGES, CELLS = 4.0, 0.1, 200
"""Levels between cells that make an edge; the share of edges, and cells, that a view takes."""
TURNED, BACK = 0.3, 0.4
"""Correlation of edges with the usual view below which it is another one, and above which it is
the usual one again. Other views have up to 0.2, half a view behind something has 0.4."""
STEADY = 0.5
"""Correlation from look to look of a camera that stands still."""
LEARN_LOOKS = 10
MEMORY_LOOKS = 60
"""Over which the usual view goes with light and shadows."""
FORGET_LOOKS = 3600
"""After which another view is the usual one."""


class CameraWatch:
    """Follows the pictures of one pipeline, before masks. Its capture thread calls it."""

    def __init__(self) -> None:
        self.trouble = ""
        """dark, blurred, frozen or turned; empty: none."""
        self._due = 0.0
        self._found = ""
        """At the latest look, …"""
        self._row = 0
        """… and in how many in a row."""
        self._lines = b""
        self._same = 0
        """Looks in a row at the same lines."""
        self._usual: NDArray[np.float32] | None = None
        """Edges of the usual view, and …"""
        self._before: NDArray[np.float32] | None = None
        """… of the latest look: (rows, columns), as `_normal` has it."""
        self._known = 0
        """Looks that the usual view is made of."""
        self._steady = 0.0
        """How well views agree with it."""
        self._away = 0
        """Looks in a row at another view."""

    def look(self, picture: Array, now: float) -> bool:
        """Look at a picture, uint8 (height, width, 3), if it is time to.

        Returns:
            Whether the trouble is another one than before.
        """
        if now < self._due:
            return False
        self._due = now + LOOK_SECONDS
        found = self._judge(picture)
        self._row = self._row + 1 if found == self._found else 1
        self._found = found
        if found == self.trouble or self._row < HELD_LOOKS:
            return False
        self.trouble = found
        return True

    def _judge(self, picture: Array) -> str:
        lines = picture[:: max(1, picture.shape[0] // LINES)].tobytes()
        self._same = self._same + 1 if lines == self._lines else 0
        self._lines = lines
        step = max(1, picture.shape[1] // WIDTH)
        gray = picture[::step, ::step, 1].astype(np.float32)
        cells = _smaller(gray, CELL)
        flat = float(_smaller(cells, 2).std()) < FLAT
        if flat and cells.mean() < DARK:
            return "dark"
        if self._same >= FROZEN_LOOKS:
            return "frozen"
        if flat:  # fog, paint, a cloth; or a picture that has never shown anything
            return "blurred" if self._known >= LEARN_LOOKS else ""
        contrast = _curvature(cells)
        if cells.size >= CELLS and contrast > CONTRAST and _curvature(gray) < BLURRED * contrast:
            return "blurred"
        return "turned" if self._is_turned(cells) else ""

    def _is_turned(self, cells: NDArray[np.float32]) -> bool:
        """Whether this is another view than usual; else learn of it."""
        here = cells[:-1, :-1]
        edges = np.abs(cells[1:, :-1] - here) + np.abs(cells[:-1, 1:] - here)
        if cells.size < CELLS or np.count_nonzero(edges > EDGE) < EDGES * edges.size:
            return False
        view = _normal(edges / (cv2.blur(edges, (5, 5)) + 2.0))
        before, self._before = self._before, view
        usual = self._usual
        if usual is None or before is None or usual.shape != view.shape:
            self._usual, self._known, self._steady, self._away = view, 1, 1.0, 0
            return False
        alike = float((view * usual).sum())
        was = self.trouble == "turned"
        if self._known >= LEARN_LOOKS and alike < (BACK if was else TURNED):
            self._away += 1
            if self._away > FORGET_LOOKS:
                self._usual = None
            return was or min(self._steady, float((view * before).sum())) > STEADY
        self._known, self._away = self._known + 1, 0
        weight = 1 / min(self._known, MEMORY_LOOKS)
        self._usual = _normal(usual + weight * (view - usual))
        self._steady += weight * (alike - self._steady)
        return False


def _smaller(gray: NDArray[np.float32], by: int) -> NDArray[np.float32]:
    height, width = gray.shape
    size = max(1, width // by), max(1, height // by)
    return cv2.resize(gray, size, interpolation=cv2.INTER_AREA).astype(np.float32, copy=False)


def _curvature(gray: NDArray[np.float32]) -> float:
    """Return the 99th percentile of the absolute second differences."""
    found = np.abs(cv2.Laplacian(gray, cv2.CV_32F)).ravel()
    rank = found.size - 1 - found.size // 100
    return float(np.partition(found, rank)[rank])


def _normal(values: Array) -> NDArray[np.float32]:
    """Return them with norm 1 and mean 0 in each row and column: a horizon says nothing."""
    centered = values - values.mean(1, keepdims=True)
    centered -= centered.mean(0, keepdims=True)
    return np.asarray(centered / (np.linalg.norm(centered) + 1e-6), np.float32)
