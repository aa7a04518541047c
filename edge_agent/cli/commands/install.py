"""`edge-agent install` and `uninstall`: the systemd service.

Every installation is a separate environment under /opt/edge-agent, with the versions that the tests
were run with; `current` points to the one in use. If its service does not become ready, or does not
stay up, all changes are reverted, and the previous installation runs again.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ... import __version__
from ...core.bundled import constraints
from ...core.errors import AgentError, UsageError
from ...core.schema import read_toml
from ..options import Options, add_config
from ..service_user import service_user
from .install_bundle import EXTRAS, Bundle, open_bundle
from .install_settings import FOLDERS, SKELETON, check, take
from .installation import (
    COMMAND,
    COMPLETION,
    HOME,
    UNITS,
    Installation,
    alone,
    by_dpkg,
    check_images,
    current,
    installations,
    new,
    output,
    own_source,
    packaged,
    point_to,
    progress,
    remove_unfinished,
    run,
)

UNIT = "edge-agent.service"
RETRY = "edge-agent-retry.timer"
ETC = Path("/etc/edge-agent")
STATE = Path("/var/lib/edge-agent")
CACHE = Path("/var/cache/edge-agent")
SYSUSERS = Path("/etc/sysusers.d/edge-agent.conf")
PASSWORD = Path("/etc/credstore/broker.password")
SETTINGS = ETC / "config.toml"
READY_SECONDS = 90.0
STEADY_SECONDS = 8.0
"""How long a ready service must run before the installation counts as good."""


EXAMPLES = (
    "sudo edge-agent install --config my-settings.toml",
    "sudo edge-agent install  again, to upgrade; settings stay",
    "sudo edge-agent install --offline edge-agent.bundle  without a network",
    "sudo edge-agent install --previous  back to the installation before",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_config(parser)
    parser.add_argument(
        "--image",
        action="store_true",
        help="keep the program in one compressed read-only image; needs squashfs-tools",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--offline",
        metavar="BUNDLE",
        help="install what is in this file, without any network; scripts/bundle makes it",
    )
    source.add_argument(
        "--previous",
        action="store_true",
        help="go back to the installation before, which is kept; settings and models stay",
    )


def main(options: Options) -> int:
    """Install the service, upgrade it to this version, or go back."""
    check_system("install")
    config = Path(options.config) if options.config else None
    if config is not None and not config.is_file():
        raise UsageError(f"--config: {config}: no such file")
    if options.previous:
        if config is not None or options.image:
            raise UsageError("--previous takes neither --config nor --image: all was chosen then")
        with alone():
            return _go_back()
    bundle = open_bundle(Path(options.offline)) if options.offline else None
    if bundle is not None and not bundle.is_running():
        words = ("--config", options.config) if options.config else ()
        bundle.hand_over([*words, *(["--image"] if options.image else [])])
    if bundle is not None:
        bundle.check_fits()
    if options.image:
        check_images()
    with alone():
        return _install(config, bundle, image=options.image)


def check_system(command: str) -> None:
    """Check that services can be changed here."""
    if os.geteuid() != 0:
        raise UsageError(f"{command} changes the system: run it with sudo")
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        without = "`edge-agent run` needs none"
        raise UsageError(f"{command} needs systemd, which does not run here; {without}")


def _install(config: Path | None, bundle: Bundle | None, *, image: bool) -> int:
    before = proven()
    _check_settings(config or SETTINGS, before)
    os.umask(0o022)  # readable by the service's user, whatever root's own mask
    remove_unfinished()  # first, as the disk may have room for one more only
    made = new()
    progress(f"making {made.place}")
    try:
        with made.being_made():
            _make_environment(made, bundle)
            completion = ("edge_agent.cli.completion", str(made.completion))
            run(str(made.python), "-I", "-m", *completion)
            if image:
                progress(f"packing it into {made.image}")
                made.pack()
            _switch(made, before, config)
    except BaseException as problem:
        made.remove()
        if isinstance(problem, OSError) and problem.errno == errno.ENOSPC:
            place = problem.filename or HOME
            raise AgentError(f"{place}: {problem.strerror}; make room there") from None
        raise
    remove_unfinished()  # also one that was in use until now
    for old in installations():
        if old not in {made, before}:
            old.remove()
    print(f"edge-agent {__version__} is installed and {_state('ActiveState')}")
    print(f"settings  {SETTINGS}")
    print("results   edge-agent tail      log  journalctl -u edge-agent -f")
    _print_package()
    _print_disabled()
    _print_unread()
    _print_next()
    return 0


def proven() -> Installation | None:
    """Return the installation to go back to: the one in use, or what a killed install replaced."""
    now = current()
    if now is None or not now.mark.exists():
        return now
    if not _has_stayed_up(now):
        return next(reversed(installations()), None)
    now.mark.unlink()
    return now


def _has_stayed_up(installation: Installation) -> bool:
    """Whether the service runs from this installation, and for long enough."""
    if _state("ActiveState") != "active":
        return False
    try:
        command = Path("/proc", _state("MainPID"), "cmdline").read_bytes()
        since = int(_state("ActiveEnterTimestampMonotonic")) / 1e6
    except (OSError, ValueError):
        return False
    ours = command.startswith(os.fsencode(installation.python) + b"\0")
    return ours and time.monotonic() - since > STEADY_SECONDS


def _go_back() -> int:
    """Switch to the other installation."""
    proven()  # the one in use may be one to come back to
    now = current()
    others = [each for each in installations() if each != now]
    if now is None or not others:
        raise UsageError("--previous: there is no installation before this one")
    to = others[-1]
    if not to.python.exists():
        raise UsageError(f"--previous: {to.place}: is damaged, or its image is not mounted")
    try:
        check(SETTINGS, SETTINGS, to.python)  # by its own code, which may not know the newest keys
    except UsageError as problem:
        raise UsageError(f"{problem}, says {to.place.name}; nothing was changed") from None
    _switch(to, now, None)
    print(f"edge-agent {to.version} is back and {_state('ActiveState')}, from {to.place}")
    _print_package()
    _print_disabled()
    return 0


def _switch(to: Installation, before: Installation | None, config: Path | None) -> None:
    """Switch to an installation.

    A service that was disabled stays so, and is not started unless it was running.
    """
    kept = contents((SETTINGS, UNITS / UNIT, UNITS / RETRY, SYSUSERS))
    disabled = before is not None and _is_disabled()
    rests = disabled and _state("ActiveState") in {"inactive", "failed"}
    try:
        _set_up(config, to)
        point_to(to)
        run("systemctl", "daemon-reload")
        if not disabled:
            run("systemctl", "enable", UNIT)
        if (trouble := _start(rests=rests)) is not None:
            progress(output("journalctl", "-u", UNIT, "-n", "15", "-o", "cat", "--no-pager"))
            raise AgentError(f"{trouble}; what it said stands above")
        os.sync()  # whoever is told that it is installed may pull the plug
    except BaseException:
        _undo(before, kept, rests=rests)
        raise


def _check_settings(config: Path, before: Installation | None) -> None:
    """Check the service's future settings before minutes are spent on installing.

    They are checked by this version's code. If neither this environment nor the previous
    installation has the libraries to say what is wrong, the new one checks later.
    """
    if not config.is_file():
        return
    python = Path(sys.executable)
    if find_spec("pydantic_settings") is None and before is not None and before.python.exists():
        python = before.python
    try:
        check(config, SETTINGS, python, Path(__file__).parents[3])
    except UsageError as problem:
        raise UsageError(f"{problem}; nothing was changed") from None


def _print_package() -> None:
    """Report if another version than dpkg's is installed."""
    if not by_dpkg() and (version := packaged()) is not None:
        print(f"package   dpkg has {version}, which its next upgrade replaces by its own")


