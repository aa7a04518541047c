"""Hardware decoding is tried where there is a device for it, and what fails falls back at once.

There is no such hardware where these tests run: FFmpeg is asked for decoders that it has not got,
and refuses for real.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_agent.core.errors import SourceError
from edge_agent.sources import hw_decode
from edge_agent.sources.hw_decode import HARDWARE, KINDS, Hardware
from edge_agent.sources.source import SourceContext, open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.small_models import plain, write_clip


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Make a folder that stands for /dev/dri, with a render node."""
    folder = tmp_path / "dri"
    folder.mkdir()
    (folder / "renderD128").touch()
    return folder


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Make a clip of ten frames, each brighter than the one before."""
    return write_clip(tmp_path / "clip.avi", [plain(20 * i) for i in range(10)])


@pytest.fixture
def process(nodes: Path) -> Iterator[Hardware]:
    """Have this process believe in the render node; taken back afterward."""
    before = {name: getattr(HARDWARE, name) for name in ("_nodes", "kinds")}
    HARDWARE._nodes = str(nodes)
    yield HARDWARE
    for name, value in before.items():
        setattr(HARDWARE, name, value)
    HARDWARE._failed.clear()
    HARDWARE._trying.clear()


def grays(clip: Path) -> list[int]:
    """Play a clip; gives the middle gray of each frame."""
    source = open_source(parse_source(f"file:{clip}?pace=max", clip.parent))
    found = []
    while source.grab():
        found.append(int(np.median(source.retrieve().data)))
    source.close()
    return found


@pytest.mark.parametrize("kinds", [KINDS, ("cuda",), ("qsv",), ("drm",), ("none such",)])
def test_without_a_decoder_every_frame_comes_all_the_same(
    kinds: tuple[str, ...], process: Hardware, clip: Path
) -> None:
    """Whatever FFmpeg is asked for and has not got: the clip is decoded in software, whole."""
    expected = [20 * i for i in range(10)]
    process.kinds = kinds
    assert grays(clip) == pytest.approx(expected, abs=2)
    assert grays(clip) == pytest.approx(expected, abs=2)


def test_a_refusal_is_said_once_and_remembered(
    process: Hardware, clip: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that the hardware decoder cannot take is not offered to it again."""
    process.kinds = ("cuda",)
    with caplog.at_level(logging.WARNING):
        grays(clip)
        grays(clip)
    said = [record.message for record in caplog.records if "hardware decoder" in record.message]
    assert len(said) == 1
    assert "decoding in software" in said[0]
    assert not process.wanted(f"file:{clip}?pace=max")


def test_a_file_that_is_no_clip_is_not_held_against_it(process: Hardware, tmp_path: Path) -> None:
    """Where software cannot play it either, the decoder is not to blame."""
    (tmp_path / "broken.mp4").write_bytes(b"no clip" * 100)
    process.kinds = ("cuda",)
    spec = parse_source("file:broken.mp4", tmp_path)
    with pytest.raises(SourceError, match="is not a video that can be played"):
        open_source(spec)
    assert process.wanted(spec.redacted)


def test_it_is_tried_only_where_there_is_a_device(nodes: Path, tmp_path: Path) -> None:
    """Without a render node streams are opened as ever."""
    assert Hardware(str(nodes)).wanted("a")
    assert not Hardware(str(tmp_path / "absent")).wanted("a")
    (nodes / "renderD128").unlink()
    (nodes / "card0").touch()
    assert not Hardware(str(nodes)).wanted("a")


def test_it_is_not_tried_where_the_settings_forbid_it(process: Hardware, clip: Path) -> None:
    """With `decode = "software"` a stream is never offered to it."""
    process.kinds = ("cuda",)
    spec = parse_source(f"file:{clip}?pace=max", clip.parent)
    open_source(spec, SourceContext(decode="software")).close()
    assert not process._failed
    open_source(spec).close()
    assert process._failed


def test_a_decoder_that_gives_nothing_is_doubted_until_a_picture_came(nodes: Path) -> None:
    """A first picture that does not come is blamed on it; later losses are the camera's."""
    known = Hardware(str(nodes))
    assert known.wanted("silent")
    assert known.doubt("silent")
    assert not known.wanted("silent")
    assert known.wanted("good")
    known.works("good")
    assert not known.doubt("good")
    assert known.wanted("good")


def test_a_decoder_that_hangs_is_tried_once(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream given up on before its first picture is decoded in software the next time."""
    monkeypatch.setattr(hw_decode, "PATIENCE_SECONDS", 0.0)
    known = Hardware(str(nodes))
    assert known.wanted("stuck")
    assert not known.wanted("stuck")
    assert known.wanted("another")
