"""`edge-agent install` and `uninstall`: the systemd service.

Every installation is a virtual environment of its own under /opt/edge-agent; `current` points to
the one that runs. An upgrade whose service does not become ready, or does not stay up, is undone:
what was changed is put back, and the version before runs again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ... import __version__
from ...core.bundled import bundled
from ...core.errors import AgentError, UsageError
from ...core.schema import read_toml
from ..options import Options, add_config
from .install_settings import SKELETON, check, take
from .own_wheel import own_source

UNIT = "edge-agent.service"
RETRY = "edge-agent-retry.timer"
HOME = Path("/opt/edge-agent")
ETC = Path("/etc/edge-agent")
STATE = Path("/var/lib/edge-agent")
CACHE = Path("/var/cache/edge-agent")
UNITS = Path("/etc/systemd/system")
SYSUSERS = Path("/etc/sysusers.d/edge-agent.conf")
COMMAND = Path("/usr/local/bin/edge-agent")
PASSWORD = Path("/etc/credstore/broker.password")
SETTINGS = ETC / "config.toml"
READY_SECONDS = 90.0
STEADY_SECONDS = 8.0
"""A version that was ready and dies so soon is not one to leave alone with."""


EXAMPLES = (
    "sudo edge-agent install --config my-settings.toml",
    "sudo edge-agent install  again, to upgrade; settings stay",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_config(parser)


def main(options: Options) -> int:
    """Install the service, or upgrade it to this version."""
    check_system("install")
    return _install(Path(options.config) if options.config else None)


def check_system(command: str) -> None:
    """Check that services can be changed here.

    Raises:
        UsageError: this is not root, or systemd does not run.

    """
    if os.geteuid() != 0:
        raise UsageError(f"{command} changes the system: run it with sudo")
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        raise UsageError(f"{command} needs systemd, which does not run here")


def _install(config: Path | None) -> int:
    if config is not None and not config.is_file():
        raise UsageError(f"--config: {config}: no such file")
    before = _current()
    _check_settings(config or SETTINGS, before)
    kept = _Kept((SETTINGS, UNITS / UNIT, UNITS / RETRY, SYSUSERS))
    place = HOME / f"{__version__}-{time.strftime('%Y%m%d%H%M%S')}"
    _progress(f"making {place}")
    try:
        _make_environment(place)
        _set_up(config, place)
        _point_to(place)
        _run("systemctl", "daemon-reload")
        _run("systemctl", "enable", UNIT)
        if (trouble := _start()) is not None:
            _progress(_journal())
            raise AgentError(f"{trouble}; what it said stands above")
    except BaseException:
        _undo(place, before, kept)
        raise
    for old in _environments():
        if old.resolve() not in {place.resolve(), before}:
            shutil.rmtree(old, ignore_errors=True)
    print(f"edge-agent {__version__} is installed and {_state('ActiveState')}")
    print(f"settings  {SETTINGS}")
    print("results   edge-agent tail      log  journalctl -u edge-agent -f")
    _print_next()
    return 0


def _check_settings(config: Path, before: Path | None) -> None:
    """Check the settings that the service will have before minutes are spent.

    Where we run without what that takes, and the installation before has not got it either, the new
    one sees it later.

    Raises:
        UsageError: they are wrong.

    """
    if not (config.is_file() and ETC.is_dir()):
        return
    try:
        if find_spec("pydantic_settings") is not None:
            check(config, SETTINGS, Path(sys.executable))
        elif before is not None and (python := before / "bin" / "python").exists():
            check(config, SETTINGS, python, Path(__file__).parents[3])
    except UsageError as problem:
        raise UsageError(f"{problem}; nothing was changed") from None


def _print_next() -> None:
    """Print what to do now."""
    if read_toml(SETTINGS, UsageError).get("pipelines"):
        print("next      sudo edge-agent check; after a change: sudo systemctl reload edge-agent")
        return
    print("next      it has nothing to do yet:")
    print(f"  1. name a source and a model under [[pipelines]] in {SETTINGS}")
    print("  2. sudo edge-agent check")
    print("  3. sudo systemctl reload edge-agent")


class _Kept:
    """Files as they were, to be put back."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._before = {path: path.read_bytes() if path.is_file() else None for path in paths}

    def put_back(self) -> bool:
        """Write what was there, remove what was not; gives whether anything was changed."""
        changed = False
        for path, content in self._before.items():
            found = path.read_bytes() if path.is_file() else None
            if found == content:
                continue
            changed = True
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
        return changed


