"""Whether a clip held all that its container states."""

from __future__ import annotations

import re
from typing import Any

LEAST_REST = 2**18
"""Fewest bytes after the last picture to report: sound may last longer."""
LONGEST_STEP = 10.0
"""Seconds from one packet to the next. A longer step, or one back, joins two transport streams;
their counters do not fit, so that a packet seems to be torn."""
NEAR = 4
"""Most packets between one that seems to be torn and such a step."""
SHARE, SLACK = 0.9, 1.0
"""Share of the stated time, less some seconds, that must be reached: the last picture of a
recording of what seldom moves may stay for long."""


class Completeness:
    """What has been read of one video, beside what its container states."""

    def __init__(self, container: Any, stream: Any) -> None:
        """Look at the header."""
        kinds = container.format.name.split(",")
        self._frames: int = stream.frames
        """Number of frames; 0: not stated."""
        if "mov" in kinds:
            # Frames excluded by an edit list are not read.
            self._frames = min(self._frames, len(stream.index_entries))
        self._seconds = _seconds(container, stream) if {"matroska", "flv"} & set(kinds) else 0.0
        """When the last frame ends; 0: not stated."""
        # These are read up to the last byte. An MP4 without a number of frames is fragmented.
        self._to_end = bool({"mpegts", "flv"} & set(kinds)) or ("mov" in kinds and not self._frames)
        # Frames that only repeat the previous one are counted in the header but not read.
        self._repeats = "avi" in kinds
        self._base = float(stream.time_base)
        self._packets = 0
        """Number of packets, one per frame or field."""
        self._place = 0
        """Position of the last one, bytes; 0: not known."""
        self._until = 0
        """When it ends, in units of the stream."""
        self._torn = 0
        """Number of packets of which a part is missing."""
        self._doubts, self._doubt, self._dts = 0, 0, 0
        """How many packets lately seem to be torn, the number of the last one, and when the last
        packet came, in units of the stream."""

    def note(self, packet: Any) -> None:
        """Note that a packet was read."""
        dts = packet.dts
        self._packets += packet.size > 0
        self._place = packet.pos or self._place
        if self._repeats and dts is not None:
            self._packets = dts + 1
        if packet.pts is not None:
            self._until = packet.pts + (packet.duration or 0)
        if dts is not None:
            if not 0 <= (dts - self._dts) * self._base < LONGEST_STEP:
                self._doubts = 0
            self._dts = dts
        if self._doubts and self._packets > self._doubt + NEAR:
            self._torn, self._doubts = self._torn + self._doubts, 0
        if packet.is_corrupt:
            self._doubts, self._doubt = self._doubts + 1, self._packets

    def shortfall(self, size: int, begin: int) -> str | None:
        """Return what is missing at the end of a video, or None.

        *size*: of the file, bytes; *begin*: offset of what was opened of it.
        """
        if self._packets < 0.95 * self._frames - 2:
            return (
                f"ended after {self._packets} of {self._frames} frames; the file is damaged or cut "
                "short"
            )
        reached = self._until * self._base
        if self._seconds and reached < SHARE * self._seconds - SLACK:
            return (
                f"ended at {reached:.1f} s of {self._seconds:.1f} s; the file is damaged or cut "
                "short"
            )
        rest = size - begin - self._place
        if self._to_end and self._place and rest > max(LEAST_REST, size // 10):
            return (
                f"the last {round(100 * rest / size)} % of the file hold no picture of its video; "
                "look at it with `ffprobe`"
            )
        torn = self._torn + self._doubts
        return f"the file is damaged; incomplete packets: {torn}" if torn else None


def _seconds(container: Any, stream: Any) -> float:
    """Return how long a video is by the header of its container; 0: not stated."""
    for key, value in stream.metadata.items():
        found = re.match(r"(\d+):(\d+):(\d+\.?\d*)", value)
        if key.startswith("DURATION") and found is not None:
            hours, minutes, seconds = map(float, found.groups())
            return 3600 * hours + 60 * minutes + seconds
    # Otherwise that of the longest stream is stated.
    return (container.duration or 0) / 1e6 if len(container.streams) == 1 else 0.0