def _is_disabled() -> bool:
    return output("systemctl", "is-enabled", UNIT) == "disabled"


def _print_disabled() -> None:
    """Report if the service was disabled before."""
    if _is_disabled():
        mend = f"to start it, now and with the machine: systemctl enable --now {UNIT}"
        print(f"note      the service stays disabled, as it was; {mend}")


def _print_unread() -> None:
    """Report what the settings name that the service's user does not find or may not read."""
    from ...config.load import load
    from ...config.paths import named_paths

    user = service_user()
    # What this environment lacks the libraries for, or cannot look at, `check` says.
    with suppress(ModuleNotFoundError, UsageError, OSError):
        for subject, path in named_paths(load(SETTINGS)):
            trouble = user.trouble(path) if user is not None else None
            if trouble is not None or not path.exists():
                print(f"note      {subject}: {trouble or f'{path}: is not there'}")


def _print_next() -> None:
    """Print the next steps."""
    if read_toml(SETTINGS, UsageError).get("pipelines"):
        print("next      sudo edge-agent check; after a change: sudo systemctl reload edge-agent")
        return
    print("next      it has nothing to do yet:")
    print(f"  1. name a source and a model under [[pipelines]] in {SETTINGS}")
    print("  2. sudo edge-agent check")
    print("  3. sudo systemctl reload edge-agent")


