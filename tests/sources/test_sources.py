"""Sources: how their texts are read, and what opened ones give."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import (
    ModelError,
    SampleError,
    SourceError,
    SourceInUseError,
    UsageError,
)
from edge_agent.core.types import Reading
from edge_agent.inference.preprocess.windowing import Windower
from edge_agent.models.manifest import InputSpec
from edge_agent.models.npz import read_npz
from edge_agent.sources.csv_file import MAX_LINE
from edge_agent.sources.opencv import load
from edge_agent.sources.source import Source, SourceContext, open_source
from edge_agent.sources.source import readings as each_reading
from edge_agent.sources.spec import guess_source, parse_source, redact
from tests.helpers.cameras import MjpegServer, RtspServer, free_port, rtsp_missing

# Loaded as the program does it, before anything else could: that is when FFmpeg turns quiet.
cv2 = load()

ASSETS = Path(__file__).resolve().parents[2].parent / "shared" / "assets"
HERE = Path("/base")

Picture = NDArray[np.uint8]


# Making media


def plain(value: int, width: int = 64, height: int = 48) -> Picture:
    """Make a picture of one gray."""
    return np.full((height, width, 3), value, np.uint8)


def make_clip(path: Path, frames: int = 12, rate: float = 25.0) -> Path:
    """Write a clip whose frames grow lighter, 10 gray levels a frame."""
    codec = "MJPG" if path.suffix == ".avi" else "mp4v"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), rate, (64, 48))
    assert writer.isOpened()
    for number in range(frames):
        writer.write(plain(10 * number % 250))
    writer.release()
    return path


def jpeg(picture: Picture, orientation: int | None = None) -> bytes:
    """Encode a JPEG, with an EXIF orientation (TIFF tag 0x0112) if one is given."""
    data: bytes = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
    if orientation is None:
        return data
    tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    segment = b"Exif\0\0" + tiff
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]


def npy_bytes(array: NDArray[np.generic]) -> bytes:
    """Give an array as a .npy file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def opened(text: str, base: Path, closing: threading.Event | None = None) -> Source:
    """Open a source by its text."""
    return open_source(parse_source(text, base), SourceContext(closing or threading.Event()))


def readings(source: Source, limit: int = 100_000) -> list[Reading]:
    """Take readings until the source ends, or *limit* of them; close it."""
    taken: list[Reading] = []
    while len(taken) < limit and source.grab():
        taken.append(source.retrieve())
    source.close()
    return taken


def all_rows(source: Source) -> NDArray[np.float32]:
    """Join the rows of a signal that ends."""
    return np.concatenate([reading.data for reading in readings(source)])


# Reading the text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:clip.mp4", "/base/clip.mp4"),
        ("file:/media/clip.mp4", "/media/clip.mp4"),
        ("file:///media/clip.mp4", "/media/clip.mp4"),
        ("file://localhost/media/clip.mp4", "/media/clip.mp4"),
        ("FILE:clip.mp4", "/base/clip.mp4"),
        ("file:50%25%3F%20a%26b.mp4?loop=1", "/base/50%? a&b.mp4"),
        ("file:a#b.mp4", "/base/a#b.mp4"),
        ("dir:frames/", "/base/frames"),
        ("v4l2:/dev/video0", "/dev/video0"),
    ],
)
def test_local_paths(text: str, path: str) -> None:
    """Relative paths count from the base; percent-encoded characters are decoded."""
    assert parse_source(text, HERE).path == Path(path)


@pytest.mark.parametrize(
    ("text", "kind", "live", "lossless"),
    [
        ("rtsp://camera/stream", "picture", True, False),
        ("rtsps://camera/stream", "picture", True, False),
        ("http://camera/stream.mjpg", "picture", True, False),
        ("https://camera/stream.mjpg?size=2", "picture", True, False),
        ("v4l2:/dev/video0?size=1280x720&fps=30&format=mjpg", "picture", True, False),
        ("file:clip.mp4", "picture", False, False),
        ("file:clip.mp4?pace=real&loop=1", "picture", False, False),
        ("file:clip.mp4?pace=max", "picture", False, True),
        ("dir:frames?rate=2", "picture", False, True),
        ("csv:a.csv", "signal", False, True),
        ("wav:a.wav", "signal", False, True),
        ("mqtt:a/b?field=v.x,v.y&time=t&stall_s=60", "signal", True, False),
        ("serial:/dev/ttyUSB0?baud=9600&separator=;", "signal", True, False),
        ("npy:a.npy?rate=100", "signal", False, True),
        ("f32:a.bin?channels=8&rate=0.5", "signal", False, True),
    ],
)
def test_what_is_known_without_opening(text: str, kind: str, live: bool, lossless: bool) -> None:
    """Kind, liveness and losslessness follow from the text alone."""
    spec = parse_source(text, HERE)
    assert (spec.kind, spec.live, spec.lossless) == (kind, live, lossless)


def test_options_are_read() -> None:
    """The values of options reach the spec."""
    spec = parse_source("f32:a.bin?channels=128&rate=12.5&loop=1", HERE)
    assert spec.options == {"channels": 128, "rate": 12.5, "loop": True}
    assert parse_source("f32:a.bin", HERE).options["channels"] == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("clip.mp4", "did you mean 'file:clip.mp4'"),
        ("photo.jpg", "did you mean 'dir:photo.jpg'"),
        ("frames/", "did you mean 'dir:frames/'"),
        ("/dev/video0", "did you mean 'v4l2:/dev/video0'"),
        ("rtsq://camera/x", "unknown form 'rtsq:'; did you mean 'rtsp:'.*Known: .*npy:"),
        ("ftp://host/x", "unknown form 'ftp:'.*known: rtsp:, .*f32:"),
        ("alsa:", "names nothing; write e.g. alsa:plughw:1,0"),
        ("alsa:hw:1,0?rate=x", "expected samples a second, from 1000 to 768000"),
        ("alsa:mikrofön", "is no PCM's name"),
        ("mqtt:", "names nothing; write e.g. mqtt:zigbee2mqtt/press-7"),
        ("mqtt:plant/+/x", "names several topics by a wildcard"),
        ("mqtt:plant/%23", "names several topics by a wildcard"),
        ("mqtt:$share/g/x", "is a shared subscription"),
        ("mqtt:a?format=xml", "format: expected json or f32, found 'xml'"),
        ("mqtt:a?field=x,,y", "field: expected names parted by commas, each once"),
        ("mqtt:a?gap_s=0", "gap_s: expected seconds"),
        ("serial:/dev/ttyUSB0?baud=1", "baud: expected bits a second, from 50"),
        ("serial:ttyUSB0", "is not a device; write e.g. serial:/dev/ttyUSB0"),
        ("serial:/dev/ttyUSB0?separator=1", "separator: expected one of"),
        ("file:", "names no path; write e.g. file:clip.mp4"),
        ("dir:?loop=1", "names no path"),
        ("file:a%00b", "NUL"),
        ("file:a%FFb.mp4", "the path is not UTF-8"),
        ("dir:a\udcffb", "the path is not UTF-8"),
        ("file://clip.mp4", "write file:clip.mp4"),
        ("v4l2:0", "not a device; write e.g. v4l2:/dev/video0"),
        (
            "v4l2:/dev/video0?sise=1",
            "unknown option 'sise'; did you mean 'size'. v4l2: takes format",
        ),
        ("v4l2:/dev/video0?size=1", "size: expected width x height, as 1280x720, found '1'"),
        ("v4l2:/dev/video0?size=\u0661x\u0662", "size: expected width x height"),
        ("v4l2:/dev/video0?fps=0", "fps: expected frames a second"),
        ("v4l2:/dev/video0?format=a", "format: expected a format's four letters"),
        ("file:a.mp4?rate=5", "unknown option 'rate'; .*file: takes decoder, frames, loop, pace"),
        ("file:a.mp4?pace=fast", "pace: expected real or max, found 'fast'"),
        ("file:a.mp4?loop", "option 'loop' has no value"),
        ("file:a.mp4?loop=", "option 'loop' has no value"),
        ("file:a.mp4?loop=yes", "loop: expected 0 or 1, found 'yes'"),
        ("file:a.mp4?loop=1&loop=0", "'loop' is given twice"),
        ("csv:a.csv?rate=fast", "rate: expected .*found 'fast'"),
        ("csv:a.csv?rate=0", "rate: expected .*found '0'"),
        ("csv:a.csv?rate=1e-300", "rate: expected .* from 0.00001 to 1000000, found '1e-300'"),
        ("csv:a.csv?rate=nan", "rate: expected .*found 'nan'"),
        ("csv:a.csv?channels=3", "unknown option 'channels'; csv: takes loop, rate, separator"),
        ("csv:a.csv?separator=:", "separator: expected one of , ; | tab space, found ':'"),
        ("f32:a.bin?channels=0", "channels: expected .*found '0'"),
        ("f32:a.bin?channels=1.5", "channels: expected .*found '1.5'"),
        ("rtsp:camera/x", "names no host"),
        ("rtsp:///x", "names no host"),
        ("rtsp://camera:x/y", "host or port is not valid"),
        ("rtsp://cam era/y", "space"),
    ],
)
def test_a_wrong_text_is_one_clear_line(text: str, says: str) -> None:
    """Each mistake in a source's text is one line that says what is wrong and how to mend it."""
    with pytest.raises(UsageError, match=says) as problem:
        parse_source(text, HERE)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://admin:pw@cam/s", "rtsp://***@cam/s"),
        ("file:clip@2.mp4?loop=1", "file:clip@2.mp4?loop=1"),
        ("file:///a/u:b@c/20240101120000.mp4", "file:///a/u:b@c/20240101120000.mp4"),
        ("v4l2:/dev/v4l/by-id/usb-046d_C920_A1B2C3D4E5F6", None),
        ("mqtt:zigbee2mqtt/press@7", "mqtt:zigbee2mqtt/press@7"),
        ("mqtt://u:pw@broker/press", "mqtt://***@broker/press"),
        ("file:rtsp://u:pw@cam/s", "file:rtsp://***@cam/s"),
        ("file://u:pw@cam/s", "file://***@cam/s"),
        ("videos/20240101120000.mp4", "videos/20240101120000.mp4"),
        ("u:pw@cam/s", "***@cam/s"),
        ("//u:p/w@cam/s", "//***@cam/s"),
        ("192.168.1.10/abcdef0123456789abcdef", "192.168.1.10/abc***"),
    ],
)
def test_secrets_are_taken_out(text: str, shown: str | None) -> None:
    """What is shown of a network source holds no secret; a local one is shown as it is written."""
    assert redact(text) == (text if shown is None else shown)


