"""Try bundles on a Debian without a network, without pip and without venv's packages.

    sudo scripts/machines/test-bundle [ROOT] [--work DIR] [--keep] [--brief]

ROOT is a Debian 12 with systemd, python3, mosquitto, mosquitto-clients, squashfs-tools,
bash-completion and man-db; without it one is made with mmdebstrap. Boots it with systemd-nspawn
over an overlay, with loopback alone: refusals, installation, upgrade, going back, a version that
does not start, the same as an image (not with --brief), restart of the machine, removal. Needs
root, systemd-container, mmdebstrap, a Python with pip that may download wheels, and for images loop
devices and squashfs in this kernel. Takes about five minutes. One line for each thing seen; ends
with 1 at the first that is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nspawn import CHECKOUT, Failed, Machine, call, expect, make_root, overlay, say, wait
from service_box import UNIT

PACKAGES = ("mosquitto", "mosquitto-clients", "squashfs-tools", "bash-completion", "man-db")
HOME = "/opt/edge-agent"
SETTINGS = """\
device_id = "edge-01"

[broker]
url = "mqtt://localhost:1883"

[[pipelines]]
name = "line"
source = "file:/srv/conveyor.mp4?loop=1"
model = "parts-inspection"
rate = 5
"""
FIRST, SECOND, BAD = "first", "second", "bad"
VERSIONS = {FIRST: "0.1.0", SECOND: "9.0.1", BAD: "9.0.2"}


def make_bundles(work: Path) -> dict[str, Path]:
    """Make a bundle of this checkout, of a later version, and of one that does not start."""
    made = {}
    for name, version in VERSIONS.items():
        checkout = work / f"checkout-{name}"
        skipped = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(CHECKOUT, checkout, ignore=skipped, symlinks=True)
        _replace(checkout / "edge_agent/__init__.py", r'(?m)^__version__ = ".*"', version)
        if name == BAD:
            with (checkout / "edge_agent/__main__.py").open("r+") as file:
                text = file.read()
                file.seek(0)
                file.write(text.replace("import sys\n", "import sys\n\nraise SystemExit(1)\n", 1))
        began = time.monotonic()
        made[name] = work / f"{name}.bundle"
        said = call(sys.executable, str(checkout / "scripts/make_bundle.py"), "-o", str(made[name]))
        say(f"ok   {said.splitlines()[0]}, after {time.monotonic() - began:.0f} s")
        shutil.rmtree(checkout)
    return made


def _replace(file: Path, pattern: str, version: str) -> None:
    text, count = re.subn(pattern, f'__version__ = "{version}"', file.read_text())
    expect("places of the version", count, 1)
    file.write_text(text)


class Box:
    """The machine, and what is looked at in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = Machine(root, network=False)
        self.run = self.machine.run
        self.files: set[str] = set()

    def tree(self) -> set[str]:
        """List what `install` might touch."""
        places = "/opt /etc /usr /var/lib /var/cache /tmp"
        return set(self.run(f"find {places} -xdev -not -path '/var/lib/systemd/*'").splitlines())

    def has_completion(self) -> None:
        """See that bash completes the command, and that `man` knows it."""
        load = ". /usr/share/bash-completion/bash_completion; _completion_loader edge-agent"
        said = self.run(f"{load}; complete -p edge-agent")
        expect("completion", said.endswith(" edge-agent"), True)
        page = self.run("man edge-agent")
        expect("the man page", "\nSYNOPSIS\n" in page, True)
        say(f"ok   {said}; a man page of {len(page.splitlines())} lines")

    def results(self) -> dict[str, Any]:
        """Give the third result from now."""
        text = self.run("mosquitto_sub -t edge/edge-01/result/line -C 3 -W 60")
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def serves(self, what: str, bundle: str, *, image: bool = False) -> None:
        """See that a version runs, from a folder or an image, and gives results."""
        expect("the service", self.run(f"systemctl is-active {UNIT}", check=False), "active")
        expect("version", self.run("edge-agent --version"), f"edge-agent {VERSIONS[bundle]}")
        place = self.run(f"readlink -f {HOME}/current")
        mounted = self.run(f"findmnt -n -o FSTYPE,OPTIONS --target {place}")
        expect("an image", mounted.startswith("squashfs"), image)
        if image:
            loop = self.run(f"findmnt -n -o SOURCE {place}")
            ahead = self.run(f"blockdev --getra {loop}")
            expect("sectors read ahead", ahead, "64")
            mounted += f", direct reads: {self.run(f'losetup -n -O DIO {loop}')}"
        pid = self.run(f"systemctl show {UNIT} --value -p MainPID")
        program = self.run(f"tr '\\0' '\\n' </proc/{pid}/cmdline | head -1")
        expect("what runs", program, f"{place}/bin/python")
        result = self.results()
        how = mounted if image else "a folder"
        say(f"ok   {what}: {place} ({how}), active, results by {result['engine']}")


