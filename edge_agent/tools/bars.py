"""Figures as a picture: horizontal bars, drawn with matplotlib (extras `bench` and `tools`).

The colors are safe for red-green color blindness (Okabe and Ito, 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import AgentError, UsageError
from ..core.files import output_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, SKY, ORANGE, VERMILION = "#0072b2", "#56b4e9", "#e69f00", "#d55e00"
GREEN, YELLOW, PURPLE, GRAY = "#009e73", "#f0e442", "#cc79a7", "#a0a0a0"
INK = "#1e1e1e"
_WIDTH = 1280
_DPI = 100


def check_installed() -> None:
    """Check that pictures can be drawn, before anything is measured."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            "--picture needs matplotlib, which is not installed; pip install matplotlib"
        )


class Bar(NamedTuple):
    """A row: parts one after another, and a line from the least to the greatest value."""

    name: str
    parts: Sequence[tuple[str, str, float]]
    """Legend (may be empty), color, and length of each part."""
    words: str
    values: Sequence[float]
    strong: bool = False


class Chart(NamedTuple):
    """Bars on one scale, the first on top."""

    title: str
    bars: Sequence[Bar]
    below: str = ""


def spread_bar(name: str, found: Mapping[str, float], words: str, *, strong: bool = False) -> Bar:
    """Return a bar with the length of a `median`, and a line from `min` to `max`."""
    parts = [("", BLUE if strong else GRAY, found["median"])]
    return Bar(name, parts, words, [found["min"], found["max"]], strong)


def draw(charts: Sequence[Chart], path: Path) -> None:
    """Write charts, one below another, as a PNG.

    Raises:
        AgentError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [len(chart.bars) for chart in charts]
    height = sum(count * 0.32 + 1.0 for count in rows)
    figure = Figure(figsize=(_WIDTH / _DPI, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    legend: dict[str, Any] = {}
    for plot, chart in zip(axes, charts, strict=True):
        plot.invert_yaxis()
        plot.spines[["top", "right"]].set_visible(False)
        plot.grid(axis="x", color="#d7d7d7")
        plot.set_axisbelow(True)
        plot.set_title(chart.title, loc="left")
        plot.set_xlabel(chart.below)
        for row, bar in enumerate(chart.bars):
            begun = 0.0
            for what, color, length in bar.parts:
                plot.barh(row, length, left=begun, color=color)
                begun += length
                if what:
                    legend.setdefault(what, Patch(color=color, label=what))
            _label(plot, row, bar)
        plot.set_yticks(range(len(chart.bars)), [bar.name for bar in chart.bars])
        plot.margins(x=0.16)
        plot.set_xlim(left=0)
        for tick, bar in zip(plot.get_yticklabels(), chart.bars, strict=True):
            tick.set_fontweight("bold" if bar.strong else "normal")
    if legend:
        figure.legend(handles=list(legend.values()), loc="outside lower left", ncols=len(legend))
    save(figure, path)


def _label(plot: Axes, row: int, bar: Bar) -> None:
    """Draw the line from the least to the greatest value of a row, and its text after it."""
    least, most = min(bar.values), max(bar.values)
    plot.plot([least, most], [row, row], color=INK, linewidth=1, marker="|", markersize=6)
    plot.annotate(
        bar.words,
        (most, row),
        xytext=(8, 0),
        textcoords="offset points",
        verticalalignment="center",
        fontweight="bold" if bar.strong else "normal",
    )


def save(figure: Any, path: Path) -> None:
    """Write the figure as a PNG."""
    try:
        with output_file(path) as file:
            figure.savefig(file, format="png")
    except OSError as problem:
        raise AgentError(f"{path}: cannot be written: {problem.strerror}") from None
