"""The documentation's commands, run; its access list, tried by those it is for and against."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    CHECKOUT,
    PATIENCE,
    AgentProcess,
    Heard,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    free_port,
    run_cli,
)
from tests.mqtt.test_access import write_passwords

DOCS = CHECKOUT / "docs"
Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]


def test_every_link_leads_somewhere() -> None:
    """Links between the pages, and from them to the README, lead to files that are there."""
    for page in DOCS.glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_bounds_in_the_threat_model_are_those_of_the_code() -> None:
    """Numbers that the page on security states are the ones that the code has."""
    from edge_agent.core import schema
    from edge_agent.delivery.receive import offers, single_message
    from edge_agent.inference import golden
    from edge_agent.models import manifest
    from edge_agent.models.files import check_ir, check_onnx, strip_weights
    from edge_agent.models.packages import package, ustar
    from edge_agent.mqtt import inbox
    from edge_agent.mqtt.requests import MAX_COMMAND_BYTES
    from edge_agent.sources import opencv, pictures

    page = (DOCS / "security.md").read_text()
    kib, mib = 1024, 2**20
    for words in (
        f"| settings, manifest, profile | {schema.MAX_TOML_BYTES // kib} KiB, ",
        f"KiB, keys of {schema.MAX_KEY_PARTS} parts |",
        f"| command | {MAX_COMMAND_BYTES // kib} KiB |",
        f"| {offers.MAX_OFFER_BYTES // kib} KiB, {package.MAX_HEADER // kib} KiB |",
        f"| {single_message.MAX_WHOLE_BYTES // mib} MiB; {inbox.MAX_BYTES // mib} MiB and ",
        f" and {inbox.MAX_MESSAGES} messages |",
        f"| {ustar.MAX_MEMBERS:,} members, {ustar.MAX_DEPTH} levels, ",
        f"{check_onnx.MAX_NODES:,} nodes, {strip_weights.MAX_PARTS:,} parts |",
        f"| {check_ir.MAX_XML_BYTES // mib} MiB of XML, {check_ir.MAX_LAYERS:,} layers, ",
        f"| {manifest.MAX_LABEL_BYTES // mib} MiB, {manifest.MAX_LABELS:,} |",
        f"| {golden.MAX_ARRAYS:,} arrays, {golden.MAX_GOLDEN_BYTES // mib} MiB unpacked |",
        f"| {opencv.MAX_PIXELS // mib} megapixels, {pictures.MAX_BYTES // mib} MiB |",
    ):
        assert words in page, words


# Mutual TLS


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """Make a folder that holds `edge-agent` as a command, which runs this very code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "edge-agent"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m edge_agent "$@"\n')
    script.chmod(0o755)
    return folder


def test_the_walk_through_of_mutual_tls_works(tmp_path: Path, command: Path) -> None:
    """All commands of mutual-tls.md, in their order: certificates, a broker, a device that may in.

    The broker then takes the device, and refuses a stranger and whoever has no certificate.
    """
    page = (DOCS / "mutual-tls.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert blocks
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        **os.environ,
        "PATH": f"{command}:{os.environ['PATH']}:/usr/sbin",
        "PYTHONPATH": str(CHECKOUT),
        "CHECKOUT": str(CHECKOUT),
        "BROKER": "localhost",
        "PORT": str(free_port()),
    }
    done = subprocess.run(
        ["bash", "-euc", "\n".join(blocks)],
        cwd=work,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        # It may be left by a command that failed.
        start_new_session=True,
    )
    pid = work / "mosquitto.pid"
    if done.returncode and pid.is_file():
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"broker: mqtts://localhost:{environ['PORT']}, MQTT 5" in done.stdout
    for key in work.glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0, key
    _check_who_may_in(work, int(environ["PORT"]))


def _check_who_may_in(work: Path, port: int) -> None:
    """Start the broker of the walk-through again, and try to get in."""
    broker = Mosquitto(work, (work / "mosquitto.conf").read_text(), port=port)
    try:
        config = work / "edge-01.toml"
        assert run_cli("models", "--config", str(config)).returncode == 0
        text = config.read_text()
        _make_stranger(work)
        for wrong in (
            re.sub(r"(cert|key)_file.*\n", "", text),
            text.replace('"edge-01.', '"stranger.'),
        ):
            config.write_text(wrong)
            done = run_cli("models", "--config", str(config))
            assert done.returncode == 1, done.stdout + done.stderr
            assert "Traceback" not in done.stderr
    finally:
        broker.stop()