def is_cut_off(box: Box) -> None:
    """See that there is no network, and nothing that would install Python packages."""
    links = box.run("ls /sys/class/net")
    expect("network", links, "lo")
    for module in ("pip", "ensurepip"):
        status, _ = box.machine.fails(f"python3 -c 'import {module}'")
        expect(f"{module} is there", status != 0, True)
    box.files = box.tree()
    say(f"ok   {box.run('. /etc/os-release; echo $PRETTY_NAME')}, network: {links}; no pip")


def refuses(box: Box) -> None:
    """Begin with files that are not right: one line, and nothing changes."""
    size = int(box.run("stat -c %s /root/first.bundle"))
    wrong = {
        "cut off": f"head -c {size - 1000} first.bundle >wrong",
        "cut off early": "head -c 5000 first.bundle >wrong",
        "altered": (
            "cp first.bundle wrong; printf '\\377' | "
            f"dd of=wrong bs=1 seek={size // 2} conv=notrunc status=none"
        ),
    }
    for what, command in wrong.items():
        box.run(f"cd /root; {command}")
        for way in ("sh wrong", "python3 first.bundle --config none"):
            status, said = box.machine.fails(f"cd /root; {way}")
            expect(f"{what}: exit status", status, 2)
            expect(f"{what}: lines", len(said.splitlines()), 1)
            if way == "sh wrong":
                say(f"ok   {what}: {said}")
    expect("what has changed", box.tree() ^ box.files - {"/root/wrong"}, set())
    box.run("rm /root/wrong")


def installs(box: Box) -> None:
    """Install by the file alone."""
    began = time.monotonic()
    (box.root / "root/config.toml").write_text(SETTINGS)
    said = box.run("sh /root/first.bundle --config /root/config.toml")
    say(f"ok   {said.splitlines()[0]}, after {time.monotonic() - began:.0f} s")
    box.serves("installed from a bundle", FIRST)
    box.has_completion()


def upgrades(box: Box, *, image: bool) -> None:
    """Install a later bundle by the command of the version that runs."""
    began = time.monotonic()
    more = " --image" if image else ""
    box.run(f"edge-agent install --offline /root/second.bundle{more}")
    say(f"ok   upgraded in {time.monotonic() - began:.0f} s")
    box.serves("a second bundle", SECOND, image=image)


def goes_back_and_forth(box: Box, *, image: bool) -> None:
    """Go back to the installation before, and return."""
    for bundle, packed in ((FIRST, False), (SECOND, image)):
        began = time.monotonic()
        said = box.run("edge-agent install --previous")
        box.serves(f"{said} in {time.monotonic() - began:.0f} s", bundle, image=packed)


