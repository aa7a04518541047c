"""Which way of loading gives the first result soonest, by what was measured on this device.

    whole      one session, its weights mapped
    parallel   the same, its weights prepared by all its threads
    staged     a session for each stage, built by a thread of its own while earlier ones run
    bare       a session that computes on the weights as they are; its prepared twin follows
    streaming  stages whose weights come and go: for a model that does not fit in memory

Light: it is asked on the way to the first result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...device.resources import ROOT, text, usable_cpus

STRATEGIES = ("whole", "parallel", "staged", "bare")
"""In the order in which they are preferred where the difference is small."""
MARGIN = 0.03
SLACK_MS = 1.0

Figures = Mapping[str, Any]
"""build_ms: until it can run; first_ms: its first run; total_ms: from the begin of loading to the
first result, the head start in it; steady_ms: a later run."""


def choose(strategies: Mapping[str, Mapping[str, Figures]], spare: str) -> str:
    """Pick the strategy that gives the first result soonest.

    Args:
        strategies: by name: figures with a core to spare ("idle") and without ("busy").
        spare: "idle" or "busy".

    """
    if not any(spare in figures for figures in strategies.values()):
        spare = "busy"  # measured when there was no core to spare at all
    times = {
        name: float(strategies[name][spare]["total_ms"])
        for name in STRATEGIES
        if spare in strategies.get(name, {})
    }
    least = min(times.values())
    return next(name for name, time in times.items() if time <= least * (1 + MARGIN) + SLACK_MS)


def spare_core() -> str:
    """Say whether a core is free for a loader thread: "idle" or "busy"."""
    cpus = usable_cpus()
    running, _, _ = text(ROOT / "proc/loadavg").split(" ")[3].partition("/")
    # Ourselves and the thread that imports the rest of the program are counted by the kernel too.
    others = int(running) - 2 if running.isdigit() else 0
    return "idle" if cpus - max(0, others) >= 2 else "busy"
