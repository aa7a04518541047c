"""A push is killed in the middle: a sample of the cases of `scripts/soak/crash_sweep.py`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.models.manifest import load
from edge_agent.models.packages.build import Package, make
from edge_agent.models.store.agent_lock import hold_agent_lock
from edge_agent.models.store.incoming import Incoming
from edge_agent.models.store.pointers import Trial
from edge_agent.models.store.store import Store
from tests.helpers.fault_points import FAULT_POINTS, points_in_the_code
from tests.helpers.model_folders import make_model

SWEEP = Path(__file__).resolve().parents[2] / "scripts" / "soak" / "crash_sweep.py"


def sweep(*arguments: str) -> str:
    """Run some cases; gives what the sweep says, which the failing test shows."""
    done = subprocess.run(
        [sys.executable, str(SWEEP), *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_every_fault_point_has_cases() -> None:
    """The sweep has at least 200 cases, and each point at which the agent can die has one."""
    listed = sweep("--list").splitlines()
    assert len(listed) >= 200
    assert len(set(listed)) == len(listed)
    assert points_in_the_code() == set(FAULT_POINTS)
    for point in FAULT_POINTS:
        assert any(f"{point}:" in label for label in listed), point


def test_killed_anywhere_the_device_runs_old_or_new() -> None:
    """A seeded sample: the device runs old or new, a repeated push completes, nothing is left."""
    said = sweep("--cases", "8", "--seed", "7", "--jobs", "2")
    assert said.count(": ok") == 8, said


def test_killed_on_probation_it_goes_on_and_crashed_it_goes_back() -> None:
    """Only a crash brings the version before back; a new push succeeds then."""
    said = sweep("--only", "^agent probation$|^crash on probation$")
    assert "agent probation: ok\n" in said, said
    assert "crash on probation: ok, rolled back" in said, said


# What only a power cut leaves behind: a kill cannot undo what the kernel has taken.


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """Make a package of a few blocks."""
    return make(load(make_model(tmp_path / "face")))


def _without_data(folder: Path) -> None:
    (folder / "data").unlink()


def _short_data(folder: Path) -> None:
    (folder / "data").write_bytes(b"short")


def _without_list(folder: Path) -> None:
    (folder / "package.blocks").unlink()


def _empty_list(folder: Path) -> None:
    (folder / "package.blocks").write_bytes(b"")


@pytest.mark.parametrize("spoil", [_without_data, _short_data, _without_list, _empty_list])
def test_transfer_that_a_power_cut_spoiled_begins_anew(
    tmp_path: Path, package: Package, spoil: Callable[[Path], None]
) -> None:
    """A transfer of which not everything reached the disk is received again, in a clean folder."""
    store = Store(tmp_path / "state")
    with Incoming(store, package.front, package.header, package.blocks) as incoming:
        incoming.put(0, package.block(0))
    spoil(store.incoming / package.transfer)
    with Incoming(store, package.front, package.header, package.blocks) as incoming:
        assert 0 in incoming.missing()
        for index in incoming.missing():
            incoming.put(index, package.block(index))
        incoming.flush()
        assert incoming.complete
    with Incoming(store, package.front, package.header, package.blocks) as incoming:
        assert incoming.complete
    assert not list(store.staging.iterdir())


def test_a_version_goes_live_together_with_its_probation(tmp_path: Path) -> None:
    """Pointer and mark are one write: no crash leaves a version live that nobody watches."""
    store = Store(tmp_path / "state")
    mark = Trial("1", "probation", time.time())
    store.set_trial("face", Trial("1", "shadow", time.time()))
    assert store.activate("face", "1", watched=mark) == store.pointers("face")
    assert store.pointers("face").live == "1"
    assert store.pointers("face").marks == (mark,)


def test_half_written_files_of_the_agent_go_with_its_next_start(tmp_path: Path) -> None:
    """What an agent was writing when it died is removed when the next one claims the store."""
    store = Store(tmp_path / "state")
    (store.root / "deployments.json").write_text("{}")
    (store.root / ".deployments.json.0123abcd").write_text("{")
    with hold_agent_lock(store.root):
        names = {path.name for path in store.root.iterdir() if path.is_file()}
    assert names == {"deployments.json", "store.lock", "agent.lock"}