@pytest.mark.parametrize(
    "text",
    [
        "rtsp://admin:secret/1@cam/s",
        "rtps://admin:secret@cam/s",
        "rtsp://a:secret@/s",
        "rtsp://a:secret",
        "rtsp://a:se cret@cam/s",
        "rtsp://a:12#secret@cam/s",
        "rtsp:/a:secret@cam/s",
        "rtsp:a:secret@cam/s",
        "rtps:/a:secret@cam/s",
        "//a:secret@cam/s",
        "a:secret@cam/s",
        "a:s/ecret?secret@cam/s",
        "file://a:secret@cam/s",
        "file://a:s/secret@cam/s",
        "mqtt://a:secret@cam/s",
        "rtsp//a:secret@cam/s",
        "file:rtsp://a:secret@cam/s",
        "file:a:secret@cam/s",
        "serial:a:secret@cam",
        "v4l2:rtsp://a:secret@cam/s",
        "csv:a:s/ecret?secret@cam",
        "http:/cam/v?sig=secret",
        "192.168.1.10?session=secret",
    ],
)
def test_errors_hold_no_secret(text: str) -> None:
    """An error about a source's text, also one that is written wrong, does not tell its secret."""
    with pytest.raises(UsageError) as problem:
        parse_source(text, HERE)
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("192.168.1.10", "rtsp://192.168.1.10/…"),
        ("192.168.1.10/Streaming/Channels/101", "rtsp://192.168.1.10/Streaming/Channels/101"),
        ("cam.lan:554/stream", "rtsp://cam.lan:554/stream"),
        ("u:pw@cam/s", r"rtsp://\*\*\*@cam/s"),
        ("//u:pw@cam/s", r"rtsp://\*\*\*@cam/s"),
        ("file://u:pw@cam/s", r"rtsp://\*\*\*@cam/s"),
        ("file:http://u:pw@cam/s", r"rtsp://\*\*\*@cam/s"),
        ("serial:u:pw@cam", r"rtsp://\*\*\*@cam"),
        ("http//u:pw@cam/s", r"lacks a colon; write 'http://\*\*\*@cam/s'"),
        ("rtsp://u:p#w@cam/s", "percent-encode .*# %23"),
        ("rtsp://u:12#w@cam/s", "percent-encode .*# %23"),
    ],
)
def test_a_camera_without_its_form_is_told_the_form(text: str, mend: str) -> None:
    """Who names a camera by its address alone, or a wrong password, is told how it is written."""
    with pytest.raises(UsageError, match=mend):
        parse_source(guess_source(text), HERE)


def test_a_form_in_capitals_is_the_same() -> None:
    """A phone writes so, and manuals do: FFmpeg knew no such protocol, and the path was blamed."""
    assert parse_source("RTSP://u:P@cam/S", HERE).text == "rtsp://u:P@cam/S"


