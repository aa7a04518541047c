"""OpenCV's capture, set up once for this program: quiet, and quick to open cameras.

The only place that knows the environment variables by which OpenCV's FFmpeg is configured; there
is no other way to hand it these options.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.errors import SourceError
from ..device.resources import usable_cpus
from .hw_decode import HARDWARE

MAX_PIXELS = 64 * 2**20
"""Of a picture; 100 kB of PNG can hold a gigapixel of nothing, which is 3 GB to decode."""
FEW_CORES = 4
"""With fewer, a stream is decoded by one thread."""
_OPTIONS = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
# Cameras: TCP, because lost UDP packets smear pictures; little probing (microseconds), because the
# default takes in seconds of stream before the first picture (measured over RTSP: 2.0 s, so 0.5 s).
# The protocols keep a playlist that a camera serves from opening files of this machine.
_NETWORK = "rtsp,rtp,srtp,udp,tcp,tls,http,https,httpproxy,crypto"
_CAMERA = f"rtsp_transport;tcp|analyzeduration;300000|protocol_whitelist;{_NETWORK}"
# Clips: no playlists, which could name files outside the path given.
_CLIP = (
    f"rtsp_transport;tcp|protocol_whitelist;file,{_NETWORK}"
    "|format_whitelist;mov,avi,matroska,mpegts,mpeg,mpegvideo,flv,h264,hevc,vvc,m4v,mjpeg,asf,ogg,"
    "gif,ivf,obu,av1,mxf,nut,dv,vc1,rm,swf,yuv4mpegpipe,apng,rtsp,mpjpeg"
)
_DEFAULTS = {
    "OPENCV_LOG_LEVEL": "SILENT",
    "OPENCV_FFMPEG_LOGLEVEL": "-8",
    # Else OpenCV lets only one thread at a time open or close a stream, so that a camera that
    # hangs holds up every other source (seen: 5 s). FFmpeg itself has been safe since version 4.
    "OPENCV_FFMPEG_IS_THREAD_SAFE": "1",
    "OPENCV_IO_MAX_IMAGE_PIXELS": str(MAX_PIXELS),
}

_lock = threading.Lock()
_users_options: bool | None = None


def load() -> Any:
    """Import OpenCV, silencing what its libraries print unless the user asked for it."""
    global _users_options  # noqa: PLW0603 - the environment is the process's, and so is this
    with _lock:
        if _users_options is None:
            for name, value in _DEFAULTS.items():
                os.environ.setdefault(name, value)
            # Inherited from an agent that ran this one, our own value is not the user's.
            _users_options = os.environ.get(_OPTIONS, _CAMERA) not in {_CAMERA, _CLIP}
            if not _users_options:
                os.environ[_OPTIONS] = _CAMERA
    import cv2

    if os.environ["OPENCV_LOG_LEVEL"] == "SILENT":
        # For when another module imported OpenCV before the variable was there.
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    return cv2


@contextmanager
def _clip_options() -> Iterator[None]:
    # Cameras never wait for this lock: one that hangs while it is opened must not hold up a clip,
    # nor a clip a camera. A camera that is opened just now sees the options of clips, which let it
    # in all the same and only probe it longer.
    with _lock:
        if _users_options:
            yield
            return
        os.environ[_OPTIONS] = _CLIP
        try:
            yield
        finally:
            os.environ[_OPTIONS] = _CAMERA


def _open_stream(
    cv2: Any, source: str, name: str, parameters: Sequence[int], *, hardware: bool
) -> Any:
    if hardware:
        return HARDWARE.capture(cv2, source, name, parameters)
    return cv2.VideoCapture(source, cv2.CAP_FFMPEG, parameters)


def open_clip(path: str, name: str, *, hardware: bool = True) -> Any:
    """Open a video file; return a cv2.VideoCapture, which is closed where that failed."""
    cv2 = load()
    parameters: list[int] = []
    if usable_cpus() < FEW_CORES:
        # Each further thread costs: on two busy cores a sixth more processor time for a frame.
        parameters = [cv2.CAP_PROP_N_THREADS, 1]
    with _clip_options():
        return _open_stream(cv2, path, name, parameters, hardware=hardware)


def check_size(capture: Any, name: str) -> None:
    """Check that a stream's pictures are not too large to be kept in memory.

    Raises:
        SourceError: they are; the stream is closed.
    """
    cv2 = load()
    width = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH))
    height = int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
    if width * height > MAX_PIXELS:
        capture.release()
        raise SourceError(
            f"{name}: pictures of {width}x{height}, expected at most {MAX_PIXELS // 2**20} "
            "megapixels; have it send smaller ones"
        )


def open_camera(
    url: str, name: str, open_timeout_ms: int, read_timeout_ms: int, *, hardware: bool
) -> Any:
    """Open a network stream; return a cv2.VideoCapture, which is closed where that failed."""
    cv2 = load()
    # FFmpeg decodes one frame later for each thread beyond the first. Two keep up with large
    # pictures where there are cores to spare.
    threads = 2 if usable_cpus() >= FEW_CORES else 1
    parameters: Sequence[int] = (
        cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, open_timeout_ms,
        cv2.CAP_PROP_READ_TIMEOUT_MSEC, read_timeout_ms,
        cv2.CAP_PROP_N_THREADS, threads,
    )  # fmt: skip
    return _open_stream(cv2, url, name, parameters, hardware=hardware)


def open_device(path: str) -> Any:
    """Open a V4L2 device; return a cv2.VideoCapture, which is closed where that failed."""
    cv2 = load()
    capture = cv2.VideoCapture(path, cv2.CAP_V4L2)
    # The fewest that old pictures can wait in. With 1, a driver has no buffer to fill while we
    # hold it, and gives half its rate; drivers round up to what they need.
    capture.set(cv2.CAP_PROP_BUFFERSIZE, 2)
    return capture
