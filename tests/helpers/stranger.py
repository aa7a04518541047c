"""A command run by a user who may read everything and write nothing of the tests' own user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STRANGER = 12345
"""User and group; neither has to be known to the machine."""


def stranger(*, reading: bool = True) -> list[str]:
    """Give what stands before a command to have it run so; skip the test where that cannot be.

    Root's checkout may lie below a folder that only root may enter, and so may its Python: the
    stranger keeps the capability to read them, if *reading*. Whoever is not root is a stranger to
    root already.
    """
    if os.geteuid() != 0:
        return []
    other = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    capable = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    # Without the capability, as in many containers, it takes a checkout that anybody may read.
    for prefix in ([*other, *capable], other) if reading else (other,):
        probe = [*prefix, sys.executable, "-c", "import edge_agent.core.errors"]
        try:
            done = subprocess.run(probe, capture_output=True, check=False, cwd="/")
        except FileNotFoundError:
            pytest.skip("setpriv (util-linux) is not there to become somebody else")
        if done.returncode == 0:
            return prefix
    pytest.skip("nobody but root can read this checkout here")


def open_to_strangers(folder: Path) -> None:
    """Let anybody enter a folder of pytest's, which it keeps for whoever runs it."""
    for path in (folder, *folder.parents):
        if path.name.startswith((folder.name, "pytest-", "popen-")):
            path.chmod(0o755)