def test_a_spec_shows_no_password() -> None:
    """Printing a spec, as a debugger or a traceback would, does not tell its password."""
    assert "secret" not in repr(parse_source("rtsp://admin:secret@cam/s", HERE))


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("rtsp://cam/s", "rtsp://cam/s"),
        ("file:x.mp4?loop=1", "file:x.mp4?loop=1"),
        ("mqtt:a/b", "mqtt:a/b"),
        ("ftp://x/y", "ftp://x/y"),
        ("/dev/video2", "v4l2:/dev/video2"),
        ("0", "v4l2:/dev/video0"),
        ("clip.mp4", "file:clip.mp4"),
        ("frames", "dir:frames"),
        ("photo.JPG", "dir:photo.JPG"),
        ("IMG_0042.HEIC", "dir:IMG_0042.HEIC"),
        ("IMG_0042.hif", "dir:IMG_0042.hif"),
        ("sky.exr", "dir:sky.exr"),
        ("moving.gif", "file:moving.gif"),
        ("log.csv", "csv:log.csv"),
        ("x.npy", "npy:x.npy"),
        ("a.wav", "wav:a.wav"),
        ("100% real?.mp4", "file:100%25 real%3F.mp4"),
        ("clip.mp4?loop=1", "file:clip.mp4?loop=1"),
        ("missing.mp4", "file:missing.mp4"),
    ],
)
def test_guessing(typed: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person types without a form gets the one that fits."""
    monkeypatch.chdir(tmp_path)
    Path("frames").mkdir()
    for name in ("clip.mp4", "photo.JPG", "log.csv", "x.npy", "100% real?.mp4"):
        Path(name).touch()

    assert guess_source(typed) == text


# What every source does


@dataclass
class Case:
    """A source, and how many readings it gives before it ends (None: never ends)."""

    text: str
    count: int | None


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with one small source of each kind."""
    folder = tmp_path_factory.mktemp("media")
    make_clip(folder / "clip.mp4", 6, rate=100.0)
    make_clip(folder / "clip.avi", 6, rate=100.0)
    (folder / "pictures").mkdir()
    for name in ("b.png", "a.jpg", "c.bmp", "d.webp", "e.tif"):
        cv2.imwrite(str(folder / "pictures" / name), plain(50))
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.savetxt(folder / "rows.csv", rows, delimiter=",", header="x,y", comments="")
    np.save(folder / "rows.npy", rows)
    rows.astype("<f4").tofile(folder / "rows.f32")
    return folder


CASES = [
    Case("file:clip.mp4", 6),
    Case("file:clip.avi?pace=max", 6),
    Case("file:clip.mp4?loop=1", None),
    Case("file:clip.mp4?pace=max&loop=1", None),
    Case("dir:pictures", 5),
    Case("dir:pictures/a.jpg", 1),
    Case("dir:pictures?loop=1&rate=500", None),
    Case("csv:rows.csv", 1),
    Case("csv:rows.csv?rate=100", 6),
    Case("csv:rows.csv?loop=1", None),
    Case("npy:rows.npy", 1),
    Case("npy:rows.npy?rate=100", 6),
    Case("npy:rows.npy?loop=1&rate=100", None),
    Case("f32:rows.f32?channels=2", 1),
    Case("f32:rows.f32?channels=2&rate=50&loop=1", None),
]


@pytest.fixture(params=[*CASES, Case("http", None)], ids=lambda case: case.text)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Each kind of source that can run anywhere."""
    given: Case = request.param
    if given.text != "http":
        yield given
        return
    server = MjpegServer([jpeg(plain(80))])
    yield Case(server.url(), None)
    server.cut()


def test_a_source_keeps_its_promises(case: Case, media: Path) -> None:
    """Readings are of the announced kind, their clocks never go back, and it ends or goes on."""
    spec = parse_source(case.text, media)
    source = open_source(spec)

    taken = readings(source, limit=20 if case.count is None else 1000)

    assert len(taken) == (case.count or 20)
    for reading in taken:
        kinds = [np.uint8] if spec.kind == "picture" else [np.float32, np.float64]
        assert reading.data.dtype in kinds
        assert reading.data.ndim == (3 if spec.kind == "picture" else 2)
        assert reading.data.flags.c_contiguous
    for clock in ([r.time_ns for r in taken], [int(r.since * 1e9) for r in taken]):
        assert clock == sorted(clock)
    source.close()  # closed by `readings` already


def test_an_ended_source_stays_ended(case: Case, media: Path) -> None:
    """Asked again after the end, a source says again that it has ended."""
    source = opened(case.text, media)
    if case.count is not None:
        while source.grab():
            pass
        assert [source.grab(), source.grab()] == [False, False]
    else:
        assert source.grab()
    source.close()


def test_readings_are_the_callers_own(case: Case, media: Path) -> None:
    """A later reading does not change an earlier one."""
    source = opened(case.text, media)
    assert source.grab()
    first = source.retrieve().data
    before = first.copy()

    for _ in range(4):
        if source.grab():
            source.retrieve().data[:] = 7
    source.close()

    assert np.array_equal(first, before)


def test_closing_ends_a_source(case: Case, media: Path) -> None:
    """Once the closing event is set, the next grab says that it is over."""
    closing = threading.Event()
    source = opened(case.text, media, closing)
    assert source.grab()

    closing.set()

    assert source.grab() is False
    source.close()


@pytest.mark.parametrize(
    "text", ["dir:pictures?rate=0.001", "csv:rows.csv?rate=0.001", "file:slow.avi"]
)
def test_closing_cuts_a_wait_short(text: str, media: Path) -> None:
    """A grab that waits for a reading to be due, for a long time, returns when it is to close."""
    make_clip(media / "slow.avi", 3, rate=0.125)  # 8 s a frame
    closing = threading.Event()
    source = opened(text, media, closing)
    assert source.grab()
    outcome: list[bool] = []
    waiting = threading.Thread(target=lambda: outcome.append(source.grab()), daemon=True)

    waiting.start()
    closing.set()
    waiting.join(5)  # less than the reading would take to be due

    assert outcome == [False]
    source.close()


# Clips


@pytest.mark.parametrize("name", ["clip.mp4", "clip.avi"])
@pytest.mark.parametrize("pace", ["real", "max"])
def test_every_frame_of_a_clip_comes_once_and_in_order(
    name: str, pace: str, tmp_path: Path
) -> None:
    """A clip gives each of its frames, in order, whatever the pace."""
    make_clip(tmp_path / name, 12, rate=200.0)

    taken = readings(opened(f"file:{name}?pace={pace}", tmp_path))

    assert [round(float(r.data.mean()) / 10) for r in taken] == list(range(12))
    assert {r.data.shape for r in taken} == {(48, 64, 3)}


def test_a_clip_keeps_its_own_rate(tmp_path: Path) -> None:
    """At pace=real no frame comes before its time, counted from the first, loops included."""
    make_clip(tmp_path / "clip.mp4", 4, rate=50.0)

    taken = readings(opened("file:clip.mp4?loop=1", tmp_path), limit=10)

    for number, reading in enumerate(taken):
        assert reading.since - taken[0].since > number / 50.0 - 0.002


def test_a_looped_clip_begins_anew(tmp_path: Path) -> None:
    """After the last frame of a looped clip comes its first."""
    make_clip(tmp_path / "clip.avi", 3)
    taken = readings(opened("file:clip.avi?loop=1&pace=max", tmp_path), limit=7)
    assert [round(float(r.data.mean()) / 10) for r in taken] == [0, 1, 2, 0, 1, 2, 0]


def test_a_clip_with_special_characters(tmp_path: Path) -> None:
    """A clip is found by its percent-encoded name."""
    make_clip(tmp_path / "clip.avi", 3).rename(tmp_path / "Prüfung 100%? #1 %03d.avi")
    source = opened("file:Pr%C3%BCfung%20100%25%3F #1 %2503d.avi?pace=max", tmp_path)
    assert len(readings(source)) == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"not a video at all" * 100, "is not a video that can be played"),
        (
            b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nclip.mp4\n#EXT-X-ENDLIST\n",
            "not a video",
        ),
        (b"ffconcat version 1.0\nfile clip.mp4\n", "not a video"),
    ],
    ids=["missing", "empty", "text", "playlist", "concat"],
)
def test_what_is_no_clip_is_one_clear_line(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    """A file that cannot be played, or would name other files, is refused when it is opened."""
    make_clip(tmp_path / "clip.mp4")
    if content is not None:
        (tmp_path / "bad.mp4").write_bytes(content)
    with pytest.raises(SourceError, match=says) as problem:
        opened("file:bad.mp4", tmp_path)
    assert "\n" not in str(problem.value)


def test_a_folder_is_no_clip(tmp_path: Path) -> None:
    """A folder given as a file is told to be one, with the form to use."""
    with pytest.raises(SourceError, match=r"is a folder; write dir:"):
        opened("file:.", tmp_path)


def test_a_clip_without_its_index_is_refused(tmp_path: Path) -> None:
    """An MP4 cut short has lost its index and cannot be played: said at once."""
    whole = make_clip(tmp_path / "clip.mp4", 40).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match="is not a video that can be played"):
        opened("file:cut.mp4", tmp_path)


def test_a_clip_cut_short_plays_what_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An AVI cut short gives the frames that it has, ends, and says that some are missing."""
    whole = make_clip(tmp_path / "clip.avi", 100).read_bytes()
    (tmp_path / "cut.avi").write_bytes(whole[: len(whole) // 2])

    taken = list(each_reading(opened("file:cut.avi?pace=max", tmp_path)))

    assert 20 < len(taken) < 70
    # All but the one that the cut goes through.
    assert sum(isinstance(reading, SampleError) for reading in taken) <= 1
    assert "of 100 frames; the file is damaged or cut short" in caplog.text


@pytest.mark.assets
@pytest.mark.parametrize(
    ("name", "count", "shape"),
    [
        ("one-by-one-person-detection.mp4", 1394, (432, 768, 3)),
        ("bottle-detection.mp4", 1189, (360, 640, 3)),
    ],
)
def test_real_clips_give_every_frame(name: str, count: int, shape: tuple[int, ...]) -> None:
    """A real clip at pace=max gives exactly the frames that it is known to hold."""
    if not ASSETS.is_dir():
        pytest.skip(f"reference media are not at {ASSETS}")
    source = opened(f"file:{name}?pace=max", ASSETS / "media")
    grabbed = 0
    while source.grab():
        grabbed += 1
    source.close()
    last = readings(opened(f"file:{name}?pace=max", ASSETS / "media"), limit=1)[0]

    assert grabbed == count
    assert last.data.shape == shape


# Folders of pictures


def test_pictures_come_in_name_order(tmp_path: Path) -> None:
    """Pictures come by name, whatever their type and age; other files are passed over."""
    for value, name in enumerate(("c.png", "a.bmp", "sub/b.png", "b.tiff", "B.WEBP")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        ok, data = cv2.imencode(Path(name).suffix.lower(), plain(20 * value))
        assert ok
        (tmp_path / name).write_bytes(data.tobytes())
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden.png").write_bytes(b"leavings")

    taken = readings(opened("dir:.", tmp_path))

    assert [r.file for r in taken] == ["B.WEBP", "a.bmp", "b.tiff", "c.png", "sub/b.png"]
    assert [round(float(r.data.mean()) / 20) for r in taken] == [4, 1, 3, 0, 2]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, tmp_path: Path) -> None:
    """A picture stored turned or mirrored comes upright, in all eight ways of EXIF."""
    upright = plain(0)
    upright[:10, :20] = 255  # bright corner at the top left
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    (tmp_path / "turned.jpg").write_bytes(jpeg(np.ascontiguousarray(stored), orientation))

    picture = readings(opened("dir:turned.jpg", tmp_path))[0].data

    assert picture.shape == upright.shape
    assert np.abs(picture.astype(int) - upright).mean() < 5


@pytest.mark.parametrize(
    ("shape", "dtype", "name"),
    [
        ((48, 64), np.uint8, "gray.png"),
        ((48, 64, 4), np.uint8, "alpha.png"),
        ((48, 64, 3), np.uint16, "deep.png"),
        ((48, 64), np.uint16, "deep-gray.tif"),
    ],
)
def test_any_picture_becomes_bgr(
    shape: tuple[int, ...], dtype: type[np.generic], name: str, tmp_path: Path
) -> None:
    """Gray, transparent and 16-bit pictures come as 8-bit BGR like all others."""
    assert cv2.imwrite(str(tmp_path / name), np.full(shape, 100, dtype))
    picture = readings(opened(f"dir:{name}", tmp_path))[0].data
    assert picture.shape == (48, 64, 3)
    assert picture.dtype == np.uint8


@pytest.mark.parametrize(
    "damage", [b"", b"no picture", jpeg(plain(90, 640, 480))[:-600]], ids=["empty", "text", "cut"]
)
def test_a_damaged_picture_costs_only_itself(damage: bytes, tmp_path: Path) -> None:
    """A picture that cannot be decoded is one SampleError; those after it come."""
    (tmp_path / "a.jpg").write_bytes(jpeg(plain(90)))
    (tmp_path / "b.jpg").write_bytes(damage)
    (tmp_path / "c.jpg").write_bytes(jpeg(plain(90)))
    source = opened("dir:.", tmp_path)

    assert source.grab()
    assert source.retrieve().file == "a.jpg"
    assert source.grab()
    with pytest.raises(SampleError, match=r"b\.jpg: "):
        source.retrieve()
    assert source.grab()
    assert source.retrieve().file == "c.jpg"
    assert not source.grab()


def test_a_looped_folder_shows_what_has_come(tmp_path: Path) -> None:
    """Each pass over a looped folder lists it anew."""
    (tmp_path / "b.jpg").write_bytes(jpeg(plain(90)))
    source = opened("dir:.?loop=1", tmp_path)
    assert source.grab()
    (tmp_path / "a.jpg").write_bytes(jpeg(plain(90)))
    assert [r.file for r in readings(source, limit=3)] == ["a.jpg", "b.jpg", "a.jpg"]


def test_a_folder_of_links_is_a_folder_of_pictures(tmp_path: Path) -> None:
    """A link to a picture is looked at like a picture, wherever it leads; a broken one is not."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.jpg").write_bytes(jpeg(plain(90)))
    (tmp_path / "inside" / "a.jpg").write_bytes(jpeg(plain(90)))
    (tmp_path / "inside" / "b.jpg").symlink_to(tmp_path / "outside.jpg")
    (tmp_path / "inside" / "c.jpg").symlink_to("a.jpg")
    (tmp_path / "inside" / "d.jpg").symlink_to("nowhere.jpg")
    taken = readings(opened("dir:inside", tmp_path))
    assert [r.file for r in taken] == ["a.jpg", "b.jpg", "c.jpg"]


@pytest.mark.parametrize(
    ("text", "says"), [("dir:empty", "holds no pictures"), ("dir:missing", "No such file")]
)
def test_a_folder_without_pictures_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """A missing folder, and one without pictures, are one line each when they are opened."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=says):
        opened(text, tmp_path)


def test_a_rate_spaces_pictures(tmp_path: Path) -> None:
    """With a rate, no picture comes before its time."""
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).write_bytes(jpeg(plain(90)))
    taken = readings(opened("dir:.?rate=50", tmp_path))
    for number, reading in enumerate(taken):
        assert reading.since - taken[0].since > number / 50 - 0.002


# Recorded signals


def text_file(folder: Path, text: str) -> Path:
    """Write a CSV file."""
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("a,b\n1,2\n3,4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("1,2\n3,4\n", (), [[1, 2], [3, 4]]),
        ("1\n2\n", (), [[1], [2]]),
        ("a;b\n1;2\n", ("a", "b"), [[1, 2]]),
        ("a\tb\r\n1\t2\r\n", ("a", "b"), [[1, 2]]),
        ("\ufeffa,b\n1,2\n", ("a", "b"), [[1, 2]]),
        ("# a, b\n1, 2\n", ("a", "b"), [[1, 2]]),
        ('"a,x",b\n"1",2\n', ("a,x", "b"), [[1, 2]]),
        ('"a", "b"\n"1", "2.5"\n', ("a", "b"), [[1, 2.5]]),
        ("\n\na,b\n\n1,2\n3,4\n\n\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("1,2\n3,4\n  \n", (), [[1, 2], [3, 4]]),
        ("a,b\r\r\n1,2\r\r\n3,4\r\r\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("1,2\r3,4\r", (), [[1, 2], [3, 4]]),
        ("time,0,1\n5,1e-3,-2.5E2\n", ("time", "0", "1"), [[5, 1e-3, -250]]),
        ("# 100 Hz\n#\na,b\n1,2\n# a pause\n3,4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("# 100 Hz, \n# a, b\n1,2\n# c,d\n3,4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("# 100 Hz\n1,2\n", (), [[1, 2]]),
        ("time; mm, left;x\n1.5;2;3\n", ("time", "mm, left", "x"), [[1.5, 2, 3]]),
    ],
)
def test_csv(text: str, columns: tuple[str, ...], rows: list[list[float]], tmp_path: Path) -> None:
    """CSV is read with and without header, with the usual delimiters, quotes and blank lines."""
    text_file(tmp_path, text)
    taken = readings(opened("csv:rows.csv", tmp_path))
    assert taken[0].columns == columns
    assert np.allclose(taken[0].data, rows)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_the_unicode_text_of_spreadsheets_is_read(encoding: str, tmp_path: Path) -> None:
    """UTF-16 is told by its mark; a loop begins it again behind that."""
    (tmp_path / "rows.csv").write_bytes("\ufeffLänge\tb\r\n1\t2\r\n".encode(encoding))
    source = opened("csv:rows.csv?loop=1", tmp_path)
    for _ in range(2):
        source.grab()
        taken = source.retrieve()
        assert (taken.columns, taken.data.tolist()) == (("Länge", "b"), [[1, 2]])


@pytest.mark.parametrize(
    ("separator", "text", "columns", "rows"),
    [
        (";", "a;b\n1,5;2\n-3,25;4.5\n", ("a", "b"), [[1.5, 2], [-3.25, 4.5]]),
        ("tab", "1,5\t2e1\n", (), [[1.5, 20]]),
        ("%09", "1,5\t2e1\n", (), [[1.5, 20]]),
        ("space", "  a   b \n 1.0   2 \n\n", ("a", "b"), [[1, 2]]),
        ("|", "a|b\n1|2\n", ("a", "b"), [[1, 2]]),
        (",", "a;x,b\n1,2\n", ("a;x", "b"), [[1, 2]]),
    ],
)
def test_a_separator_that_is_given(
    separator: str, text: str, columns: tuple[str, ...], rows: list[list[float]], tmp_path: Path
) -> None:
    """`separator` says what parts the cells; where that is no comma, one in a number is decimal."""
    text_file(tmp_path, text)
    taken = readings(opened(f"csv:rows.csv?separator={separator}", tmp_path))
    assert taken[0].columns == columns
    assert np.allclose(taken[0].data, rows)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n1_000,4\n5,6\n", r"line 3, column 'a': .*'1_000', which is not written in"),
        ("a,b\n1,2\n3,\u0661\u0662\n5,6\n", r"line 3, column 'b': .*'\u0661\u0662', which is"),
        ("a,b\n1,2\n3,\uff11\n5,6\n", r"line 3, column 'b': expected a number"),
        ('a,b\n1,2\n3,"4,5"\n5,6\n', r"line 3, column 'b': .*'4,5', a decimal comma; write a"),
        ("a;b\n1;2\n3;4,5\n5;6\n", r"line 3, column 'b': .* name the separator: \?separator=;"),
        ("a;b\n1;2\n3;1.000,5\n5;6\n", r"line 3, column 'b': .*'1.000,5'"),
        ("a,b\n1,2\n3,x\n5,6\n", r"line 3, column 'b': expected a number, found 'x'"),
        ("1,2\n3,x\n5,6\n", r"line 2, column 1: expected a number, found 'x'"),
        ("a,b\n1,2\n3,\n5,6\n", r"line 3, column 'b': .* an empty cell"),
        ("a,b\n1,2\nnan,4\n5,6\n", r"line 3, column 'a': .*'nan'"),
        ("a,b\n1,2\n3,1e39\n5,6\n", r"line 3, column 'b': .*'1e39'"),
        ("a,b\n1,2\n3,4,5\n5,6\n", r"line 3: expected 2 cells, found 3"),
        ("a,b\n1,2\n3\n5,6\n", r"line 3: expected 2 cells, found 1"),
        ("a,b\n1,2\n,\n5,6\n", r"line 3, column 'a': .* an empty cell"),
        ("1,2\n,\n5,6\n", r"line 2, column 0: .* an empty cell"),
        ("a,b\n1,2\n\n5,6\n", r"line 3 is empty"),
        ("1,2\n\n \n\n5,6\n\n", r"line 4 is empty"),
    ],
)
@pytest.mark.parametrize("options", ["", "?rate=1000"])
def test_a_bad_row_costs_only_itself(text: str, says: str, options: str, tmp_path: Path) -> None:
    """A row that cannot be used is one SampleError with line and column; the others come."""
    text_file(tmp_path, text)
    first, bad, last = usable_rows(opened(f"csv:rows.csv{options}", tmp_path))
    assert first == [1, 2]
    assert re.search(says, str(bad))
    assert last == [5, 6]


def usable_rows(source: Source, *channels: str) -> list[list[float] | str]:
    """Read a source as a pipeline does that takes some channels; rows, and what is said of others.

    Row by row or in pieces makes no difference.
    """
    windower = Windower(InputSpec(channels=channels))
    found: list[list[float] | str] = []
    while source.grab():
        for part in windower.usable(source.retrieve()):
            if isinstance(part, SampleError):
                found.append(str(part))
            else:
                found += [window.data.tolist() for window in windower.push(part)]
    return found


@pytest.mark.parametrize("filled", [range(0, 40, 10), range(39, 40), range(5, 40, 3), range(0)])
def test_grottocenter_1663_columns_of_a_slower_sensor_are_empty_in_most_rows(
    filled: range, tmp_path: Path
) -> None:
    """Cells that no channel reads decide nothing: a model of the others takes every row."""
    rows = "".join(f"{n},{-n},{n if n in filled else ''}\n" for n in range(40))
    text_file(tmp_path, "ax,ay,lat\n" + rows)
    wanted = [[n, -n] for n in range(40)]
    assert usable_rows(opened("csv:rows.csv", tmp_path), "ax", "ay") == wanted
    found = usable_rows(opened("csv:rows.csv", tmp_path), "lat")
    assert [row for row in found if isinstance(row, list)] == [[n] for n in filled]
    empty = next(n for n in range(40) if n not in filled)
    wrong = next(each for each in found if isinstance(each, str))
    assert f"line {empty + 2}, column 'lat': expected a number, found an empty cell" in wrong


@pytest.mark.parametrize("first", ["", "nan", "-", "warming up"])
@pytest.mark.parametrize("count", [1, 30])
def test_echopype_197_a_log_that_begins_before_its_sensor_is_ready(
    count: int, first: str, tmp_path: Path
) -> None:
    """No row decides what a column is: the first ones are missing readings."""
    text_file(tmp_path, "ax,ay\n" + f"{first},1\n" * count + "3,2\n4,2\n")
    *bad, good, last = usable_rows(opened("csv:rows.csv", tmp_path))
    shown = repr(first) if first else "an empty cell"
    assert f"line 2, column 'ax': expected a number, found {shown}" in str(bad[0])
    assert (len(bad), good, last) == (count, [3, 2], [4, 2])


def test_a_column_of_text_is_refused_by_name(tmp_path: Path) -> None:
    """A model that takes it cannot run; one that names others can."""
    text_file(tmp_path, "time,ax\n09:00:01,1\n09:00:02,2\n")
    assert usable_rows(opened("csv:rows.csv", tmp_path), "ax") == [[1], [2]]
    with pytest.raises(ModelError, match="column 'time' of the source is text"):
        usable_rows(opened("csv:rows.csv", tmp_path))


def test_empty_lines_of_one_column_are_a_gap(tmp_path: Path) -> None:
    """Where a row is one cell, an empty line in the middle is a missing reading as well."""
    text_file(tmp_path, "1\n2\n\n3\n\n")
    first, second, bad, last = usable_rows(opened("csv:rows.csv", tmp_path))
    assert (first, second, last) == ([1], [2], [3])
    assert "line 3 is empty" in str(bad)


def test_a_text_column_does_not_spoil_the_others(tmp_path: Path) -> None:
    """A column that begins with text, such as a time stamp, is NaN; the others are read."""
    text_file(tmp_path, "time,ax,note\n09:00:01,1.5,\n09:00:02,2.5,bump\n")
    data = all_rows(opened("csv:rows.csv", tmp_path))
    assert data[:, 1].tolist() == [1.5, 2.5]
    assert np.isnan(data[:, [0, 2]]).all()


def test_numbers_that_only_python_reads_are_errors_from_the_first_row_on(tmp_path: Path) -> None:
    """A first row with `1_000` does not make its column text, and is no header."""
    text_file(tmp_path, "a,b\n1_000,2\n3,4\n")
    bad, good = usable_rows(opened("csv:rows.csv", tmp_path))
    assert "line 2, column 'a': expected a number, found '1_000'" in str(bad)
    assert good == [3, 4]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a;b\n1,5;2,5\n", r"line 2, column 'a': .*'1,5', a decimal comma; .*\?separator=;"),
        (b"1,5;2,5\n3,5;4,5\n", r"line 1, column 0: .*'1,5', a decimal comma; .*\?separator=;"),
        (b"09:00:01;1,5\n09:00:02;2,5\n", r"line 1, column 1: .*'1,5', a decimal comma"),
        (b"1,5\t2,5\n", r"a decimal comma; .* \?separator=tab"),
        (b"a b\n1 2\n", r"line 2 holds no number.*\?separator=space"),
        (b"1|2\n3|4\n", r"line 2 holds no number.*\?separator=\|"),
        (b"# nothing\n# at all\n", "is empty"),
        (None, "No such file"),
        (b"", "is empty"),
        (b"a,b\n", "no rows of numbers"),
        (b"a,b\nc,d\n", "line 2 holds no number"),
        (b"a,b\n1,2,3\n", "line 2 has 3 cells, but the header has 2"),
        (b"x" * (MAX_LINE + 1), "line 1 is longer than"),
        (bytes(range(256)) * 9, "holds no number|cells"),
    ],
    ids=[
        "decimal commas",
        "no header",
        "times",
        "tabs",
        "spaces",
        "bars",
        "comments",
        "missing",
        "empty",
        "header only",
        "no numbers",
        "ragged",
        "long",
        "binary",
    ],
)
def test_what_is_no_csv_is_one_clear_line(content: bytes | None, says: str, tmp_path: Path) -> None:
    """A file that holds no rows of numbers is refused when it is opened."""
    if content is not None:
        (tmp_path / "rows.csv").write_bytes(content)
    with pytest.raises(SourceError, match=says) as problem:
        opened("csv:rows.csv", tmp_path)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ">f4", "i2", "u1", "i8", "?"])
