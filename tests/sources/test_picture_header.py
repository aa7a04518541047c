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


def tiff_file(bits: int, compression: int, order: str) -> bytes:
    """Make a TIFF of 4 x 4 gray pixels in one strip."""
    pixels = bytes(4 * 4 * bits // 8)
    # Width, height, bits, compression, black is 0, place, samples, rows, length.
    values = [4, 4, bits, compression, 1, 8, 1, 4, len(pixels)]
    tags = zip((256, 257, 258, 259, 262, 273, 277, 278, 279), values, strict=True)
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in tags)
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(pixels))
    return head + pixels + struct.pack(f"{order}H", len(values)) + entries + bytes(4)


def bmp_file() -> bytes:
    """Make a BMP of 16 bits a pixel, 4 for each color, as `ffmpeg -pix_fmt rgb444` does."""
    pixels = bytes(4 * 4 * 2)
    head = struct.pack("<IiiHHII16x4I", 56, 4, 4, 1, 16, 3, 32, 0xF00, 0xF0, 0xF, 0)
    return b"BM" + struct.pack("<III", 14 + 56 + 32, 0, 14 + 56) + head + pixels


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (tiff_file(2, 1, "<"), r"it is TIFF \(BitsPerSample 2, Compression 1, "),
        (tiff_file(4, 1, ">"), r"it is TIFF \(BitsPerSample 4, Compression 1, "),
        (tiff_file(8, 34925, "<"), r"it is TIFF \(BitsPerSample 8, Compression 34925, "),
        (bmp_file(), r"it is BMP \(16 bits a pixel, compression 3\), "),
        (
            encode(".avif", plain(90), tiff(1)).replace(b"ispe", b"free"),
            "damaged, or AVIF in a form that is ",
        ),
    ],
    ids=["2 bits", "4 bits", "LZMA", "RGB444", "AVIF"],
)
def test_a_form_that_is_not_read_is_not_called_damaged(
    data: bytes, form: str, tmp_path: Path
) -> None:
    """A whole picture that other programs show is told to be converted; a cut one is damaged."""
    with pytest.raises(SampleError, match=form + ".*not read here; convert it to JPEG or PNG"):
        read(data, "picture.tif", tmp_path)
    # The pixels are last, or the tags, which say what the form is.
    with pytest.raises(SampleError, match="damaged, cut short or no picture"):
        read(data[:-20], "picture.tif", tmp_path)


def test_a_clip_is_no_picture(tmp_path: Path) -> None:
    """Its boxes are whole, as those of an AVIF."""
    clip = b"\0\0\0\x14ftypisom\0\0\2\0isom" + b"\0\0\0\x20free" + bytes(24)
    with pytest.raises(SampleError, match="damaged, cut short or no picture"):
        read(clip, "clip.jpg", tmp_path)


WHOLE = (
    tiff_file(4, 1, ">"),
    bmp_file(),
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
