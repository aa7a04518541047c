"""Processors and memory that this process may use, and the processor's instructions.

Apart from `hardware` because it lies on the way to the first result, and has to be light.
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
"""Flags of x86 processors that add products of eight bits in 32."""
SAFE_WEIGHT = 64
"""Up to here no weight saturates without them: two times 255 * 64 fit into sixteen signed bits."""


def usable_cpus(root: Path = ROOT) -> int:
    """Count the cores this process may use; a quota of 1.5 cores feeds one thread, not two."""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", text(root / "proc/self/status"), re.MULTILINE)
    allowed = _count_ranges(match[1]) if match else os.cpu_count() or 1
    quotas = [int(quota) for quota in _cpu_quotas(root)]
    return max(1, min([allowed, *quotas]))


def running() -> int:
    """Count the threads of this machine that run or could, without the one that asks."""
    found, _, _ = (text(ROOT / "proc/loadavg").split(" ") + [""] * 4)[3].partition("/")
    return max(0, int(found) - 1) if found.isdigit() else 0


def crowded() -> bool:
    """Whether more threads want to run than there are cores, at this moment."""
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
    """Yield every limit on processor time that holds for this process, in cores."""
    for folder in cgroups(root, "cpu"):
        quota, _, period = text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)
        quota, period = text(folder / "cpu.cfs_quota_us"), text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield every limit on memory that holds for this process, bytes."""
    for folder in cgroups(root, "memory"):
        # memory.high throttles rather than kills, but a network beyond it crawls.
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limit = text(folder / name)
            if limit.isdigit():
                yield int(limit)


def cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's cgroup folder for *controller* and all above it, v1 and v2.

    In a container the path may be one of the host's that cannot be seen from inside; then the
    mount itself, always given, is the container's own cgroup.
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
    """Return the first core's flags (x86) or features (ARM), as the kernel writes them."""
    for line in text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in {"flags", "features"}:
            return value.strip()
    return ""


@cache
def adds_bytes_exactly() -> bool:
    """Whether products of eight bits are added here without saturating.

    On x86 the engines multiply bytes without a sign by bytes with one, and before VNNI such
    products are added in pairs to sixteen bits (VPMADDUBSW): 255 * 127 twice is too much for them.
    """
    return platform.machine() != "x86_64" or not VNNI.isdisjoint(instructions().split())


def read(path: Path) -> bytes:
    """Read a small kernel file; returns b"" if it is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def text(path: Path) -> str:
    """Read a small file of the kernel's as text, stripped."""
    # Device tree strings end with a NUL.
    return read(path).decode("utf-8", "replace").strip("\0 \t\n")


def entries(folder: Path, pattern: str) -> list[Path]:
    """List the entries of a kernel folder that match a pattern; empty if it is unreadable."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