@pytest.mark.parametrize("shape", [(5000,), (3000, 3), (2500, 2, 3), (40, 5, 3, 1)])
def test_npy(shape: tuple[int, ...], dtype: str, order: str, tmp_path: Path) -> None:
    """Arrays of any real type, size and order come whole, as float32, in pieces."""
    values = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    ordered = np.asfortranarray(values) if order == "F" else values
    np.save(tmp_path / "a.npy", ordered)

    taken = readings(opened("npy:a.npy", tmp_path))

    wanted = values.reshape(-1, 1) if len(shape) == 1 else values
    found = np.concatenate([r.data for r in taken])
    assert found.dtype == np.float32
    assert np.array_equal(found, wanted.astype(np.float32))
    assert max(len(r.data) for r in taken) <= 1024


@pytest.mark.parametrize(
    ("shape", "order", "says"),
    [
        ("(-1, 4)", "False", r"expected rows, found an array of shape \(-1, 4\)"),
        ("(10, -4)", "False", r"expected rows, found an array of shape \(10, -4\)"),
        ("(True, 4)", "False", r"expected rows, found an array of shape \(True, 4\)"),
        ("(1, 100000000)", "False", "expected rows of at most 16777216 values, found 100000000"),
        ("(4, 50000000)", "True", "save it in row order, with numpy.ascontiguousarray"),
    ],
)
def test_a_header_that_lies_of_an_npy_is_one_clear_line(
    shape: str, order: str, says: str, tmp_path: Path
) -> None:
    """It took 1.4 GB, or was read as other rows than were written."""
    header = f"{{'descr': '<f4', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (117 - len(header)) + b"\n"
    begin = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(begin)
        file.truncate(len(begin) + 4 * 200_000_000)  # as long as promised, and nothing on the disk
    with pytest.raises(SourceError, match=says) as problem:
        opened("npy:a.npy", tmp_path)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,",
        "-" * 5000 + "1",
        "\n  x\n y",
        "{[]: 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (rows, 3)}",
        "{'descr': 'zz9', 'fortran_order': False, 'shape': (1, 3)}",
    ],
)
def test_a_header_that_is_no_header_of_an_npy_is_one_clear_line(
    header: str, tmp_path: Path
) -> None:
    """NumPy has Python's parser read it, whose errors ended the source or named its own parts."""
    begin = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    (tmp_path / "a.npy").write_bytes(begin)
    with pytest.raises(SourceError) as problem:
        opened("npy:a.npy", tmp_path)
    assert str(problem.value).endswith("is not a .npy file that can be read: its header is damaged")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("rows.npy", begin)
    with pytest.raises(ModelError, match="a: cannot be read: an array's header is damaged"):
        read_npz(tmp_path / "a.npz", "a")


