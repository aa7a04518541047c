"""When the frames of a clip are due that is played at its own rate."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from edge_agent.sources.clip import _Timing
from edge_agent.sources.video import FILE, Video

PERIOD = 0.1
REORDERED = 3 * PERIOD
"""The first times of frames out of order may be too far apart."""


def write(path: Path, times: list[int], before: int = 0) -> Path:
    """Write H.264 with B-frames, a frame at each of *times*, in tenths of a second."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=10, options={"bf": "3", "g": "20"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 10)
        for number in times:
            shade = np.full((48, 64, 3), 40 + 5 * (number % 40), np.uint8)
            frame = av.VideoFrame.from_ndarray(shade, "bgr24").reformat(format="yuv420p")
            frame.pts, frame.time_base = number - before, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def due(path: Path, passes: int = 1) -> list[float]:
    """Give when each frame of a clip is due, seconds after the first."""
    timing, found = _Timing(), []
    for _ in range(passes):
        video = Video(str(path), path.name, FILE)
        timing.begin(video.rate)
        while video.advance():
            found.append(timing.due(video.stamps))
        video.close()
    return [each - found[0] for each in found]


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("suffix", ["avi", "wmv", "mp4", "mkv", "ts"])
def test_reordered_frames_take_as_long_as_their_clip(
    suffix: str, passes: int, tmp_path: Path
) -> None:
    """AVI and WMV state when packets come, not when frames are due: they took 2.4 times as long."""
    found = due(write(tmp_path / f"clip.{suffix}", list(range(40))), passes)
    assert len(found) == 40 * passes
    assert found == sorted(found)
    assert found[-1] == pytest.approx((40 * passes - 1) * PERIOD, abs=REORDERED)


@pytest.mark.parametrize("before", [0, 5])
def test_frames_of_a_variable_rate_are_due_at_their_own_times(before: int, tmp_path: Path) -> None:
    """Also where the first ones have times below zero."""
    times = [0, 1, 2, 8, 9, 14, 15, 30]
    found = due(write(tmp_path / "clip.mkv", times, before))
    assert found == pytest.approx([PERIOD * each for each in times], abs=0.01)
