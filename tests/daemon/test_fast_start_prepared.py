"""A prepared form that is not what it was, or only half of it, is never used."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from shutil import copytree, ignore_patterns

import numpy as np
import pytest

from edge_agent.inference.prepared.artifact import read
from tests.helpers.prepared_models import damage, rewrite
from tests.helpers.start_box import GRAYS, SIDE, Box, kept, numbers, own, planned, same
from tests.helpers.support import CHECKOUT, call_cli, wait_until
from tests.helpers.tiny_networks import node, save_onnx

__all__ = ["kept", "own", "planned"]


def flip_weight(form: Path) -> None:
    """Turn over one bit of a weight: of its exponent, so that results would be wrong."""
    damage(form / "weights.bin", 4 * 1000 + 3)


def cut_weights(form: Path) -> None:
    """Lose the end of the weights."""
    os.truncate(form / "weights.bin", (form / "weights.bin").stat().st_size - 4096)


def damage_graph(form: Path) -> None:
    """Turn over one bit in the middle of the graph."""
    damage(form / "graph.onnx", (form / "graph.onnx").stat().st_size // 2)


def damage_table(form: Path) -> None:
    """Turn over one bit of the form's table."""
    damage(form / "form.json", 200)


def of_another_processor(form: Path) -> None:
    """Have it made on a processor with other instructions."""
    rewrite(read(str(form)), cpu="0" * 16)


def of_another_version(form: Path) -> None:
    """Have it made by another version of the engine."""
    rewrite(read(str(form)), version="1.0.0")


@pytest.mark.parametrize(
    "harm",
    [
        *(flip_weight, cut_weights, damage_graph, damage_table),
        *(of_another_processor, of_another_version),
    ],
    ids=lambda harm: harm.__name__,
)
def test_a_form_that_is_not_what_it_was(harm: Callable[[Path], None], planned: Box) -> None:
    """It is noticed before a result of it goes out, made anew, and used by the start after."""
    (form,) = planned.forms()
    whole = {path.name: path.read_bytes() for path in form.iterdir()}
    harm(form)
    assert any(path.read_bytes() != whole[path.name] for path in form.iterdir())
    with planned.start() as start:
        assert start.all_right()
        assert any(f"prepared form{rest}" in start.words() for rest in ("", " is not used"))
        start.planned()
        (again,) = planned.forms()
        assert (again / "weights.bin").read_bytes() == whole["weights.bin"]
        read(str(again))
        assert start.all_right()
    with planned.start() as start:
        assert start.from_plan()
        assert start.all_right()
        assert "not used" not in start.words()
        assert "not from its prepared form" not in start.words()


def large(folder: Path) -> dict[str, list[float]]:
    """Put a network of 15 MB in the place of the model's; gives what it finds in each picture."""
    random = np.random.default_rng(3)
    sizes = [3 * SIDE * SIDE, 1024, 1024, 1024, 4]
    matrices = [
        random.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)
        for rows, columns in pairwise(sizes)
    ]
    nodes = [node("Flatten", ["picture"], ["x0"])]
    for index in range(len(matrices)):
        nodes += [
            node("MatMul", [f"x{index}", f"w{index}"], [f"y{index}"]),
            node("Tanh", [f"y{index}"], [f"x{index + 1}"]),
        ]
    save_onnx(
        folder / "model.onnx",
        nodes,
        [("picture", "float32", (1, 3, SIDE, SIDE))],
        [(f"x{len(matrices)}", "float32", (1, 4))],
        {f"w{index}": matrix for index, matrix in enumerate(matrices)},
    )
    found = {}
    for index, gray in enumerate(GRAYS):
        values = np.full((1, sizes[0]), gray / 255, np.float32)
        for matrix in matrices:
            values = np.tanh(values @ matrix)
        found[f"{index:03}.png"] = [float(value) for value in values[0]]
    return found


