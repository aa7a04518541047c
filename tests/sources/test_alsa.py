"""Microphones: ALSA's own library, with devices of its own that need no sound card."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from edge_agent.core.errors import SourceError
from edge_agent.core.types import Reading
from edge_agent.sources.alsa_pcm import LIBRARY, Microphone
from edge_agent.sources.continuity import Rows
from edge_agent.sources.source import SourceContext, open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.sound_cards import needs_alsa, write_card


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a PCM `mic` that plays a file of 16-bit samples, as fast as it is read."""
    path = tmp_path / "sound.raw"
    write_card(tmp_path / "asound.conf", path)
    monkeypatch.setenv("ALSA_CONFIG_PATH", str(tmp_path / "asound.conf"))
    return path


def opened(text: str) -> Microphone:
    return Microphone(parse_source(text, Path()))


def rows(microphone: Microphone) -> Rows:
    (found,) = microphone.read(1.0)
    assert isinstance(found, Rows)
    return found


@needs_alsa
def test_samples_lie_between_minus_one_and_one_by_channel(card: Path) -> None:
    """What the device gives in 16 bits, in order; two channels where two are wanted."""
    sound = np.arange(-32768, 32768, 2).astype("<i2")
    card.write_bytes(sound.tobytes())
    one = opened("alsa:mic?rate=8000")
    found = rows(one)
    one.close()
    one.close()
    assert found.rate_hz == 8000
    assert found.data.dtype == np.float32
    assert found.data.shape == (3200, 1)
    np.testing.assert_array_equal(found.data[:, 0], sound[:3200] / np.float32(32768))
    two = opened("alsa:mic?rate=8000&channels=2")
    np.testing.assert_array_equal(rows(two).data[:4, 1], sound[1:8:2] / np.float32(32768))
    two.close()


@needs_alsa
def test_an_overrun_is_a_gap_and_a_device_that_is_gone_is_lost(card: Path) -> None:
    """What was missed is said with the next samples; what is unplugged is lost at once."""
    card.write_bytes(b"\0" * 100_000)
    microphone = opened("alsa:mic?rate=8000")
    assert not rows(microphone).gap
    microphone._recover(-errno.EPIPE)
    assert rows(microphone).gap
    assert not rows(microphone).gap
    with pytest.raises(SourceError, match=r"alsa:mic.*: is lost: No such device"):
        microphone._recover(-errno.ENODEV)
    microphone.close()


@needs_alsa
@pytest.mark.parametrize("source", ["alsa:hw:7,0", "alsa:nothing"])
def test_a_device_that_is_not_there_is_one_line(
    card: Path, source: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """ALSA's own words on stderr say nothing more, and are left out."""
    card.write_bytes(b"")
    with pytest.raises(SourceError) as caught:
        opened(source)
    assert str(caught.value) == (
        f"{source}: cannot be opened: No such file or directory; `arecord -L` lists those there are"
    )
    assert capfd.readouterr().err == ""


@needs_alsa
def test_sound_comes_as_it_is_made_to_whoever_shares_it(card: Path) -> None:
    """Through a pipe, as from a card that records: two pipelines hear the same."""
    os.mkfifo(card)
    sound = (np.sin(np.arange(24000) / 9) * 9000).astype("<i2")
    # All at once: the PCM fills up with silence what the pipe does not have yet.
    pipe = os.open(card, os.O_RDWR)
    assert os.write(pipe, sound.tobytes()) == sound.nbytes
    context, spec = SourceContext(), parse_source("alsa:mic?rate=8000", Path())
    sources = [open_source(spec, context) for _ in range(2)]
    heard: list[list[Reading]] = [[], []]
    while sum(len(each.data) for each in heard[1]) < len(sound):
        for source, each in zip(sources, heard, strict=True):
            assert source.grab()
            each.append(source.retrieve())
    os.close(pipe)
    for source in sources:
        source.close()
    whole = [np.concatenate([each.data for each in one])[: len(sound), 0] for one in heard]
    np.testing.assert_array_equal(whole[0], sound / np.float32(32768))
    np.testing.assert_array_equal(whole[0], whole[1])
    first = heard[0][0]
    assert first.rate_hz == 8000
    assert first.times is not None
    np.testing.assert_allclose(np.diff(first.times), 1e9 / 8000, atol=1)


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package to install."""
    from edge_agent.sources import alsa_pcm

    assert LIBRARY == "libasound.so.2"
    monkeypatch.setattr(alsa_pcm, "LIBRARY", "libasound.so.99")
    alsa_pcm._catalog.cache_clear()
    with pytest.raises(SourceError, match=r"needs libasound\.so\.99: apt install libasound2"):
        opened("alsa:default")
    alsa_pcm._catalog.cache_clear()
