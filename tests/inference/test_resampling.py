"""Rows brought to another rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.core.errors import ModelError
from edge_agent.inference.preprocess.resampling import Resampler


def tone(hertz: float, rate: float, seconds: float = 0.5) -> np.ndarray:
    t = np.arange(int(rate * seconds)) / rate
    return np.sin(2 * np.pi * hertz * t).astype(np.float32)[:, None]


@pytest.mark.parametrize(
    ("rate", "hertz"), [(44100, 440), (44100, 6000), (48000, 6500), (8000, 3000)]
)
def test_a_tone_keeps_its_size_and_place(rate: int, hertz: int) -> None:
    """A tone that both rates can carry comes out as if it had been taken at the new rate."""
    made, _ = Resampler(16000, rate).push(tone(hertz, rate), None)
    there = tone(hertz, 16000)[: len(made)]
    inner = slice(50, len(made) - 50)
    assert len(made) > 7500
    assert np.abs(made[inner] - there[inner]).max() < 0.01


def test_what_the_new_rate_cannot_carry_is_taken_out() -> None:
    """A tone above half the new rate is 40 dB down and does not come back as another one."""
    made, _ = Resampler(16000, 44100).push(tone(10000, 44100), None)
    assert np.abs(made[50:-50]).max() < 0.01


@settings(deadline=None)
@given(
    pieces=st.lists(st.integers(0, 700), min_size=1, max_size=12),
    rate=st.sampled_from([8000.0, 11025.0, 44100.0]),
)
def test_pieces_do_not_matter(pieces: list[int], rate: float) -> None:
    """However the rows come, the same rows leave."""
    whole = np.random.default_rng(0).standard_normal((sum(pieces), 2)).astype(np.float32)
    expected, _ = Resampler(16000, rate).push(whole, None)
    used, found, start = Resampler(16000, rate), [], 0
    for length in pieces:
        found.append(used.push(whole[start : start + length], None)[0])
        start += length
    joined = np.concatenate(found)
    assert joined.shape == expected.shape
    assert np.allclose(joined, expected, atol=1e-6)


def test_irregular_rows_are_joined_by_lines() -> None:
    """Rows with times of their own give a row at each step from the first one on, in pieces too."""
    times = np.array([0, 3, 10, 11, 25, 40, 41]) / 1e3 + 5
    rows = (1e3 * (times[:, None] - 5)).astype(np.float32)
    used = Resampler(100, None)
    pieces = [
        used.push(rows[:2], times[:2]),
        used.push(rows[2:3], times[2:3]),
        used.push(rows[3:], times[3:]),
    ]
    made = np.concatenate([piece for piece, _ in pieces])
    assert made[:, 0].tolist() == pytest.approx([0, 10, 20, 30, 40])
    lasts = (times[1], times[2], times[-1])
    at = np.concatenate([last + after for last, (_, after) in zip(lasts, pieces, strict=True)])
    assert at.tolist() == pytest.approx([5 + n / 100 for n in range(5)])


def test_without_times_and_rate_it_cannot_be_done() -> None:
    """The mend is named."""
    with pytest.raises(ModelError, match="give the rate that it was recorded at"):
        Resampler(100, None).push(np.zeros((3, 1), np.float32), None)


@pytest.mark.parametrize("rate", [8000.0, 11025.0, 44100.0, 48000.0])
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_second_stays_a_second(rate: float, pieces: int) -> None:
    """The end of a recording is not lost to the filter: a window of a second had no result."""
    used, second = Resampler(16000, rate), tone(440, rate, 1.0)
    found = [used.push(piece, None)[0] for piece in np.array_split(second, pieces)]
    last = used.finish()
    assert last is not None
    whole = np.concatenate([*found, last])
    assert len(whole) == 16000
    assert np.abs(whole[50:-50] - tone(440, 16000, 1.0)[50:-50]).max() < 0.01


def test_a_constant_stays_constant_up_to_both_ends() -> None:
    """A sensor at rest begins and ends where it is, not at 0."""
    used = Resampler(50, 100)
    made, _ = used.push(np.full((400, 1), 9.81), None)
    last = used.finish()
    assert last is not None
    assert np.concatenate([made, last])[:, 0] == pytest.approx(np.full(200, 9.81))


def test_what_needs_no_end_has_none() -> None:
    """Rows of the wanted rate, rows with times, and none at all owe nothing."""
    for from_hz, times in ((100.0, None), (None, np.arange(5) / 100), (50.0, None)):
        used = Resampler(100, from_hz)
        rows = np.ones((0 if from_hz == 50 else 5, 1), np.float32)
        used.push(rows, times)
        assert used.finish() is None
