"""Installs edge-agent on a bare Debian with systemd, and does to it what happens to services.

    sudo scripts/test-service [ROOT] [--work DIR] [--keep]

ROOT is a Debian 12 root file system with systemd, made by mmdebstrap where none is given; nothing
is written to it. Needs systemd-container, mmdebstrap, a network for apt, and a Python 3.11 with pip
that may download wheels. Takes about ten minutes. One line for each thing seen; ends with 1 at the
first that is not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
UNIT = "edge-agent.service"
DEVICE = "edge-01"
PORT = 28883
KEYS = "/root/keys"
PACKAGES = (
    "systemd,systemd-sysv,dbus,libpam-systemd,python3,procps,iproute2,ca-certificates,"
    "debian-archive-keyring"
)
MODELS = "/opt/edge-agent/current/lib/python3.11/site-packages/edge_agent/_bundled/models"
SETTINGS = f"""\
device_id = "{DEVICE}"
engine = "{{engine}}"

[broker]
url = "mqtts://localhost:{PORT}"
ca_file = "tls/ca.pem"
cert_file = "tls/{DEVICE}.pem"
key_file = "tls/{DEVICE}.key"

[health]
interval_s = 1

[trust]
keys = ["/etc/edge-agent/trust.d"]

[[pipelines]]
name = "line"
source = "file:{MODELS}/media/conveyor.mp4?loop=1"
model = "parts-inspection"
"""
BROKER = f"""\
listener {PORT}
cafile /etc/mosquitto/certs/ca.pem
certfile /etc/mosquitto/certs/broker.pem
keyfile /etc/mosquitto/certs/broker.key
require_certificate true
use_identity_as_username true
allow_anonymous false
acl_file /etc/mosquitto/acl
# A flood is to reach the device whole: by default the broker drops what queues up beyond 1,000.
max_queued_messages 0
max_packet_size 1000000
"""


class Failed(Exception):
    """Something is not as it should be."""


def say(text: str) -> None:
    """Say what was seen, and when."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> int:
    """Get what is needed, and run the trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, help="of a bare Debian 12")
    parser.add_argument("--work", type=Path, help="room for 5 GB; default: the system's")
    parser.add_argument("--keep", action="store_true", help="leave what was made for a next run")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("boots a container: run it with sudo")
    missing = [
        tool for tool in ("systemd-nspawn", "nsenter", "mmdebstrap") if not shutil.which(tool)
    ]
    if missing:
        parser.error(f"missing: {', '.join(missing)}; apt install systemd-container mmdebstrap")
    # So that what was begun is taken down then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = Path(tempfile.mkdtemp(prefix="edge-agent-service-", dir=options.work))
    try:
        root = options.root or make_root(work / "root")
        wheels = gather_wheels(work / "wheels")
        with overlay(root, work) as merged:
            put_in(merged, wheels)
            Trial(merged).run()
    except Failed as problem:
        say(f"FAIL {problem}")
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    say("all is as it should be")
    return 0


# What is needed


def make_root(root: Path) -> Path:
    """Make a root file system as the installer of Debian leaves it, or barer."""
    say("making a bare Debian 12")
    call("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root))
    return root


def gather_wheels(wheels: Path) -> Path:
    """Download what pip will want inside, so that the container needs no index."""
    say("downloading wheels")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    wanted = (f"{CHECKOUT}[metrics]", "hatchling", "pip")
    call(*pip, "wheel", "--quiet", "--wheel-dir", str(wheels), *wanted)
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

    def __init__(self, root: Path) -> None:
        self._root = root
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


class Trial:
    """All that is done to the service, in order."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._machine = Machine(root)
        self._run = self._machine.run

    def run(self) -> None:
        self._machine.boot()
        try:
            self._is_bare()
            self._installs()
            self._is_hardened()
            self._has_a_broker()
            for engine in ("openvino", "onnxruntime"):
                self._runs_on(engine)
            self._takes_a_push()
            self._logs_with_fields()
            self._stops_and_starts()
            self._survives_a_flood()
            self._survives_being_stopped_dead()
            self._survives_kills()
            self._is_tried_again_when_given_up_on()
            self._upgrades()
            self._rolls_back()
            self._comes_back_after_a_restart_of_the_machine()
            self._is_uninstalled()
        except BaseException:
            print(self._run(f"journalctl -u {UNIT} -n 40 --no-pager", check=False))
            raise
        finally:
            self._machine.halt()

    # Looking

    def _is_active(self) -> bool:
        return self._run(f"systemctl is-active {UNIT}", check=False) == "active"

    def _property(self, name: str) -> str:
        return self._run(f"systemctl show {UNIT} --value -p {name}")

    def _hear(
        self, topic: str, *, count: int = 1, who: str = "viewer", patience: int = 60
    ) -> list[dict]:
        """Hear messages as somebody, through mutual TLS and the access list."""
        text = self._run(
            f"mosquitto_sub -h localhost -p {PORT} --cafile {KEYS}/ca.pem --cert {KEYS}/{who}.pem "
            f"--key {KEYS}/{who}.key -t '{topic}' -C {count} -W {patience}"
        )
        return [json.loads(line) for line in text.splitlines()]

    def _publish(self, who: str, topic: str, more: str) -> str:
        return (
            f"mosquitto_pub -h localhost -p {PORT} --cafile {KEYS}/ca.pem --cert {KEYS}/{who}.pem "
            f"--key {KEYS}/{who}.key -V 5 -q 1 -t '{topic}' {more}"
        )

    def _status(self) -> dict:
        return self._hear(f"edge/{DEVICE}/status")[0]

    def _wait_status(self, state: str, session: str | None = None, patience: float = 60) -> dict:
        found: dict = {}

        def look() -> bool:
            nonlocal found
            found = self._status()
            return found["state"] == state and found["session"] != session

        wait(f"status {state}", look, patience)
        return found

    def _gives_results(self) -> dict:
        return self._hear(f"edge/{DEVICE}/result/line", count=3)[-1]

    # Doing

    def _is_bare(self) -> None:
        version = self._run("systemctl --version | head -1")
        for package in ("python3-venv", "mosquitto"):
            if (
                self._run(f"dpkg-query -W -f '${{db:Status-Status}}' {package}", check=False)
                == "installed"
            ):
                raise Failed(f"the root is not bare: {package} is installed")
        say(f"ok   a bare {self._run('. /etc/os-release; echo $PRETTY_NAME')}, {version}")

    def _installs(self) -> None:
        began = time.monotonic()
        said = self._run("/root/checkout/scripts/install")
        expect("the service", self._is_active(), True)
        say(f"ok   scripts/install: {said.splitlines()[0]}, after {time.monotonic() - began:.0f} s")
        groups = self._run("id -nG edge-agent").split()
        expect("groups", sorted({"video", "render", "dialout"} - set(groups)), [])
        expect(
            "mode of the settings",
            self._run("stat -c %U:%G:%a /etc/edge-agent/config.toml"),
            "root:edge-agent:640",
        )

    def _is_hardened(self) -> None:
        said = self._run(
            f"cd /etc/systemd/system; systemd-analyze verify {UNIT} edge-agent-retry.timer 2>&1"
        )
        # Of other units of this root it may say something; of ours nothing.
        expect(
            "systemd-analyze verify",
            [line for line in said.splitlines() if "edge-agent" in line],
            [],
        )
        line = self._run(f"systemd-analyze security --no-pager {UNIT} | tail -1")
        score = float(re.search(r": (\d+\.\d+)", line)[1])
        if score > 1.5:
            raise Failed(f"systemd-analyze security: {score}")
        fields = "CapEff|NoNewPrivs|^Seccomp:"
        status = self._run(f"grep -E '{fields}' /proc/{self._property('MainPID')}/status | xargs")
        say(f"ok   verify says nothing, security says {score}; the process has {status}")

    def _has_a_broker(self) -> None:
        """Follow the walk-through of mutual TLS, and put the files where it says."""
        self._run(
            "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; apt-get install -y -qq "
            "--no-install-recommends mosquitto mosquitto-clients openssl"
        )
        self._run("systemctl stop mosquitto")
        page = (CHECKOUT / "docs/mutual-tls.md").read_text()
        blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        (self._root / "root/walk.sh").write_text("\n".join(blocks))
        self._run(
            f"mkdir -p {KEYS}; cd {KEYS}; DEVICE={DEVICE} BROKER=localhost PORT={PORT} "
            "CHECKOUT=/root/checkout bash -eu /root/walk.sh"
        )
        (self._root / "etc/mosquitto/conf.d/edge.conf").write_text(BROKER)
        self._run(
            f"cd {KEYS}; install -o mosquitto -m 0600 broker.key /etc/mosquitto/certs/; "
            "install -m 0644 ca.pem broker.pem /etc/mosquitto/certs/; "
            "install -o mosquitto -m 0600 acl /etc/mosquitto/acl; systemctl restart mosquitto; "
            "install -d -m 0750 -g edge-agent /etc/edge-agent/tls; "
            f"install -m 0640 -g edge-agent ca.pem {DEVICE}.pem {DEVICE}.key /etc/edge-agent/tls/"
        )
        say("ok   the walk-through of mutual TLS, and its broker with the example access list")

    def _configure(self, engine: str) -> None:
        (self._root / "root/config.toml").write_text(SETTINGS.format(engine=engine))
        self._run("install -m 0640 -g edge-agent /root/config.toml /etc/edge-agent/config.toml")

    def _runs_on(self, engine: str) -> None:
        self._configure(engine)
        self._run(f"systemctl restart {UNIT}")
        result = self._gives_results()
        expect("engine", result["engine"].partition(":")[0], engine)
        health = self._hear(f"edge/{DEVICE}/health", count=3)[-1]
        expect("why", health["why"], [])
        expect("watchdog", health["watchdog"]["enabled"], True)
        figures = health["pipelines"]["line"]
        say(
            f"ok   results by {result['engine']} over mutual TLS: {figures['fps']} fps, "
            f"p99 {figures['latency_ms']['p99']} ms, {health['rss_mb']} MB"
        )

    def _takes_a_push(self) -> None:
        """Push a signed model as `deployer`; see it tried and live under the hardened unit."""
        self._run(
            f"cd /root; rm -rf parts; cp -r {MODELS}/parts-inspection parts; "
            "sed -i 's/^version *=.*/version = \"2\"/' parts/model.toml; "
            "edge-agent keygen push.key; install -m 0644 push.key.pub /etc/edge-agent/trust.d/"
        )
        self._run(
            f"cd {KEYS}; edge-agent push /root/parts --device {DEVICE} --key /root/push.key "
            "--config deployer.toml"
        )
        wait("version 2 to serve", lambda: self._gives_results()["model"].endswith("@2"), 60)
        model: dict = {}

        def settled() -> bool:
            nonlocal model
            model = self._hear(f"edge/{DEVICE}/model/parts-inspection")[0]
            return "candidate" not in model and model.get("prepared", "ready") != "preparing"

        wait("the probation to end", settled, 90)
        expect("outcome", (model["last"]["version"], model["last"]["outcome"]), ("2", "live"))
        log = self._run(f"journalctl -u {UNIT} -b --no-pager")
        expect("words of refused system calls", "not permitted" in log, False)
        say(
            "ok   a signed push by the role deployer: live after its trial, prepared form: "
            f"{model.get('prepared', 'not said')}"
        )

    def _logs_with_fields(self) -> None:
        entries = self._run(f"journalctl -u {UNIT} -b -o json --no-pager").splitlines()
        ours = [entry for line in entries if "LOGGER" in (entry := json.loads(line))]
        if not ours:
            raise Failed("no entry of the journal has the field LOGGER")
        expect("priorities", {entry["PRIORITY"] for entry in ours} <= {"3", "4", "6"}, True)
        say(
            f"ok   {len(ours)} entries of the journal have fields, e.g. LOGGER={ours[-1]['LOGGER']}"
        )

    def _stops_and_starts(self) -> None:
        session = self._wait_status("online")["session"]
        self._run(f"systemctl stop {UNIT}")
        status = self._status()
        expect("status after stop", (status["state"], status["reason"]), ("offline", "stopped"))
        expect("session", status["session"], session)
        self._run(f"systemctl start {UNIT}")
        self._wait_status("online", session)
        self._gives_results()
        say("ok   systemctl stop: offline/stopped; start: online, results")

    def _survives_a_flood(self) -> None:
        before = self._wait_status("online")["session"]
        inbox = f"edge/{DEVICE}/in/command/restart"
        self._run(self._publish("viewer", inbox, '-m \'{"id": "no"}\''), check=False)
        self._run(f"yes '{{\"id\": [' | head -10000 | {self._publish('operator', inbox, '-l')}")
        health: dict = {}

        def counted() -> bool:
            nonlocal health
            health = self._hear(f"edge/{DEVICE}/health")[0]
            return health["malformed"] >= 10_000

        wait("10,000 malformed messages to be counted", counted, 60)
        expect("malformed", health["malformed"], 10_000)
        expect("state", (health["state"], health["reconnects"]), ("ok", 0))
        expect("session", self._status()["session"], before)
        say(
            f"ok   10,000 malformed commands: counted, {health['rss_mb']} MB, state ok; "
            "a viewer's command: not done"
        )

    def _survives_being_stopped_dead(self) -> None:
        session = self._wait_status("online")["session"]
        restarts = int(self._property("NRestarts"))
        self._run(f"kill -STOP {self._property('MainPID')}")
        took = wait("the watchdog", lambda: int(self._property("NRestarts")) > restarts, 60)
        status = self._wait_status("online", session)
        self._gives_results()
        killed = self._run(f"journalctl -u {UNIT} -b --no-pager | grep -c 'Watchdog timeout'")
        say(
            f"ok   SIGSTOP: watchdog after {took:.0f} s ({killed} in the journal), online again "
            f"({status['reason']}), results"
        )

    def _survives_kills(self) -> None:
        self._run(f"systemctl reset-failed {UNIT}")
        times = []
        for _ in range(10):
            before = self._property("MainPID")
            self._run(f"kill -KILL {before}")
            times.append(
                wait(
                    "the service to be back",
                    lambda gone={before, "0"}: (
                        self._is_active() and self._property("MainPID") not in gone
                    ),
                    30,
                )
            )
        self._wait_status("online")
        self._gives_results()
        say(f"ok   kill -9, ten times in a row: back each time, within {max(times):.1f} s; results")

    def _is_tried_again_when_given_up_on(self) -> None:
        timer = "edge-agent-retry.timer"
        state = lambda: self._run(f"systemctl is-active {timer}", check=False)  # noqa: E731
        self._run("echo 'nonsense = 1' >> /etc/edge-agent/config.toml")
        code, _ = self._machine.fails(f"systemctl restart {UNIT}")
        expect("restart with wrong settings fails", code != 0, True)
        wait("the service to be given up on", lambda: self._property("ActiveState") == "failed", 30)
        expect("exit status", self._property("ExecMainStatus"), "2")
        expect("the timer", state(), "active")
        self._run(f"systemctl stop {UNIT}")
        expect("the timer, after systemctl stop", state(), "inactive")
        quick = f"/run/systemd/system/{timer}.d"
        self._run(
            f"mkdir -p {quick}; "
            f"printf '[Timer]\\nOnActiveSec=\\nOnActiveSec=3\\n' > {quick}/quick.conf; "
            "systemctl daemon-reload"
        )
        self._machine.fails(f"systemctl restart {UNIT}")
        self._configure("onnxruntime")
        took = wait("the service to be tried again", self._is_active, 30)
        self._run(
            f"rm -r {quick}; systemctl daemon-reload; systemctl reset-failed {UNIT}", check=False
        )
        self._gives_results()
        say(
            "ok   wrong settings: given up on with status 2, tried again by itself "
            f"({took:.0f} s of 3, which are 15 min), not after systemctl stop"
        )

    def _upgrades(self) -> None:
        before = self._run("readlink -f /opt/edge-agent/current")
        self._run(
            "echo kept > /var/lib/edge-agent/marker; "
            "cp /etc/edge-agent/config.toml /root/before.toml"
        )
        began = time.monotonic()
        self._run("/root/checkout/scripts/install")
        after = self._run("readlink -f /opt/edge-agent/current")
        expect("a new environment", before != after, True)
        expect("state", self._run("cat /var/lib/edge-agent/marker"), "kept")
        self._run("cmp /etc/edge-agent/config.toml /root/before.toml")
        self._wait_status("online")
        self._gives_results()
        say(
            f"ok   scripts/install again: upgraded in {time.monotonic() - began:.0f} s, "
            "settings and state kept, results"
        )

    def _rolls_back(self) -> None:
        """Try a version that does not start, one that dies at once, and settings that are wrong."""
        before = self._run("readlink -f /opt/edge-agent/current")
        units = self._run("cd /etc/systemd/system; md5sum edge-agent*")
        spoil = {
            "a version that does not start": "raise SystemExit(1)",
            "a version that dies soon after": (
                "import os, time\nfrom edge_agent import systemd\n"
                "systemd.notify('READY=1')\ntime.sleep(3)\nos._exit(1)"
            ),
        }
        for what, code in spoil.items():
            self._run(
                "rm -rf /root/bad; cp -a /root/checkout /root/bad; "
                "echo '# of the bad version' >> /root/bad/systemd/edge-agent.service"
            )
            with (self._root / "root/bad/edge_agent/__main__.py").open("r+") as file:
                text = file.read()
                file.seek(0)
                file.write(text.replace("import sys\n", f"import sys\n\n{code}\n", 1))
            status, said = self._machine.fails("/root/bad/scripts/install")
            expect(f"{what}: exit status", status, 1)
            expect(f"{what}: no traceback of the installer", "cli/install.py" in said, False)
            expect(what, self._run("readlink -f /opt/edge-agent/current"), before)
            expect("units", self._run("cd /etc/systemd/system; md5sum edge-agent*"), units)
            self._wait_status("online")
            self._gives_results()
            say(f"ok   {what}: {said.splitlines()[-1]}")
        self._run("echo 'nonsense = 1' > /root/wrong.toml")
        status, said = self._machine.fails(
            "/opt/edge-agent/current/bin/edge-agent install --config /root/wrong.toml"
        )
        expect("wrong settings: exit status", status, 2)
        expect("wrong settings: one line", len(said.splitlines()), 1)
        self._run("cmp /etc/edge-agent/config.toml /root/before.toml")
        expect("state", self._run("cat /var/lib/edge-agent/marker"), "kept")
        expect("environments", len(self._run("ls -d /opt/edge-agent/*/").split()) <= 3, True)
        say(f"ok   wrong settings: {said}")

    def _comes_back_after_a_restart_of_the_machine(self) -> None:
        session = self._wait_status("online")["session"]
        self._machine.halt()
        began = time.monotonic()
        self._machine.boot()
        self._wait_status("online", session)
        self._gives_results()
        took = time.monotonic() - began
        model = self._hear(f"edge/{DEVICE}/model/parts-inspection")[0]
        entered = int(self._property("ActiveEnterTimestampMonotonic")) - int(
            self._property("ExecMainStartTimestampMonotonic")
        )
        steps = (
            ", ".join(f"{step} {ms}" for step, ms in model.get("cold_start", {}).items())
            or "not said"
        )
        say(
            f"ok   restart of the machine: results {took:.1f} s after its boot began; "
            f"ready {entered / 1000:.0f} ms after exec; cold start (ms): {steps}"
        )

    def _is_uninstalled(self) -> None:
        said = self._run("edge-agent uninstall")
        expect("the service", self._property("LoadState"), "not-found")
        left = self._run(
            "find / -xdev \\( "
            "-path /proc -o -path /sys -o -path /run -o -path /root -o -path /var/log "
            "\\) -prune -o -name '*edge-agent*' -print"
        ).split()
        named = re.findall(r"(/[\w/.-]+) \(", said)
        expect("what is left", sorted(left), sorted(named))
        expect("what runs", self._run("pgrep -u edge-agent", check=False), "")
        say(f"ok   uninstall: {said.splitlines()[1]}")
        self._run(said.splitlines()[-2].strip() + "; " + said.splitlines()[-1].strip())
        expect(
            "what is left then",
            self._run(
                "ls -d /etc/edge-agent /var/lib/edge-agent /opt/edge-agent 2>/dev/null; "
                "getent passwd edge-agent",
                check=False,
            ),
            "",
        )


if __name__ == "__main__":
    sys.exit(main())
