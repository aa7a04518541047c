"""What has been read or lost is freed at once, not when Python next collects cycles."""

from __future__ import annotations

import gc
import io
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from edge_agent.core.errors import SourceError
from edge_agent.core.types import Reading
from edge_agent.sources.live_pictures import share
from edge_agent.sources.source import Source, SourceContext, open_source, readings
from edge_agent.sources.spec import parse_source
from tests.helpers.cameras import MjpegServer
from tests.helpers.rtp_camera import RtpCamera, encoded, video
from tests.helpers.small_models import encode_jpeg, plain

LOSSES = 4
FFMPEG = ("VideoFrame", "VideoCodecContext", "InputContainer", "VideoReformatter", "PyIOFile")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Python collects no cycles during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    """Count what FFmpeg's libraries have opened, and the pictures that are kept."""
    names = (type(each).__name__ for each in gc.get_objects())
    return Counter(name for name in names if name in {*FFMPEG, "Reading"})


def transport_stream() -> bytes:
    """Make a second of MPEG-TS."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"tune": "zerolatency"})
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for number in range(25):
            frame = av.VideoFrame.from_ndarray(plain(number, 320, 240), format="bgr24")
            container.mux(stream.encode(frame.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    return file.getvalue()


def read_until_lost(source: Source) -> SourceError:
    """Read a camera until it is lost; returns why, which a pipeline keeps."""
    lost = SourceError("was not lost")
    try:
        for reading in readings(source):
            assert isinstance(reading, Reading)
    except SourceError as problem:
        lost = problem
    finally:
        source.close()
    assert "stopped sending pictures" in str(lost)
    # As the thread that captures does.
    lost.__traceback__ = None
    return lost


def shared(url: str) -> Source:
    """Open a camera as a pipeline does."""
    return share(parse_source(f"{url}?stall_s=4", Path("/")), SourceContext())


@pytest.mark.usefixtures("uncollected")
def test_a_decoded_picture_is_freed_when_the_next_one_is_read(tmp_path: Path) -> None:
    """Memory of 4K clips and cameras grew by a picture a frame until the next collection."""
    path = tmp_path / "clip.ts"
    path.write_bytes(transport_stream())
    source = open_source(parse_source(f"file:{path}?pace=max", Path("/")), SourceContext())
    most: Counter[str] = Counter()
    for _ in readings(source):
        most |= alive()
    source.close()
    assert most["VideoFrame"] <= 4  # the decoder's own, and those read to see that it opens
    assert not +Counter({name: alive()[name] for name in FFMPEG})


@pytest.mark.usefixtures("uncollected")
def test_a_lost_rtsp_camera_leaves_no_decoder() -> None:
    """Each loss left a megabyte for a small camera, and more for a large one."""
    kept = []
    for _ in range(LOSSES):
        with RtpCamera([video("H264", encoded("libx264", range(10)))]) as camera:
            kept.append(read_until_lost(shared(camera.url)))
    assert len(kept) == LOSSES
    assert not alive()


@pytest.mark.usefixtures("uncollected")
def test_a_lost_transport_stream_leaves_nothing() -> None:
    """What was read over HTTP to tell its format was kept as well: two megabytes a loss."""
    data = transport_stream()
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            for _ in range(2 * LOSSES):
                try:
                    client = door.accept()[0]
                except OSError:
                    return  # closed: all has been read
                with client:
                    client.recv(65536)
                    client.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\n\r\n" + data)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{door.getsockname()[1]}/stream"
        kept = [read_until_lost(shared(url)) for _ in range(LOSSES)]
    assert len(kept) == LOSSES
    assert not alive()


@pytest.mark.usefixtures("uncollected")
def test_a_lost_mjpeg_camera_leaves_no_picture() -> None:
    """The last picture of each session was kept."""
    kept = []
    for _ in range(LOSSES):
        with MjpegServer([encode_jpeg(plain(60, 320, 240))]) as server:
            source = shared(server.url())
            assert source.grab()
            server.cut()
            kept.append(read_until_lost(source))
    assert len(kept) == LOSSES
    assert not alive()
