"""A network that does not fit in memory runs all the same, a part of it at a time."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import EngineError
from edge_agent.inference.engines.registry import open_engine
from edge_agent.inference.model import assemble
from edge_agent.inference.prepared.artifact import GRAPH, WEIGHTS, Artifact, ArtifactError
from edge_agent.inference.prepared.compile.cache import prepare
from edge_agent.inference.prepared.compile.reference import Reference
from edge_agent.inference.prepared.engine import OrtPreparedEngine
from edge_agent.inference.prepared.load import Load
from edge_agent.inference.prepared.streaming import READER
from edge_agent.models.manifest import load
from edge_agent.models.store.store import Store
from tests.helpers.prepared_models import CPU, chain, damage, noise
from tests.helpers.start_box import numbers
from tests.helpers.streaming_case import GROUPS
from tests.helpers.support import CHECKOUT

WIDTH, LAYERS, BUDGET_MB = 768, 24, 24
"""54 MiB of weights."""


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Make the form of a network of more than twice the budget."""
    folder = tmp_path_factory.mktemp("streaming")
    model = chain(folder / "large", LAYERS, width=WIDTH)
    store = Store(folder / "state")
    return prepare(store, load(model), CPU, "signal", budget_mb=BUDGET_MB)


def test_stages_share_no_page(form: Artifact) -> None:
    """The weights of the stages lie behind each other, each stage's from a page on."""
    ranges = [stage["range"] for stage in form.table["stages"]]
    assert len(ranges) > 2
    assert ranges[0][0] == 0
    assert ranges[-1][1] == Path(form.path(WEIGHTS)).stat().st_size
    assert all(one[1] == other[0] for one, other in pairwise(ranges))
    assert all(start % 4096 == 0 for start, _, _ in ranges)


def test_it_is_compared_with_a_session_without_optimization(tmp_path: Path) -> None:
    """While it is prepared: when it serves, memory holds no other."""
    plain = replace(CPU, options={"graph_optimization_level": "none"})
    made, same, other = (
        open_engine(choice, numbers(tmp_path / name, seed) / "model.onnx", lambda _: {})
        for choice, name, seed in ((CPU, "made", 1), (plain, "same", 1), (plain, "other", 2))
    )
    reference = Reference(made, assemble(load(tmp_path / "made"), CPU, made, "picture"))
    made.close()
    reference.check_like(same)
    with pytest.raises(ArtifactError, match=r"computes it wrongly: unlike .* cosine"):
        reference.check_like(other)


Open = Callable[..., OrtPreparedEngine]


@pytest.fixture
def engine_of() -> Iterator[Open]:
    """Load it; what was loaded is closed after the test."""
    opened: list[OrtPreparedEngine] = []

    def load_by(form: Artifact) -> OrtPreparedEngine:
        opened.append(OrtPreparedEngine(Load(form)))
        return opened[-1]

    yield load_by
    for engine in opened:
        engine.close()


def resident_mb(path: str) -> float:
    """Give how much of a file this process has in memory, MiB, over all its mappings."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0] in "0123456789abcdef" and "-" in line.split(" ")[0]:
            ours = line.endswith(path)
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total / 1024


def test_it_is_chosen_by_the_budget(form: Artifact, engine_of: Open) -> None:
    """A network larger than its budget has no other way to run."""
    assert form.table["way"] == "streaming"
    assert len(form.table["stages"]) > 8
    assert engine_of(form).is_streaming


def resident(form: Artifact) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Load all of it with the same options; return what runs it."""
    load = Load(form)
    session = load.session(GRAPH)

    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        (found,) = session.run([f"x{LAYERS}"], {"x0": x})
        assert load.weights.buffer, "they live as long as the session"
        return np.asarray(found)

    return run


def test_numbers_are_those_of_the_resident_network(form: Artifact, engine_of: Open) -> None:
    """Run in parts, the outputs are bit for bit those of the same options with all in memory."""
    streamed, whole = engine_of(form), resident(form)
    for seed in range(4):
        x = noise(seed, 4, WIDTH)
        np.testing.assert_array_equal(streamed.infer({"x0": x})[f"x{LAYERS}"], whole(x))


