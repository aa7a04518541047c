"""What pipelines have learned of their models, kept over restarts.

By pipeline and version: another version learns anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...core.callbacks import Callbacks
from ...core.state_file import StateFile
from ...models import drift

T = TypeVar("T")


class Learned(Generic[T]):
    """One value for each pipeline of a device, on its disk. Any thread may call it."""

    def __init__(
        self, file: StateFile, key: str, read: Callable[[Any], T], write: Callable[[T], Any]
    ) -> None:
        """Read the file when the first is asked for; a value is called *key* there.

        *read* makes a value of its JSON, and raises ValueError, KeyError, … where it is none.
        """
        self._file = file
        self._key = key
        self._to_value = read
        self._to_json = write
        self._known: dict[str, dict[str, Any]] | None = None
        self.on_put = Callbacks()
        """Called after something was learned, by the thread that has learned it."""
        self._lock = threading.Lock()

    def get(self, pipeline: str, model: str, rule: str) -> T | None:
        """Return what a pipeline has learned of a version by a rule; None: nothing yet."""
        with self._lock:
            entry = self._read().get(pipeline)
        if entry is None or (entry["model"], entry["rule"]) != (model, rule):
            return None
        return self._to_value(entry[self._key])

    def put(self, pipeline: str, model: str, rule: str, value: T) -> None:
        """Keep it over restarts."""
        with self._lock:
            known = self._read()
            known[pipeline] = {"model": model, "rule": rule, self._key: self._to_json(value)}
            self._file.save(known)
        self.on_put()

    def _read(self) -> dict[str, dict[str, Any]]:
        if self._known is None:
            self._known = self._file.read(self._parse) or {}
        return self._known

    def _parse(self, content: Any) -> dict[str, dict[str, Any]]:
        """Return what `put` has written; raises ValueError, KeyError, … of anything else."""
        found = {name: dict(entry) for name, entry in content.items()}
        for entry in found.values():
            self._to_value(entry[self._key])
            if not isinstance(entry["rule"], str) or not isinstance(entry["model"], str):
                raise TypeError(entry)
        return found


class LearnedValues:
    """All that pipelines learn and keep."""

    def __init__(self, folder: Path) -> None:
        """Keep it in this folder."""
        self.thresholds: Learned[float] = Learned(
            StateFile(folder / "thresholds.json", "learned thresholds"), "threshold", _number, float
        )
        self.usual: Learned[drift.Usual] = Learned(
            StateFile(folder / "drift.json", "learned distributions"),
            "usual",
            drift.parse,
            drift.content,
        )


def _number(content: Any) -> float:
    number = float(content)
    if not isfinite(number):
        raise ValueError(content)
    return number
