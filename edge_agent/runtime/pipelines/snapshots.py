"""Pictures of a pipeline's frames with the findings drawn, for the sinks that want them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from ...config.settings import Pipeline as PipelineSettings
from ...config.settings import Snapshots as Form
from ...core.errors import SampleError
from ...core.types import Array, Findings, Outcome, Sample
from ...mqtt import payloads
from .sinks import Shape, Sink, Sinks, Stream
from .status import FrameErrors

SNAPSHOT_SECONDS = 2.0
"""Time to wait for a frame that meets its deadline, for a requested snapshot."""


class Snapshots:
    """Makes pictures of frames: according to the settings, on request, or for sinks that ask."""

    def __init__(
        self, settings: PipelineSettings, stream: Stream, sinks: Sinks, errors: FrameErrors
    ) -> None:
        self.requested = False
        self.shapes: Callable[[], Sequence[Shape]] = tuple
        """Returns the zones and lines to draw."""
        self._form = _form(settings)
        self._last = -math.inf
        """Capture time of the latest snapshot due by the settings, monotonic seconds."""
        x1, y1, x2, y2 = settings.roi
        self._region = (x1, y1, x2, y2) if any(settings.roi) else None
        self._stream = stream
        self._sinks = sinks
        self._errors = errors
        self._candidate: tuple[float, int] | None = None
        """When the first frame after a request arrived, and how many had been late before."""

    def apply(self, settings: PipelineSettings) -> None:
        """Apply other settings."""
        self._form = _form(settings)

    def request(self) -> None:
        """Make a picture of the next frame."""
        self.requested = True

    def _wanted(self) -> list[Sink]:
        """List the sinks that want the next frame."""
        return [sink for sink in self._sinks.all if sink.wants_picture(self._stream)]

    def result(self, stream: Stream, sample: Sample, outcome: Outcome) -> None:
        """Make a picture of the frame if it is wanted."""
        del stream
        if not sample.picture:
            return
        form = self._form
        due = form is not None and sample.since - self._last >= form.every_s
        if due or self.requested:
            self._last = sample.since
            self.requested, self._candidate = False, None
            self._give(self._sinks.all, sample.data, outcome.findings, sample)
        elif wanted := self._wanted():
            self._give(wanted, sample.data, outcome.findings, sample)

    def needs(self, picture: Array, late: int) -> bool:
        """Whether a frame must be inferred even though nothing moves in it.

        If every frame is too late to be inferred, a requested picture is made without findings
        from *picture*, (height, width, 3) uint8, BGR, just captured. *late* is the number of
        frames dropped because of the deadline.
        """
        if not self.requested:
            return bool(self._wanted())
        now = time.monotonic()
        since, before = self._candidate = self._candidate or (now, late)
        if late > before and now - since > SNAPSHOT_SECONDS:
            self.requested, self._candidate = False, None
            self._give(self._sinks.all, picture, None, None)
        return self.requested

    def _give(
        self, sinks: Sequence[Sink], data: Array, found: Findings | None, sample: Sample | None
    ) -> None:
        """Pass a picture to sinks; *sample* is its sample, None if it was not inferred."""
        from .draw import annotate, jpeg, shrunk

        form = self._form or Form()
        drawn = annotate(data, found, self._region, self.shapes())
        try:
            picture = jpeg(shrunk(drawn, form.width), form.quality)
        except SampleError as problem:
            self._errors.record(problem)
            return
        time_ns = time.time_ns() if sample is None else sample.time_ns
        about = {} if sample is None else {"seq": str(sample.seq)}
        about["time"] = payloads.iso(time_ns)
        self._sinks.give(lambda sink: sink.picture(self._stream, picture, about), sinks)


def _form(settings: PipelineSettings) -> Form | None:
    """Return the form of unrequested pictures, or None if there are none."""
    if isinstance(settings.snapshot, Form):
        return settings.snapshot
    return Form() if settings.snapshot else None
