"""Settings read again (SIGHUP): the broker, the metrics port, and files that are not whole."""

from __future__ import annotations

import json
import signal
import socket
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.health.test_prometheus import scrape
from tests.helpers.small_models import brightness, plain, write_clip, write_pictures
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    free_port,
    run_cli,
    wait_until,
)
from tests.mqtt.test_access import Guarded, TlsBroker, guarded, tls

__all__ = ["guarded", "tls"]

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"


def reload(running: AgentProcess, **tables: Any) -> None:
    """Change settings, table by table and key by key, and have them read again."""
    settings = tomllib.loads(running.config.read_text())
    for key, value in tables.items():
        settings[key] = settings[key] | value if isinstance(value, dict) else value
    running.config.write_text(tomli_w.dumps(settings))
    running.signal(signal.SIGHUP)


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Make the one model that these tests need; as `models_dirs`."""
    brightness(tmp_path / "models" / "light")
    return [str(tmp_path / "models")]


@pytest.fixture
def pipeline(tmp_path: Path) -> dict[str, Any]:
    """Give a pipeline that goes on for ever."""
    path = write_clip(tmp_path / "clip.avi", [plain(100 + i) for i in range(25)])
    return {"name": "p", "source": f"file:{path}?loop=1", "model": "light"}


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Mosquitto]:
    """Run a second broker."""
    broker = Mosquitto(tmp_path / "other")
    yield broker
    broker.stop()


def wait_results(listener: Listener) -> None:
    """Wait until results come, from now on."""
    before = len(listener.on(f"{D}/result/p"))
    listener.wait_for(lambda _: len(listener.on(f"{D}/result/p")) > before, "results")


# What comes after the start


def test_what_a_reload_brings_is_no_first_result_of_the_start(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    pipeline: dict[str, Any],
    models: list[str],
) -> None:
    """An agent that starts with nothing to do measures no start, however late it gets something."""
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [], models_dirs=models))
    listener.wait_for(lambda heard: any(h.topic == f"{D}/health" for h in heard), "health")
    reload(running, pipelines=[pipeline])
    wait_results(listener)
    # A look at it comes before each health message.
    before = len(listener.on(f"{D}/health"))
    listener.wait_for(lambda _: len(listener.on(f"{D}/health")) > before + 1, "health")
    assert running.stop() == 0
    assert "settings read again" in running.words()
    assert "first result" not in running.words()
    assert not any("cold_start" in said for said in listener.on(f"{D}/model/light"))


def test_a_changed_pipeline_keeps_its_place(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    pipeline: dict[str, Any],
    models: list[str],
) -> None:
    """Whoever changed one from a list, as on the page, saw it jump to the end."""
    listener = listen(broker.port)
    second = {**pipeline, "name": "q"}
    running = agent(agent_settings("box", broker.url, [pipeline, second], models_dirs=models))
    wait_results(listener)
    reload(running, pipelines=[{**pipeline, "qos": 1}, second])

    def listed(_: Any) -> list[str] | None:
        told = (listener.last(f"{D}/info") or {}).get("pipelines", [])
        return [each["name"] for each in told] if any(each["qos"] for each in told) else None

    # While one is being replaced, the other is alone in front of it.
    listener.wait_for(lambda told: listed(told) == ["p", "q"], "the change, in its place")


def test_a_start_is_measured_once(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    pipeline: dict[str, Any],
    models: list[str],
) -> None:
    """The first result of the start is logged; that of a pipeline that a reload changes is not."""
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    wait_until(lambda: "first result" in running.words(), "the line")
    reload(running, pipelines=[{**pipeline, "priority": 1}])
    wait_until(lambda: "settings read again" in running.words(), "the reload")
    wait_results(listener)
    assert running.stop() == 0
    assert running.words().count("first result") == 1


# The broker


def test_a_reload_right_after_the_first_result_lets_the_rest_go_on(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    tmp_path: Path,
) -> None:
    """The start is not over yet, and does not begin anew for what a reload can do."""
    pictures = write_pictures(tmp_path / "in", [plain(i % 200) for i in range(60)])
    stays = {"name": "p", "source": f"{pictures}?rate=60", "model": "light"}
    comes = stays | {"name": "q"}
    heard = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [stays], models_dirs=models))
    heard.wait_for(lambda _: heard.on(f"{D}/result/p"), "the first result")
    reload(running, pipelines=[stays, comes])
    for name in ("p", "q"):
        heard.wait_state(f"{D}/source/{name}", state="ended")
        assert [each["seq"] for each in heard.on(f"{D}/result/{name}")] == list(range(60))
    assert "settings read again: 2 pipelines" in running.words()
    assert "restarting" not in running.words()


def test_another_broker_is_moved_to_and_nothing_promised_is_lost(
    broker: Mosquitto,
    other: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    tmp_path: Path,
) -> None:
    """A new `broker.url` holds at once: goodbye to the one, hello and all state to the other.

    Of the results that were promised (QoS 1), each arrives at one of them at least.
    """
    pictures = write_pictures(tmp_path / "in", [plain(i % 200) for i in range(120)])
    promised = {"name": "p", "source": f"{pictures}?rate=60", "model": "light", "qos": 1}
    first, second = listen(broker.port), listen(other.port)
    running = agent(agent_settings("box", broker.url, [promised], models_dirs=models))
    first.wait_for(lambda _: len(first.on(f"{D}/result/p")) > 20, "some results")
    reload(running, broker={"url": other.url})
    second.wait_state(f"{D}/status", state="online")
    first.wait_state(f"{D}/status", state="offline", reason="stopped")
    second.wait_state(f"{D}/source/p", state="ended")
    second.wait_for(lambda _: second.last(f"{D}/info"), "what the device is")
    second.wait_for(lambda _: second.last(f"{D}/model/light"), "what its model is")
    second.publish(f"{D}/in/command/ping", b'{"id": "hello"}')
    second.wait_state(f"{D}/reply/hello", ok=True)

    def arrived() -> set[int]:
        return {each["seq"] for ear in (first, second) for each in ear.on(f"{D}/result/p")}

    second.wait_for(lambda _: arrived() == set(range(120)), "all that was promised")
    assert "takes effect at the next start" not in running.words()
    assert running.stop() == 0


def test_a_password_that_is_mended_counts_at_once(
    guarded: Guarded,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
) -> None:
    """A broker that has refused us is tried again with the new password, without a pause."""
    listener = listen(guarded.broker.port)
    entries = {"username": "box", "password": "mistaken"}
    url = f"mqtt://127.0.0.1:{guarded.port}"
    running = agent(agent_settings("box", url, [pipeline], models_dirs=models, broker=entries))
    wait_until(lambda: running.words().count("refused the connection") == 1, "a word about it")
    wait_until(lambda: "is live" in running.words(), "the rest of the agent")
    reload(running, broker={"password": "wrong again"})
    # The same refusal of another password is said anew.
    wait_until(
        lambda: running.words().count("refused the connection") == 2, "another word about it"
    )
    reload(running, broker={"password": "p@ss:word"})
    listener.wait_state(f"{D}/status", state="online")
    wait_results(listener)
    assert running.stop() == 0


def test_a_plain_connection_becomes_one_with_certificates(
    tls: TlsBroker,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
) -> None:
    """TLS and certificates may be brought in by a reload, at an agent that began without."""
    listener = listen(tls.broker.port)
    running = agent(agent_settings("box", tls.broker.url, [pipeline], models_dirs=models))
    listener.wait_state(f"{D}/model/light", live="1")
    reload(running, broker=tls.settings(None))
    mend = "; it may want a client certificate: set broker.cert_file and broker.key_file"
    wait_until(lambda: mend in running.words(), "the mend")
    reload(running, broker=tls.settings(tls.client))
    listener.wait_state(f"{D}/status", state="online", reason="reconnected")
    said = f"connected to mqtts://127.0.0.1:{tls.port}"
    wait_until(lambda: said in running.words(), "a word about it")
    wait_results(listener)
    assert running.stop() == 0


def test_a_broker_that_cannot_be_used_changes_nothing(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Certificates that are none, on a reload: the log names them, and the connection stays."""
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    listener.wait_state(f"{D}/model/light", live="1")
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    reload(running, broker={"url": "mqtts://127.0.0.1:1", "ca_file": str(broken)})
    said = f"the settings stay as they were: broker.ca_file: {broken}: holds no certificate"
    wait_until(lambda: said in running.words(), "a word about it")
    wait_results(listener)
    assert [status["state"] for status in listener.on(f"{D}/status")] == ["online"]
    assert running.stop() == 0


