"""Clips and cameras as people report them from the field; each test is named after its report."""

from __future__ import annotations

import io
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import SampleError, SourceError
from edge_agent.sources.http_get import _authorization
from edge_agent.sources.opencv import load
from edge_agent.sources.source import Source, SourceContext, open_source, readings
from edge_agent.sources.spec import parse_source

cv2 = load()
HERE = Path(__file__).parent
WIDTH, HEIGHT = 160, 96
RED, GREEN, BLUE, WHITE = (0, 0, 255), (0, 255, 0), (255, 0, 0), (255, 255, 255)
UPRIGHT = [RED, GREEN, BLUE, WHITE]

Picture = NDArray[np.uint8]


def quarters(width: int = WIDTH, height: int = HEIGHT) -> Picture:
    """Make a picture of four quarters: red, green / blue, white."""
    picture = np.zeros((height, width, 3), np.uint8)
    for number, color in enumerate(UPRIGHT):
        y, x = divmod(number, 2)
        picture[y * height // 2 :][: height // 2, x * width // 2 :][:, : width // 2] = color
    return picture


def seen(picture: Picture) -> list[tuple[int, ...]]:
    """Give the nearest pure color of each quarter of a picture, in reading order."""
    height, width = picture.shape[:2]
    centers = [
        picture[y, x] for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)
    ]
    return [tuple(255 * round(int(value) / 255) for value in center) for center in centers]


def write(
    path: Path,
    codec: str = "libx264",
    *,
    times: Sequence[int] = range(20),
    options: dict[str, str] | None = None,
    pix_fmt: str = "yuv420p",
    sound: float = 0.0,
    tags: dict[str, Any] | None = None,
    matrix: Sequence[int] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    muxer: dict[str, str] | None = None,
) -> Path:
    """Write a clip of the quarters.

    Args:
        path: its suffix names the container.
        codec: of the video.
        times: of the frames, in tenths of a second.
        options: of the encoder.
        pix_fmt: of the frames.
        sound: seconds of silence beside it.
        tags: colors of the frames.
        matrix: display matrix, nine numbers.
        size: width and height.
        muxer: options of the container.

    """
    with av.open(str(path), "w", options=muxer or {}) as container:
        stream: Any = container.add_stream(codec, rate=10, options=options or {})
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.time_base = stream.codec_context.time_base = Fraction(1, 10)
        if matrix is not None:
            stream.set_display_matrix(matrix)
        track: Any = container.add_stream("aac", rate=8000) if sound else None
        for number in times:
            picture = quarters(*size)
            frame = av.VideoFrame.from_ndarray(picture, format="bgr24").reformat(format=pix_fmt)
            for name, value in (tags or {}).items():
                setattr(frame, name, value)
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        for start in range(0, int(sound * 8000), 1024):
            silence = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            silence.sample_rate, silence.pts = 8000, start
            container.mux(track.encode(silence))
        if track is not None:
            container.mux(track.encode(None))
    return path


def opened(text: str, base: Path = HERE, **context: Any) -> Source:
    """Open a source by its text."""
    return open_source(parse_source(text, base), SourceContext(**context))


def played(path: Path, options: str = "?pace=max") -> tuple[list[Picture], str | None]:
    """Play a clip; gives its pictures, and what is said of it at the end."""
    source = opened(f"file:{path.name}{options}", path.parent)
    pictures = []
    for reading in readings(source):
        assert not isinstance(reading, SampleError), reading
        pictures.append(reading.data)
    trouble = source.trouble
    source.close()
    return pictures, trouble


# Clips


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        *(("mkv", "libx264"), ("webm", "libvpx"), ("ts", "libx264"), ("flv", "libx264")),
        *(("mp4", "libsvtav1"), ("mkv", "libx265"), ("avi", "mpeg4"), ("mov", "mjpeg")),
    ],
)
def test_opencv_python_908_and_24430_every_container_and_codec(
    suffix: str, codec: str, tmp_path: Path
) -> None:
    """AV1 is decoded, and nobody calls a whole clip damaged."""
    if codec not in av.codecs_available:
        pytest.skip(f"PyAV has no encoder {codec} here")
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    pictures, trouble = played(write(tmp_path / f"clip.{suffix}", codec, pix_fmt=pix_fmt))
    assert (len(pictures), trouble) == (20, None)
    assert all(seen(picture) == UPRIGHT for picture in pictures)


