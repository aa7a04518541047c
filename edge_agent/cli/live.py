"""Results as they come: a table that is kept fresh, or lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from ..core.text import printable
from ..mqtt.payloads import percentiles
from .terminal import summary

LINE_SECONDS = 0.5
"""Where there is no terminal, one line a pipeline at most this often."""


@dataclass(slots=True)
class Row:
    """What the view knows of one pipeline."""

    results: int = 0
    began: float = 0.0
    ages: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    infers: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=120))
    last: str = ""
    model: str = ""
    engine: str = ""
    said: float = 0.0

    def fps(self) -> float:
        """Frames a second over the latest results."""
        if len(self.times) < 2:
            return 0.0
        return (len(self.times) - 1) / max(self.times[-1] - self.times[0], 1e-6)

    def mean_fps(self) -> float:
        """Frames a second from the first result to the last."""
        if self.results < 2:
            return 0.0
        return (self.results - 1) / max(self.times[-1] - self.began, 1e-6)


class LiveView:
    """Shows results; a context, so that the terminal is left as it was found."""

    def __init__(self, title: str, notes: list[str], *, quiet: bool = False) -> None:
        """Prepare.

        Args:
            title: above all.
            notes: below all.
            quiet: take in without showing.

        """
        self._title = printable(title)
        self._quiet = quiet
        self.notes = [printable(note) for note in notes]
        self.rows: dict[str, Row] = {}
        self._live: Any = None
        self._recent: deque[str] = deque(maxlen=8)
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._quiet:
            return self
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(self._draw(), refresh_per_second=8, transient=False)
            self._live.__enter__()
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
            self._live.update(self._draw(), refresh=True)
            self._live.__exit__(kind, error, trace)

    def result(self, payload: Mapping[str, Any]) -> None:
        """Take in a result."""
        now = time.monotonic()
        name = str(payload["pipeline"])
        row = self.rows.setdefault(name, Row(began=now))
        row.results += 1
        row.times.append(now)
        row.ages.append(payload["timing"]["age_ms"])
        row.infers.append(payload["timing"]["infer_ms"])
        row.last, row.model, row.engine = summary(payload), payload["model"], payload["engine"]
        if now - row.said >= LINE_SECONDS:
            row.said = now
            file = f" {payload['file']}" if "file" in payload else ""
            line = (
                f"{payload['time'][11:23]} {name} #{payload['seq']}{file}  {row.last}  "
                f"{payload['timing']['age_ms']:.1f} ms"
            )
            self.print(line)
        if self._live is not None and now - self._drawn > 0.1:
            self._drawn = now
            self._live.update(self._draw())

    def print(self, text: str) -> None:
        """Add a line of another kind."""
        text = printable(text)
        self._recent.append(text)
        if self._live is None and not self._quiet:
            print(text, flush=True)

    def summary_lines(self) -> list[str]:
        """Sum up, one line a pipeline."""
        lines = []
        for name, row in self.rows.items():
            age, infer = percentiles(list(row.ages)), percentiles(list(row.infers))
            lines.append(
                f"{name}: {row.results} results, {row.mean_fps():.1f} a second, "
                f"age p50 {age['p50']:.1f} p95 {age['p95']:.1f} p99 {age['p99']:.1f} ms, "
                f"inference {infer['p50']:.2f} ms, "
                f"{row.model} on {row.engine}"
            )
        return lines

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table(expand=True, box=None, pad_edge=False)
        for heading in ("pipeline", "a second", "age p50/p95/p99 ms", "infer ms", "model", "found"):
            right = heading in {"a second", "infer ms"}
            table.add_column(
                heading, justify="right" if right else "left", no_wrap=heading != "found"
            )
        for name, row in self.rows.items():
            age, infer = percentiles(list(row.ages)), percentiles(list(row.infers))
            table.add_row(
                Text(name, "bold cyan"),
                f"{row.fps():.1f}",
                f"{age['p50']:.1f} / {age['p95']:.1f} / {age['p99']:.1f}",
                f"{infer['p50']:.2f}",
                Text(f"{row.model} {row.engine}", "dim"),
                Text(row.last, "green"),
            )
        parts: list[Any] = [table, Text("")]
        parts += [Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in self._recent]
        parts += [Text("")] + [Text(note) for note in self.notes]
        return Panel(Group(*parts), title=Text(self._title), border_style="blue")