def _make_environment(place: Path) -> None:
    """Make a virtual environment and install this very version into it, with its extras."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.parent.chmod(0o755)
    _run(sys.executable, "-m", "venv", str(place))
    pip = (str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    source = own_source(place)
    # Also compiles, as root: the service itself may not write there.
    _run(*pip, f"{source}[metrics]")
    if source.is_file():
        source.unlink()


def _set_up(config: Path | None, place: Path) -> None:
    """Write what is not there yet: user, settings, units. What the operator wrote stays.

    Raises:
        UsageError: the settings given are wrong; those in place stay.

    """
    source = bundled("systemd")
    SYSUSERS.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "edge-agent.sysusers.conf", SYSUSERS)
    _run("systemd-sysusers", str(SYSUSERS))
    ETC.mkdir(mode=0o755, parents=True, exist_ok=True)
    for folder in ("trust.d", "device_profiles"):
        (ETC / folder).mkdir(exist_ok=True)
    if config is not None and config.resolve() != SETTINGS:
        take(config, SETTINGS, place / "bin" / "python")
    elif not SETTINGS.is_file():
        SETTINGS.write_text(SKELETON)
    # It may hold a password: for root and the service only.
    shutil.chown(SETTINGS, "root", "edge-agent")
    SETTINGS.chmod(0o640)
    for unit in (UNIT, RETRY):
        shutil.copyfile(source / unit, UNITS / unit)


def _point_to(place: Path) -> None:
    """Point `current` and the command on the PATH to an environment, in one atomic step."""
    temporary = HOME / ".current"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(place.name)
    temporary.replace(HOME / "current")
    if COMMAND.exists() and not COMMAND.is_symlink():
        _progress(f"{COMMAND} is another program's; the command is {HOME}/current/bin/edge-agent")
        return
    COMMAND.unlink(missing_ok=True)
    COMMAND.symlink_to(HOME / "current" / "bin" / "edge-agent")


def _start() -> str | None:
    """Start or restart the service; return what went wrong, None where it stays up."""
    subprocess.run(["systemctl", "reset-failed", UNIT], check=False, capture_output=True)
    # What systemd knows of a unit that restarts by itself is seen from its counter alone.
    try:
        done = subprocess.run(
            ["systemctl", "restart", UNIT], check=False, capture_output=True, timeout=READY_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"the service was not ready within {READY_SECONDS:.0f} s"
    if done.returncode != 0 or _state("ActiveState") != "active":
        return "the service did not become ready"
    began = _state("NRestarts")
    deadline = time.monotonic() + STEADY_SECONDS
    while time.monotonic() < deadline:
        if _state("ActiveState") != "active" or _state("NRestarts") != began:
            return "the service was ready, but did not stay up"
        time.sleep(0.5)
    return None


def _undo(place: Path, before: Path | None, kept: _Kept) -> None:
    """Go back to the installation before, where there is one."""
    _progress("undoing it")
    changed = kept.put_back() or _current() != before
    if before is not None and before.is_dir() and not changed:
        _progress(f"{before.name} runs on")
    elif before is not None and before.is_dir():
        _point_to(before)
        _run("systemctl", "daemon-reload")
        back = "does not start either" if _start() else "runs again, with its settings and state"
        _progress(f"{before.name} {back}")
    else:
        _remove_service()
    shutil.rmtree(place, ignore_errors=True)


def _current() -> Path | None:
    link = HOME / "current"
    return link.resolve() if link.is_symlink() else None


def _environments() -> list[Path]:
    """List the installed environments; other files beside them are not ours."""
    if not HOME.is_dir():
        return []
    return [
        found
        for found in HOME.iterdir()
        if not found.is_symlink() and (found / "pyvenv.cfg").is_file()
    ]


def _remove_service() -> None:
    """Stop the service and take away its units and the command."""
    subprocess.run(["systemctl", "disable", "--now", UNIT], check=False, capture_output=True)
    subprocess.run(["systemctl", "stop", RETRY], check=False, capture_output=True)
    for path in (UNITS / UNIT, UNITS / RETRY, SYSUSERS, HOME / "current"):
        path.unlink(missing_ok=True)
    if COMMAND.is_symlink():
        COMMAND.unlink()
    with suppress(OSError):  # somebody else's are there, too
        SYSUSERS.parent.rmdir()
    _run("systemctl", "daemon-reload")
    subprocess.run(["systemctl", "reset-failed", UNIT], check=False, capture_output=True)


def uninstall() -> int:
    """Remove all but what took work to make: settings, keys, models; return the exit status."""
    _remove_service()
    for place in _environments():
        shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):  # it is not there, or there is something of yours
        HOME.rmdir()
    shutil.rmtree(CACHE, ignore_errors=True)
    print("edge-agent is uninstalled")
    left = {
        ETC: "settings, keys",
        STATE: "models",
        PASSWORD: "the broker's password",
        UNITS / f"{UNIT}.d": "changes of yours to the unit",
        HOME: "what you have put there",
    }
    there = {path: what for path, what in left.items() if path.exists()}
    listed = "".join(f"{path} ({what}), " for path, what in there.items())
    print(f"left: {listed}the user edge-agent; to remove them too:")
    if there:
        print(f"  rm -r {' '.join(map(str, there))}")
    print("  userdel edge-agent")
    return 0


def _state(key: str) -> str:
    return _output("systemctl", "show", UNIT, "--value", "-p", key)


def _journal() -> str:
    return _output("journalctl", "-u", UNIT, "-n", "15", "-o", "cat", "--no-pager")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def _run(*command: str) -> None:
    """Run a command.

    Raises:
        AgentError: it failed; with its last word.

    """
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise AgentError(
            f"{' '.join(command[:3])}: {words[-1] if words else f'status {done.returncode}'}"
        )
