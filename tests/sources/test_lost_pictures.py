"""Clips and cameras of which a picture was lost: what cannot be decoded without it is counted."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from edge_agent.core.errors import SampleError, SourceError
from edge_agent.sources.source import SourceContext, open_source, readings
from edge_agent.sources.spec import parse_source
from tests.helpers.rtp_camera import CLOCK, RtpCamera, color, encoded, number_of, video

SIZE = (160, 96)
LOST = {12, 13}
EVERY = 25
X265 = f"log-level=none:pools=1:bframes=0:scenecut=0:keyint={EVERY}:min-keyint={EVERY}"


def write(path: Path, codec: str, count: int, lost: Collection[int]) -> Path:
    """Write a clip of *count* frames, each of its color, without the packets of the *lost* ones."""
    options = {
        "g": str(EVERY),
        "bf": "0",
        "sc_threshold": "0",
        **({"x265-params": X265} if codec == "libx265" else {}),
    }
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        packets = []
        for number in range(count):
            picture = np.full((SIZE[1], SIZE[0], 3), color(number), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "bgr24").reformat(format="yuv420p")
            packets += stream.encode(frame)
        for number, packet in enumerate([*packets, *stream.encode(None)]):
            if number not in lost:
                container.mux(packet)
    return path


def played(path: Path) -> tuple[list[int | None], str | None]:
    """Play a clip; gives the number of each frame, None for an error, and what is said of it."""
    source = open_source(parse_source(f"file:{path}?pace=max", path.parent), SourceContext())
    found = [None if isinstance(r, SampleError) else number_of(r.data) for r in readings(source)]
    trouble = source.trouble
    source.close()
    return found, trouble


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_h265_frames_that_refer_to_a_lost_one_are_counted(suffix: str, tmp_path: Path) -> None:
    """All up to the next key frame were withheld, and nothing said so."""
    path = write(tmp_path / f"clip.{suffix}", "libx265", 50, LOST)
    found, trouble = played(path)
    damaged = EVERY - 14
    assert found == [*range(12), *[None] * damaged, *range(EVERY, 50)]
    assert trouble == f"{damaged} of the frames could not be decoded, the first is number 13"


def test_h264_goes_on_from_the_picture_before(tmp_path: Path) -> None:
    """Its decoder conceals what is missing: no picture but the lost ones is missing."""
    found, trouble = played(write(tmp_path / "clip.mp4", "libx264", 50, LOST))
    assert (len(found), None in found, trouble) == (48, False, None)


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_whole_clip_is_not_called_damaged(codec: str, tmp_path: Path) -> None:
    """Nothing is counted where nothing is lost."""
    assert played(write(tmp_path / "clip.mp4", codec, 50, ())) == ([*range(50)], None)


def test_a_clip_that_begins_between_key_frames_says_so(tmp_path: Path) -> None:
    """What comes before its first key frame cannot be decoded."""
    found, trouble = played(write(tmp_path / "clip.ts", "libx264", 50, {0}))
    assert found == [*[None] * (EVERY - 1), *range(EVERY, 50)]
    assert trouble == f"{EVERY - 1} of the frames could not be decoded, the first is number 1"


@pytest.mark.parametrize(("begin", "lost"), [(0, 12), (3, 57)])
def test_a_camera_is_not_lost_with_a_picture(begin: int, lost: int) -> None:
    """More than 25 pictures to the next key frame: each is an error, the session goes on.

    Those before its first key frame are none.
    """
    every = 45
    numbers = [n for n in range(begin, 95) if n != lost]
    frames = encoded("libx265", range(95), every=every)
    track = video("H265", [frames[n] for n in numbers])
    track.stamp = lambda n: numbers[n] * CLOCK // 10
    with RtpCamera([track]) as camera:
        source = open_source(parse_source(camera.url + "?stall_s=10", Path("/")), SourceContext())
        found: list[int | str] = []
        with pytest.raises(SourceError, match="stopped sending pictures"):
            found.extend(
                str(r) if isinstance(r, SampleError) else number_of(r.data)
                for r in readings(source)
            )
        source.close()
    key = lost + every - lost % every
    decoded = [*range(every if begin else 0, lost), *range(key, 95)]
    assert [each for each in found if isinstance(each, int)] == decoded
    said = [each for each in found if isinstance(each, str)]
    assert len(said) == key - lost - 1
    assert all("a picture was lost or damaged on the way" in each for each in said)
