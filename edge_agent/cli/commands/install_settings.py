"""The settings of an installed service: a skeleton, or a file given by the operator."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import UsageError
from ..service_user import HIDDEN

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
FOLDERS = ("trust.d", "device_profiles")
"""What is made beside the settings."""
# Run by an environment with the libraries for checking, which this one may lack. It uses this
# version's code if that is given, because an older version does not know the newest keys.
_CHECK = """\
import sys
from pathlib import Path
file, settings, taken = map(Path, sys.argv[1:4])
sys.path[:0] = sys.argv[4:]
from edge_agent.config.load import load
from edge_agent.core.errors import UsageError
try:
    if file.resolve() != settings.resolve():
        from edge_agent.cli.commands.install_settings import check_paths
        check_paths(file, settings)
    load(taken)
except UsageError as problem:
    print(problem, file=sys.stderr)
    sys.exit(2)
"""


def check(config: Path, settings: Path, python: Path, code: Path | None = None) -> None:
    """Check that a file would be valid in place of *settings*, if that can be checked here."""
    if not settings.parent.is_dir():
        _judge(config, settings, config, python, code)
        return
    with _laid_out(config, settings) as taken:
        _judge(config, settings, taken, python, code)


def check_paths(config: Path, settings: Path) -> None:
    """Check that a file's relative paths lead somewhere in place of *settings*, too."""
    from ...config.load import as_written
    from ...config.paths import named_paths

    written, folder, base = as_written(config), settings.parent, config.absolute().parent
    lost = {
        f"{subject}: {moved}": moved
        for subject, path in named_paths(written)
        if not (path.is_absolute() or (folder / path).exists() or str(path) in FOLDERS)
        for moved in (base / os.path.expanduser(path),)  # noqa: PTH111 - this raises nothing
    }
    unseen = [
        str(each) for each in HIDDEN if any(path.is_relative_to(each) for path in lost.values())
    ]
    mends = []
    if unseen:
        mends.append(f"move what is below {', '.join(unseen)}, which the service does not see")
    if lost:
        mends.append(f"write absolute paths ({', '.join(lost)})")
    if written.state_dir and not Path(written.state_dir).is_absolute():
        mends.append("leave state_dir out, the service has its own")
    if mends:
        why = f"the service reads it in {folder}, from where relative paths lead elsewhere"
        raise UsageError(f"{config}: {why}; {'; '.join(mends)}")


def take(config: Path, settings: Path, python: Path) -> None:
    """Replace *settings* with a file; the old ones stay beside it as `.toml.before`."""
    with _laid_out(config, settings) as taken:
        if not _judge(config, settings, taken, python):
            raise UsageError(f"{config}: cannot be checked by {python}")
        if settings.is_file() and settings.read_bytes() != config.read_bytes():
            before = settings.with_suffix(".toml.before")
            shutil.copyfile(settings, before)
            shutil.copymode(settings, before)
        taken.replace(settings)


@contextmanager
def _laid_out(config: Path, settings: Path) -> Iterator[Path]:
    """Copy a file to where its relative paths will be resolved, readable only by its owner."""
    taken = settings.with_name(f".{settings.name}.new")
    taken.unlink(missing_ok=True)
    descriptor = os.open(taken, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(config.read_bytes())
        yield taken
    except OSError as problem:  # a write does not say to which file
        problem.filename = problem.filename or str(taken)
        raise
    finally:
        taken.unlink(missing_ok=True)


def _judge(
    config: Path, settings: Path, taken: Path, python: Path, code: Path | None = None
) -> bool:
    """Return whether *python* could check the file, and found nothing wrong."""
    words = [str(path) for path in (config, settings, taken, code) if path is not None]
    done = subprocess.run(
        # -P: as root, nothing must be imported from the working directory.
        [str(python), "-P", "-c", _CHECK, *words],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode == 2:
        lines = done.stderr.strip().splitlines()
        raise UsageError(lines[-1].replace(str(taken), str(config)))
    return done.returncode == 0
