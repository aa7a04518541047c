"""Counts and times of a model's inferences, for health, probation, and failover."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..core.errors import SampleError
from ..core.types import Array, Classes, Detections, Findings, Request, Tensors
from ..models.decoders import BOXED, Task
from .deaf import Deafness

if TYPE_CHECKING:
    from ..models.manifest import ModelFolder

_MOST_SCORE = 1.05
"""A higher score is not a probability, however it is rounded."""
_LEAST_SIDE = 2.0
"""Pixels of the input: no detector finds smaller objects."""
_FEW = 3
"""Boxes that may be false detections in the border around the frame."""
_DARK = 1
"""Results without a score above 0 that can hardly be right: thousands of sigmoids are not all 0."""
_DARK_COARSE = 30
"""The same for a network with quantized scores, which may be 0 for an empty picture."""
_NO_SCORE = (
    "no score so far is above 0: the network is given other numbers than in its training "
    "(input.scale, input.mean), output.decoder is of another model, or its scores were lost when "
    "it was quantized (export it in floats)"
)
_MANY = 1000
"""Results of one class that are worth a word; a scene that stays the same is no fault."""
_GRADED: frozenset[Task] = (BOXED - {"text"}) | {"classification"}
_PADDED = frozenset({"ssd", "yolo-e2e"})
"""Decoders of networks that fill up what they have found with zeros."""
_NO_BOX = (
    "none of the boxes so far is in the frame and larger than two pixels: output.decoder, "
    "output.layout or input.resize is of another model"
)


class Statistics:
    """Counts of one loaded model. Written by the lanes, read by any thread."""

    def __init__(self) -> None:
        self.infer_ms: deque[float] = deque(maxlen=1000)
        """Times of the last samples, each its share of the time for those inferred together."""
        self.inferred = 0
        self.errors = 0
        """Number of frames on which it failed."""
        self.failing = 0
        """Number of consecutive failed inferences; failover watches it."""
        self.misfit: str | None = None
        """Why the last reading of a source does not fit it; None: it does."""
        self.failure: tuple[str, Request] | None = None
        """The last failure: error text, and the request."""
        self.doubt: str | None = None
        """Why its results are probably wrong; None: no reason to think so."""
        self._odd: int | None = 0
        """Boxes so far, none of which is plausible; None: one was."""
        self._dark = 0
        self._alike: list[tuple[str, float]] | None = []
        """The best class of each result as long as it is always the same one; None: it is not."""
        self.remark: str | None = None
        """What is to be logged once of its results, though they need not be wrong."""
        self._deafness = Deafness()
        self.first_at: float | None = None
        """Monotonic time when its first inference on a frame ended."""
        self.used_at = time.monotonic()
        """Monotonic time when its last inference ended, or when it was loaded."""

        self.loaded_ns = time.time_ns()
        """Wall-clock time when it was loaded, ns."""

    def add(self, infer_ms: float) -> None:
        """Count an inference with its time in milliseconds."""
        self.failing = 0
        self.infer_ms.append(infer_ms)
        self.inferred += 1
        self.used_at = time.monotonic()
        if self.first_at is None:
            self.first_at = self.used_at

    def look(self, found: Findings, inside: Findings) -> None:
        """Check that findings are plausible; *inside* are those that lie in the frame."""
        if not isinstance(found, Detections | Classes):
            return
        if isinstance(found, Classes):
            self._look_at_class(found)
        if found.best_score > 0:
            self._dark, self.doubt = -1, None if self.doubt == _NO_SCORE else self.doubt
        if found.best_score > _MOST_SCORE:
            self._odd = None  # its boxes are plausible
            self.doubt = (
                f"a score is {found.best_score:.4g}, which is no chance: the network ends without "
                "its sigmoid or softmax, or output.decoder is of another model"
            )
        elif (before := self._odd) is not None and isinstance(found, Detections) and len(found):
            sides = found.boxes[:, 2:] - found.boxes[:, :2]
            plausible = bool((sides >= _LEAST_SIDE).all(axis=1).any() and inside.best_score)
            odd = before + len(found)
            self.doubt = _NO_BOX if odd >= _FEW and not plausible else None
            self._odd = None if plausible else odd

    def _look_at_class(self, found: Classes) -> None:
        alike = self._alike  # several lanes come here
        if alike is None:
            return
        alike.append((found.labels[0], found.scores[0]) if found.labels else ("", 0.0))
        (label, _), (latest, _) = alike[0], alike[-1]
        if latest == label and len(alike) < _MANY:
            return
        self._alike = None
        if latest != label or not label or self.doubt is not None:
            return
        scores = [score for _, score in alike]
        self.remark = (
            f"finds {label} in each of its first {_MANY} results, with scores from "
            f"{min(scores):.3g} to {max(scores):.3g}; if what it is shown has changed, compare "
            "input.scale, input.mean and input.color with its training"
        )

    def listen(
        self,
        found: Findings,
        show: Callable[[], Array | None],
        outputs: Tensors,
        folder: ModelFolder,
    ) -> None:
        """Check whether a classifier's scores depend on its pictures; see `Deafness.look`."""
        deafness = self._deafness
        if not isinstance(found, Classes) or found.every is None or deafness.settled:
            return
        before = deafness.why
        steps = any(one.dtype.kind in "iu" for one in outputs.values())
        deafness.look(found.every, show, steps, partial(_coarse, folder, outputs))
        if deafness.why != before and self.doubt in {None, before}:
            self.doubt = self.remark = deafness.why

    @property
    def unseen(self) -> bool:
        """Whether no score above 0 is known yet, so that those below the threshold matter.

        Not at the very first result, which is to leave as soon as it can.
        """
        return self.inferred > 0 and -1 < self._dark < _DARK_COARSE

    def look_at_all(
        self, decode: Callable[[], Findings], outputs: Tensors, folder: ModelFolder
    ) -> None:
        """Check all scores of a result in which none has reached the threshold.

        Args:
            decode: decodes the result with a threshold of 0.
            outputs: the network's outputs.
            folder: the model's folder.
        """
        if folder.manifest.task not in _GRADED:
            return
        try:
            found = decode()
        except SampleError:
            return  # reported once a score reaches the threshold
        if found.best_score:
            self._dark = -1
            return
        dead = folder.manifest.decoder not in _PADDED and not any(
            one.any() for one in outputs.values()
        )
        if not dead and not (isinstance(found, Detections | Classes) and found.labels):
            return
        self._dark += 1
        if self._dark == _DARK_COARSE or (self._dark == _DARK and not _coarse(folder, outputs)):
            self._dark, self.doubt = _DARK_COARSE, _NO_SCORE

    def go_on_from(self, before: Statistics) -> None:
        """Continue the counts of the previous model."""
        self.inferred += before.inferred
        self.errors += before.errors

    def add_failure(self, problem: Exception, request: Request) -> None:
        """Count a failed inference, unless an outside request may have been impossible."""
        if request.foreign and isinstance(problem, SampleError):
            return
        self.failure = (str(problem), request)
        self.failing += 1
        self.used_at = time.monotonic()