def test_mpv_4305_a_video_that_moves_to_another_packet_identifier_or_codec(tmp_path: Path) -> None:
    """A transport stream is read to its end, whatever its video becomes on the way, and back."""
    moved = {"mpegts_start_pid": "0x300"}
    parts = [
        write(tmp_path / "first.ts"),
        write(tmp_path / "moved.ts", size=(HEIGHT, WIDTH), muxer=moved),
        write(tmp_path / "other.ts", "mpeg2video"),
        write(tmp_path / "both.ts", "mpeg2video", size=(320, 192), muxer=moved),
    ]
    path = tmp_path / "clip.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in [*parts, parts[0]]))
    pictures, trouble = played(path)
    sizes = [(96, 160), (160, 96), (96, 160), (192, 320), (96, 160)]
    assert [picture.shape[:2] for picture in pictures] == [
        each for each in sizes for _ in range(20)
    ]
    assert all(seen(picture) == UPRIGHT for picture in pictures)
    assert trouble is None


def test_recordings_of_two_devices_put_together(tmp_path: Path) -> None:
    """The second has tables under other identifiers, and its video under another, too."""
    moved = {"mpegts_start_pid": "0x300", "mpegts_pmt_start_pid": "0x1100"}
    parts = [write(tmp_path / "one.ts"), write(tmp_path / "two.ts", muxer=moved)]
    path = tmp_path / "clip.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in [*parts, parts[0]]))
    pictures, trouble = played(path)
    assert (len(pictures), trouble) == (60, None)
    assert all(seen(picture) == UPRIGHT for picture in pictures)


def test_a_transport_stream_whose_end_holds_no_picture_says_so(tmp_path: Path) -> None:
    """Its video goes on under an identifier that no table names."""
    moved = write(tmp_path / "two.ts", muxer={"mpegts_start_pid": "0x300"}).read_bytes()
    packets = [moved[at : at + 188] for at in range(0, len(moved), 188)]
    video = b"".join(each for each in packets if (each[1] & 31, each[2]) == (3, 0))
    path = tmp_path / "clip.ts"
    first = write(tmp_path / "one.ts").read_bytes()
    path.write_bytes(first * 25 + video * (2**19 // len(video)))
    pictures, trouble = played(path)
    assert len(pictures) == 500
    assert trouble is not None
    assert "of the file hold no picture of its video; look at it with `ffprobe`" in trouble


def test_a_clip_of_a_dahua_recorder(tmp_path: Path) -> None:
    """A .dav file: each picture has a head and a tail of the maker's own."""
    data = b""
    with av.open(str(write(tmp_path / "clip.h264"))) as container:
        for number, packet in enumerate(each for each in container.demux() if each.size):
            more = bytes([0x80, 0, WIDTH // 8, HEIGHT // 8, 0x81, 0, 2, 10])
            size = (24 + len(more) + packet.size + 8).to_bytes(4, "little")
            kind = bytes([0xFD if packet.is_keyframe else 0xFC, 0, 0, 0])
            head = b"DHAV" + kind + number.to_bytes(4, "little") + size + bytes(4)
            when = (100 * number).to_bytes(2, "little") + bytes([len(more), 0])
            data += head + when + more + bytes(packet) + b"dhav" + size
    path = tmp_path / "clip.dav"
    path.write_bytes(data)
    pictures, trouble = played(path)
    assert (len(pictures), trouble) == (20, None)
    assert all(seen(picture) == UPRIGHT for picture in pictures)


def test_an_flv_whose_size_and_codec_change(server: Server, tmp_path: Path) -> None:
    """A clip is read to its end; a camera is read anew where the codec is another."""
    parts = [
        write(tmp_path / "first.flv").read_bytes(),
        write(tmp_path / "turned.flv", size=(HEIGHT, WIDTH)).read_bytes(),
        write(tmp_path / "other.flv", "flv", size=(320, 192)).read_bytes(),
    ]
    whole = parts[0] + b"".join(part[13:] for part in [*parts[1:], parts[0]])
    (tmp_path / "clip.flv").write_bytes(whole)
    pictures, trouble = played(tmp_path / "clip.flv")
    sizes = [(96, 160), (160, 96), (192, 320), (96, 160)]
    assert [picture.shape[:2] for picture in pictures] == [
        each for each in sizes for _ in range(20)
    ]
    assert all(seen(picture) == UPRIGHT for picture in pictures)
    assert trouble is None
    server.media, server.again, server.pieces = "video/x-flv", False, [whole]
    camera = opened(server.url)
    with pytest.raises(SourceError, match="stopped sending pictures"):
        take(camera, 41)
    camera.close()


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "ts"])
def test_decord_343_sound_longer_than_the_picture(suffix: str, tmp_path: Path) -> None:
    """2 s of picture beside 6 s of sound are a whole clip."""
    pictures, trouble = played(write(tmp_path / f"clip.{suffix}", sound=6.0))
    assert (len(pictures), trouble) == (20, None)


@pytest.mark.parametrize("suffix", ["mkv", "mp4"])
def test_kinovea_154_variable_frame_rate(suffix: str, tmp_path: Path) -> None:
    """Frames that come when something moves are all there are; they are shown at their times."""
    times = [0, 1, 2, 8, 9, 14]
    path = write(tmp_path / f"clip.{suffix}", times=times)
    began = time.monotonic()
    pictures, trouble = played(path, "")
    assert (len(pictures), trouble) == (6, None)
    assert time.monotonic() - began >= 1.35


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"x264-params": "tff=1"}),
        ("libx264", {"x264-params": "bff=1"}),
        ("mpeg2video", {"flags": "+ilme+ildct"}),
    ],
)
def test_vllm_47853_interlaced(codec: str, options: dict[str, str], tmp_path: Path) -> None:
    """A clip coded as fields shows what it shows: nothing is black, no color has moved."""
    pictures, trouble = played(write(tmp_path / "clip.mkv", codec, options=options))
    assert (len(pictures), trouble) == (20, None)
    assert all(seen(picture) == UPRIGHT for picture in pictures)


