"""The motion gate: detects motion in a picture, cheaply enough to run before inference."""

from __future__ import annotations

import cv2
import numpy as np

from ...core.types import Array
from ...inference.preprocess.resize import resize

WIDTH = 160
"""Width in pixels: enough to see a person, and fast enough for a fraction of a millisecond."""
SHARE = 0.004
"""Least share of the picture that must differ from the last one that has passed,"""
SPOT = 0.0004
"""or that one spot alone may cover: it is a person at the far end of a yard, and no noise."""
LEAST = 12.0
"""Levels by which a pixel must differ, more where the picture is noisy."""
MOST = 64.0
"""That, at most."""
NOISES = 5.0
"""Beyond so many times the noise, which three of four pixels do not exceed, few pixels differ."""
LINGER = 5
"""Number of pictures that still count after the last motion, to see the end of an arrival."""


class MotionGate:
    """Compares small gray pictures with the last one that has passed.

    Not with a learned background: what moves slowly, or back over the same ground, becomes a part
    of that (seen with OpenCV's MOG2: an object that moved on was still for half a minute).
    """

    def __init__(self) -> None:
        self._passed: Array | None = None
        self._before: Array | None = None
        """The last picture, whether it has passed or not."""
        self._noise = 0.0
        """Difference of single pixels from one picture to the next, in levels."""
        self._linger = 0

    def moved(self, picture: Array) -> bool:
        """Whether something has moved in *picture*, uint8 (height, width, 3).

        Since the last for which it had; in the first of a size it has.
        """
        height, width = picture.shape[:2]
        # Never enlarged: for a narrow, tall region that gains nothing and costs much.
        scale = min(1.0, WIDTH / width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        small = resize(picture, size, "area", quick=True)
        gray = cv2.GaussianBlur(cv2.cvtColor(small, cv2.COLOR_BGR2GRAY), (3, 3), 0)
        passed, before, self._before = self._passed, self._before, gray
        if passed is None or before is None or passed.shape != gray.shape:
            self._linger = LINGER
        else:
            step = cv2.subtract(gray, before, dtype=cv2.CV_16S)
            # What differs from its surroundings: a lamp, or a camera that turns, is no noise.
            alone = np.sort(cv2.absdiff(step, cv2.blur(step, (5, 5)))[::4, ::4], axis=None)
            self._noise += 0.1 * (float(alone[alone.size * 3 // 4]) - self._noise)
            least = min(MOST, max(LEAST, NOISES * (self._noise + 0.5)))
            _, differs = cv2.threshold(cv2.absdiff(gray, passed), least, 1, cv2.THRESH_BINARY)
            # Switching on a lamp changes nearly everything at once; that counts as motion too.
            if _share(differs) > SHARE or _largest_spot(differs) > SPOT:
                self._linger = LINGER
            else:
                self._linger -= 1
        if self._linger <= 0:
            return False
        self._passed = gray
        return True


def _share(differs: Array) -> float:
    return cv2.countNonZero(differs) / differs.size


def _largest_spot(differs: Array) -> float:
    """Return the share of the picture that the largest spot of differing pixels covers."""
    *_, found, _ = cv2.connectedComponentsWithStats(differs)
    return float(max(found[1:, cv2.CC_STAT_AREA], default=0)) / differs.size
