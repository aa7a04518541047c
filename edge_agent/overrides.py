"""What `set … persist` has changed, over restarts."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from .durable import replace_file
from .errors import ModelError
from .settings import Pipeline

log = logging.getLogger(__name__)


class Overrides:
    """Thresholds and rates by pipeline, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes: dict[str, dict[str, float]] = {}
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            self._changes = {
                str(name): {
                    key: float(change[key]) for key in ("threshold", "rate") if key in change
                }
                for name, change in read.items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError):
            log.warning("%s: damaged; changes made by `set` are forgotten", path)

    def applied(self, settings: Pipeline) -> Pipeline:
        """Give a pipeline's settings with what has been changed since."""
        change: dict[str, Any] = dict(self._changes.get(settings.name, {}))
        return replace(settings, **change)

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
            replace_file(self._path, json.dumps(self._changes).encode())
        except OSError as problem:
            raise ModelError(
                f"set for now, but not kept: {self._path}: {problem.strerror}"
            ) from problem
