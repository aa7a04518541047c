"""The capture side of a pipeline: keeps a source open and puts its captures on the board.

One thread per pipeline; if it hangs in a driver, it is left behind, and another thread begins.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ...config.settings import Pipeline as PipelineSettings
from ...core.backoff import Backoff
from ...core.containment import converted
from ...core.errors import AgentError, SampleError, SilentError, SourceError, thread_limit
from ...core.threads import ThreadGroup
from ...core.types import Array, Reading, Sample
from ...inference.model import Model
from ...inference.preprocess.placement import PreparedSample, Region, cut, outside
from ...serving.active import Serving
from ...sources.source import OPEN_SECONDS, Source, open_source
from ...sources.spec import SourceSpec
from ..scheduler.board import FrameQueue
from .attempt import Attempt
from .rate import Rate
from .snapshots import Snapshots
from .status import Common, FrameErrors, SourceStatus
from .windows import MisfitError, Windows

if TYPE_CHECKING:
    from ...sources.continuity import Counts
    from .camera_watch import CameraWatch
    from .masks import Masks
    from .motion_gate import MotionGate

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
"""Time for a switched-off source to close before it is opened again."""
SOURCE_STABLE = 10.0
AGAIN = 8
"""Fewest pictures that are inferred without motion after a change; as many as rules look at."""


class Capture:
    """Keeps a source open, reopening it after each loss."""

    def __init__(
        self,
        settings: PipelineSettings,
        spec: SourceSpec,
        queue: FrameQueue[Model],
        servings: Sequence[Serving],
        common: Common,
        *,
        region: Region | None,
        wait_credit: Callable[[threading.Event], bool],
        snapshots: Snapshots,
        status: SourceStatus,
        errors: FrameErrors,
    ) -> None:
        """Build the capture side; nothing is opened before `start`.

        *region* None: the models get the whole picture. *wait_credit* waits until a lossless source
        may deliver more; it returns False when the source must stop.
        """
        self.spec = spec
        self.queue = queue
        self.servings = servings
        self.rate = Rate(settings.rate)
        self.board = common.board
        self.wait_credit = wait_credit
        self.pictures = Pictures(self, settings, region, snapshots)
        self._status = status
        self._errors = errors
        self._context = replace(
            common.context,
            decode=settings.decoding(common.context.decode),
            alone="" if settings.share else settings.name,
        )
        self.counts: Counts | None = None
        """Counters of a live signal."""
        self._misfit = False
        """Whether the last data did not fit; the state is "running" again when some fits."""
        self._attempt: Attempt | None = None

    def apply(self, settings: PipelineSettings) -> None:
        """Apply a new rate, ending the pause of the old one, and new masks.

        The masks apply from the next picture on.
        """
        self.pictures.apply(settings)
        if settings.rate != self.rate.most:
            self.rate = Rate(settings.rate)

    def halt(self) -> None:
        """Stop capturing."""
        if self._attempt is not None:
            self._attempt.closing.set()

    def start(self, threads: ThreadGroup) -> None:
        """Start capturing."""
        attempt = Attempt()
        before, self._attempt = self._attempt, attempt
        self.rate.restart()

        def capture() -> None:
            if before is not None and before.thread is not None and not before.abandoned:
                # A camera that is still open cannot be opened again.
                with suppress(RuntimeError):  # it was never started
                    before.thread.join(CLOSE_SECONDS)
            self._capture(attempt)

        attempt.thread = threads.spawn(f"capture-{self.queue.name}", capture, patient=True)

    def watch(self, threads: ThreadGroup) -> None:
        """Abandon a camera that hangs in its driver, where no timeout helps (opencv#22677).

        A file that does not open, as on an unreachable network disk, is only reported: another
        attempt would hang too, and this one continues once the disk is back.
        """
        attempt = self._attempt
        if attempt is None or attempt.closing.is_set():
            return
        if time.monotonic() - attempt.beat < attempt.limit:
            return
        if not self.spec.live:
            if attempt.opening:
                attempt.late = True
                self._status.set(
                    "lost",
                    f"{self.spec.redacted}: has not opened for {attempt.limit:.0f} s; "
                    "is it a pipe, or on a disk that does not answer?",
                )
            return
        from ...sources.shared import silence

        self._status.set("lost", silence(attempt.limit))
        attempt.closing.set()
        if attempt.thread is not None:
            threads.abandon(attempt.thread)
            attempt.abandoned = True
        self.start(threads)

    def _capture(self, attempt: Attempt) -> None:
        """Put captures on the board, reopening the source after each loss."""
        backoff = Backoff(first=0.5, most=30.0)
        while not attempt.closing.is_set():
            began = time.monotonic()
            attempt.beat, attempt.limit, attempt.opening = began, OPEN_SECONDS, True
            try:
                with closing(self._open(attempt)) as source:
                    self.pictures.look_again()
                    attempt.limit, attempt.opening = self.spec.stall_seconds, False
                    self._status.is_open = True
                    self.counts = getattr(source, "counts", None)
                    self._errors.unread = getattr(source, "unread", {})
                    # A sensor may send nothing for hours and still work, unless `stall_s` is set.
                    silent = self.spec.live and self.spec.kind == "signal"
                    if attempt.late or (silent and math.isinf(self.spec.stall_seconds)):
                        attempt.late = False
                        self._status.set("running", None)
                    try:
                        self._read(source, attempt)
                    finally:
                        self.board.end_turn(self.queue)
                    trouble = source.trouble
                # Published after the last result, for clients that wait for it.
                self.board.wait_delivered(self.queue, attempt.closing)
                if not attempt.closing.is_set():
                    self._status.set("ended", trouble)
                return
            except SourceError as problem:
                if attempt.closing.is_set():
                    return
                self._misfit = isinstance(problem, MisfitError)
                lost = problem
            except Exception as problem:
                if isinstance(problem, AgentError) or thread_limit(problem) is not None:
                    raise
                lost = SourceError(str(converted(problem, self.spec.redacted)))
            self._status.set("lost", str(lost))
            if time.monotonic() - began > SOURCE_STABLE and not self._misfit:
                backoff.reset()
            attempt.opening = self._status.is_open = False
            lost.again_at = max(lost.again_at, time.monotonic() + backoff.pause())
            # It is kept until the next loss; its traceback would keep the last picture.
            lost.__traceback__ = lost.__context__ = None
            while time.monotonic() < lost.again_at and not attempt.closing.wait(0.25):
                attempt.alive()

    def _open(self, attempt: Attempt) -> Source:
        """Open the source, sharing it with other pipelines if possible."""

        def wanted(at: float) -> bool:
            self._note_running(attempt)
            if self.rate.due(at):
                return True
            self.board.drop(self.queue, "rate")
            return False

        context = replace(
            self._context,
            closing=attempt.closing,
            rate=lambda usual: self.rate.most or usual,
            wanted=wanted,
            missed=lambda: self.board.drop(self.queue, "superseded"),
            alive=attempt.alive,
        )
        if self.spec.lossless or self.spec.kind == "signal":
            return open_source(self.spec, context)  # live signals are shared by their own module
        from ...sources.live_pictures import share

        return share(self.spec, context)

    def _note_running(self, attempt: Attempt) -> None:
        """Record that the source has delivered something."""
        if self._status.state != "running" and not self._misfit:
            self._status.first_frame(time.monotonic() - attempt.began)
            self._status.set("running", None)

    def _read(self, source: Source, attempt: Attempt) -> None:
        windows = Windows(self) if self.spec.kind == "signal" else None
        while True:
            try:
                self._read_into(source, attempt, windows)
            except Exception as problem:
                if windows is not None:
                    windows.end("gap" if self.spec.live else "partial")  # the begun window is lost
                if not isinstance(problem, SilentError):
                    raise
                self._status.set("lost", str(problem))
            else:
                return

    def _read_into(self, source: Source, attempt: Attempt, windows: Windows | None) -> None:
        lossless = self.spec.lossless
        # A signal is paced by window.
        recorded = lossless and windows is None
        while not attempt.closing.is_set():
            if lossless and not self.wait_credit(attempt.closing):
                return
            if recorded and not self.pace(attempt):
                return
            if recorded and not self.board.wait_turn(self.queue, burst=self.rate.most is None):
                return
            attempt.alive()
            if not source.grab():
                break
            if attempt.closing.is_set():
                return  # abandoned, or stopped, while the driver was stuck
            self._note_running(attempt)
            try:
                reading = source.retrieve()
                if windows is None:
                    self._check(reading)
                elif not windows.put(reading, attempt):
                    return
            except SampleError as problem:
                self.refuse(problem, attempt, windows)
                continue
            if windows is not None:
                self._misfit = False
            elif not self.pictures.put(reading):
                return
        if windows is not None and windows.finish(attempt):
            windows.end()

    def _check(self, picture: Reading) -> None:
        self.pictures.check(picture.data)
        if picture.file is None:
            self._status.size = picture.data.shape[1], picture.data.shape[0]

    def refuse(self, problem: SampleError, attempt: Attempt, windows: Windows | None) -> None:
        """Count a reading, or a row of one, that cannot be used."""
        if problem.quiet_at is not None:
            self._errors.quiet_at = problem.quiet_at
        else:
            self.board.drop(self.queue, "error")
            self._errors.record(problem)
        if windows is not None:
            # No window may span it; readings without a model go on after what says that it is null.
            quiet = problem.quiet_at is not None
            windows.end("gap" if self.spec.live else "partial", skipped=quiet)
        if self.spec.lossless:
            # A looped recording with only damaged data must not spin.
            attempt.closing.wait(0.005)

    def pace(self, attempt: Attempt) -> bool:
        """Pace a lossless source according to `rate`; False when it must stop."""
        # In small steps: `rate` may change meanwhile.
        while (pause := self.rate.pause(time.monotonic())) > 0:
            if attempt.closing.wait(min(pause, 0.5)):
                return False
        self.rate.take(time.monotonic())
        return True


def masks_of(settings: PipelineSettings) -> Masks | None:
    """Return the masks that black out areas of a picture, or None if there are none."""
    if not settings.masks:
        return None
    from .masks import Masks

    return Masks(settings.masks)


class Pictures:
    """Puts a source's pictures on the board, masked, skipping those without motion."""

    def __init__(
        self,
        capture: Capture,
        settings: PipelineSettings,
        region: Region | None,
        snapshots: Snapshots,
    ) -> None:
        self.on_still: Callable[[Sample], object] = lambda _sample: None
        """Called with each picture that is skipped because nothing has moved in it."""
        self.unsettled: Callable[[], bool] = lambda: False
        """Whether the latest results leave open what is in the scene, so that it is looked at."""
        self.masks = masks_of(settings)
        """Replaced as a whole while frames continue."""
        self._capture = capture
        self._region = region
        self._snapshots = snapshots
        self._gated = settings.motion
        self._rules = settings.rules
        self._gate: MotionGate | None = None
        self._pass_until = AGAIN
        """As long as fewer pictures have been inferred, they pass without motion, too."""
        self._served: list[Model | None] = []
        self.watched = settings.camera and not capture.spec.lossless
        """Whether the camera's condition is monitored."""
        self._watch: CameraWatch | None = None

    def check(self, picture: Array) -> None:
        """Check that the region is inside the picture: a camera may change its size at any time.

        Raises:
            SampleError: the region is entirely outside the picture.
        """
        why = None if self._region is None else outside(picture, self._region)
        if why is not None:
            raise SampleError(why)

    def put(self, reading: Reading) -> bool:
        """Put a picture on the board, or skip it; False when the capture must stop."""
        queue, board = self._capture.queue, self._capture.board
        another = self.watched and self._look(reading)
        camera = self.camera or ""
        if self.masks is not None:
            reading = replace(reading, data=self.masks.apply(reading.data))
        needed = self._snapshots.needs(reading.data, queue.account.dropped["deadline"])
        if self._gated and not self._passes(reading.data) and not (needed or another):
            seq = queue.seq
            board.drop(queue, "still")
            self.on_still(Sample(reading.data, seq, reading.time_ns, reading.since, reading.file))
            return True
        early = self._prepare_early(reading)
        return board.put(
            queue,
            lambda seq: Sample(
                *(reading.data, seq, reading.time_ns, reading.since, reading.file),
                early=early,
                capture=reading.capture,
                camera=camera,
            ),
        )

    @property
    def camera(self) -> str | None:
        """The camera's trouble; empty if there is none, None if it is not known."""
        return self._watch.trouble if self.watched and self._watch is not None else None

    def _look(self, reading: Reading) -> bool:
        """Monitor the camera's condition from the second picture on; True if it has changed."""
        if self._watch is None and self._capture.queue.seq > 0:
            from .camera_watch import CameraWatch

            self._watch = CameraWatch()
        return self._watch is not None and self._watch.look(reading.data, reading.since)

    def _prepare_early(self, reading: Reading) -> PreparedSample | None:
        """Prepare a picture that will wait, while it is still in the processor's cache.

        One that will not wait is left to its lane, while the next is decoded in parallel; one that
        a newer picture may replace is not worth it.
        """
        servings = self._capture.servings
        if len(servings) > 1 or not self._capture.queue.pacing.bursting:
            return None
        model = servings[0].model
        if model is None or model.together > 1:
            return None
        try:
            return model.prepare_data(reading.data, self._region, stream=reading.file is None)
        except AgentError:
            return None  # the lane gets the same error and records it

    def apply(self, settings: PipelineSettings) -> None:
        """Use other settings from the next picture on."""
        self.masks, self._rules = masks_of(settings), settings.rules
        self.watched = settings.camera and not self._capture.spec.lossless
        self.look_again()

    def look_again(self) -> None:
        """Let some pictures be inferred though nothing moves: what was found is not known now."""
        rules = max((rule.needed[1] for rule in self._rules), default=0)
        # An object has its number from its second result on.
        self._pass_until = self._looked_at + max(AGAIN, rules + 2)

    def _passes(self, picture: Array) -> bool:
        """Whether a picture has moved, or has to be looked at without that."""
        servings = self._capture.servings
        before, served = self._served, [serving.model for serving in servings]
        self._served = served
        if any(old not in {None, new} for old, new in zip(before, served, strict=False)):
            self.look_again()
        # The gate gets every picture, to know its noise.
        moved = self._moved(picture)
        # A candidate has to see frames, at night as well.
        wanted = self._looked_at < self._pass_until or any(each.shadow for each in servings)
        return moved or wanted or self.unsettled()

    @property
    def _looked_at(self) -> int:
        """How many pictures have been inferred, or will be if no newer one comes."""
        account = self._capture.queue.account
        return account.inferred + account.waiting

    def _moved(self, picture: Array) -> bool:
        if self._gate is None:
            from .motion_gate import MotionGate

            self._gate = MotionGate()
        # Motion elsewhere cannot be found.
        seen = picture if self._region is None else cut(picture, self._region)[0]
        return self._gate.moved(seen)
