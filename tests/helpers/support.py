"""What the tests share: a real broker, the agent as a process, and what it says."""

from __future__ import annotations

import getpass
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
import pytest
import tomli_w
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.cli.main import main

CHECKOUT = Path(__file__).resolve().parents[2]
ASSETS = CHECKOUT.parent / "shared" / "assets"
PATIENCE = 40.0
"""Seconds after which something that should have happened has not."""

needs_assets = pytest.mark.skipif(
    not (ASSETS / "assets.json").is_file(),
    reason="the reference models and media are not beside the checkout",
)


def reference(model: str) -> dict[str, Any]:
    """Give the entry of a model in assets.json."""
    listed = json.loads((ASSETS / "assets.json").read_text())
    return next(entry for entry in listed["models"] if entry["file"] == f"models/{model}")


def free_port() -> int:
    """Find a port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Mosquitto:
    """A real broker on a port of its own."""

    def __init__(self, folder: Path, extra: str = "", port: int | None = None) -> None:
        self.port = port or free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.conf = folder / "mosquitto.conf"
        self.conf.write_text(
            extra
            if "listener" in extra
            # Started by root it would become another user, who can neither read nor store here.
            # Without a bound it drops nothing for a listener that a busy machine keeps waiting.
            else f"user {getpass.getuser()}\nlistener {self.port} 127.0.0.1\n"
            f"allow_anonymous true\nmax_queued_messages 0\n{extra}"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            pytest.fail("mosquitto is not installed; scripts/test installs it")
        self.process = subprocess.Popen(
            [program, "-c", str(self.conf)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._listening, "mosquitto to listen")

    def _listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            for _ in range(10):
                self.process.send_signal(number)
                # One that comes before its main loop begins is lost on mosquitto 2.0.11.
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(2)
                    break
            else:
                self.process.kill()
                self.process.wait()
            self.process = None


class Heard(NamedTuple):
    """A message that a listener has heard."""

    topic: str
    payload: bytes
    retained: bool
    qos: int
    about: Mapping[str, str] = {}
    """User properties, which MQTT 5 alone has."""
    again: bool = False
    """The broker sends it a second time: it has not had our acknowledgment (DUP)."""

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.payload)
        return loaded


class Listener:
    """Hears everything on a broker, in order; survives its restarts."""

    def __init__(self, port: int, topics: str = "edge/#", **options: Any) -> None:
        self.heard: list[Heard] = []
        self.said: set[tuple[str, bytes]] = set()
        """What it has published itself."""
        self._changed = threading.Condition()
        self._subscribed = threading.Event()
        self.subscribed = 0
        """How often: once, and again after each restart of the broker."""
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, **options)
        self.client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
        self.client.on_connect = lambda client, *_: client.subscribe(topics, 1)
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = self._on_message
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert self._subscribed.wait(PATIENCE), "the broker does not take a subscription"

    def _on_subscribe(self, *_: Any) -> None:
        self.subscribed += 1
        self._subscribed.set()

    def _on_message(self, _client: Any, _userdata: Any, message: Any) -> None:
        about = dict(getattr(message.properties, "UserProperty", []))
        flags = message.retain, message.qos
        heard = Heard(message.topic, message.payload, *flags, about, message.dup)
        with self._changed:
            self.heard.append(heard)
            self._changed.notify_all()

    def wait_for(
        self, wanted: Callable[[list[Heard]], Any], what: str, patience: float = PATIENCE
    ) -> Any:
        """Wait until *wanted* finds what it looks for in all that was heard; give it."""
        found: Any = None

        def look() -> bool:
            nonlocal found
            found = wanted(list(self.heard))
            return bool(found)

        with self._changed:
            if not self._changed.wait_for(look, patience):
                tail = "\n".join(f"{h.topic} {h.payload[:200]!r}" for h in self.heard[-10:])
                pytest.fail(f"waited {patience:.0f} s in vain for {what}; last heard:\n{tail}")
        return found

    def last(self, topic: str) -> dict[str, Any] | None:
        for heard in reversed(self.heard):
            if heard.topic == topic and heard.payload:
                return heard.json
        return None

    def on(self, topic: str) -> list[dict[str, Any]]:
        """All payloads heard on a topic, oldest first."""
        return [heard.json for heard in self.heard if heard.topic == topic and heard.payload]

    def wait_state(self, topic: str, patience: float = PATIENCE, **wanted: Any) -> dict[str, Any]:
        """Wait until the latest payload on a topic has these keys with these values."""

        def look(_heard: list[Heard]) -> dict[str, Any] | None:
            payload = self.last(topic)
            return (
                payload if payload and all(payload.get(k) == v for k, v in wanted.items()) else None
            )

        state: dict[str, Any] = self.wait_for(look, f"{topic} {wanted}", patience)
        return state

    def wait_why(self, words: str) -> dict[str, Any]:
        """Wait until health has a reason with these words; gives that health."""

        def look(heard: list[Heard]) -> dict[str, Any] | None:
            for each in heard:
                if each.topic == "edge/box/health":
                    payload = each.json
                    if any(words in why for why in payload["why"]):
                        return payload
            return None

        health: dict[str, Any] = self.wait_for(look, f"health to say {words!r}")
        return health

    def publish(
        self, topic: str, payload: bytes | str, qos: int = 1, *, retain: bool = False
    ) -> None:
        self.said.add((topic, payload.encode() if isinstance(payload, str) else payload))
        self.client.publish(topic, payload, qos, retain=retain).wait_for_publish(PATIENCE)

    def catch_up(self) -> None:
        """Wait until all has been heard that the broker has taken so far."""
        mark = f"edge/caught-up/{len(self.heard)}"
        self.publish(mark, b"{}")
        self.wait_for(lambda heard: any(h.topic == mark for h in heard), "what was said before")

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Relay:
    """A port that leads to a broker, or for a while to nobody.

    With it the agent can be kept away until a listener is back, who would miss what is said
    before: whom a broker serves first after its restart is chance.
    """

    def __init__(self, target: int, *, opened: bool = True) -> None:
        self.port = free_port()
        self._target = target
        self._door: socket.socket | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent = False
        if opened:
            self.open()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Take connections."""
        door = socket.create_server(("127.0.0.1", self.port))
        self._door = door
        threading.Thread(target=self._welcome, args=(door,), daemon=True).start()

    def shut(self) -> None:
        """Refuse new connections; those there are stay."""
        if self._door is not None:
            # Not close alone: the thread that waits in accept would still take one more.
            self._door.shutdown(socket.SHUT_RDWR)
            self._door.close()
            self._door = None

    def cut(self) -> None:
        """Break all connections."""
        for pair in self._pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # gone already
        self._pairs.clear()

    def silence(self) -> None:
        """Pass on nothing more of what the broker says."""
        self._silent = True

    def interject(self, words: bytes) -> None:
        """Say something to the clients in the broker's stead, upon which they hang up.

        Hanging up here, while a client sends, would take it back.
        """
        for client, _ in self._pairs:
            client.sendall(words)

    def first_words(self, _words: bytes) -> bytes | None:
        """Answer a client's first packet in the broker's stead, and hang up; None: do not."""
        return None

    def _welcome(self, door: socket.socket) -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return  # shut
            words = client.recv(65536)
            answer = self.first_words(words)
            try:
                if answer is None:
                    server = socket.create_connection(("127.0.0.1", self._target), 5)
                    server.settimeout(None)
                    server.sendall(words)
                else:
                    client.sendall(answer)
                    client.close()
                    continue
            except OSError:
                client.close()
                continue
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def pass_on(self, data: bytes, _source: socket.socket, sink: socket.socket) -> None:
        """Hand on what one side has sent."""
        sink.sendall(data)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not (self._silent and source.getpeername()[1] == self._target):
                    self.pass_on(data, source, sink)
        except OSError:
            pass  # either side has gone, so must the other
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # gone already