def contents(paths: Iterable[Path]) -> dict[Path, bytes | None]:
    """Return the contents of files, to restore them later; None for a missing file."""
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


def put_back(kept: Mapping[Path, bytes | None]) -> bool:
    """Restore or remove files according to *kept*; return whether anything was changed."""
    changed = contents(kept).items() - kept.items()
    for path, _ in changed:
        content = kept[path]
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    return bool(changed)


def _make_environment(made: Installation, bundle: Bundle | None) -> None:
    """Make an environment of exactly this version with its extras, from a bundle or the index."""
    place = made.place
    place.parent.mkdir(parents=True, exist_ok=True)
    place.parent.chmod(0o755)
    # pip also compiles bytecode, as root, because the service must not write there.
    if bundle is not None:
        # Uses the pip in the bundle, because the system may have none.
        run(sys.executable, "-m", "venv", "--without-pip", str(place))
        pip, requirements = bundle.unpack(place / "bundle")
        run(
            *(str(made.python), "-I", f"{pip}/pip", "--isolated", "--disable-pip-version-check"),
            *("install", "--quiet", "--no-index", "--find-links", str(pip.parent)),
            *("--require-hashes", "-r", str(requirements)),
        )
        shutil.rmtree(place / "bundle")
        return
    run(sys.executable, "-m", "venv", str(place))
    pip_install = (str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    source = own_source(place)
    run(
        *(*pip_install, "-c", str(constraints()), f"{source}{EXTRAS}"),
        unreached="pip reaches no package index from here; without a network, install from a "
        "file that a machine with one makes (scripts/bundle -o BUNDLE): install --offline BUNDLE",
    )
    if source.is_file():
        source.unlink()


def _set_up(config: Path | None, to: Installation) -> None:
    """Create what is missing: user, settings, units. The operator's own files stay."""
    source = to.units
    SYSUSERS.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "edge-agent.sysusers.conf", SYSUSERS)
    run("systemd-sysusers", str(SYSUSERS))
    ETC.mkdir(mode=0o755, parents=True, exist_ok=True)
    for folder in FOLDERS:
        (ETC / folder).mkdir(exist_ok=True)
    if config is not None and config.resolve() != SETTINGS:
        take(config, SETTINGS, to.python)
    elif not SETTINGS.is_file():
        SETTINGS.write_text(SKELETON)
    # It may contain a password, so only root and the service may read it.
    shutil.chown(SETTINGS, "root", "edge-agent")
    SETTINGS.chmod(0o640)
    for unit in (UNIT, RETRY):
        shutil.copyfile(source / unit, UNITS / unit)


