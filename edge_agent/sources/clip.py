"""A video file, played at its own rate or as fast as it is consumed."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from ..core.errors import SampleError, SourceError
from ..core.text import naming
from ..core.types import Kind, Reading
from .hw_decode import HARDWARE
from .opencv import check_size, load, open_clip
from .pacing import wait_until
from .source import SourceContext
from .spec import SourceSpec

log = logging.getLogger(__name__)

# Where a clip does not say its rate, or says nonsense, frames a second.
USUAL_RATE = 25.0
# A longer pause between two frames is a damaged time stamp, which would freeze the picture.
LONGEST_PAUSE = 10.0
# OpenCV says the same of a frame that cannot be decoded and of the end. Asked again, it goes on
# with the next frame, or says so again: within 4 us at the end (OpenCV 5, MPEG-TS; 0.2 us others).
# So often where fewer frames have come than the header promises …
TRIES = 1000
# … and so often where all have: the number may be an estimate, or nonsense.
TRIES_AT_END = 100


class Clip:
    """A video file from its first frame to its last, once or for ever."""

    kind: Kind = "picture"

    def __init__(self, spec: SourceSpec, context: SourceContext) -> None:
        """Open the file and read its first frame, so that what cannot be played is known now."""
        self._spec = spec
        self._name = spec.redacted
        self._context = context
        self._cv2 = load()
        self._capture: Any = None
        self._timing = _Timing()
        self._short: str | None = None
        """Where it ended well before the number of frames that its header promises."""
        self._ahead = False
        self._failed = 0
        """Frames that could not be decoded, before the one that is ahead, not told of yet."""
        self._whole = True
        """Whether what `grab` told of last can be decoded."""
        self._first = 0
        """Number of the first frame that could not be decoded; 0: all could."""
        self._damaged = 0
        self._count = 0
        self._rewind()

    @property
    def lossless(self) -> bool:
        """Whether every frame counts: it is played as fast as it is consumed."""
        return self._spec.lossless

    def grab(self) -> bool:
        """Wait for the next frame, at `pace=real` until it is due."""
        if self._context.closing.is_set():
            return False
        if not self._ahead and not self._find():
            if self._context.closing.is_set():
                return False
            self._record_if_short()
            if not self._spec.options["loop"]:
                return False
            self._rewind()
        self._count += 1
        self._whole = self._failed == 0
        if not self._whole:
            # At once: only what can be shown has a time at which it is due.
            self._failed -= 1
            self._grabbed = time.time_ns(), time.monotonic()
            return True
        self._ahead = False
        if not self.lossless:
            stamp = self._capture.get(self._cv2.CAP_PROP_POS_MSEC) / 1000.0
            if not wait_until(self._timing.due(stamp), self._context.closing):
                return False
        self._grabbed = time.time_ns(), time.monotonic()
        return True

    def retrieve(self) -> Reading:
        """Convert the frame that was grabbed."""
        if not self._whole:
            raise self._damage()
        try:
            picture = HARDWARE.picture(self._capture, self._name, "cannot be decoded")
        except SampleError:
            raise self._damage() from None
        return Reading(picture, *self._grabbed)

    @property
    def trouble(self) -> str | None:
        """What was wrong with the file, of which some frames may have come; None: nothing."""
        said = []
        if self._damaged:
            said.append(
                f"{self._damaged} of the frames could not be decoded, the first is "
                f"number {self._first}"
            )
        if self._short is not None:
            said.append(self._short)
        return "; ".join(said) or None

    def close(self) -> None:
        """Close the file."""
        self._capture.release()

    def _rewind(self) -> None:
        """Open the file at its start: seeking back is not exact in every container."""
        path, name = self._spec.local, self._name
        _check_readable(self._spec)
        if self._capture is not None:
            self._capture.release()
        # Absolute, so that no name can be taken for a URL.
        self._capture = open_clip(
            str(path.absolute()), name, hardware=self._context.hardware_decoding
        )
        if not self._capture.isOpened():
            raise SourceError(
                f"{name}: is not a video that can be played (damaged, cut short, or of an "
                f"unknown format); look at it with `ffprobe`"
            )
        check_size(self._capture, name)
        self._count = 0
        self._failed = 0
        self._ahead = self._capture.grab()
        if not self._ahead and HARDWARE.doubt(name):
            self._capture.release()
            self._rewind()
            return
        if not self._ahead and not self._find(1):
            self._capture.release()
            raise SourceError(f"{name}: holds no frame that can be decoded")
        self._timing.begin(self._capture.get(self._cv2.CAP_PROP_FPS))

    def _find(self, failed: int = 0) -> bool:
        """Grab the next frame that can be decoded, and note how many before it cannot.

        Args:
            failed: how many have been met already.

        Returns:
            False at the end, or once the source is to be closed.
        """
        capture, tries = self._capture, 0
        self._ahead = capture.grab()
        while not self._ahead:
            if not tries:
                more = self._count < capture.get(self._cv2.CAP_PROP_FRAME_COUNT)
                tries = TRIES if more else TRIES_AT_END
            failed += 1
            if failed >= tries or self._context.closing.is_set():
                return False
            self._ahead = capture.grab()
        self._failed = failed
        return True

    def _damage(self) -> SampleError:
        """Count a frame that cannot be decoded; one text for all, so that it is logged once."""
        self._damaged += 1
        self._first = self._first or self._count
        return SampleError(
            f"{self._name}: the file is damaged: frames of it cannot be decoded, the first is "
            f"number {self._first}"
        )

    def _record_if_short(self) -> None:
        """Record that a clip ended well before the number of frames that its header promises."""
        promised = self._capture.get(self._cv2.CAP_PROP_FRAME_COUNT)
        # Some containers only estimate the number, from their duration.
        if self._count < 0.95 * promised - 2 and self._short is None:
            self._short = (
                f"ended after {self._count} of {promised:.0f} frames; "
                "the file is damaged or cut short"
            )
            log.warning("%s: %s", self._spec.redacted, self._short)


class _Timing:
    """When the frames of a clip are due that is played at its own rate."""

    def __init__(self) -> None:
        self._due: float | None = None
        self._period = 1.0 / USUAL_RATE
        self._stamp = math.inf

    def begin(self, rate: float) -> None:
        """Begin a pass over the clip, which says it has so many frames a second."""
        self._period = 1.0 / (rate if math.isfinite(rate) and 0.01 < rate <= 1000 else USUAL_RATE)
        self._stamp = math.inf

    def due(self, stamp: float) -> float:
        """Return when the frame of a time stamp, seconds, is due on the monotonic clock.

        A frame that comes late because decoding is slow does not move those after it.
        """
        # The first of a pass has no step, and follows on the last of the pass before.
        step = stamp - self._stamp
        self._stamp = stamp
        if self._due is None:
            self._due = time.monotonic()
        else:
            self._due += step if 0 < step <= LONGEST_PAUSE else self._period
        return self._due


def open_source(spec: SourceSpec, context: SourceContext) -> Clip:
    """Open a video file.

    Raises:
        SourceError: it is missing, cannot be read, or holds nothing that can be played.
    """
    return Clip(spec, context)


def _check_readable(spec: SourceSpec) -> None:
    """Raise with the reason why a file cannot be opened, which OpenCV does not tell."""
    try:
        with spec.local.open("rb") as file:
            empty = not file.read(1)
    except IsADirectoryError:
        raise SourceError(
            f"{spec.redacted}: {spec.local} is a folder; write dir: for a folder of pictures"
        ) from None
    except OSError as problem:
        raise SourceError(f"{naming(spec.redacted, spec.local)}: {problem.strerror}") from None
    if empty:
        raise SourceError(f"{naming(spec.redacted, spec.local)}: is empty")
