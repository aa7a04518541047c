"""Streams that come faster than they are decoded: how old pictures are is bounded, and said."""

from __future__ import annotations

import io
import socket
import threading
import time
from itertools import pairwise
from pathlib import Path

import av
import pytest

from edge_agent.core.errors import SampleError, SourceError
from edge_agent.sources.backlog import MOST_SECONDS, Backlog
from edge_agent.sources.source import SourceContext, open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.small_models import plain

FPS = 25
SECONDS = 8
DARKER = 3
"""By how much a picture is darker than its number, after H.264."""


def test_a_camera_whose_clock_is_slow_is_not_behind() -> None:
    """After ten hours it would be seven seconds late by its own times."""
    backlog, at = Backlog(), time.monotonic()
    for number in range(10 * 3600):
        backlog.note(number * (1 - 2e-4), at + number, waited=0.9)
        assert backlog.due(key=False)


def test_a_camera_that_sends_fewer_frames_than_its_times_say_is_not_behind() -> None:
    """Its times are 25 frames a second, it sends 15."""
    backlog, at = Backlog(), time.monotonic()
    for number in range(3000):
        backlog.note(number / 25, at + number / 15, waited=0.05)
        assert backlog.due(key=False)


def test_a_stream_whose_times_begin_again_every_two_seconds_is_not_behind() -> None:
    """As of a camera or a server that repeats a short recording."""
    backlog, at = Backlog(), time.monotonic()
    for number in range(600):
        backlog.note(number % 20 / 10, at + number / 10, waited=0.08)
        assert backlog.due(key=False)


def test_a_stream_that_only_seems_behind_is_read_again_after_a_second() -> None:
    """Its times stand still for a while, and nothing waits to be read."""
    backlog, at = Backlog(), time.monotonic()
    for number in range(100):
        backlog.note(0.0, at + number / 10, waited=0.0)
        backlog.due(key=False)
    assert backlog.leaving_out
    for number in range(100, 130):
        backlog.note(0.0, at + number / 10, waited=0.098)
        backlog.due(key=True)
    assert not backlog.leaving_out


@pytest.mark.parametrize("step", [3600.0, -3600.0, -5.0])
def test_a_clock_that_is_set_is_no_backlog(step: float) -> None:
    """Nor does it hide the one that there is."""
    backlog, at = Backlog(), time.monotonic()
    for number in range(200):
        backlog.note(number / 25 + step * (number >= 100), at + number / 25, waited=0.03)
        assert backlog.due(key=False)
    for number in range(200):
        backlog.note(8 + number / 25, at + 8 + number / 12, waited=0.0)
    assert backlog.seconds > MOST_SECONDS


def test_a_burst_at_the_beginning_is_no_backlog() -> None:
    """Servers send the pictures since the last key frame at once."""
    backlog, at = Backlog(), time.monotonic()
    for number in range(300):
        backlog.note(
            number / 25, at + max(0.0, number / 25 - 4), waited=0.0 if number < 100 else 0.03
        )
        assert backlog.due(key=False)


def pictures() -> bytes:
    """Make a transport stream whose pictures grow brighter, with a key frame each second."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream = container.add_stream(
            "libx264", rate=FPS, options={"g": str(FPS), "sc_threshold": "0", "tune": "zerolatency"}
        )
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for number in range(FPS * SECONDS):
            frame = av.VideoFrame.from_ndarray(plain(number, 320, 240), format="bgr24")
            container.mux(stream.encode(frame.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    return file.getvalue()


def test_a_camera_that_is_decoded_too_slowly_says_so_and_goes_on_at_a_key_frame() -> None:
    """The network's buffers held twenty seconds of a 4K camera, and no age of a result told."""
    data, slow = pictures(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            client = door.accept()[0]
            with client:
                client.recv(65536)
                client.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\n\r\n" + data)
                client.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{door.getsockname()[1]}/stream?stall_s=4"
        source = open_source(parse_source(url, Path("/")), SourceContext())
        seen: list[int] = []
        said: list[str] = []

        def read() -> None:
            while source.grab():
                try:
                    seen.append(round(float(source.retrieve().data.mean())))
                except SampleError as problem:
                    said.append(str(problem))
                slow.wait(3 / FPS)  # what decoding takes on a slow device

        with pytest.raises(SourceError):
            read()
        source.close()
    assert said
    assert all("comes faster than it is decoded here" in each for each in said)
    assert all("?frames=key" in each for each in said)
    # Where pictures were left out, a second of them or more is missing, up to a key frame.
    gaps = [(one, other) for one, other in pairwise(seen) if other > one + 2]
    assert gaps
    assert all((other + DARKER) % FPS in {0, 1, FPS - 1} for _, other in gaps)
