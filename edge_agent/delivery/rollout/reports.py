"""What is said of candidates: how far one is, how it ended, and how the last of each model did."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...core.names import is_name
from ...core.state_file import StateFile
from ...mqtt import payloads
from .candidate import Candidate, Last, Outcome, Phase

log = logging.getLogger(__name__)


class Reports:
    """Says things on the topics of transfers and models, and remembers how it ended."""

    def __init__(
        self,
        state_dir: Path,
        say_push: Callable[[str, Mapping[str, Any]], object],
        on_change: Callable[[], None],
    ) -> None:
        """Read how earlier candidates ended.

        Args:
            state_dir: of the agent; `deployments.json` in it outlives a restart.
            say_push: says something on the topic of a transfer.
            on_change: the state of a model has changed.

        """
        self._say_push = say_push
        self.changed = on_change
        self._file = StateFile(state_dir / "deployments.json", "outcomes of earlier pushes")
        self._lasts: dict[str, dict[str, Any]] = self._file.read(_parse) or {}

    def last(self, name: str) -> Mapping[str, Any] | None:
        """Say how the last candidate of a model ended, as the model's topic has it."""
        return self._lasts.get(name)

    def names(self) -> set[str]:
        """Name the models of which there has been a candidate."""
        return set(self._lasts)

    def phase(self, candidate: Candidate, phase: Phase) -> None:
        """Say that it has come this far."""
        candidate.phase = phase
        log.info("%s: %s", candidate.id, phase)
        self.say(candidate, phase)
        self.changed()

    def say(self, candidate: Candidate, state: str, **more: Any) -> None:
        """Say how far it is to whoever sent it."""
        candidate.told(state, more.get("why"))
        if candidate.transfer is not None:
            payload = {"state": state, "have": 1, "total": 1, "percent": 100.0}
            self._say_push(
                candidate.transfer,
                {**payload, "model": candidate.name, "version": candidate.version}
                | {key: value for key, value in more.items() if value is not None},
            )

    def record(
        self, candidate: Candidate, outcome: Outcome, why: str | None, details: Mapping[str, Any]
    ) -> None:
        """Remember how it ended, if it ever had a name."""
        if is_name(candidate.name):
            self.record_last(candidate.name, candidate.version, outcome, why, details)

    def record_last(
        self,
        name: str,
        version: str,
        outcome: Outcome,
        why: str | None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Remember how a version ended; where the disk is full, until the agent ends."""
        last = Last(version, outcome, payloads.iso(time.time_ns()), why, details or {})
        self._lasts[name] = last.payload()
        self._file.save(self._lasts)

    def finish(
        self, candidate: Candidate, outcome: Outcome, why: str | None, **details: Any
    ) -> None:
        """Say that it has ended, and how; a rejection is remembered, the rest has been."""
        if outcome == "rejected":
            self.record(candidate, "rejected", why, {})
        self.say(candidate, "live" if outcome == "live" else "rejected", why=why, **details)
        candidate.finished(outcome, why)
        self.changed()


def _parse(content: Any) -> dict[str, dict[str, Any]]:
    return {str(name): dict(last) for name, last in content.items()}
