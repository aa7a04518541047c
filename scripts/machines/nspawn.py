"""A bare Debian in a booted systemd: nspawn over an overlay, so that the root stays as it is.

Knows nothing of what is done in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "systemd,systemd-sysv,dbus,libpam-systemd,python3,procps,iproute2,ca-certificates,"
    "debian-archive-keyring"
)


class Failed(Exception):
    """Something is not as it should be."""


def say(text: str) -> None:
    """Say what was seen, and when."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def make_root(root: Path, *more: str) -> Path:
    """Make a root file system as the installer of Debian leaves it, or barer, and more packages."""
    say("making a bare Debian 12")
    packages = ",".join((PACKAGES, *more))
    # Nobody needs it after a loss of power; writing each file through takes half of the time.
    quick = "--dpkgopt=force-unsafe-io"
    call("mmdebstrap", "--variant=minbase", quick, f"--include={packages}", "bookworm", str(root))
    return root


def gather_wheels(wheels: Path) -> Path:
    """Download what pip will want inside, so that the container needs no index."""
    say("downloading wheels")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    # Those that `install` brings.
    bundle = (CHECKOUT / "edge_agent/cli/commands/install_bundle.py").read_text()
    (extras,) = re.findall(r'(?m)^EXTRAS = "(.+)"$', bundle)
    wanted = (f"{CHECKOUT}{extras}", "hatchling", "pip")
    tested = ("-c", str(CHECKOUT / "scripts/constraints.txt"))
    call(*pip, "wheel", "--quiet", "--wheel-dir", str(wheels), *tested, *wanted)
    for own in wheels.glob("edge_agent-*.whl"):
        own.unlink()
    return wheels


@contextlib.contextmanager
def overlay(root: Path, work: Path) -> Iterator[Path]:
    """Lay a writable layer over the root."""
    upper, scratch, merged = (work / name for name in ("upper", "scratch", "merged"))
    for folder in (upper, scratch, merged):
        folder.mkdir()
    layers = f"lowerdir={root.resolve()},upperdir={upper},workdir={scratch}"
    call("mount", "-t", "overlay", "overlay", "-o", layers, str(merged))
    try:
        yield merged
    finally:
        call("umount", str(merged))


def put_in(merged: Path, wheels: Path) -> None:
    """Lay checkout and wheels where the commands inside find them."""
    shutil.copytree(wheels, merged / "root/wheels")
    skipped = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(CHECKOUT, merged / "root/checkout", ignore=skipped, symlinks=True)
    (merged / "etc/hostname").write_text("bare\n")
    (merged / "etc/hosts").write_text("127.0.0.1 localhost\n")


def call(*command: str) -> str:
    """Run a command of this machine; gives its output."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(f"{' '.join(command[:4])}: {words[-1] if words else done.returncode}")
    return done.stdout


class Machine:
    """A container with a systemd of its own."""

    def __init__(self, root: Path, *, network: bool = True) -> None:
        """Name a machine.

        Args:
            root: its root file system.
            network: whether it has ours; else loopback alone.

        """
        self._root = root
        self._network = network
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._groups = set(_cgroups())

    def boot(self) -> None:
        command = (
            "systemd-nspawn",
            "--keep-unit",
            "--register=no",
            "--quiet",
            "--boot",
            "--console=pipe",
            "--resolv-conf=replace-host",
            "--capability=all",
            "--system-call-filter=bpf @keyring",
            "-D",
            str(self._root),
            *(f"--bind={node}" for node in sorted(Path("/dev").glob("loop*"))),
            *(() if self._network else ("--private-network",)),
        )
        self._nspawn = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait("the container's init", self._find_init, 30)
        wait(
            "the container to be up",
            lambda: self.run("systemctl is-system-running", check=False) in {"running", "degraded"},
            60,
        )
        if Path("/sys/fs/cgroup/memory").is_dir():
            # Version 1: else what limits memory and devices is only written down.
            self.run(
                "for c in memory pids cpu cpuacct blkio devices; do "
                "mount -o remount,bind,rw,nosuid,nodev,noexec /sys/fs/cgroup/$c; done; "
                "systemctl daemon-reexec"
            )

    def _find_init(self) -> bool:
        assert self._nspawn is not None
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text()
        self._init = int(children.split()[0]) if children.split() else 0
        return self._init != 0 and Path(f"/proc/{self._init}/comm").read_text().strip() == "systemd"

    def run(self, script: str, *, check: bool = True, patience: float = 900) -> str:
        """Run a shell script inside; gives what it printed."""
        done = subprocess.run(
            self.enter("bash", "-c", script),
            check=False,
            capture_output=True,
            text=True,
            timeout=patience,
        )
        if check and done.returncode:
            raise Failed(
                f"{script.strip().splitlines()[0][:80]}: {(done.stderr or done.stdout)[-2000:]}"
            )
        return done.stdout.strip()

    def fails(self, script: str) -> tuple[int, str]:
        """Run a script that is to fail; gives its exit status and stderr."""
        done = subprocess.run(
            self.enter("bash", "-c", script), check=False, capture_output=True, text=True
        )
        return done.returncode, done.stderr.strip()

    def enter(self, *command: str) -> tuple[str, ...]:
        into = ("nsenter", "-t", str(self._init), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w")
        environ = (
            "env",
            "-i",
            "HOME=/root",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
            "PIP_NO_INDEX=1",
            "PIP_FIND_LINKS=/root/wheels",
            "LC_ALL=C.UTF-8",
        )
        return (*into, *environ, *command)

    def halt(self) -> None:
        if self._nspawn is None:
            return
        self.run("systemctl poweroff", check=False)
        try:
            self._nspawn.wait(60)
        except subprocess.TimeoutExpired:
            os.kill(self._init, signal.SIGKILL)
            self._nspawn.wait(30)
        self._nspawn = None
        for group in sorted(set(_cgroups()) - self._groups, reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()


def _cgroups() -> Iterator[Path]:
    for folder, _, _ in os.walk("/sys/fs/cgroup"):
        yield Path(folder)


def wait(what: str, claim: Callable[[], object], patience: float) -> float:
    """Wait until something holds; gives the seconds that it took."""
    began = time.monotonic()
    while not claim():
        if time.monotonic() - began > patience:
            raise Failed(f"waited {patience:.0f} s in vain for {what}")
        time.sleep(0.2)
    return time.monotonic() - began


def expect(what: str, found: object, wanted: object) -> None:
    """Fail where something is not as wanted."""
    if found != wanted:
        raise Failed(f"{what}: found {found!r}, expected {wanted!r}")
