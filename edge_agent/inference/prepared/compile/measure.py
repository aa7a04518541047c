"""Times loads on this device, by every strategy, with the code that a start runs."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from ....core.types import Tensors
from ....device.allocator import return_freed_memory
from ...probe import race
from ..artifact import Artifact
from ..engine import OrtPreparedEngine
from ..load import Load, load_artifact

ROUNDS = 3
_STEADY_RUNS = 3


class Measured(NamedTuple):
    """One load and what followed."""

    build_ms: float
    first_ms: float
    total_ms: float
    steady_ms: float
    anon_mb: float
    """Memory of its own that it took; mapped weights are not in it."""


_REST = """
import time
import numpy, onnxruntime
start = time.perf_counter()
import av
import paho.mqtt.client
import edge_agent.daemon.agent
import edge_agent.inference.decode.registry
import edge_agent.inference.preprocess.picture
import edge_agent.sources.clip
print((time.perf_counter() - start) * 1e3)
"""


def head_start_ms() -> float:
    """Measure how long a start has no frame yet, while a model can be loaded already.

    What it does in that time is for the most part to import what it needs, which is done here by
    interpreters of their own.
    """
    times = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _REST], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout))
    return round(min(times), 1)


def load_once(
    artifact: Artifact, strategy: str, tensors: Tensors, head_ms: float = 0.0
) -> Measured:
    """Load an artifact in one way as a start does, run it, and close it.

    Args:
        artifact: to load.
        strategy: how.
        tensors: to run it on.
        head_ms: how long there is no frame yet; the rest of a program takes a core meanwhile.
    """
    _trim_memory()
    before = _anonymous()
    start = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(_timed, artifact, strategy)
        while time.perf_counter() < start + head_ms / 1e3:
            sum(range(500))
        load, build_ms = loading.result()
    engine = OrtPreparedEngine(load)
    built = time.perf_counter()
    engine.infer(tensors)
    first = time.perf_counter()
    after = _anonymous()
    (steady,) = race([lambda _: engine.infer(tensors)], _STEADY_RUNS)
    engine.close()
    return Measured(
        build_ms,
        (first - built) * 1e3,
        (first - start) * 1e3,
        statistics.median(steady),
        max(0.0, after - before),
    )


def _timed(artifact: Artifact, strategy: str) -> tuple[Load, float]:
    start = time.perf_counter()
    return load_artifact(artifact, strategy), (time.perf_counter() - start) * 1e3


def figures(loads: list[Measured]) -> dict[str, float]:
    """Sum up several loads: the best of each figure, for what disturbs only ever adds."""
    return {
        "build_ms": round(min(load.build_ms for load in loads), 2),
        "first_ms": round(min(load.first_ms for load in loads), 2),
        "total_ms": round(min(load.total_ms for load in loads), 2),
        "steady_ms": round(min(load.steady_ms for load in loads), 2),
        "anon_mb": round(max(load.anon_mb for load in loads), 1),
    }


def measure_in_turns(
    artifact: Artifact,
    strategies: Sequence[str],
    tensors: Tensors,
    head_ms: float = 0.0,
    rounds: int = ROUNDS,
) -> dict[str, list[Measured]]:
    """Load by every strategy, in turns, so that what disturbs disturbs all alike.

    Args:
        artifact: to load.
        strategies: how.
        tensors: what to run it on.
        head_ms: as for `load_once`.
        rounds: how often.
    """
    found: dict[str, list[Measured]] = {name: [] for name in strategies}
    interval = sys.getswitchinterval()
    # As a start has it: a thread that returns from native code does not wait long for its turn.
    sys.setswitchinterval(0.0005)
    try:
        for _ in range(rounds):
            for name in strategies:
                found[name].append(load_once(artifact, name, tensors, head_ms))
    finally:
        sys.setswitchinterval(interval)
    return found


@contextmanager
def one_core() -> Iterator[None]:
    """Run as on a machine with no core to spare."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)


def _trim_memory() -> None:
    """Return what the last load has left to the system, so that each one has to ask for its own."""
    gc.collect()
    return_freed_memory()


def _anonymous() -> float:
    """Return the memory of this process that is no file's, MiB."""
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel's
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    return 0.0
