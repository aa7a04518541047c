"""Reads what serves again from the disk, slowly, and compares it with what was written.

A start trusts quick checksums of what it loads, and time stamps for the rest. Flash forgets: what
has changed without being written is said, and a damaged form is made anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...inference.prepared.digests import corrupted_file, corrupted_files
from ..serving.active import ActiveModels

log = logging.getLogger(__name__)

FIRST_SECONDS = 300.0
"""After a start, when it has long settled."""
EVERY_SECONDS = 24 * 3600.0
SHARE = 0.05
"""Of one core, and of the disk, while it reads."""


class Stopped(OSError):
    """The agent ends."""


class IntegrityCheck:
    """Looks at the models that serve and at their forms."""

    def __init__(
        self,
        state: Path,
        active: ActiveModels,
        damaged: Callable[[], None],
        *,
        first: float = FIRST_SECONDS,
        every: float = EVERY_SECONDS,
    ) -> None:
        """Look at nothing yet.

        Args:
            state: the state folder.
            active: what serves.
            damaged: told when a form has turned out damaged, and its engine knows.
            first: seconds until the first look.
            every: seconds from one look to the next.

        """
        self._state = state
        self._active = active
        self._damaged = damaged
        self._first = first
        self._every = every
        self._closing = threading.Event()
        self._why: list[str] = []
        self._resumed = 0.0

    def why(self) -> list[str]:
        """Say which models are not what they were."""
        return list(self._why)

    def close(self) -> None:
        self._closing.set()

    def run(self) -> None:
        """Look now and then, until closed."""
        pause = self._first
        while not self._closing.wait(pause):
            try:
                self.look()
            except Stopped:
                return
            pause = self._every

    def look(self) -> list[str]:
        """Look at all of it once; gives what `why` says from now on."""
        found = []
        self._resumed = time.monotonic()
        for model in {id(s.model): s.model for s in self._active.all()}.values():
            if model is None:
                continue
            try:
                for name in corrupted_files(self._state, model.folder.path, self._pace):
                    found.append(
                        f"model {model.id}: {name} has changed on the disk without being written; "
                        "install it again, and mind the disk"
                    )
                    log.error("%s", found[-1])
                prepared = model.engine.prepared
                if prepared is not None and prepared.damaged is None:
                    path = corrupted_file(prepared.checksums, self._pace)
                    if path is not None:
                        prepared.distrust(f"{path} has changed on the disk")
                        self._damaged()
            except Stopped:
                raise
            except OSError as problem:
                # Deleted or exchanged meanwhile, or the disk is broken: the next look tells.
                log.info("model %s: cannot be read again: %s", model.id, problem)
        self._why = found
        return list(found)

    def _pace(self) -> None:
        """Wait as long as it takes to keep to the share."""
        took = time.monotonic() - self._resumed
        if self._closing.wait(took * (1 / SHARE - 1)):
            raise Stopped
        self._resumed = time.monotonic()