ONE = 1 << 16


@pytest.mark.parametrize(
    ("turn", "colors"),
    [
        ((1, 0, 0, 1), UPRIGHT),
        ((0, 1, 1, 0), [RED, BLUE, GREEN, WHITE]),
        ((0, 1, -1, 0), [BLUE, RED, WHITE, GREEN]),
        ((0, -1, 1, 0), [GREEN, WHITE, RED, BLUE]),
        ((0, -1, -1, 0), [WHITE, GREEN, BLUE, RED]),
        ((-1, 0, 0, -1), [WHITE, BLUE, GREEN, RED]),
        ((-1, 0, 0, 1), [GREEN, RED, WHITE, BLUE]),
        ((1, 0, 0, -1), [BLUE, WHITE, RED, GREEN]),
    ],
)
def test_javacv_1361_turned_and_mirrored(
    turn: tuple[int, int, int, int], colors: list[tuple[int, ...]], tmp_path: Path
) -> None:
    """A phone's display matrix is applied whole: turned by quarters, mirrored, or both."""
    a, b, c, d = (ONE * each for each in turn)
    path = write(tmp_path / "clip.mp4", matrix=[a, b, 0, c, d, 0, 0, 0, 1 << 30])
    pictures, _ = played(path)
    shape = (WIDTH, HEIGHT, 3) if turn[0] == 0 else (HEIGHT, WIDTH, 3)
    assert {picture.shape for picture in pictures} == {shape}
    assert seen(pictures[0]) == colors
    assert pictures[0].flags.c_contiguous


def test_a_color_space_that_cannot_be_converted_is_named(tmp_path: Path) -> None:
    """Where swscale refuses, no buffer goes out that nobody has filled."""
    source = opened(f"file:{write(tmp_path / 'clip.mkv').name}?pace=max", tmp_path)
    assert source.grab()
    video = source._video  # type: ignore[attr-defined]
    video._frame.colorspace = 8  # YCgCo, which no encoder here writes
    with pytest.raises(SampleError, match=r"yuv420p in color space YCgCo cannot be converted"):
        source.retrieve()
    source.close()