class Lacking(Relay):
    """A node of a cluster that does not pass on some words."""

    def __init__(self, to: int, words: bytes) -> None:
        self.words = words
        super().__init__(to)

    def pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        super().pass_on(data.replace(self.words, bytes(reversed(self.words))), source, sink)


class AgentProcess:
    """`edge-agent run` as its users run it."""

    prefix: Sequence[str] = ()
    """A command that runs the command after it."""

    def __init__(
        self,
        folder: Path,
        settings: str,
        environ: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.config = folder / "config.toml"
        self.config.write_text(settings)
        self.log = folder / "agent.log"
        self.environ = environ or {}
        self.prefix = prefix
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [
                    *self.prefix,
                    *(sys.executable, "-m", "edge_agent", "run", "--config", str(self.config)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environ},
            )

    def restart(self) -> None:
        self.process = self._start()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, patience: float = PATIENCE) -> int:
        return self.process.wait(patience)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"the agent did not end within 15 s of SIGTERM:\n{self.words()}")

    def words(self) -> str:
        return self.log.read_text(errors="replace")


def run_cli(
    *arguments: str,
    environ: dict[str, str] | None = None,
    cwd: Path | None = None,
    patience: float = PATIENCE * 3,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "edge_agent", *arguments],
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
        env={**os.environ, **(environ or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )


class Called(NamedTuple):
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that it ended with; fails where there is another word on stderr."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("edge-agent"), self.err
        return self.err.rstrip("\n")


def call_cli(*arguments: str) -> Called:
    """Run a command within this process: what it imports is loaded once for all tests."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            code = main(arguments)
        except SystemExit as problem:
            code = int(problem.code or 0)
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
    return Called(code, out.getvalue(), err.getvalue())


def wait_until(claim: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Poll something that gives no event of its own."""
    deadline = time.monotonic() + patience
    pause = threading.Event()
    while not claim():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience:.0f} s in vain for {what}")
        pause.wait(0.02)


