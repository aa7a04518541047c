"""Pictures of which OpenCV leaves a part of the header unread: AVIF, WebP and PNM."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_agent.core.errors import SampleError
from edge_agent.sources.opencv import decode, load
from edge_agent.sources.source import open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.small_models import plain

cv2 = load()

Picture = NDArray[np.uint8]
EXIF = b"Exif\0\0"


def upright() -> Picture:
    """Make a picture whose bright corner tells how it was turned."""
    picture = plain(0)
    picture[:10, :20] = 255
    return picture


def stored(orientation: int) -> Picture:
    """Turn `upright` as a camera stores it that writes this EXIF orientation."""
    picture = upright()
    across = picture.transpose(1, 0, 2)
    return np.ascontiguousarray(
        {
            1: picture,
            2: picture[:, ::-1],
            3: picture[::-1, ::-1],
            4: picture[::-1],
            5: across,
            6: across[::-1],
            7: across[::-1, ::-1],
            8: across[:, ::-1],
        }[orientation]
    )


def tiff(orientation: int) -> bytes:
    """Make EXIF that holds nothing but an orientation."""
    return b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def encode(suffix: str, picture: Picture, exif: bytes) -> bytes:
    """Encode a picture with EXIF."""
    kind, held = [cv2.IMAGE_METADATA_EXIF], [np.frombuffer(exif, np.uint8)]
    data: bytes = cv2.imencodeWithMetadata(suffix, picture, kind, held)[1].tobytes()
    return data


def read(data: bytes, name: str, folder: Path) -> Picture:
    """Read a picture from a folder, as a pipeline does."""
    (folder / name).write_bytes(data)
    source = open_source(parse_source(f"dir:{name}", folder))
    assert source.grab()
    picture: Picture = source.retrieve().data
    source.close()
    return picture


@pytest.mark.parametrize("prefix", [b"", EXIF])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_webp_is_upright(orientation: int, prefix: bytes, tmp_path: Path) -> None:
    """Also where its EXIF begins as that of a JPEG does."""
    data = encode(".webp", stored(orientation), prefix + tiff(orientation))
    assert b"EXIF" in data
    picture = read(data, "turned.webp", tmp_path)
    assert picture.shape == upright().shape
    assert np.abs(picture.astype(int) - upright()).mean() < 5


@pytest.mark.parametrize("exif", [True, False])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_avif_is_upright(orientation: int, *, exif: bool, tmp_path: Path) -> None:
    """Its boxes `irot` and `imir` tell how it is turned, not EXIF, which may be missing."""
    data = encode(".avif", stored(orientation), tiff(orientation))
    assert (b"irot" in data or b"imir" in data) == (orientation > 1)
    assert tiff(orientation) in data
    if not exif:
        data = data.replace(tiff(orientation), tiff(1))
    picture = read(data, "turned.avif", tmp_path)
    assert picture.shape == upright().shape
    assert np.abs(picture.astype(int) - upright()).mean() < 5


@pytest.mark.parametrize("most", [1, 4, 100, 255, 1023, 4095, 65535])
@pytest.mark.parametrize("kind", ["P2", "P3", "P5", "P6"])
def test_a_pnm_is_as_bright_as_its_maximum_says(kind: str, most: int, tmp_path: Path) -> None:
    """Industrial cameras of 10 and 12 bits write such pictures."""
    values = np.array([0, most // 2, most] * 2)
    values = values if kind in {"P2", "P5"} else values.repeat(3)
    if kind in {"P2", "P3"}:
        body = " ".join(str(value) for value in values).encode() + b"\n"
    else:
        body = values.astype(">u2" if most > 255 else np.uint8).tobytes()
    header = f"{kind} # 640 480 64\n3\t2 # columns, rows\n#\n{most}\n".encode()
    picture = read(header + body, "picture.ppm", tmp_path)
    assert picture.shape == (2, 3, 3)
    assert picture[0, :, 0] == pytest.approx([0, most // 2 * 255 / most, 255], abs=1)


WHOLE = (
    encode(".avif", stored(6), tiff(6)),
    encode(".webp", stored(6), EXIF + tiff(6)),
    b"P5\n# 10 bits\n4 2\n1023\n" + bytes(range(16)),
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(WHOLE), st.data())
def test_a_damaged_header_is_refused_or_passed_over(whole: bytes, draw: st.DataObject) -> None:
    """Lengths that lie, boxes without content, and a file that ends anywhere."""
    data = bytearray(whole[: draw.draw(st.integers(0, len(whole)))])
    for _ in range(draw.draw(st.integers(0, 4)) if data else 0):
        data[draw.draw(st.integers(0, min(len(data), 700) - 1))] = draw.draw(st.integers(0, 255))
    try:
        picture = decode(np.frombuffer(bytes(data), np.uint8)) if data else None
    except SampleError:
        return
    assert picture is None or picture.dtype == np.uint8
