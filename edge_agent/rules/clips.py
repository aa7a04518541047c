"""Clips of events: the camera's own packets from some seconds before an event to some after it."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from ..config.settings import Settings
from ..core.errors import AgentError
from ..core.logs import Latch
from ..core.threads import start_thread
from ..device.pressure import disk_problems
from ..sources.packet_ring import PACKETS, ClipWriter, PacketRing
from ..sources.spec import parse_source
from .event import Event
from .evidence import FULL_SHARE, KEPT, PART, Allowance, Crowd, Evidence, make_folder

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
MOST_SECONDS = 300.0
"""Longest clip; of a longer event the beginning is kept."""
NO_PACKETS = (
    "its source has given no packets to keep; MJPEG and single JPEGs are none: read the camera's "
    "rtsp:// stream"
)
GROWTH = 8 * 2**20
"""More than a clip grows between two looks at the disk, bytes."""
MOST = 64
"""Most clips written at a time, each with an open file."""


@dataclass(slots=True, eq=False)
class _Recording:
    """A clip being written."""

    event: str
    folder: Path
    ring: PacketRing
    since: float
    """When the event began, monotonic seconds."""
    began: float
    """When the clip begins."""
    until: float
    """When the clip ends."""
    writer: ClipWriter | None = None
    """None: no key frame has arrived yet."""
    number: int = 0
    """Number of the next packet."""
    latest: float = 0.0
    """When the last packet in it arrived."""

    @property
    def part(self) -> Path:
        return self.folder / f".{self.event}{KEPT['clip']}{PART}"

    @property
    def size(self) -> int:
        """Bytes written."""
        return 0 if self.writer is None else self.writer.size


def _to_end(recordings: Sequence[_Recording], room: float) -> _Recording | None:
    """Return the clip to end, as all that are being written take *room* bytes; None: they do not.

    The largest of those that show their events already.
    """
    if sum(each.size for each in recordings) < room:
        return None
    shown = [each for each in recordings if each.latest >= each.since]
    return max(shown, key=lambda each: each.size, default=None)


class Clips:
    """Writes the clips of events in a thread, started with the first clip."""

    def __init__(self, evidence: Evidence, settings: Callable[[], Settings]) -> None:
        """Set up without recording; *settings* returns the current settings."""
        self.evidence = evidence
        self.allowance = Allowance(evidence)
        self._settings = settings
        self._known: Settings | None = None
        self._recordings: dict[str, _Recording] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = Latch()
        self._problem: str | None = None
        self._full: Path | None = None
        """The folder that had no space for the last clip."""
        self._crowd = Crowd(
            "events without a clip",
            f"at most {MOST} are written at a time: shorten evidence.after_s, or keep clips for "
            "fewer rules",
        )
        self._cut = Crowd(
            "clips cut short",
            "one may take half of evidence.keep_mb, and all that are being written nine tenths; "
            "raise it",
        )

    def follow_settings(self) -> None:
        """Have sources keep packets if events of their pipelines need clips."""
        settings = self._settings()
        if settings is self._known:
            return
        self._known = settings
        clips = any(rule.clip for pipeline in settings.pipelines for rule in pipeline.rules)
        if clips and not settings.evidence.keep_mb:
            self._report("evidence.keep_mb is 0; set it to the space for clips")
        wanted = {}
        for pipeline in settings.pipelines:
            if settings.evidence.keep_mb and any(rule.clip for rule in pipeline.rules):
                spec = parse_source(pipeline.source, settings.base)
                wanted[spec.text] = settings.evidence.before_s
        PACKETS.want(wanted)

    def take(self, event: Event) -> None:
        """Begin the clip of an event or set its end; the thread writes it."""
        settings = self._settings()
        if not event.clip or not settings.evidence.keep_mb:
            return
        now, after = time.monotonic(), settings.evidence.after_s
        with self._lock:
            ongoing = self._recordings.get(event.id)
            if event.state == "end" and ongoing is not None:
                ongoing.until = min(ongoing.until, now + after)
        if event.state not in {"begin", "once"}:
            return
        pipeline = next((p for p in settings.pipelines if p.name == event.pipeline), None)
        if pipeline is None:
            return  # the settings have changed
        ring = PACKETS.ring(parse_source(pipeline.source, settings.base).text)
        if ring is None:
            return  # as above
        if len(self._recordings) >= MOST:
            self._crowd.add()
            return
        began = event.since - settings.evidence.before_s
        until = now + (after if event.state == "once" else MOST_SECONDS)
        folder = self.evidence.folder / event.pipeline
        if self._thread is None:
            self._thread = start_thread("clips", self._run, self._report)
        if self._thread is None:
            return
        with self._lock:
            self._recordings[event.id] = _Recording(
                event.id, folder, ring, event.since, began, until
            )

    def close(self, seconds: float) -> None:
        """End all clips with the packets so far."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def problems(self) -> list[str]:
        """Return why clips are not kept, as texts for health."""
        if self._full is not None and not disk_problems(self._full):
            self._full = self._problem = None  # the next event may be long in coming
            self._failing.begins(False)
        failed = [] if self._problem is None else [f"clips: {self._problem}"]
        return failed + self._crowd.problems() + self._cut.problems()

    def _run(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self._write_all(last=False)
        self._write_all(last=True)

    def _write_all(self, *, last: bool) -> None:
        with self._lock:
            recordings = list(self._recordings.values())
        keep_mb = self._settings().evidence.keep_mb
        room = keep_mb * 2**20 or inf
        if recordings:
            self.evidence.make_room(keep_mb)  # for while they grow
        cut = _to_end(recordings, FULL_SHARE * room)
        if cut is not None:
            self._cut.add()
        for each in recordings:
            try:
                over = self._write(each, room / 2) or last or each is cut
                if over and each.writer is not None:
                    each.writer.close()
                    kept = each.folder / f"{each.event}{KEPT['clip']}"
                    each.part.replace(kept)
                    self._failing.begins(False)
                    self._problem = self._full = None
                    self.evidence.added(kept.stat().st_size, keep_mb)
                elif over:
                    self._report(NO_PACKETS)
            except (AgentError, OSError) as problem:
                self._give_up(each, str(getattr(problem, "strerror", None) or problem), keep_mb)
                over = True
            if over:
                with self._lock:
                    self._recordings.pop(each.event, None)

    def _give_up(self, recording: _Recording, why: str, keep_mb: int) -> None:
        """Remove a clip that cannot be written, and make room for the next one if none is left."""
        self._full = recording.folder if why == os.strerror(errno.ENOSPC) else None
        self._report(why)
        if recording.writer is not None:
            with suppress(AgentError):  # what it still has to write finds no space either
                recording.writer.close()
        size = 0
        with suppress(OSError):
            size = recording.part.stat().st_size
            recording.part.unlink()
        quota = errno.EDQUOT if why == os.strerror(errno.EDQUOT) else 0
        # What came before the event is written at once.
        size = min(size, max(GROWTH, recording.ring.bytes))
        self.evidence.make_room(keep_mb, size, failed=quota)

    def _write(self, recording: _Recording, most: float) -> bool:
        """Write the packets that have arrived; return whether the clip is complete.

        It is, too, with *most* bytes: it must not take the room of all other evidence.
        """
        if recording.writer is None:
            number = recording.ring.start(recording.began)
            if number is None:
                return time.monotonic() > recording.until
            make_folder(recording.folder)
            recording.writer = ClipWriter(str(recording.part), recording.ring)
            recording.number = number
        if recording.ring.session is not recording.writer.session:
            # The camera was lost: its next packets belong to another stream.
            if recording.latest >= recording.since:
                return True
            recording.writer.close()
            recording.writer = None  # of the event itself there is nothing yet
            return self._write(recording, most)
        for packet in recording.ring.read(recording.number):
            if packet.since > recording.until:
                return True
            recording.writer.write(packet)
            recording.latest = packet.since
            recording.number = packet.number + 1
            if recording.writer.size >= most:
                self._cut.add()
                return True
        return time.monotonic() > recording.until + POLL_SECONDS

    def _report(self, problem: str) -> None:
        """Log the first of a series of failures.

        It stays in health until a clip is kept, or a full disk has space again.
        """
        self._problem = problem
        if self._failing.begins(True):
            log.warning("a clip of an event cannot be kept: %s", problem)
