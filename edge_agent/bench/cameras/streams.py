"""The streams for `bench cameras`: a moving picture, encoded here and served as if by cameras."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.types import Array
from ...mqtt.loopback import free_port
from ..common.programs import endless
from ..common.report import Progress

FPS = 30
SECONDS = 4
"""Length of a stream before it repeats."""
KEY_FRAMES = 2 * FPS
GRAIN = 12
"""Gray levels of sensor noise."""
ENCODERS = {"H264": "libx264", "H265": "libx265"}
BITS = {"H264": 2.0, "H265": 1.2}
"""Bits per second and pixel, as usual for cameras: 4 Mbit/s for 1080p in H.264."""
FIRST_PORT = 8554
SYSTEM = {"PATH": "/usr/bin:/bin"}
"""Environment with the Python that has GStreamer's bindings."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream."""

    codec: str
    width: int
    height: int
    file: Path
    """MPEG-TS."""
    address: str = ""
    """RTSP address; empty: the file is played at its own rate."""

    @property
    def name(self) -> str:
        return f"{self.codec} {self.width}x{self.height}"

    @property
    def source(self) -> str:
        """The source for a pipeline."""
        return self.address or endless(self.file, "real")

    @property
    def opened(self) -> str:
        """The same in the form that FFmpeg opens."""
        return self.address or str(self.file)

    @property
    def frames(self) -> Path:
        """The folder with a file for each frame, without a container."""
        return self.file.with_suffix("")


def make(codec: str, size: tuple[int, int], folder: Path) -> Stream:
    """Encode a stream."""
    import av

    width, height = size
    stream = Stream(codec, width, height, folder / f"{codec}-{width}x{height}.ts")
    encoder = ENCODERS[codec]
    if encoder not in av.codecs_available:
        raise UsageError(f"--streams: {codec}: this PyAV has no {encoder} to encode it with")
    stream.frames.mkdir()
    names = (f"{number:04d}.{codec.lower()}" for number in count())
    with av.open(str(stream.file), "w", format="mpegts") as container:
        video: Any = container.add_stream(encoder, rate=FPS)
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        video.bit_rate, video.gop_size = int(BITS[codec] * width * height), KEY_FRAMES
        video.max_b_frames = 0
        video.options = {"preset": "superfast", "x265-params": "log-level=none"}
        frames = (av.VideoFrame.from_ndarray(each, "yuv420p") for each in _pictures(width, height))
        for frame in chain(frames, [None]):
            for packet in video.encode(frame):
                (stream.frames / next(names)).write_bytes(bytes(packet))
                container.mux(packet)
    return stream


def _pictures(width: int, height: int) -> Iterator[Array]:
    """Yield a still background with a moving band, covered with sensor noise.

    Each is uint8 (height * 3 / 2, width), the planes of YUV 4:2:0 one below another.
    """
    chance = np.random.default_rng(1)
    still = chance.integers(60, 180, (height // 8 + 1, width // 8 + 1), np.uint8)
    still = still.repeat(8, 0).repeat(8, 1)[:height, :width]
    grain = chance.integers(0, GRAIN, (height, width), np.uint8)
    band = slice(height // 3, height // 2)
    for number in range(FPS * SECONDS):
        picture = np.full((height * 3 // 2, width), 128, np.uint8)
        picture[:height] = still
        picture[band] = np.roll(picture[band], 8 * number, axis=1)
        picture[:height] += np.roll(grain, number * (7 * width + 13))
        yield picture


@contextmanager
def served(stream: Stream, report_progress: Progress) -> Iterator[Stream]:
    """Serve a stream over RTSP; if that is impossible, report it, and yield it as a file."""
    port = free_port(FIRST_PORT)
    script = str(Path(__file__).with_name("rtsp_server.py"))
    command = ["/bin/sh", "-c", 'exec python3 -I "$@"', "sh", script]
    with subprocess.Popen(
        [*command, str(port), str(FPS), str(stream.frames)],
        env=SYSTEM,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    ) as server:
        try:
            if server.stdout is not None and server.stdout.readline() == "ready\n":
                yield replace(stream, address=f"rtsp://127.0.0.1:{port}/0")
                return
            why = server.communicate()[1].strip().rpartition("\n")[2]
            report_progress(f"no RTSP server ({why}): streams are files, played at their own rate")
            yield stream
        finally:
            server.kill()
