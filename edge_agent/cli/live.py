"""Results as they come: a table that is kept up to date, or lines without a terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..core.text import counted, printable
from ..inference.engines.registry import engine_words
from ..mqtt.payloads import percentiles
from .terminal import brief, silent_keys, summary, verdict

if TYPE_CHECKING:
    from .signal_trace import SignalTrace

LINE_SECONDS = 0.5
"""Least time between two lines per pipeline, without a terminal."""
TURN_SECONDS = 0.05
"""The same if a pipeline's state changed between anomalous and normal."""
DRAW_SECONDS = 0.1
STILL_SECONDS = 2.0
"""Time without a result, if also three times the usual interval, after which the rate is 0."""
RECENT = 8
"""Lines of earlier results, if the terminal is high enough."""
MOST_KINDS = 8
"""Most classes that the summary counts."""
FOUND_WIDTH = 24
"""The least width that other columns must leave for the findings."""
NAME_WIDTH = 24
MODEL_WIDTH = 40


@dataclass(slots=True)
class Row:
    """The state of one pipeline in the view."""

    results: int = 0
    began: float = 0.0
    ages: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    infers: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=120))
    found: str = ""
    model: str = ""
    engine: str = ""
    said: float = 0.0
    anomalous: bool | None = None
    """The state shown by the last line."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Number of results for each best class or verdict."""

    def fps(self) -> float:
        """Frames per second over the last results; 0 once they have stopped."""
        if len(self.times) < 2:
            return 0.0
        span = max(self.times[-1] - self.times[0], 1e-6)
        rate = (len(self.times) - 1) / span
        silent = time.monotonic() - self.times[-1]
        return 0.0 if silent > max(STILL_SECONDS, 3 / rate) else rate

    def mean_fps(self) -> float | None:
        """Frames per second from the first result to the last; None for a single one."""
        if self.results < 2:
            return None
        return (self.results - 1) / max(self.times[-1] - self.began, 1e-6)


class LiveView:
    """Shows results; a context manager that restores the terminal."""

    def __init__(
        self,
        title: str,
        notes: list[str],
        *,
        pipelines: Sequence[str] = (),
        quiet: bool = False,
        every: bool = False,
    ) -> None:
        """Set up the view; *every*: without a terminal, each result gets a line."""
        self._title = printable(title)
        self._quiet = quiet
        self._every = every
        self.notes = [printable(note) for note in notes]
        self.trouble = ""
        """The current problem; shown in full, in place of earlier results."""
        self.trace: SignalTrace | None = None
        """A sensor's trace, shown between the table and earlier results."""
        self.rows: dict[str, Row] = {}
        self._names = list(pipelines)
        self._live: Any = None
        self._kept = ExitStack()
        """Restores the terminal's settings."""
        self._recent: deque[str] = deque(maxlen=RECENT)
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._quiet:
            return self
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._kept.enter_context(silent_keys(sys.stdout))
            self._live.__enter__()
            self._refresh()
        else:
            print(self._title)
            for note in self.notes:
                print(f"  {note}", flush=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._refresh()
            self._live.__exit__(kind, error, trace)
            self._kept.close()

    def result(self, payload: Mapping[str, Any]) -> None:
        """Record a result."""
        now = time.monotonic()
        name = str(payload["pipeline"])
        row = self.rows.setdefault(name, Row(began=now))
        row.results += 1
        row.times.append(now)
        row.ages.append(payload["timing"]["age_ms"])
        row.infers.append(payload["timing"]["infer_ms"])
        row.found, row.model = brief(payload), payload["model"]
        row.engine = engine_words(payload.get("engine", ""))
        if (kind := verdict(payload)) is not None:
            row.kinds[kind] += 1
        anomalous = payload["anomaly"]["anomalous"] if "anomaly" in payload else None
        pause = LINE_SECONDS if anomalous == row.anomalous else TURN_SECONDS
        if self._every or now - row.said >= pause:
            row.said, row.anomalous = now, anomalous
            file = f" {payload['file']}" if "file" in payload else ""
            self.print(
                f"{payload['time'][11:23]} {name} #{payload['seq']}{file}  {summary(payload)}  "
                f"{payload['timing']['age_ms']:.1f} ms"
            )
        self.tick()

    def tick(self) -> None:
        """Draw new results and time-dependent figures if it is time."""
        if self._live is not None and time.monotonic() - self._drawn > DRAW_SECONDS:
            self._refresh()

    def print(self, text: str) -> None:
        """Add a line that is not a result."""
        text = printable(text)
        self._recent.append(text)
        if self._live is None and not self._quiet:
            print(text, flush=True)

    def summary_lines(self) -> list[str]:
        """Return a summary, one line per pipeline."""
        lines = []
        for name, row in self.rows.items():
            age, infer = percentiles(list(row.ages)), percentiles(list(row.infers))
            fps = row.mean_fps()
            rate = "" if fps is None else f"{fps:.1f} a second, "
            lines.append(
                f"{name}: {counted(row.results, 'result')}, {rate}"
                f"age p50 {age['p50']:.1f} p95 {age['p95']:.1f} p99 {age['p99']:.1f} ms, "
                f"inference {infer['p50']:.2f} ms, "
                f"{row.model} on {row.engine}"
            )
            lines += _kinds(name, row)
        return lines

    def _refresh(self) -> None:
        self._drawn = time.monotonic()
        # One line less than the terminal has: the cursor needs the last, and more would scroll.
        width, height = self._live.console.size
        self._live.update(self.draw(width, height - 1), refresh=True)

    def draw(self, width: int, height: int) -> Any:
        """Return the view in *width* columns and at most *height* lines; its height is constant.

        Each pipeline has one line. Columns that do not fit are left out, never truncated.
        """
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        shown, recent = self._layout(height)
        parts: list[Any] = [self._table(shown, width - 4), Text("")]
        if self.trace is not None and self._traced(height):
            parts += self.trace.lines(width - 4)
        parts += _clipped(self._middle(width - 4, recent), "dim")
        parts += [Text(""), *_clipped(self.notes)]
        return Panel(Group(*parts), title=Text(self._title), border_style="blue", width=width)

    def _layout(self, height: int) -> tuple[list[str], int]:
        """Return the pipelines that get a line, and the number of lines for earlier results."""
        names = [*self._names, *(name for name in self.rows if name not in self._names)]
        # The frame, the headings, and two empty lines.
        room = height - 5 - len(self.notes) - self._traced(height)
        shown = names[: max(1, room)]
        return shown, max(0, min(RECENT, room - len(shown)))

    def _traced(self, height: int) -> int:
        """Return the number of lines for a sensor's trace: all that it needs, or none."""
        if self.trace is None or self.trace.height + 2 > height - 5 - len(self.notes):
            return 0
        return self.trace.height

    def _middle(self, width: int, height: int) -> list[str]:
        """Return exactly *height* lines: the problem in full, then the last results."""
        from textwrap import wrap

        trouble = wrap(printable(self.trouble), width)[: max(0, height)]
        rest = max(0, height - len(trouble))
        recent = list(self._recent)[-rest:] if rest else []
        return trouble + recent + [""] * (rest - len(recent))

    def _table(self, names: Sequence[str], width: int) -> Any:
        from rich.table import Table
        from rich.text import Text

        rows = [(name, self.rows.get(name, Row())) for name in names]
        columns = _columns(rows, width)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width)
        for heading, size, justify, style, _ in columns:
            table.add_column(
                heading, width=size, justify=justify, style=style, no_wrap=True, overflow="ellipsis"
            )
        for name, row in rows:
            table.add_row(*(Text(cell(name, row)) for *_, cell in columns))
        return table


