"""RTSP cameras whose times jump, whose tracks come late or stop, whose parameters change."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from edge_agent.core.errors import SampleError, SourceError
from edge_agent.sources.opencv import load
from edge_agent.sources.packet_ring import PACKETS, ClipWriter, PacketRing
from edge_agent.sources.source import SourceContext, open_source, readings
from edge_agent.sources.spec import parse_source
from tests.helpers.rtp_camera import (
    CLOCK,
    RtpCamera,
    Track,
    color,
    encoded,
    number_of,
    sound,
    video,
)

COUNT = 40
STEP = CLOCK // 10
CODECS = {"H264": "libx264", "H265": "libx265"}


def seen(url: str) -> list[tuple[int, tuple[int, ...]]]:
    """Read a camera until it hangs up; gives the number and the size of each picture."""
    source = open_source(parse_source(f"{url}?stall_s=4", Path("/")), SourceContext())
    found: list[tuple[int, tuple[int, ...]]] = []
    with pytest.raises(SourceError, match="stopped sending pictures"):
        found.extend(
            (number_of(reading.data), reading.data.shape[:2])
            for reading in readings(source)
            if not isinstance(reading, SampleError)
        )
    source.close()
    return found


@contextmanager
def kept(url: str) -> Iterator[None]:
    """Keep the camera's packets for clips of events."""
    PACKETS.want({url: 60.0})
    yield
    PACKETS.want({})


def clip(ring: PacketRing | None, path: Path) -> list[tuple[float, int]]:
    """Write the clip of an event; gives the time and the number of each of its frames."""
    assert ring is not None
    writer = ClipWriter(str(path), ring)
    for packet in ring.read(0):
        writer.write(packet)
    writer.close()
    with av.open(str(path)) as container:
        return [
            (float(frame.time or 0), number_of(frame.to_ndarray(format="bgr24")))
            for frame in container.decode(video=0)
        ]


TIMES = {
    "forward by an hour": lambda n: n * STEP + (n >= 20) * 3600 * CLOCK,
    "back by an hour": lambda n: n * STEP + (n < 20) * 3600 * CLOCK,
    "back by a second": lambda n: n * STEP + (n < 20) * CLOCK,
    "wrap around": lambda n: 2**32 + (n - 20) * STEP,
    "always zero": lambda _: 0,
    "zero from some time on": lambda n: (n < 20) * (500 * CLOCK + n * STEP),
    "by half their range": lambda n: n * STEP + (n >= 20) * (2**31 + 5),
    "at random": lambda n: n * 2654435761,
}


@pytest.mark.parametrize("form", TIMES)
def test_times_that_jump_cost_no_picture_and_no_clip(form: str, tmp_path: Path) -> None:
    """Nothing is lost, and the clip of an event lasts no longer than what it shows."""
    track = video("H264", encoded("libx264", range(COUNT)), stamp=TIMES[form])
    with RtpCamera([track]) as camera, kept(camera.url):
        assert [number for number, _ in seen(camera.url)] == [*range(COUNT)]
        frames = clip(PACKETS.ring(camera.url), tmp_path / "clip.mp4")
    assert [number for _, number in frames] == [*range(COUNT)]
    assert frames[-1][0] < 15
    assert all(one < other for (one, _), (other, _) in pairwise(frames))