def test_the_names_of_the_device_wait_for_a_start(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
) -> None:
    """A changed `topic_root` is said to wait, also where a new url is taken up."""
    listener = listen(broker.port, "#")
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    listener.wait_state(f"{D}/model/light", live="1")
    reload(running, broker={"topic_root": "rand", "url": f"mqtt://localhost:{broker.port}"})
    listener.wait_state(f"{D}/status", state="online", reason="reconnected")
    words = "broker.topic_root: changed, takes effect at the next start"
    assert words in running.words()
    wait_results(listener)
    assert not any(heard.topic.startswith("rand/") for heard in listener.heard)
    assert running.stop() == 0
    running.restart()
    listener.wait_state("rand/box/status", state="online")


# What is wrong


def test_health_says_that_other_settings_run_than_those_of_the_file(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
) -> None:
    """A reload with wrong settings is degraded until they are mended, or put back as they were."""
    listener = listen(broker.port)
    settings = agent_settings("box", broker.url, [pipeline], models_dirs=models)
    running = agent(settings)
    listener.wait_state(f"{D}/health", state="ok")
    right = running.config.read_text()
    for mended in (right, tomli_w.dumps(tomllib.loads(right) | {"groups": ["lab"]})):
        del listener.heard[:]
        reload(running, health={"interval_s": "often"})
        health = listener.wait_why("settings: changed, but not taken over: ")
        assert health["state"] == "degraded"
        assert "health.interval_s" in health["why"][0]
        running.config.write_text(mended)
        if mended != right:
            running.signal(signal.SIGHUP)
        listener.wait_state(f"{D}/health", state="ok")
    wait_results(listener)