def is_undone(box: Box, *, image: bool) -> None:
    """Install a version that does not start: the one before serves again."""
    before = box.run(f"readlink -f {HOME}/current; ls {HOME} /etc/systemd/system")
    more = " --image" if image else ""
    status, said = box.machine.fails(f"edge-agent install --offline /root/bad.bundle{more}")
    expect("exit status", status, 1)
    after = box.run(f"readlink -f {HOME}/current; ls {HOME} /etc/systemd/system")
    expect("installations and units", after, before)
    box.serves(f"a version that does not start ({said.splitlines()[-1]})", SECOND, image=image)
    for name in ("wrong", "first.bundle.sha256"):
        (box.root / "root" / name).write_text("no bundle\n")
        status, said = box.machine.fails(f"edge-agent install --offline /root/{name}")
        expect("exit status", (status, len(said.splitlines())), (2, 1))
    say(f"ok   {said}")


def restarts(box: Box, *, image: bool) -> None:
    """Halt the machine and boot it: an image is mounted before the service starts."""
    box.machine.halt()
    box.machine.boot()
    wait(
        "the service",
        lambda: box.run(f"systemctl is-active {UNIT}", check=False) == "active",
        60,
    )
    box.serves("after a restart of the machine", SECOND, image=image)
    expect("restarts", box.run(f"systemctl show {UNIT} --value -p NRestarts"), "0")


def is_uninstalled(box: Box) -> None:
    """Take it away: no image stays mounted, none lies about."""
    said = box.run("edge-agent uninstall")
    expect("mounts", box.run("findmnt -n -t squashfs", check=False), "")
    loops = f"losetup -n -O BACK-FILE | grep {HOME}"
    wait("the images to be let go of", lambda: not box.run(loops, check=False), 30)
    expect("units", box.run("ls /etc/systemd/system | grep edge", check=False), "")
    expect("home", box.run(f"ls {HOME}", check=False), "")
    say(f"ok   {said.splitlines()[0]}; nothing is mounted")


def go_through(box: Box, *, brief: bool) -> None:
    """Do everything, in order; *brief*: without images."""
    box.machine.boot()
    try:
        is_cut_off(box)
        refuses(box)
        installs(box)
        upgrades(box, image=False)
        goes_back_and_forth(box, image=False)
        is_undone(box, image=False)
        if not brief:
            box.run("edge-agent install --previous")
            upgrades(box, image=True)
            goes_back_and_forth(box, image=True)
            is_undone(box, image=True)
        restarts(box, image=not brief)
        is_uninstalled(box)
    except BaseException:
        print(box.run(f"journalctl -u {UNIT} -n 40 --no-pager", check=False))
        raise
    finally:
        box.machine.halt()


def try_bundles(
    go_through: Callable[..., None],
    prepare: Callable[[Path, dict[str, Path]], None] = lambda _root, _bundles: None,
    about: str = __doc__,
) -> int:
    """Get what is needed, and run the trial."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, help="of a Debian 12")
    parser.add_argument("--work", type=Path, help="room for 5 GB; default: the system's")
    parser.add_argument("--keep", action="store_true", help="leave what was made for a next run")
    parser.add_argument("--brief", action="store_true", help="leave out what takes longest: images")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("boots a container: run it with sudo")
    missing = [
        tool for tool in ("systemd-nspawn", "nsenter", "mmdebstrap") if not shutil.which(tool)
    ]
    if missing:
        parser.error(f"missing: {', '.join(missing)}; apt install systemd-container mmdebstrap")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = Path(tempfile.mkdtemp(prefix="edge-agent-bundle-", dir=options.work))
    try:
        bundles = make_bundles(work)
        root = options.root or make_root(work / "root", *PACKAGES)
        with overlay(root, work) as merged:
            for name, bundle in bundles.items():
                shutil.copyfile(bundle, merged / f"root/{name}.bundle")
            shutil.copyfile(CHECKOUT / "models/media/conveyor.mp4", merged / "srv/conveyor.mp4")
            (merged / "etc/hosts").write_text("127.0.0.1 localhost\n")
            prepare(merged, bundles)
            go_through(Box(merged), brief=options.brief)
    except Failed as problem:
        say(f"FAIL {problem}")
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    say("all is as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(try_bundles(go_through))
