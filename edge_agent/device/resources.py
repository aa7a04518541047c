"""Processors and memory that this process may use, and the processor's instructions.

Separate from `hardware` because it is imported before the first result and must be small.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path("/")
VNNI = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Flags of x86 processors that add 8-bit products in 32 bits."""
SAFE_WEIGHT = 64
"""Largest weight that cannot saturate without them: twice 255 * 64 fits in 16 signed bits."""


def usable_cpus(root: Path = ROOT) -> int:
    """Count the cores this process may use; a quota of 1.5 cores feeds one thread, not two."""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", text(root / "proc/self/status"), re.MULTILINE)
    allowed = _count_ranges(match[1]) if match else os.cpu_count() or 1
    quotas = [int(quota) for quota in _cpu_quotas(root)]
    return max(1, min([allowed, *quotas]))


def running() -> int:
    """Count the running and runnable threads of this machine, except the calling one."""
    found, _, _ = (text(ROOT / "proc/loadavg").split(" ") + [""] * 4)[3].partition("/")
    return max(0, int(found) - 1) if found.isdigit() else 0


def crowded() -> bool:
    """Whether there are now more runnable threads than cores."""
    return running() > usable_cpus()


def usable_memory(root: Path = ROOT) -> int:
    """Return the memory this process may use, bytes; 0: unknown."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", text(root / "proc/meminfo"), re.MULTILINE)
    total = int(match[1]) * 1024 if match else 0
    limits = [limit for limit in _memory_limits(root) if limit > 0]
    return min([total, *limits]) if total else min(limits, default=0)


def _count_ranges(ranges: str) -> int:
    """Count the numbers in "0-3,8"."""
    count = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            count += int(last or first) - int(first) + 1
    return max(1, count)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield all limits on this process's processor time, in cores."""
    for folder in cgroups(root, "cpu"):
        quota, _, period = text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)
        quota, period = text(folder / "cpu.cfs_quota_us"), text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield all limits on this process's memory, bytes."""
    for folder in cgroups(root, "memory"):
        # memory.high throttles instead of killing, but a network beyond it is very slow.
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limit = text(folder / name)
            if limit.isdigit():
                yield int(limit)


def cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's cgroup folder for *controller* and all its parents, v1 and v2.

    In a container the path may be a host path that is invisible inside; then the mount itself,
    which is always yielded, is the container's own cgroup.
    """
    base = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            tops = [base, base / "unified"]
        elif controller in controllers.split(","):
            tops = [base / controllers, base / controller]
        else:
            continue
        steps = [step for step in path.split("/") if step not in {"", ".", ".."}]
        for top in tops:
            for depth in range(len(steps), -1, -1):
                yield top.joinpath(*steps[:depth])


def instructions(root: Path = ROOT) -> str:
    """Return the first core's flags (x86) or features (ARM) in the kernel's form."""
    for line in text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in {"flags", "features"}:
            return value.strip()
    return ""


@cache
def adds_bytes_exactly() -> bool:
    """Whether 8-bit products are added here without saturation.

    On x86 the engines multiply unsigned by signed bytes, and without VNNI such products are added
    in pairs in 16 bits (VPMADDUBSW), where twice 255 * 127 overflows.
    """
    return platform.machine() != "x86_64" or not VNNI.isdisjoint(instructions().split())


def read(path: Path) -> bytes:
    """Read a small kernel file; return b"" if it is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def text(path: Path) -> str:
    """Read a small kernel file as stripped text."""
    # Device tree strings end with a NUL.
    return read(path).decode("utf-8", "replace").strip("\0 \t\n")


def entries(folder: Path, pattern: str) -> list[Path]:
    """List the entries of a kernel folder that match a pattern; empty if it is unreadable."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
