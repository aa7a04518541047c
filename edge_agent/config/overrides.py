"""What `set` changes of a pipeline, and what of it is kept over restarts."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from ..core.frozen import record
from ..core.state_file import StateFile
from ..models.decoders import Task
from ..models.manifest import threshold_trouble
from .settings import RATES, THRESHOLDS, Pipeline

log = logging.getLogger(__name__)

_BOUNDS: Mapping[str, tuple[float, float]] = {"threshold": THRESHOLDS, "rate": RATES}


@record
class Change:
    """What one `set` asks for; None: that stays."""

    threshold: float | None
    rate: float | None
    persist: bool


def read_change(body: Mapping[str, Any], tasks: Iterable[Task]) -> Change:
    """Read what a `set` command asks for: within the bounds that the settings have.

    Args:
        body: of the command.
        tasks: of the models that the pipeline has at the moment.

    Raises:
        ModelError: it asks for nothing, or for what the settings would refuse.

    """
    threshold, rate = _number(body, "threshold"), _number(body, "rate")
    persist = body.get("persist")
    if not isinstance(persist, bool | None):
        raise ModelError(f"persist: expected true or false, found {_shown(persist)}")
    if threshold is None and rate is None:
        raise ModelError("nothing to set: give threshold or rate")
    for task in tasks:
        if threshold is not None and (trouble := threshold_trouble(task, threshold)):
            raise ModelError(f"threshold: {trouble}")
    return Change(threshold, rate, bool(persist))


def _number(body: Mapping[str, Any], key: str) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    trouble = _trouble(key, value)
    if trouble is not None:
        raise ModelError(f"{key}: {trouble}")
    return float(value)


def _trouble(key: str, value: object) -> str | None:
    """Say why a value is none that the settings would take."""
    try:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        number = float(value) if plain else math.nan  # type: ignore[arg-type]
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        return f"expected a number, found {_shown(value)}"
    if key == "rate" and number <= 0:
        return f"expected a number above 0, found {_shown(value)}"
    least, most = _BOUNDS[key]
    if not least <= number <= most:
        return f"expected a number from {_plain(least)} to {_plain(most)}, found {_shown(value)}"
    return None


def _plain(number: float) -> str:
    return f"{number:.5f}".rstrip("0").rstrip(".")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number too large to write down"
    return text if len(text) <= 40 else text[:39] + "…"


class Overrides:
    """Thresholds and rates by pipeline, in a file."""

    def __init__(self, path: Path) -> None:
        """Read the file; what the settings would refuse is passed over, and that is said."""
        self._file = StateFile(path, "changes made by `set`")
        self._changes: dict[str, dict[str, float]] = {}
        self._until_restart: dict[str, dict[str, float]] = {}
        self._given: dict[str, Pipeline] = {}
        """What the settings said of each pipeline when it was last made."""
        for name, change in (self._file.read(_parse) or {}).items():
            for key, value in change.items():
                trouble = _trouble(key, value)
                if trouble is None:
                    self._changes.setdefault(name, {})[key] = float(value)
                else:
                    log.warning("%s: %s: %s: %s; passed over", path, name, key, trouble)

    def applied(self, settings: Pipeline) -> Pipeline:
        """Give a pipeline's settings with what has been changed since."""
        change: dict[str, Any] = dict(self._changes.get(settings.name, {}))
        before = self._given.get(settings.name, settings)
        passing = self._until_restart.get(settings.name, {})
        for key in list(passing):
            # Settings that were written again with another value are the later word.
            if getattr(before, key) != getattr(settings, key):
                del passing[key]
        self._given[settings.name] = settings
        return replace(settings, **(change | passing))

    def note(self, name: str, change: Change) -> None:
        """Remember a change until the restart, whatever becomes of the pipeline meanwhile."""
        passing = self._until_restart.setdefault(name, {})
        for key in _BOUNDS:
            if (value := getattr(change, key)) is not None:
                passing[key] = value

    def pass_over_threshold(self, name: str, why: str) -> bool:
        """Forget, until the next start, a threshold that was kept; False: there is none."""
        kept = self._changes.get(name, {}).pop("threshold", None)
        if kept is not None:
            log.warning("%s: %s: %s; passed over", self._file.path, name, why)
        return kept is not None

    def keep(self, name: str, *, threshold: float | None, rate: float | None) -> None:
        """Remember a change.

        Raises:
            ModelError: it cannot be written.

        """
        change = self._changes.setdefault(name, {})
        if threshold is not None:
            change["threshold"] = threshold
        if rate is not None:
            change["rate"] = rate
        try:
            self._file.write(self._changes)
        except OSError as problem:
            raise ModelError(
                f"set for now, but not kept: {self._file.path}: {problem.strerror}"
            ) from problem


def _parse(content: Any) -> dict[str, dict[str, Any]]:
    return {
        str(name): {key: change[key] for key in _BOUNDS if key in change}
        for name, change in content.items()
    }
