"""Live pictures: a camera, or a clip at its own rate, read once for all its pipelines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import SampleError
from ..core.types import Reading
from .shared import Everyone, Shared, Tap, Wanted
from .shared import share as share_source
from .source import Source, SourceContext, open_source
from .spec import SourceSpec


class Pictures:
    """The pictures of an opened source; only requested ones are converted."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._began: float | None = None

    def read(self, timeout: float, wanted: Wanted) -> Sequence[Reading | SampleError] | None:
        del timeout
        if not self.source.grab():
            return None
        now = time.monotonic()
        if self._began is None:
            self._began = now
        if not wanted(now - self._began):
            return ()
        try:
            return (self.source.retrieve(),)
        except SampleError as problem:
            return (problem,)

    def close(self) -> None:
        self.source.close()


class LivePictures(Tap):
    """One pipeline's view of a camera: the newest picture that it wants."""

    def wants(self, at: float) -> bool:
        return super().wants(at) and self.context.wanted(at)

    def offer(self, item: Reading | SampleError) -> None:
        if self.waiting:
            self.waiting.clear()
            self.context.missed()
        self.waiting.append(item)

    @property
    def trouble(self) -> str | None:
        """The trouble with a clip so far."""
        pictures = self._shared.producer
        return pictures.source.trouble if isinstance(pictures, Pictures) else None


def share(spec: SourceSpec, context: SourceContext) -> LivePictures:
    """Return a source of pictures, opening it unless another pipeline has it open.

    Raises:
        SourceError: it cannot be opened.
    """

    def open_pictures(shared: Shared) -> Pictures:
        def quickest(usual: float) -> float:
            return max([tap.context.rate(usual) for tap in shared.taps], default=usual)

        inner = replace(context, closing=Everyone(shared), rate=quickest)
        return Pictures(open_source(spec, inner))

    return share_source(spec, context, open_pictures, lambda shared: LivePictures(shared, context))
