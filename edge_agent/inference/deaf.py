"""Whether a classifier is deaf: its scores hardly vary though what it is given does.

Most often it is given other numbers than in its training, such as 0..1 in place of 0..255, so that
all pictures look alike to it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.types import Array

# Measured: how far the logarithm of any score moves over 12 pictures that differ, of MobileNetV2, a
# classifier of persons (both also INT8) and one of the direction of texts. Where the network
# follows its input, be it given the right numbers or not, at least 0.55 in clips and 1.9 in
# photographs; where it is deaf, at most 0.12 and 0.27. By gray level of the pictures' difference
# that is 0.029 and 0.0057. Of windows of a signal, whose range nobody knows, nothing can be said:
# knocks at a machine at rest move the scores of a gesture classifier by 0.09 to 0.33, and gestures
# those of the same network, deaf, by 0.10 to 0.28.
_EVERY = 7
"""Of so many results one is looked at. Not 10: folders of 10 pictures are given in a loop."""
_LOOKS = 15
"""Least number of results looked at before the model is called deaf."""
_DIFFERENT = 12
"""Number of pictures, each different from all others, before the model is called deaf."""
_LEVELS = 3.0
"""Gray levels by which two pictures differ on average, but for their light, of which a trained
network may well make nothing; noise of 12 levels and changing light make 0.4."""
_SHARE, _LEAST = 0.005, 0.1
"""Scores of a deaf network move by less for each gray level between its pictures, or by less."""
_STILL = 1e-6
"""Scores that move by less do not move at all, as those of a network of few steps that is sure; a
deaf one's did by 0.008 and more."""
_MOVES = 1.0
"""Scores that move by so much are those of a network that follows its input."""
_FINE, _COARSE = 1e-6, 0.03
"""Scores nearer to 0 or 1 tell nothing: of floats, and of numbers in 256 steps."""


class Deafness:
    """Compares how far a classifier's scores move with how far its pictures do."""

    def __init__(self) -> None:
        self.why: str | None = None
        """Why it is called deaf; None: it is not."""
        self.settled = False
        """Whether its scores follow its input: nothing is left to look at."""
        self._results = 0
        self._different: list[Array] = []
        self._span = 0.0
        """The greatest difference of two pictures, gray levels."""
        self._scores: tuple[Array, Array] | None = None
        """Lowest and highest score of each class (n,)."""

    def look(
        self,
        scores: Array,
        show: Callable[[], Array | None],
        steps: bool,
        quantized: Callable[[], bool],
    ) -> None:
        """Look at a result.

        Args:
            scores: (n,) of all classes.
            show: returns its picture, 8 by 8 pixels (8, 8, 3); None: it is of none.
            steps: whether the network's outputs are integers.
            quantized: whether it computes with integers; reads the file.
        """
        self._results += 1
        if self.settled or self._results % _EVERY or (seen := show()) is None:
            return
        low, high = self._scores or (scores, scores)
        self._scores = low, high = np.minimum(low, scores), np.maximum(high, scores)
        apart = [_apart(seen, other) for other in self._different]
        self._span = max([self._span, *apart])
        enough = len(self._different) == _DIFFERENT
        if not enough and min(apart, default=np.inf) > _LEVELS:
            self._different.append(seen)
        if _moved(low, high, _COARSE if steps else _FINE) > _MOVES:
            self.settled, self.why = True, None
        elif enough and self.why is None and self._results >= _LOOKS * _EVERY:
            moved = _moved(low, high, _COARSE if quantized() else _FINE)
            if _STILL < moved <= max(_LEAST, _SHARE * self._span):
                self.why = (
                    f"its scores hardly depend on its input: over {_DIFFERENT} pictures that "
                    f"differ none changed by more than {100 * np.expm1(moved):.1f} %, as if the "
                    "network were given other numbers than in its training: compare input.scale, "
                    "input.mean and input.layout with it"
                )
            else:
                self.settled = True


def _apart(one: Array, other: Array) -> float:
    """Return how far two pictures differ on average, but for their brightness and contrast."""
    one, other = one - one.mean(), other - other.mean()
    both = (one * other).sum()
    rests = (a - both / max((b * b).sum(), 1e-6) * b for a, b in ((one, other), (other, one)))
    return float(min(np.abs(rest).mean() for rest in rests))


def _moved(low: Array, high: Array, floor: float) -> float:
    """Return how far the logarithm of any score moved; NaN: no score tells anything."""
    telling = (high > floor) & (low < 1 - floor)
    if not telling.any():
        return np.nan
    return float(np.log(np.maximum(high, floor) / np.maximum(low, floor))[telling].max())
