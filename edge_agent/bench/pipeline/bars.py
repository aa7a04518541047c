"""The figures of `bench pipeline` as a picture: frames a second, and where a frame's time goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import AgentError
from ..cold_start.bars import FAINT, INK, write
from .figures import AGENT, ENGINE, HANDMADE, PLAIN, Report, Turn

WIDTH, LEFT, RIGHT, MARGIN = 1280, 190, 230, 20
BAR, STEP, TITLE = 20, 28, 40
BLUE, GREY = (178, 114, 0), (170, 170, 170)
# The colours can be told apart by those who do not see red and green (Okabe and Ito 2008).
STEPS = {
    "decode": (178, 114, 0),
    "preprocess": (233, 180, 86),
    "infer": (0, 94, 213),
    "postprocess": (115, 158, 0),
    "publish": (167, 121, 204),
}
NAMES = (PLAIN, HANDMADE, AGENT, ENGINE)


def draw(reports: Sequence[Report], path: Path) -> None:
    """Write the picture, PNG.

    Raises:
        AgentError: the file cannot be written.

    """
    import cv2

    blocks = [TITLE + STEP * (len(NAMES) + len(r.scaling) + 1) + 80 for r in reports]
    canvas = np.full((MARGIN + sum(blocks), WIDTH, 3), 255, np.uint8)
    top = MARGIN
    for report, block in zip(reports, blocks, strict=True):
        _model(canvas, report, top)
        top += block
    good, data = cv2.imencode(".png", canvas)
    if not good:
        raise AgentError(f"{path}: the picture cannot be encoded as PNG")
    try:
        path.write_bytes(data.tobytes())
    except OSError as problem:
        raise AgentError(f"{path}: {problem.strerror}") from None


def _model(canvas: Any, report: Report, top: int) -> None:
    """Draw one model's bars below its name."""
    where = f"{report.engine}, {report.lanes} lane(s) of {report.threads} thread(s)"
    write(canvas, f"{report.model} on {where}: frames a second", MARGIN, top + 24, size=0.6)
    rows: list[tuple[str, list[Turn], bool]] = [
        (name, report.turns[name], name == AGENT) for name in NAMES
    ]
    rows += [
        (f"{count} pipeline{'s' if count > 1 else ''}", [many for _, many in rounds], True)
        for count, rounds in sorted(report.scaling.items())
    ]
    most = max(turn.fps for _, turns, _ in rows for turn in turns)
    scale = (WIDTH - LEFT - RIGHT) / most
    for row, (name, turns, ours) in enumerate(rows):
        middle = top + TITLE + STEP * row + BAR // 2
        _bar(canvas, name, turns, middle, scale, ours=ours)
    _steps(canvas, report.step_ms(), top + TITLE + STEP * len(rows) + 6)
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
    write(canvas, "; ".join(notes), MARGIN, top + TITLE + STEP * (len(rows) + 1) + 44)


def _bar(
    canvas: Any, name: str, turns: Sequence[Turn], middle: int, scale: float, *, ours: bool
) -> None:
    """Draw the median, and a line from least to most."""
    import cv2

    write(canvas, name, LEFT - 10, middle + 5, align=1.0, strong=ours)
    values = [turn.fps for turn in turns]
    end = LEFT + round(statistics.median(values) * scale)
    corners = ((LEFT, middle - BAR // 2), (end, middle + BAR // 2))
    cv2.rectangle(canvas, *corners, BLUE if ours else GREY, cv2.FILLED)
    ends = [LEFT + round(value * scale) for value in (min(values), max(values))]
    cv2.line(canvas, (ends[0], middle), (ends[1], middle), INK, 1)
    for x in ends:
        cv2.line(canvas, (x, middle - 4), (x, middle + 4), INK, 1)
    cpu = statistics.median(turn.cpu_ms for turn in turns)
    words = f"{statistics.median(values):.1f}" + (f", cpu {cpu:.2f} ms" if cpu else "")
    write(canvas, words, max(ends[1], end) + 10, middle + 5, strong=ours)


def _steps(canvas: Any, steps: dict[str, float], top: int) -> None:
    """Draw one frame's way as one bar, and what its colours mean."""
    import cv2

    whole = sum(steps.values())
    scale = (WIDTH - LEFT - RIGHT) / whole
    write(canvas, "one frame", LEFT - 10, top + BAR // 2 + 5, align=1.0)
    begun, x = 0.0, LEFT
    for name, color in STEPS.items():
        corners = (
            (LEFT + round(begun * scale), top),
            (LEFT + round((begun + steps[name]) * scale), top + BAR),
        )
        cv2.rectangle(canvas, *corners, color, cv2.FILLED)
        begun += steps[name]
        cv2.rectangle(canvas, (x, top + 28), (x + 12, top + 40), color, cv2.FILLED)
        x = write(canvas, f"{name} {steps[name]:.2f}", x + 18, top + 39) + 22
    cv2.line(canvas, (LEFT, top + BAR), (WIDTH - RIGHT, top + BAR), FAINT, 1)
    write(canvas, f"{whole:.2f} ms", WIDTH - RIGHT + 10, top + BAR // 2 + 5)