def test_a_header_that_lies_of_a_wav_is_one_clear_line(tmp_path: Path) -> None:
    """Windows of 65,535 channels took a gigabyte."""
    form = struct.pack("<HHIIHH", 1, 65535, 16000, 0, 0, 16)
    data = bytes(65535 * 2 * 4)
    chunks = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data)) + data
    riff = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE"
    (tmp_path / "a.wav").write_bytes(riff + chunks)
    with pytest.raises(SourceError, match="expected at most 1024 channels, found 65535"):
        opened("wav:a.wav", tmp_path)


def test_a_transposed_array_comes_as_it_was_meant(tmp_path: Path) -> None:
    """np.save of a transposed array stores columns; they come as time by channels all the same."""
    channels = np.arange(6000, dtype=np.float32).reshape(2, 3000)
    np.save(tmp_path / "a.npy", channels.T)
    assert np.array_equal(all_rows(opened("npy:a.npy", tmp_path)), channels.T)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_value_that_is_not_finite_costs_its_row(order: str, tmp_path: Path) -> None:
    """NaN, infinity and what float32 cannot hold are one SampleError each, naming row and value."""
    values = np.arange(20, dtype=np.float64).reshape(10, 2)
    values[2, 1], values[3, 0], values[9, 0] = np.nan, np.inf, 1e300
    np.save(tmp_path / "a.npy", np.asfortranarray(values) if order == "F" else values)
    source = opened("npy:a.npy", tmp_path)
    rows: list[list[float]] = []
    errors: list[str] = []

    while source.grab():
        try:
            rows += source.retrieve().data.tolist()
        except SampleError as problem:
            errors.append(str(problem).partition(": ")[2])

    assert rows == values[[0, 1, 4, 5, 6, 7, 8]].tolist()
    assert [error.split(" is")[0] for error in errors] == [
        "row 2, value 1", "row 3, value 0", "row 9, value 0"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"not numpy", "is not a .npy file"),
        (npy_bytes(np.array([{"a": 1}], dtype=object)), "expected an array of real numbers"),
        (npy_bytes(np.zeros(3, np.complex64)), "found type complex64"),
        (npy_bytes(np.array(["a"])), "expected an array of real numbers"),
        (npy_bytes(np.ones(())), r"found an array of shape \(\)"),
        (npy_bytes(np.zeros((0, 3))), r"found an array of shape \(0, 3\)"),
        (npy_bytes(np.zeros((9, 3)))[:-10], "is cut short: expected 27 values, found 25"),
        (npy_bytes(np.zeros((9, 3)))[:40], "is not a .npy file"),
    ],
    ids=["missing", "text", "pickle", "complex", "str", "scalar", "no rows", "cut", "cut header"],
)
def test_what_is_no_array_is_one_clear_line(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    """A file that holds no array of rows is refused when opened; nothing is ever unpickled."""
    if content is not None:
        (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(SourceError, match=says) as problem:
        opened("npy:a.npy", tmp_path)
    assert "\n" not in str(problem.value)


def test_an_array_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """A file that another program cuts short ends in a SourceError, not in a dead process."""
    np.save(tmp_path / "a.npy", np.zeros((5000, 2), np.float32))
    source = opened("npy:a.npy", tmp_path)
    assert source.grab()

    os.truncate(tmp_path / "a.npy", 1000)

    with pytest.raises(SourceError, match="was cut short while it was read"):
        source.grab()
    source.close()


def wav(code: int, bits: int, data: bytes, *, extensible: bool = False, length: int = -1) -> bytes:
    """Make a file of two channels at 8000 Hz, with a chunk of remarks of odd length before."""
    width = 2 * bits // 8
    form = struct.pack("<HIIHH", 2, 8000, 8000 * width, width, bits)
    if extensible:
        form = struct.pack("<H", 0xFFFE) + form + struct.pack("<HHIH14x", 22, bits, 3, code)
    else:
        form = struct.pack("<H", code) + form
    body = b"WAVE" + struct.pack("<4sI", b"LIST", 3) + b"abc\0"
    body += struct.pack("<4sI", b"fmt ", len(form)) + form
    body += struct.pack("<4sI", b"data", len(data) if length < 0 else length) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


WAVS = {
    8: (1, bytes([128, 255, 0, 192])),
    16: (1, struct.pack("<4h", 0, 32767, -32768, 16384)),
    24: (1, b"\0\0\0\xff\xff\x7f\0\0\x80\0\0\x40"),
    32: (1, struct.pack("<4i", 0, 2**31 - 1, -(2**31), 2**30)),
    -32: (3, struct.pack("<4f", 0, 1, -1, 0.5)),
    -64: (3, struct.pack("<4d", 0, 1, -1, 0.5)),
}


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("bits", WAVS)
def test_wav(bits: int, extensible: bool, tmp_path: Path) -> None:
    """PCM of every width, and floats, come as rows of channels from -1 to 1, with their rate."""
    code, data = WAVS[bits]
    (tmp_path / "a.wav").write_bytes(wav(code, abs(bits), data, extensible=extensible))
    (reading,) = readings(opened("wav:a.wav", tmp_path))
    assert reading.rate_hz == 8000
    assert reading.data == pytest.approx(np.array([[0, 1], [-1, 0.5]]), abs=0.008)


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF])
def test_a_wav_that_was_written_as_a_stream(length: int, tmp_path: Path) -> None:
    """A file whose header does not know its length is read to its end."""
    (tmp_path / "a.wav").write_bytes(wav(1, 16, bytes(400), length=length))
    assert len(all_rows(opened("wav:a.wav", tmp_path))) == 100


