"""Locks of files and folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.core.files import drop_lock, take_lock


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
