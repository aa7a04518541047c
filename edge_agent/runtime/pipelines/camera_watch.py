"""Detects whether a camera's picture is dark, blurred, frozen or turned.

It checks a small gray copy of one picture per second; changing light, noise and moving objects
cause no reports.
"""

from __future__ import annotations

from math import ceil

import cv2
import numpy as np
from numpy.typing import NDArray

from ...core.types import Array

LOOK_SECONDS = 0.9
"""Less than a second: of one picture a second each is checked, also if one comes a little early."""
HELD_LOOKS = 5
"""Looks in a row that must agree before a report: exposure may jump, a truck may stop."""
FROZEN_LOOKS = 25
"""Looks without a changed pixel. Coarse video repeats a still scene until the next key frame."""
LINES = 32
"""Lines of the picture that are compared pixel by pixel."""
WIDTH = 320
"""Pixels of the gray copy, or up to twice as many: sampled, not averaged, to stay sharp."""
CELL = 8
"""Side of a cell in pixels of the copy."""
DARK = 32.0
"""Mean below which a picture without visible content is dark."""
BLACK = 4.0
"""Level that no cell of a black picture reaches, whatever is in it: nobody sees that."""
FLAT = 0.6
"""Deviation of two by two cells below which there is no content: noise of 8 levels has less."""
BLURRED = 0.15
"""Greatest curvature of pixels divided by that of cells. The lowest seen in sharp pictures is 0.21
(0.19 at a very low bit rate), the highest in pictures blurred by 3 pixels of 640 is 0.16."""
SPARSE = 0.5
"""Likewise, where the cells differ most, of pictures with few edges. Sharp parts on a plain ground
have 1.4 and more, pictures blurred by 3 pixels of 640 up to 0.34."""
CONTRAST = 10.0
"""Curvature of cells below which sharpness is not checked."""
EDGE, EDGES, CELLS = 4.0, 0.1, 200
"""Level difference between cells at an edge; least share of edges, and least cells, in a view."""
TURNED, BACK = 0.3, 0.4
"""Correlation of edges with the usual view below which the view is another one, and above which it
is the usual one again. Other views have up to 0.2, a half-covered view has 0.4."""
STEADY = 0.5
"""Correlation between successive looks of a camera that does not move."""
LEARN_LOOKS = 10
MEMORY_LOOKS = 60
"""Looks over which the usual view adapts to light and shadows."""
FORGET_LOOKS = 3600
"""Looks after which another view becomes the usual one."""


class CameraWatch:
    """Checks the pictures of one pipeline before masks. For use by its capture thread."""

    def __init__(self) -> None:
        self.trouble = ""
        """dark, blurred, frozen or turned; empty: none."""
        self._due = 0.0
        self._found = ""
        """Trouble found at the latest look."""
        self._row = 0
        """Number of looks in a row with this trouble."""
        self._lines = b""
        self._same = 0
        """Number of looks in a row with the same lines."""
        self._usual: NDArray[np.float32] | None = None
        """Edges of the usual view (rows, columns), from `_normal`."""
        self._before: NDArray[np.float32] | None = None
        """Edges of the latest look, likewise."""
        self._known = 0
        """Number of looks in the usual view."""
        self._steady = 0.0
        """Correlation of views with the usual one."""
        self._away = 0
        """Number of looks in a row at another view."""

    def look(self, picture: Array, now: float) -> bool:
        """Check a picture, uint8 (height, width, 3), if a look is due.

        Returns:
            Whether the trouble has changed.
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
        gray = np.ascontiguousarray(picture[::step, ::step, 1])
        cells = _smaller(gray.astype(np.float32), CELL)
        flat = float(_smaller(cells, 2).std()) < FLAT
        if (flat and cells.mean() < DARK) or cells.max() < BLACK:
            return "dark"
        if self._same >= FROZEN_LOOKS:
            return "frozen"
        if flat:  # fog, paint, a cloth; or a picture that never had content
            return "blurred" if self._known >= LEARN_LOOKS else ""
        contrast = _curvature(cells)
        if cells.size >= CELLS and contrast > CONTRAST and not _is_sharp(gray, cells, contrast):
            return "blurred"
        return "turned" if self._is_turned(cells) else ""

    def _is_turned(self, cells: NDArray[np.float32]) -> bool:
        """Whether this view differs from the usual one; if not, learn from it."""
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


def _curvature(cells: NDArray[np.float32]) -> float:
    """Return the 99th percentile of the absolute second differences."""
    found = np.abs(cv2.Laplacian(cells, cv2.CV_32F)).ravel()
    rank = found.size - 1 - found.size // 100
    return float(np.partition(found, rank)[rank])


def _is_sharp(gray: Array, cells: NDArray[np.float32], contrast: float) -> bool:
    """Whether that of pixels is great enough beside *contrast*, that of *cells*."""
    found = np.abs(cv2.Laplacian(gray, cv2.CV_16S))
    if int(np.count_nonzero(found >= ceil(BLURRED * contrast))) > gray.size // 100:
        return True
    # One part on a plain belt has few pixels at its edges, however sharp these are.
    curved = np.abs(cv2.Laplacian(cells, cv2.CV_32F))
    around = cv2.dilate(found.astype(np.float32), np.ones((3 * CELL, 3 * CELL), np.uint8))
    near = cv2.resize(around, cells.shape[::-1], interpolation=cv2.INTER_NEAREST)
    most = curved >= contrast
    return bool(np.median(near[most] / curved[most]) > SPARSE)


def _normal(values: Array) -> NDArray[np.float32]:
    """Scale *values* to norm 1 and mean 0 in each row and column, which hides a horizon."""
    centered = values - values.mean(1, keepdims=True)
    centered -= centered.mean(0, keepdims=True)
    return np.asarray(centered / (np.linalg.norm(centered) + 1e-6), np.float32)
