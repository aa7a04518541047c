"""`edge-agent install` and `uninstall`: the systemd service.

Every installation is a virtual environment of its own under /opt/edge-agent; `current` points to
the one that runs. An upgrade whose service does not become ready is undone by pointing back.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from .. import __version__
from ..bundled import bundled
from ..errors import AgentError, UsageError
from . import Options

UNIT = "edge-agent.service"
HOME = Path("/opt/edge-agent")
ETC = Path("/etc/edge-agent")
STATE = Path("/var/lib/edge-agent")
CACHE = Path("/var/cache/edge-agent")
UNIT_FILE = Path("/etc/systemd/system") / UNIT
SYSUSERS = Path("/etc/sysusers.d/edge-agent.conf")
COMMAND = Path("/usr/local/bin/edge-agent")
READY_SECONDS = 90.0

SKELETON = """\
# edge-agent: see the README for every key.
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


def main(options: Options) -> int:
    """Install or uninstall."""
    if os.geteuid() != 0:
        raise UsageError(f"{options.command} changes the system: run it with sudo")
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        raise UsageError(f"{options.command} needs systemd, which does not run here")
    if options.command == "uninstall":
        return _uninstall()
    return _install(Path(options.config) if options.config else None)


def _install(config: Path | None) -> int:
    if config is not None:
        _check(config)
    before = _current()
    place = HOME / f"{__version__}-{time.strftime('%Y%m%d%H%M%S')}"
    _say(f"making {place}")
    try:
        _make_environment(place)
        _set_up(config)
        _point_to(place)
        _systemctl("daemon-reload")
        _systemctl("enable", UNIT)
        if not _start():
            raise AgentError(f"the service did not become ready:\n{_journal()}")
    except BaseException:
        _undo(place, before)
        raise
    for old in _old_places(place, before):
        shutil.rmtree(old, ignore_errors=True)
    state = _output("systemctl", "is-active", UNIT)
    print(f"edge-agent {__version__} is installed and {state}")
    print(f"settings  {ETC / 'config.toml'}; after a change: systemctl reload edge-agent")
    print("results   edge-agent tail      log  journalctl -u edge-agent -f")
    return 0


def _check(config: Path) -> None:
    """See that the settings are right before anything is changed.

    Raises:
        UsageError: they are not.

    """
    from ..config import load

    if not config.is_file():
        raise UsageError(f"--config: {config}: no such file")
    load(config)


def _make_environment(place: Path) -> None:
    """Make a virtual environment and install this very version into it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.parent.chmod(0o755)
    _run(sys.executable, "-m", "venv", str(place))
    _run(
        str(place / "bin" / "pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        _own_source(place),
    )
    # Compiled now, as root: the service itself may not write there.
    _run(
        str(place / "bin" / "python"),
        "-m",
        "compileall",
        "-q",
        str(next(place.glob("lib/python*/site-packages"))),
    )


def _own_source(place: Path) -> str:
    """Give pip something to install: the checkout we run from, or ourselves as a wheel."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return str(checkout)
    try:
        return str(_wheel_of(distribution("edge-agent"), place))
    except PackageNotFoundError:
        raise AgentError(
            "this is neither a checkout nor an installed package; install it with pip"
        ) from None


def _wheel_of(own: Distribution, folder: Path) -> Path:
    """Pack an installed distribution into a wheel again, from its own list of files (PEP 376)."""
    site = Path(sysconfig.get_path("purelib"))
    wheel = folder / f"edge_agent-{own.version}-py3-none-any.whl"
    record: list[str] = []
    info = f"edge_agent-{own.version}.dist-info"
    skipped = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in own.files or []:
            name = file.as_posix()
            if (
                name.startswith("..")
                or "__pycache__" in name
                or (info in name and file.name in skipped)
            ):
                continue
            data = (site / file).read_bytes() if (site / file).is_file() else file.read_binary()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return wheel


def _set_up(config: Path | None) -> None:
    """Write what is not there yet: user, settings, unit. What the operator wrote stays."""
    source = bundled("systemd")
    SYSUSERS.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "edge-agent.sysusers.conf", SYSUSERS)
    _run("systemd-sysusers", str(SYSUSERS))
    ETC.mkdir(mode=0o755, parents=True, exist_ok=True)
    for folder in ("trust.d", "device_profiles"):
        (ETC / folder).mkdir(exist_ok=True)
    settings = ETC / "config.toml"
    if config is not None and config.resolve() != settings.resolve():
        if settings.is_file() and settings.read_bytes() != config.read_bytes():
            shutil.copyfile(settings, settings.with_suffix(".toml.before"))
        shutil.copyfile(config, settings)
    elif not settings.is_file():
        settings.write_text(SKELETON)
    # It may hold a password: for root and the service only.
    shutil.chown(settings, "root", "edge-agent")
    settings.chmod(0o640)
    shutil.copyfile(source / UNIT, UNIT_FILE)


def _point_to(place: Path) -> None:
    """Let `current` and the command on the PATH lead to an environment, in one step."""
    temporary = HOME / ".current"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(place.name)
    temporary.replace(HOME / "current")
    if not COMMAND.exists() or COMMAND.is_symlink():
        COMMAND.unlink(missing_ok=True)
        COMMAND.symlink_to(HOME / "current" / "bin" / "edge-agent")


def _start() -> bool:
    """Start the service, or start it anew; True when it says that it is ready."""
    subprocess.run(["systemctl", "reset-failed", UNIT], check=False, capture_output=True)
    done = subprocess.run(
        ["systemctl", "restart", UNIT], check=False, capture_output=True, timeout=READY_SECONDS
    )
    return done.returncode == 0 and _output("systemctl", "is-active", UNIT) == "active"


def _undo(place: Path, before: Path | None) -> None:
    """Go back to the installation before, where there is one."""
    if before is not None and before.is_dir():
        _point_to(before)
        _systemctl("daemon-reload")
        back = "runs again" if _start() else "does not start either"
        _say(f"{before.name} {back}; its settings and state were not touched")
    else:
        subprocess.run(["systemctl", "disable", "--now", UNIT], check=False, capture_output=True)
        (HOME / "current").unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def _current() -> Path | None:
    link = HOME / "current"
    return link.resolve() if link.is_symlink() else None


def _old_places(place: Path, before: Path | None) -> list[Path]:
    stay = {place.resolve(), before.resolve() if before is not None else place.resolve()}
    return [
        found
        for found in HOME.iterdir()
        if found.is_dir() and not found.is_symlink() and found.resolve() not in stay
    ]


def _uninstall() -> int:
    """Remove all but what took work to make: settings, keys, models."""
    subprocess.run(["systemctl", "disable", "--now", UNIT], check=False, capture_output=True)
    UNIT_FILE.unlink(missing_ok=True)
    SYSUSERS.unlink(missing_ok=True)
    if COMMAND.is_symlink():
        COMMAND.unlink()
    shutil.rmtree(HOME, ignore_errors=True)
    shutil.rmtree(CACHE, ignore_errors=True)
    _systemctl("daemon-reload")
    print("edge-agent is uninstalled")
    print(
        f"left: {ETC} (settings, keys), {STATE} (models), the user edge-agent; to remove them too:"
    )
    print(f"  rm -r {ETC} {STATE}; userdel edge-agent")
    return 0


def _journal() -> str:
    return _output("journalctl", "-u", UNIT, "-n", "15", "-o", "cat", "--no-pager")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _systemctl(*words: str) -> None:
    _run("systemctl", *words)


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
