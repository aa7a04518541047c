"""What all benchmarks share: turns in rounds, the load of the device, medians, spread."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from ...core.errors import UsageError

LOOK_SECONDS = 0.2
IDLE_PERCENT = 5.0
"""Percentage of the processors that other programs may use without disturbing the figures."""

Progress = Callable[[str], None]
"""Takes a line about the progress."""
T = TypeVar("T")


def rounds(
    count: int, turns: Mapping[str, Callable[[], T]], others: list[float]
) -> Iterator[dict[str, T]]:
    """Run each turn in every round, in a rotating order; yield their results by name.

    A disturbance of the device affects all turns of a round equally. The processors' load before
    each turn, when nothing of the benchmark runs, is appended to *others*.
    """
    names = list(turns)
    for number in range(count):
        first = number % len(names)
        found = {}
        for name in names[first:] + names[:first]:
            others.append(psutil.cpu_percent(LOOK_SECONDS))
            found[name] = turns[name]()
        yield {name: found[name] for name in names}


def spread(values: Iterable[float], digits: int = 4) -> dict[str, float]:
    """Return the minimum, the median, and the maximum."""
    ordered = sorted(values)
    found = {"min": ordered[0], "median": statistics.median(ordered), "max": ordered[-1]}
    return {name: round(value, digits) for name, value in found.items()}


def medians(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure over all rounds."""
    return {
        name: round(statistics.median(each[name] for each in measured), 4) for name in measured[0]
    }


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    from ...mqtt import payloads  # not above: it imports NumPy, which timed starts must read

    return payloads.percentiles(list(values))["p99"]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cache_folder() -> Path:
    """Return the cache folder (XDG Base Directory Specification), creating it if necessary.

    It is on a disk, unlike /tmp on many systems, because reading from it is measured.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if given.startswith("/") else Path.home() / ".cache"
        folder = base / "edge-agent" / "bench"
        folder.mkdir(parents=True, exist_ok=True)
    except RuntimeError:
        raise UsageError(
            "no home folder to keep generated models in; set XDG_CACHE_HOME to a folder"
        ) from None
    except OSError as problem:
        raise UsageError(
            f"{folder}: {problem.strerror}; set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    return folder
