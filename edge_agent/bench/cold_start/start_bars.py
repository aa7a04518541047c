"""Where the time to the first result goes, as a picture: a bar for each way to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...tools import bars
from .start_figures import ColdStartReport
from .starts import AGENT, KINDS, WHOLE

# Parts of a bar, in order: what the legend says, color, steps of script and agent.
PARTS: Sequence[tuple[str, str, frozenset[str]]] = (
    ("start Python", bars.BLUE, frozenset({"python", "exec"})),
    ("settings", bars.SKY, frozenset({"settings"})),
    ("imports", bars.ORANGE, frozenset({"imports"})),
    ("model", bars.VERMILION, frozenset({"model", "read", "build"})),
    ("first frame", bars.GREEN, frozenset({"clip", "first_frame"})),
    ("inference", bars.YELLOW, frozenset({"infer", "first_inference"})),
    ("connect, publish", bars.PURPLE, frozenset({"publish"})),
    ("other", bars.GRAY, frozenset()),
)


def draw(reports: Sequence[ColdStartReport], path: Path) -> None:
    """Write the picture, PNG.

    Raises:
        AgentError: the file cannot be written.
    """
    figure, plots = bars.plots([len(report.setup.variants) for report in reports])
    for plot, report in zip(plots, reports, strict=True):
        plot.set_title(report.title, loc="left")
        for row, variant in enumerate(report.setup.variants):
            run = report.middle(variant)
            begun = 0.0
            for (name, color, _), took in zip(PARTS, parts(run.steps, run.ms), strict=True):
                plot.barh(row, took, left=begun, color=color, label=name if row == 0 else None)
                begun += took
            values = [each.ms for each in report.runs[variant]]
            bars.label(plot, row, f"{run.ms:.0f} ms", values, strong=variant in KINDS.values())
        bars.name_rows(plot, report.setup.variants, AGENT)
    plots[-1].set_xlabel(
        "ms; median run, line from least to most; the agent's steps overlap and are shortened alike"
    )
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower left", ncols=len(PARTS))
    bars.save(figure, path)


def parts(steps: Mapping[str, float], whole: float) -> list[float]:
    """Return the length of each of `PARTS`, which add up to the whole.

    Steps that ran at the same time are more than the whole together; then all are shortened alike.
    """
    taken = [sum(steps.get(step, 0.0) for step in names) for _, _, names in PARTS]
    known = {WHOLE} | {step for _, _, names in PARTS for step in names}
    taken[-1] = sum(took for step, took in steps.items() if step not in known)
    total = sum(taken)
    if total > whole:
        return [took * whole / total for took in taken]
    taken[-1] += whole - total
    return taken
