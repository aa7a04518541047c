"""Clips of events: the camera's own packets from some seconds before to some seconds after."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..config.settings import Settings
from ..core.errors import AgentError
from ..core.logs import Latch
from ..sources.packet_ring import PACKETS, ClipWriter, PacketRing
from ..sources.spec import parse_source
from .event import Event
from .pictures import KEPT, PART, Evidence

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
MOST_SECONDS = 300.0
"""Of one clip; an event that goes on for longer has its beginning kept."""
NO_PACKETS = "its source gives no packets that could be kept"
MOST = 16
"""Clips that are written at a time."""


@dataclass(slots=True, eq=False)
class _Recording:
    """A clip that is being written."""

    event: str
    folder: Path
    ring: PacketRing
    began: float
    """When the clip begins, …"""
    until: float
    """… and ends, monotonic seconds."""
    writer: ClipWriter | None = None
    """None: no key frame has come yet."""
    number: int = 0
    """Of the next packet."""

    @property
    def part(self) -> Path:
        return self.folder / f".{self.event}{KEPT['clip']}{PART}"


class Clips:
    """Writes the clips of events, in a thread that the first one starts."""

    def __init__(self, evidence: Evidence, settings: Callable[[], Settings]) -> None:
        """Record nothing yet; *settings* returns those that hold."""
        self.evidence = evidence
        self._settings = settings
        self._known: Settings | None = None
        self._recordings: dict[str, _Recording] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = Latch()
        self._problem: str | None = None

    def follow_settings(self) -> None:
        """Have the sources keep their packets whose events are to have clips."""
        settings = self._settings()
        if settings is self._known:
            return
        self._known = settings
        clips = any(rule.clip for pipeline in settings.pipelines for rule in pipeline.rules)
        if clips and not settings.evidence.keep_mb:
            self._report("evidence.keep_mb is 0; say there what may be kept")
        wanted = {}
        for pipeline in settings.pipelines:
            if settings.evidence.keep_mb and any(rule.clip for rule in pipeline.rules):
                spec = parse_source(pipeline.source, settings.base)
                wanted[spec.text] = settings.evidence.before_s
        PACKETS.want(wanted)

    def take(self, event: Event) -> None:
        """Begin the clip of an event, or say when it ends; the thread writes it."""
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
        if pipeline is None or len(self._recordings) >= MOST:
            return
        ring = PACKETS.ring(parse_source(pipeline.source, settings.base).text)
        if ring is None:
            return  # the settings have changed
        began = event.since - settings.evidence.before_s
        until = now + (after if event.state == "once" else MOST_SECONDS)
        folder = self.evidence.folder / event.pipeline
        with self._lock:
            self._recordings[event.id] = _Recording(event.id, folder, ring, began, until)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="clips", daemon=True)
            self._thread.start()

    def close(self, seconds: float) -> None:
        """End every clip with what is there."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def problems(self) -> list[str]:
        """Return why clips are not kept, in words for health."""
        return [] if self._problem is None else [f"clips: {self._problem}"]

    def _run(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self._write_all(last=False)
        self._write_all(last=True)

    def _write_all(self, *, last: bool) -> None:
        with self._lock:
            recordings = list(self._recordings.values())
        for each in recordings:
            try:
                over = self._write(each) or last
                if over and each.writer is not None:
                    each.writer.close()
                    kept = each.folder / f"{each.event}{KEPT['clip']}"
                    each.part.replace(kept)
                    self._failing.begins(False)
                    self._problem = None
                    keep_mb = self._settings().evidence.keep_mb
                    self.evidence.added(kept.stat().st_size, keep_mb)
                elif over:
                    self._report(NO_PACKETS)
            except (AgentError, OSError) as problem:
                self._report(str(getattr(problem, "strerror", None) or problem))
                each.part.unlink(missing_ok=True)
                over = True
            if over:
                with self._lock:
                    self._recordings.pop(each.event, None)

    def _write(self, recording: _Recording) -> bool:
        """Write what has come; whether it is over."""
        if recording.writer is None:
            number = recording.ring.start(recording.began)
            if number is None:
                return time.monotonic() > recording.until
            recording.folder.mkdir(parents=True, exist_ok=True)
            recording.writer = ClipWriter(str(recording.part), recording.ring)
            recording.number = number
        if recording.ring.session is not recording.writer.session:
            return True  # the camera was lost: its next packets are of another stream
        for packet in recording.ring.read(recording.number):
            if packet.since > recording.until:
                return True
            recording.writer.write(packet)
            recording.number = packet.number + 1
        return time.monotonic() > recording.until + POLL_SECONDS

    def _report(self, problem: str) -> None:
        """Log the first failure of a row; it stays in health until a clip is kept."""
        self._problem = problem
        if self._failing.begins(True):
            log.warning("a clip of an event cannot be kept: %s", problem)
