"""The service as it should be: installed, hardened, told, pushed to, read again, looked at."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

from nspawn import CHECKOUT, Failed, expect, say, wait
from service_box import (
    DEVICE,
    KEYS,
    MODELS,
    PLAIN_PORT,
    PORT,
    RETRY,
    UNIT,
    Box,
    lines,
)

BROKER = f"""\
listener {PORT}
cafile /etc/mosquitto/certs/ca.pem
certfile /etc/mosquitto/certs/broker.pem
keyfile /etc/mosquitto/certs/broker.key
require_certificate true
use_identity_as_username true

listener {PLAIN_PORT}
cafile /etc/mosquitto/certs/ca.pem
certfile /etc/mosquitto/certs/broker.pem
keyfile /etc/mosquitto/certs/broker.key

allow_anonymous false
password_file /etc/mosquitto/passwords
acl_file /etc/mosquitto/acl
# A flood is to reach the device whole: by default the broker drops what queues up beyond 1,000.
max_queued_messages 0
max_packet_size 1000000
"""
MORE_CLIENTS = "edge-02 stranger watcher janitor"


def everything(box: Box) -> set[str]:
    """List the files of the machine, but for what it writes by itself."""
    pruned = " -o ".join(
        f"-path {path}"
        for path in (
            *("/proc", "/sys", "/dev", "/run", "/root", "/var/log"),
            *("/tmp", "/var/tmp"),  # noqa: S108 - of the machine inside
            *("/var/backups", "/var/cache/apt"),
            *("/var/lib/apt", "/var/lib/dpkg", "/var/lib/systemd"),
        )
    )
    return set(box.run(rf"find / -xdev \( {pruned} \) -prune -o -print").splitlines())


def is_bare(box: Box) -> None:
    """See that nothing is there that `scripts/install` is to bring."""
    version = box.run("systemctl --version | head -1")
    for package in ("python3-venv", "mosquitto"):
        found = box.run(f"dpkg-query -W -f '${{db:Status-Status}}' {package}", check=False)
        if found == "installed":
            raise Failed(f"the root is not bare: {package} is installed")
    box.files = everything(box)
    say(f"ok   a bare {box.run('. /etc/os-release; echo $PRETTY_NAME')}, {version}")


def installs(box: Box) -> None:
    """Install from a checkout, in one command."""
    began = time.monotonic()
    said = box.run("/root/checkout/scripts/install")
    expect("the service", box.is_active(), True)
    say(f"ok   scripts/install: {said.splitlines()[0]}, after {time.monotonic() - began:.0f} s")
    groups = box.run("id -nG edge-agent").split()
    expect("groups", sorted({"video", "render", "dialout"} - set(groups)), [])
    expect(
        "mode of the settings",
        box.run("stat -c %U:%G:%a /etc/edge-agent/config.toml"),
        "root:edge-agent:640",
    )
    box.run("cd /usr/local/share; grep -q rollout man/man1/edge-agent.1")
    box.run("cd /usr/local/share; grep -q rollout bash-completion/completions/edge-agent")


def is_hardened(box: Box) -> None:
    """Ask systemd what it thinks of the units."""
    said = box.run(f"cd /etc/systemd/system; systemd-analyze verify {UNIT} {RETRY} 2>&1")
    # Of other units of this root it may say something; of ours nothing.
    ours = [line for line in said.splitlines() if "edge-agent" in line]
    expect("systemd-analyze verify", ours, [])
    line = box.run(f"systemd-analyze security --no-pager {UNIT} | tail -1")
    found = re.search(r": (\d+\.\d+)", line)
    score = float(found[1]) if found else 10.0
    if score > 1.5:
        raise Failed(f"systemd-analyze security: {line}")
    fields = "CapEff|NoNewPrivs|^Seccomp:"
    status = box.run(f"grep -E '{fields}' /proc/{box.property('MainPID')}/status | xargs")
    say(f"ok   verify says nothing, security says {score}; the process has {status}")


def has_a_broker(box: Box) -> None:
    """Follow the walk-through of mutual TLS, and put the files where it says."""
    box.run(
        "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; apt-get install -y -qq "
        "--no-install-recommends mosquitto mosquitto-clients openssl"
    )
    box.run("systemctl stop mosquitto")
    page = (CHECKOUT / "docs/mutual-tls.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (box.root / "root/walk.sh").write_text("\n".join(blocks))
    more = next(block for block in blocks if "client.ext" in block)
    (box.root / "root/more.sh").write_text(more.replace('"$DEVICE" viewer', MORE_CLIENTS))
    box.run(
        f"mkdir -p {KEYS}; cd {KEYS}; DEVICE={DEVICE} BROKER=localhost PORT={PORT} "
        "CHECKOUT=/root/checkout bash -eu /root/walk.sh; umask 077; bash -eu /root/more.sh"
    )
    (box.root / "etc/mosquitto/conf.d/edge.conf").write_text(BROKER)
    box.run(
        f"cd {KEYS}; install -o mosquitto -m 0600 broker.key /etc/mosquitto/certs/; "
        "install -m 0644 ca.pem broker.pem /etc/mosquitto/certs/; "
        f"mosquitto_passwd -c -b passwords {DEVICE} s3cret; "
        "install -o mosquitto -m 0600 acl passwords /etc/mosquitto/; systemctl restart mosquitto; "
        "install -d -m 0750 -g edge-agent /etc/edge-agent/tls; "
        f"install -m 0640 -g edge-agent ca.pem {DEVICE}.pem {DEVICE}.key /etc/edge-agent/tls/"
    )
    say("ok   the walk-through of mutual TLS, and its broker with the example access list")


def runs_on(box: Box, engine: str) -> None:
    """See results by an engine under the hardened unit."""
    box.configure(engine)
    box.restart()
    result = box.results()
    expect("engine", result["engine"].partition(":")[0], engine)
    health = box.hear(f"edge/{DEVICE}/health", count=3)[-1]
    expect("why", health["why"], [])
    expect("watchdog", health["watchdog"]["enabled"], True)
    figures = health["pipelines"]["line"]
    facts = box.hear(f"edge/{DEVICE}/info")[0]["facts"]
    expect("processors", facts["cpus"], int(box.run("nproc")))
    said = box.run(f"journalctl -u {UNIT} -b --no-pager")
    expect("words of refused system calls", "not permitted" in said, False)
    say(
        f"ok   results by {result['engine']} over mutual TLS: {figures['fps']} fps, "
        f"p99 {figures['latency_ms']['p99']} ms, {health['rss_mb']} MB; "
        f"it sees {facts['cpus']} cores, {facts['memory_mb']} MiB"
    )


def _bundled(model: str) -> int:
    """Return the version of a bundled model."""
    text = (CHECKOUT / "models" / model / "model.toml").read_text()
    return int(tomllib.loads(text)["version"])


PUSHED = _bundled("parts-inspection") + 1
"""What is lower than the highest that was ever accepted is refused."""


def takes_a_push(box: Box) -> None:
    """Push a signed model as `deployer`; see it tried and live under the hardened unit."""
    box.run(
        f"cd /root; rm -rf parts; cp -r {MODELS}/parts-inspection parts; "
        f"sed -i 's/^version *=.*/version = \"{PUSHED}\"/' parts/model.toml; "
        "edge-agent keygen push.key; install -m 0644 push.key.pub /etc/edge-agent/trust.d/"
    )
    box.run(
        f"cd {KEYS}; edge-agent push /root/parts --device {DEVICE} --key /root/push.key "
        "--config deployer.toml"
    )
    wait("it to serve", lambda: box.results()["model"].endswith(f"@{PUSHED}"), 60)
    model: dict[str, Any] = {}

    def settled() -> bool:
        nonlocal model
        model = box.hear(f"edge/{DEVICE}/model/parts-inspection")[0]
        return "candidate" not in model and model.get("prepared", "ready") != "preparing"

    # Preparing a form gives way to all else on the machine.
    wait("the probation to end", settled, 400)
    expect("outcome", (model["last"]["version"], model["last"]["outcome"]), (str(PUSHED), "live"))
    expect("words of refused system calls", "not permitted" in box.journal(), False)
    say(
        "ok   a signed push by the role deployer: live after its trial, prepared form: "
        f"{model.get('prepared', 'not said')}"
    )


def takes_a_model_from_root(box: Box) -> None:
    """Add a model by hand, as root: it comes to the service, which tries it and takes it."""
    added = PUSHED + 1
    box.run(f"cd /root; sed -i 's/^version *=.*/version = \"{added}\"/' parts/model.toml")
    said = box.run("edge-agent add /root/parts")
    wait("it to serve", lambda: box.results()["model"].endswith(f"@{added}"), 60)
    expect("state_dir", "/var/lib/edge-agent" in box.run("edge-agent check", check=False), True)
    say(f"ok   `edge-agent add` by root: {said.strip().splitlines()[-1]}")


def logs_with_fields(box: Box) -> None:
    """Look for the fields of the journal that were promised."""
    entries = box.run(f"journalctl -u {UNIT} -b -o json --no-pager").splitlines()
    ours = [entry for line in entries if "LOGGER" in (entry := json.loads(line))]
    if not ours:
        raise Failed("no entry of the journal has the field LOGGER")
    expect("priorities", {entry["PRIORITY"] for entry in ours} <= {"3", "4", "6"}, True)
    say(f"ok   {len(ours)} entries of the journal have fields, e.g. LOGGER={ours[-1]['LOGGER']}")


STEADY = f"""\
[[pipelines]]
name = "steady"
source = "file:{MODELS}/media/conveyor.mp4?loop=1&pace=max"
model = "parts-inspection"
rate = 20
"""
OTHER = f"""\
[[pipelines]]
name = "other"
source = "csv:{MODELS}/media/bearing.csv?loop=1&rate={{rate}}"
model = "bearing-vibration"
"""


def reloads(box: Box) -> None:
    """Add, change and remove a pipeline; the one beside it must give every single frame."""
    box.configure("onnxruntime", STEADY)
    box.restart()
    box.results("steady")
    session = box.wait_status("online")["session"]
    with box.recording(f"edge/{DEVICE}/result/steady") as heard:
        _wait_count("results", lambda: len(lines(heard)), 20)
        changes = (1000, 2000, 0, 3000, 0)
        for rate in changes:
            more = OTHER.format(rate=rate) if rate else ""
            box.configure("onnxruntime", STEADY + more)
            box.run(f"systemctl reload {UNIT}")
            wait("the reload", partial(_has_other, box, rate), 30)
            _wait_count("results", lambda: len(lines(heard)), len(lines(heard)) + 20)
        box.run("echo 'nonsense = 1' >> /etc/edge-agent/config.toml")
        expect(
            "a reload of wrong settings fails",
            box.machine.fails(f"systemctl reload {UNIT}")[0] != 0,
            True,
        )
        wait("the refusal", lambda: "the settings stay as they were" in box.journal(), 30)
        _wait_count("results", lambda: len(lines(heard)), len(lines(heard)) + 20)
        found = lines(heard)
    expect("sessions", {line["session"] for line in found}, {session})
    numbers = [line["seq"] for line in found]
    expect("frames lost", set(range(numbers[0], numbers[-1] + 1)) - set(numbers), set())
    expect("in order, once", numbers, sorted(set(numbers)))
    expect("the service", (box.is_active(), box.property("NRestarts")), (True, "0"))
    box.configure("onnxruntime")
    box.restart()
    say(
        f"ok   {len(changes)} reloads and one with wrong settings: {len(numbers)} frames in a row "
        "of the pipeline that did not change, none missing"
    )


def _has_other(box: Box, rate: int) -> bool:
    """Whether the device says that it has that pipeline, or none of the name where 0."""
    pipelines = box.hear(f"edge/{DEVICE}/info")[0]["pipelines"]
    sources = [pipeline["source"] for pipeline in pipelines if pipeline["name"] == "other"]
    return len(sources) == (rate > 0) and all(it.endswith(f"rate={rate}") for it in sources)


def _wait_count(what: str, count: Callable[[], int], least: int) -> None:
    wait(what, lambda: count() >= least, 30)


def stops_and_starts(box: Box) -> None:
    """Stop and start as an operator does; the status is right each time."""
    session = box.wait_status("online")["session"]
    box.run(f"systemctl stop {UNIT}")
    status = box.status()
    expect("status after stop", (status["state"], status["reason"]), ("offline", "stopped"))
    expect("session", status["session"], session)
    box.run(f"systemctl start {UNIT}")
    box.wait_status("online", session)
    box.results()
    say("ok   systemctl stop: offline/stopped; start: online, results")
