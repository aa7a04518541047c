"""OpenCV, set up once for this program, without log output: for pictures and V4L2 devices."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

from ..core.errors import SampleError, SourceError
from ..core.types import Array
from .picture_header import avif_turns, is_whole, pnm_scale, turned, unread_form, with_plain_exif

MAX_PIXELS = 64 * 2**20
"""Largest picture; a PNG of 100 kB can contain an empty gigapixel, which takes 3 GB to decode."""
MOST_SCANS = 100
"""Of a JPEG; each is a pass over the picture and takes 100 bytes, and encoders make about 10."""
_MOST_PARTS = 10_000
"""Of a JPEG, scans and all else between two markers."""
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""Of a JPEG; what a scan holds has 00 or a number of its intervals behind FF."""
_END, _SCAN = 0xD9, 0xDA
_WITHOUT_LENGTH = (0x01, 0xD8)
HEAD_BYTES = 64
"""Of a file, for `refusal`."""
_UNREAD = {
    "JPEG XL": (b"\xff\x0a", b"\0\0\0\x0cJXL "),
    "JPEG 2000": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "OpenEXR": (b"\x76\x2f\x31\x01",),
    "SVG or a web page": (b"<svg", b"<?xml", b"<!DOCTYPE", b"<html"),
    "PDF": (b"%PDF",),
}
"""Unsupported kinds of pictures, by the first bytes of the file."""
_HEIF = (b"ftyphei", b"ftyphev", b"ftypmif1", b"ftypmsf1")
"""Behind the first four bytes. AVIF may begin so, too, and names its own brand further behind."""
_AVIF = re.compile(rb"avi[fs]")
_PNM = (b"P2", b"P3", b"P5", b"P6")
_DEFAULTS = {"OPENCV_LOG_LEVEL": "SILENT", "OPENCV_IO_MAX_IMAGE_PIXELS": str(MAX_PIXELS)}


@cache
def load() -> Any:
    """Import OpenCV, silencing its libraries' output unless the user requested it."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    import cv2

    if os.environ["OPENCV_LOG_LEVEL"] == "SILENT":
        # In case another module imported OpenCV before the variable was set.
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    # Frames are what runs in parallel here. Its own threads wait for work by spinning, which costs
    # more processor time than decoding a small JPEG does (1.5 instead of 0.6 ms measured).
    cv2.setNumThreads(1)
    return cv2


def decode(data: Array) -> Array:
    """Decode a picture file, (n,) uint8; return it upright, (height, width, 3) uint8 BGR.

    When reading files itself, OpenCV accepts a truncated JPEG, with the rest gray.

    Raises:
        SampleError: it is damaged, too large, or not a picture.
    """
    cv2 = load()
    if data[:2].tobytes() == b"\xff\xd8" and _scans(data.tobytes()) > MOST_SCANS:
        raise SampleError(f"cannot be decoded: has more than {MOST_SCANS} scans")
    try:
        picture = _decoded(data)
    except cv2.error as problem:
        large = "MAX_IMAGE" in problem.err
        why = f"has more than {MAX_PIXELS // 2**20} megapixels" if large else problem.err
        raise SampleError(f"cannot be decoded: {why}") from None
    if picture is None:
        raise SampleError(f"cannot be decoded: {_why_unread(data)}")
    return picture


def _decoded(data: Array) -> Array | None:
    """Decode a picture; None: OpenCV cannot. What it does not apply itself is applied here."""
    cv2, head = load(), data[:12].tobytes()
    color: int = cv2.IMREAD_COLOR
    picture: Array | None
    if head[:2] in _PNM and (scale := pnm_scale(data)) != 1:
        picture = cv2.imdecode(data, color | cv2.IMREAD_ANYDEPTH)
        return None if picture is None else cv2.convertScaleAbs(picture, alpha=scale)
    if head[4:8] == b"ftyp" and (turns := avif_turns(data)):
        # In an AVIF they take the place of the orientation in EXIF.
        picture = cv2.imdecode(data, color | cv2.IMREAD_IGNORE_ORIENTATION)
        return None if picture is None else turned(picture, turns)
    if head[8:] == b"WEBP":
        data = with_plain_exif(data)
    picture = cv2.imdecode(data, color)
    return picture


def _scans(data: bytes) -> int:
    """Count the scans of a JPEG up to its end: phones append whole videos after it."""
    count, at = 0, 2
    for _ in range(_MOST_PARTS):
        found = _MARKER.search(data, at)
        kind = _END if found is None else data[found.end() - 1]
        if found is None or kind == _END:
            return count
        at = found.end()
        if kind not in _WITHOUT_LENGTH:
            at += int.from_bytes(data[at : at + 2], "big")
        count += kind == _SCAN
    return max(count, MOST_SCANS + 1)


def _why_unread(data: Array) -> str:
    """Return why OpenCV cannot decode a picture."""
    head = data[:HEAD_BYTES].tobytes()
    if (why := refusal(head)) is not None:
        return why
    if (form := unread_form(data)) is not None:
        return _not_read(form)
    if head[4:8] == b"ftyp" and _AVIF.search(_brands(head)) and is_whole(data):
        return "damaged, or AVIF in a form that is not read here; convert it to JPEG or PNG"
    return "damaged, cut short or no picture"


def refusal(head: bytes) -> str | None:
    """Return why a file that begins with *head* is not read, if it is an unsupported picture."""
    found = next((name for name, marks in _UNREAD.items() if head.startswith(marks)), None)
    brands = _brands(head)
    if brands.startswith(_HEIF) and not _AVIF.search(brands):
        found = "HEIC, as phones write it"
    return found and _not_read(found)


def _brands(head: bytes) -> bytes:
    """Return what the first box of an AVIF, a HEIC or a clip names as its kind."""
    return head[4 : int.from_bytes(head[:4])]


def _not_read(form: str) -> str:
    return f"it is {form}, which is not read here; convert it to JPEG or PNG"


def check_size(name: str, width: int, height: int) -> None:
    """Check that a stream's pictures are not too large for memory.

    Raises:
        SourceError: they are too large.
    """
    if width * height > MAX_PIXELS:
        raise SourceError(
            f"{name}: pictures of {width}x{height}, expected at most {MAX_PIXELS // 2**20} "
            "megapixels; have it send smaller ones"
        )
