"""Cameras that send JPEG pictures over HTTP: a stream (MJPEG), or one at a time.

Pictures are found by their JPEG markers. The boundaries and part headers between them differ from
camera to camera, and are not needed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator

import numpy as np

from ..core.errors import SampleError, SourceError
from ..core.types import Array, Reading
from .http_get import Body, get
from .opencv import check_size, decode, load
from .source import SLACK, SourceContext
from .spec import SourceSpec

MAX_BYTES = 32 * 2**20
"""Largest size of a picture, and of the bytes between pictures."""
FAILURES = 25
"""Number of damaged pictures in a row after which the camera is lost."""
USUAL_RATE = 1.0
"""Rate of fetching still pictures if the pipeline has no rate."""
BEGIN = b"\xff\xd8\xff"
_PART = re.compile(rb"(?i)content-length: *[1-9]")
_NEXT = re.compile(rb"\r\n--[ -~]{1,70}\r\n(?i:content-)")
"""A boundary within what looks like one picture: the first one was cut off."""
_MARK = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")


class HttpCamera:
    """A stream of JPEG pictures, or one picture that is fetched repeatedly."""

    trouble = None

    def __init__(
        self, spec: SourceSpec, context: SourceContext, body: Body, *, still: bool
    ) -> None:
        """Create a source from the body of an answer, which it then owns.

        *still*: the body is one picture; False: it may be, too.
        """
        self._spec = spec
        self._name = spec.redacted
        self._closing = context.closing
        self._body = body
        self._pictures = self._found()
        self._still = still
        self._rate = context.rate
        self._due = 0.0
        """When to fetch the next still picture, monotonic seconds, without the pause."""
        self._data: bytes | None = None
        self._failed, self._why = 0, ""
        self._cv2 = load()

    def grab(self) -> bool:
        if self._failed >= FAILURES:
            raise self._lost(f"each of the last {FAILURES} {self._why}")
        try:
            if not self._take():
                return False
        except TimeoutError:
            raise self._lost("silent for too long") from None
        except OSError as problem:
            raise self._lost(problem.strerror or str(problem)) from None
        self._time_ns, self._since = time.time_ns(), time.monotonic()
        return not self._closing.is_set()

    def retrieve(self) -> Reading:
        try:
            picture = self._decoded(self._data or b"")
        except SampleError as problem:
            self._failed, self._why = self._failed + 1, str(problem)
            raise SampleError(f"{self._name}: a picture {problem}") from None
        self._failed = 0
        return Reading(picture, self._time_ns, self._since)

    def close(self) -> None:
        self._body.close()
        self._pictures.close()
        self._data = None

    def _decoded(self, data: bytes) -> Array:
        if self._still and not data:
            raise SampleError("is empty")
        array = np.frombuffer(data, np.uint8)
        if self._still and not data.startswith(BEGIN):
            return decode(array)
        # OpenCV's own limit applies only if OpenCV was not imported before.
        check_size(self._name, *_size(data))
        try:
            picture: Array | None = self._cv2.imdecode(array, self._cv2.IMREAD_COLOR)
        except self._cv2.error:
            picture = None  # damaged in a way that OpenCV does not handle
        if picture is None:
            raise SampleError("could not be decoded")
        return picture

    def _take(self) -> bool:
        """Take the next picture of a stream, or fetch it; False: the source must close."""
        if not self._still:
            try:
                self._data = next(self._pictures)
                return True
            except StopIteration as end:
                if self._closing.is_set():
                    return False
                if not end.value:
                    raise self._lost("connection closed") from None
            # Its media type was missing or wrong.
            self._still, self._due = True, self._since
        if not self._pause():
            return False
        self._fetch()
        return True

    def _pause(self) -> bool:
        """Wait until a picture is due at the current rate; False: the source must close."""
        while (left := self._due + 1 / self._rate(USUAL_RATE) - time.monotonic()) > 0:
            if self._closing.wait(min(left, 0.25)):
                return False
        self._due = time.monotonic() + (left if left > -SLACK else 0.0)
        return not self._closing.is_set()

    def _fetch(self) -> None:
        if self._data is not None:
            self._body.close()
            self._body = self._body.again(get(self._spec.text, self._name))
        data = bytearray()
        for piece in self._body.pieces():
            data += piece
            if len(data) > MAX_BYTES:
                raise self._lost(f"a picture of more than {MAX_BYTES // 2**20} MiB")
        self._data = bytes(data)

    def _lost(self, why: str) -> SourceError:
        return SourceError(f"{self._name}: the camera stopped sending pictures ({why})")

    def _found(self) -> Generator[bytes, None, bool]:
        """Yield each picture as it arrives; b"" for a part without one.

        Return whether the body was one picture instead of a stream of them.
        """
        single, count = not self._body.media.startswith("multipart/"), 0
        held, between = bytearray(), b""
        told, at = 0, 0
        for piece in self._body.pieces():
            held += piece
            while held:
                begin = held.find(BEGIN)
                if begin:
                    # The last bytes may be half of a marker.
                    gone = max(0, len(held) - 2) if begin < 0 else begin
                    between += held[:gone]
                    del held[:gone]
                    # The last header seen so far belongs to the next picture.
                    parts = len(_PART.findall(between)) - 1
                    yield from [b""] * (parts - told)
                    told = max(told, parts)
                    if len(between) > MAX_BYTES:
                        raise self._lost("what comes holds no JPEG")
                    if begin < 0:
                        break
                between, told = b"", 0
                end, at = _end(held, max(at, 2))
                if end is None:
                    if len(held) > MAX_BYTES:
                        raise self._lost(f"a picture of more than {MAX_BYTES // 2**20} MiB")
                    break
                cut = _NEXT.search(held, 2, end)
                end = cut.start() if cut else end
                yield bytes(held[:end])
                count += 1
                del held[:end]
                at = 0
        return single and count == 1


def _size(data: bytes) -> tuple[int, int]:
    """Return width and height from a JPEG's frame header, or zeros if it has none."""
    at = 2
    while (found := _MARK.search(data, at)) is not None:
        mark, place = found[0][1], found.start()
        # SOF0 to SOF15, without the tables between them.
        if 0xC0 <= mark <= 0xCF and mark not in {0xC4, 0xC8, 0xCC}:
            height, width = data[place + 5 : place + 7], data[place + 7 : place + 9]
            return int.from_bytes(width), int.from_bytes(height)
        at = place + 2 + int.from_bytes(data[place + 2 : place + 4])
    return 0, 0


def _end(held: bytearray, at: int) -> tuple[int | None, int]:
    """Find where a JPEG ends or the next one begins, from *at* on.

    Return that position, None if it has not arrived yet, and how far the data was searched.
    """
    while (found := _MARK.search(held, at)) is not None:
        mark, place = found[0][1], found.start()
        if mark == 0xD9:
            return place + 2, 0
        if mark == 0xD8:
            return place, 0
        # A segment, whose content (a thumbnail) may look like markers; the next marker follows it.
        end = place + 2 + int.from_bytes(held[place + 2 : place + 4])
        if len(held) <= end:
            return None, place
        if mark != 0xDA and held[end] != 0xFF:
            cut = held.find(BEGIN, at)
            return (None, at) if cut < 0 else (cut, 0)
        at = end
    return None, max(at, len(held) - 1)