def _make_stranger(work: Path) -> None:
    """Make a certificate that no authority has signed, in the name of the device."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "1",
         "-subj", "/CN=edge-01", "-keyout", "stranger.key", "-out", "stranger.pem"],
        cwd=work,
        check=True,
        capture_output=True,
    )  # fmt: skip


# The access list


USERS = ("edge-01", "edge-02", "viewer", "watcher", "operator", "deployer", "janitor")


@dataclass(frozen=True)
class Guarded:
    """A broker with the example access list, and a door without for the one who looks on."""

    open_port: int
    port: int

    def url(self, user: str) -> str:
        return f"mqtt://{user}:secret@127.0.0.1:{self.port}"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Start the broker."""
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed")
    passwords = tmp_path / "passwords"
    write_passwords(passwords, **dict.fromkeys(USERS, "secret"))
    open_port, port = free_port(), free_port()
    broker = Mosquitto(
        tmp_path / "broker",
        f"user {getpass.getuser()}\nper_listener_settings true\n"
        f"listener {open_port} 127.0.0.1\nallow_anonymous true\n"
        f"listener {port} 127.0.0.1\nallow_anonymous false\n"
        f"password_file {passwords}\nacl_file {DOCS / 'acl.example'}\n",
        port=open_port,
    )
    yield Guarded(open_port, port)
    broker.stop()


@dataclass(frozen=True)
class Box:
    """A device at work under the access list."""

    guarded: Guarded
    listener: Listener
    process: AgentProcess
    model: Path


@pytest.fixture
def box(guarded: Guarded, listen: Listeners, agent: Agents, tmp_path: Path) -> Box:
    """Run `edge-01`, member of the group `lab`, which takes unsigned models."""
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(25)])
    listener = listen(guarded.open_port)
    settings = agent_settings(
        "edge-01",
        guarded.url("edge-01"),
        [{"name": "p", "source": f"file:{clip}?loop=1", "model": "light", "snapshot": True}],
        models_dirs=[str(tmp_path / "models")],
        groups=["lab"],
        trust={"allow_unsigned": True},
        trial={"probation_s": 0.5, "shadow_frames": 3},
    )
    process = agent(settings)
    listener.wait_for(
        lambda heard: any(h.topic == "edge/edge-01/result/p" for h in heard), "a result"
    )
    return Box(guarded, listener, process, brightness(tmp_path / "light-2", "2"))