def test_a_wav_that_was_cut_short_says_so(tmp_path: Path) -> None:
    """What is there is read; how much the header promised is told."""
    (tmp_path / "a.wav").write_bytes(wav(1, 16, bytes(400), length=800))
    source = opened("wav:a.wav", tmp_path)
    assert len(all_rows(source)) == 100
    assert source.trouble == "ended after 100 of 200 samples; the file is damaged or cut short"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a .wav file, or is cut short"),
        (b"RIFF\0\0\0\0AVI LIST", "is not a .wav file"),
        (wav(2, 4, bytes(8)), "format 2 of 4 bits, 2 channels, 8000 Hz; expected PCM .*ffmpeg"),
        (wav(1, 16, b""), "holds no samples"),
        (wav(1, 16, bytes(8))[:40], "is not a .wav file, or is cut short"),
    ],
)
def test_what_is_no_wav_is_one_clear_line(content: bytes, says: str, tmp_path: Path) -> None:
    """What cannot be read as sound is refused with what is wrong with it."""
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(SourceError, match=says):
        opened("wav:a.wav", tmp_path)


def test_a_sample_that_is_no_number_costs_only_itself(tmp_path: Path) -> None:
    """A NaN in a file of floats is one SampleError."""
    data = struct.pack("<6f", 0, 1, 0, float("nan"), 1, 0)
    (tmp_path / "a.wav").write_bytes(wav(3, 32, data))
    source = opened("wav:a.wav", tmp_path)
    assert source.grab()
    assert len(source.retrieve().data) == 1
    assert source.grab()
    with pytest.raises(SampleError, match="sample 1 is not a finite number"):
        source.retrieve()
    assert source.grab()
    assert source.retrieve().data.tolist() == [[1, 0]]