# Metrics


def test_the_port_for_metrics_opens_moves_and_closes(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
) -> None:
    """A changed `metrics_port` holds at once; one that is taken is said, and the old one stays."""
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    listener.wait_state(f"{D}/model/light", live="1")
    port, later = free_port(), free_port()

    def answers(on: int) -> Callable[[], bool]:
        def look() -> bool:
            try:
                return bool(scrape(on))
            except OSError:
                return False

        return look

    reload(running, health={"metrics_port": port})
    wait_until(answers(port), "the port to open")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        reload(running, health={"metrics_port": taken.getsockname()[1]})
        listener.wait_why(f"health.metrics_port: {taken.getsockname()[1]}: Address already in use")
        assert answers(port)()
    reload(running, health={"metrics_port": later})
    wait_until(answers(later), "the port to move")
    wait_until(lambda: not answers(port)(), "the old one to be closed")
    listener.wait_state(f"{D}/health", state="ok")
    reload(running, health={"metrics_port": 0})
    wait_until(lambda: not answers(later)(), "the port to close")
    assert running.stop() == 0


# Files that are not whole


def test_shares_belong_to_the_pipeline_and_change_by_a_reload(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Two pipelines split their frames between the same versions, each as its settings say."""
    for version in ("3", "4", "6"):
        brightness(tmp_path / "models" / f"light-{version}", version)
    pictures = write_pictures(tmp_path / "in", [plain(i) for i in range(10)]) + "?loop=1"
    routes = {"a": "light@3:90,light@4:10", "b": "light@3:1,light@4:1"}
    pipelines = [{"name": n, "source": pictures, "model": m, "rate": 40} for n, m in routes.items()]
    listener = listen(broker.port)
    settings = agent_settings("box", broker.url, pipelines, models_dirs=[str(tmp_path / "models")])
    running = agent(settings)

    def shares(name: str, after: int, number: int) -> Counter[str]:
        def look(_: object) -> list[dict[str, Any]] | None:
            later = [r for r in listener.on(f"{D}/result/{name}") if r["seq"] > after]
            return later[:number] if len(later) >= number else None

        results: list[dict[str, Any]] = listener.wait_for(look, f"results of {name}")
        return Counter(result["model"] for result in results)

    assert shares("a", -1, 20) == {"light@3": 18, "light@4": 2}
    assert shares("b", -1, 20) == {"light@3": 10, "light@4": 10}
    routes["a"] = "light@3:1,light@4:1,light@6:2"
    pipelines[0]["model"] = routes["a"]
    reload(running, pipelines=pipelines)
    after = listener.wait_for(
        lambda _: next((r for r in listener.on(f"{D}/result/a") if r["model"] == "light@6"), None),
        "a result of the third version",
    )["seq"]
    assert shares("a", after, 20) == {"light@3": 5, "light@4": 5, "light@6": 10}
    last = listener.on(f"{D}/result/b")[-1]["seq"]
    assert shares("b", last, 20) == {"light@3": 10, "light@4": 10}
    pipelines[0]["model"] = "light@3:10,light@4:90"
    reload(running, pipelines=pipelines)
    wait_until(lambda: running.words().count("settings read again") == 2, "the second reload")
    last = listener.on(f"{D}/result/a")[-1]["seq"] + 5
    assert shares("a", last, 20) == {"light@3": 2, "light@4": 18}
    assert running.stop() == 0


def test_what_was_set_holds_over_a_reload(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
) -> None:
    """Until the restart, or until the settings say something else of the very same."""
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))

    def ask(number: int, **what: float) -> dict[str, Any]:
        listener.publish(
            f"{D}/in/command/set",
            json.dumps({"id": f"s{number}", "pipeline": "p", **what}).encode(),
        )
        topic = f"{D}/reply/s{number}"
        reply: dict[str, Any] = listener.wait_for(lambda _: listener.last(topic), topic)["result"]
        return reply

    def read_again(number: int, **change: Any) -> None:
        pipeline.update(change)
        reload(running, pipelines=[pipeline])
        wait_until(lambda: running.words().count("settings read again") == number, "a reload")

    wait_results(listener)
    assert ask(1, rate=7.0)["rate"] == 7.0
    read_again(1, roi=[0, 0, 8, 8])
    result = ask(2, threshold=100.0)
    assert (result["threshold"], result["rate"]) == (100.0, 7.0)
    read_again(2, rate=9.0)
    assert ask(3, threshold=101.0)["rate"] == 9.0
    read_again(3, roi=[0, 0, 16, 16])
    result = ask(4, rate=8.0)
    assert (result["threshold"], result["rate"]) == (101.0, 8.0)
    assert running.stop() == 0


def test_a_reload_of_many_pipelines_is_no_hang_for_the_watchdog(
    broker: Mosquitto,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
    tmp_path: Path,
) -> None:
    """On a slow disk each takes seconds for its last events: systemd ended the agent amid them."""
    many = [{**pipeline, "name": name} for name in ("a", "b", "c")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        # Fed at the start, and then not for a long time.
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3600000000"}
        running = agent(
            agent_settings("box", broker.url, many, models_dirs=models), environ=environ
        )
        while manager.recv(4096) != b"WATCHDOG=1":
            pass
        reload(running, pipelines=[{**many[0], "rate": 5}, {**many[1], "threshold": 0.2}])
        while not manager.recv(4096).startswith(b"RELOADING=1"):
            pass
        told = list(iter(lambda: manager.recv(4096)[:10], b"READY=1\nST"))
        assert told == [b"WATCHDOG=1"] * 3
    assert running.stop() == 0


def test_settings_without_pipelines_are_warned_of(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    pipeline: dict[str, Any],
) -> None:
    """A file that has lost its pipelines is named in a warning, with how many are gone."""
    listener = listen(broker.port)
    pipelines = [pipeline, {**pipeline, "name": "q"}]
    running = agent(agent_settings("box", broker.url, pipelines, models_dirs=models))
    listener.wait_state(f"{D}/model/light", live="1")
    whole = running.config.read_text()
    running.config.write_text(whole[: whole.index("[[pipelines]]")])
    running.signal(signal.SIGHUP)
    said = f"WARNING {running.config}: names no pipeline any more, so all 2 are gone; is it whole?"
    wait_until(lambda: said in running.words(), "a warning")
    wait_until(lambda: "settings read again: 0 pipelines" in running.words(), "the end of it")
    running.config.write_text(whole)
    running.signal(signal.SIGHUP)
    wait_results(listener)
    assert running.stop() == 0


def test_check_notes_a_file_with_nothing_in_it(broker: Mosquitto, tmp_path: Path) -> None:
    """`check` names settings of 0 bytes, which a torn write leaves, and those without pipelines."""
    config = tmp_path / "config.toml"
    config.write_bytes(b"")
    environ = {"EDGE_AGENT_BROKER__URL": broker.url, "EDGE_AGENT_STATE_DIR": str(tmp_path / "s")}
    done = run_cli("check", "--config", str(config), environ=environ)
    assert f"note  settings: {config} is empty; is it whole?" in done.stdout
    assert f"note  pipelines: {config} names none" in done.stdout
    config.write_text("groups = []\n")
    done = run_cli("check", "--config", str(config), environ=environ)
    assert "is empty" not in done.stdout
    assert f"note  pipelines: {config} names none" in done.stdout
