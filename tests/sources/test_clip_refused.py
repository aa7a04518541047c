"""What is a whole file of another kind is named, and not called damaged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition

from edge_agent.core.errors import SourceError
from edge_agent.sources.opencv import load
from edge_agent.sources.source import open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.small_models import plain

CONVERT = "convert it with `ffmpeg -i IN OUT.wav` and write wav:OUT.wav"
RATE = 48000


def why(path: Path) -> str:
    """Return why a clip is refused."""
    with pytest.raises(SourceError) as problem:
        open_source(parse_source(f"file:{path.name}", path.parent))
    return str(problem.value)


def write_sound(path: Path, codec: str, *, cover: bool = False) -> Path:
    """Write a second of sound; *cover*: with a picture, as pieces of music have it."""
    with av.open(str(path), "w") as container:
        track: Any = container.add_stream(codec, rate=RATE, layout="stereo")
        if cover:
            picture: Any = container.add_stream("mjpeg", rate=1)
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuvj420p"
            picture.disposition = Disposition.attached_pic
            frame = av.VideoFrame.from_ndarray(plain(90), "bgr24")
            for packet in [*picture.encode(frame), *picture.encode(None)]:
                container.mux(packet)
        size = track.codec_context.frame_size or 1024
        for start in range(0, RATE, size):
            wave = np.sin((start + np.arange(size)) / 20).astype(np.float32)
            sound: Any = av.AudioFrame.from_ndarray(np.stack([wave, wave]), "fltp", "stereo")
            sound.sample_rate, sound.pts = RATE, start
            for each in av.AudioResampler(track.format.name, "stereo", RATE).resample(sound):
                container.mux(track.encode(each))
        container.mux(track.encode(None))
    return path


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        *(("flac", "flac"), ("mp3", "libmp3lame"), ("aac", "aac"), ("aiff", "pcm_s16be")),
        *(("au", "pcm_s16be"), ("caf", "pcm_s16le"), ("ac3", "ac3"), ("w64", "pcm_s16le")),
        *(("m4a", "aac"), ("ogg", "flac"), ("mka", "ac3")),
    ],
)
def test_sound_is_told_how_to_be_read(suffix: str, codec: str, tmp_path: Path) -> None:
    """Half of these were called damaged, cut short, or of an unknown format."""
    said = why(write_sound(tmp_path / f"sound.{suffix}", codec))
    assert "has no video (only audio); " in said
    assert CONVERT in said


def test_a_cover_is_no_video(tmp_path: Path) -> None:
    """It came as a clip of one frame."""
    said = why(write_sound(tmp_path / "music.mp4", "aac", cover=True))
    assert "has no video (only audio); " in said
    assert CONVERT in said


def test_a_wav_is_told_its_form(tmp_path: Path) -> None:
    """It needs no conversion."""
    assert "write wav: for its sound" in why(write_sound(tmp_path / "sound.wav", "pcm_s16le"))


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp"])
def test_a_picture_is_told_its_form(suffix: str, tmp_path: Path) -> None:
    """Pictures have a form of their own."""
    path = tmp_path / f"picture.{suffix}"
    assert load().imwrite(str(path), plain(90))
    assert "is a picture; write dir: for pictures" in why(path)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n"),
        ("PDF", b"%PDF-1.7\n"),
        ("OpenEXR", b"\x76\x2f\x31\x01"),
    ],
)
def test_a_picture_of_an_unread_kind_is_named(name: str, head: bytes, tmp_path: Path) -> None:
    """By its first bytes."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(head + bytes(500))
    assert re.search(f"it is {name}, which is not read here", why(path))
