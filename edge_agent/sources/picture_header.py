"""What OpenCV leaves unread in the headers of pictures, and what it cannot decode."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import numpy as np

from ..core.types import Array

_MOST_PARTS = 10_000
"""Of a file, and of each part that is read here; pictures have a few."""
_MOST_TABLES = 4
"""Of properties by item: one for each of its forms."""
_EXIF = b"Exif\0\0"
"""Precedes EXIF in a JPEG; many programs also write it to a WebP."""
_TIFF = {258: "BitsPerSample", 259: "Compression", 262: "Photometric", 339: "SampleFormat"}
_TIFF_STRIPS, _TIFF_TILES = (273, 279), (324, 325)
"""Tags of where they begin, and of how long they are."""
_TIFF_BITS = frozenset({1, 8, 16})
_TIFF_COMPRESSIONS = frozenset({1, 2, 3, 4, 5, 7, 8, 32773, 32946})
_CMYK, _UNSIGNED = 5, 1
_BMP_BITS = frozenset({2, 16, 64})
"""That are not read, or only sometimes."""
_BMP_COMPRESSIONS = frozenset({0, 1, 2})
"""None, and run lengths."""
_BMP_HEADER = 40
"""Bytes; a shorter one has other fields."""
_PNM_BYTES = 64 * 1024
"""Within these the numbers of a PNM's header are expected; comments may stand between them."""
_PNM = re.compile(rb"P([2356])" + rb"(?:\s|#[^\r\n]*[\r\n])+(\d{1,9})" * 3 + rb"\s")


def pnm_scale(data: Array) -> float:
    """Return by what to multiply the values that OpenCV reads from a PNM to get 0 to 255.

    1: none, or it scales them itself, as text of up to 8 bits.
    """
    found = _PNM.match(data[:_PNM_BYTES].tobytes())
    most = int(found[4]) if found else 0
    text = found is not None and found[1] in b"23"
    return 1.0 if most in {0, 255} or (text and most < 255) else 255 / most


def with_plain_exif(data: Array) -> Array:
    """Return a WebP whose EXIF OpenCV can read."""
    view, at = data.data, 12
    for _ in range(_MOST_PARTS):
        size = int.from_bytes(view[at + 4 : at + 8], "little")
        begin, end = at + 8, at + 8 + size
        if end > len(view):
            break
        if view[at : at + 4].tobytes() == b"EXIF" and view[begin : begin + 6].tobytes() == _EXIF:
            data = data.copy()
            # What it refers to is found by its distance from here, so that the end may be anything.
            data[begin : end - len(_EXIF)] = data[begin + len(_EXIF) : end].copy()
            break
        at = end + size % 2
    return data


def avif_turns(data: Array) -> list[tuple[bytes, int]]:
    """Return how to turn the main picture of an AVIF, in this order: `irot` and `imir`, values.

    ISO/IEC 23008-12, 6.5.10 and 6.5.12.
    """
    nothing = memoryview(b"")
    meta = next((inner for kind, inner in _boxes(data.data) if kind == b"meta"), nothing)
    inner = dict(_boxes(meta[4:]))
    held = list(_boxes(inner.get(b"iprp", nothing)))
    properties = list(_boxes(next((all_ for kind, all_ in held if kind == b"ipco"), nothing)))
    tables = [rows for kind, rows in held if kind == b"ipma"][:_MOST_TABLES]
    main = inner.get(b"pitm", nothing)
    main_item = int.from_bytes(main[4 : 8 if len(main) >= 8 else 6])
    turns = [
        properties[place - 1]
        for rows in tables
        for place in _properties(rows, main_item)
        if 0 < place <= len(properties)
    ]
    return [
        (kind, value[0] & 3 if kind == b"irot" else value[0] & 1)
        for kind, value in turns
        if kind in {b"irot", b"imir"} and len(value)
    ]


def is_whole(data: Array) -> bool:
    """Whether the parts of an AVIF end where the file does."""
    return sum(8 + len(inner) for _, inner in _boxes(data.data)) == len(data)


