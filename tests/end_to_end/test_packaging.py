"""The container image and the Debian package, built from this checkout, where that is possible.

By hand: sudo scripts/machines/test-container, sudo scripts/machines/test-deb.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MACHINES = Path(__file__).resolve().parents[2] / "scripts/machines"
MOST_SECONDS = 1500.0
TOOLS = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "podman": "podman",
    "runc": "runc",
    "systemd-nspawn": "systemd-container",
}
"""Programs, and the packages that have them; scripts/test installs these for root on a Debian."""


def missing(tools: str) -> str:
    """Name what this machine lacks for it; empty: nothing."""
    if os.geteuid() != 0:
        return "root"
    if 'VERSION_ID="12"' not in Path("/etc/os-release").read_text():
        return "Debian 12, whose Python the bundle is then for"
    if lacking := [package for tool, package in TOOLS.items() if tool in tools and not which(tool)]:
        return f"packages: apt install {' '.join(lacking)}"
    mount = ("unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt")
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        return "the right to mount (CAP_SYS_ADMIN)"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "overlay file systems in this kernel"
    groups = Path("/sys/fs/cgroup")
    if not any(os.access(folder, os.W_OK) for folder in (groups, *groups.glob("*/"))):
        return f"control groups that can be written: {groups} is read-only, or not there"
    return ""


def which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@pytest.mark.timeout(MOST_SECONDS + 200)
@pytest.mark.parametrize(
    ("command", "tools"),
    [
        (["test-deb", "--brief"], "systemd-nspawn mmdebstrap"),
        (["test-container"], "buildah mmdebstrap podman runc"),
    ],
    ids=["deb", "container"],
)
def test_it_is_built_and_goes_through_its_life(command: list[str], tools: str) -> None:
    """Demo, push, restart, upgrade, rollback, removal."""
    if what := missing(tools):
        pytest.skip(f"needs {what}")
    trial = subprocess.Popen(
        [MACHINES / command[0], *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = trial.communicate(timeout=MOST_SECONDS)
    finally:
        trial.terminate()  # it takes down what it has begun
        trial.wait(120)
    print(said)
    assert trial.returncode == 0, said