def test_a_raw_mjpeg_recording_with_exif(tmp_path: Path) -> None:
    """JPEGs on end, as `rpicam-vid --codec mjpeg` writes them, are a clip, turned as EXIF says."""
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x112, 3, 1, 5, 0, 0)
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    path = tmp_path / "clip.mjpeg"
    path.write_bytes((WIDE[:2] + segment + WIDE[2:]) * 3)
    pictures, trouble = played(path)
    assert ([seen(each) for each in pictures], trouble) == ([[RED, BLUE, GREEN, WHITE]] * 3, None)


def test_an_avi_whose_frames_repeat_is_whole(tmp_path: Path) -> None:
    """Its header counts frames that are not there, as they only repeat the one before."""
    pictures, trouble = played(write(tmp_path / "clip.avi", "mpeg4", times=range(0, 60, 3)))
    assert (len(pictures), trouble) == (20, None)


def test_digest_is_answered_where_basic_is_offered_behind_it() -> None:
    """Each offer has a realm of its own."""
    url = urlsplit("http://cam:secret@camera/stream")
    offers = 'Digest realm="door", nonce="1", qop="auth", Basic realm="IP camera, door"'
    assert 'realm="door", nonce="1", uri="/stream"' in _authorization(url, url, offers)


def test_only_key_frames(tmp_path: Path) -> None:
    """`?frames=key` gives those that need no other, and calls nothing damaged."""
    path = write(tmp_path / "clip.mp4", options={"g": "5", "x264-params": "scenecut=0"})
    pictures, trouble = played(path, "?pace=max&frames=key")
    assert (len(pictures), trouble) == (4, None)


def test_a_file_without_video_is_named(tmp_path: Path) -> None:
    """A recording of sound alone is not called damaged."""
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        track: Any = container.add_stream("aac", rate=8000)
        silence = av.AudioFrame.from_ndarray(
            np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
        )
        silence.sample_rate, silence.pts = 8000, 0
        container.mux(track.encode(silence))
        container.mux(track.encode(None))
    with pytest.raises(SourceError, match=r"has no video \(only audio\)"):
        opened("file:sound.mp4", tmp_path)


# Cameras by HTTP


def jpeg(picture: Picture) -> bytes:
    """Encode a JPEG."""
    data: bytes = cv2.imencode(".jpg", picture)[1].tobytes()
    return data


WIDE, LARGE, TALL = (jpeg(quarters(*size)) for size in ((160, 96), (320, 192), (96, 160)))
MULTIPART = "multipart/x-mixed-replace; boundary=frame"


def part(picture: bytes, newline: bytes = b"\r\n", *head: bytes) -> bytes:
    """Make a part of a multipart answer, after its boundary."""
    lines = head or (b"Content-Type: image/jpeg", b"Content-Length: %d" % len(picture))
    return newline.join([*lines, b"", b""]) + picture + newline


class Server:
    """Answers each GET with what a function writes."""

    def __init__(self) -> None:
        self.media: str | None = MULTIPART
        self.pieces: list[bytes] = []
        self.pause = 0.02
        self.again = True
        self.chunked = False
        self.framed = True
        self.asked = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Keep the test's output clean."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.over = threading.Event()
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/video"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        request.send_response(200)
        if self.media is not None:
            request.send_header("Content-Type", self.media)
        if self.chunked:
            request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        number = 0
        try:
            while number < len(self.pieces) or (self.again and self.pieces):
                if self.over.wait(self.pause if number else 0):
                    return
                piece = self.pieces[number % len(self.pieces)]
                if self.chunked and self.framed:
                    piece = b"%x\r\n%b\r\n" % (len(piece), piece)
                request.wfile.write(piece)
                number += 1
        except OSError:
            return

    def close(self) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    """Start a server that ends with the test."""
    started = Server()
    yield started
    started.close()


def take(source: Source, count: int) -> list[Picture]:
    """Take so many pictures, and close the source."""
    taken = []
    for reading in readings(source):
        assert not isinstance(reading, SampleError), reading
        taken.append(reading.data)
        if len(taken) == count:
            break
    source.close()
    return taken


