"""Try the container image: without rights on a read-only root, push, restart, upgrade, rollback.

    sudo scripts/machines/test-container [--bundle FILE]

FILE is one of scripts/bundle; without it one is made. Needs root, buildah, mmdebstrap, podman, runc
and mosquitto. Images are kept apart from the machine's own, and go at the end. Takes about two
minutes. One line for each thing seen; ends with 1 at the first that is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from nspawn import CHECKOUT, Failed, call, expect, say, wait

IMAGE = "localhost/edge-agent-try"
LATER, VERSION = f"{IMAGE}:later", "9.0.1"
"""An image of a later version, which differs in its number alone."""
UPGRADE = f"""\
FROM {IMAGE}
USER 0:0
RUN sed -i 's/^__version__ = .*/__version__ = "{VERSION}"/' \
    /opt/edge-agent/lib/python3*/site-packages/edge_agent/__init__.py
USER 10001:10001
"""
NAME = "edge-agent-try"
MODEL = "parts-inspection"
FIRST = tomllib.loads((CHECKOUT / "models" / MODEL / "model.toml").read_text())["version"]
SECOND = f"{FIRST}.1"
SETTINGS = """\
device_id = "edge-01"

[broker]
url = "{url}"

[trust]
keys = ["/config/push.key.pub"]

[trial]
probation_s = 2

