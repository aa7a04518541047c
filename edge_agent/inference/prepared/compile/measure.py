"""What an artifact must prove, and how it is loaded soonest: timed with the code of a start."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ....core.errors import EngineError
from ....core.types import Array, Tensors, TensorSpec
from ....device.allocator import return_freed_memory
from ....device.resources import usable_cpus
from ...agreement import compare_likeness, margin_of, strict_distance
from ...engines.engine import Engine
from ...golden import read_golden
from ...model import Model
from ...probe import probe_inputs, race
from ..artifact import Artifact, ArtifactError
from ..engine import OrtPreparedEngine
from ..load import Load, choose, load_artifact
from .stage_graphs import Layout

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
import edge_agent.inference.decode.decoder
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


BARE_TOLERANCE = 1e-4
"""Relative distance up to which a session without prepared weights may go first."""
_BUSY_ROUNDS = 2
"""With one core, where little disturbs."""
STEADY = 0.03
"""Slower than this share in the long run is exchanged for the whole session."""
_MIB = 1024 * 1024


def choose_resident(
    artifact: Artifact,
    reference: Reference,
    table: dict[str, Any],
    weights_mb: float,
    budget_mb: int,
) -> None:
    """Measure the strategies for a network that fits in memory.

    Args:
        artifact: loaded whole, it has the network's own numbers.
        reference: has them.
        table: of the artifact; gets the figures and the decision.
        weights_mb: of the network.
        budget_mb: what it may take; 0: no bound.

    Raises:
        ArtifactError: it does not load or run.
    """
    head_ms: float = table["head_ms"]
    sample = reference.timed_sample(artifact)
    distance = reference.distance(artifact, "bare")
    ways = ("whole", "bare") if distance <= BARE_TOLERANCE else ("whole",)
    idle = measure_in_turns(artifact, ways, sample, head_ms)
    with one_core():
        busy = measure_in_turns(artifact, ways, sample, rounds=_BUSY_ROUNDS)
    measured = {name: figures(loads) for name, loads in idle.items()}
    fitting = [
        name
        for name, found in measured.items()
        if not budget_mb or found["anon_mb"] + weights_mb <= budget_mb
    ]
    spare = "idle" if usable_cpus() > 1 else "busy"
    strategies: dict[str, dict[str, Any]] = {}
    # Without weights of its own a session takes least; what it maps can be given back.
    for name in fitting or ways[-1:]:
        # With no core to spare nothing of a load is hidden: what goes before it only adds to it.
        loads = [each._replace(total_ms=head_ms + each.total_ms) for each in busy[name]]
        strategies[name] = {spare: measured[name]} | {"busy": figures(loads)}
    table["tried"] = measured
    table["rungs"] = strategies
    table["distance"] = {"bare": distance}
    table["settled"] = {
        name: _settled(name, each, strategies, measured["whole"], distance)
        for name, each in strategies.items()
    }
    table["decision"] = choose(strategies, spare)
    table["why"] = f"first result, {head_ms:g} ms head start: " + ", ".join(
        f"{name} {each[spare]['total_ms']:.1f} ms" for name, each in strategies.items()
    )


def _settled(
    name: str,
    figures_of: Mapping[str, Mapping[str, float]],
    strategies: Iterable[str],
    whole: Mapping[str, float],
    distance: float,
) -> str:
    """Return what runs in the long run: the fastest, and exactly the network's own numbers."""
    slower = next(iter(figures_of.values()))["steady_ms"] > whole["steady_ms"] * (1 + STEADY)
    return "whole" if "whole" in strategies and (slower or distance > 0) else name


