"""The trace of a sensor while a model is tried on it: levels by channel, scores over time.

Drawn as lines for a terminal here, and as a picture in `signal_plot`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.text import printable
from ..core.types import Anomaly, Array, Classes, Findings, Outcome, Sample, Values

if TYPE_CHECKING:
    from rich.text import Text

HISTORY = 200
"""Number of windows whose levels and scores are kept."""
PIECES = 8
"""Pieces of a window's new rows whose lowest and highest samples are kept for the plot."""
MOST_CHANNELS = 6
"""Most channels shown."""
BARS = "▁▂▃▄▅▆▇█"
NAME_WIDTH = 10


class SignalTrace:
    """The last windows of a sensor, and the findings in them."""

    def __init__(self, first: Sample, names: Sequence[str], hop: int, threshold: float) -> None:
        rows = _rows(first.data)
        count = rows.shape[1]
        self._hop = min(hop, len(rows))
        self._split = min(PIECES, self._hop)
        known = [printable(name) for name in names]
        self.names = (known if len(known) == count else [str(i) for i in range(count)])[
            :MOST_CHANNELS
        ]
        self.more = count - len(self.names)
        """Number of channels not shown."""
        self.label = "score"
        self.threshold: float | None = threshold if 0 < threshold < float("inf") else None
        self.pieces: deque[Array] = deque(maxlen=HISTORY * self._split)
        """(2, channels) lowest and highest values of each piece; NaN where data is missing."""
        self.scores: deque[float] = deque(maxlen=HISTORY)
        self.flags: deque[bool] = deque(maxlen=HISTORY)
        """Whether each window was anomalous."""
        self._levels: deque[Array] = deque(maxlen=HISTORY)
        """Root mean squares by channel, after subtracting the mean."""
        self._low = self._high = np.zeros(count)

    def add(self, sample: Sample, outcome: Outcome) -> None:
        """Add a window and the findings in it."""
        rows = _rows(sample.data)
        self._low, self._high = rows.min(axis=0), rows.max(axis=0)
        self._levels.append(rows.std(axis=0))
        fresh = np.array_split(rows[-self._hop :], self._split)
        pieces = [np.array([piece.min(axis=0), piece.max(axis=0)]) for piece in fresh]
        if not sample.follows and self.pieces:
            pieces[0] = np.full_like(pieces[0], np.nan)
        self.pieces.extend(pieces)
        self.label, score, threshold = _score(outcome.findings)
        if threshold is not None:
            self.threshold = threshold
        self.scores.append(score)
        found = outcome.findings
        self.flags.append(isinstance(found, Anomaly) and found.anomalous)

    @property
    def height(self) -> int:
        """Number of lines that `lines` returns."""
        return len(self.names) + 2

    def lines(self, width: int) -> list[Text]:
        """Return levels and scores as `height` lines of at most *width* columns."""
        from rich.text import Text

        room = max(8, width - NAME_WIDTH - 40)
        lines = []
        for channel, name in enumerate(self.names):
            levels = [float(level[channel]) for level in self._levels]
            line = Text(f"{name:<{NAME_WIDTH}.{NAME_WIDTH}} ", no_wrap=True)
            line.append(sparkline(levels, room), "cyan")
            if levels:
                low, high = self._low[channel], self._high[channel]
                line.append(f" ±{levels[-1]:.3g}  {low:.3g} to {high:.3g}")
            lines.append(line)
        line = Text(f"{self.label:<{NAME_WIDTH}.{NAME_WIDTH}} ", no_wrap=True)
        bars = sparkline(self.scores, room, self.threshold)
        flags = list(self.flags)[-len(bars.strip()) :] if bars.strip() else []
        line.append(" " * (len(bars) - len(flags)))
        for bar, anomalous in zip(bars[len(bars) - len(flags) :], flags, strict=True):
            line.append(bar, "bold red" if anomalous else "green")
        if self.scores:
            line.append(f" {self.scores[-1]:.4g}")
            if self.threshold is not None:
                line.append(f", {BARS[3]} is the threshold {self.threshold:.4g}")
        lines.append(line)
        lines.append(Text(f"and {self.more} more channels" if self.more else "", "dim"))
        return lines


def sparkline(
    values: Sequence[float] | deque[float], width: int, middle: float | None = None
) -> str:
    """Return numbers as bars, the last at the right.

    Args:
        values: oldest first.
        width: columns of the line.
        middle: values above it get one of the upper four bars, whatever the scale.
    """
    shown = list(values)[-width:]
    if not shown:
        return " " * width
    low, high = min(0.0, *shown), max(shown)
    bars = []
    for value in shown:
        if middle is None or middle <= low:
            share = (value - low) / max(high - low, 1e-12)
            place = min(7, int(share * 8))
        elif value <= middle:
            place = min(3, int((value - low) / (middle - low) * 4))
        else:
            place = 4 + min(3, int((value - middle) / max(high - middle, 1e-12) * 4))
        bars.append(BARS[place])
    return "".join(bars).rjust(width)


def _rows(data: Array) -> Array:
    """Return a window as (rows, channels); other ready inputs are one channel."""
    return data if data.ndim == 2 else data.reshape(-1, 1)


def _score(found: Findings) -> tuple[str, float, float | None]:
    """Return what to show over time: its name, its value, and the threshold."""
    match found:
        case Anomaly():
            return "score", found.score, found.threshold
        case Classes() if found.labels:
            return printable(found.labels[0]), float(found.scores[0]), None
        case Values() if found.values:
            name, value = next(iter(found.values.items()))
            return printable(name), float(value), None
        case _:
            return "score", 0.0, None