[[pipelines]]
name = "line"
source = "file:/config/conveyor.mp4?loop=1"
model = "parts-inspection"
rate = 5
"""
STORAGE = """\
[storage]
driver = "{driver}"
graphroot = "{work}/storage"
runroot = "{work}/run"
"""
RIGHTS = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),  # noqa: S108 - of the container
    *("--security-opt", "no-new-privileges", "--network", "host"),
    *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"),
)


def podman(*words: str) -> str:
    """Run podman; with runc, as crun does not know every arrangement of control groups."""
    return call("podman", "--runtime", "runc", *words)


class Box:
    """A container, its folders and its broker."""

    def __init__(self, work: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.config, self.data = work / "config", work / "data"
        self.config.mkdir()
        self.data.mkdir()
        shutil.chown(self.data, 10001, 10001)
        self.url = f"mqtt://127.0.0.1:{port}"
        (work / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
        settings = str(work / "mosquitto.conf")
        self.broker = subprocess.Popen(["mosquitto", "-c", settings], stderr=subprocess.DEVNULL)
        self.key = work / "push.key"
        self.edge_agent("keygen", str(self.key), to_broker=False)
        shutil.copy(f"{self.key}.pub", self.config)
        shutil.copy(CHECKOUT / "models/media/conveyor.mp4", self.config)
        (self.config / "config.toml").write_text(SETTINGS.format(url=self.url))
        work.chmod(0o755)

    def edge_agent(self, *words: str, to_broker: bool = True) -> str:
        """Run a command on this machine."""
        more = ("--broker", self.url) if to_broker else ()
        return call(sys.executable, "-m", "edge_agent", *words, *more)

    def start(self, image: str = IMAGE) -> None:
        """Start the container, as docs/operations.md has it."""
        folders = ("-v", f"{self.config}:/config:ro", "-v", f"{self.data}:/data")
        podman("run", "--detach", "--name", NAME, *RIGHTS, *folders, image)

    def end(self) -> None:
        """Stop the container in order, and remove it."""
        podman("stop", "--time", "15", NAME)
        code = podman("inspect", "--format", "{{.State.ExitCode}}", NAME).strip()
        expect("exit status after a stop", code, "0")
        podman("rm", NAME)

    def inside(self, script: str) -> str:
        return podman("exec", NAME, "sh", "-c", script).strip()

    def serves(self, what: str, version: str) -> None:
        """See that a version gives results."""
        began, result = time.monotonic(), {"model": ""}
        while result["model"] != f"{MODEL}@{version}" and time.monotonic() - began < 60:
            said = self.edge_agent(
                "tail", "--json", "--kind", "result", "-n", "1", "--timeout", "60"
            )
            result = payload(said)
        expect(what, result["model"], f"{MODEL}@{version}")
        say(f"ok   {what}: {MODEL}@{version}, after {time.monotonic() - began:.1f} s")


def payload(line: str) -> dict[str, Any]:
    """Return the payload in a line of `tail --json`."""
    says: dict[str, Any] = json.loads(line)
    payload: dict[str, Any] = says.get("payload", says)
    return payload


def go_through(box: Box) -> None:
    """Do everything, in order."""
    said = podman("run", "--rm", *RIGHTS, IMAGE, "demo", "--seconds", "5", "--json")
    expect("results of the demo", f"{MODEL}@{FIRST}" in said, True)
    say(f"ok   its demo: {len(said.splitlines())} results")
    box.start()
    box.serves("started", FIRST)
    status = box.inside("cat /proc/1/status")
    found = [re.search(rf"{key}:\s+(\w+)", status)[1] for key in ("Uid", "CapEff", "NoNewPrivs")]  # type: ignore[index]
    expect("user, capabilities and no new privileges", found, ["10001", "0" * 16, "1"])
    expect("a root that can be written", box.inside("touch /x 2>/dev/null || echo no"), "no")
    health = ("podman", "--runtime", "runc", "healthcheck", "run", NAME)
    wait("its health", lambda: subprocess.run(health, check=False).returncode == 0, 60)
    say("ok   user 10001, no capabilities, a read-only root; its health check passes")

    made = shutil.copytree(CHECKOUT / "models" / MODEL, box.config.parent / MODEL)
    manifest = made / "model.toml"
    manifest.write_text(manifest.read_text().replace(f'"{FIRST}"', f'"{SECOND}"', 1))
    box.edge_agent(
        "push", str(made), "--device", "edge-01", "--key", str(box.key), "--until", "live"
    )
    box.serves("pushed", SECOND)
    podman("restart", "--time", "15", NAME)
    box.serves("restarted", SECOND)
    box.end()
    box.start(LATER)
    expect("version", box.inside("edge-agent --version"), f"edge-agent {VERSION}")
    box.serves(f"an image of {VERSION} over its /data", SECOND)
    box.end()
    box.start()
    box.serves("the image before", SECOND)
    box.edge_agent("rollback", MODEL, "--device", "edge-01")
    box.serves("rolled back", FIRST)
    box.end()


def build(work: Path, bundle: str | None) -> None:
    """Build the image, and one of a later version on it."""
    # One overlay over another, as in a container, is not possible everywhere.
    kind = call("findmnt", "-n", "-o", "FSTYPE", "--target", str(work)).strip()
    driver = "vfs" if kind == "overlay" else "overlay"
    (work / "storage.conf").write_text(STORAGE.format(work=work, driver=driver))
    os.environ["CONTAINERS_STORAGE_CONF"] = str(work / "storage.conf")
    began = time.monotonic()
    more = ("--bundle", bundle) if bundle else ()
    call(str(CHECKOUT / "scripts/container"), "-t", IMAGE, *more)
    size = int(podman("image", "inspect", "--format", "{{.Size}}", IMAGE))
    say(f"ok   built: {size / 1e6:.0f} MB, after {time.monotonic() - began:.0f} s")
    (work / "later").mkdir()
    (work / "later/Containerfile").write_text(UPGRADE)
    later = ("buildah", "bud", "--quiet", "--format", "docker", "--isolation", "chroot")
    call(*later, "-t", LATER, str(work / "later"))


def main() -> int:
    """Build the image, and try it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", help="a file of scripts/bundle")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = Path(tempfile.mkdtemp(prefix="edge-agent-container-"))
    box = None
    try:
        build(work, options.bundle)
        box = Box(work)
        wait("the broker", lambda: box.broker.poll() is None, 5)
        go_through(box)
    except Failed as problem:
        say(f"FAIL {problem}")
        subprocess.run(("podman", "logs", "--tail", "40", NAME), check=False)
        return 1
    finally:
        for clear in (
            ("podman", "rm", "--force", "--ignore", NAME),
            ("umount", str(work / "storage/overlay")),
        ):
            subprocess.run(clear, check=False, capture_output=True)
        if box is not None:
            box.broker.terminate()
        shutil.rmtree(work, ignore_errors=True)
    say("all is as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
