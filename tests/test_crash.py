"""A push is killed in the middle: a sample of `scripts/crash_sweep.py`, which has all cases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = Path(__file__).resolve().parents[1] / "scripts" / "crash_sweep.py"


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
    from edge_agent.durable import FAULT_POINTS

    listed = sweep("--list").splitlines()
    assert len(listed) >= 200
    assert len(set(listed)) == len(listed)
    for point in FAULT_POINTS:
        assert any(f"{point}:" in label for label in listed), point


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_anywhere_the_device_runs_old_or_new(seed: int) -> None:
    """A seeded sample: the device runs old or new, a repeated push completes, nothing is left."""
    said = sweep("--cases", "6", "--seed", str(seed), "--jobs", "2")
    assert said.count(": ok") == 6, said


def test_killed_on_probation_it_goes_back_and_can_be_pushed_again() -> None:
    """A crash of the agent on probation brings the version before back; a new push succeeds."""
    said = sweep("--only", "agent probation", "--jobs", "2")
    assert "agent probation: ok, rolled back" in said, said
