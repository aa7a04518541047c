"""The output of quantization: a model folder, and its report as JSON, as a card, and as a picture.

The picture has figures for each engine, and the worst examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.types import Anomaly, Array, Classes, Detections, Findings
from ..inference import drift
from ..models.manifest import load
from . import bars
from .folders import move_to
from .quantize import Report, Row, score_shift

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CARD = "README.md"


def publish(report: Report, place: Path) -> None:
    """Complete the chosen folder and move it to its place, as a whole."""
    folder = report.chosen.folder
    if report.usual is not None:
        drift.save(report.usual, folder)
    (folder / CARD).write_text(card(report), encoding="utf-8")
    load(folder)
    move_to(folder, place)


def card(report: Report) -> str:
    """Return the model's card in Markdown."""
    chosen, target = report.chosen, report.target
    made = (
        f"Eight bits, made of {report.model} by `edge-agent quantize`: {chosen.recipe}, for "
        f"{target.name} ({target.why})."
    )
    by = "of their own" if report.held_out else "(the same)"
    by = by if report.metric is None else "with labels"
    judged = (
        f"Calibrated on {report.calibrated_on} samples, judged on {report.judged_on} "
        f"{by}. Size: {report.float_bytes / 1e6:.2f} MB before, "
        f"{report.quantized_bytes / 1e6:.2f} MB now."
    )
    heading, *rows = table(report)
    lines = [
        f"# {load(chosen.folder).manifest.id}",
        "",
        made,
        "",
        judged,
        "",
        f"| {' | '.join(heading)} |",
        f"|{'---|' * len(heading)}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]
    lines += ["", "`exact` computes each step in float and saturates nowhere; no device runs it."]
    if chosen.recipe.float_nodes:
        lines += [
            "",
            f"Left float: {', '.join(f'`{name}`' for name in chosen.recipe.float_nodes)}.",
        ]
    lines += ["", *(f"* {note}" for note in report.notes)] if report.notes else []
    return "\n".join(lines) + "\n"


def table(report: Report) -> list[list[str]]:
    """Return the report as rows: a heading, then by engine the float network and the other."""
    metric = [] if report.metric is None else [report.metric]
    cells = [["engine", "network", "agreement", *metric, "ms", "memory, MB"]]
    for before, after in zip(report.floats, report.quantized, strict=True):
        for row, network in ((before, "float"), (after, "eight bits")):
            scored, cost = row.scored, row.cost
            truth = [] if scored.metric is None else [f"{scored.metric:.3f}"]
            took = ["", ""] if cost is None else [f"{cost.infer_ms:.2f}", f"{cost.memory_mb:.0f}"]
            cells.append([row.engine, network, f"{scored.agreement:.1%}", *truth, *took])
    return cells


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as one JSON object."""
    return {
        "model": report.model,
        "passed": report.passed,
        "drop": _number(report.drop),
        "max_drop": report.max_drop,
        "metric": report.metric or "agreement",
        "target": report.target.name,
        "why": report.target.why,
        "way": str(report.chosen.recipe),
        "float_operators": list(report.chosen.recipe.float_nodes),
        "calibrated_on": report.calibrated_on,
        "judged_on": report.judged_on,
        "held_out": report.held_out,
        "bytes": {"float": report.float_bytes, "int8": report.quantized_bytes},
        "engines": {
            before.engine: {
                "float": _row(before),
                "int8": _row(after) | {"score_shift": score_shift(before, after)},
            }
            for before, after in zip(report.floats, report.quantized, strict=True)
        },
        "tried": [
            {
                "way": str(each.recipe),
                "drop": _number(each.drop),
                "agreement": {
                    name: _number(scored.agreement) for name, scored in each.scores.items()
                },
                "infer_ms": {name: _number(cost.infer_ms) for name, cost in each.costs.items()},
            }
            for each in report.candidates
        ],
        "worst": [
            {"sample": sample.file or sample.seq, "agreement": _number(share)}
            for sample, _, _, share in report.worst
        ],
        "notes": report.notes,
    }


def _row(row: Row) -> dict[str, Any]:
    said: dict[str, Any] = {"agreement": _number(row.scored.agreement)}
    if row.scored.metric is not None:
        said["metric"] = _number(row.scored.metric)
    if row.cost is not None:
        said["infer_ms"] = _number(row.cost.infer_ms)
        said["memory_mb"] = _number(row.cost.memory_mb)
    return said


def _number(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None


# As a picture

_EXAMPLE_INCHES = 2.6
_MOST_BOXES = 60


def draw(report: Report, path: Path) -> None:
    """Write the picture as a PNG."""
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