def _coarse(folder: ModelFolder, outputs: Tensors) -> bool:
    """Whether the scores of a network have steps, so that what is small is 0, but not what is 1."""
    from ..models.files.check_onnx import inspect
    from ..models.files.steps import lost_scores

    if any(one.dtype != "float32" for one in outputs.values()):
        return True
    facts = inspect(folder.network)
    return facts.quantized and lost_scores(folder.manifest.task, facts) is None


_MEMORY = 0.01
"""Weight of the last frame in the average time per frame. It is small so that what pipelines of one
model are charged does not depend on when they had their turns (with 162 that shared what 81 need,
shares were 12 % apart with 0.1, 5 % with 0.01)."""


_MOST = 10
"""One frame counts as at most this many average ones: a frame that hung says nothing about later
ones. Not fewer: occasional delays by other work are lane time too, and second stages, which are
charged the actual time of each frame, pay for them in full."""


_FIRST = 8
"""Number of first frames, which may be slower than later ones; the fastest of them counts."""


class Cost:
    """The average lane time of a frame."""

    __slots__ = ("_seen", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._seen = 0

    def learn(self, seconds: float) -> None:
        """Add a frame to the average, limiting the weight of one that was delayed."""
        self._seen += 1
        if self._seen <= _FIRST:
            self.seconds = min(self.seconds or seconds, seconds)
        else:
            self.seconds += _MEMORY * (min(seconds, _MOST * self.seconds) - self.seconds)
