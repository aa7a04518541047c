"""Locks of files and folders."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edge_agent.core.containment import words
from edge_agent.core.errors import ModelError, UsageError
from edge_agent.core.files import (
    append_lines,
    drop_lock,
    make_state_folder,
    replace_file,
    take_lock,
)
from edge_agent.core.owners import foreign
from edge_agent.core.privileges import User, acting_as
from edge_agent.models.store.agent_lock import hold_agent_lock
from tests.helpers.stranger import STRANGER, open_to_strangers
from tests.helpers.support import PATIENCE, call_cli, wait_until


def test_a_lock_is_given_back_whoever_else_has_it_open(tmp_path: Path) -> None:
    """A child that is being started has every descriptor until its program runs."""
    lock = take_lock(tmp_path)
    with pytest.raises(BlockingIOError):
        take_lock(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,)
    )
    try:
        drop_lock(lock)
        drop_lock(take_lock(tmp_path))
    finally:
        child.communicate(b"\n")


def test_waiting_for_a_lock_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of the box held it: the start had hung without a word."""
    monkeypatch.setattr("edge_agent.core.files.LOCK_SECONDS", 0.0)
    path = tmp_path / "store.lock"
    drop_lock(take_lock(path, like=tmp_path))
    assert path.stat().st_mode & 0o777 == 0o600
    held = take_lock(path)
    waiting = threading.Thread(target=lambda: drop_lock(take_lock(path, wait=True)))
    waiting.start()
    wait_until(lambda: bool(caplog.messages), "the words")
    drop_lock(held)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert caplog.messages == [f"{path}: another process has locked it; waiting until it ends"]


def test_a_state_folder_is_closed_to_others(tmp_path: Path) -> None:
    """It has pictures of events, and files that anybody who may read them can lock."""
    make_state_folder(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o007 == 0


def test_a_file_that_is_appended_to_is_not_executable(tmp_path: Path) -> None:
    """It has the mode of other files of the state folder."""
    append_lines(tmp_path / "events.log", b"one\n")
    replace_file(tmp_path / "other", b"")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes["events.log"] == modes["other"]
    assert modes["events.log"] & 0o111 == 0


def test_errno_28_is_said_in_the_words_of_the_system() -> None:
    """A message names the file and what is wrong with it, not the number of the error."""
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(OSError, match="Errno") as raised,
    ):
        full.write(b"x")
    assert "[Errno 28]" in str(raised.value)
    assert words(raised.value) == "No space left on device"
    with pytest.raises(OSError, match="Errno") as raised:
        Path("/dev/full/x").read_bytes()
    assert words(raised.value) == "/dev/full/x: Not a directory"
    assert words(ModelError("face@1: is damaged")) == "face@1: is damaged"


def test_a_state_folder_below_proc_is_refused_in_plain_words() -> None:
    """It said that there is no such folder, as if the operator had to make one."""
    with pytest.raises(
        UsageError, match="state_dir: /proc/edge-agent: no folder can be made there"
    ):
        make_state_folder(Path("/proc/edge-agent"))


@pytest.mark.parametrize("folder", ["/proc/x", "/sys/x/y"])
def test_check_refuses_a_state_folder_of_the_kernel_as_run_does(
    tmp_path: Path, folder: str
) -> None:
    """It said that the first run would make it, and `run` ended with an error."""
    config = tmp_path / "edge-agent.toml"
    config.write_text(f'state_dir = "{folder}"\nbroker.url = "mqtt://127.0.0.1:1"\n')
    for command in ("check", "run"):
        said = call_cli(command, "--config", str(config))
        assert said.code == 2
        assert said.err == f"edge-agent: state_dir: {folder}: no folder can be made there\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_state_folder_that_root_has_restored_is_said_with_the_correction(tmp_path: Path) -> None:
    """The service ended with "Permission denied" and no word of whose fault it was."""
    open_to_strangers(tmp_path)
    state = tmp_path / "state"
    state.mkdir()
    (state / "store.lock").touch(0o600)
    mend = rf"belongs to root; sudo chown -R {STRANGER}: {state}"
    refused = pytest.raises(UsageError, match=f"may not write to it; .*: {state} {mend}")
    with acting_as(User(STRANGER, STRANGER)), refused:
        make_state_folder(state)
    os.chown(state, STRANGER, STRANGER)
    with acting_as(User(STRANGER, STRANGER)):
        make_state_folder(state)
        denied = f"Permission denied: {state}/store.lock {mend}"
        with pytest.raises(UsageError, match=denied), hold_agent_lock(state):
            pass
    os.chown(state / "store.lock", STRANGER, STRANGER)
    with acting_as(User(STRANGER, STRANGER)):
        assert foreign(state) == ""
        with hold_agent_lock(state):
            pass
