"""The long runs of `scripts/soak/soak.py`, cut short: a few rounds of each."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.cameras import rtsp_missing
from tests.helpers.support import CHECKOUT


def soak(*arguments: str) -> dict[str, Any]:
    """Run it to a good end; gives what it says."""
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "scripts" / "soak" / "soak.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_a_camera_and_a_broker_that_restart_leave_nothing_behind() -> None:
    """Three rounds: memory within 5 %, no thread and no descriptor more, every loss counted."""
    why = rtsp_missing()
    if why is not None:
        pytest.skip(why)
    said = soak("restarts", "--restarts", "3", "--settle", "0.1")
    assert said["reconnects"] == 3
    assert said["more_threads"] <= 0
    assert said["more_descriptors"] <= 0


def test_cameras_that_are_not_there_leave_nothing_behind() -> None:
    """One that refuses, and one that never answers, beside one that goes on."""
    said = soak("absent", "--minutes", "0.1")
    assert said["results"] > 3
    assert said["growth"] < 1.05