def choose_streaming(
    artifact: Artifact,
    reference: Reference,
    table: dict[str, Any],
    layout: Layout,
    budget_mb: int,
) -> None:
    """Measure running in stages; record how many of the first ones may stay in memory.

    Arguments and errors as for `choose_resident`; *layout*: of the weights.
    """
    stages = artifact.table["stages"]
    sample = reference.timed_sample(artifact)
    # Nothing kept first: what is left over is known when it has run.
    artifact.table["kept"] = min(1, layout.shared)
    reference.check_identical(artifact, "streaming")
    first = load_once(artifact, "streaming", sample)
    sizes = [last - start for start, last, _ in (each["range"] for each in stages)]
    left = budget_mb * _MIB - first.anon_mb * _MIB - 2 * max(sizes)
    kept = 0
    while kept < len(stages) - 1 and sum(sizes[: kept + 1]) <= left:
        kept += 1
    table["kept"] = artifact.table["kept"] = max(kept, min(1, layout.shared))
    reference.check_identical(artifact, "streaming")
    measured = figures(measure_in_turns(artifact, ("streaming",), sample)["streaming"])
    table["tried"] = {"streaming": measured}
    table["distance"] = {"streaming": 0.0}
    table["only"] = table["decision"] = "streaming"
    table["rungs"] = {"streaming": {"idle": measured}}
    table["settled"] = {"streaming": "streaming"}
    table["why"] = (
        f"{layout.size / _MIB:.0f} MiB of weights do not fit {budget_mb} MiB; {table['kept']} of "
        f"{len(stages)} stages stay in memory; {measured['steady_ms']:.1f} ms a run"
    )


SEEDS = (11, 12, 13)
_CASES = 4
"""Golden inputs that are tried: each takes a run of each strategy."""


class Reference:
    """Inputs, and the network's own outputs for them."""

    def __init__(self, engine: Engine, model: Model) -> None:
        """Run the network itself.

        Raises:
            EngineError: it runs on none of the inputs.
            ModelError: its golden inputs are damaged.
        """
        self._margin = margin_of(model)
        samples = [probe_inputs(engine.inputs, seed) for seed in SEEDS]
        try:
            results = [engine.infer(tensors) for tensors in samples]
        except EngineError:
            # Indices, for example, of which most numbers mean nothing.
            samples = [_zeros(engine.inputs)]
            results = [engine.infer(tensors) for tensors in samples]
        golden = [case.inputs for case in read_golden(model)[:_CASES]]
        self.samples: list[Tensors] = [*samples, *golden]
        self._expected = [*results, *(engine.infer(tensors) for tensors in golden)]

    def timed_sample(self, artifact: Artifact) -> Tensors:
        """Return the inputs that loads are timed with, as frames will come."""
        fold = artifact.fold
        return self.samples[0] if fold is None else fold.feed(self.samples[0])

    def distance(self, artifact: Artifact, strategy: str) -> float:
        """Load an artifact; return how far its numbers are from the network's: 0 bit for bit.

        Returns:
            The largest relative distance (L2) of any output; infinite where a shape, type or NaN
            differs.

        Raises:
            ArtifactError: it does not load or run.
        """
        engine = OrtPreparedEngine(load_artifact(artifact, strategy))
        try:
            return self.distance_from(engine)
        finally:
            engine.close()

    def distance_from(self, engine: Engine) -> float:
        """Return how far an engine's numbers are from the network's, as `distance` does."""
        return max(
            distance_of(expected, engine.infer(tensors))
            for tensors, expected in zip(self.samples, self._expected, strict=True)
        )

    def check_like(self, plain: Engine) -> None:
        """Check that the network's numbers are what a session without optimization gives.

        Args:
            plain: that session; it is closed.

        Raises:
            ArtifactError: they are not.
            EngineError: it cannot run the network.
        """
        try:
            for tensors, expected in zip(self.samples, self._expected, strict=True):
                agreement = compare_likeness(plain.infer(tensors), expected, self._margin)
                if not agreement.passed:
                    raise ArtifactError(
                        f"{plain.label} computes it wrongly: unlike without optimization: "
                        f"{agreement.why}"
                    )
        finally:
            plain.close()

    def check_identical(self, artifact: Artifact, strategy: str) -> None:
        """Check that an artifact gives the network's numbers bit for bit.

        Raises:
            ArtifactError: it does not.
        """
        distance = self.distance(artifact, strategy)
        if distance != 0:
            raise ArtifactError(
                f"loaded as {strategy} its numbers are not the network's: {distance:.2g} away"
            )


def distance_of(expected: Tensors, found: Tensors) -> float:
    """Return the largest relative distance of the outputs."""
    if expected.keys() != found.keys():
        return float("inf")
    distances = (strict_distance(array, found[name]) for name, array in expected.items())
    return max(distances, default=0.0)


def _zeros(specs: Sequence[TensorSpec]) -> dict[str, Array]:
    return {spec.name: np.zeros([size or 1 for size in spec.shape], spec.dtype) for spec in specs}