PLAIN = b"--frame\r\n" + part(WIDE)
FORMS = {
    "tasmota_12376_boundary_last": (MULTIPART, part(WIDE) + b"--frame\r\n"),
    "boundary_with_dashes": ("multipart/x-mixed-replace;boundary=--frame", PLAIN),
    "boundary_of_another_name": ("multipart/x-mixed-replace; boundary=other", PLAIN),
    "no_boundary_named": ("multipart/x-mixed-replace", PLAIN),
    "mixed": ("multipart/mixed; boundary=frame", PLAIN),
    "no_content_type": (None, PLAIN),
    "line_feeds": (MULTIPART, b"--frame\n" + part(WIDE, b"\n")),
    "no_length": (MULTIPART, b"--frame\r\n" + part(WIDE, b"\r\n", b"Content-Type: image/jpg")),
    "wrong_length": (MULTIPART, b"--frame\r\n" + part(WIDE, b"\r\n", b"Content-Length: 9")),
    "no_heads": ("video/x-motion-jpeg", WIDE),
    "padded": (MULTIPART, b"\r\n--frame\r\n" + part(WIDE + bytes(100))),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["", "chunked"])
@pytest.mark.parametrize("form", FORMS)
def test_mjpeg_as_cameras_send_it(form: str, chunked: bool, server: Server) -> None:
    """Pictures are found whatever stands between them."""
    server.media, piece = FORMS[form]
    # Cut anywhere, as a network does.
    server.pieces = [piece[: len(piece) // 3], piece[len(piece) // 3 :]]
    server.chunked = chunked
    pictures = take(opened(server.url), 5)
    assert all(seen(picture) == UPRIGHT for picture in pictures)


def test_a_chunk_without_end_is_read_as_it_comes(server: Server) -> None:
    """A camera, or who says to be one, filled the memory with the chunk that it had announced."""
    server.media, piece = FORMS["mixed"]
    server.chunked, server.framed = True, False
    server.pieces = [b"7fffffffffffff\r\n" + piece, *[piece] * 20]
    assert all(seen(picture) == UPRIGHT for picture in take(opened(server.url), 5))


@pytest.mark.parametrize("media", [None, "text/plain", "application/octet-stream", "video/mpeg"])
@pytest.mark.parametrize("form", ["ts", "flv", "mkv", "jpegs", "parts"])
def test_a_media_type_that_is_missing_or_wrong(
    form: str, media: str | None, server: Server, tmp_path: Path
) -> None:
    """What comes tells what it is; text is only refused if it holds none of it."""
    server.media, server.again = media, False
    if form == "jpegs":
        server.pieces = [WIDE] * 20
    elif form == "parts":
        server.pieces = [PLAIN] * 20
    else:
        server.pieces = [write(tmp_path / f"clip.{form}").read_bytes()]
    if media == "text/plain" and form == "mkv":
        with pytest.raises(SourceError, match="answers with text/plain, not with a video stream"):
            opened(server.url)
        return
    pictures = take(opened(server.url), 15)
    assert all(seen(picture) == UPRIGHT for picture in pictures)


def test_a_page_without_a_media_type_is_no_camera(server: Server) -> None:
    """It answers, and that is said."""
    server.media, server.again, server.pieces = None, False, [b"<html>Log in</html>"]
    with pytest.raises(SourceError, match="answers, but not with a video stream; check the path"):
        opened(server.url)


def test_mjpg_streamer_399_size_changes_in_mid_stream(server: Server) -> None:
    """Each result has the size of its own frame."""
    server.pieces = [b"--frame\r\n" + part(each) for each in (WIDE, LARGE, TALL)]
    shapes = [picture.shape[:2] for picture in take(opened(server.url), 6)]
    assert shapes == [(96, 160), (192, 320), (160, 96)] * 2


def test_a_picture_that_is_cut_costs_only_itself(server: Server) -> None:
    """Wherever: of some the end was looked for in the next one, and half of it was published."""
    cuts = [WIDE[:size] for size in range(4, len(WIDE) - 2)]
    server.pieces = [b"--frame\r\n" + part(each) for cut in cuts for each in (WIDE, cut)]
    source = opened(server.url)
    came = [isinstance(reading, SampleError) for reading in islice(readings(source), 2 * len(cuts))]
    source.close()
    assert came == [False, True] * len(cuts)


def test_motioneye_1102_a_slow_camera(server: Server) -> None:
    """With `?stall_s` a camera of one picture in several seconds is well; without, it is lost."""
    server.pieces, server.pause = [PLAIN], 1.5
    assert len(take(opened(f"{server.url}?stall_s=8"), 2)) == 2
    server.pause = 30
    source = opened(f"{server.url}?stall_s=1")
    assert source.grab()
    with pytest.raises(SourceError, match="silent for too long"):
        source.grab()
    source.close()


def test_a_camera_that_waits_is_closed_at_once(server: Server) -> None:
    """A reader of a silent camera sees that it is to stop."""
    server.pieces, server.pause = [PLAIN], 30
    closing = threading.Event()
    source = opened(f"{server.url}?stall_s=60", closing=closing)
    assert source.grab()
    threading.Timer(0.3, closing.set).start()
    began = time.monotonic()
    assert not source.grab()
    assert time.monotonic() - began < 3
    source.close()


@pytest.mark.parametrize("media", ["image/jpeg", "application/octet-stream", None, "text/html"])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tiff", ".avif"])
def test_motioneyeos_1483_a_still_picture_is_fetched_at_the_rate(
    suffix: str, media: str | None, server: Server
) -> None:
    """The URL of a single picture is asked for again and again, as often as the pipeline wants.

    What it is, its first bytes tell, as of a stream.
    """
    server.media, server.again = media, False
    server.pieces = [cv2.imencode(suffix, quarters())[1].tobytes()]
    began = time.monotonic()
    pictures = take(opened(server.url, rate=lambda _usual: 10.0), 6)
    assert 0.45 < time.monotonic() - began < 3
    assert server.asked == 6
    assert all(seen(picture) == UPRIGHT for picture in pictures)


@pytest.mark.parametrize("media", ["image/heic", None])
def test_a_still_picture_that_is_not_read_says_why(media: str | None, server: Server) -> None:
    """As a file of that kind does, also when the camera is given up for it."""
    server.media, server.again = media, False
    server.pieces = [b"\0\0\0\x18ftypheic" + bytes(500)]
    source = opened(server.url, rate=lambda _usual: 1000.0)
    assert source.grab()
    with pytest.raises(SampleError, match=r"a picture cannot be decoded: it is HEIC.*convert it"):
        source.retrieve()
    with pytest.raises(SourceError, match=r"each of the last 25 cannot .*it is HEIC.*convert it"):
        list(readings(source))
    source.close()


def test_a_still_picture_that_is_empty_says_so(server: Server) -> None:
    """A camera that is starting answers so; the next picture is asked for."""
    server.media, server.again = "image/jpeg", False
    server.pieces = []
    source = opened(server.url, rate=lambda _usual: 1000.0)
    assert source.grab()
    with pytest.raises(SampleError, match="a picture is empty"):
        source.retrieve()
    server.pieces = [WIDE]
    assert source.grab()
    assert seen(source.retrieve().data) == UPRIGHT
    source.close()


def test_a_redirection_in_circles_ends(server: Server) -> None:
    """A camera that answers with itself is refused in words."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", "/video")
        request.end_headers()

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="redirects in a loop"):
        opened(server.url)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "rtsp://127.0.0.1/stream"])
def test_a_redirection_to_another_scheme_is_named(address: str, server: Server) -> None:
    """It was called a loop."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", address)
        request.end_headers()

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(SourceError, match=f"redirects to {address.partition(':')[0]}:, which is"):
        opened(server.url)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:99999/", "what is no address"),
        ("http://[::1/", "what is no address"),
        (f"http://{'a' * 70}.example/", "no name of a host"),
    ],
)
def test_a_redirection_to_no_address_is_named(address: str, words: str, server: Server) -> None:
    """The name of an exception was said."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", address)
        request.end_headers()

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(SourceError, match=words):
        opened(server.url)


def test_a_login_that_another_address_asks_for_is_not_called_wrong(server: Server) -> None:
    """Cameras redirect to another port; a password goes to the address that it was given for."""
    other = Server()

    def redirect(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", other.url)
        request.end_headers()

    def refuse(request: BaseHTTPRequestHandler) -> None:
        assert "Authorization" not in request.headers
        request.send_response(401)
        request.send_header("WWW-Authenticate", 'Basic realm="camera"')
        request.end_headers()

    server.answer = redirect  # type: ignore[method-assign]
    other.answer = refuse  # type: ignore[method-assign]
    port = other.url.rpartition(":")[2].partition("/")[0]
    with pytest.raises(SourceError, match=rf"redirects to 127.0.0.1 port {port}, which asks for"):
        opened(server.url.replace("://", "://user:secret@"))
    other.close()


def test_a_length_that_is_sent_twice_is_one(server: Server) -> None:
    """RFC 9110, 8.6: a camera that did so was never read."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "image/jpeg")
        for _ in range(2):
            request.send_header("Content-Length", str(len(WIDE)))
        request.end_headers()
        request.wfile.write(WIDE)

    server.answer = answer  # type: ignore[method-assign]
    (picture,) = take(opened(server.url), 1)
    assert seen(picture) == UPRIGHT


