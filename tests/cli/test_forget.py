"""What a device has left on a broker is cleared when it goes, all of it."""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.cli.forgetting import forget_installed
from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    free_port,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., str]:
    """Give settings with a pipeline, a model, and Home Assistant."""
    pictures = write_pictures(tmp_path / "in", [plain(i) for i in range(3)])
    brightness(tmp_path / "models" / "light")
    pipeline = {"name": "p", "source": pictures, "model": "light"}

    def make(device: str, url: str, **broker: str) -> str:
        return agent_settings(
            device,
            url,
            [pipeline],
            models_dirs=[str(tmp_path / "models")],
            homeassistant={"enabled": True},
            broker=broker,
        )

    return make


def live_and_die(listener: Listener, running: AgentProcess, device: str) -> None:
    """Let a device publish all that it has, and stop it."""
    listener.wait_state(f"edge/{device}/source/p", state="ended")
    listener.wait_for(
        lambda heard: any(h.topic.startswith("homeassistant/") for h in heard), "its discovery"
    )
    listener.wait_for(
        lambda heard: any(h.topic == f"edge/{device}/model/light" for h in heard), "its model"
    )
    assert running.stop() == 0


def kept(port: int) -> set[str]:
    """Give the topics that hold something."""
    listener = Listener(port, "#")
    listener.catch_up()
    found = {heard.topic for heard in listener.heard if heard.retained and heard.payload}
    listener.close()
    return found


def test_models_forget_leaves_nothing_of_a_scrapped_box(
    broker: Mosquitto, agent: Agents, settings: Callable[..., str]
) -> None:
    """Home Assistant's discovery goes, too; that of another's with the same name stays."""
    listener = Listener(broker.port, "#")
    live_and_die(listener, agent(settings("box.7", broker.url)), "box.7")
    (discovery,) = (topic for topic in kept(broker.port) if topic.startswith("homeassistant/"))
    other = discovery.replace("homeassistant/", "staging/")
    says = {"availability": [{"topic": "staging/box.7/status"}]}
    listener.publish(other, json.dumps(says).encode(), retain=True)
    listener.catch_up()
    listener.close()
    done = call_cli("models", "--forget", "box.7", "--broker", broker.url)
    assert done.code == 0, done.error
    assert "retained topics cleared" in done.out
    assert kept(broker.port) == {other}


def test_a_box_with_a_new_card_gets_rid_of_what_it_had_before(
    tmp_path: Path, broker: Mosquitto, agent: Agents, settings: Callable[..., str]
) -> None:
    """Its present pipelines and models stay, and its discovery."""
    first, second = settings("box", broker.url), settings("box", broker.url).replace('"p"', '"q"')
    listener = Listener(broker.port, "#")
    live_and_die(listener, agent(first), "box")
    shutil.move(tmp_path / "models" / "light", tmp_path / "models" / "lamp")
    manifest = tmp_path / "models" / "lamp" / "model.toml"
    manifest.write_text(manifest.read_text().replace('"light"', '"lamp"'))
    running = agent(second.replace('"light"', '"lamp"').replace('"state"', '"card"'))
    listener.wait_state("edge/box/source/q", state="ended")
    listener.wait_for(lambda heard: any(h.topic.endswith("model/lamp") for h in heard), "a model")
    listener.catch_up()
    by = ("--broker", broker.url)
    shown = call_cli("models", *by).out
    assert "  light: left over, `models --forget box` clears it" in shown
    assert "  lamp: live 1" in shown
    before = kept(broker.port)
    done = call_cli("models", "--forget", "box", *by)
    assert (
        done.out == "box: 3 retained topics of pipelines and models that it does not have cleared\n"
    )
    gone = {"edge/box/source/p", "edge/box/pipeline/p", "edge/box/model/light"}
    assert kept(broker.port) == before - gone
    again = call_cli("models", "--forget", "box", *by)
    assert (again.code, "it would say it all again" in again.error) == (1, True)
    assert running.stop() == 0
    listener.close()


def test_uninstall_forget_needs_no_right_to_read(
    tmp_path: Path, agent: Agents, settings: Callable[..., str]
) -> None:
    """The service's own user and password clear what it may publish, though it may not read it.

    Also of a model that no pipeline names; and it says where the list of that is missing.
    """
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed")
    passwords, rights = tmp_path / "passwords", tmp_path / "rights"
    passwords.write_text("")
    command = ["mosquitto_passwd", "-b", str(passwords), "box", "secret"]
    subprocess.run(command, check=True, capture_output=True)
    rights.write_text(
        "pattern write edge/%u/#\npattern read edge/%u/in/#\n"
        "pattern write homeassistant/device/edge-agent_%u/config\n"
    )
    port, guarded = free_port(), free_port()
    broker = Mosquitto(
        tmp_path / "broker",
        f"user {getpass.getuser()}\nper_listener_settings true\n"
        f"listener {port} 127.0.0.1\nallow_anonymous true\n"
        f"listener {guarded} 127.0.0.1\nallow_anonymous false\n"
        f"password_file {passwords}\nacl_file {rights}\n",
        port=port,
    )
    (tmp_path / "credstore").mkdir()
    (tmp_path / "credstore" / "broker.password").write_text("secret\n")
    brightness(tmp_path / "models" / "asked")
    text = settings("box", f"mqtt://127.0.0.1:{guarded}", username="box")
    text += '[infer]\nmodels = ["asked"]\n'
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path / "credstore")}
    listener = Listener(port, "#")
    running = agent(text, environ=environ)
    listener.wait_for(lambda heard: any(h.topic == "edge/box/model/asked" for h in heard), "asked")
    live_and_die(listener, running, "box")
    listener.close()
    assert kept(port) >= {"edge/box/status", "homeassistant/device/edge-agent_box/config"}
    said = forget_installed(running.config, environ)
    assert said == f"box: its retained topics are cleared on mqtt://127.0.0.1:{guarded}"
    assert kept(port) == set()
    other = tmp_path / "other.toml"
    other.write_text(text)
    ledger = tmp_path / "state" / "announced.json"
    assert forget_installed(other, environ) == (
        f"{said}; there may be more: {ledger}, which lists them, is not there, or is damaged"
    )
    broker.stop()
