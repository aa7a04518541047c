"""Pressure on memory and disk, reported when a limit is near.

Read from the kernel's files; missing facts are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .resources import ROOT, cgroups, text

NEAR = 0.9
"""Share of a memory limit beyond which the next model may be too much."""
FEW_BYTES = 256 * 2**20
FEW_SHARE = 0.1
"""A disk is nearly full with less than both: on a small disk the share matters."""
FEW_FILES = 100
"""A disk that takes fewer new files than that is nearly full, too."""

_MIB = 2**20
_SERVICE = "what this service may use (MemoryMax, or its container's limit)"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Use of a limited memory."""

    used: int
    """Bytes, without the page cache, which the kernel reclaims when needed."""
    limit: int
    """Bytes."""
    whose: str
    files: int = 0
    """Bytes of *used* that are page cache in use: the kernel reclaims them at a cost."""

    @property
    def room(self) -> int:
        """Bytes that can still be taken."""
        return self.limit - self.used + self.files

    @property
    def near(self) -> bool:
        return self.used >= NEAR * self.limit


def memory_uses(root: Path = ROOT) -> list[MemoryUse]:
    """List all memory limits of this process: its cgroups' and the machine's."""
    # The same folder may be found under two names.
    return list(dict.fromkeys([*_of_cgroups(root), *_of_machine(root)]))


def memory_problems(root: Path = ROOT) -> list[str]:
    """Return a text if memory runs short, about the nearest limit."""
    near = [each for each in memory_uses(root) if each.near]
    if not near:
        return []
    worst = max(near, key=lambda each: each.used / each.limit)
    share = f"{worst.used // _MIB} of {worst.limit // _MIB} MiB of {worst.whose}"
    return [f"memory: {share} are used; use smaller or fewer models, or allow more"]


def disk_problems(folder: Path, root: Path = ROOT) -> list[str]:
    """Return a text if the file system of *folder* is full, nearly full, or read-only.

    Full of files, too.
    """
    try:
        disk = os.statvfs(folder)
    except OSError as problem:
        return [f"disk: {folder}: {problem.strerror}"]
    if (why := read_only(folder, root)) is not None:
        return [f"disk: {why}"]
    if _few_files(disk):
        return [f"disk: {disk.f_favail} more files can be made where {folder} is; remove some"]
    free, size, few = _room(disk)
    if free >= few:
        return []
    return [f"disk: {free // _MIB} of {size // _MIB} MiB are free where {folder} is; make room"]


def lacking(folder: Path, share: float, needed: int = 0) -> tuple[int, bool]:
    """Return what is missing to *needed* bytes and *share* of what makes a disk nearly full.

    Returns:
        Bytes, 0: none; and whether few more files can be made.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0, False  # who writes there next is told
    free, _, few = _room(disk)
    return max(0, needed + int(share * few) - free), _few_files(disk)


def _few_files(disk: os.statvfs_result) -> bool:
    return disk.f_files > 0 and disk.f_favail < FEW_FILES  # some file systems do not count them


def _room(disk: os.statvfs_result) -> tuple[int, int, float]:
    """Return the free bytes of a file system, all, and with how few it is nearly full."""
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    return free, size, min(FEW_BYTES, FEW_SHARE * size)


def read_only(folder: Path, root: Path = ROOT) -> str | None:
    """Return the text that the file system of *folder* is read-only, or None."""
    device = folder.stat().st_dev
    number = f" {os.major(device)}:{os.minor(device)} "
    lines = text(root / "proc/self/mountinfo").splitlines()
    # Whatever a mount allows, the file system's own options are the last words of its line.
    options = [line.rpartition(" ")[2].split(",") for line in lines if number in line]
    # ext4 in newer kernels (seen in 6.18) refuses all writes after an error, and still has "rw".
    given_up = any("emergency_ro" in each for each in options)
    if not given_up and not os.statvfs(folder).f_flag & os.ST_RDONLY:
        return None
    if options and not given_up and all("rw" in each for each in options):
        # systemd gives a service mounts of its own, which "remount" outside does not reach.
        return (
            f"{folder} is read-only for this process, although its disk is not: "
            "systemctl restart edge-agent, or mount it anew"
        )
    return f"{folder} is read-only: nothing can be kept over a restart"


def _of_cgroups(root: Path) -> Iterator[MemoryUse]:
    """Yield the limits of this process's cgroup and its parents.

    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    for folder in cgroups(root, "memory"):
        for limit_name, used_name, total in (
            ("memory.max", "memory.current", ""),
            ("memory.high", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            limit, used = text(folder / limit_name), text(folder / used_name)
            # Without a limit, version 2 has "max", version 1 a number larger than any memory.
            if not (limit.isdecimal() and used.isdecimal()) or not 0 < int(limit) < 2**60:
                continue
            fields = dict(re.findall(r"^(\w+) (\d+)$", text(folder / "memory.stat"), re.MULTILINE))
            cache, files = (int(fields.get(f"{total}{s}active_file", 0)) for s in ("in", ""))
            without = max(0, int(used) - cache)
            yield MemoryUse(without, int(limit), _SERVICE, min(files, without))


def _of_machine(root: Path) -> Iterator[MemoryUse]:
    fields = dict(re.findall(r"^(\w+):\s*(\d+) kB$", text(root / "proc/meminfo"), re.MULTILINE))
    if "MemTotal" in fields and "MemAvailable" in fields and int(fields["MemTotal"]):
        total, available = (int(fields[key]) * 1024 for key in ("MemTotal", "MemAvailable"))
        yield MemoryUse(total - available, total, "the machine's memory")
