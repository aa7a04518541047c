"""Signals while the agent starts: it ends in order, or counts with what has changed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.core.timeline import Timeline, mark_reexec
from tests.helpers.start_box import Box, kept, planned
from tests.helpers.support import PATIENCE

__all__ = ["kept", "planned"]


def caught(pid: int) -> int:
    """Give the mask of signals that a process has handlers for: proc(5), SigCgt."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16)
    return 0


def minds(pid: int) -> bool:
    """Whether a process has its handlers; SIGHUP's comes last."""
    return bool(caught(pid) >> (signal.SIGHUP - 1) & 1)


def has(library: str) -> Callable[[int], bool]:
    """Make the claim that a process has mapped a library."""
    return lambda pid: library in Path(f"/proc/{pid}/maps").read_text()


MOMENTS = {
    "handlers": minds,
    "numpy": has("_multiarray_umath"),
    "engine": has("onnxruntime_pybind11_state"),
    "weights": has("weights.bin"),
    "pictures": has("cv2"),
}


def await_moment(pid: int, moment: Callable[[int], bool]) -> None:
    """Wait for a moment of a start as closely as possible."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not (minds(pid) and moment(pid)):
        assert time.monotonic() < deadline, "the moment has not come"
        pause.wait(0.0005)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_while_it_starts(number: int, moment: str, planned: Box) -> None:
    """SIGTERM and SIGINT end a start with 0, whatever it is at, without a traceback."""
    said = len(planned.words())
    agent = planned.launch()
    await_moment(agent.process.pid, MOMENTS[moment])
    agent.signal(number)
    assert agent.wait() == 0
    words = agent.words()[said:]
    assert "Traceback" not in words
    assert "Error" not in words


@pytest.mark.parametrize("moment", MOMENTS)
def test_told_to_reload_while_it_starts(moment: str, planned: Box) -> None:
    """SIGHUP does not end a start; settings that have changed by then are those that count."""
    with planned.start() as start:
        await_moment(start.agent.process.pid, MOMENTS[moment])
        planned.config.write_text(planned.settings().replace('"p"', '"q"'))
        start.agent.signal(signal.SIGHUP)
        assert start.all_right(pipeline="q")
        start.wait("health")


WAIT = """
import os, sys


class Door:
    def find_spec(self, name, path, target=None):
        if name == "edge_agent.daemon.planned_start":
            with open(os.environ["DOOR"]) as door:
                door.read()


sys.meta_path.insert(0, Door())
"""
"""Keeps the program waiting before it imports the module that first sees to signals."""


@pytest.fixture
def door(planned: Box, tmp_path: Path) -> Path:
    """Make a pipe in front of which starts of that device wait until it has been opened."""
    (tmp_path / "sitecustomize.py").write_text(WAIT)
    path = tmp_path / "door"
    os.mkfifo(path)
    planned.environ = {"PYTHONPATH": f"{tmp_path}:{planned.root}", "DOOR": str(path)}
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_in_the_first_moment(number: int, planned: Box, door: Path) -> None:
    """SIGTERM and SIGINT end `run` with 0 without a word, before it has imported anything."""
    said = len(planned.words())
    agent = planned.launch()
    with door.open("w"):  # opens when it stands there
        agent.signal(number)
        assert agent.wait() == 0
    assert agent.words()[said:] == ""


def test_told_to_reload_in_the_first_moment(planned: Box, door: Path) -> None:
    """SIGHUP before anything has been read changes nothing: the settings are read anyway."""
    with planned.start() as start:
        with door.open("w"):
            start.agent.signal(signal.SIGHUP)
        assert start.all_right()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_again_and_again(number: int, planned: Box) -> None:
    """Further signals neither hurry nor hurt an end that is under way, and none is left unsaid."""
    pause = threading.Event()
    with planned.start() as start:
        assert start.all_right()
        deadline = time.monotonic() + PATIENCE
        while start.agent.process.poll() is None:
            assert time.monotonic() < deadline, "it has not ended"
            start.agent.signal(number)
            pause.wait(0.005)
        assert start.agent.wait() == 0
        start.wait("status", state="offline", reason="stopped")
    with planned.start() as start:
        assert start.all_right()
        assert "the last run" not in start.words()


def test_a_process_that_starts_anew_counts_anew() -> None:
    """What `execv` has replaced counts from there, once; the kernel would count from its birth."""
    old = Timeline()
    mark_reexec()
    anew, later = Timeline(), Timeline()
    assert anew.age < old.age
    assert later.age > anew.age
