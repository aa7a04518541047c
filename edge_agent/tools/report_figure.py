"""The report of a quantization as a picture: figures for each engine, and the worst examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.types import Anomaly, Array, Classes, Detections, Findings
from . import bars
from .quantize import Report, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXAMPLE_INCHES = 2.6
_MOST_BOXES = 60


def draw(report: Report, path: Path) -> None:
    """Write the picture, PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pictures = [each for each in report.worst if each[0].picture]
    height = 3.2 + _EXAMPLE_INCHES * len(pictures)
    figure = Figure(figsize=(10, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        1 + len(pictures), 2, height_ratios=[3.2, *[_EXAMPLE_INCHES] * len(pictures)]
    )
    figure.suptitle(
        f"{report.model} → {report.chosen.recipe}, for {report.target.name}: "
        f"{report.drop:.1%} lost of {report.max_drop:.1%} allowed"
    )
    _agreement(figure.add_subplot(grid[0, 0]), report)
    _latency(figure.add_subplot(grid[0, 1]), report)
    for number, (sample, expected, found, share) in enumerate(pictures, 1):
        for column, (title, findings) in enumerate(
            (("float", expected), (f"eight bits, agrees in {share:.0%}", found))
        ):
            plot = figure.add_subplot(grid[number, column])
            _example(plot, sample.data, findings)
            plot.set_title(f"{sample.file or sample.seq}: {title}", fontsize=8)
    bars.save(figure, path)


def _agreement(plot: Axes, report: Report) -> None:
    metric = report.metric or "agreement"

    def value(row: Row) -> float:
        return row.scored.agreement if row.scored.metric is None else row.scored.metric

    _pairs(plot, report, metric, [(value(a), value(b)) for a, b in _rows(report)])
    plot.set_xlim(0, 1.2)


def _latency(plot: Axes, report: Report) -> None:
    timed = [(a, b) for a, b in _rows(report) if a.cost is not None and b.cost is not None]
    values = [(a.cost.infer_ms, b.cost.infer_ms) for a, b in timed if a.cost and b.cost]
    _pairs(plot, report, "ms for an inference", values, len(timed))


def _rows(report: Report) -> list[tuple[Row, Row]]:
    return list(zip(report.floats, report.quantized, strict=True))


def _pairs(
    plot: Axes,
    report: Report,
    title: str,
    values: Sequence[tuple[float, float]],
    count: int | None = None,
) -> None:
    """Draw two bars for each engine."""
    names = [row.engine for row in report.floats][:count]
    for place, pair in enumerate(values):
        for offset, (number, color) in enumerate(zip(pair, (bars.GRAY, bars.BLUE), strict=True)):
            row = place + 0.4 * offset
            plot.barh(row, number, 0.36, color=color)
            plot.annotate(
                f"{number:.3g}",
                (number, row),
                xytext=(4, 0),
                textcoords="offset points",
                verticalalignment="center",
                fontsize=8,
            )
    plot.set_yticks([place + 0.2 for place in range(len(names))], names)
    plot.invert_yaxis()
    plot.margins(x=0.15)
    plot.spines[["top", "right"]].set_visible(False)
    plot.set_title(f"{title} (gray: float, blue: eight bits)", fontsize=9)


def _example(plot: Axes, picture: Array, found: Findings) -> None:
    plot.imshow(picture[:, :, ::-1])
    plot.axis("off")
    box: Any
    match found:
        case Detections():
            for box, label, score in list(
                zip(found.boxes, found.labels, found.scores, strict=True)
            )[:_MOST_BOXES]:
                x1, y1, x2, y2 = (float(side) for side in box)
                plot.plot([x1, x2, x2, x1, x1], [y1, y1, y2, y2, y1], color=bars.ORANGE, lw=1.5)
                _note(
                    plot, (x1, y1), f"{label} {score:.2f}", bars.VERMILION, fontsize=6, va="bottom"
                )
        case Classes():
            text = "\n".join(
                f"{label} {score:.2f}"
                for label, score in list(zip(found.labels, found.scores, strict=True))[:3]
            )
            _note(plot, (4, 4), text, bars.INK)
        case Anomaly():
            _note(plot, (4, 4), f"score {found.score:.3g}", bars.INK)


def _note(
    plot: Axes, at: tuple[float, float], text: str, color: str, fontsize: int = 7, va: str = "top"
) -> None:
    plot.text(*at, text, fontsize=fontsize, color="white", backgroundcolor=color, va=va)
