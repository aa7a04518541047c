"""The figures of `bench pipeline` as a picture: frames a second, and where a frame's time goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...tools import bars
from .pipeline_figures import AGENT, ENGINE, HANDMADE, PLAIN, PipelineReport, Turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = {
    "decode": bars.BLUE,
    "preprocess": bars.SKY,
    "infer": bars.VERMILION,
    "postprocess": bars.GREEN,
    "publish": bars.PURPLE,
}
NAMES = (PLAIN, HANDMADE, AGENT, ENGINE)


def draw(reports: Sequence[PipelineReport], path: Path) -> None:
    """Write the picture, PNG.

    Raises:
        AgentError: the file cannot be written.
    """
    rows = [count for report in reports for count in (len(report.turns) + len(report.scaling), 1)]
    figure, plots = bars.plots(rows)
    for report, fps, steps in zip(reports, plots[::2], plots[1::2], strict=True):
        _frames_a_second(fps, report)
        _one_frame(steps, report)
    bars.save(figure, path)


def _frames_a_second(plot: Axes, report: PipelineReport) -> None:
    where = f"{report.engine}, {report.lanes} lane(s) of {report.threads} thread(s)"
    plot.set_title(f"{report.model} on {where}: frames a second", loc="left")
    rows: list[tuple[str, list[Turn]]] = [
        (name, report.turns[name]) for name in NAMES if name in report.turns
    ]
    rows += [
        (f"{count} pipeline{'s' if count > 1 else ''}", [many for _, many in rounds])
        for count, rounds in sorted(report.scaling.items())
    ]
    for row, (name, turns) in enumerate(rows):
        values = [turn.fps for turn in turns]
        ours = name not in {PLAIN, HANDMADE, ENGINE}
        plot.barh(row, statistics.median(values), color=bars.BLUE if ours else bars.GRAY)
        cpu = statistics.median(turn.cpu_ms for turn in turns)
        words = f"{statistics.median(values):.1f}" + (f", cpu {cpu:.2f} ms" if cpu else "")
        bars.label(plot, row, words, values, strong=ours)
    bars.name_rows(plot, [name for name, _ in rows], AGENT)


def _one_frame(plot: Axes, report: PipelineReport) -> None:
    taken = report.step_ms()
    begun = 0.0
    for name, color in STEPS.items():
        text = f"{name} {taken[name]:.2f}"
        plot.barh(0, taken[name], left=begun, color=color, label=text)
        begun += taken[name]
    bars.label(plot, 0, f"{begun:.2f} ms", [begun], strong=False)
    bars.name_rows(plot, ["one frame"], "")
    plot.legend(loc="upper center", bbox_to_anchor=(0.5, -0.4), ncols=len(STEPS), frameon=False)
    notes = []
    if report.carried is not None:
        found = report.carried
        notes.append(
            f"{found.streams} streams of {found.rate:g} results a second with p99 of the age "
            f"within {found.bound_ms:g} ms"
        )
    if report.idle is not None:
        notes.append(
            f"an idle pipeline costs {report.idle.cpu_percent:.2f} % of a core "
            f"and {report.idle.memory_mb:.2f} MB"
        )
    if notes:
        plot.set_title("; ".join(notes), loc="left", fontsize="medium")
