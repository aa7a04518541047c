"""Figures as a picture: horizontal bars, drawn by matplotlib (extras `bench` and `tools`).

The colors can be told apart by people who do not see red and green (Okabe and Ito, 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def plots(rows: Sequence[int]) -> tuple[Any, list[Axes]]:
    """Return a figure and one plot below the other, for this many bars each, first bar on top."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = sum(count * 0.32 + 1.0 for count in rows)
    figure = Figure(figsize=(_WIDTH / _DPI, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    for plot in axes:
        plot.invert_yaxis()
        plot.spines[["top", "right"]].set_visible(False)
        plot.grid(axis="x", color="#d7d7d7")
        plot.set_axisbelow(True)
    return figure, list(axes)


def label(plot: Axes, row: int, text: str, values: Sequence[float], *, strong: bool) -> None:
    """Draw a line from the least to the most value of a row, and its text behind it."""
    least, most = min(values), max(values)
    plot.plot([least, most], [row, row], color=INK, linewidth=1, marker="|", markersize=6)
    plot.annotate(
        text,
        (most, row),
        xytext=(8, 0),
        textcoords="offset points",
        verticalalignment="center",
        fontweight="bold" if strong else "normal",
    )


def name_rows(plot: Axes, names: Sequence[str], strong: str) -> None:
    """Name the rows on the left, one of them in bold."""
    plot.set_yticks(range(len(names)), names)
    plot.margins(x=0.16)
    plot.set_xlim(left=0)
    for tick, name in zip(plot.get_yticklabels(), names, strict=True):
        tick.set_fontweight("bold" if name == strong else "normal")


def save(figure: Any, path: Path) -> None:
    """Write the picture, PNG."""
    try:
        with output_file(path) as file:
            figure.savefig(file, format="png")
    except OSError as problem:
        raise AgentError(f"{path}: cannot be written: {problem.strerror}") from None
