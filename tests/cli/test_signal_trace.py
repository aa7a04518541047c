"""What `edge-agent try` shows of a sensor."""

from __future__ import annotations

import numpy as np

from edge_agent.cli.signal_plot import plot, png
from edge_agent.cli.signal_trace import SignalTrace, sparkline
from edge_agent.core.types import Anomaly, Array, Classes, Findings, Outcome, Sample, Timing


def sample(seq: int, data: Array, *, follows: bool = True) -> Sample:
    return Sample(data.astype(np.float32), seq, 0, 0.0, picture=False, follows=follows)


def outcome(found: Findings) -> Outcome:
    return Outcome("m@1", "none", found, Timing(0.0, 0.0, 0.0))


def trace_of(scores: list[float], channels: int = 2, *, gap: int = -1) -> SignalTrace:
    """Show windows of a sine each whose amplitude is the score."""
    wave = np.sin(np.arange(64))[:, None] * np.ones(channels)
    made = SignalTrace(sample(0, wave), ["ax", "ay"], 32, 2.0)
    for seq, score in enumerate(scores):
        data = wave * score
        made.add(sample(seq, data, follows=seq != gap), outcome(Anomaly(score, 2.0)))
    return made


def test_scores_above_the_threshold_have_the_upper_bars() -> None:
    """Whatever the scale, the threshold lies in the middle; without one, bars are in proportion."""
    assert sparkline([0.1, 1.9, 2.1, 50.0], 6, middle=2.0) == "  ▁▄▅█"
    assert sparkline([0.1, 1.9, 2.1, 2.0], 4, middle=2.0) == "▁▄█▄"
    assert sparkline([0.0, 1.0, 2.0, 4.0], 3) == "▃▅█"
    assert sparkline([], 3) == "   "
    assert sparkline([-1.0, 0.0], 2) == "▁█"


def test_levels_and_scores_are_lines_that_do_not_move() -> None:
    """A line for each channel with its level and range, and one for the score."""
    empty = trace_of([])
    full = trace_of([1.0, 1.0, 4.0])
    for trace in (empty, full):
        lines = [line.plain for line in trace.lines(76)]
        assert len(lines) == trace.height == 4
        assert all(len(line) <= 76 for line in lines)
    assert lines[0].startswith("ax  ")
    assert " ±2.8" in lines[0]
    assert "-4 to 4" in lines[0]
    assert lines[2].startswith("score")
    assert "▂▂█ 4, ▄ is the threshold 2" in lines[2].replace("▃▃", "▂▂")
    spans = full.lines(76)[2].spans
    assert [str(span.style) for span in spans] == ["green", "green", "bold red"]


def test_many_channels_are_cut_and_counted() -> None:
    """Six are shown; the rest is said."""
    trace = trace_of([1.0], channels=9)
    assert trace.names == ["0", "1", "2", "3", "4", "5"]
    assert trace.lines(60)[-1].plain == "and 3 more channels"


def test_a_class_is_shown_by_its_name() -> None:
    """Its score is what is followed."""
    trace = trace_of([])
    trace.add(sample(0, np.zeros((64, 2))), outcome(Classes(("still", "shake"), (0.8, 0.2))))
    assert trace.lines(60)[2].plain.startswith("still")


def test_the_plot_shows_samples_scores_and_the_threshold() -> None:
    """What came is blue, the threshold and what lies above it red; a gap is white."""

    def red_below(picture: Array, top: int) -> int:
        part = picture[top:].astype(int)
        return int(((part[:, :, 2] > 180) & (part[:, :, 0] < 90)).sum())

    quiet = plot(trace_of([1.0] * 50), "t")
    loud = plot(trace_of([1.0] * 40 + [5.0] * 10), "t")
    assert quiet.shape == loud.shape == (370, 900, 3)
    assert red_below(loud, 250) > red_below(quiet, 250) + 100
    first = trace_of([1.0] * 50, gap=25)
    assert np.isnan(np.array(first.pieces)).any(axis=(1, 2)).sum() == 1
    assert png(plot(trace_of([]), "nothing yet")).startswith(b"\x89PNG")