def _start(*, rests: bool) -> str | None:
    """Start or restart the service unless it *rests*.

    Returns:
        The reason if it fails, or None if it stays up.
    """
    subprocess.run(["systemctl", "reset-failed", UNIT], check=False, capture_output=True)
    if rests:
        return None
    # Only its counter shows whether systemd has restarted a unit.
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


def _undo(before: Installation | None, kept: Mapping[Path, bytes | None], *, rests: bool) -> None:
    """Go back to the previous installation, if there is one."""
    progress("undoing it")
    changed = put_back(kept) or current() != before
    if before is not None and before.place.is_dir():
        state = "is stopped, as it was" if rests else "runs on"
        if changed:
            point_to(before)
            run("systemctl", "daemon-reload")
            if _start(rests=rests) is not None:
                state = "does not start either"
            elif not rests:
                state = "runs again, with its settings and state"
            os.sync()
        progress(f"{before.place.name} {state}")
    else:
        _remove_service()
        _remove_command()


def _remove_service() -> None:
    """Stop the service and remove its units."""
    subprocess.run(["systemctl", "disable", "--now", UNIT], check=False, capture_output=True)
    subprocess.run(["systemctl", "stop", RETRY], check=False, capture_output=True)
    for path in (UNITS / UNIT, UNITS / RETRY, SYSUSERS):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # it contains other files, too
        SYSUSERS.parent.rmdir()
    run("systemctl", "daemon-reload")
    subprocess.run(["systemctl", "reset-failed", UNIT], check=False, capture_output=True)


def _remove_command() -> None:
    """Remove the command, and what shells complete of it."""
    (HOME / "current").unlink(missing_ok=True)
    for path in (COMMAND, *COMPLETION.values()):
        if path.is_symlink():
            path.unlink()
    made = {folder for path in COMPLETION.values() for folder in path.parents[:2]}
    made -= {Path("/usr/local/share"), Path("/usr/local/share/man")}
    for folder in sorted(made, reverse=True):
        with suppress(OSError):  # likewise
            folder.rmdir()


def uninstall(*, forget: bool) -> int:
    """Remove everything except settings, keys, and models; return the exit status.

    With *forget*, the broker forgets the device; if that fails, nothing is removed.
    """
    if forget:
        _forget()
    _remove_service()
    remove_unfinished()
    for each in installations():
        each.remove()
    last = current()
    _remove_command()  # not before: if this is killed, it can be run again
    if last is not None:
        last.remove()
    with suppress(OSError):  # it does not exist, or contains other files
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
    if by_dpkg():
        print(f"left: {listed}the user edge-agent; all but what is yours goes with apt purge")
        return 0
    print(f"left: {listed}the user edge-agent; to remove them too:")
    if there:
        print(f"  rm -r {' '.join(map(str, there))}")
    print("  userdel edge-agent")
    return 0


def _forget() -> None:
    """Stop the service, and make the broker forget it; if that fails, start it again."""
    from ..forgetting import forget_installed
    from ..service_settings import service_config, service_environment

    ran = _state("ActiveState") == "active"
    subprocess.run(["systemctl", "stop", UNIT], check=False, capture_output=True)
    try:
        with service_environment() as (environ, unread):
            if unread:
                raise UsageError(f"which device the service was is not known: {'; '.join(unread)}")
            print(forget_installed(service_config(SETTINGS), environ))
    except BaseException as problem:  # an interrupt, too
        if ran:
            subprocess.run(["systemctl", "start", UNIT], check=False, capture_output=True)
        if isinstance(problem, AgentError):
            raise AgentError(f"{problem}; nothing is removed, without --forget it is") from None
        raise


def _state(key: str) -> str:
    return output("systemctl", "show", UNIT, "--value", "-p", key)
