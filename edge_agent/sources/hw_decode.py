"""Hardware decoders: tried first if there is a device for them, never again once they failed.

PyAV knows those that its FFmpeg was built with (its wheels: CUDA and QSV; a distribution's also
VAAPI). A driver that opens and then gives nothing is remembered here, stream by stream.
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
"""In the order in which they are tried."""
PATIENCE_SECONDS = 20.0
"""For a first picture; a camera that hangs while it is opened is given up on after 30 s."""


class Hardware:
    """The state of hardware decoding in this process."""

    def __init__(self, nodes: str = NODES, kinds: Sequence[str] = KINDS) -> None:
        """Start with no stream known; *kinds* of acceleration to try, by FFmpeg's names."""
        self.kinds = kinds
        self._nodes = nodes
        self._failed: set[str] = set()
        self._trying: dict[str, float] = {}
        """Since when, of streams of which no picture has come yet."""

    def wanted(self, name: str, decode: str = "auto") -> bool:
        """Whether to try it for a stream: not for one that it has given nothing of before."""
        if decode == "software" or (decode == "auto" and not self._there()):
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
                return made
        self.works(name)
        if why:
            self.failed(name, why)
        return None

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

    def check_not_doubted(self, name: str) -> None:
        """Check that it is not the hardware decoder that gives nothing of a stream.

        Raises:
            SourceError: it is.
        """
        if self.doubt(name):
            raise SourceError(f"{name}: is opened again, to decode in software")


HARDWARE = Hardware()
"""The process's own."""