class Client:
    """One user of the broker: what it hears, and how the broker answers what it says."""

    def __init__(self, guarded: Guarded, user: str, client_id: str = "") -> None:
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5
        )
        self.client.username_pw_set(user, "secret")
        self.heard: list[str] = []
        self._changed = threading.Condition()
        self.refusals: dict[int, str] = {}
        self.client.on_message = self._take
        self.client.on_publish = self._published
        self._listening = threading.Event()
        self.client.on_subscribe = lambda *_: self._listening.set()
        # With the session that the broker may have kept for this id.
        self.client.connect("127.0.0.1", guarded.port, clean_start=not client_id)
        self.client.loop_start()

    def listen(self, topic: str) -> None:
        """Subscribe; what is published from now on comes."""
        self.client.subscribe(topic, 1)
        assert self._listening.wait(PATIENCE), topic

    def _take(self, _client: object, _user: object, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self.heard.append(message.topic)
            self._changed.notify_all()

    def wait_for(self, topic: str) -> None:
        """Wait until something came on a topic; all that the broker sent before has come too."""
        with self._changed:
            assert self._changed.wait_for(lambda: topic in self.heard, PATIENCE), topic

    def _published(self, _c: object, _u: object, mid: int, reason: object, _p: object) -> None:
        self.refusals[mid] = str(reason)

    def say(self, topic: str, payload: bytes | str, *, retain: bool = False) -> str:
        """Publish; give the broker's word on it."""
        receipt = self.client.publish(topic, payload, 1, retain=retain)
        receipt.wait_for_publish(20)
        return self.refusals[receipt.mid]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def client(guarded: Guarded) -> Iterator[Callable[[str], Client]]:
    """Make clients that are closed after the test."""
    made: list[Client] = []

    def make(user: str, client_id: str = "") -> Client:
        made.append(Client(guarded, user, client_id))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_device_may_say_all_it_has_to(box: Box) -> None:
    """Under the list a device is not refused once: status, info, results, pictures, answers."""
    listener = box.listener
    listener.publish("edge/edge-01/in/command/ping", '{"id": "one"}')
    listener.wait_state("edge/edge-01/reply/one", ok=True)
    listener.publish("edge/@lab/in/command/ping", '{"id": "two"}')
    listener.wait_state("edge/edge-01/reply/two", ok=True)
    health = listener.wait_state("edge/edge-01/health", schema=1)
    wanted = {"status", "info", "health", "result", "snapshot", "source", "model", "reply"}

    def said(heard: list[Heard]) -> bool:
        own = (h.topic.split("/") for h in heard if h.topic.startswith("edge/edge-01/"))
        return wanted <= {levels[2] for levels in own}

    listener.wait_for(said, f"{sorted(wanted)}")
    assert not any("broker" in why for why in health["why"]), health["why"]
    assert "refuses what we publish" not in box.process.words()


SAID = {
    "edge/edge-01/in/command/restart": b'{"id": "stolen"}',
    "edge/@lab/in/command/restart": b'{"id": "stolen"}',
    "edge/edge-01/in/model": b"tar",
    "edge/edge-01/in/push/x/offer": b"{}",
    "edge/edge-01/in/push/x/block/0": b"data",
    "edge/edge-01/status": b'{"state": "offline"}',
    "edge/edge-01/result/p": b"{}",
    "edge/edge-01/model/light": b"",
}
MAY_SAY = {
    "operator": {"edge/edge-01/in/command/restart", "edge/@lab/in/command/restart"},
    "deployer": {
        "edge/edge-01/in/model",
        "edge/edge-01/in/push/x/offer",
        "edge/edge-01/in/push/x/block/0",
    },
}


@pytest.mark.parametrize("user", ["edge-02", "viewer", "watcher", "operator", "deployer"])
def test_nobody_says_more_than_its_role(
    guarded: Guarded, client: Callable[[str], Client], listen: Listeners, user: str
) -> None:
    """Commands, models, blocks, and speaking as a device: each is let through for its role alone.

    The broker says "Not authorized" to all others, and nobody hears what they said.
    """
    listener, speaker = listen(guarded.open_port), client(user)
    let_through = {
        topic
        for topic, payload in SAID.items()
        if speaker.say(topic, payload, retain=topic.endswith("status")) != "Not authorized"
    }
    assert let_through == MAY_SAY.get(user, set())
    # Through the same broker, after all of it: what was let through is there by now.
    listener.publish("edge/end", '{"state": "end"}')
    listener.wait_state("edge/end", state="end")
    assert {heard.topic for heard in listener.heard} - {"edge/end"} == let_through


MAY_HEAR = {
    "edge-02": set[str](),
    "viewer": {"status", "info", "health", "result", "source", "model"},
    "watcher": {"status", "info", "health", "result", "source", "model", "snapshot"},
    "operator": {"status", "info", "health", "source", "model", "reply"},
    "deployer": {"status", "info", "model", "push"},
}


@pytest.mark.parametrize("user", list(MAY_HEAR))
def test_nobody_hears_more_than_its_role(
    box: Box, client: Callable[[str], Client], user: str
) -> None:
    """Whoever asks for everything gets what its role may hear of a device at work, and no more.

    Another device gets nothing: no result, no picture, no block of a model on its way.
    """
    ear, listener = client(user), box.listener
    end = "edge/edge-02/in/end" if user == "edge-02" else "edge/end/status"
    ear.listen("edge/#")
    listener.publish("edge/edge-01/in/command/ping", '{"id": "one"}')
    listener.wait_state("edge/edge-01/reply/one", ok=True)
    pushed = run_cli(
        "push", str(box.model), "--device", "edge-01",
        "--broker", box.guarded.url("deployer"),
    )  # fmt: skip
    assert pushed.returncode == 0, pushed.stderr
    before = len(listener.on("edge/edge-01/health"))
    listener.wait_for(
        lambda _: len(listener.on("edge/edge-01/health")) >= before + 2, "health, twice more"
    )
    listener.publish(end, "{}")
    ear.wait_for(end)
    own = {topic.split("/")[2] for topic in list(ear.heard) if topic.startswith("edge/edge-01/")}
    assert own == MAY_HEAR[user]
    assert [topic for topic in ear.heard if "/in/" in topic and topic != end] == []


def test_taking_over_a_client_id_gives_no_rights(box: Box, client: Callable[..., Client]) -> None:
    """Who connects with a device's client id throws it out, and hears nothing of its inbox.

    The device says so, and comes back.
    """
    # Held still, so that it does not take its place back before the thief has listened.
    box.process.signal(signal.SIGSTOP)
    thief = client("viewer", "edge-agent-edge-01")
    thief.listen("edge/end/status")
    box.listener.publish("edge/edge-01/in/command/ping", '{"id": "secret"}')
    box.listener.publish("edge/end/status", "{}")
    thief.wait_for("edge/end/status")
    assert [topic for topic in thief.heard if "/in/" in topic] == []
    thief.close()
    box.process.signal(signal.SIGCONT)
    box.listener.wait_for(
        lambda heard: any(
            h.json.get("reason") == "reconnected" for h in heard if h.topic == "edge/edge-01/status"
        ),
        "the device to be back",
    )
    assert "connection to" in box.process.words()


@pytest.mark.parametrize(
    ("command", "topic"),
    [
        (["push", "MODEL", "--device", "edge-01"], r"edge/edge-01/in/push/[0-9a-f]{32}/offer"),
        (["rollback", "light", "--device", "edge-01"], "edge/edge-01/in/command/rollback"),
        (["models", "--forget", "scrapped"], "edge/scrapped/(model/light|status)"),
    ],
)
def test_a_command_without_the_right_ends_at_once(
    guarded: Guarded, listen: Listeners, tmp_path: Path, command: list[str], topic: str
) -> None:
    """What the broker refuses ends a command with 1 and one line: who may not publish what."""
    listener = listen(guarded.open_port)
    listener.publish("edge/edge-01/status", '{"state": "online"}', retain=True)
    listener.publish("edge/scrapped/status", '{"state": "offline"}', retain=True)
    listener.publish("edge/scrapped/model/light", '{"live": "1"}', retain=True)
    model = str(brightness(tmp_path / "light-2", "2"))
    arguments = [model if word == "MODEL" else word for word in command]
    done = call_cli(*arguments, "--broker", guarded.url("viewer"))
    assert done.code == 1
    said = f"the broker does not let viewer publish to {topic}: Not authorized; see its access list"
    assert re.fullmatch(f"edge-agent: {said}", done.error)
    assert "cleared" not in done.out
    late = listen(guarded.open_port)
    late.catch_up()
    assert {"edge/scrapped/status", "edge/scrapped/model/light"} <= {h.topic for h in late.heard}


def test_each_role_can_do_its_work(box: Box) -> None:
    """The commands of edge-agent work with the rights of the roles that they are for."""
    guarded = box.guarded
    shown = run_cli("tail", "-n", "1", "--json", "--broker", guarded.url("viewer"))
    assert json.loads(shown.stdout)["device"] == "edge-01"
    pushed = run_cli(
        "push", str(box.model), "--device", "edge-01", "--broker", guarded.url("deployer")
    )
    assert pushed.returncode == 0, pushed.stderr
    box.listener.wait_state("edge/edge-01/model/light", live="2")
    back = run_cli("rollback", "light", "--device", "edge-01", "--broker", guarded.url("operator"))
    assert back.returncode == 0, back.stderr
    assert box.process.stop() == 0
    forgotten = run_cli("models", "--forget", "edge-01", "--broker", guarded.url("janitor"))
    assert forgotten.returncode == 0, forgotten.stderr


@pytest.mark.parametrize("user", ["viewer", "edge-02"])
def test_a_push_without_the_right_comes_to_nothing(box: Box, user: str) -> None:
    """`edge-agent push` as somebody without the role ends with 1, and the device hears nothing."""
    done = run_cli(
        "push", str(box.model), "--device", "edge-01", "--timeout", "3",
        "--broker", box.guarded.url(user),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    model = box.listener.last("edge/edge-01/model/light")
    assert model is not None
    assert (model["live"], model["versions"]) == ("1", ["1"])
    health = box.listener.last("edge/edge-01/health")
    assert health is not None
    assert health["malformed"] == 0
