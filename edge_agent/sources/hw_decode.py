"""Hardware decoders: tried first if there is a device for them, but never again after a failure.

PyAV supports those that its FFmpeg was built with (its wheels: CUDA and QSV; distributions also
VAAPI). If a driver opens a stream but decodes no picture, that is recorded here for the stream.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from ..core.errors import SourceError

log = logging.getLogger(__name__)

NODES = "/dev/dri"
KINDS = ("vaapi", "cuda", "qsv", "drm")
"""Kinds of acceleration in the order of the tries."""
PATIENCE_SECONDS = 20.0
"""Time limit for a first picture; opening a camera has a limit of 30 s."""


class Hardware:
    """The state of hardware decoding in this process."""

    def __init__(self, nodes: str = NODES, kinds: Sequence[str] = KINDS) -> None:
        """Start without known streams; *kinds* of acceleration to try, by FFmpeg's names."""
        self.kinds = kinds
        self._nodes = nodes
        self._failed: set[str] = set()
        self._trying: dict[str, float] = {}
        """Opening times of streams without a picture so far."""

    def wanted(self, name: str, decode: str = "auto") -> bool:
        """Whether to try hardware for a stream: not if it has failed for this one before."""
        if decode == "software" or (decode == "auto" and not self._there()):
            return False
        now = time.monotonic()
        # Two pipelines may open the same stream at a time.
        if now - self._trying.get(name, now) > PATIENCE_SECONDS:
            self.failed(name, "hung")
        if name in self._failed:
            return False
        self._trying.setdefault(name, now)
        return True

    def _there(self) -> bool:
        """Whether this user may open a render node."""
        try:
            names = os.listdir(self._nodes)  # noqa: PTH208 - pathlib is not needed on the way here
        except OSError:
            return False
        return any(
            name.startswith("renderD") and os.access(f"{self._nodes}/{name}", os.R_OK | os.W_OK)
            for name in names
        )

    def decoder(self, software: Any, name: str, decode: str) -> Any:
        """Return a hardware decoder in place of the software one, or None.

        *decode*: `auto`, `software`, or a kind of hardware, which is tried even without a device.
        """
        if not self.wanted(name, decode):
            return None
        import av
        from av.codec.hwaccel import HWAccel, hwdevices_available

        why, offered = "", hwdevices_available()
        for kind in self.kinds if decode == "auto" else (decode,):
            if kind not in offered:
                if decode != "auto":
                    why = f"{kind} is not in this FFmpeg (it has {', '.join(offered) or 'none'})"
                continue
            try:
                made = av.CodecContext.create(software.codec, hwaccel=HWAccel(kind))
            except (av.FFmpegError, RuntimeError) as problem:
                why = f"cannot be opened ({kind}: {problem})"
                continue
            if made.is_hwaccel:
                made.extradata = software.extradata
                made.flags |= software.flags
                return made
        self.works(name)
        if why:
            self.failed(name, why)
        return None

    def works(self, name: str) -> None:
        """Record that a picture of a stream was decoded."""
        self._trying.pop(name, None)

    def failed(self, name: str, why: str) -> None:
        """Decode a stream in software from now on."""
        self._trying.pop(name, None)
        if name not in self._failed:
            self._failed.add(name)
            log.warning("%s: the hardware decoder %s; decoding in software", name, why)

    def doubt(self, name: str) -> bool:
        """Whether a first picture is missing because of the hardware decoder.

        If so, the stream must be opened again, and will be decoded in software.
        """
        if name not in self._trying:
            return False
        self.failed(name, "gave no picture")
        return True

    def check_not_doubted(self, name: str) -> None:
        """Check that the hardware decoder is not the reason for missing pictures of a stream.

        Raises:
            SourceError: it is the reason.
        """
        if self.doubt(name):
            raise SourceError(f"{name}: is opened again, to decode in software")


HARDWARE = Hardware()
"""The state of this process."""
