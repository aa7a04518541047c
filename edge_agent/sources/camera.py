"""Cameras: network streams (RTSP, HTTP) and V4L2 devices."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import threading
import time
from pathlib import Path
from typing import Any

from ..core.errors import SampleError, SourceError
from ..core.types import Reading
from ..device.resources import usable_cpus
from .frame_pool import FRAME_POOL
from .hw_decode import HARDWARE
from .opencv import check_size, load
from .source import Source, SourceContext
from .spec import SourceSpec
from .transport import BEGIN, Splitting, splitting

log = logging.getLogger(__name__)

OPEN_SECONDS = (5.0, 25.0)
"""Limits of the time to open a stream, which is otherwise its silence limit."""
# Failures after which a network camera is lost: one damaged picture is allowed.
FAILURES = 25
# Failures that a good picture offsets: a decoder that is out of sync still returns an old one now
# and then.
MADE_UP = 3
# Seconds after the first failure.
PATIENCE = 2.0
JPEG = re.compile(rb"(?i)\A\xff\xd8\xff|^content-type: *image/", re.MULTILINE)
"""How a stream of pictures begins."""
STILL = re.compile(
    rb"\x89PNG\r\n|BM.{4}\0{4}|RIFF.{4}WEBP|II\*\0|MM\0\*|.{4}ftyp(?:avif|hei|hev|mif1|msf1)",
    re.DOTALL,
)
"""How other pictures begin, which are no stream."""
LOST = "the camera stopped sending pictures (connection closed, unplugged, or silent for too long)"


class StreamCamera:
    """A network camera with a decoded stream; a picture not taken in time is lost."""

    trouble = None

    def __init__(
        self, spec: SourceSpec, context: SourceContext, body: Splitting | None = None
    ) -> None:
        """Open the stream, or use its *body*, which it then owns."""
        # Imported here: devices do not need it.
        import av

        from .video import FEW_CORES, NETWORK, LeftOutError, Video

        self._left_out = LeftOutError
        self._name = spec.redacted
        self._closing, self._body = context.closing, body
        self._problem: SampleError | None = None
        self._failed, self._patience = 0, 0.0
        shortest, longest = OPEN_SECONDS
        patience = min(max(shortest, spec.stall_seconds), longest)
        began = time.monotonic()
        options = dict(NETWORK)
        transport = spec.options.get("transport")
        # Lost UDP packets smear pictures, so UDP is used only if TCP is refused.
        options |= {"rtsp_transport": transport} if transport else {"rtsp_flags": "prefer_tcp"}
        try:
            self._video = Video(
                *(body or spec.text, self._name, options),
                # Each thread beyond the first delays decoding by one frame. Two can handle large
                # pictures if there are spare cores.
                threads=2 if usable_cpus() >= FEW_CORES else 1,
                keys=spec.options.get("frames") == "key",
                timeouts=(patience, spec.stall_seconds / 2),
                decode=spec.options.get("decoder") or context.decode,
                source=spec.text,
            )
        except av.FFmpegError as problem:
            # FFmpeg's RTSP reports a timeout as invalid data.
            if body is not None:
                body.close()
            late = time.monotonic() - began >= patience
            why = _why_closed(TimeoutError() if late else problem, spec.text, patience)
            raise SourceError(f"{self._name}: {why}") from None

    def grab(self) -> bool:
        if self._closing.is_set():
            return False
        if not isinstance(self._problem, self._left_out):  # else it has not been reported yet
            self._problem = None
        try:
            if not self._video.advance():
                HARDWARE.check_not_doubted(self._name)
                raise SourceError(f"{self._name}: {LOST}")
            self._failed, self._patience = max(0, self._failed - MADE_UP), 0.0
        except self._left_out as problem:
            self._problem = problem
        except SampleError as problem:
            HARDWARE.check_not_doubted(self._name)
            self._problem = problem
            self._failed += 1
            now = time.monotonic()
            self._patience = self._patience or now + PATIENCE
            if self._failed >= FAILURES or now > self._patience:
                raise SourceError(f"{self._name}: {LOST}") from None
        except SourceError:
            if self._closing.is_set():
                return False
            raise SourceError(f"{self._name}: {LOST}") from None
        self._time_ns, self._since = time.time_ns(), time.monotonic()
        return True

    def retrieve(self) -> Reading:
        problem, self._problem = self._problem, None
        if isinstance(problem, self._left_out):
            raise problem
        if problem is not None:
            raise SampleError(f"{self._name}: a picture could not be decoded")
        return Reading(self._video.picture(), self._time_ns, self._since)

    def close(self) -> None:
        self._video.close()
        if self._body is not None:
            self._body.close()


class DeviceCamera:
    """A running V4L2 device."""

    trouble = None

    def __init__(self, name: str, capture: Any, closing: threading.Event) -> None:
        """Create a source from an opened cv2.VideoCapture, which it then owns."""
        self._name = name
        self._capture = capture
        self._closing = closing
        self._shape: tuple[int, ...] | None = None

    def grab(self) -> bool:
        if self._closing.is_set():
            return False
        if not self._capture.grab():
            if self._closing.is_set():
                return False
            raise SourceError(f"{self._name}: {LOST}")
        self._time_ns, self._since = time.time_ns(), time.monotonic()
        return True

    def retrieve(self) -> Reading:
        # Most have the size of the previous one; for another size, OpenCV allocates a picture.
        memory = None if self._shape is None else FRAME_POOL.lend(self._shape)
        good, picture = self._capture.retrieve(memory)
        if not good or picture is None or picture.ndim != 3:
            raise SampleError(f"{self._name}: a picture could not be converted to BGR")
        self._shape = picture.shape
        return Reading(picture, self._time_ns, self._since)

    def close(self) -> None:
        self._capture.release()


def open_source(spec: SourceSpec, context: SourceContext) -> Source:
    """Open a network stream or a device."""
    if spec.path is not None:
        return _open_device(spec, spec.path, context.closing)
    if spec.scheme.name not in {"http", "https"}:
        return StreamCamera(spec, context)
    from .http_get import Body, get, where

    body = Body(get(spec.text, spec.redacted), context.closing, 0.9 * spec.stall_seconds)
    media = body.media
    known = media.startswith(("multipart/", "image/")) or "jpeg" in media
    # Many name another media type, or none.
    begun = b"" if known else body.peek(BEGIN)
    still = media.startswith("image/") or STILL.match(begun) is not None
    if known or still or JPEG.search(begun):
        from .http_camera import HttpCamera

        return HttpCamera(spec, context, body, still=still)
    if (split := splitting(body, begun)) is not None:
        return StreamCamera(spec, context, split)
    body.close()
    if media.startswith("text/"):
        raise SourceError(
            f"{spec.redacted}: {where(spec.text)} answers with {media}, not with a video stream; "
            "check the path"
        )
    return StreamCamera(spec, context)


def _why_closed(problem: Exception, url: str, patience: float) -> str:
    """Return why a stream did not open, with a fix and without the URL's secrets."""
    import av

    from .http_get import refusal, unreachable, where

    statuses: dict[type[Exception], int] = {
        av.error.HTTPUnauthorizedError: 401,
        av.error.HTTPForbiddenError: 403,
        av.error.HTTPNotFoundError: 404,
    }
    status = statuses.get(type(problem))
    place = where(url)
    match problem:
        case _ if status is not None:
            return refusal(status, url)
        case av.error.ExitError() | TimeoutError():
            return f"{place} is too slow: no stream came within {patience:g} s"
        case av.error.HTTPError():
            return f"{place} refuses it ({problem.strerror}); check the path"
        case OSError(errno=errno.EPROTONOSUPPORT):
            return f"{place} refuses this transport (461); leave ?transport out, or write the other"
        case OSError(errno=errno.EIO) if url.lower().startswith("rtsp"):
            return f"nothing answers at {place}: is the name right, the camera on and reachable?"
        case av.error.InvalidDataError() | av.error.EOFError() | OSError(errno=errno.EIO):
            pass
        case OSError():
            return unreachable(problem, url)
        case av.error.ArgumentError():  # also from the kernel, for a route that discards
            return f"no route leads to {place}, or it answers with no video stream; check both"
    return f"{place} answers, but not with a video stream; check the path"