def test_only_a_part_is_in_memory(form: Artifact, engine_of: Open) -> None:
    """After and between runs no more of the weights is mapped than is kept and read ahead."""
    gc.collect()
    before = resident_mb(form.path(WEIGHTS))
    engine = engine_of(form)
    sizes = [
        (last - first) / 2**20 for first, last, _ in (s["range"] for s in form.table["stages"])
    ]
    most = sum(sizes[: form.table["kept"]]) + 2 * max(sizes)
    assert most < sum(sizes) / 2
    for seed in range(3):
        engine.infer({"x0": noise(seed, 4, WIDTH)})
        assert resident_mb(form.path(WEIGHTS)) - before <= most + 0.1


def test_damage_is_noticed_in_every_run(form: Artifact, engine_of: Open) -> None:
    """Weights are checked each time that they are read again, not only at first."""
    engine = engine_of(form)
    x = {"x0": noise(0, 4, WIDTH)}
    engine.infer(x)
    first, last, _ = form.table["stages"][-1]["range"]
    at = (first + last) // 2

    def run_often() -> None:
        # What was read ahead before the damage may still be good.
        for _ in range(3):
            engine.infer(x)

    damage(Path(form.path(WEIGHTS)), at)
    try:
        with pytest.raises(ArtifactError, match="damaged"):
            run_often()
        with pytest.raises(ArtifactError, match="damaged"):
            engine.infer(x)
    finally:
        damage(Path(form.path(WEIGHTS)), at)


def test_a_run_that_fails_does_not_harm_the_next(form: Artifact, engine_of: Open) -> None:
    """After a stage has failed in the middle, the next run begins anew and is right."""
    engine = engine_of(form)
    x = {"x0": noise(0, 4, WIDTH)}
    expected = engine.infer(x)[f"x{LAYERS}"]
    begun = engine._load
    assert begun is not None
    part = begun.stages[len(begun.stages) // 2]
    outputs = part.outputs
    for _ in range(len(begun.stages)):
        part.outputs = ["no such tensor"]
        with pytest.raises(EngineError, match="no such tensor"):
            engine.infer(x)
        part.outputs = outputs
        np.testing.assert_array_equal(engine.infer(x)[f"x{LAYERS}"], expected)


def test_calls_take_turns(form: Artifact, engine_of: Open) -> None:
    """Two threads that call at a time both get the results of their own inputs."""
    engine, whole = engine_of(form), resident(form)
    inputs = [noise(seed, 4, WIDTH) for seed in range(2)]
    expected = [whole(x) for x in inputs]
    together = threading.Barrier(2)

    def work(index: int) -> None:
        together.wait()
        for _ in range(5):
            found = engine.infer({"x0": inputs[index]})[f"x{LAYERS}"]
            np.testing.assert_array_equal(found, expected[index])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


def test_closing_ends_the_reader(form: Artifact, engine_of: Open) -> None:
    """A closed engine leaves no thread behind, and says that it is closed."""
    before = set(threading.enumerate())
    engine = engine_of(form)
    (reader,) = {t for t in threading.enumerate() if t.name.startswith(READER)} - before
    engine.infer({"x0": noise(0, 4, WIDTH)})
    engine.close()
    reader.join(10)
    assert not reader.is_alive()
    with pytest.raises(EngineError, match="closed"):
        engine.infer({"x0": noise(0, 4, WIDTH)})


def run_case(form: Artifact, strategy: str, limit_mb: int) -> Any:
    """Run it in a process of its own; None where the kernel has ended that for its memory."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.helpers.streaming_case",
            form.folder,
            strategy,
            str(limit_mb),
            "3",
        ],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        timeout=120,
        check=False,
    )
    for group in GROUPS.glob("edge-agent-test-*"):
        with suppress(OSError):  # of another run of the tests, which is still in it
            group.rmdir()
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


@pytest.mark.skipif(
    os.geteuid() != 0 or not (GROUPS / "memory.limit_in_bytes").is_file(),
    reason="needs root and control groups of version 1 with the memory controller",
)
def test_a_limit_on_memory_is_kept(tmp_path: Path) -> None:
    """A network of 180 MB runs under a limit of 150 MB for the whole process, and is right."""
    model = chain(tmp_path / "large", 20, width=1536)
    store = Store(tmp_path / "state")
    form = prepare(store, load(model), CPU, "signal", budget_mb=64)
    assert Path(form.path(WEIGHTS)).stat().st_size > 180e6
    limited, free = run_case(form, "streaming", 150), run_case(form, "streaming", 0)
    assert limited["outputs"] == free["outputs"]
    assert limited["most_mb"] <= 150
    assert run_case(form, "whole", 150) is None, "the limit is no limit"
