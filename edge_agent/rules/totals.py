"""Totals of lines: crossings since the last reset, kept over restarts and power cuts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.state_file import DAMAGED, StateFile
from ..mqtt import payloads

Ways = dict[str, dict[str, int]]
"""Counts by label, for `in` and `out`."""


class LineTotals:
    """The totals of one pipeline's lines. Any thread may call it."""

    def __init__(self, kept: Mapping[str, Any] | None) -> None:
        """Continue from the result of `content` in this or an earlier run; None: from zero."""
        self.changed = kept is None
        self.crossed = False
        """Whether something was counted that is not in the journal yet."""
        self.keep: Callable[[], object] = lambda: None
        """Stores there what was counted without an event."""
        self._lock = threading.Lock()
        self.credible: Callable[[int], bool] = lambda _time_ns: True
        """Whether a time of this device's clock, nanoseconds since 1970, may be right."""
        self._began: tuple[int, float] | None = None
        """When it began by the wall clock, ns, and by the monotonic one, until `credible`."""
        # Of a clock that was not set before the last run ended, too.
        dated = kept is not None and kept["since"] >= "2020"
        self._since: str = kept["since"] if kept and dated else self._begin()
        self._resets: int = kept.get("resets", 0) if kept else 0
        """How often they were reset: unlike the clock, it is never set back."""
        self._lines: dict[str, Ways] = {}
        for line, ways in (kept["lines"] if kept else {}).items():
            self._lines[str(line)] = {
                way: {str(label): int(count) for label, count in ways[way].items()}
                for way in ("in", "out")
            }

    def _begin(self) -> str:
        self._began = now, _ = time.time_ns(), time.monotonic()
        return payloads.iso(now)

    def _look_at_clock(self) -> bool:
        """Correct since when it counts once the clock is set; return whether it is not."""
        if self._began is not None:
            (wall, began), now = self._began, time.time_ns()
            unset = not self.credible(wall)
            if unset and not self.credible(now):
                return True
            self._began = None
            if unset:
                self._since = payloads.iso(now - int((time.monotonic() - began) * 1e9))
                self.changed = True
        return False

    def add(self, line: str, way: str, label: str) -> None:
        """Count one crossing."""
        with self._lock:
            counted = self._lines.setdefault(line, {"in": {}, "out": {}})[way]
            counted[label] = counted.get(label, 0) + 1
            self.changed = self.crossed = True

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._lines.clear()
            self._since = self._begin()
            self._resets += 1
            self.changed = True

    def of(self, lines: Iterable[str]) -> dict[str, Any]:
        """Return the totals of *lines*, and since when they are counted."""
        with self._lock:
            return self._of(lines)

    def _of(self, lines: Iterable[str]) -> dict[str, Any]:
        none: Ways = {"in": {}, "out": {}}
        totals = {
            line: {way: dict(counts) for way, counts in self._lines.get(line, none).items()}
            for line in lines
        }
        unset = {"clock": payloads.UNSET} if self._look_at_clock() else {}
        return {"lines": totals, "since": self._since, **unset}

    def content(self) -> dict[str, Any]:
        """Return all totals for storage."""
        with self._lock:
            return {**self._of(self._lines), "resets": self._resets}

    def join(self, other: LineTotals) -> None:
        """Merge *other*'s counts if both began with the same reset; adopt them if it is newer."""
        began, other_began = (self._resets, self._since), (other._resets, other._since)
        if other_began < began:
            return
        if other_began > began:
            (self._resets, self._since), self._lines = other_began, {}
        self.changed = True
        for line, ways in other._lines.items():
            for way, counts in ways.items():
                counted = self._lines.setdefault(line, {"in": {}, "out": {}})[way]
                for label, count in counts.items():
                    counted[label] = max(count, counted.get(label, 0))

    def take_change(self) -> bool:
        """Return whether totals have changed since the last call."""
        with self._lock:
            self._look_at_clock()
        changed, self.changed = self.changed, False
        return changed


class TotalsFile:
    """The file with the totals of all pipelines."""

    def __init__(
        self,
        path: Path,
        journaled: Mapping[str, Any] | None = None,
        credible: Callable[[int], bool] = lambda _time_ns: True,
    ) -> None:
        """Read the stored totals; *journaled* by pipeline, from the journal, may be newer.

        For *credible* see `LineTotals`.
        """
        self._credible = credible
        self._file = StateFile(path, "totals of lines")
        self._totals = self._file.read(_parse) or {}
        for pipeline, content in (journaled or {}).items():
            with suppress(*DAMAGED):
                totals = _parse({pipeline: content})[pipeline]
                self._totals.setdefault(pipeline, totals).join(totals)

    @property
    def unread(self) -> str | None:
        """Why the stored totals are not known: those counted since must not take their place."""
        return self._file.unread

    def of(self, pipeline: str) -> LineTotals:
        """Return the totals of a pipeline."""
        totals = self._totals.setdefault(pipeline, LineTotals(None))
        totals.credible = self._credible
        return totals

    def crossed(self, pipelines: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the content of these pipelines' totals that have counted since the last call."""
        found = {}
        for name, totals in [(each, self._totals.get(each)) for each in pipelines]:
            if totals is not None and totals.crossed:
                totals.crossed = False
                if self.unread is None:  # else the next start would take them for newer ones
                    found[name] = totals.content()
        return found

    def save(self) -> set[str]:
        """Write changes, durably; return the pipelines whose totals have changed."""
        everything = list(self._totals.items())  # a pipeline may be added meanwhile
        # First: anything counted from here on is another change, in the content or not.
        changed = {name for name, totals in everything if totals.take_change()}
        if changed:
            self._file.save({name: totals.content() for name, totals in everything})
        return changed


def _parse(content: Any) -> dict[str, LineTotals]:
    for kept in content.values():
        counts = [
            count
            for ways in kept["lines"].values()
            for way in ways.values()
            for count in way.values()
        ] + [kept.get("resets", 0)]
        if not isinstance(kept["since"], str) or not all(type(count) is int for count in counts):
            raise TypeError("no totals")
        if min(counts) < 0:
            raise ValueError("no totals")
    return {name: LineTotals(kept) for name, kept in content.items()}
