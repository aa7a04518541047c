"""A clip that holds less than its container states says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from edge_agent.core.errors import SampleError
from edge_agent.sources.source import open_source, readings
from edge_agent.sources.spec import parse_source

FRAMES = 60
PACKET = 188
ENCODERS = {
    "libx264": {"preset": "ultrafast"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:pools=1"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
}


def write(path: Path, codec: str, **options: str) -> Path:
    """Write six seconds of noise, which takes much room; *options* are the container's."""
    noise = np.random.default_rng(5)
    with av.open(str(path), "w", options=options) as container:
        given = {"g": "20"} | ENCODERS.get(codec, {})
        stream: Any = container.add_stream(codec, rate=10, options=given)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        for _ in range(FRAMES):
            picture = noise.integers(0, 255, (96, 160, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "bgr24")))
        container.mux(stream.encode(None))
    return path


def played(path: Path) -> tuple[int, str]:
    """Play a clip; gives the number of its frames, and what is said of it."""
    source = open_source(parse_source(f"file:{path.name}?pace=max", path.parent))
    count = sum(not isinstance(reading, SampleError) for reading in readings(source))
    trouble = source.trouble
    source.close()
    return count, trouble or ""


@pytest.mark.parametrize(
    ("suffix", "codec"), [("mkv", "libx264"), ("webm", "libvpx"), ("flv", "libx264")]
)
def test_a_clip_that_ends_before_its_time_says_so(suffix: str, codec: str, tmp_path: Path) -> None:
    """Matroska, WebM and FLV state no number of frames, but how long they take."""
    path = write(tmp_path / f"clip.{suffix}", codec)
    assert played(path) == (FRAMES, "")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    count, said = played(path)
    assert 0.3 * FRAMES < count < 0.7 * FRAMES
    found = re.search(r"ended at (\S+) s of (\S+) s; the file is damaged or cut short", said)
    assert found is not None
    assert float(found[1]) == pytest.approx(count / 10, abs=0.35)
    assert float(found[2]) == pytest.approx(FRAMES / 10, abs=0.25)


def test_a_fragmented_mp4_whose_middle_is_damaged_says_so(tmp_path: Path) -> None:
    """Behind a damaged fragment nothing is found, and no header states how much there is."""
    path = write(tmp_path / "clip.mp4", "libx264", movflags="frag_keyframe+empty_moov")
    assert played(path) == (FRAMES, "")
    data = bytearray(path.read_bytes())
    second = data.index(b"moof", data.index(b"moof") + 4)
    data[second - 4 : second + 4] = b"\0\0\0\3junk"
    path.write_bytes(data)
    count, said = played(path)
    assert count <= FRAMES // 3
    assert re.search(r"the last [67]\d % of the file hold no picture of its video", said)


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video"])
def test_a_transport_stream_that_lacks_packets_says_so(codec: str, tmp_path: Path) -> None:
    """Not every decoder tells a picture of which a part is missing."""
    path = write(tmp_path / "clip.ts", codec)
    data = path.read_bytes()
    middle = len(data) // 2 // PACKET * PACKET
    path.write_bytes(data[:middle] + data[middle + 3 * PACKET :])
    count, said = played(path)
    assert FRAMES - 25 <= count <= FRAMES
    assert "the file is damaged; incomplete packets: " in said


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video"])
def test_transport_streams_put_together_are_not_called_damaged(codec: str, tmp_path: Path) -> None:
    """At the seam the counters of packets do not fit."""
    path = write(tmp_path / "clip.ts", codec)
    assert played(path) == (FRAMES, "")
    path.write_bytes(2 * path.read_bytes())
    assert played(path) == (2 * FRAMES, "")
