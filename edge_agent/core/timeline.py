"""Durations of the steps from exec to the first result."""

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
"""Environment variable that passes the time of a restart through `execv`."""


class Timeline:
    """Durations of steps; several may run at a time, so their sum may exceed the total."""

    def __init__(self) -> None:
        """Record the time since exec as the step `exec`."""
        self._began = time.monotonic() - _since_exec()
        self._ms: dict[str, float] = {}
        self.first = threading.Event()
        """Set when the first result has been handed to the broker."""
        self._over = False
        self.record("exec", time.monotonic() - self._began)

    @property
    def age(self) -> float:
        """Seconds since exec."""
        return time.monotonic() - self._began

    def record(self, step: str, seconds: float) -> None:
        """Record the duration of a step, seconds; only the first record of a step counts."""
        self._ms.setdefault(step, round(seconds * 1e3, 1))

    def has(self, step: str) -> bool:
        """Whether a step is recorded."""
        return step in self._ms

    def mark_published(self) -> None:
        """Record that a result was published; the first one ends the timeline."""
        if not self._over and "first_publish" not in self._ms:
            self.record("first_publish", self.age)
            self.first.set()

    def give_up(self) -> None:
        """End the timeline without a first result: later steps say nothing about the start."""
        self._over = True

    @property
    def steps(self) -> dict[str, float] | None:
        """Milliseconds of each step, in order; None before the first result.

        `first_publish` is the whole time from exec until the first result is handed to the broker;
        each other value is the step's own time.
        """
        if "first_publish" not in self._ms:
            return None
        return {step: self._ms[step] for step in STEPS if step in self._ms}


def mark_reexec() -> None:
    """Record the time of a restart by `execv`: the kernel keeps the old start time."""
    os.environ[_BEGAN] = str(time.clock_gettime(time.CLOCK_BOOTTIME))


def _since_exec() -> float:
    """Return the seconds since this process began, with the kernel's resolution of 10 ms."""
    try:
        noted = os.environ.pop(_BEGAN, None)
        if noted is not None:
            return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - float(noted))
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib is not there yet
            began = int(file.read().rpartition(b")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
