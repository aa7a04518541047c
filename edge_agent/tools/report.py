"""What quantization leaves: a complete model folder, and its report as JSON and as a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..inference import drift
from ..models.manifest import load
from .folders import move_to
from .quantize import Report, Row

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
    """Return the model's card, Markdown."""
    chosen, target = report.chosen, report.target
    made = (
        f"Eight bits, made of {report.model} by `edge-agent quantize`: {chosen.recipe}, for "
        f"{target.name} ({target.why})."
    )
    judged = (
        f"Calibrated on {report.calibrated_on} samples, judged on {report.judged_on} "
        f"{_judged_by(report)}. Size: {report.float_bytes / 1e6:.2f} MB before, "
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


def _judged_by(report: Report) -> str:
    if report.metric is not None:
        return "with labels"
    return "of their own" if report.held_out else "(the same)"


def table(report: Report) -> list[list[str]]:
    """Return the report as cells: a heading, then by engine the float network and the other."""
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
            before.engine: {"float": _row(before), "int8": _row(after)}
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
