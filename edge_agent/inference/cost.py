"""What inference with a model usually takes."""

from __future__ import annotations

_MEMORY = 0.01
"""How much the latest frame counts in what a frame usually takes. Little: what pipelines of one
model are charged must not depend on when they had their turns (of 162 that shared what 81 need,
the shares were 12 % apart with 0.1, 5 % with 0.01)."""


_MOST = 10
"""One frame counts for so many usual ones at most: a frame that hung says nothing of those to come.
Not fewer: what lanes are held up by others now and then is lane time too, and who is charged what
each frame took (second stages) pays it in full."""


_FIRST = 8
"""So many frames at first are slower than those to come: the quickest of them counts."""


class Cost:
    """What a frame usually takes of a lane."""

    __slots__ = ("_seen", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._seen = 0

    def learn(self, seconds: float) -> None:
        """Add one more frame to the average; one that was held up must not count for many."""
        self._seen += 1
        if self._seen <= _FIRST:
            self.seconds = min(self.seconds or seconds, seconds)
        else:
            self.seconds += _MEMORY * (min(seconds, _MOST * self.seconds) - self.seconds)
