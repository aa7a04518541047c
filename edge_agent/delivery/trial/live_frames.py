"""The newest frame of a pipeline, as another model in its place would get it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import AgentError
from ...core.types import Kind, Outcome, Sample, Tensors, TensorSpec
from ...inference.engines.engine import fix_inputs
from ...inference.preprocess.inputs import fixed_shapes
from ...inference.preprocess.placement import Region, cut
from ...inference.repeated import build_for_one
from ...models.manifest import load

if TYPE_CHECKING:
    from ...serving.active import Serving

MAX_NUMBERS = 8 * 2**20
"""Most numbers in an untried network's inputs; a picture of 2 megapixels has 6 million."""

FrameSource = Callable[[tuple[TensorSpec, ...]], Tensors | None]


class LiveFrames:
    """Watches the frames of a serving model until it is closed.

    It takes the place of a candidate in shadow, and keeps the newest frame.
    """

    def __init__(self, serving: Serving | None, folder: Path) -> None:
        """Watch frames of *serving* for the model in *folder*, which need not exist yet."""
        self._serving = serving
        self._folder = folder
        self._sample: Sample | None = None
        self._region: Region | None = None
        self.kind: Kind | None = None if serving is None else serving.kind
        if serving is not None and serving.shadow is None:
            serving.shadow = self

    def compare(
        self,
        sample: Sample,
        incumbent: Outcome | None,
        threshold: float | None,
        region: Region | None,
    ) -> None:
        """Keep a frame that the incumbent has inferred; its findings are not needed."""
        del incumbent, threshold
        self._sample, self._region = sample, region

    def inputs(self, specs: tuple[TensorSpec, ...]) -> Tensors | None:
        """Return the newest frame as inputs of the network, or None if that is not possible."""
        sample, kind = self._sample, self.kind
        if sample is None or kind is None:
            return None
        try:
            spec = load(self._folder).manifest.input
            settled = fix_inputs(specs, fixed_shapes(spec, kind), Path("model"))
            if sum(prod(size or 1 for size in each.shape) for each in settled) > MAX_NUMBERS:
                return None
            data = sample.data
            if self._region is not None:
                data, _, _ = cut(data, self._region)
            return build_for_one(spec, settled, kind, folder=self._folder)[0](data)[0]
        except AgentError:
            return None  # the trial of the complete model reports it

    def close(self) -> None:
        """Stop watching; the newest frame is kept. May be called twice."""
        if self._serving is not None and self._serving.shadow is self:
            self._serving.shadow = None
