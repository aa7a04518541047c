"""The Debian package and the Home Assistant add-on: what they are made of; nothing is installed.

Installing takes a booted systemd: `scripts/machines/test-deb`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from edge_agent import __version__
from edge_agent.config.load import load
from tests.helpers.support import CHECKOUT

ADDON = CHECKOUT / "scripts/homeassistant-addon"


def make_deb(folder: Path) -> tuple[Path, Path]:
    """Make a package of an empty bundle; return both."""
    bundle, deb = folder / "some.bundle", folder / "edge-agent.deb"
    with zipfile.ZipFile(bundle, "w") as archive:
        facts = {"version": "1.2", "machine": "linux-aarch64", "python": "3.11", "glibc": "2.35"}
        archive.writestr("bundle.json", json.dumps(facts))
    make = [sys.executable, str(CHECKOUT / "scripts/make_deb.py"), "-o", str(deb)]
    subprocess.run([*make, "--bundle", str(bundle)], check=True, capture_output=True)
    return bundle, deb


def test_a_package_carries_the_bundle_and_calls_its_installer(tmp_path: Path) -> None:
    """For the system that the bundle is for, and no other; its scripts are shell."""
    bundle, deb = make_deb(tmp_path)

    def field(name: str) -> str:
        return subprocess.check_output(["dpkg-deb", "-f", str(deb), name], text=True).strip()

    assert (field("Package"), field("Version"), field("Architecture")) == (
        "edge-agent",
        "1.2",
        "arm64",
    )
    assert "python3 (>= 3.11), python3 (<< 3.12), libc6 (>= 2.35)" in field("Depends")
    root, control = tmp_path / "root", tmp_path / "control"
    subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
    subprocess.run(["dpkg-deb", "-e", str(deb), str(control)], check=True)
    carried = root / "usr/share/edge-agent/edge-agent.bundle"
    assert carried.read_bytes() == bundle.read_bytes()
    for name in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", str(control / name)], check=True)
    assert f"exec sh /{carried.relative_to(root)}" in (control / "postinst").read_text()


# An installation whose image is not mounted, on a machine of which only the package's places are
# its own. Its systemctl is real, but reaches no systemd.
DAMAGED = """
cp -a /etc "$1/etc"
mount --bind "$1/etc" /etc
for place in /run /opt /var/lib /var/cache /usr/local; do mount -t tmpfs tmpfs $place; done
wants=/etc/systemd/system/multi-user.target.wants
mkdir -p /run/systemd/system $wants /opt/edge-agent/9.0.1-20260102030405 /opt/edge-agent/mine
mkdir -p /etc/edge-agent /var/lib/edge-agent /usr/local/bin
ln -s 9.0.1-20260102030405 /opt/edge-agent/current
ln -s /opt/edge-agent/current/bin/edge-agent /usr/local/bin/edge-agent
cd /opt/edge-agent
touch 9.0.1-20260102030405.squashfs .9.0.2-20260102030406.unfinished
cd /etc/systemd/system
touch edge-agent.service edge-agent-retry.timer edge-agent-image-9.0.1-20260102030405.service
ln -s ../edge-agent.service $wants/
sh "$1/control/prerm" remove
[ -e /etc/edge-agent ] && [ -e /opt/edge-agent/9.0.1-20260102030405.squashfs ]
[ ! -e edge-agent.service ]  # else the next install would take it for one that somebody disabled
sh "$1/control/postrm" remove
[ -e /etc/edge-agent ] && [ -e /opt/edge-agent/9.0.1-20260102030405.squashfs ]
echo "$2" >> /etc/passwd
sh "$1/control/postrm" purge
find /etc /opt /var/lib /var/cache /usr/local -path '*edge-agent*'
getent passwd edge-agent || :
"""


@pytest.mark.parametrize(
    ("user", "stays"),
    [
        ("edge-agent:x:989:989::/var/lib/edge-agent:/usr/sbin/nologin", False),
        ("edge-agent:x:1989:1989::/var/lib/edge-agent:/usr/sbin/nologin", True),
        ("edge-agent:x:989:989::/home/edge-agent:/bin/bash", True),
    ],
)
def test_a_package_whose_command_does_not_run_is_removed_aloud(
    tmp_path: Path, user: str, *, stays: bool
) -> None:
    """A removal did nothing, in silence, and a purge deleted under the service that ran on.

    It also deleted a user of that name who had been there before the package.
    """
    if os.getuid() != 0 or shutil.which("unshare") is None or shutil.which("systemctl") is None:
        pytest.skip("a system of its own takes root, unshare and systemctl")
    if Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs here; its units would be stopped")
    apart = ["unshare", "--mount", "sh", "-ec"]
    if subprocess.run([*apart, "mount -t tmpfs tmpfs /opt"], check=False).returncode != 0:
        pytest.skip("this machine does not allow mounts, not even in a namespace")
    _, deb = make_deb(tmp_path)
    subprocess.run(["dpkg-deb", "-e", str(deb), str(tmp_path / "control")], check=True)
    done = subprocess.run(
        [*apart, DAMAGED, "sh", str(tmp_path), user], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    left = ["/opt/edge-agent", "/opt/edge-agent/mine"]
    assert done.stdout.splitlines() == [*left, *([user] if stays else [])]
    assert ("left: the user edge-agent" in done.stderr) == stays
    assert "the service is stopped and disabled; " in done.stderr
    assert done.stderr.endswith("edge-agent: left: /opt/edge-agent\n")


def _addon() -> Any:
    spec = importlib.util.spec_from_file_location("addon", ADDON / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_addon_has_the_version_of_the_program() -> None:
    """Home Assistant upgrades by it."""
    assert f'version: "{__version__}"\n' in (ADDON / "config.yaml").read_text()


@pytest.mark.parametrize("service", [None, {"host": "core-mosquitto", "port": 1883}])
def test_the_options_of_the_addon_become_settings(
    tmp_path: Path, service: dict[str, Any] | None
) -> None:
    """Quotes and line breaks in them, too; the supervisor's broker where none is named."""
    options = {
        "device_id": "ha-01",
        "pipelines": [{"name": "door", "source": 'rtsp://u:a"b\\c@cam/1', "model": "m", "rate": 5}],
        "extra": "[health]\ninterval_s = 5",
    }
    if service is not None:
        service |= {"username": "addons", "password": 'p"\u007f\n😀', "ssl": False}
    else:
        options["broker_url"] = "mqtt://other:1884"
    text = _addon().settings(options, service)
    assert tomllib.loads(text)["broker"].get("password") == (service or {}).get("password")
    file = tmp_path / "config.toml"
    file.write_text(text)
    file.chmod(0o600)
    settings = load(file)
    assert settings.pipelines[0].source == 'rtsp://u:a"b\\c@cam/1'
    assert settings.homeassistant.enabled
    assert settings.health.interval_s == 5
    assert str(settings.broker.url).endswith(":1883" if service else "other:1884")
