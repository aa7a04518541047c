"""Cameras: network streams (RTSP, MJPEG over HTTP) and V4L2 devices."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

from ..core.errors import SampleError, SourceError
from ..core.types import Kind, Reading
from .hw_decode import HARDWARE
from .opencv import check_size, open_camera, open_device
from .source import SourceContext
from .spec import SourceSpec

# How long a stream may take to open. FFmpeg has been seen to take twice as long over a server that
# stalls, so whoever needs a bound keeps a clock of their own; a read gets half of that bound.
TIMEOUT_MS = 5000
# Failures in a row that a network camera may have: one damaged picture is not its end.
# A stream that is closed fails as often within a millisecond.
FAILURES = 25
# A read that took so much of its time-out is not tried again: the time-out may come a bit early.
EARLY = 0.9
# After the first failure, seconds.
PATIENCE = 2.0


class Camera:
    """A camera that is running; a picture not taken in time is gone."""

    kind: Kind = "picture"
    lossless = False
    trouble = None

    def __init__(
        self,
        name: str,
        capture: Any,
        closing: threading.Event,
        failures: int = 1,
        timeout: float = TIMEOUT_MS / 1000,
    ) -> None:
        """Make a source of an opened cv2.VideoCapture, which it owns from now on.

        Args:
            name: what errors call it.
            capture: the stream or device.
            closing: once set, nothing more is read.
            failures: so many reads in a row that give no picture mean that it is lost.
            timeout: of a read, seconds.
        """
        self._name = name
        self._capture = capture
        self._closing = closing
        self._failures = failures
        self._timeout = timeout
        self._failed = 0
        """Pictures that could not be decoded, before the one that is ahead, not told of yet."""
        self._ahead = False
        self._whole = True
        self._time_ns, self._since = 0, 0.0

    def grab(self) -> bool:
        """Wait for the next picture."""
        if self._closing.is_set():
            return False
        if not self._ahead and not self._find():
            return False
        # First those that were damaged, each for itself.
        self._whole = self._failed == 0
        if self._whole:
            self._ahead = False
        else:
            self._failed -= 1
        return True

    def _find(self) -> bool:
        """Wait for the next picture that can be decoded, and note how many before it cannot.

        Returns:
            False once the source is to be closed.

        Raises:
            SourceError: there is none.
        """
        patience = 0.0
        for failed in range(self._failures):
            began = time.monotonic()
            if self._capture.grab():
                self._time_ns, self._since = time.time_ns(), time.monotonic()
                self._failed, self._ahead = failed, True
                return True
            HARDWARE.check_not_doubted(self._name)
            if self._closing.is_set():
                return False
            now = time.monotonic()
            patience = patience or now + PATIENCE
            if now > patience or now - began > EARLY * self._timeout:
                break
        raise SourceError(
            f"{self._name}: the camera stopped sending pictures "
            "(connection closed, device unplugged, or silent for too long)"
        )

    def retrieve(self) -> Reading:
        """Convert the picture that was grabbed."""
        if not self._whole:
            raise SampleError(f"{self._name}: a picture could not be decoded")
        problem = "a picture could not be converted to BGR"
        picture = HARDWARE.picture(self._capture, self._name, problem)
        return Reading(picture, self._time_ns, self._since)

    def close(self) -> None:
        """Close the stream or device."""
        self._capture.release()


def open_source(spec: SourceSpec, context: SourceContext) -> Camera:
    """Open a network stream or a device.

    Raises:
        SourceError: nothing answers, access is refused, or it is not a stream that can be decoded.
    """
    if spec.path is not None:
        return _open_device(spec, spec.path, context.closing)
    timeout = spec.stall_seconds / 2
    capture = open_camera(
        *(spec.text, spec.redacted, TIMEOUT_MS, round(timeout * 1000)),
        hardware=context.hardware_decoding,
    )
    if not capture.isOpened():
        capture.release()
        # Needed only here.
        from .ask_camera import why_closed

        raise SourceError(f"{spec.redacted}: {why_closed(spec.text)}")
    check_size(capture, spec.redacted)
    return Camera(spec.redacted, capture, context.closing, FAILURES, timeout)


def _open_device(spec: SourceSpec, path: Path, closing: threading.Event) -> Camera:
    # Here: network cameras have no use for it.
    from .v4l2 import DEVICES

    node = DEVICES.locate(path)
    _check_device(spec, node)
    capture = open_device(str(node))
    if not capture.isOpened():
        capture.release()
        raise SourceError(
            f"{spec.redacted}: is not a camera that gives pictures, or another program uses it"
        )
    check_size(capture, spec.redacted)
    DEVICES.remember(path, node)
    return Camera(spec.redacted, capture, closing)


def _check_device(spec: SourceSpec, node: Path) -> None:
    """Raise with the reason why a device cannot be opened, which OpenCV does not tell."""
    try:
        mode = os.stat(node).st_mode  # noqa: PTH116 - os.access below has no pathlib twin
    except OSError as problem:
        mend = "plug it in, or see `ls /dev/video*`" if problem.errno == errno.ENOENT else ""
        raise SourceError(
            f"{spec.redacted}: {problem.strerror}" + (f"; {mend}" if mend else "")
        ) from None
    if not stat.S_ISCHR(mode):
        raise SourceError(f"{spec.redacted}: is not a device; write file: for a video file")
    if not os.access(node, os.R_OK | os.W_OK):
        raise SourceError(f"{spec.redacted}: permission denied; add the user to the group 'video'")
