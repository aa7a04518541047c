"""Hardware decoders: tried first where there is a device for them, never again once they failed.

OpenCV finds them itself among those that its FFmpeg was built with (VAAPI, QSV, CUDA …; the wheels
of PyPI have none) and decodes in software where there is none. What it does not see is a driver
that opens and then gives nothing: that is remembered here, stream by stream.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from ..core.errors import SampleError, SourceError
from ..core.types import Array
from .frame_pool import FRAME_POOL

log = logging.getLogger(__name__)

NODES = "/dev/dri"
PATIENCE_SECONDS = 20.0
"""For a first picture; a camera that hangs while it is opened is given up on after 30 s."""
ANY = 1
"""cv2.VIDEO_ACCELERATION_ANY; OpenCV is not imported yet when this is needed."""


class Hardware:
    """What is known of hardware decoding in this process."""

    def __init__(self, nodes: str = NODES, kind: int = ANY) -> None:
        """Start with no stream known.

        Args:
            nodes: folder of the render nodes.
            kind: of acceleration to ask OpenCV for, by its number.
        """
        self.kind = kind
        self._nodes = nodes
        self._failed: set[str] = set()
        self._shapes: dict[str, tuple[int, ...]] = {}
        """Of each stream's latest picture."""
        self._trying: dict[str, float] = {}
        """Since when, of streams of which no picture has come yet."""

    def wanted(self, name: str) -> bool:
        """Whether to try it for a stream: not for one that it has given nothing of before."""
        if not self._there():
            return False
        now = time.monotonic()
        # The same stream may be opened by two pipelines at a time.
        if now - self._trying.get(name, now) > PATIENCE_SECONDS:
            self.failed(name, "hung")
        if name in self._failed:
            return False
        self._trying.setdefault(name, now)
        return True

    def _there(self) -> bool:
        """Whether there is a render node that this user may open."""
        try:
            names = os.listdir(self._nodes)  # noqa: PTH208 - pathlib is not needed on the way here
        except OSError:
            return False
        return any(
            name.startswith("renderD") and os.access(f"{self._nodes}/{name}", os.R_OK | os.W_OK)
            for name in names
        )

    def works(self, name: str) -> None:
        """Record that a picture of a stream has come."""
        self._trying.pop(name, None)

    def failed(self, name: str, why: str) -> None:
        """Decode a stream in software from now on."""
        self._trying.pop(name, None)
        if name not in self._failed:
            self._failed.add(name)
            log.warning("%s: the hardware decoder %s; decoding in software", name, why)

    def doubt(self, name: str) -> bool:
        """Whether it is the hardware decoder that a first picture did not come from.

        If so, the stream is to be opened again, and will be decoded in software.
        """
        if name not in self._trying:
            return False
        self.failed(name, "gave no picture")
        return True

    def picture(self, capture: Any, name: str, problem: str) -> Array:
        """Convert what a capture has grabbed.

        Args:
            capture: that has grabbed something.
            name: of the stream, without passwords.
            problem: what is wrong with one that cannot be converted.

        Returns:
            uint8, height x width x 3, BGR.

        Raises:
            SampleError: it cannot be converted.
            SourceError: the hardware decoder cannot take this stream; it is to be opened again.
        """
        # Most are as large as the one before; of another size, OpenCV gives one of its own.
        shape = self._shapes.get(name)
        good, picture = capture.retrieve(None if shape is None else FRAME_POOL.lend(shape))
        if not good or picture is None or picture.ndim != 3:
            self.check_not_doubted(name)
            raise SampleError(f"{name}: {problem}")
        self._shapes[name] = picture.shape
        if name in self._trying:
            self.works(name)
        converted: Array = picture
        return converted

    def check_not_doubted(self, name: str) -> None:
        """Check that it is not the hardware decoder that gives nothing of a stream.

        Raises:
            SourceError: it is.
        """
        if self.doubt(name):
            raise SourceError(f"{name}: is opened again, to decode in software")

    def capture(self, cv2: Any, source: str, name: str, parameters: Sequence[int]) -> Any:
        """Open a stream by FFmpeg, on a hardware decoder if that can be.

        Args:
            cv2: OpenCV.
            source: as FFmpeg takes it.
            name: of the stream, without passwords.
            parameters: of the capture, in pairs.

        Returns:
            A cv2.VideoCapture that may not be opened.
        """
        tried = self.wanted(name)
        if tried:
            more = (int(cv2.CAP_PROP_HW_ACCELERATION), self.kind)
            opened = cv2.VideoCapture(source, cv2.CAP_FFMPEG, (*parameters, *more))
            if opened.isOpened():
                if not opened.get(cv2.CAP_PROP_HW_ACCELERATION):
                    self.works(name)  # there is none: OpenCV decodes in software by itself
                return opened
            opened.release()
            self._trying.pop(name, None)
        plain = cv2.VideoCapture(source, cv2.CAP_FFMPEG, parameters)
        if tried and plain.isOpened():
            # It was not the stream that could not be opened.
            self.failed(name, "cannot take it")
        return plain


HARDWARE = Hardware()
"""The process's own."""
