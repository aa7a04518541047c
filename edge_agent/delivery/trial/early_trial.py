"""Early trials: a candidate is loaded and run in a child while it is still arriving.

The child reads what has been authenticated. Whatever it finds, the trial itself follows, in the
same child, when the package is complete.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...config.settings import Trial
from ...core.containment import words
from ...core.errors import AgentError
from ...core.types import Kind
from ...device.headroom import free_mb, has_room
from ...inference.engines.engine import EngineChoice
from ...inference.engines.registry import runs_arriving
from ...models.packages.package import PackageHeader
from ...models.store.store import Store
from ..early.growing_file import PROGRESS
from .live_frames import LiveFrames
from .process import TrialProcess

if TYPE_CHECKING:
    from ...serving.active import ActiveModels, Serving

log = logging.getLogger(__name__)

WORTH_BYTES = 2**20
"""A smaller package is complete before a child could be started."""
STEP_BYTES = 128 * 1024
"""How much must have arrived before the child is told: each message wakes it up."""


class EarlyTrial:
    """The child of one transfer."""

    def __init__(
        self,
        choices: Sequence[EngineChoice],
        serving: Serving | None,
        *,
        golden: bool,
        memory_mb: int,
        stage: AbstractContextManager[Path],
    ) -> None:
        """Start the child.

        Args:
            choices: of engines that the trial will have.
            serving: whose frames the model is for, where there are any.
            golden: whether golden inputs shall be run.
            memory_mb: what the child may take beyond what it takes with no model.
            stage: gives an empty folder, for what the child unpacks.
        """
        self._stack = ExitStack()
        folder = self._stack.enter_context(stage)
        self._golden = golden
        self._frames = LiveFrames(serving, folder)
        self.over = False
        """Whether the child has been taken over or ended, and its folder is gone."""
        self._announced = 0
        self._granted = False
        self.kind: Kind | None = self._frames.kind
        self._choice = next((choice for choice in choices if runs_arriving(choice)), None)
        engines = [choice.engine for choice in choices]
        if self._choice is not None:
            first = self._choice.engine
            engines = sorted(engines, key=lambda engine: engine != first)
        self._folder = folder
        try:
            self._process: TrialProcess | None = TrialProcess(
                engines, memory_mb, self._frames.inputs
            )
        except OSError:
            self._process = None
            self.close()
            raise

    def begin(self, data: Path) -> None:
        """Ask the child to follow a model, in the file that its members are written to."""
        if self._process is None or self._choice is None:
            return
        try:
            descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as problem:
            log.warning("%s: cannot be run while it arrives: %s", data, problem.strerror)
            return
        try:
            self._process.follow(
                {
                    "folder": str(self._folder),
                    "choice": asdict(self._choice),
                    "kind": self.kind,
                    "golden": self._golden,
                },
                descriptor,
            )
        finally:
            os.close(descriptor)

    @property
    def wish(self) -> tuple[int, int] | None:
        """Bytes of the package that should be sent before their turn."""
        return self._process.wish if self._process is not None else None

    def arrived(self, have: int, *, granted: bool, whole: bool = False) -> None:
        """Send the child what has arrived and is authenticated.

        Args:
            have: bytes of the package, from the beginning.
            granted: the wish has arrived, too.
            whole: nothing is missing.
        """
        if have - self._announced < STEP_BYTES and granted == self._granted and not whole:
            return
        self._announced, self._granted = have, granted
        if self._process is not None:
            self._process.send_progress(PROGRESS.pack(have, granted))

    def take(self) -> TrialProcess | None:
        """Hand the child over, for the trial itself."""
        self._frames.close()
        process, self._process = self._process, None
        return process

    def close(self) -> None:
        """End the child, unless it was taken, and remove its folder; may be called twice."""
        process = self.take()
        if process is not None:
            process.close()
        self._stack.close()
        self.over = True


class EarlyTrials:
    """Starts them: one at a time, and only where there is room in memory for it beside all else."""

    def __init__(
        self,
        store: Store,
        active: ActiveModels,
        trial: Callable[[], Trial],
        *,
        overlap: bool,
        budget_mb: int,
    ) -> None:
        """Keep what is needed.

        Args:
            store: of versions.
            active: what serves.
            trial: the device's bounds, which may be reloaded.
            overlap: whether two models may be in memory at once.
            budget_mb: what models may take; 0: no bound.
        """
        self._store = store
        self._active = active
        self._bounds = trial
        self._overlap = overlap
        self._budget_mb = budget_mb
        self._latest: EarlyTrial | None = None

    def begin(self, header: PackageHeader) -> EarlyTrial | None:
        """Start the trial of a package that is about to arrive, where that is worth it."""
        if (
            header.size < WORTH_BYTES  # noqa: PLR0916 - each its own reason to wait
            # Which of its networks it is, is known when it is complete.
            or header.variants
            or not self._overlap
            or (self._latest is not None and not self._latest.over)
            or not has_room(header.size)
        ):
            return None
        engines = self._active.loader.engines
        serving = next(
            (s for s in self._active.servings_of(header.name) if s.model is not None), None
        )
        try:
            self._latest = EarlyTrial(
                [replace(choice, lanes=engines.lanes) for choice in engines.lineup.choices],
                serving,
                golden=self._bounds().golden,
                memory_mb=self._budget_mb or free_mb(),
                stage=self._store.stage(),
            )
        except (AgentError, OSError) as problem:
            # It is tried when it is complete; if that fails too, the trial reports it.
            log.warning("%s: not tried while it arrives: %s", header.id, words(problem))
            return None
        return self._latest
