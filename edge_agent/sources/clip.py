"""A video file, played at its own rate or as fast as its frames are consumed."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from ..core.errors import SampleError, SourceError
from ..core.text import naming
from ..core.types import Reading
from ..device.resources import usable_cpus
from .hw_decode import HARDWARE
from .opencv import HEAD_BYTES, load, refusal
from .source import SourceContext, wait_until
from .spec import SourceSpec
from .transport import Splitting, open_splitting
from .video import FEW_CORES, FILE, SOUND, EncryptedError, Video

log = logging.getLogger(__name__)

# Frames per second if a clip states no rate or an absurd one.
USUAL_RATE = 25.0
# What is recognized, only to name it.
SOUNDS = {
    "protocol_whitelist": "file",
    "format_whitelist": "wav,w64,flac,mp3,aac,loas,aiff,au,caf,ac3,eac3,dts,amr,wv,ape,tta,voc",
}
# A longer pause between frames is a damaged timestamp, which would freeze the picture.
LONGEST_PAUSE = 10.0


class Clip:
    """A video file from its first frame to its last, once or in a loop."""

    def __init__(self, spec: SourceSpec, context: SourceContext) -> None:
        """Open the file and read its first frame, to detect an unplayable file now."""
        self._spec = spec
        self._name = spec.redacted
        self._context = context
        self._timing = _Timing()
        self._short: str | None = None
        """Where it ended well before the number of frames in its header, or could not be read
        further."""
        self._cut: str | None = None
        """The same for this pass."""
        self._problem: SampleError | None = None
        """Why the frame of the last `grab` cannot be decoded."""
        self._ahead: list[SampleError | None] = []
        """The problem, if any, of each frame read when the file was opened."""
        self._first = 0
        """Number of the first frame that could not be decoded; 0: none."""
        self._damaged = 0
        self._count = 0
        self._grabbed = 0, 0.0
        self._transport: Splitting | None = None
        self._video = self._open()

    def grab(self) -> bool:
        if self._context.closing.is_set():
            return False
        if not self._advance():
            self._record_if_short()
            if not self._spec.options["loop"]:
                return False
            self._video.close()
            self._video = self._open()
            self._advance()
        self._count += 1
        # A frame that cannot be decoded has no due time.
        if self._problem is None and not self._spec.lossless:
            due = self._timing.due(self._video.stamps)
            if not wait_until(due, self._context.closing):
                return False
        self._grabbed = time.time_ns(), time.monotonic()
        return True

    def retrieve(self) -> Reading:
        what = f"{self._name}: the file is damaged: frames of it cannot be decoded"
        if self._problem is None:
            try:
                return Reading(self._video.picture(), *self._grabbed)
            except SampleError as problem:
                what = str(problem)
        self._damaged += 1
        self._first = self._first or self._count
        # The same text for all, so that it is logged once.
        raise SampleError(f"{what}, the first is number {self._first}")

    @property
    def trouble(self) -> str | None:
        """The trouble with the file, of which some frames may be usable, or None."""
        said = []
        if self._damaged:
            said.append(
                f"{self._damaged} of the frames could not be decoded, the first is "
                f"number {self._first}"
            )
        if self._short is not None:
            said.append(self._short)
        return "; ".join(said) or None

    def close(self) -> None:
        self._video.close()
        self._close_transport()

    def _close_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _advance(self) -> bool:
        """Advance to the next frame, or the next one read when the file was opened."""
        if self._ahead:
            self._problem = self._ahead.pop(0)
            return True
        self._problem = None
        try:
            if self._video.advance():
                return True
            rest = None if self._transport is None else self._transport.rest
            if rest is None:
                return False
            self._video.close()
            self._video = self._open(rest)
            self._problem = self._ahead.pop(0)
            return True
        except SampleError as problem:
            self._problem = problem
            return True
        except SourceError as problem:
            self._cut = str(problem)
            return False

    def _open(self, place: int = 0) -> Video:
        """Open the file at its start, because seeking is not exact in every container.

        *place*: offset of another video in a transport stream, bytes.
        """
        import av

        # Before opening, because FFmpeg's own reasons are terse.
        head = _head(self._spec)
        self._close_transport()
        self._began = place
        path = self._spec.local
        self._transport = open_splitting(path, place)
        try:
            video = Video(
                # Absolute, so that no name can be mistaken for a URL.
                *(self._transport or str(path.absolute()), self._name, FILE),
                threads=1 if usable_cpus() < FEW_CORES else 0,
                keys=self._spec.options["frames"] == "key",
                decode=self._spec.options["decoder"] or self._context.decode,
                source=self._spec.text,
            )
        except av.FFmpegError:
            self._close_transport()
            raise SourceError(f"{self._name}: {_why_unplayable(path, head)}") from None
        self._count, self._ahead = self._count if place else 0, []
        self._timing.begin(video.rate)
        found = False
        while not found:
            try:
                found = video.advance()
                if not found:
                    break
                self._ahead.append(None)
            except SampleError as problem:
                self._ahead.append(problem)
            except EncryptedError:
                video.close()
                self._close_transport()
                raise
            except SourceError:
                break
        if not found:
            video.close()
            if HARDWARE.doubt(self._name):
                return self._open(place)
            raise SourceError(f"{self._name}: holds no frame that can be decoded")
        return video

    def _record_if_short(self) -> None:
        """Record that a clip held less than its container states."""
        if self._cut is None:
            try:
                size = self._spec.local.stat().st_size
            except OSError:  # removed, or a disk that is gone
                size = 0
            self._cut = self._video.read.shortfall(size, self._began)
        if self._cut is not None and self._short is None:
            self._short = self._cut
            log.warning("%s: %s", self._name, self._short)


class _Timing:
    """Due times of the frames of a clip played at its own rate."""

    def __init__(self) -> None:
        self._due: float | None = None
        self._period = 1.0 / USUAL_RATE
        self._stamps: tuple[float | None, float | None] = None, None
        self._unordered = False
        """Whether the times of the frames go back while those of the packets go on: AVI and WMV
        have only these, which H.264 with B-frames gives to other frames."""

    def begin(self, rate: float) -> None:
        """Begin a pass over the clip, whose header states *rate* frames per second."""
        self._period = 1.0 / (rate if 0.01 < rate <= 1000 else USUAL_RATE)
        self._stamps = None, None

    def due(self, stamps: tuple[float | None, float | None]) -> float:
        """Return when a frame is due on the monotonic clock; *stamps*: see `Video.stamps`.

        A frame that is late because of slow decoding does not delay later ones.
        """
        before, self._stamps = self._stamps, stamps
        if self._due is None:
            self._due = time.monotonic()
            return self._due
        # The first frame of a pass has no step, and follows the last frame of the previous pass.
        step, order = (
            0.0 if last is None or this is None else this - last
            for last, this in zip(before, stamps, strict=True)
        )
        self._unordered = self._unordered or step < 0 < order
        step = order if self._unordered else step
        self._due += step if 0 < step <= LONGEST_PAUSE else self._period
        return self._due


def open_source(spec: SourceSpec, context: SourceContext) -> Clip:
    """Open a video file."""
    return Clip(spec, context)


def _head(spec: SourceSpec) -> bytes:
    """Return the first bytes of a file, or raise the reason if it cannot be opened."""
    try:
        with spec.local.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except IsADirectoryError:
        raise SourceError(
            f"{spec.redacted}: {spec.local} is a folder; write dir: for a folder of pictures"
        ) from None
    except OSError as problem:
        raise SourceError(f"{naming(spec.redacted, spec.local)}: {problem.strerror}") from None
    if not head:
        raise SourceError(f"{naming(spec.redacted, spec.local)}: is empty")
    return head


def _why_unplayable(path: Path, head: bytes) -> str:
    """Return why a file that begins with *head* is not played."""
    import av

    if (why := refusal(head)) is not None:
        return why
    if load().haveImageReader(str(path)):
        return "is a picture; write dir: for pictures"
    with suppress(av.FFmpegError), av.open(str(path.absolute()), options=SOUNDS) as container:
        # Decoded, because some of these formats are found in what is damaged, too.
        if container.streams.audio and next(container.decode(audio=0), None) is not None:
            wav = container.format.name == "wav"
            return "has no video (only audio); write wav: for its sound" if wav else SOUND
    return (
        "is not a video that can be played (damaged, cut short, or of an unknown format); look at "
        "it with `ffprobe`"
    )
