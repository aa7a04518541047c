"""Evidence of events: pictures and clips, stored on disk up to a limit.

A clip consists of the camera's own packets from some seconds before the event to some after it.
"""

from __future__ import annotations

import errno
import heapq
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from ..core.files import FULL, copy_owner
from ..core.logs import Latch
from ..core.names import is_name
from ..core.threads import start_thread
from ..device.pressure import disk_problems, lacking
from ..mqtt import payloads

log = logging.getLogger(__name__)

RESPITE_SECONDS = 600.0
"""For how long evidence stays of which a reload has said that none is kept."""
KEPT = {"picture": ".jpg", "clip": ".mp4"}
"""Kinds of evidence and their suffixes."""
SUFFIXES = tuple(KEPT.values())
KINDS = {suffix: kind for kind, suffix in KEPT.items()}
SLOT_NS = 10 * 10**9
"""Span of time whose files are counted together, to avoid a million names in memory."""
FAR_NS = 10**20
"""Longer than any time that a file can have."""
PART = ".part"
"""Suffix of half-written files."""
SHORT_SECONDS = 60.0
"""Pause until evidence makes room again where that did not help."""
SHORT_SHARE = 0.125
"""Share of what makes a disk nearly full, below which the oldest goes until twice that is free."""
FULL_SHARE = 0.9
"""Share of the limit to which a full folder is reduced, so that it is not read for each picture."""


_File = tuple[int, int, str]
"""Time in nanoseconds since 1970, bytes, path."""


