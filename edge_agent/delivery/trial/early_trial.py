"""A trial that begins while its model is still arriving: what was authenticated goes to its child.

Whatever comes of it, the trial proper follows, in the same child, when the model is whole.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import AgentError
from ...core.types import Kind, Outcome, Sample, Tensors, TensorSpec
from ...inference.engines.protocol import EngineChoice, fix_inputs
from ...inference.engines.registry import runs_arriving
from ...inference.model import Region, cut
from ...inference.preprocess.inputs import fixed_shapes
from ...inference.preprocess.preprocessor import build_preprocessor
from ...models.manifest import load
from ..early.growing_file import PROGRESS
from .process import TrialProcess

if TYPE_CHECKING:
    from ...runtime.serving.active import Serving

log = logging.getLogger(__name__)

MAX_NUMBERS = 8 * 2**20
"""In the inputs of a network that has not been tried; a picture of 2 megapixels has 6 million."""
STEP_BYTES = 128 * 1024
"""How much must have come before the child hears of it: each word wakes it up."""


class Newest:
    """Stands where a candidate's shadow would, and keeps the newest frame."""

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.region: Region | None = None

    def compare(
        self,
        sample: Sample,
        incumbent: Outcome | None,
        threshold: float | None,
        region: Region | None,
    ) -> None:
        """Take a frame that the incumbent has dealt with; what it found is not needed."""
        del incumbent, threshold
        self.sample, self.region = sample, region


class Ahead:
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
        self._serving = serving
        self._golden = golden
        self._newest = Newest()
        self.over = False
        """Whether nothing is left of it."""
        self._said = 0
        self._granted = False
        if serving is not None and serving.shadow is None:
            serving.shadow = self._newest
        self.kind: Kind | None = serving.kind if serving is not None else None
        self._quick = next((choice for choice in choices if runs_arriving(choice)), None)
        engines = [choice.engine for choice in choices]
        if self._quick is not None:
            first = self._quick.engine
            engines = sorted(engines, key=lambda engine: engine != first)
        self._folder = folder
        try:
            self._process: TrialProcess | None = TrialProcess(engines, memory_mb, self._frame)
        except OSError:
            self._process = None
            self.close()
            raise

    def begin(self, data: Path) -> None:
        """Have a model followed, in the file that its package's members are written to."""
        if self._process is None or self._quick is None:
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
                    "choice": asdict(self._quick),
                    "kind": self.kind,
                    "golden": self._golden,
                },
                descriptor,
            )
        finally:
            os.close(descriptor)

    def _frame(self, specs: tuple[TensorSpec, ...]) -> Tensors | None:
        """Make inputs of the network of the newest frame; None where that cannot be done."""
        sample, kind = self._newest.sample, self.kind
        if sample is None or kind is None:
            return None
        try:
            spec = load(self._folder).manifest.input
            settled = fix_inputs(specs, fixed_shapes(spec, kind), Path("model"))
            if sum(prod(size or 1 for size in each.shape) for each in settled) > MAX_NUMBERS:
                return None
            data = sample.data
            if self._newest.region is not None:
                data, _, _ = cut(data, self._newest.region)
            return build_preprocessor(spec, settled, kind)(data)[0]
        except AgentError:
            return None  # is said by the judge of the whole model

    @property
    def wish(self) -> tuple[int, int] | None:
        """Bytes of the package that should come before their turn."""
        return self._process.wish if self._process is not None else None

    def arrived(self, have: int, *, granted: bool, whole: bool = False) -> None:
        """Say what is there and authenticated.

        Args:
            have: bytes of the package, from the beginning.
            granted: the wish is among what is there.
            whole: nothing is missing.

        """
        if have - self._said < STEP_BYTES and granted == self._granted and not whole:
            return
        self._said, self._granted = have, granted
        if self._process is not None:
            self._process.news(PROGRESS.pack(have, granted))

    def take(self) -> TrialProcess | None:
        """Give the child away, for the trial proper."""
        self._look_away()
        process, self._process = self._process, None
        return process

    def close(self) -> None:
        """End the child, if nobody has taken it, and leave nothing; may be called twice."""
        process = self.take()
        if process is not None:
            process.close()
        self._stack.close()
        self.over = True

    def _look_away(self) -> None:
        if self._serving is not None and self._serving.shadow is self._newest:
            self._serving.shadow = None
