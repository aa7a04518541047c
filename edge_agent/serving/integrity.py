"""Slowly rereads the files of serving models, and compares them with the written content.

A start relies on quick checksums of what it loads, and on timestamps for the rest. Flash memory
decays: a file that has changed without being written is reported, and a damaged form is replaced by
its model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..core.containment import words
from ..core.errors import AgentError
from ..inference.model import Model
from ..inference.prepared.digests import corrupted_file, corrupted_files
from .active import ActiveModels

log = logging.getLogger(__name__)

FIRST_SECONDS = 300.0
"""Time after a start until the first check."""
EVERY_SECONDS = 24 * 3600.0
SHARE = 0.05
"""Share of one core and of the disk used while reading."""


class IntegrityCheck:
    """Checks the serving models and their forms, one piece of a file at a time."""

    def __init__(
        self,
        state: Path,
        active: ActiveModels,
        *,
        first: float = FIRST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without checking anything."""
        self._state = state
        self._active = active
        self._clock = clock
        self._due = clock() + first
        self._pieces: Iterator[None] | None = None
        """The check in progress."""
        self._found: list[str] = []
        self._problems: list[str] = []

    def problems(self) -> list[str]:
        """List the models whose files had changed at the latest check."""
        return list(self._problems)

    def step(self) -> float:
        """Read one piece if it is due; return the seconds until the next one."""
        now = self._clock()
        if now < self._due:
            return self._due - now
        if self._pieces is None:
            self._found = []
            self._pieces = self._check()
        if next(self._pieces, self._pieces) is None:
            took = self._clock() - now
            pause = took * (1 / SHARE - 1)
        else:
            self._pieces, self._problems = None, self._found
            pause = EVERY_SECONDS
        self._due = self._clock() + pause
        return pause

    def _check(self) -> Iterator[None]:
        """Reread all files, yielding after each piece."""
        for model in {id(s.model): s.model for s in self._active.all() if s.model}.values():
            try:
                yield from self._check_model(model)
            except (OSError, AgentError) as problem:
                # Deleted or exchanged meanwhile, or the disk is broken: the next check will tell.
                log.info("model %s: cannot be read again: %s", model.id, words(problem))

    def _check_model(self, model: Model) -> Iterator[None]:
        for name in corrupted_files(self._state, model.folder.path):
            if name is None:
                yield
                continue
            self._found.append(
                f"model {model.id}: {name} has changed on the disk without being written; "
                "install it again, and mind the disk"
            )
            log.error("integrity: %s", self._found[-1])
        prepared = model.engine.prepared
        if prepared is not None and prepared.damaged is None:
            for path in corrupted_file(prepared.checksums):
                if path is None:
                    yield
                    continue
                prepared.distrust(f"{path} has changed on the disk")
                return
