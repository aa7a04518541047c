"""Encrypted clips are refused by name; their garbage was published as pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from edge_agent.core.errors import SourceError
from edge_agent.sources.source import Source, open_source, readings
from edge_agent.sources.spec import parse_source

KEY = "00112233445566778899aabbccddeeff"
ENCRYPTION = {
    "encryption_scheme": "cenc-aes-ctr",
    "encryption_key": KEY,
    "encryption_kid": KEY,
}
TRACKS, ENTRY = b"\x16\x54\xae\x6b", b"\xae"


def write(path: Path, codec: str, options: dict[str, str]) -> Path:
    """Write a clip of 20 frames; *options* are the container's."""
    with av.open(str(path), "w", options=options) as container:
        stream: Any = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(20):
            shade = np.full((48, 64, 3), 40 + 5 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shade, "bgr24")))
        container.mux(stream.encode(None))
    return path


def element(identifier: bytes, content: bytes) -> bytes:
    """Return an element of EBML."""
    return identifier + (1 << 56 | len(content)).to_bytes(8) + content


def content(data: bytes, begin: int) -> tuple[int, int]:
    """Return where the content of an element of EBML begins and ends; *begin*: of its length."""
    width = 9 - data[begin].bit_length()
    length = int.from_bytes(data[begin : begin + width]) & (1 << 7 * width) - 1
    return begin + width, begin + width + length


def encrypt_entry(path: Path) -> Path:
    """Mark the track of a WebM as encrypted with AES."""
    data = path.read_bytes()
    at = data.index(TRACKS, data.index(TRACKS) + 1)  # behind the list of elements
    begin, end = content(data, at + len(TRACKS))
    inner, inner_end = content(data, data.index(ENTRY, begin) + 1)
    encryption = element(b"\x47\xe1", b"\5") + element(b"\x47\xe2", bytes.fromhex(KEY))
    encoding = element(b"\x50\x33", b"\1") + element(b"\x50\x35", encryption)
    encodings = element(b"\x6d\x80", element(b"\x62\x40", encoding))
    entry = element(ENTRY, data[inner:inner_end] + encodings)
    path.write_bytes(data[:at] + element(TRACKS, entry) + data[end:])
    return path


def opened(path: Path) -> Source:
    """Open a clip."""
    return open_source(parse_source(f"file:{path.name}?pace=max", path.parent))


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("fragments", [{}, {"movflags": "frag_keyframe+empty_moov"}])
def test_an_encrypted_mp4_is_refused(codec: str, fragments: dict[str, str], tmp_path: Path) -> None:
    """Its scheme and what decrypts it are named."""
    path = write(tmp_path / "clip.mp4", codec, ENCRYPTION | fragments)
    says = re.escape("is encrypted (cenc) and cannot be decoded without its key; decrypt it first")
    with pytest.raises(SourceError, match=says + ".*ffmpeg -decryption_key"):
        opened(path)


def test_an_encrypted_webm_is_refused(tmp_path: Path) -> None:
    """What its header says is enough."""
    path = write(tmp_path / "clip.webm", "libvpx-vp9", {"live": "1", "write_crc32": "0"})
    assert len(list(readings(opened(path)))) == 20
    with pytest.raises(SourceError, match="is encrypted and cannot be decoded without its key"):
        opened(encrypt_entry(path))
