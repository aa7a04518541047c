"""Counts and times of a model's inferences, for health, probation and failover."""

from __future__ import annotations

import time
from collections import deque

from ..core.errors import SampleError
from ..core.types import Classes, Detections, Findings, Request

_MOST_SCORE = 1.05
"""Above what is no chance, however it is rounded."""
_LEAST_SIDE = 2.0
"""Pixels of the input: no detector finds what is smaller."""
_FEW = 3
"""Boxes that may be mistakes in what the frame is surrounded by."""
_NO_BOX = (
    "none of the boxes so far is in the frame and larger than two pixels: output.decoder, "
    "output.layout or input.resize is of another model"
)


class Statistics:
    """Counts of one loaded model. Written by the lanes, read by any thread."""

    def __init__(self) -> None:
        self.infer_ms: deque[float] = deque(maxlen=1000)
        """Of the latest samples, each its share of the time for those inferred together."""
        self.inferred = 0
        self.errors = 0
        """Frames on which it failed."""
        self.failing = 0
        """Inferences in a row that failed; a breaker watches the number."""
        self.failure: tuple[str, Request] | None = None
        """The latest failure: error text, and the request."""
        self.doubt: str | None = None
        """Why its results can hardly be right; None: nothing says so."""
        self._plausible, self._odd = False, 0
        self.first_at: float | None = None
        """Monotonic clock at the end of its first inference on a frame."""
        self.used_at = time.monotonic()
        """Monotonic clock at the end of its latest inference, or when it was loaded."""

        self.loaded_ns = time.time_ns()
        """Wall clock when it was loaded."""

    def add(self, infer_ms: float) -> None:
        """Count an inference with its time in milliseconds."""
        self.failing = 0
        self.infer_ms.append(infer_ms)
        self.inferred += 1
        self.used_at = time.monotonic()
        if self.first_at is None:
            self.first_at = self.used_at

    def look(self, found: Findings, inside: Findings) -> None:
        """Look at findings in pixels of the input, and at those of them that lie in the frame."""
        if not isinstance(found, Detections | Classes):
            return
        if found.best_score > _MOST_SCORE:
            self._plausible = True  # its boxes may be
            self.doubt = (
                f"a score is {found.best_score:.4g}, which is no chance: the network ends without "
                "its sigmoid or softmax, or output.decoder is of another model"
            )
        elif not self._plausible and isinstance(found, Detections) and len(found):
            sides = found.boxes[:, 2:] - found.boxes[:, :2]
            self._plausible = bool((sides >= _LEAST_SIDE).all(axis=1).any() and inside.best_score)
            self._odd += len(found)
            self.doubt = _NO_BOX if self._odd >= _FEW and not self._plausible else None

    def go_on_from(self, before: Statistics) -> None:
        """Continue the counts of the model before this one."""
        self.inferred += before.inferred
        self.errors += before.errors

    def add_failure(self, problem: Exception, request: Request) -> None:
        """Count a failed inference, unless a stranger may have asked for the impossible."""
        if request.foreign and isinstance(problem, SampleError):
            return
        self.failure = (str(problem), request)
        self.failing += 1


_MEMORY = 0.01
"""How much the latest frame counts in what a frame usually takes. Little: what pipelines of one
model are charged must not depend on when they had their turns (of 162 that shared what 81 need,
the shares were 12 % apart with 0.1, 5 % with 0.01)."""


_MOST = 10
"""One frame counts for so many usual ones at most: a frame that hung says nothing of those to come.
Not fewer: what lanes are held up by others now and then is lane time too, and who is charged what
each frame took (second stages) pays it in full."""


_FIRST = 8
"""Number of first frames that are slower than later ones; the fastest of them counts."""


class Cost:
    """The usual lane time of a frame."""

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
