"""Where the time goes, as a picture: a bar for each way to the first result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import AgentError
from .figures import Report
from .starts import AGENT, VARIANTS, WHOLE

# Parts of a bar, in order: what the legend says, colour (blue, green, red), steps of script and
# agent. The colours can be told apart by those who do not see red and green (Okabe and Ito 2008).
PARTS: Sequence[tuple[str, tuple[int, int, int], frozenset[str]]] = (
    ("start Python", (178, 114, 0), frozenset({"python", "exec"})),
    ("settings", (233, 180, 86), frozenset({"settings"})),
    ("imports", (0, 159, 230), frozenset({"imports"})),
    ("model", (0, 94, 213), frozenset({"model", "read", "build"})),
    ("first frame", (115, 158, 0), frozenset({"clip", "first_frame"})),
    ("inference", (66, 228, 240), frozenset({"infer", "first_inference"})),
    ("connect, publish", (167, 121, 204), frozenset({"publish"})),
    ("other", (160, 160, 160), frozenset()),
)
WIDTH, LEFT, RIGHT, MARGIN = 1280, 190, 200, 20
BAR, STEP, TITLE = 22, 32, 40
INK = (30, 30, 30)
FAINT = (215, 215, 215)


def draw(reports: Sequence[Report], path: Path) -> None:
    """Write the picture, PNG.

    Raises:
        AgentError: the file cannot be written.

    """
    import cv2

    block = TITLE + STEP * len(VARIANTS) + 10
    height = MARGIN + block * len(reports) + 110
    canvas = np.full((height, WIDTH, 3), 255, np.uint8)
    most = max(run.ms for report in reports for name in VARIANTS for run in report.runs[name])
    scale = (WIDTH - LEFT - RIGHT) / most
    bottom = MARGIN + block * len(reports)
    _axis(canvas, scale, most, bottom)
    for number, report in enumerate(reports):
        _model(canvas, report, scale, MARGIN + block * number)
    _legend(canvas, bottom + 50)
    good, data = cv2.imencode(".png", canvas)
    if not good:
        raise AgentError(f"{path}: the picture cannot be encoded as PNG")
    path.write_bytes(data.tobytes())


def parts(steps: Mapping[str, float], whole: float) -> list[float]:
    """Give the length of each of `PARTS`, which add up to the whole.

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


def _axis(canvas: Any, scale: float, most: float, bottom: int) -> None:
    """Draw lines at round times."""
    import cv2

    tick = next(
        unit * power for power in (1, 10, 100, 1000, 10_000) for unit in (1, 2, 5)
        if most / (unit * power) <= 10
    )  # fmt: skip
    for number in range(int(most / tick) + 1):
        x = LEFT + round(number * tick * scale)
        cv2.line(canvas, (x, MARGIN), (x, bottom), FAINT, 1)
        write(canvas, f"{number * tick}", x, bottom + 18, align=0.5)
    write(canvas, "ms", WIDTH - RIGHT + 20, bottom + 18)


def _model(canvas: Any, report: Report, scale: float, top: int) -> None:
    """Draw a model's bars below its name."""
    import cv2

    write(canvas, report.title, MARGIN, top + 24, size=0.6)
    for row, variant in enumerate(VARIANTS):
        y = top + TITLE + STEP * row
        middle = y + BAR // 2
        run = report.middle(variant)
        write(canvas, variant, LEFT - 10, middle + 5, align=1.0, strong=variant == AGENT)
        begun = 0.0
        for (_, color, _), took in zip(PARTS, parts(run.steps, run.ms), strict=True):
            corners = (
                (LEFT + round(begun * scale), y),
                (
                    LEFT + round((begun + took) * scale) - 1,
                    y + BAR,
                ),
            )
            if corners[1][0] >= corners[0][0]:
                cv2.rectangle(canvas, *corners, color, cv2.FILLED)
            begun += took
        taken = [run.ms for run in report.runs[variant]]
        ends = [LEFT + round(value * scale) for value in (min(taken), max(taken))]
        cv2.line(canvas, (ends[0], middle), (ends[1], middle), INK, 1)
        for x in ends:
            cv2.line(canvas, (x, middle - 4), (x, middle + 4), INK, 1)
        write(canvas, f"{run.ms:.0f} ms", ends[1] + 10, middle + 5, strong=variant == AGENT)


def _legend(canvas: Any, top: int) -> None:
    import cv2

    x = MARGIN
    for name, color, _ in PARTS:
        cv2.rectangle(canvas, (x, top - 12), (x + 14, top + 2), color, cv2.FILLED)
        x = write(canvas, name, x + 20, top) + 24
    words = "median run, line from least to most; the agent's steps overlap and are shortened alike"
    write(canvas, words, MARGIN, top + 32)


def write(
    canvas: Any,
    text: str,
    x: int,
    y: int,
    *,
    size: float = 0.48,
    align: float = 0.0,
    strong: bool = False,
) -> int:
    """Write a line; gives where it ends.

    Args:
        canvas: to write on.
        text: of ASCII characters, which OpenCV's own fonts have.
        x: its place, from the left.
        y: its base line, from the top.
        size: of the letters.
        align: 0 puts its start there, 0.5 its middle, 1 its end.
        strong: thicker.

    """
    import cv2

    weight = 2 if strong else 1
    (width, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, weight)
    x -= round(width * align)
    cv2.putText(canvas, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size, INK, weight, cv2.LINE_AA)
    return int(x + width)