def _open_device(spec: SourceSpec, path: Path, closing: threading.Event) -> DeviceCamera:
    # Imported here: network cameras do not need it.
    from .v4l2 import DEVICES

    node = DEVICES.locate(path)
    _check_device(spec, node)
    cv2 = load()
    capture = cv2.VideoCapture(str(node), cv2.CAP_V4L2)
    _set_mode(spec, node, capture, cv2)
    # The fewest buffers, so that few old pictures wait. With 1, a driver has no buffer to fill
    # while we hold it, and halves its rate; drivers round up to what they need.
    capture.set(cv2.CAP_PROP_BUFFERSIZE, 2)
    if not capture.isOpened():
        capture.release()
        raise SourceError(
            f"{spec.redacted}: is not a camera that gives pictures, or another program uses it, "
            "or another pipeline whose source reads otherwise"
        )
    width, height = cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT
    check_size(spec.redacted, int(capture.get(width)), int(capture.get(height)))
    DEVICES.remember(path, node)
    return DeviceCamera(spec.redacted, capture, closing)


def _set_mode(spec: SourceSpec, node: Path, capture: Any, cv2: Any) -> None:
    """Set a device to the requested picture size, rate and format."""
    size, fps, format_ = (spec.options[key] for key in ("size", "fps", "format"))
    if not capture.isOpened() or not (size or fps or format_):
        return
    from .v4l2 import choose, modes, shown

    offered = modes(node)
    taken = format_ or choose(offered, size, fps)
    if taken is not None:
        capture.set(cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*taken.ljust(4)))
    if size is not None:
        capture.set(cv2.CAP_PROP_FRAME_WIDTH, size[0])
        capture.set(cv2.CAP_PROP_FRAME_HEIGHT, size[1])
    if fps is not None:
        capture.set(cv2.CAP_PROP_FPS, fps)
    now = tuple(
        int(capture.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
    )
    code = int(capture.get(cv2.CAP_PROP_FOURCC))
    named = code.to_bytes(4, "little").decode("latin-1").strip()
    wrong = (size is not None and now != size) or (format_ is not None and named != format_)
    if wrong:
        capture.release()
        wanted = " ".join(
            [*([format_] if format_ else []), *([f"{size[0]}x{size[1]}"] if size else [])]
        )
        raise SourceError(
            f"{spec.redacted}: does not give {wanted}, but {named} {now[0]}x{now[1]}; it offers "
            f"{shown(offered)}"
        )
    rate = float(capture.get(cv2.CAP_PROP_FPS))
    if fps is not None and not 0.95 * fps <= rate <= 1.05 * fps:
        log.warning(
            "%s: gives %.4g frames a second, not %.4g; it offers %s",
            *(spec.redacted, rate, fps, shown(offered)),
        )


def _check_device(spec: SourceSpec, node: Path) -> None:
    """Raise the reason why a device cannot be opened, which OpenCV does not report."""
    try:
        mode = os.stat(node).st_mode  # noqa: PTH116 - os.access below has no pathlib twin
    except OSError as problem:
        mend = "plug it in, or see `ls /dev/video*`" if problem.errno == errno.ENOENT else ""
        raise SourceError(
            f"{spec.redacted}: {problem.strerror}" + (f"; {mend}" if mend else "")
        ) from None
    if not stat.S_ISCHR(mode):
        raise SourceError(f"{spec.redacted}: is not a device; write file: for a video file")
    if not os.access(node, os.R_OK | os.W_OK):
        raise SourceError(f"{spec.redacted}: permission denied; add the user to the group 'video'")