class Evidence:
    """Pictures and clips of events in a folder. One thread adds pictures; any may call the rest.

    The folder is scanned at the start and each time it is full: in a thread, because a million
    files take seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._failing = Latch()
        self._problem: str | None = None
        self._keep_mb: int | None = None
        self._found = self._added = 0
        """Bytes in the folder when it was scanned, and bytes written since."""
        self._began = time.monotonic()
        self._writing: Path | None = None
        """The file that `keep` is writing."""
        self._pruning: threading.Thread | None = None
        self._lock = threading.Lock()
        """Held while `_pruning` is checked and replaced."""
        self._short_at = -inf
        """When evidence last had to make room on the disk, monotonic seconds."""

    def keep(self, pipeline: str, event: str, data: bytes, keep_mb: int) -> None:
        """Store a picture, removing the oldest if the limit is exceeded."""
        folder = self.folder / pipeline
        self._writing = part = folder / f".{event}{PART}"
        try:
            make_folder(folder)
            part.write_bytes(data)
            part.replace(folder / f"{event}.jpg")
            self._failing.begins(False)
            self._problem = None
        except OSError as problem:
            self._report("written", problem)
            with suppress(OSError):
                part.unlink(missing_ok=True)
            if problem.errno in FULL:
                self.make_room(keep_mb, len(data), failed=problem.errno)
        else:
            self.added(len(data), keep_mb)
            self.make_room(keep_mb, len(data))

    def added(self, size: int, keep_mb: int) -> None:
        """Count added bytes; remove the oldest evidence if the limit is exceeded."""
        self._added += size
        if keep_mb and self._found + self._added > keep_mb * 2**20:  # else see `Allowance`
            self._prune_behind(partial(self.prune, keep_mb, FULL_SHARE))

    def make_room(self, keep_mb: int, size: int = 0, *, failed: int | None = 0) -> None:
        """Remove the oldest if the disk has little room left, which is for what must not be lost.

        Or if it has none for another *size* bytes, or a write has *failed*, with that errno, for
        want of room. Once a minute if that did not help: removed bytes may be free only later.
        """
        if not keep_mb:
            return
        short, now = any(lacking(self.folder, SHORT_SHARE, size)), time.monotonic()
        if not (short or failed):
            if size:  # else nothing was written that shows it
                self._short_at = -inf
        elif now >= self._short_at + SHORT_SECONDS:
            lack, few_files = lacking(self.folder, 2 * SHORT_SHARE, 2 * size)
            if few_files or failed == errno.EDQUOT:  # nobody tells what is left of a quota
                lack = max(lack, int((1 - FULL_SHARE) * (self._found + self._added)))
            lack = lack or 2 * size

            def make() -> None:
                self.prune(keep_mb, FULL_SHARE, lack)
                if short and not any(lacking(self.folder, SHORT_SHARE, size)):
                    self._short_at = -inf

            before, self._short_at = self._short_at, now
            if not self._prune_behind(make):
                self._short_at = before

    def limit(self, keep_mb: int) -> None:
        """Remove evidence beyond the settings' limit, at the start and after a reload."""
        if keep_mb != self._keep_mb and self._prune_behind(partial(self.prune, keep_mb)):
            self._keep_mb = keep_mb

    def close(self, seconds: float) -> None:
        """Wait up to *seconds* until evidence beyond the limit is removed."""
        if self._pruning is not None:
            self._pruning.join(seconds)

    def _prune_behind(self, prune: Callable[[], object]) -> bool:
        """Begin removing the oldest evidence; return False if it is in progress or impossible."""
        with self._lock:
            if self._pruning is not None and self._pruning.is_alive():
                return False
            pruning = start_thread("evidence", prune)
            if pruning is None:
                return False  # with the next picture
            self._added, self._pruning = 0, pruning
            return True

    def prune(self, keep_mb: int, share: float = 1.0, lack: int = 0) -> None:
        """Remove half-written files left by a kill, and the oldest beyond *keep_mb* MiB.

        If the limit is exceeded, the folder is reduced to *share* of it; and by *lack* bytes at
        least.
        """
        most = keep_mb * 2**20
        slots: Counter[int] = Counter()
        now = time.time_ns() + SLOT_NS

        def order(at: int) -> int:
            # What seems to come from the future was kept before the clock was set back.
            return at if at <= now else at - FAR_NS

        try:
            for at, size, _ in self._files(rescue=True):
                slots[order(at) // SLOT_NS] += size
            self._found = slots.total()
            left = min(self._found - lack, most * share if self._found > most else inf)
            if self._found <= left:
                return
            surplus = self._found - left
            last = 0
            for last in sorted(slots):
                surplus -= slots[last]
                if surplus <= 0:
                    break
            partly = []
            for at, size, path in self._files():
                if order(at) // SLOT_NS < last:
                    self._remove(path, size)
                elif order(at) // SLOT_NS == last:
                    partly.append((at, size, path))
            for _, size, path in sorted(partly):
                if self._found <= left:
                    return
                self._remove(path, size)
        except OSError as problem:
            self._report("cleared", problem)

    def _remove(self, path: str, size: int) -> None:
        Path(path).unlink(missing_ok=True)
        self._found -= size

    def _files(self, pipeline: str | None = None, *, rescue: bool = False) -> Iterator[_File]:
        """Yield all stored files; *rescue*: handle those that a kill has left half written."""
        folders = self.folder.glob("*") if pipeline is None else [self.folder / pipeline]
        for folder in folders:
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    # A clip may be completed and renamed meanwhile.
                    with suppress(FileNotFoundError):
                        state = entry.stat()
                        kept = entry.name.endswith(SUFFIXES)
                        if kept and state.st_size:
                            yield state.st_mtime_ns, state.st_size, entry.path
                        elif rescue and (kept or entry.name.endswith(PART)):
                            self._rescue(Path(entry.path))

    def _rescue(self, path: Path) -> None:
        """Keep a clip that was cut short by a kill; remove half a picture, or an emptied file.

        A power cut takes what was written last.
        """
        # Without a battery the clock may start behind what the last run wrote, or be set meanwhile.
        now, passed = time.time(), time.monotonic() - self._began
        if now - passed < path.stat().st_mtime <= now or path == self._writing:
            return  # written by this run
        if path.name.endswith(f".mp4{PART}"):
            path.replace(path.with_name(path.name.removeprefix(".").removesuffix(PART)))
        else:
            path.unlink(missing_ok=True)

    def _report(self, what: str, problem: OSError) -> None:
        """Log the first of a series of failures."""
        why = problem.strerror or problem
        text = f"{self.folder}: cannot be {what}: {why}; pictures are not kept"
        # A disk that is full is in health itself; but one may be full of what nobody counts.
        told = problem.errno == errno.ENOSPC and disk_problems(self.folder)
        self._problem = None if told else text
        if self._failing.begins(True):
            log.warning("%s", text)

    def problems(self) -> list[str]:
        """Return why pictures are not kept, as texts for health."""
        return [] if self._problem is None else [f"evidence: {self._problem}"]

    def find(self, event: str, kind: str) -> Path | None:
        """Return the picture or clip of an event in its pipeline's folder, or None."""
        if not is_name(event):
            return None
        for path in self.folder.glob(f"*/{event}{KEPT[kind]}"):
            with suppress(FileNotFoundError):  # the oldest may be removed meanwhile
                if path.stat().st_size:  # not emptied by a power cut
                    return path
        return None

    def list(self, *, pipeline: str | None = None, since: float = 0.0) -> list[dict[str, Any]]:
        """List the stored evidence, of all pipelines or one, for a payload, the latest first."""
        return _described(sorted(self._since(pipeline, since), key=_mark, reverse=True))

    def page(
        self, most: int, before: str | None, *, pipeline: str | None = None, since: float = 0.0
    ) -> tuple[Sequence[dict[str, Any]], str | None]:
        """Return *most* entries of the list, and the *before* of those that follow, if any do."""
        found = self._since(pipeline, since)
        left = (each for each in found if before is None or _mark(each) < before)
        latest = heapq.nlargest(most + 1, left, key=_mark)
        return _described(latest[:most]), _mark(latest[most - 1]) if latest[most:] else None

    def _since(self, pipeline: str | None, since: float) -> Iterator[_File]:
        return (each for each in self._files(pipeline) if each[0] >= since * 1e9)


def _mark(file: _File) -> str:
    """Return the place of a file in the list, by time; many may have one time, after a copy."""
    at, _, path = file
    return f"{at:020d}/{'/'.join(Path(path).parts[-2:])}"


def _described(files: Iterable[_File]) -> list[dict[str, Any]]:
    return [
        {
            "pipeline": path.parent.name,
            "event": path.stem,
            "kind": KINDS[path.suffix],
            "bytes": size,
            "time": payloads.iso(at),
        }
        for at, size, path in ((at, size, Path(name)) for at, size, name in files)
    ]


CROWD_SECONDS = 300.0
"""How long what was left out stays in health."""


class Crowd:
    """Counts what was left out because there was too much at a time. Any thread may call it."""

    def __init__(self, lack: str, why: str) -> None:
        """Begin with none; *lack*: what of it is counted; *why*: the reason and what to do."""
        self._lack = lack
        self._why = why
        self._lock = threading.Lock()
        self._count = 0
        self._at = 0.0
        """When the last was left out, monotonic seconds."""

    def add(self) -> None:
        """Count an event, and log the first of a crowd."""
        with self._lock:
            begins = not self._lasts
            self._count = 1 if begins else self._count + 1
            self._at = time.monotonic()
        if begins:
            log.warning("%s: %s", self._lack, self._why)

    @property
    def _lasts(self) -> bool:
        return self._count > 0 and time.monotonic() - self._at < CROWD_SECONDS

    def problems(self) -> list[str]:
        """Return their number and the reason as texts for health, for some minutes."""
        with self._lock:
            return [f"{self._lack}: {self._count}; {self._why}"] if self._lasts else []


def make_folder(folder: Path) -> None:
    """Make the folder of a pipeline, which the service's user must be able to fill after root."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        copy_owner(folder.parent, folder.parent.parent)


class Allowance:
    """What of the evidence the settings allow."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._some = False
        self._none_since = inf

    def follow(self, keep_mb: int) -> None:
        """Remove what is beyond `keep_mb`; all of it only once a reload has said so for a while.

        A settings file that is not whole at that moment says 0, too.
        """
        now = time.monotonic()
        if keep_mb > 0:
            self._some, self._none_since = True, inf
        elif self._some and self._none_since == inf:
            self._none_since = now
            log.warning("evidence: keep_mb is 0: what is kept is removed in 10 minutes")
        if not now < self._none_since + RESPITE_SECONDS < inf:
            self._evidence.limit(keep_mb)
