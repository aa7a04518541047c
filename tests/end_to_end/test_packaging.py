"""The container image and the Debian package, built from this checkout, where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MACHINES = Path(__file__).resolve().parents[2] / "scripts/machines"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("script", "tools", "packages"),
    [
        ("test-container", "buildah mmdebstrap podman runc", "buildah mmdebstrap podman runc"),
        (
            "test-deb",
            "systemd-nspawn mmdebstrap mksquashfs",
            "systemd-container mmdebstrap squashfs-tools",
        ),
    ],
)
def test_it_is_built_and_goes_through_its_life(script: str, tools: str, packages: str) -> None:
    """Started, pushed to, restarted, upgraded, rolled back; by hand: sudo scripts/machines/…."""
    if os.geteuid() != 0 or not all(map(shutil.which, tools.split())):
        pytest.skip(f"needs root, and: apt install {packages}")
    done = subprocess.run([MACHINES / script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
