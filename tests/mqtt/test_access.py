"""Getting into a broker: versions of MQTT, TLS, passwords, access lists, and two of one name."""

from __future__ import annotations

import contextlib
import errno
import getpass
import importlib.util
import math
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.settings import Broker
from edge_agent.core.errors import BrokerError
from edge_agent.mqtt.connecting import HELD, connect
from edge_agent.mqtt.connection import Connection, Hooks
from edge_agent.mqtt.diagnose import explain_unreachable
from edge_agent.ui.reader import Reader
from tests.helpers.certificates import Issued, issue
from tests.helpers.mqtt_client import make_client
from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.support import (
    CHECKOUT,
    AgentProcess,
    Listener,
    Mosquitto,
    Relay,
    agent_settings,
    call_cli,
    free_port,
    run_cli,
    wait_until,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Make the one model that these tests need; as `models_dirs`."""
    brightness(tmp_path / "models" / "light")
    return [str(tmp_path / "models")]


@pytest.fixture
def pipeline(tmp_path: Path) -> dict[str, object]:
    """Give a pipeline that is done with after three results."""
    pictures = write_pictures(tmp_path / "in", [plain(i) for i in range(3)])
    return {"name": "p", "source": pictures, "model": "light"}


def is_served(listener: Listener) -> None:
    """Wait until all three results have come, and one command was answered."""
    listener.wait_state(f"{D}/source/p", state="ended")
    assert [result["seq"] for result in listener.on(f"{D}/result/p")] == [0, 1, 2]
    listener.publish(f"{D}/in/command/ping", b'{"id": "hello"}')
    listener.wait_state(f"{D}/reply/hello", ok=True)


# Versions of MQTT


def test_mqtt_3_1_1_does_all_of_it(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
) -> None:
    """With `protocol = 4` results, commands, status and will work alike."""
    listener = listen(broker.port)
    settings = agent_settings(
        "box", broker.url, [pipeline], models_dirs=models, broker={"protocol": 4}
    )
    running = agent(settings)
    is_served(listener)
    assert "MQTT 3.1.1" in running.words()
    running.signal(signal.SIGKILL)
    running.wait()
    listener.wait_state(f"{D}/status", state="offline", reason="lost")
    running.restart()
    listener.wait_state(f"{D}/status", state="online")
    assert running.stop() == 0
    listener.wait_state(f"{D}/status", state="offline", reason="stopped")


class OldBroker(Relay):
    """Speaks MQTT 3.1.1 only, as the specification of its time says how to refuse another."""

    def first_words(self, words: bytes) -> bytes | None:
        """Refuse a CONNECT of level 5 with return code 1, unacceptable protocol version."""
        level = words[words.index(b"MQTT") + 4]
        return b"\x20\x02\x00\x01" if level == 5 else None


class DeafBroker(Relay):
    """Hangs up without a word on MQTT 5."""

    def first_words(self, words: bytes) -> bytes | None:
        """Say nothing to a CONNECT of level 5."""
        level = words[words.index(b"MQTT") + 4]
        return b"" if level == 5 else None


class SilentBroker(Relay):
    """Takes a CONNECT of level 5, does not answer, and keeps the connection."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.asked: list[int] = []
        """Levels of the CONNECTs, in order."""
        self._mute = socket.create_server(("127.0.0.1", 0))
        self._real = target

    def first_words(self, words: bytes) -> bytes | None:
        """Lead a CONNECT of level 5 to somebody who never says a word."""
        level = words[words.index(b"MQTT") + 4]
        self.asked.append(level)
        self._target = self._mute.getsockname()[1] if level == 5 else self._real
        return None


@pytest.mark.parametrize("kind", [OldBroker, DeafBroker, SilentBroker])
def test_a_broker_that_refuses_mqtt_5_is_tried_with_3_1_1(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
    kind: type[Relay],
) -> None:
    """An old broker is used with MQTT 3.1.1, and the log says so."""
    relay = kind(broker.port)
    listener = listen(broker.port)
    try:
        running = agent(agent_settings("box", relay.url, [pipeline], models_dirs=models))
        is_served(listener)
        assert "speaking MQTT 3.1.1" in running.words()
        assert running.stop() == 0
        checked = run_cli("check", "--config", str(running.config))
        assert checked.stderr.count("speaking MQTT 3.1.1") == 1, "each connection had said so"
    finally:
        relay.shut()
        relay.cut()


class Proxy(Relay):
    """Takes connections while its broker is away, too, and ends them after *seconds*."""

    def __init__(self, target: int, *, away: float, seconds: float = 0.0) -> None:
        super().__init__(target)
        self.away = away
        """CONNECTs until the broker is back."""
        self.seconds = seconds

    def first_words(self, words: bytes) -> bytes | None:
        """Say nothing while the broker is away."""
        del words
        if not self.away:
            return None
        self.away -= 1
        threading.Event().wait(self.seconds)
        return b""


def test_a_broker_behind_a_proxy_is_spoken_to_with_mqtt_5_once_it_is_back(
    broker: Mosquitto,
) -> None:
    """It came back between the attempts with MQTT 5 and 3.1.1, and was taken for an old one."""
    proxy = Proxy(broker.port, away=1, seconds=HELD)  # as haproxy does, at our start
    client = make_client(proxy.url)
    threading.Thread(target=client.run, daemon=True).start()
    try:
        for number in range(2):
            wait_until(lambda n=number: client.counters().reconnects == n, "a connection")  # type: ignore[misc]
            wait_until(lambda: client.connected, "a connection")
            assert client._outbox.connection.protocol == 5  # type: ignore[union-attr]
            proxy.away, proxy.seconds = 1, 0.0  # as nginx does, and later
            proxy.cut()
    finally:
        client.close()
        proxy.shut()
        proxy.cut()


def test_a_proxy_whose_broker_is_away_is_no_reason_to_change_settings(broker: Mosquitto) -> None:
    """Whom the broker had accepted was told to set a client certificate, or the port for TLS."""
    proxy = Proxy(broker.port, away=2)
    words = f"{proxy.url} closed the connection; "
    client = make_client(proxy.url)
    try:
        with pytest.raises(BrokerError) as refused:
            connect(Broker(url=proxy.url), "new", hooks=Hooks())
        either = "if this is its port for TLS, the url begins with mqtts://; or it is a proxy"
        assert str(refused.value) == f"{words}{either} whose broker is away"
        threading.Thread(target=client.run, daemon=True).start()
        wait_until(lambda: client.connected, "a connection")
        proxy.away = math.inf
        proxy.cut()
        said = f"{words}it may be a proxy whose broker is away"
        wait_until(lambda: client.counters().problem == said, "the reason")
    finally:
        client.close()
        proxy.shut()
        proxy.cut()


def give_addresses(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have every name resolve to these."""

    def look_up(_host: object, port: int, *_: object, **__: object) -> list[object]:
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize(("protocol", "listed"), [(5, False), (4, False), (5, True)])
def test_a_device_leaves_the_address_of_a_broker_that_was_stopped(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, listed: bool
) -> None:
    """SIGSTOP: the kernel still takes connections for it. The next address is used.

    That of the name, or that of the list.
    """
    first = Mosquitto(
        tmp_path / "first",
        f"listener {broker.port} 127.0.0.2\nallow_anonymous true\n",
        broker.port,
    )
    url: str | tuple[str, ...] = f"mqtt://broker.test:{broker.port}"
    if listed:
        url = tuple(
            f"mqtt://{each}:{broker.port}" for each in ("127.0.0.2", "no.such", "127.0.0.1")
        )
    else:
        give_addresses(monkeypatch, "127.0.0.2", "127.0.0.1")
    client = make_client(url, protocol=protocol)
    thread = threading.Thread(target=client.run, daemon=True)
    try:
        wait_until(lambda: can_connect("127.0.0.2", broker.port), "the first broker")
        thread.start()
        wait_until(lambda: client.connected, "a connection")
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        # Reset, as by a router on the way: else the keepalive takes half a minute to tell.
        client._outbox.connection._client.socket().shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        wait_until(lambda: client.counters().reconnects == 1, "the other broker")
        assert client.connected
    finally:
        client.close()
        assert first.process is not None
        first.process.send_signal(signal.SIGCONT)
        first.stop()


@pytest.mark.parametrize("listed", [False, True])
def test_a_device_goes_through_all_nodes_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, listed: bool
) -> None:
    """It went between the first two where these lacked something, and never to the third."""
    port = free_port()
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    nodes = Mosquitto(tmp_path / "nodes", f"listener {port}\nallow_anonymous true\n", port)
    url: str | tuple[str, ...] = f"mqtt://broker.test:{port}"
    if listed:
        url = tuple(f"mqtt://{address}:{port}" for address in addresses)
    else:
        give_addresses(monkeypatch, *addresses)
    client = make_client(url)
    threading.Thread(target=client.run, daemon=True).start()
    seen = []
    try:
        for number in range(4):
            wait_until(lambda n=number: client.counters().reconnects == n, "a node")  # type: ignore[misc]
            wait_until(lambda: client.connected, "a connection")
            seen.append(client._outbox.connection.node.where[1][0])  # type: ignore[union-attr]
            assert client.leave_node("it lacks something")
        assert seen == [*addresses, "127.0.0.1"]
    finally:
        client.close()
        nodes.stop()


def test_a_broker_of_one_node_is_not_left(broker: Mosquitto) -> None:
    """Whatever it lacks: another connection would lead there again."""
    client = make_client(broker.url)
    assert not client.leave_node("it lacks something")
    threading.Thread(target=client.run, daemon=True).start()
    try:
        wait_until(lambda: client.connected, "a connection")
        assert not client.leave_node("it lacks something")
    finally:
        client.close()


def can_connect(address: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((address, port), 1).close()
    except OSError:
        return False
    return True


def test_commands_too_try_a_silent_broker_with_3_1_1(broker: Mosquitto, listen: Listeners) -> None:
    """A command that gets no answer to MQTT 5 does its work with 3.1.1, and says so."""
    listen(broker.port).publish("edge/box/status", b'{"state": "offline"}', retain=True)
    relay = SilentBroker(broker.port)
    try:
        done = call_cli("models", "--broker", relay.url)
        assert done.code == 0
        assert "box  offline" in done.out
        assert f"{relay.url} does not answer to MQTT 5: speaking MQTT 3.1.1" in done.err
        assert relay.asked == [5, 4]
    finally:
        relay.shut()
        relay.cut()


def test_a_broker_that_never_answers_is_said_before_3_1_1_is_tried(
    agent: Agents, models: list[str], pipeline: dict[str, object]
) -> None:
    """Whoever looks at the log is told while the second attempt waits, and by its end why."""
    mute = socket.create_server(("127.0.0.1", 0))
    url = f"mqtt://127.0.0.1:{mute.getsockname()[1]}"
    running = agent(agent_settings("box", url, [pipeline], models_dirs=models))
    said = f"broker: {url} does not answer to MQTT 5; trying MQTT 3.1.1"
    wait_until(lambda: said in running.words(), "a word of the first attempt")
    assert "is it an MQTT broker" not in running.words()
    why = f"{url} does not answer; is it an MQTT broker, and at work?"
    wait_until(lambda: why in running.words(), "a word of the second attempt")
    assert running.stop() == 0
    mute.close()


def test_no_file_left_to_open_is_no_crash(broker: Mosquitto) -> None:
    """Where only the connection's own socket can be opened, the broker cannot be reached."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        os.close(taken.pop())
        with pytest.raises(BrokerError, match="too many open files"):
            connect(Broker(url=broker.url), "many", hooks=Hooks())
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_silence_may_be_a_broker_that_is_slow(broker: Mosquitto) -> None:
    """After a connection with 3.1.1 that silence has led to, the next begins with MQTT 5 again."""
    relay = SilentBroker(broker.port)
    try:
        made = connect(Broker(url=relay.url), "slow", hooks=Hooks())
        assert (made.protocol, made.protocol_confirmed) == (4, False)
        made.close()
    finally:
        relay.shut()
        relay.cut()


def test_a_broker_that_hung_is_spoken_to_with_mqtt_5(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    """Its silence led to an attempt with 3.1.1, during which it woke up and answered both."""
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    made: list[Connection] = []
    thread = threading.Thread(
        target=lambda: made.append(connect(Broker(url=broker.url), "hung", hooks=Hooks()))
    )
    try:
        thread.start()
        wait_until(lambda: "trying MQTT 3.1.1" in caplog.text, "a second attempt")
    finally:
        broker.process.send_signal(signal.SIGCONT)
    thread.join()
    assert (made[0].protocol, made[0].protocol_confirmed) == (5, True)
    assert not made[0].gone.is_set()
    made[0].close()


@pytest.mark.skipif(importlib.util.find_spec("amqtt") is None, reason="amqtt is not installed")
def test_amqtt_is_served(
    tmp_path: Path, listen: Listeners, agent: Agents, models: list[str], pipeline: dict[str, object]
) -> None:
    """The broker of Python's package index, which does not answer to MQTT 5, serves."""
    port = free_port()
    with (tmp_path / "amqtt.log").open("wb") as output:
        broker = subprocess.Popen(
            [sys.executable, "-m", "edge_agent.mqtt.amqtt_broker", str(port)],
            stdout=output,
            stderr=output,
            cwd=CHECKOUT,
        )
    try:
        wait_until(lambda: _listens(port), "amqtt to listen")
        listener = listen(port)
        running = agent(
            agent_settings("box", f"mqtt://127.0.0.1:{port}", [pipeline], models_dirs=models)
        )
        is_served(listener)
        assert running.stop() == 0
    finally:
        broker.terminate()
        broker.wait(10)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_being_taken_over_is_reported(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
) -> None:
    """DISCONNECT with 0x8E: the log says that another box uses this device_id; we stay away."""
    relay = Relay(broker.port)
    listener = listen(broker.port)
    try:
        running = agent(agent_settings("box", relay.url, [pipeline], models_dirs=models))
        is_served(listener)
        relay.interject(b"\xe0\x02\x8e\x00")
        wait_until(lambda: "another box uses this device_id" in running.words(), "a word about it")
        listener.wait_state(f"{D}/status", state="offline", reason="lost")
        assert running.process.poll() is None
        assert running.stop() == 0
        assert running.words().count("connected to") == 1
    finally:
        relay.shut()
        relay.cut()


def test_two_boxes_of_one_name_notice_it(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
) -> None:
    """Whatever the broker says to who is taken over, a box that is pushed out wonders aloud.

    Old brokers just hang up; newer ones give the reason. The one that is left is `online`.
    """
    listener = listen(broker.port)
    settings = agent_settings("box", broker.url, [pipeline], models_dirs=models)
    boxes = [agent(settings, name) for name in ("first", "second")]
    wait_until(lambda: any("device_id" in box.words() for box in boxes), "one of them to say so")
    # At the latest a minute later, when the one that was away is back.
    listener.wait_for(
        lambda _: any(
            "this device_id" in why
            for health in listener.on(f"{D}/health")
            if health["state"] == "degraded"
            for why in health["why"]
        ),
        "health to say so",
        90,
    )
    assert all(box.process.poll() is None for box in boxes)
    assert boxes[0].stop() == 0
    # Whichever was away comes back by itself, at the latest after a minute.
    listener.wait_for(lambda _: _is_online(listener), "the second to be online", 90)
    assert boxes[1].stop() == 0
    listener.wait_state(f"{D}/status", state="offline", reason="stopped")


def _is_online(listener: Listener) -> bool:
    """Whether the last word is `online`, from another session than any that has stopped."""
    said = listener.on(f"{D}/status")
    stopped = {status["session"] for status in said if status["reason"] == "stopped"}
    return said[-1]["state"] == "online" and said[-1]["session"] not in stopped


# TLS


@dataclass(frozen=True)
class TlsBroker:
    """A broker that asks for certificates, with a door without for the listener."""

    broker: Mosquitto
    port: int
    authority: Issued
    client: Issued
    stranger: Issued

    def settings(self, client: Issued | None, host: str = "127.0.0.1") -> dict[str, str]:
        """Give the settings to reach it with a certificate or none."""
        found = {"url": f"mqtts://{host}:{self.port}", "ca_file": str(self.authority.cert_file)}
        if client is not None:
            found |= {"cert_file": str(client.cert_file), "key_file": str(client.key_file)}
        return found


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """Start a broker with mutual TLS."""
    started = start_tls(tmp_path_factory.mktemp("tls"))
    yield started
    started.broker.stop()


def start_tls(folder: Path, *, days: float = 99) -> TlsBroker:
    """Start a broker with mutual TLS, whose authority's certificate is valid for so many days."""
    authority = issue(folder, "authority", days=days)
    server = issue(folder, "server", authority)
    secure, plain_port = free_port(), free_port()
    broker = Mosquitto(
        folder / "broker",
        f"user {getpass.getuser()}\nallow_anonymous true\n"
        f"listener {plain_port} 127.0.0.1\n"
        f"listener {secure} 127.0.0.1\ncafile {authority.cert_file}\n"
        f"certfile {server.cert_file}\nkeyfile {server.key_file}\nrequire_certificate true\n",
        port=plain_port,
    )
    return TlsBroker(
        broker, secure, authority, issue(folder, "box", authority), issue(folder, "stranger")
    )


def test_mutual_tls(
    tls: TlsBroker,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
) -> None:
    """With `ca_file`, `cert_file` and `key_file` the agent works over `mqtts://`."""
    listener = listen(tls.broker.port)
    settings = agent_settings(
        "box", "", [pipeline], models_dirs=models, broker=tls.settings(tls.client)
    )
    running = agent(settings)
    is_served(listener)
    assert running.stop() == 0
    listener.wait_state(f"{D}/status", state="offline", reason="stopped")


def test_the_url_of_a_command_line_may_bring_tls(tls: TlsBroker, tmp_path: Path) -> None:
    """A CA in the environment was refused by the URL that --broker had replaced."""
    entries = tls.settings(tls.client)
    environ = {
        f"EDGE_AGENT_BROKER__{key.upper()}": str(entries[key])
        for key in ("ca_file", "cert_file", "key_file")
    }
    said = run_cli("status", "--broker", str(entries["url"]), cwd=tmp_path, environ=environ)
    assert said.returncode != 2, said.stderr
    assert "device" in said.stdout + said.stderr


def test_renewed_certificates_are_used_without_a_restart(
    tls: TlsBroker,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
    tmp_path: Path,
) -> None:
    """Files are replaced one after the other; until all fit, the certificates of before serve."""
    before = issue(tmp_path, "before")
    files = {
        "ca_file": (before.cert_file, tls.authority.cert_file),
        "cert_file": (before.cert_file, tls.client.cert_file),
        "key_file": (before.key_file, tls.client.key_file),
    }
    for key, (old, _) in files.items():
        shutil.copy(old, tmp_path / key)
    broker = {key: str(tmp_path / key) for key in files}
    broker["url"] = f"mqtts://127.0.0.1:{tls.port}"
    listener = listen(tls.broker.port)
    running = agent(agent_settings("box", "", [pipeline], models_dirs=models, broker=broker))
    wait_until(lambda: "its certificate is not trusted" in running.words(), "a refusal")
    for key, said in {
        "ca_file": "it may not trust our certificate",
        "cert_file": "; the one read before is still used",
        "key_file": "the certificates have changed and are read again",
    }.items():
        shutil.copy(files[key][1], tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / key)
        wait_until(lambda words=said: words in running.words(), said)  # type: ignore[misc]
    listener.wait_state(f"{D}/status", state="online")
    assert running.stop() == 0


def test_a_certificate_is_to_be_renewed_before_it_locks_the_device_out(
    tls: TlsBroker,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
    tmp_path: Path,
) -> None:
    """`check` notes it 30 days before, health and the log 14 days; once renewed, all is well."""
    broker = tls.settings(tls.client)
    files = {key: tmp_path / f"{key}.pem" for key in ("cert_file", "key_file")}
    broker |= {key: str(path) for key, path in files.items()}

    def renew(days: float) -> str:
        issued = issue(tmp_path / "issued", "box", tls.authority, days=days)
        for key, path in files.items():
            shutil.copy(getattr(issued, key), path)
        return f"our certificate expires on {issued.certificate.not_valid_after_utc:%Y-%m-%d}"

    words = renew(20)
    listener = listen(tls.broker.port)
    running = agent(agent_settings("box", "", [pipeline], models_dirs=models, broker=broker))
    listener.wait_state(f"{D}/health", state="ok")
    done = run_cli("check", "--config", str(running.config))
    assert f"note  broker: {words}" in done.stdout
    assert f"ok    broker: {broker['url']}" in done.stdout
    words = renew(10)
    (why,) = listener.wait_state(f"{D}/health", state="degraded")["why"]
    assert why.startswith(f"broker: {words}")
    assert "broker.cert_file" in why
    assert running.words().count(words) == 1
    renew(40)
    listener.wait_state(f"{D}/health", state="ok")
    shutil.copy(issue(tmp_path / "issued", "other", tls.authority).key_file, files["key_file"])
    (why,) = listener.wait_state(f"{D}/health", state="degraded")["why"]
    assert "not a certificate and its key" in why
    assert "what was read before is used, until the next start, which would fail" in why
    files["key_file"].unlink()
    wait = listener.wait_for
    wait(lambda _: "No such file" in str(listener.last(f"{D}/health")), "what is missing")
    renew(40)
    listener.wait_state(f"{D}/health", state="ok")
    assert running.stop() == 0


@pytest.mark.parametrize("whose", ["our", "the authority's"])
def test_the_certificate_that_has_expired_is_named(tmp_path: Path, whose: str) -> None:
    """The broker was said not to trust ours, and to need a new one itself."""
    ours = whose == "our"
    tls = start_tls(tmp_path, days=99 if ours else -1)
    client = issue(tmp_path, "old", tls.authority, days=-1)
    settings: dict[str, Any] = {**tls.settings(client)}
    end = f"{client.certificate.not_valid_after_utc:%Y-%m-%d}"
    mend = f"renew broker.{'cert_file' if ours else 'ca_file'}"
    try:
        with pytest.raises(BrokerError, match=f"; {whose} certificate expired on {end}.*{mend}"):
            connect(Broker(**settings), "box", hooks=Hooks())
    finally:
        tls.broker.stop()


def test_tls_is_imported_only_where_it_is_used(tls: TlsBroker) -> None:
    """A plain connection leaves the TLS library out; one with TLS after it still works."""
    script = f"""
import sys
from edge_agent.mqtt.connecting import connect
from edge_agent.mqtt.connection import Connection, Hooks
from edge_agent.config.settings import Broker

connect(Broker(url="mqtt://127.0.0.1:{tls.broker.port}"), "plain", hooks=Hooks()).close()
print({{"_ssl", "_hashlib", "http.client"}} & set(sys.modules))
connect(Broker(**{tls.settings(tls.client)!r}), "tls", hooks=Hooks()).close()
print("_ssl" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    assert done.stdout.splitlines() == ["set()", "True"]


@pytest.mark.parametrize("who", ["nobody", "stranger"])
def test_a_broker_that_does_not_know_us_is_tried_again(
    tls: TlsBroker, agent: Agents, models: list[str], pipeline: dict[str, object], who: str
) -> None:
    """Without a certificate that the broker trusts it stays away; the agent says so and goes on."""
    client = tls.stranger if who == "stranger" else None
    settings = agent_settings(
        "box", "", [pipeline], models_dirs=models, broker=tls.settings(client)
    )
    running = agent(settings)
    wait_until(
        lambda: f"broker: mqtts://127.0.0.1:{tls.port}" in running.words(), "a word about it"
    )
    wait_until(lambda: "model light is live" in running.words(), "the model")
    mend = "trust our certificate" if who == "stranger" else "want a client certificate"
    assert f"; it may {'not ' if who == 'stranger' else ''}{mend}" in running.words()
    assert "broker.cert_file and broker.key_file" in running.words()
    assert "connected to" not in running.words()
    assert "Traceback" not in running.words()
    assert running.stop() == 0


def test_every_address_of_a_name_is_tried_also_when_one_hangs_after_tcp(
    tls: TlsBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first address takes the connection and says nothing: the second one is used.

    The certificate is compared with the name all the same.
    """
    ours: dict[str, Any] = {**tls.settings(tls.client)}
    other: dict[str, Any] = {**tls.settings(tls.client, "localhost")}
    with socket.create_server(("127.0.0.2", tls.port)):
        give_addresses(monkeypatch, "127.0.0.2", "127.0.0.1")
        connect(Broker(**ours), "box", hooks=Hooks()).close()
        with pytest.raises(BrokerError, match="its certificate is not trusted"):
            connect(Broker(**other), "box", hooks=Hooks())


@pytest.mark.parametrize("case", ["unknown authority", "other host", "the system's authority"])
def test_a_broker_that_we_do_not_know_is_not_spoken_to(
    tls: TlsBroker, agent: Agents, models: list[str], pipeline: dict[str, object], case: str
) -> None:
    """A server certificate of an unknown authority, or of another host, is refused, aloud."""
    entries = tls.settings(tls.client, "localhost" if case == "other host" else "127.0.0.1")
    environ = {}
    if case == "unknown authority":
        del entries["ca_file"]
    elif case == "the system's authority":
        # `ca_file` names the only ones, as mosquitto's --cafile does.
        environ["SSL_CERT_FILE"] = entries["ca_file"]
        entries["ca_file"] = str(tls.stranger.cert_file)
    settings = agent_settings("box", "", [pipeline], models_dirs=models, broker=entries)
    running = agent(settings, environ=environ)
    wait_until(lambda: "its certificate is not trusted" in running.words(), "a word about it")
    mend = "give broker.url a name" if case == "other host" else "see broker.ca_file"
    assert mend in running.words()
    assert running.stop() == 0


def test_the_page_comes_back_from_a_certificate_that_was_being_replaced(
    tls: TlsBroker, tmp_path: Path
) -> None:
    """A file that was half written when the broker was restarted ended its reader for good."""
    relay, authority = Relay(tls.port), tmp_path / "authority.pem"
    shutil.copy(tls.authority.cert_file, authority)
    settings = tls.settings(tls.client) | {"url": relay.url.replace("mqtt", "mqtts")}
    told: list[str] = []
    reader = Reader(
        Broker(**{**settings, "ca_file": str(authority)}),  # type: ignore[arg-type]
        ["edge/#"],
        lambda _message: None,
        lambda problem, _away: told.append(problem),
    )
    wait_until(lambda: told == [""], "a connection")
    authority.write_text("")
    relay.cut()
    wait_until(lambda: "holds no certificate in PEM form" in told[-1], "a word about it")
    shutil.copy(tls.authority.cert_file, authority)
    wait_until(lambda: told[-1] == "", "the next connection")
    reader.close()
    relay.shut()


@pytest.mark.parametrize(
    ("key", "content", "words"),
    [
        ("ca_file", None, "No such file or directory"),
        ("ca_file", "no certificate", "holds no certificate in PEM form"),
        ("cert_file", "no certificate", "not a certificate and its key"),
        ("key_file", None, "No such file or directory"),
    ],
)
def test_certificates_that_cannot_be_used_end_the_run(
    tls: TlsBroker,
    pipeline: dict[str, object],
    tmp_path: Path,
    key: str,
    content: str | None,
    words: str,
) -> None:
    """A file that is missing or is not what it should be: exit 2 and a line that names its key."""
    broken = tmp_path / "broken.pem"
    if content is not None:
        broken.write_text(content)
    entries = {**tls.settings(tls.client), key: str(broken)}
    config = tmp_path / "config.toml"
    config.write_text(agent_settings("box", "", [pipeline], broker=entries))
    done = run_cli("run", "--config", str(config))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"broker.{key}: {broken}" in done.stderr
    assert words in done.stderr


# Passwords and access lists


def write_passwords(file: Path, **users: str) -> None:
    """Write a password file as the broker reads it."""
    file.write_text("")
    for name, password in users.items():
        command = ["mosquitto_passwd", "-b", str(file), name, password]
        subprocess.run(command, check=True, capture_output=True)


@dataclass(frozen=True)
class Guarded:
    """A broker that asks for a password, with a door without for the listener."""

    broker: Mosquitto
    port: int
    passwords: Path

    def change(self, **users: str) -> None:
        """Give other passwords, without a restart."""
        write_passwords(self.passwords, **users)
        assert self.broker.process is not None
        self.broker.process.send_signal(signal.SIGHUP)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Start a broker for a user `box`, who may say nothing of models."""
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed")
    passwords, rights = tmp_path / "passwords", tmp_path / "rights"
    write_passwords(passwords, box="p@ss:word")
    rights.write_text(f"user box\ntopic readwrite edge/#\ntopic deny {D}/model/#\n")
    port, guarded_port = free_port(), free_port()
    broker = Mosquitto(
        tmp_path / "broker",
        f"user {getpass.getuser()}\nper_listener_settings true\n"
        f"listener {port} 127.0.0.1\nallow_anonymous true\n"
        f"listener {guarded_port} 127.0.0.1\nallow_anonymous false\n"
        f"password_file {passwords}\nacl_file {rights}\n",
        port=port,
    )
    yield Guarded(broker, guarded_port, passwords)
    broker.stop()


@pytest.mark.parametrize("place", ["url", "settings", "environment", "credential"])
def test_a_password_is_taken_from_where_it_stands(
    guarded: Guarded,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
    tmp_path: Path,
    place: str,
) -> None:
    """User and password may stand in the URL, the settings, the environment or a credential.

    Wherever it stands, the password does not get into the log.
    """
    url = f"mqtt://127.0.0.1:{guarded.port}"
    entries: dict[str, str] = {"username": "box"}
    environ: dict[str, str] = {}
    match place:
        case "url":
            entries, url = {}, f"mqtt://box:p%40ss%3Aword@127.0.0.1:{guarded.port}"
        case "settings":
            entries["password"] = "p@ss:word"
        case "environment":
            environ["EDGE_AGENT_BROKER__PASSWORD"] = "p@ss:word"
        case _:
            (tmp_path / "credentials").mkdir()
            (tmp_path / "credentials" / "broker.password").write_text("p@ss:word\n")
            environ["CREDENTIALS_DIRECTORY"] = str(tmp_path / "credentials")
    listener = listen(guarded.broker.port)
    settings = agent_settings("box", url, [pipeline], models_dirs=models, broker=entries)
    running = agent(settings, environ=environ)
    is_served(listener)
    assert "p@ss" not in running.words()
    assert "p%40ss" not in running.words()
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("user", "username", "password", "is_let_in"),
    [
        ("box:p%40ss%3Aword@", "edge-01", "other", True),
        ("box:mistaken@", "box", "p@ss:word", False),
        ("box@", "edge-01", "p@ss:word", False),
        ("box@", "box", "p@ss:word", True),
        ("box@", None, "p@ss:word", True),
        ("", "box", "p@ss:word", True),
    ],
)
def test_a_user_on_the_command_line_is_not_the_one_of_the_settings(
    guarded: Guarded,
    tmp_path: Path,
    user: str,
    username: str | None,
    password: str,
    is_let_in: bool,
) -> None:
    """Who named himself worked as the device of a file that was found by itself, in silence.

    A password without a user, as of the environment, and that of the same user stay.
    """
    entries = {"username": username} if username else {}
    config = tmp_path / "config.toml"
    entries["password"] = password
    config.write_text(agent_settings("box", "mqtt://localhost", [], broker=entries))
    url = f"mqtt://{user}127.0.0.1:{guarded.port}"
    said = call_cli("status", "--config", str(config), "--broker", url)
    words = "knows of no device" if is_let_in else "refused the connection: Not authorized"
    assert said.code == 1
    assert words in said.error


def test_a_wrong_password_is_tried_until_it_is_right(
    guarded: Guarded,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
) -> None:
    """The log says once that the broker refuses the connection, and no more once it accepts it."""
    listener = listen(guarded.broker.port)
    entries = {"username": "box", "password": "mistaken"}
    url = f"mqtt://127.0.0.1:{guarded.port}"
    running = agent(agent_settings("box", url, [pipeline], models_dirs=models, broker=entries))
    refused = f"broker: {url} refused the connection: Not authorized"
    wait_until(lambda: refused in running.words(), "a word about it")
    assert running.process.poll() is None
    guarded.change(box="mistaken")
    is_served(listener)
    assert running.words().count(refused) == 1
    assert running.words().count("refused the connection") == 1
    assert "mistaken" not in running.words()
    assert running.stop() == 0


class NoSirBroker(Relay):
    """Answers every CONNECT with what it is told to, and hangs up at once."""

    answer = b""

    def first_words(self, _words: bytes) -> bytes | None:
        """Say no."""
        return self.answer


@pytest.mark.parametrize(
    ("protocol", "answer", "reason"),
    [
        (5, b"\x20\x03\x00\x87\x00", "Not authorized"),
        (5, b"\x20\x03\x00\x86\x00", "Bad user name or password"),
        (4, b"\x20\x02\x00\x05", "Not authorized"),
        (4, b"\x20\x02\x00\x04", "Bad user name or password"),
    ],
)
def test_what_the_broker_answers_is_what_is_said(protocol: int, answer: bytes, reason: str) -> None:
    """The reason of CONNACK is given, not that of the hanging up behind it; and what to look at.

    Twenty times, since the two are told by another thread, one right after the other.
    """
    relay = NoSirBroker(free_port())
    relay.answer = answer
    mend = "broker.username and broker.password, or the credential broker.password"
    try:
        for user, words in (
            ("box", f" (user box); look at {mend}"),
            (None, f"; no user is given: set {mend}"),
        ):
            for _ in range(10):
                settings = Broker(url=relay.url, username=user, password=user)
                with pytest.raises(BrokerError) as said:
                    connect(settings, "box", hooks=Hooks(), protocol=protocol, session=True)
                assert str(said.value) == f"{relay.url} refused the connection: {reason}{words}"
    finally:
        relay.shut()


def test_an_access_list_that_refuses_us_shows_in_health(
    guarded: Guarded,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, object],
) -> None:
    """Where the broker refuses some of what is published, health is `degraded` and says why."""
    listener = listen(guarded.broker.port)
    entries = {"username": "box", "password": "p@ss:word"}
    url = f"mqtt://127.0.0.1:{guarded.port}"
    running = agent(agent_settings("box", url, [pipeline], models_dirs=models, broker=entries))
    health = listener.wait_state(f"{D}/health", state="degraded")
    (said,) = (why for why in health["why"] if "refuses some of the messages" in why)
    assert f"the first on {D}/" in said
    assert "see its access list" in running.words()
    is_served(listener)
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("UNEXPECTED_MESSAGE", "unexpected message; is this its port for TLS?"),
        ("WRONG_VERSION_NUMBER", "wrong version number; is this its port for TLS?"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "tlsv1 alert protocol version; it requires another TLS"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "it may want a client certificate: set broker.cert"),
    ],
)
def test_a_client_certificate_is_asked_for_where_the_broker_may_want_one(
    reason: str, hint: str
) -> None:
    """A plain port had been said to want one."""
    problem = ssl.SSLError()
    problem.reason = reason
    assert hint in explain_unreachable(problem, Broker(url="mqtts://box"))


def test_a_broker_behind_a_route_that_discards_is_named_in_plain_words() -> None:
    """The kernel calls that an invalid argument, and so did the agent."""
    problem = OSError(errno.EINVAL, "Invalid argument")
    assert explain_unreachable(problem, Broker(url="mqtt://box")) == "no route leads there"
