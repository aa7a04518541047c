"""Where the system allows no further thread, a command ends with 1 and one line that says so."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.core.errors import thread_limit
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import PATIENCE, AgentProcess, Listener, Mosquitto, agent_settings

LINE = "edge-agent: the system allows no further thread; raise the limit of processes (ulimit -u, "
STACK = 1 << 43
"""Bytes of each further thread's stack, which no machine has: as any other limit, but for root,
too."""


def run_without_threads(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that can make no thread."""
    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("the stack's limit may not be raised here")
    return subprocess.run(
        [sys.executable, "-m", "edge_agent", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_STACK, (STACK, resource.RLIM_INFINITY)
        ),
    )


def check_line(done: subprocess.CompletedProcess[str]) -> None:
    """See that it ended with 1 and the line, and without a traceback."""
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(LINE), done.stderr
    assert "Traceback" not in done.stderr


def test_run_says_that_no_thread_can_be_made(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """At its first start, and at one from the plan of the last good one."""
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(50)])
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "light"}
    models = [str(tmp_path / "models")]
    settings = agent_settings("box", broker.url, [pipeline], models_dirs=models)
    config = tmp_path / "agent" / "config.toml"
    config.parent.mkdir()
    config.write_text(settings)
    check_line(run_without_threads("run", "--config", str(config), cwd=tmp_path))
    listener = listen(broker.port)
    running = agent(settings)
    plan = running.folder / "state" / "start.json"
    listener.wait_for(lambda _: plan.is_file(), "a plan of the next start")
    assert running.stop() == 0
    check_line(run_without_threads("run", "--config", str(config), cwd=tmp_path))


def test_a_command_that_talks_to_a_broker_says_it_too(tmp_path: Path, broker: Mosquitto) -> None:
    """The library that talks to it makes a thread."""
    check_line(run_without_threads("tail", "--broker", broker.url, "-n", "1", cwd=tmp_path))


def test_other_errors_are_left_as_they_are() -> None:
    """Only what the interpreter says of threads is meant."""
    assert thread_limit(RuntimeError("other")) is None
    assert thread_limit(ValueError("can't start new thread")) is None
    assert thread_limit(None) is None