def turned(picture: Array, turns: list[tuple[bytes, int]]) -> Array:
    """Return a picture turned as `avif_turns` says."""
    for kind, value in turns:
        if kind == b"irot":
            picture = np.rot90(picture, value)
        else:
            picture = picture[:, ::-1] if value else picture[::-1]
    return np.ascontiguousarray(picture)


def unread_form(data: Array) -> str | None:
    """Return the form of a picture, if it is whole and OpenCV cannot decode it for its form."""
    head = data[:12].tobytes()
    if head.startswith((b"II*\0", b"MM\0*")):
        return _tiff_form(data)
    if head.startswith(b"BM"):
        return _bmp_form(data)
    return None


def _tiff_form(data: Array) -> str | None:
    view, order = data.data, "little" if data[0] == ord("I") else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(view[at : at + size], order)  # type: ignore[arg-type]

    first = number(4, 4)
    tags: dict[int, list[int]] = {}
    for place in range(first + 2, first + 2 + 12 * number(first, 2), 12):
        tag, size = number(place, 2), {3: 2, 4: 4}.get(number(place + 2, 2), 0)
        if tag in tags or tag not in {*_TIFF, *_TIFF_STRIPS, *_TIFF_TILES} or not size:
            continue
        count = number(place + 4, 4)
        at = place + 8 if count * size <= 4 else number(place + 8, 4)
        tags[tag] = [number(at + i * size, size) for i in range(min(count, _MOST_PARTS))]
    begins, lengths = (
        tags.get(strips) or tags.get(tiles) or []
        for strips, tiles in zip(_TIFF_STRIPS, _TIFF_TILES, strict=True)
    )
    ends = [begin + length for begin, length in zip(begins, lengths, strict=False)]
    if not ends or max(ends) > len(view):
        return None
    # What is not stated is 1 in all of them.
    bits, compression, space, sample = form = [(tags.get(tag) or [1])[0] for tag in _TIFF]
    usual = bits in _TIFF_BITS and compression in _TIFF_COMPRESSIONS and sample == _UNSIGNED
    if usual and (space, bits) != (_CMYK, 16):
        return None
    words = ", ".join(f"{name} {value}" for name, value in zip(_TIFF.values(), form, strict=True))
    return f"TIFF ({words})"


def _bmp_form(data: Array) -> str | None:
    if len(data) < 34:
        return None
    pixels, header, width, height = struct.unpack_from("<10xIIii", data.data)
    bits, compression = struct.unpack_from("<HI", data.data, 28)
    size = (abs(width) * bits + 31) // 32 * 4 * abs(height)
    usual = bits not in _BMP_BITS and compression in _BMP_COMPRESSIONS
    if header < _BMP_HEADER or usual or pixels + size > len(data):
        return None
    return f"BMP ({bits} bits a pixel, compression {compression})"


def _boxes(view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield kind and content of the boxes of ISO/IEC 14496-12."""
    at = 0
    for _ in range(_MOST_PARTS):
        size, head = int.from_bytes(view[at : at + 4]), 8
        if size == 1:
            size, head = int.from_bytes(view[at + 8 : at + 16]), 16
        end = at + size if size else len(view)
        if at + head > end or end > len(view):
            return
        yield bytes(view[at + 4 : at + 8]), view[at + head : end]
        at = end


def _properties(rows: memoryview, item: int) -> Iterator[int]:
    """Yield the numbers, from 1, of an item's properties, from the content of an `ipma`."""
    if len(rows) < 8:
        return
    long_item, long_place, at = rows[0] > 0, bool(rows[3] & 1), 8
    for _ in range(min(_MOST_PARTS, int.from_bytes(rows[4:8]))):
        begin = at + (4 if long_item else 2)
        if begin >= len(rows):
            return
        found, count = int.from_bytes(rows[at:begin]), rows[begin]
        size = 2 if long_place else 1
        at = begin + 1 + count * size
        if found == item:
            for place in range(begin + 1, min(at, len(rows)), size):
                yield int.from_bytes(rows[place : place + size]) & (0x7FFF if size == 2 else 0x7F)
            return
