"""The motion gate: detects motion in a picture, cheaply enough to run before inference."""

from __future__ import annotations

import cv2
import numpy as np

from ...core.types import Array
from ...inference.preprocess.resize import resize

WIDTH = 160
"""Width in pixels: enough to see a person, and fast enough for a fraction of a millisecond."""
SHARE = 0.004
"""Least share of the picture that must differ from the background."""
WARM_UP = 3
"""Number of frames that count as moving while the background is unknown."""
LINGER = 5
"""Number of frames that still count after the last motion, to see the end of an arrival."""


class MotionGate:
    """Background subtraction by OpenCV's MOG2 (Zivkovic 2004) on a small gray picture."""

    def __init__(self) -> None:
        self._size = (0, 0)
        self._reset()

    def _reset(self) -> None:
        self._background = cv2.createBackgroundSubtractorMOG2(
            history=120, varThreshold=25, detectShadows=False
        )
        self._seen = 0
        self._linger = 0

    def moved(self, picture: Array) -> bool:
        """Whether something moves in *picture*, uint8 (height, width, 3).

        A picture of another size resets the background.
        """
        height, width = picture.shape[:2]
        if (height, width) != self._size:
            self._size = (height, width)
            self._reset()
        # Never enlarged: for a narrow, tall region that gains nothing and costs much.
        scale = min(1.0, WIDTH / width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        small = resize(picture, size, "area", quick=True)
        gray = cv2.cvtColor(small, cv2.COLOR_BGR2GRAY)
        mask = self._background.apply(cv2.GaussianBlur(gray, (3, 3), 0))
        self._seen += 1
        share = np.count_nonzero(mask) / mask.size
        # Switching on a lamp changes nearly everything at once; that counts as motion too.
        if self._seen <= WARM_UP or share > SHARE:
            self._linger = LINGER
            return True
        self._linger -= 1
        return self._linger > 0