@pytest.mark.parametrize("then", [3.95e9, 3.0e9, 0.1], ids=["forward", "back", "lost"])
def test_a_camera_with_sound_that_sets_its_clock(then: float, tmp_path: Path) -> None:
    """Sound and picture are timed by it, by FFmpeg."""
    reports = [(0.0, 3.9e9, 0), (0.5, then, 20 * STEP)]
    spoken = [(when, ntp, 8000 * at // CLOCK) for when, ntp, at in reports]
    tracks = [
        video("H264", encoded("libx264", range(COUNT)), clocks=reports),
        sound(1.0, clocks=spoken),
    ]
    with RtpCamera(tracks) as camera, kept(camera.url):
        assert [number for number, _ in seen(camera.url)] == [*range(COUNT)]
        frames = clip(PACKETS.ring(camera.url), tmp_path / "clip.mp4")
    assert [number for _, number in frames] == [*range(COUNT)]
    assert frames[-1][0] < 15


@pytest.mark.parametrize("band", [True, False], ids=["in band", "in the description"])
@pytest.mark.parametrize("name", CODECS)
def test_parameter_sets_and_a_clip_that_every_player_shows(
    name: str, band: bool, tmp_path: Path
) -> None:
    """MP4 has the length before each NAL unit, not a start code as the camera sends it."""
    frames = encoded(CODECS[name], range(COUNT))
    path = tmp_path / "clip.mp4"
    with RtpCamera([video(name, frames, band=band)]) as camera, kept(camera.url):
        assert [number for number, _ in seen(camera.url)] == [*range(COUNT)]
        assert [n for _, n in clip(PACKETS.ring(camera.url), path)] == [*range(COUNT)]
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            data, at = bytes(packet), 0
            while at < len(data):
                at += 4 + int.from_bytes(data[at : at + 4])
            assert at == len(data)


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [
        *(("libsvtav1", "mkv"), ("libx264", "mkv"), ("libx265", "ts"), ("libx264", "flv")),
        *(("mpeg4", "avi"), ("libvpx-vp9", "webm"), ("mpeg2video", "ts")),
    ],
)
def test_clips_of_events_of_every_codec(codec: str, suffix: str, tmp_path: Path) -> None:
    """Also of one that is only decoded here, and of frames that come out of their order."""
    if codec not in av.codecs_available:
        pytest.skip(f"PyAV has no encoder {codec} here")
    path = tmp_path / f"source.{suffix}"
    with av.open(str(path), "w") as container:
        options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
        stream: Any = container.add_stream(codec, rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        for number in range(COUNT):
            picture = np.full((96, 160, 3), color(number), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "bgr24").reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    ring = PacketRing(60.0)
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            ring.add(container, container.streams.video[0], packet)
    frames = clip(ring, tmp_path / "clip.mp4")
    assert [number for _, number in frames] == [*range(COUNT)]


@pytest.mark.parametrize("name", CODECS)
def test_size_and_pixel_format_change_in_band(name: str) -> None:
    """Each picture has its own size, whatever the description says."""
    codec = CODECS[name]
    parts = [
        encoded(codec, range(10)),
        encoded(codec, range(10, 20), (320, 192)),
        encoded(codec, range(20, 30), (96, 160), "yuv420p10le"),
        encoded(codec, range(30, 40), (96, 160), "yuv422p"),
    ]
    track = video(name, [frame for part in parts for frame in part])
    track.format = video(name, parts[0], band=False).format
    sizes = [(96, 160), (192, 320), (160, 96), (160, 96)]
    with RtpCamera([track]) as camera:
        assert seen(camera.url) == [(n, sizes[n // 10]) for n in range(COUNT)]


def test_of_two_videos_the_first_is_read_in_every_session() -> None:
    """Also when it begins later than the other."""
    tracks = [
        video("H264", encoded("libx264", range(COUNT)), late=1.0),
        video("H264", encoded("libx264", range(COUNT), (320, 192))),
    ]
    with RtpCamera(tracks) as camera:
        assert seen(camera.url) == [(n, (96, 160)) for n in range(COUNT)]


def test_sound_that_comes_first() -> None:
    """The picture may come later than what is looked at to recognize a stream."""
    with RtpCamera([sound(3), video("H264", encoded("libx264", range(10)), late=2.0)]) as camera:
        assert [number for number, _ in seen(camera.url)] == [*range(10)]


def test_sound_that_goes_on_without_a_picture() -> None:
    """The camera is lost within its time, and no thread stays with it."""
    tracks = [sound(60), video("H264", encoded("libx264", range(10)))]
    with RtpCamera(tracks) as camera:
        began = time.monotonic()
        assert [number for number, _ in seen(camera.url)] == [*range(9)]
        assert time.monotonic() - began < 30


def jpeg_payloads(number: int, quality: int, q: int, *, told: bool) -> list[bytes]:
    """Make the packets of a picture (RFC 2435); its tables are *told* where Q is from 128 on."""
    cv2 = load()
    picture = np.full((96, 160, 3), color(number), np.uint8)
    data: bytes = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
    tables, at = b"", 2
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4])
        if data[at + 1] == 0xDB:
            tables += data[at + 5 : at + 2 + length]
        at += 2 + length
    scan = data[at + 2 + int.from_bytes(data[at + 2 : at + 4]) : -2]
    tables = tables if told else b""
    more = struct.pack("!BBH", 0, 0, len(tables)) + tables if q >= 128 else b""
    return [
        cut.to_bytes(4)
        + bytes([1, q, 160 // 8, 96 // 8])
        + (b"" if cut else more)
        + scan[cut : cut + 1300]
        for cut in range(0, len(scan), 1300)
    ]


@pytest.mark.parametrize(
    ("quality", "q", "told_each"),
    [(75, 75, 1), (99, 99, 1), (33, 128, 1), (33, 255, 1), (60, 200, 5)],
)
def test_quantization_of_mjpeg(quality: int, q: int, told_each: int) -> None:
    """Tables are those of a number, come with each picture, or with some only."""
    payloads = [jpeg_payloads(n, quality, q, told=n % told_each == 0) for n in range(20)]
    with RtpCamera([Track("JPEG", payloads)]) as camera:
        assert seen(camera.url) == [(n, (96, 160)) for n in range(20)]


@pytest.mark.parametrize("offered", ["GET_PARAMETER", "OPTIONS"])
def test_a_session_that_expires_is_kept_alive(offered: str) -> None:
    """Asked for in time with what the camera offers."""
    track = video("H264", encoded("libx264", range(COUNT)), rate=8)
    offers = "OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER"
    offers = offers if offered == "GET_PARAMETER" else offers.removesuffix(", GET_PARAMETER")
    with RtpCamera([track], timeout=2, offers=offers) as camera:
        assert [number for number, _ in seen(camera.url)] == [*range(COUNT)]
        assert camera.requests[camera.requests.index("PLAY") + 1] == offered
