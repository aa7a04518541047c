"""The settings of an installed service: a skeleton, or those that the operator gives."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import UsageError

SKELETON = """\
# edge-agent: see docs/settings.md for every key.
# After a change: sudo systemctl reload edge-agent

# device_id = "edge-01"            # default: the hostname

[broker]
url = "mqtt://localhost:1883"
# username = "edge-01"
# The password is better in /etc/credstore/broker.password, readable by root only.

[trust]
keys = ["/etc/edge-agent/trust.d"]  # *.pub files of those who may push models

# [[pipelines]]
# name   = "door"
# source = "rtsp://camera/stream"
# model  = "parts-inspection"
# rate   = 5
"""
# Run by the new environment, which has what checking takes; this one may have nothing.
_CHECK = """\
import sys
from pathlib import Path
from edge_agent.config.load import load
from edge_agent.core.errors import UsageError
try:
    load(Path(sys.argv[1]))
except UsageError as problem:
    sys.exit(str(problem))
"""


def check(config: Path, settings: Path, python: Path) -> None:
    """Check that a file is valid in the place of *settings*.

    Args:
        config: the file.
        settings: where the service has its settings; its folder must be there.
        python: of the environment whose version of the agent checks it.

    Raises:
        UsageError: it is not; with that version's own message.

    """
    with _laid_out(config, settings) as taken:
        _judge(config, taken, python)


def take(config: Path, settings: Path, python: Path) -> None:
    """Put a file in the place of *settings*, which stay beside it as `.toml.before`.

    Raises:
        UsageError: it would be wrong there; nothing is changed.

    """
    with _laid_out(config, settings) as taken:
        _judge(config, taken, python)
        if settings.is_file() and settings.read_bytes() != config.read_bytes():
            before = settings.with_suffix(".toml.before")
            shutil.copyfile(settings, before)
            shutil.copymode(settings, before)
        taken.replace(settings)


@contextmanager
def _laid_out(config: Path, settings: Path) -> Iterator[Path]:
    """Lay a file where its relative paths will count from, readable by its owner only."""
    taken = settings.with_name(f".{settings.name}.new")
    taken.unlink(missing_ok=True)
    descriptor = os.open(taken, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(config.read_bytes())
        yield taken
    finally:
        taken.unlink(missing_ok=True)


def _judge(config: Path, taken: Path, python: Path) -> None:
    done = subprocess.run(
        # -P: we are root, and nobody's working directory is to be imported from.
        [str(python), "-P", "-c", _CHECK, str(taken)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["cannot be checked"]
        raise UsageError(words[-1].replace(str(taken), str(config)))
