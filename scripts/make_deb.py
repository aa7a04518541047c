"""Write a Debian package: a bundle, and scripts that call the installer in it.

Run by `scripts/deb`. All that is installed beside the bundle is the installer's, so that versions,
`install --previous` and images work as without dpkg; dpkg's scripts only say when.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CONTROL = """\
Package: edge-agent
Version: {version}
Architecture: {architecture}
Maintainer: edge-agent
Installed-Size: {size}
Depends: python3 (>= {python}), python3 (<< {next_python}), libc6 (>= {glibc}), systemd
Recommends: mosquitto
Suggests: squashfs-tools
Section: misc
Priority: optional
Description: cameras and sensors through INT8 models, results over MQTT
 Brings all that it needs but Python. The service is made below /opt/edge-agent; one that does not
 start is undone, and the version before runs on.
"""
BUNDLE = "/usr/share/edge-agent/edge-agent.bundle"
SCRIPTS = {
    "postinst": """\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
if [ ! -d /run/systemd/system ]; then
    echo "edge-agent: no service was made, as systemd does not run here; later:" >&2
    echo "  sudo sh {bundle}" >&2
    exit 0
fi
image=
[ ! -f "$(readlink -f /opt/edge-agent/current).squashfs" ] || image=--image
exec sh {bundle} $image
""",
    "prerm": """\
#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
if [ ! -d /run/systemd/system ]; then
    echo "edge-agent: systemd does not run here: /opt/edge-agent and its units are left" >&2
    exit 0
fi
# Any installation can: of the one in use the image may not be mounted, or its Python be gone.
for command in /opt/edge-agent/current/bin/edge-agent /opt/edge-agent/*/bin/edge-agent; do
    ! $command --version >/dev/null 2>&1 || exec $command uninstall
done
[ -e /etc/systemd/system/edge-agent.service ] || [ -d /opt/edge-agent ] || exit 0
systemctl stop edge-agent-retry.timer edge-agent.service 2>/dev/null || :
if systemctl is-active --quiet edge-agent.service; then
    echo "edge-agent: the service cannot be stopped; stop it: systemctl stop edge-agent" >&2
    exit 1
fi
systemctl disable --quiet edge-agent.service 2>/dev/null || :
# An installation later starts it: one that is there and disabled would stay so.
rm -f /etc/systemd/system/edge-agent.service
echo "edge-agent: no command in /opt/edge-agent runs, so it cannot uninstall itself: the service" \
    "is stopped and disabled; /opt/edge-agent and its units are left until apt purge" >&2
""",
    "postrm": """\
#!/bin/sh
set -e
[ "$1" = purge ] || exit 0
# Where it could not uninstall itself.
for unit in /etc/systemd/system/edge-agent-image-*.service; do
    [ -e $unit ] || continue
    [ ! -d /run/systemd/system ] || systemctl stop $(basename $unit) || :
    rm -f $unit /etc/systemd/system/multi-user.target.wants/$(basename $unit)
done
for unit in edge-agent.service edge-agent-retry.timer multi-user.target.wants/edge-agent.service; do
    rm -f /etc/systemd/system/$unit
done
rm -f /etc/sysusers.d/edge-agent.conf
for link in bin/edge-agent share/bash-completion/completions/edge-agent \
    share/zsh/site-functions/_edge-agent share/man/man1/edge-agent.1; do
    case "$(readlink /usr/local/$link)" in /opt/edge-agent/*) rm /usr/local/$link ;; esac
done
case "$(readlink /etc/fish/completions/edge-agent.fish)" in
    /opt/edge-agent/*) rm /etc/fish/completions/edge-agent.fish ;;
esac
# By their names, a version and a time: other files there are the operator's.
for made in /opt/edge-agent/*-20???????????? /opt/edge-agent/*-20????????????.squashfs \
    /opt/edge-agent/.*-20????????????.*; do
    rm -rf $made
done
rm -f /opt/edge-agent/current /opt/edge-agent/.current
[ ! -d /opt/edge-agent ] || rmdir /opt/edge-agent 2>/dev/null || :
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
rm -rf /etc/edge-agent /var/lib/edge-agent /var/cache/edge-agent
if getent passwd edge-agent | grep -q ':/var/lib/edge-agent:.*/nologin$' &&
    [ "$(id -u edge-agent)" -lt 1000 ]; then
    userdel edge-agent
elif getent passwd edge-agent >/dev/null; then
    echo "edge-agent: left: the user edge-agent, not the system user that the package makes" >&2
fi
[ ! -e /opt/edge-agent ] || echo "edge-agent: left: /opt/edge-agent" >&2
for left in credstore/broker.password systemd/system/edge-agent.service.d; do
    [ ! -e /etc/$left ] || echo "edge-agent: left: /etc/$left" >&2
done
""",
}


def main() -> int:
    """Make or take a bundle, and pack it."""
    parser = argparse.ArgumentParser(prog="scripts/deb", description=__doc__.splitlines()[0])
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE.deb")
    parser.add_argument("--bundle", type=Path, help="a file of scripts/bundle; default: make one")
    options = parser.parse_args()
    output: Path = options.output
    if not output.parent.is_dir():
        parser.error(f"{output.parent}: no such folder")
    with tempfile.TemporaryDirectory(prefix="edge-agent-deb-", dir=output.parent) as name:
        tree = Path(name) / "tree"
        bundle = tree / BUNDLE.lstrip("/")
        bundle.parent.mkdir(parents=True)
        if options.bundle is not None:
            shutil.copyfile(options.bundle, bundle)
        else:
            make = [sys.executable, str(CHECKOUT / "scripts/make_bundle.py"), "-o", str(bundle)]
            if status := subprocess.run(make, check=False, stdout=sys.stderr).returncode:
                return status
        bundle.chmod(0o644)
        fill(tree, bundle)
        made = Path(name) / "made.deb"
        # The wheels in it are compressed already.
        pack = ("dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(made))
        subprocess.run(pack, check=True, stdout=sys.stderr)
        made.replace(output)
    print(f"{output}: {output.stat().st_size / 1e6:.0f} MB")
    print(f"on the box: sudo apt install ./{output.name}")
    return 0


def fill(tree: Path, bundle: Path) -> None:
    """Write what dpkg reads, beside the bundle."""
    with zipfile.ZipFile(bundle) as archive:
        facts = json.loads(archive.read("bundle.json"))
    major, minor = facts["python"].split(".")
    facts["next_python"] = f"{major}.{int(minor) + 1}"
    facts["architecture"] = ARCHITECTURES[facts.pop("machine").removeprefix("linux-")]
    control = tree / "DEBIAN"
    control.mkdir()
    size = bundle.stat().st_size // 1024
    (control / "control").write_text(CONTROL.format(**facts, size=size))
    for name, text in SCRIPTS.items():
        (control / name).write_text(text.format(bundle=BUNDLE))
        (control / name).chmod(0o755)
    doc = tree / "usr/share/doc/edge-agent"
    doc.mkdir(parents=True)
    shutil.copyfile(CHECKOUT / "LICENSE", doc / "copyright")
    for each in (tree, *tree.rglob("*")):
        if each.is_dir():
            each.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