def write_model(folder: Path, network: Path, manifest: str, **files: str | bytes) -> Path:
    """Make a model folder of a network that lies elsewhere; links, so that nothing is copied."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.toml").write_text(manifest)
    for part in (network, network.with_suffix(".bin")):
        if part.is_file():
            (folder / f"model{part.suffix}").symlink_to(part)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def check_account(pipeline: dict[str, Any]) -> None:
    """See that captured = inferred + waiting + all dropped."""
    total = pipeline["inferred"] + pipeline["waiting"] + sum(pipeline["dropped"].values())
    assert pipeline["captured"] == total, pipeline


def iou(one: list[float], other: list[float]) -> float:
    """Intersection over union of two boxes x1, y1, x2, y2."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    inter = max(width, 0.0) * max(height, 0.0)
    area = (one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1])
    return inter / (area - inter)


def yielded(thing: Any, close: Callable[[], object]) -> Iterator[Any]:
    """Yield and close, for fixtures."""
    try:
        yield thing
    finally:
        close()


def health_at_rest(listener: Listener, device: str, pipelines: Sequence[str]) -> dict[str, Any]:
    """Wait until all sources of a device have ended; give the health that says so."""
    for name in pipelines:
        # A whole clip, through several models: on a busy machine that takes longer than any answer.
        listener.wait_state(f"edge/{device}/source/{name}", 3 * PATIENCE, state="ended")

    def at_rest(_: object) -> dict[str, Any] | None:
        health = listener.last(f"edge/{device}/health")
        done = health and all(p["source"] == "ended" for p in health["pipelines"].values())
        return health if done else None

    health: dict[str, Any] = listener.wait_for(at_rest, "health after the end")
    return health


def agent_settings(
    device: str, url: str, pipelines: Sequence[Mapping[str, Any]], **more: Any
) -> str:
    """Write settings as TOML: quick health, state beside the file, and what *more* says."""
    tables: dict[str, Any] = {
        "device_id": device,
        "state_dir": "state",
        "engine": "onnxruntime",
        "health": {"interval_s": 0.2},
        **more,
        "broker": {"url": url, **more.get("broker", {})},
        "pipelines": [dict(pipeline) for pipeline in pipelines],
    }
    return tomli_w.dumps(tables)
