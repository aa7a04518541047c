"""Where the time from exec to the first result goes."""

from __future__ import annotations

import os
import threading
import time

STEPS = (
    "exec",
    "settings",
    "imports",
    "read",
    "build",
    "first_frame",
    "first_inference",
    "first_publish",
)

_BEGAN = "_EDGE_AGENT_BEGAN"
"""The variable by which a process that starts anew tells itself when."""


class Timeline:
    """Measures steps; several may run at a time, so that their sum is more than the total."""

    def __init__(self) -> None:
        """Begin; what has passed since exec is the step `exec`."""
        self._began = time.monotonic() - _since_exec()
        self._ms: dict[str, float] = {}
        self.first = threading.Event()
        """The first result has been handed to the broker, or none is to be waited for."""
        self.record("exec", time.monotonic() - self._began)

    @property
    def age(self) -> float:
        """Seconds since exec."""
        return time.monotonic() - self._began

    def record(self, step: str, seconds: float) -> None:
        """Note how long a step has taken; only the first time counts."""
        self._ms.setdefault(step, round(seconds * 1e3, 1))

    def mark_published(self) -> None:
        """Note that a result goes out."""
        if "first_publish" not in self._ms:
            self.record("first_publish", self.age)
            self.first.set()

    @property
    def steps(self) -> dict[str, float] | None:
        """Milliseconds of each step, in order; None before the first result.

        `first_publish` is the whole time from exec to the hand-over of the first result; every
        other step is that step's own time.
        """
        if "first_publish" not in self._ms:
            return None
        return {step: self._ms[step] for step in STEPS if step in self._ms}


def mark_reexec() -> None:
    """Note that this process is about to start anew by `execv`: the kernel does not."""
    os.environ[_BEGAN] = str(time.clock_gettime(time.CLOCK_BOOTTIME))


def _since_exec() -> float:
    """Give the seconds since this process began; to 10 ms, as the kernel counts."""
    try:
        noted = os.environ.pop(_BEGAN, None)
        if noted is not None:
            return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - float(noted))
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib is not there yet
            began = int(file.read().rpartition(b")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
