"""Where the system allows too few open files, `run` says so in one line, wherever it notices."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edge_agent.core.errors import ModelError, system_limit
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import PATIENCE, Mosquitto, agent_settings

pytestmark = pytest.mark.slow

ENOUGH = (" is live as ", " connected to ", " cannot be reached: ", "nothing can run")
"""What is said by a start that goes on."""


def run_with(files: int, config: Path) -> tuple[str, bool]:
    """Start the agent in a process that may have so many files open, until it ends or goes on.

    Returns:
        What it wrote, and whether it ended by itself.

    """
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_agent", "run", "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
        preexec_fn=lambda: resource.setrlimit(  # noqa: PLW1509 - as in test_no_threads.py
            resource.RLIMIT_NOFILE, (files, files)
        ),
    )
    assert process.stderr is not None
    late = threading.Timer(PATIENCE, process.kill)
    late.start()
    written, ended = "", True
    for line in process.stderr:
        written += line
        if ended and any(words in line for words in ENOUGH):
            ended = False
            process.terminate()
    process.wait()
    late.cancel()
    return written, ended


def test_run_says_that_no_file_can_be_opened(tmp_path: Path, broker: Mosquitto) -> None:
    """From the first limit at which Python itself starts to the first that may be enough."""
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(50)])
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "light"}
    config = tmp_path / "config.toml"
    config.write_text(
        agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")])
    )
    ends = 0
    for files in range(5, 11):
        written, ended = run_with(files, config)
        if "Fatal Python error" in written or "import_site" in written:
            continue
        assert "Traceback" not in written, f"{files} files:\n{written}"
        if ended:
            ends += 1
            last = written.splitlines()[-1]
            assert last.startswith("edge-agent: "), f"{files} files:\n{written}"
            assert "open file" in last
    assert ends > 0


def test_an_error_that_names_the_file_is_left_as_it_is() -> None:
    """Only where nothing of ours has said it."""
    cause = OSError(24, "Too many open files")
    named = ModelError("x.onnx: cannot be read: Too many open files")
    named.__context__ = cause
    assert system_limit(named) is None
    told = system_limit(cause)
    assert told is not None
    assert "LimitNOFILE" in str(told)
    assert system_limit(ImportError("libx.so: cannot open shared object file: Error 24"))
    assert system_limit(OSError(2, "No such file or directory")) is None
    assert system_limit(ImportError("No module named 'x'")) is None