@pytest.fixture
def small(own: Box, tmp_path: Path) -> Box:
    """Give a device of the test's own whose models may take 6 MB in all."""
    own.root = tmp_path / "program"
    for name in ("edge_agent", "device_profiles", "models"):
        leave = ignore_patterns(".mypy_cache", ".ruff_cache", "__pycache__")
        copytree(CHECKOUT / name, own.root / name, ignore=leave)
    engine = 'engine = "onnxruntime"'
    (own.root / "device_profiles" / "small.toml").write_text(
        f'description = "a test\'s own"\nmemory_budget_mb = 6\n[[engines]]\n{engine}\n'
    )
    own.more |= {"profile": "small"}
    return own


def test_a_streaming_form_that_is_damaged_while_it_runs(small: Box) -> None:
    """No wrong result goes out; the form is made anew, and results go on without a restart."""
    right = large(small.models / "numbers")
    with small.start() as start:
        assert same(start.found(), right)
        start.planned()
        (form,) = small.forms()
        assert read(str(form)).table["way"] == "streaming"
        start.wait("model", "numbers", streaming=True)
        words = "model numbers@1 runs in streaming mode, slowly: it is larger than memory_budget_mb"
        assert start.words().count(f"{words} = 6") == 1
        before = (form / "weights.bin").stat().st_ino
        good = start.results()
        damage(form / "weights.bin", (form / "weights.bin").stat().st_size - 4096 + 3)
        wait_until(lambda: "it is prepared again" in start.words(), "the damage to be noticed")
        wait_until(
            lambda: [path.stat().st_ino for path in form.glob("weights.bin")] not in ([], [before]),
            "a new form",
        )
        # What a run had checked already when the file was changed under it is not judged: the
        # pages are the writer's own. Damage comes from the disk, which is read before the check.
        count = len(start.results())
        start.listener.wait_for(lambda _: len(start.results()) >= count + 20, "more results")
        for says in [*good, *start.results()[count:]]:
            assert np.allclose([*says["values"].values()], right[says["file"]], atol=1e-4)


def test_a_model_that_is_pushed_and_too_large_streams(
    small: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried and goes live in the only way that it can run here, and is right."""
    monkeypatch.setenv("EDGE_AGENT_BROKER__URL", small.broker.url)
    folder = numbers(tmp_path / "numbers-2", version="2")
    right = large(folder)
    with small.start() as start:
        start.found()
        said = call_cli("push", str(folder), "--device", small.device)
        assert said.code == 0, said.err
        assert same(start.found(model="numbers@2"), right)
        start.wait("model", "numbers", live="2", prepared="ready")
    assert "streaming" in [read(str(form)).table["way"] for form in small.forms()]


def test_an_agent_that_is_killed_while_it_prepares(own: Box) -> None:
    """Nothing half-made is used or left: the next run prepares anew and cleans up."""
    agent = own.launch()
    staging = own.state / "staging"
    children = _wait_for_making(agent.process.pid, staging)
    agent.process.kill()
    agent.process.wait()
    assert children
    wait_until(lambda: not any(_alive(child) for child in children), "its children to end")
    assert list(staging.iterdir())
    assert own.forms() == []
    with own.start() as start:
        assert start.all_right()
        start.planned()
        assert list(staging.iterdir()) == []
        assert len(own.forms()) == 1
    with own.start() as start:
        assert start.from_plan()
        assert start.all_right()


def test_an_agent_that_ends_while_it_prepares(own: Box) -> None:
    """Told to end it begins no other form, leaves nothing half-made, and warns of nothing."""
    numbers(own.models / "numbers-2", seed=2, version="2")
    own.pipelines.append({**own.pipelines[0], "name": "q", "model": "numbers@1"})
    agent = own.launch()
    staging = own.state / "staging"
    _wait_for_making(agent.process.pid, staging)
    assert agent.stop() == 0
    assert "prepared" not in agent.words()
    assert list(staging.iterdir()) == []
    # What was seen may have been its last moment: then there is this one, whole, and no other.
    assert len([read(str(form)) for form in own.forms()]) <= 1


def _wait_for_making(pid: int, staging: Path) -> list[int]:
    """Wait for a child that makes a form, whose files are there for an instant; return it."""
    children: list[int] = []

    def making() -> bool:
        children[:] = _children(pid)
        return bool(children) and any(staging.glob("*"))

    wait_until(making, "a child that makes a form")
    return children


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
