"""What the command `set` has changed of pipelines, some of it kept over restarts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from ..core.state_file import StateFile
from .settings import Pipeline

log = logging.getLogger(__name__)


class Overrides:
    """Changes by pipeline, in a file."""

    def __init__(self, path: Path) -> None:
        """Read the file; a value that the settings would refuse is ignored and logged."""
        self._file = StateFile(path, "changes made by `set`")
        self._changes: dict[str, dict[str, Any]] = {}
        self._until_restart: dict[str, dict[str, Any]] = {}
        self._given: dict[str, Pipeline] = {}
        """Settings of each pipeline when it was last made."""
        for name, change in (self._file.read(_parse) or {}).items():
            # Imported only where the file has something: this is on the way to the first result.
            from .settable import SETTABLE

            for key, value in change.items():
                if key not in SETTABLE:
                    continue
                try:
                    self._changes.setdefault(name, {})[key] = SETTABLE[key].parse(value)
                except ValueError as problem:
                    log.warning("%s: %s: %s: %s; ignored", path, name, key, problem)

    def applied(self, settings: Pipeline) -> Pipeline:
        """Return a pipeline's settings with its changes applied."""
        change: dict[str, Any] = dict(self._changes.get(settings.name, {}))
        before = self._given.get(settings.name, settings)
        passing = self._until_restart.get(settings.name, {})
        for key in list(passing):
            # Settings that have been edited since win over a change made before.
            if getattr(before, key) != getattr(settings, key):
                del passing[key]
        self._given[settings.name] = settings
        return replace(settings, **(change | passing))

    def set_until_restart(self, name: str, changes: Mapping[str, Any]) -> None:
        """Record changes until the restart, whatever becomes of the pipeline meanwhile."""
        self._until_restart.setdefault(name, {}).update(changes)

    def take_back(self, name: str, keys: Iterable[str], *, kept: bool) -> None:
        """Forget what was set of a pipeline; with *kept*, also what was set for good.

        Raises:
            ModelError: that cannot be written.
        """
        for key in keys:
            self._until_restart.get(name, {}).pop(key, None)
            if kept:
                self._changes.get(name, {}).pop(key, None)
        if kept:
            self._write()

    def given(self, settings: Pipeline) -> Pipeline:
        """Return a pipeline's settings as they were before any change."""
        return self._given.get(settings.name, settings)

    def shadows(self, settings: Pipeline) -> list[str]:
        """List what was set for good and differs from a pipeline's settings; a line each."""
        return [
            f"{key} is {_shown(value)}, as it was set with persist ({self._file.path}), not"
            f" {_shown(getattr(settings, key))}; set it to null with persist to take that back"
            for key, value in self._changes.get(settings.name, {}).items()
            if value != getattr(settings, key)
        ]

    def ignore_threshold(self, name: str, why: str) -> bool:
        """Ignore a threshold that was kept, until the next start; False: there is none."""
        kept = self._changes.get(name, {}).pop("threshold", None)
        if kept is not None:
            log.warning("%s: %s: %s; ignored", self._file.path, name, why)
        return kept is not None

    def persist(self, name: str, changes: Mapping[str, Any]) -> None:
        """Record changes for good.

        Raises:
            ModelError: they cannot be written.
        """
        self._changes.setdefault(name, {}).update(changes)
        self._write()

    def _write(self) -> None:
        try:
            self._file.write(self._changes)
        except OSError as problem:
            raise ModelError(
                f"set for now, but not kept: {self._file.path}: {problem.strerror}"
            ) from problem


def _shown(value: object) -> str:
    return "the default" if value is None else json.dumps(value, default=dict)


def _parse(content: Any) -> dict[str, dict[str, Any]]:
    return {str(name): dict(change) for name, change in content.items()}
