"""Temporary folders: gone with their context, swept after a kill, never under a living process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.scratch import scratch_folder
from tests.helpers.stranger import STRANGER

HOLD = """
import sys
from edge_agent.core.scratch import scratch_folder
with scratch_folder("model") as folder:
    (folder / "model.onnx").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of temporary files an own one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def hold() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a folder until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    """Kill it and close its pipes."""
    process.kill()
    process.communicate()


def test_a_folder_goes_with_its_context(place: Path) -> None:
    """With all that is in it."""
    with scratch_folder("model") as folder:
        assert folder.parent == place
        (folder / "part").mkdir()
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_is_swept_by_the_next(place: Path) -> None:
    """That of a living one stays, and so does what is another's purpose, a link, or a file."""
    killed, left = hold()
    living, used = hold()
    try:
        end(killed)
        assert (left / "model.onnx").exists()
        other, file = place / "edge-agent-demo-1", place / "edge-agent-model-file"
        other.mkdir()
        file.write_text("")
        link = place / "edge-agent-model-link"
        link.symlink_to(other)
        with scratch_folder("model") as folder:
            assert set(place.iterdir()) == {folder, used, other, link, file}
            assert (used / "model.onnx").exists()
    finally:
        end(living)


def test_a_folder_that_another_process_sweeps_as_it_is_made_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four demos that started at once: one had "mosquitto.conf: No such file or directory"."""
    swept: list[str] = []
    make = tempfile.mkdtemp

    def make_and_sweep(*args: Any, **keys: Any) -> str:
        """Sweep the first one before its process can open it."""
        folder = str(make(*args, **keys))
        if not swept:
            Path(folder).rmdir()
            swept.append(folder)
        return folder

    monkeypatch.setattr("tempfile.mkdtemp", make_and_sweep)
    with scratch_folder("demo") as folder:
        assert swept
        assert list(place.iterdir()) == [folder]
        (folder / "mosquitto.conf").touch()
    assert list(place.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_root_that_has_become_somebody_else_leaves_its_folder_to_root(place: Path) -> None:
    """`sudo edge-agent bench pipeline --tune` ended with "Operation not permitted"."""
    place.chmod(0o1777)
    script = HOLD.replace("sys.stdin.read()", f"import os; os.setuid({STRANGER})")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with scratch_folder("model") as folder:
        assert list(place.iterdir()) == [folder]
