"""Disks for a cold start: drops files from memory, and limits reads to any rate.

Reads are limited by a cgroup: version 2's `io.max` if that controller exists, else version 1's
`blkio`; both limit buffered reads, too. Needs root. The kernel counts in tenths of a second: up to
that much is read at once at the start, and short reads come in steps (measured at 100 MB/s: 5 MB in
4 ms, 26 MB in 0.2 or 0.34 s, 100 MB in 1.01 s).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...core.errors import UsageError

DROP = Path("/proc/sys/vm/drop_caches")
CHUNK = 1024 * 1024
READ_AHEAD_KB = 128
"""Linux's default, as for eMMC and SD cards; virtual disks often have more."""
MOUNTS = Path("/proc/self/mountinfo")
GROUP = "edge-agent-bench"


def evict(places: Iterable[Path]) -> None:
    """Drop the files in these places from memory; needs no privileges.

    Files mapped by another process stay, so end it first.
    """
    parts = (p for place in places for p in ([place] if place.is_file() else place.rglob("*")))
    for path in filter(Path.is_file, parts):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)  # unwritten pages cannot be dropped
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def ensure_droppable() -> None:
    """Check that `drop_all` can work."""
    if not os.access(DROP, os.W_OK):
        raise UsageError(
            f"--no-page-cache: {DROP} cannot be written; run it as root and outside a container, "
            "or use --no-model-cache, which needs neither"
        )


def drop_all() -> None:
    """Drop every file from memory, including libraries; needs root.

    Files mapped by running processes stay: for this benchmark, Python's program, its TLS module,
    and the broker's files.
    """
    os.sync()
    DROP.write_text("3")


def holders(libraries: Collection[str]) -> list[str]:
    """List id and name of other processes that have native parts of packages mapped.

    *libraries* are folders in site-packages; processes that may not be inspected are left out.
    """
    marks = [f"/{name}{end}" for name in libraries for end in ("/", ".libs/")]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mapped = (process / "maps").read_text()
            name = (process / "comm").read_text().strip()
        except OSError:
            continue  # it has ended, or belongs to another user
        if any(mark in mapped for mark in marks):
            found.append(f"{process.name} ({name})")
    return found


def read_rate(path: Path) -> float:
    """Read a whole file that is not in memory; return bytes per second."""
    evict([path])
    handle = os.open(path, os.O_RDONLY)
    buffer = memoryview(bytearray(CHUNK))
    try:
        begun, count = time.monotonic(), 0
        while read := os.readv(handle, [buffer]):
            count += read
        return count / (time.monotonic() - begun)
    finally:
        os.close(handle)


@contextmanager
def slow_disk(places: Sequence[Path], rate: float) -> Iterator[None]:
    """Limit reads by this process and its children from the disks of *places*, bytes per second."""
    with ExitStack() as stack:
        try:
            disks = sorted({disk_of(place) for place in places})
            for disk in disks:
                stack.enter_context(_read_ahead(disk))
            stack.enter_context(_group(disks, round(rate)))
        except OSError as problem:
            raise UsageError(
                f"--disk-mbps: {problem.filename}: {problem.strerror}; "
                "run it as root, where /sys can be written"
            ) from problem
        yield


def disk_of(place: Path) -> Path:
    """Return the whole disk of a file or folder, as a folder in /sys."""
    number = place.stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not link.exists():
        raise UsageError(
            f"--disk-mbps: {place}: is not on a file system that has a disk to itself; "
            "use a model there, and set XDG_CACHE_HOME to a folder there"
        )
    disk = link.resolve()
    # For an image, the kernel reads from its file in the reader's cgroup.
    if (file := disk / "loop" / "backing_file").is_file():
        return disk_of(Path(file.read_text().rstrip("\n")))
    return disk.parent if (disk / "partition").exists() else disk


@contextmanager
def _read_ahead(disk: Path) -> Iterator[None]:
    """Limit the kernel's read-ahead to that of a small device; restore it afterward."""
    setting = disk / "queue" / "read_ahead_kb"
    before = setting.read_text()
    setting.write_text(f"{READ_AHEAD_KB}\n")
    try:
        yield
    finally:
        setting.write_text(before)


@contextmanager
def _group(disks: Sequence[Path], rate: int) -> Iterator[None]:
    """Put this process into its own group inside the `with` block."""
    root, second = find_controller(MOUNTS.read_text())
    home = root / _membership(second=second).lstrip("/")
    group = root / f"{GROUP}-{os.getpid()}"
    numbers = [(disk / "dev").read_text().strip() for disk in disks]
    if second:
        (root / "cgroup.subtree_control").write_text("+io")
    group.mkdir()
    try:
        for number in numbers:
            if second:
                (group / "io.max").write_text(f"{number} rbps={rate}")
            else:
                (group / "blkio.throttle.read_bps_device").write_text(f"{number} {rate}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (home / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        group.rmdir()


def find_controller(mounts: str) -> tuple[Path, bool]:
    """Return the hierarchy in mountinfo that limits disks, and whether it is version 2."""
    found: dict[bool, Path] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        place, (kind, _, options) = Path(before.split()[4]), after.split()[:3]
        if kind == "cgroup2" and "io" in _words(place / "cgroup.controllers"):
            found[True] = place
        elif kind == "cgroup" and "blkio" in options.split(","):
            found[False] = place
    if not found:
        raise UsageError(
            "--disk-mbps: no cgroup controller for disks is mounted (io or blkio); "
            "run it outside a container"
        )
    second = max(found)
    return found[second], second


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _membership(*, second: bool) -> str:
    """Return the path of this process's cgroup."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if ("blkio" in controllers.split(",")) if not second else not controllers:
            return path
    return "/"
