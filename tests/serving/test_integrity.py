"""What has changed on the disk without being written is noticed, and what can be mended is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge_agent.core.types import Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.prepared.compile.cache import prepare
from edge_agent.inference.prepared.digests import corrupted_file, corrupted_files, digests
from edge_agent.inference.prepared.fallback import FallbackEngine, load_prepared
from edge_agent.models.manifest import load
from edge_agent.models.store.store import Store
from edge_agent.serving.integrity import EVERY_SECONDS, IntegrityCheck
from tests.helpers.prepared_models import damage
from tests.helpers.small_models import plain
from tests.helpers.start_box import numbers

CPU = EngineChoice("onnxruntime", "CPU", threads=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Make a store."""
    return Store(tmp_path / "state")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a model."""
    return numbers(tmp_path / "numbers")


def rot(path: Path) -> None:
    """Change a byte of a file as failing flash does: no stamp tells."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class Kept:
    """Remembered digests, whose stamps can be made those of now: no call puts ctime back."""

    def __init__(self, state: Path, folder: Path) -> None:
        self._memo = state / "prepared" / "digests.json"
        self._folder = folder

    def stamp_again(self) -> None:
        """Have every stamp be the present one, with the digests of before."""
        memo = json.loads(self._memo.read_bytes())
        for name, entry in memo.items():
            now = Path(name).stat()
            entry[0] = [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]
        self._memo.write_text(json.dumps(memo))


@pytest.fixture
def remembered(store: Store, folder: Path) -> Callable[[], None]:
    """Remember a model's digests; gives what makes a change look as if nobody had written."""
    digests(store.root, folder)
    return Kept(store.root, folder).stamp_again


def found(pieces: Iterator[str | None]) -> list[str]:
    """List the files that are damaged, without a pause between pieces."""
    return [path for path in pieces if path is not None]


def check(integrity: IntegrityCheck) -> list[str]:
    """Check everything once, without waiting for the time of each piece."""
    while integrity.step() < EVERY_SECONDS:
        pass
    return integrity.problems()


def test_a_change_that_nobody_has_written_is_found(
    store: Store, folder: Path, remembered: Callable[[], None]
) -> None:
    """A byte that is another under the same stamps is damage; a whole model is none."""
    assert found(corrupted_files(store.root, folder)) == []
    rot(folder / "model.onnx")
    remembered()
    assert found(corrupted_files(store.root, folder)) == [str(folder / "model.onnx")]


def test_what_was_written_is_no_damage(store: Store, folder: Path) -> None:
    """A model that somebody has exchanged since is another model."""
    digests(store.root, folder)
    numbers(folder, seed=2)
    assert found(corrupted_files(store.root, folder)) == []


@pytest.fixture
def engine(store: Store, folder: Path) -> Iterator[Any]:
    """Give a model that runs from its form."""
    model = load(folder)
    form = prepare(store, model, CPU, "picture")
    made = load_prepared(model, CPU, form, "picture")
    yield made
    made.close()


def sample() -> Sample:
    """Give a picture."""
    return Sample(plain(60), 0, 0, 0.0)


def test_a_damaged_form_is_left_and_the_numbers_stay(store: Store, engine: Any) -> None:
    """Found damaged later on, a form serves no more: the network does, with the same numbers."""
    assert isinstance(engine.engine, FallbackEngine)
    form = engine.engine.inner.artifact
    assert found(corrupted_file(engine.engine.checksums)) == []
    before = engine.infer(sample()).findings.values
    damage(Path(form.folder, "weights.bin"), 4 * 1000 + 3)
    assert found(corrupted_file(engine.engine.checksums)) == [form.path("weights.bin")]
    active: Any = SimpleNamespace(all=lambda: [SimpleNamespace(model=engine)])
    assert check(IntegrityCheck(store.root, active, first=0.0, clock=lambda: 0.0)) == []
    assert "weights.bin" in str(engine.engine.damaged)
    after = engine.infer(sample()).findings.values
    assert after.keys() == before.keys()
    assert all(np.isclose(after[name], before[name], rtol=1e-4) for name in before)


def test_it_says_what_is_damaged(
    store: Store, folder: Path, engine: Any, remembered: Callable[[], None]
) -> None:
    """The reason names the model, the file and the mend, until a look finds all well again."""
    whole = (folder / "model.onnx").read_bytes()
    rot(folder / "model.onnx")
    remembered()
    active: Any = SimpleNamespace(all=lambda: [SimpleNamespace(model=engine)])
    now = 0.0
    integrity = IntegrityCheck(store.root, active, first=0.0, clock=lambda: now)
    (reason,) = check(integrity)
    assert reason.startswith("model numbers@1: ")
    assert "model.onnx" in reason
    assert "install it again" in reason
    (folder / "model.onnx").write_bytes(whole)
    remembered()
    assert integrity.problems() == [reason], "until the next check"
    now += EVERY_SECONDS
    assert check(integrity) == []


def test_it_takes_its_time(store: Store, folder: Path, remembered: Callable[[], None]) -> None:
    """After each piece it waits nineteen times as long as that took, and other work goes on."""
    remembered()
    times = iter([0.0, 0.0, 1.0, 1.0, 5.0])
    model: Any = SimpleNamespace(
        id="numbers@1", folder=SimpleNamespace(path=folder), engine=SimpleNamespace(prepared=None)
    )
    active: Any = SimpleNamespace(all=lambda: [SimpleNamespace(model=model)])
    integrity = IntegrityCheck(store.root, active, first=0.0, clock=lambda: next(times))
    assert integrity.step() == pytest.approx(19.0)
    assert integrity.step() == pytest.approx(15.0)
