"""Early trials: a candidate is loaded and run in a child while it is still arriving.

The child only reads authenticated bytes. Whatever the result, the trial itself follows, in the same
child, when the package is complete.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.containment import words
from ...core.errors import AgentError
from ...core.types import Kind
from ...device.headroom import free_mb, has_room
from ...inference.engines.engine import EngineChoice
from ...inference.engines.registry import runs_arriving
from ...models.packages.package import PackageHeader
from ...models.store.store import Store
from ..early.onnx_stream import PROGRESS
from .live_frames import LiveFrames
from .process import TrialProcess

if TYPE_CHECKING:
    from ...serving.active import ActiveModels, Serving

log = logging.getLogger(__name__)

WORTH_BYTES = 2**20
"""Least size of a package: a smaller one is complete before a child could start."""
STEP_BYTES = 128 * 1024
"""How many bytes must arrive before the child is told, because each message wakes it."""


class EarlyTrial:
    """The child of one transfer."""

    def __init__(
        self,
        choices: Sequence[EngineChoice],
        serving: Serving | None,
        memory_mb: int,
        stage: AbstractContextManager[Path],
    ) -> None:
        """Start the child, with frames from *serving*; *stage* provides an empty folder for it."""
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(stage)
        self._frames = LiveFrames(serving, self._folder)
        self.kind: Kind | None = self._frames.kind
        self.over = False
        """Whether the child has been taken over or ended, and its folder removed."""
        self._announced = (0, False)
        self._choice = next((choice for choice in choices if runs_arriving(choice)), None)
        engines = [choice.engine for choice in choices]
        if self._choice is not None:
            first = self._choice.engine
            engines = sorted(engines, key=lambda engine: engine != first)
        self._process: TrialProcess | None = None
        try:
            self._process = TrialProcess(engines, memory_mb, self._frames.inputs)
        except OSError:
            self.close()
            raise

    def begin(self, data: Path) -> None:
        """Ask the child to follow a model in the file that its members are written to."""
        if self._process is None or self._choice is None or self.kind is None:
            return
        try:
            descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as problem:
            log.warning("%s: cannot be run while it arrives: %s", data, problem.strerror)
            return
        try:
            question = {"folder": str(self._folder), "choice": asdict(self._choice)}
            self._process.follow(question, descriptor)
        finally:
            os.close(descriptor)

    @property
    def wish(self) -> tuple[int, int] | None:
        """The range of bytes that should be sent early, or None."""
        return self._process.wish if self._process is not None else None

    def arrived(self, have: int, *, granted: bool, whole: bool = False) -> None:
        """Tell the child that the first *have* bytes have arrived and are authenticated.

        *granted*: the bytes it wanted early have arrived, too; *whole*: nothing is missing.
        """
        before, was_granted = self._announced
        if have - before < STEP_BYTES and granted == was_granted and not whole:
            return
        self._announced = have, granted
        if self._process is not None:
            self._process.send_progress(PROGRESS.pack(have, granted))

    def take(self) -> TrialProcess | None:
        """Hand over the child for the trial itself."""
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


def begin_early(header: PackageHeader, store: Store, active: ActiveModels) -> EarlyTrial | None:
    """Start the trial of a package that is about to arrive, if that is worthwhile."""
    # Which of its variants to use is only known when it is complete.
    if header.size < WORTH_BYTES or header.variants or not has_room(header.size):
        return None
    engines = active.loader.engines
    choices = [replace(choice, lanes=engines.lanes) for choice in engines.lineup.choices]
    serving = next((s for s in active.servings_of(header.name) if s.model is not None), None)
    try:
        return EarlyTrial(choices, serving, free_mb(), store.stage())
    except (AgentError, OSError) as problem:
        # It is tried when complete; if that fails, too, the trial reports it.
        log.warning("%s: not tried while it arrives: %s", header.id, words(problem))
        return None