def test_f32(tmp_path: Path) -> None:
    """Bare float32 comes in rows of the given number of channels."""
    values = np.random.default_rng(2).normal(size=(3000, 4)).astype("<f4")
    values.tofile(tmp_path / "a.bin")
    assert np.array_equal(all_rows(opened("f32:a.bin?channels=4", tmp_path)), values)
    assert np.array_equal(all_rows(opened("f32:a.bin", tmp_path)), values.reshape(-1, 1))


@pytest.mark.parametrize(
    ("size", "says"),
    [(None, "No such file"), (0, "found no bytes"), (50, "found 50 bytes, 2 more than 4 rows")],
)
def test_f32_must_be_whole_rows(size: int | None, says: str, tmp_path: Path) -> None:
    """A size that is not whole rows is refused: the channels are wrong, or the file was cut."""
    if size is not None:
        (tmp_path / "a.bin").write_bytes(bytes(size))
    with pytest.raises(SourceError, match=says):
        opened("f32:a.bin?channels=3", tmp_path)


@pytest.mark.parametrize("rate", [100, 5000])
def test_a_rate_spaces_rows(rate: int, tmp_path: Path) -> None:
    """With a rate, no row comes before its time, and those of a reading span 10 ms at most."""
    np.save(tmp_path / "a.npy", np.arange(rate // 10, dtype=np.float32))

    taken = readings(opened(f"npy:a.npy?rate={rate}", tmp_path))

    assert np.concatenate([r.data for r in taken]).ravel().tolist() == list(range(rate // 10))
    first = taken[0]
    for reading in taken:
        assert len(reading.data) <= max(1, rate // 100)
        after = float(reading.data[-1, 0] - first.data[-1, 0]) / rate
        assert reading.since - first.since > after - 0.002


@pytest.mark.parametrize("form", ["csv", "npy", "f32"])
def test_a_looped_recording_begins_anew(form: str, media: Path) -> None:
    """After the last row of a looped recording comes its first."""
    options = "&channels=2" if form == "f32" else ""
    taken = readings(opened(f"{form}:rows.{form}?loop=1&rate=1000{options}", media), limit=8)
    first = [row[0] for r in taken for row in r.data.tolist()]
    assert first[:8] == [0, 2, 4, 6, 8, 10, 0, 2]


@pytest.mark.assets
def test_real_recordings() -> None:
    """Real sensor files of three formats come with the sizes that they are known to have."""
    if not ASSETS.is_dir():
        pytest.skip(f"reference media are not at {ASSETS}")
    imu = readings(opened("csv:imu/STILL_record_20250215_092952.csv", ASSETS / "media"))
    mels = all_rows(opened("f32:ad01_normal_id_01.bin?channels=128", ASSETS / "media"))
    words = readings(opened("npy:kws_yes_1000ms.npy", ASSETS / "media"))

    assert sum(len(r.data) for r in imu) == 1500
    assert imu[0].columns[:3] == ("Pitch", "Roll", "Gyro_X")
    assert mels.shape == (200, 128)
    assert [r.data.shape for r in words] == [(1, 49, 10, 1)]


# Cameras


@pytest.fixture
def mjpeg() -> Iterator[Callable[..., MjpegServer]]:
    """Start MJPEG servers that end with the test."""
    servers: list[MjpegServer] = []

    def start(login: str | None = None, port: int = 0) -> MjpegServer:
        pictures = [jpeg(plain(value, 320, 240)) for value in (40, 120, 200)]
        servers.append(MjpegServer(pictures, login=login, port=port))
        return servers[-1]

    yield start
    for server in servers:
        server.cut()


def drain(source: Source) -> int:
    """Take pictures until the source is lost; count them."""
    count = 0
    while source.grab():
        count += 1
    return count


def test_mjpeg(mjpeg: Callable[..., MjpegServer]) -> None:
    """Pictures of an MJPEG stream come as they were sent."""
    taken = readings(opened(mjpeg().url(), HERE), limit=9)
    assert {r.data.shape for r in taken} == {(240, 320, 3)}
    assert {round(float(r.data.mean()) / 40) * 40 for r in taken} == {40, 120, 200}


def test_a_cut_mjpeg_stream_is_lost_and_comes_back(mjpeg: Callable[..., MjpegServer]) -> None:
    """A server that dies is a SourceError; opened anew after its return, pictures come again."""
    server = mjpeg()
    source = opened(server.url(), HERE)
    assert source.grab()

    server.cut()
    with pytest.raises(SourceError, match="stopped sending pictures"):
        drain(source)
    source.close()
    with pytest.raises(SourceError, match=f"nothing answers at 127.0.0.1 port {server.port}"):
        opened(server.url(), HERE)

    again = mjpeg(port=server.port)
    assert len(readings(opened(again.url(), HERE), limit=3)) == 3


def test_mjpeg_with_a_password(mjpeg: Callable[..., MjpegServer]) -> None:
    """User and password of the URL are used; a refusal does not tell them."""
    server = mjpeg(login="cam:se:cret")
    assert len(readings(opened(server.url("cam:se%3Acret"), HERE), limit=2)) == 2
    with pytest.raises(SourceError, match=r"refuses user and password \(401\)") as problem:
        opened(server.url("cam:wrong"), HERE)
    assert "wrong" not in str(problem.value)
    with pytest.raises(SourceError, match=r"wants user and password \(401\)"):
        opened(server.url(), HERE)
    for login in ("", "cam:se%3Acret"):
        with pytest.raises(SourceError, match="401" if not login else "404"):
            opened(server.url(login).replace("stream.mjpg", "other.mjpg"), HERE)


def test_an_answer_without_end_is_not_waited_for() -> None:
    """A camera that begins to answer and never comes to an end costs seconds, not the agent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = threading.Event()

        def drip() -> None:
            with suppress(OSError):  # closed at the end
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=feed, args=(connection,), daemon=True).start()

        def feed(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                while not said.wait(0.02):
                    connection.sendall(b"R")

        threading.Thread(target=drip, daemon=True).start()
        for scheme in ("rtsp", "http"):
            with pytest.raises(SourceError, match="is too slow"):
                opened(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/s?stall_s=5", HERE)
        said.set()


def test_a_web_page_is_no_camera() -> None:
    """A server that answers with something else than video is refused in one line."""
    with (
        MjpegServer([], page=b"<html>no pictures here</html>") as server,
        pytest.raises(SourceError, match="not with a video stream") as problem,
    ):
        opened(server.url(), HERE)
    assert "\n" not in str(problem.value)


def test_a_host_that_is_not_there() -> None:
    """A port that nothing listens on is told as that, without the password."""
    port = free_port()
    with pytest.raises(SourceError, match=f"nothing answers at 127.0.0.1 port {port}") as problem:
        opened(f"rtsp://cam:secret@127.0.0.1:{port}/s", HERE)
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _: None, "No such file or directory; plug it in"),
        (lambda path: path.write_bytes(b"x"), "is not a device; write file:"),
    ],
    ids=["missing", "file"],
)
def test_what_is_no_device_is_one_clear_line(
    make: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    """A missing camera, and a file in its place, are told apart."""
    make(tmp_path / "video0")
    with pytest.raises(SourceError, match=says):
        opened(f"v4l2:{tmp_path}/video0", HERE)


def test_a_device_that_is_no_camera_is_refused() -> None:
    """A character device that gives no pictures is refused in one line."""
    with pytest.raises(SourceError, match="is not a camera"):
        opened("v4l2:/dev/null", HERE)


@pytest.fixture
def rtsp() -> Iterator[Callable[..., RtspServer]]:
    """Start RTSP servers that end with the test."""
    why = rtsp_missing()
    if why:
        pytest.skip(why)
    servers: list[RtspServer] = []

    def start(login: str = "", port: int | None = None, *, digest: bool = False) -> RtspServer:
        servers.append(RtspServer(port=port, login=login, digest=digest))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.mark.rtsp
def test_rtsp(rtsp: Callable[..., RtspServer]) -> None:
    """Pictures of an RTSP camera come, and they change."""
    taken = readings(opened(rtsp().url(), HERE), limit=10)
    assert {r.data.shape for r in taken} == {(240, 320, 3)}
    assert not np.array_equal(taken[0].data, taken[-1].data)


@pytest.mark.rtsp
@pytest.mark.parametrize("digest", [False, True], ids=["basic", "digest"])
def test_rtsp_with_a_password(rtsp: Callable[..., RtspServer], digest: bool) -> None:
    """User and password of the URL are used; that they are refused, or the path, is said."""
    server = rtsp(login="cam:p@s#s", digest=digest)
    assert len(readings(opened(server.url("cam:p%40s%23s"), HERE), limit=2)) == 2
    for login, says in (
        ("", r"127.0.0.1 port \d+ wants user and password \(401\)"),
        ("cam:wrong", r"127.0.0.1 port \d+ refuses user and password \(401\); .*percent-encoded"),
    ):
        with pytest.raises(SourceError, match=says) as problem:
            opened(server.url(login), HERE)
        assert "wrong" not in str(problem.value)
    with pytest.raises(SourceError, match=r"has no stream of this path \(404\)"):
        opened(server.url("cam:p%40s%23s") + "/other", HERE)


@pytest.mark.rtsp
def test_frigate_1907_and_vllm_47853_forms_of_rtsp(rtsp: Callable[..., RtspServer]) -> None:
    """UDP where TCP is refused, coded fields and JPEGs are read; what cannot be is named."""
    server = rtsp()
    for form in ("udp", "interlaced", "mjpeg"):
        (taken,) = readings(opened(server.url(path=form), HERE), limit=1)
        assert taken.data.shape == (96, 160, 3)
        assert taken.data.mean() > 230, "a picture is white"
    for path, says in (
        ("udp?transport=tcp", r"refuses this transport \(461\)"),
        ("sound", r"has no video \(only audio\)"),
    ):
        with pytest.raises(SourceError, match=says):
            opened(server.url(path=path), HERE)


@pytest.mark.rtsp
def test_a_killed_rtsp_camera_is_lost_and_comes_back(rtsp: Callable[..., RtspServer]) -> None:
    """A camera that dies is a SourceError; opened anew after its return, pictures come again."""
    server = rtsp()
    source = opened(server.url(), HERE)
    assert source.grab()

    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(SourceError, match="stopped sending pictures"):
        drain(source)
    source.close()
    server.kill()
    with pytest.raises(SourceError, match="nothing answers"):
        opened(server.url(), HERE)

    again = rtsp(port=server.port)
    assert len(readings(opened(again.url(), HERE), limit=3)) == 3


def test_a_camera_may_be_silent_for_as_long_as_its_url_says() -> None:
    """`stall_s` is taken out of the URL; the rest of its query is the camera's, as it stands."""
    plain = parse_source("rtsp://me:secret@cam/s?channel=1&stall_s&subtype=0", HERE)
    assert plain.stall_seconds == 10
    spec = parse_source("rtsp://me:secret@cam/s?channel=1&stall_s=2.5&x=%20a&y", HERE)
    assert spec.stall_seconds == 2.5
    assert spec.text == "rtsp://me:secret@cam/s?channel=1&x=%20a&y"
    assert parse_source("http://cam/s.mjpg?stall_s=60", HERE).text == "http://cam/s.mjpg"
    assert parse_source("v4l2:/dev/video0?stall_s=3", HERE).stall_seconds == 3
    assert parse_source("serial:/dev/ttyS0", HERE).stall_seconds == float("inf")
    with pytest.raises(UsageError, match="stall_s: expected seconds"):
        parse_source("rtsp://cam/s?stall_s=never", HERE)


def test_a_camera_that_is_silent_for_that_long_is_lost() -> None:
    """The connection stays, and nothing comes."""
    with MjpegServer([jpeg(plain(40, 320, 240))], most=30) as server:
        source = opened(f"{server.url()}?stall_s=1", HERE)
        with pytest.raises(SourceError, match="silent for too long"):
            drain(source)
        source.close()


@pytest.mark.rtsp
def test_a_camera_that_hangs_is_given_up(rtsp: Callable[..., RtspServer]) -> None:
    """A camera that keeps its connection but goes silent is a SourceError in the end."""
    server = rtsp()
    source = opened(server.url(), HERE)
    assert source.grab()

    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(SourceError, match="silent"):
            drain(source)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    source.close()


def test_a_clip_plays_while_a_camera_runs(
    mjpeg: Callable[..., MjpegServer], tmp_path: Path
) -> None:
    """Clips and cameras, which need different options of the same library, open in any order."""
    make_clip(tmp_path / "clip.avi", 4)
    server = mjpeg()
    for _ in range(3):
        camera = opened(server.url(), HERE)
        assert len(readings(opened("file:clip.avi?pace=max", tmp_path))) == 4
        assert len(readings(camera, limit=2)) == 2


def test_a_camera_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    """While one camera takes a connection and says nothing, other sources open and close."""
    make_clip(tmp_path / "clip.avi", 4)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rtsp://127.0.0.1:{silent.getsockname()[1]}/s"

        def hang() -> None:
            try:
                opened(url, HERE)
            except SourceError:
                over.set()

        threading.Thread(target=hang, daemon=True).start()
        connection, _ = silent.accept()  # from here on, it waits for an answer

        taken = readings(opened("file:clip.avi?pace=max", tmp_path))

        assert len(taken) == 4
        assert not over.is_set()
        connection.close()
    assert over.wait(10)


OPEN_CUT_CLIP = """
from pathlib import Path
from edge_agent.core.errors import SampleError
from edge_agent.sources.source import open_source, readings
from edge_agent.sources.spec import parse_source
source = open_source(parse_source("file:cut.avi?pace=max", Path({folder!r})))
print(sum(not isinstance(reading, SampleError) for reading in readings(source)) > 0)
"""


def test_libraries_keep_quiet(tmp_path: Path) -> None:
    """A damaged clip prints nothing of FFmpeg's own."""
    whole = make_clip(tmp_path / "clip.avi", 20).read_bytes()
    middle = len(whole) // 2
    (tmp_path / "cut.avi").write_bytes(whole[:middle] + b"\x55" * 600 + whole[middle + 600 :])
    code = OPEN_CUT_CLIP.format(folder=str(tmp_path))
    root = str(Path(__file__).resolve().parents[2])
    quiet = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert (quiet.stdout, quiet.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        *((path, "is not a serial port") for path in ("/dev/null", "/dev/zero", "/")),
        ("/dev/ttyNone", "No such file or directory"),
    ],
)
def test_what_is_no_serial_port_is_told_so(path: str, why: str) -> None:
    """Not by the number of an ioctl or of an error."""
    from edge_agent.sources.serial_line import SerialLines
    from edge_agent.sources.spec import parse_source

    with pytest.raises(SourceError, match=rf"^serial:{path}: {why}$"):
        SerialLines(parse_source(f"serial:{path}", Path("/")))


def test_a_serial_port_that_is_open_elsewhere_is_told_so() -> None:
    """By the agent that runs, most often; `check` takes it for no fault."""
    from edge_agent.cli.check_report import Report
    from edge_agent.sources.serial_line import SerialLines
    from edge_agent.sources.spec import parse_source

    main, port = os.openpty()
    try:
        spec = parse_source(f"serial:{os.ttyname(port)}", Path("/"))
        lines = SerialLines(spec)
        report = Report()
        with pytest.raises(SourceInUseError, match="another program, or the agent, has it open"):
            SerialLines(spec)
        assert not report.tried("pipeline p source", lambda: str(SerialLines(spec)))
        assert report.failed == 0
        lines.close()
        SerialLines(spec).close()
    finally:
        os.close(main)
        os.close(port)


def test_decoding_a_picture_starts_no_threads_of_opencvs_own() -> None:
    # They wait for work by spinning, which costs more than what they do.
    code = (
        "import os, numpy as np\n"
        "from edge_agent.sources.opencv import decode, load\n"
        "cv2 = load()\n"
        "plain = np.zeros((480, 640, 3), np.uint8)\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "decode(cv2.imencode('.jpg', plain)[1])\n"
        "cv2.resize(cv2.resize(plain, (3840, 2160)), (320, 240))\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]