def _kinds(name: str, row: Row) -> list[str]:
    """Return a line with how often each best class or verdict occurred; none for other results."""
    if not row.kinds:
        return []
    shown = row.kinds.most_common(MOST_KINDS)
    more = len(row.kinds) - len(shown)
    words = ", ".join(f"{kind} ×{count}" for kind, count in shown)
    return [printable(f"{name}: {words}" + (f" and {more} more" if more else ""))]


def _columns(rows: Sequence[tuple[str, Row]], width: int) -> list[Any]:
    """Choose the columns that fit: heading, width, justification, style, and the cells' content."""
    named = max(8, min(NAME_WIDTH, max((len(name) for name, _ in rows), default=0)))
    # Until it is known, enough width is reserved that no column must be removed later.
    model = max((len(_model(row)) for _, row in rows), default=0) or MODEL_WIDTH
    columns: list[Any] = [
        ("pipeline", named, "left", "bold cyan", lambda name, _: name),
        ("a second", 8, "right", "", lambda _, row: f"{row.fps():.1f}"),
    ]
    left = width - sum(size + 2 for _, size, *_ in columns) - FOUND_WIDTH
    for column in (
        ("age p50/p95/p99 ms", 22, "left", "", lambda _, row: _ages(row)),
        ("infer ms", 8, "right", "", lambda _, row: f"{percentiles(list(row.infers))['p50']:.2f}"),
        ("model", model, "left", "dim", lambda _, row: _model(row)),
    ):
        if column[1] + 2 <= left:
            columns.append(column)
            left -= column[1] + 2
    columns.append(("found", left + FOUND_WIDTH, "left", "green", lambda _, row: row.found))
    return columns


def _model(row: Row) -> str:
    return f"{row.model} {row.engine}".strip()


def _ages(row: Row) -> str:
    age = percentiles(list(row.ages))
    return f"{age['p50']:.1f} / {age['p95']:.1f} / {age['p99']:.1f}"


def _clipped(lines: Sequence[str], style: str = "") -> list[Any]:
    """Return lines that are clipped instead of wrapped."""
    from rich.text import Text

    return [Text(line, style, no_wrap=True, overflow="ellipsis") for line in lines]