def test_size_and_codec_change_in_mid_stream(server: Server, tmp_path: Path) -> None:
    """Each picture has its own size; another codec is a loss, after which it is read anew."""
    server.media = "video/mp2t"
    small = write(tmp_path / "small.ts").read_bytes()
    turned = write(tmp_path / "turned.ts", size=(HEIGHT, WIDTH)).read_bytes()
    other = write(tmp_path / "other.ts", "mpeg2video").read_bytes()
    server.pieces, server.again = [small, turned, small, other * 3], False
    source = opened(server.url)
    shapes: list[tuple[int, ...]] = []
    lost = ""
    try:
        shapes.extend(
            reading.data.shape[:2]
            for reading in readings(source)
            if not isinstance(reading, SampleError)
        )
    except SourceError as problem:
        lost = str(problem)
    assert "stopped sending pictures" in lost
    source.close()
    upright, across = (HEIGHT, WIDTH), (WIDTH, HEIGHT)
    assert list(dict.fromkeys(pairwise(shapes))) == [
        *((upright, upright), (upright, across), (across, across), (across, upright)),
    ]
    server.pieces = [other]
    again = opened(server.url)
    assert {picture.shape[:2] for picture in take(again, 5)} == {upright}
    again.close()


def gray(codec: str, options: dict[str, str]) -> bytes:
    """Make a transport stream of 20 gray pictures."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream: Any = container.add_stream(codec, rate=10, options={"g": "10", **options})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(20):
            picture = np.full((HEIGHT, WIDTH, 3), 60, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "bgr24").reformat(format="yuv420p")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def test_a_codec_change_that_the_old_decoder_half_understands_is_a_loss(server: Server) -> None:
    """Of gray MPEG-2, the decoder of H.264 gives an old picture for one in ten, and no other."""
    first = gray("libx264", {"tune": "zerolatency", "preset": "ultrafast"})
    server.media, server.again = "video/mp2t", False
    server.pieces = [first, first, *[gray("mpeg2video", {})] * 40]
    with closing(opened(server.url)) as source:
        came = 0
        while came < 800:
            try:
                assert source.grab()
            except SourceError:
                break
            came += 1
    assert came < 200


def test_a_camera_whose_video_moves_is_lost_though_bytes_come(
    server: Server, tmp_path: Path
) -> None:
    """It is read anew, and from then on from where its video is; no thread stays behind."""
    first = write(tmp_path / "first.ts").read_bytes()
    moved = write(tmp_path / "moved.ts", muxer={"mpegts_start_pid": "0x300"}).read_bytes()
    server.media, server.again = "video/mp2t", False
    server.pieces = [first, first, *[moved] * 10_000]
    source = opened(server.url)
    with pytest.raises(SourceError, match="stopped sending pictures"):
        take(source, 41)
    source.close()
    assert server.asked == 1
    server.pieces = [moved]
    assert len(take(opened(server.url), 20)) == 20
