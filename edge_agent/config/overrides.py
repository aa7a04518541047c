"""Changes made to pipelines by `set` and `configure`; those to keep are stored in one file.

The changes by `configure` are part of the runner's settings; those by `set` are applied on top of
them. If both have changed a key, the later change counts.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ModelError, UsageError
from ..core.frozen import record
from ..core.names import is_name
from ..core.state_file import StateFile
from .settings import Pipeline, Settings

if TYPE_CHECKING:
    from .configured import Changes, Patch

log = logging.getLogger(__name__)

FILE = "overrides.json"
_CONFIGURED = "@configure"
"""The key of the changes kept by `configure`, next to the names of pipelines."""
_PROBATION = "@probation"
"""The key of the record of a patch on probation."""


@record
class Before:
    """The state before a patch."""

    configured: Changes
    hidden: Mapping[str, frozenset[str]]
    until_restart: Mapping[str, Mapping[str, Any]]
    """Changes to the keys of the patch."""
    given: Mapping[str, Pipeline]


class Overrides:
    """Changes by pipeline, in a file. Any thread may call it."""

    def __init__(self, path: Path) -> None:
        """Read the file; a value that the settings would refuse is ignored and logged."""
        self._file = StateFile(path, "changes made by `set` and `configure`", 0o600)
        self._changes: dict[str, dict[str, Any]] = {}
        self._until_restart: dict[str, dict[str, Any]] = {}
        self._hidden: Mapping[str, frozenset[str]] = {}
        """Keys kept by `set` and since changed by `configure` until the restart."""
        self._given: dict[str, Pipeline] = {}
        """Settings of each pipeline when it was last created."""
        self._kept: Changes = {}
        """Changes by `configure` that outlast a restart."""
        self._configured: Changes = {}
        """Changes by `configure` until the restart."""
        self._file_settings: Settings | None = None
        self._lower: Settings | None = None
        """`_file_settings` with the changes kept by `configure`."""
        self.ignored: list[str] = []
        """Why changes made by `configure` are not in effect."""
        self._lock = threading.RLock()
        content = self._file.read(_parse) or {}
        self.interrupted = content.pop(_PROBATION, None)
        """The record of a patch whose outcome the last run has not reported; with `kept` if it
        passed."""
        self._probation: Mapping[str, Any] | None = self.interrupted
        for name, change in content.items():
            if name == _CONFIGURED:
                self._kept = change
                continue
            # Imported only if the file has changes: this delays the first result.
            from .settable import SETTABLE

            for key, value in change.items():
                if key not in SETTABLE:
                    continue
                try:
                    self._changes.setdefault(name, {})[key] = SETTABLE[key].parse(value)
                except ValueError as problem:
                    log.warning("%s: %s: %s: %s; ignored", path, name, key, problem)

    # Changes by `set`

    def applied(self, settings: Pipeline) -> Pipeline:
        """Return a pipeline's settings with its changes applied."""
        with self._lock:
            name = settings.name
            hidden = self._hidden.get(name, frozenset())
            kept = self._changes.get(name, {})
            change = {key: value for key, value in kept.items() if key not in hidden}
            before = self._given.get(name, settings)
            passing = self._until_restart.get(name, {})
            for key in list(passing):
                # Settings edited since have priority over an earlier change.
                if getattr(before, key) != getattr(settings, key):
                    del passing[key]
            self._given[name] = settings
            return replace(settings, **(change | passing))

    def set_until_restart(self, name: str, changes: Mapping[str, Any]) -> None:
        """Record changes until the restart, even if the pipeline is removed meanwhile."""
        with self._lock:
            self._until_restart.setdefault(name, {}).update(changes)

    def take_back(self, name: str, keys: Iterable[str], *, kept: bool) -> None:
        """Drop the changes made to a pipeline by `set`; *kept*: also the persistent ones."""
        with self._lock:
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
        """List kept changes that differ from a pipeline's settings, one line each."""
        own = {
            key: value
            for key, value in self._changes.get(settings.name, {}).items()
            if value != getattr(settings, key)
        }
        lines = [
            f"{key} is {_shown(value)}, as it was set with persist ({self._file.path}), not"
            f" {_shown(getattr(settings, key))}; to undo that, set it to null with persist"
            for key, value in own.items()
        ]
        if settings.name not in {pipeline.name for pipeline in self.from_file() or (settings,)}:
            lines.append(
                f"added by `configure … persist` ({self._file.path}); to undo that, set it to null"
                " there"
            )
            return lines
        # What `set` has changed again since does not hold as `configure` has kept it.
        if keys := [key for key in self._kept.get(settings.name) or () if key not in own]:
            lines.append(
                f"{', '.join(keys)} as kept by `configure … persist` ({self._file.path}), not as in"
                " the settings file; to undo that, configure the value of the file"
            )
        return lines

    def removed(self) -> list[str]:
        """List the pipelines that were removed persistently, one line each."""
        return [
            f"pipeline {name}: removed by `configure … persist` ({self._file.path})"
            for name, change in self._kept.items()
            if change is None
        ]

    def ignore_threshold(self, name: str, trouble: Callable[[float], str | None]) -> float | None:
        """Ignore until the next start, and return, a kept threshold with which there is *trouble*.

        None: there is none, or nothing is wrong with it.
        """
        with self._lock:
            kept: float | None = self._changes.get(name, {}).get("threshold")
            why = None if kept is None else trouble(kept)
            if why is None:
                return None
            del self._changes[name]["threshold"]
        log.warning("%s: %s: %s; ignored", self._file.path, name, why)
        return kept

    def persist(self, name: str, changes: Mapping[str, Any]) -> None:
        """Record changes that outlast a restart."""
        with self._lock:
            self._changes.setdefault(name, {}).update(changes)
            hidden = self._hidden.get(name, frozenset()) - changes.keys()
            self._hidden = {**self._hidden, name: hidden}
            self._write()

    # Changes by `configure`

    def lay_over(self, settings: Settings) -> Settings:
        """Return settings read from the file, with the changes by `configure`.

        Changes until the restart are dropped where the file has been edited since. Changes that no
        longer fit the settings are ignored and logged.
        """
        from .configured import unedited

        with self._lock:
            if self._file_settings is not None:
                before = self._file_settings
                self._configured = unedited(self._configured, before, settings)
                # What `set` has kept is hidden by these changes only.
                passing = {name: dict.fromkeys(keys) for name, keys in self._hidden.items()}
                hidden = unedited(passing, before, settings)
                self._hidden = {name: frozenset(keys or ()) for name, keys in hidden.items()}
            self._file_settings = settings
            self.ignored = []
            self._lower = self._laid(settings, self._kept)
            return self._laid(self._lower, self._configured)

    def _laid(self, settings: Settings, changes: Changes) -> Settings:
        """Apply changes to settings; if they do not fit together, one pipeline at a time."""
        if not changes:
            return settings
        from .configured import patched

        try:
            return patched(settings, changes)
        except UsageError:
            for name, change in changes.items():
                try:
                    settings = patched(settings, {name: change})
                except UsageError as problem:
                    why = f"what `configure` has changed is not in effect: {problem}"
                    log.warning("%s: %s", self._file.path, why)
                    self.ignored.append(f"pipeline {name}: {why}")
        return settings

    def from_file(self) -> tuple[Pipeline, ...] | None:
        """Return the pipelines from the file; None: it has not been read yet."""
        return None if self._file_settings is None else self._file_settings.pipelines

    @property
    def kept_rollout(self) -> str | None:
        """The mark of a roll-out whose settings the last run has kept, and not recorded as such."""
        interrupted = self.interrupted or {}
        return interrupted.get("rollout") if interrupted.get("kept") is True else None

    @property
    def lost(self) -> str | None:
        """What was lost with a damaged file, until something is kept again."""
        return self._file.lost

    @property
    def unsaved(self) -> bool:
        """Whether the next start would use other settings than those in effect now."""
        return bool(self._configured) or self._file.unread is not None

    def note(self, probation: Mapping[str, Any] | None) -> None:
        """Store the record of a patch on probation or not reported yet; None: there is none."""
        with self._lock:
            if self._probation == probation:
                return
            self._probation = probation
            try:
                self._write()
            except ModelError:
                words = "%s: cannot be written: a kill during the probation would not be reported"
                log.warning(words, self._file.path)

    def tried(self, patch: Patch) -> Settings:
        """Return the settings that a patch would produce, without applying it."""
        from .configured import overlaid, patched

        with self._lock:
            return patched(self._known_lower(), overlaid(self._configured, patch.changes))

    def configure(self, patch: Patch) -> tuple[Settings, Before]:
        """Apply a patch until the restart; return the settings and the state before it."""
        from .configured import overlaid, without_effect

        with self._lock:
            settings, lower, names = self.tried(patch), self._known_lower(), patch.touched
            passing = {name: self._until_restart.get(name, {}) for name in names}
            before = Before(
                self._configured,
                self._hidden,
                {
                    n: {k: v for k, v in passing[n].items() if k in keys}
                    for n, keys in names.items()
                },
                {name: self._given[name] for name in names if name in self._given},
            )
            self._configured = without_effect(overlaid(self._configured, patch.changes), lower)
            for name, keys in names.items():
                hidden = self._hidden.get(name, frozenset()) | keys
                self._hidden = {**self._hidden, name: hidden}
                rest = {k: v for k, v in passing[name].items() if k not in keys}
                self._until_restart[name] = rest
            return settings, before

    def restore(self, before: Before) -> Settings:
        """Restore the state before a patch; return the settings.

        Settings changed since the patch stay.
        """
        with self._lock:
            self._configured = before.configured
            # `persist` has put keys back into effect.
            hidden = self._hidden.items()
            self._hidden = {n: keys & before.hidden.get(n, frozenset()) for n, keys in hidden}
            for name, was in before.until_restart.items():
                self._until_restart[name] = {**was, **self._until_restart.get(name, {})}
            self._given |= before.given
            return self._laid(self._known_lower(), self._configured)

    def keep(self, patch: Patch) -> None:
        """Store an applied patch, and drop the values that `set` had kept for its keys before.

        The record of its probation is marked as kept until the outcome has been reported.
        """
        from .configured import overlaid, without, without_effect

        with self._lock:
            base = self._file_settings or self._known_lower()
            kept, changes = self._kept, self._changes
            self._kept = without_effect(overlaid(kept, patch.changes), base)
            # What has been kept since the patch is hidden no more, and holds: it came later.
            before = {
                name: keys & self._hidden.get(name, frozenset())
                for name, keys in patch.touched.items()
            }
            self._changes = {
                name: {k: v for k, v in change.items() if k not in before.get(name, ())}
                for name, change in changes.items()
            }
            noted = self._probation
            if noted is not None:
                self._probation = {**noted, "kept": True}
            try:
                self._write()
            except ModelError:
                self._kept, self._changes, self._probation = kept, changes, noted
                raise
            self._lower = self._laid(base, self._kept)
            self._configured = without(self._configured, patch.changes)

    def _known_lower(self) -> Settings:
        if self._lower is None:
            raise UsageError("the settings file has not been read yet; ask again")
        return self._lower

    def _write(self) -> None:
        content: dict[str, Any] = dict(self._changes)
        if self._kept:
            content[_CONFIGURED] = self._kept
        if self._probation is not None:
            content[_PROBATION] = self._probation
        try:
            self._file.write(content)
        except OSError as problem:
            raise ModelError(
                f"set for now, but not kept: {self._file.path}: {problem.strerror}"
            ) from problem


def _shown(value: object) -> str:
    return "the default" if value is None else json.dumps(value, default=dict)


def _parse(content: Any) -> dict[str, dict[str, Any]]:
    made = {str(name): dict(change) for name, change in content.items()}
    if _PROBATION in made:
        names, reply_to = made[_PROBATION]["pipelines"], made[_PROBATION]["reply_to"]
        if reply_to is not None:
            bytes.fromhex(reply_to["correlation"])
            names = [*names, reply_to["id"] or "none"]
            if not isinstance(reply_to["topic"], str | None):
                raise TypeError("no topic")
            if not isinstance(reply_to.get("digest"), str | None):
                raise TypeError("no digest")
            if "digest" in reply_to:
                reply_to["sent"] = float(reply_to["sent"])
        if not all(is_name(name) for name in names):
            raise ValueError("no names")
    if _CONFIGURED in made:
        kept = made[_CONFIGURED].items()
        made[_CONFIGURED] = {n: None if each is None else dict(each) for n, each in kept}
    return made
