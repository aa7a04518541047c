"""A network that was edited serves on no engine past its golden outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    run_cli,
    wait_until,
)

GREY = 200


def contradicted(folder: Path, light: float) -> Path:
    """Make a model whose golden file wants another number of a grey picture than it gives."""
    brightness(folder)
    return want(folder, light)


def want(folder: Path, light: float) -> Path:
    """Write the golden file of a model, or another one."""
    arrays: dict[str, Any] = {
        "input/picture": np.full((1, 3, 16, 16), GREY, np.float32),
        "output/light": np.array([light], np.float32),
    }
    np.savez(folder / "golden.npz", **arrays)
    return folder


def settings(folder: Path, broker: Mosquitto, engine: str, **more: Any) -> str:
    """Have a device look at grey pictures for ever."""
    source = write_pictures(folder / "pictures", [plain(GREY)])
    pipeline = {"name": "p", "source": f"{source}?loop=1&rate=50", "model": "light"}
    tables = {"engine": engine, "models_dirs": [str(folder / "models")], **more}
    return agent_settings("box", broker.url, [pipeline], **tables)


@pytest.mark.parametrize("engine", ["auto", "onnxruntime", "openvino"])
def test_an_edited_network_never_serves_past_its_golden_outputs(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., Any],
    engine: str,
) -> None:
    """At the first start and at the next two, one result leaves at most; health says why."""
    contradicted(tmp_path / "models" / "light", 44)
    listener = listen(broker.port)
    process: AgentProcess = agent(settings(tmp_path, broker, engine), "agent")
    log = tmp_path / "agent" / "agent.log"

    heard = 0

    def refused() -> bool:
        later = listener.on("edge/box/health")[heard:]
        return any(one["state"] != "ok" and "golden: " in str(one["why"]) for one in later)

    for number in range(3):
        if number:
            process.restart()
        wait_until(refused, f"health to say why; the log says\n{log.read_text()}")
        assert process.stop() == 0
        heard = len(listener.on("edge/box/health"))
    results = listener.on("edge/box/result/p")
    sessions = [one["session"] for one in results]
    assert len(sessions) == len(set(sessions)), results


def test_golden_outputs_that_are_given_are_compared_once(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener], agent: Callable[..., Any]
) -> None:
    """Results go on leaving, and health is well."""
    contradicted(tmp_path / "models" / "light", GREY)
    listener = listen(broker.port)
    agent(settings(tmp_path, broker, "auto"), "agent")
    wait_until(lambda: len(listener.on("edge/box/result/p")) > 20, "results")
    listener.wait_state("edge/box/health", state="ok")


def test_another_golden_file_is_compared_anew(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener], agent: Callable[..., Any]
) -> None:
    """What another one had found decided: a wrong one let pass, a mended one refused."""
    model = contradicted(tmp_path / "models" / "light", GREY)
    listener = listen(broker.port)
    running: AgentProcess = agent(settings(tmp_path, broker, "auto"), "agent")
    wait_until(lambda: len(listener.on("edge/box/result/p")) > 20, "results")
    wait_until((tmp_path / "agent" / "state" / "engines.json").exists, "a verdict")
    assert running.stop() == 0
    want(model, 44)
    listener.heard.clear()
    running.restart()
    listener.wait_why("golden: ")
    assert running.stop() == 0
    assert len(listener.on("edge/box/result/p")) <= 1
    want(model, GREY)
    listener.heard.clear()
    running.restart()
    wait_until(lambda: len(listener.on("edge/box/result/p")) > 20, "results again")
    listener.wait_state("edge/box/health", state="ok")


def test_what_is_added_contradicts_its_golden_outputs(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener], agent: Callable[..., Any]
) -> None:
    """It is refused, and what served goes on."""
    contradicted(tmp_path / "models" / "light", GREY)
    listener = listen(broker.port)
    more = {"trust": {"allow_unsigned": True}}
    agent(settings(tmp_path, broker, "auto", **more), "agent")
    listener.wait_for(lambda heard: len(heard) > 5, "results")
    new = contradicted(tmp_path / "new", 44)
    manifest = new / "model.toml"
    manifest.write_text(manifest.read_text().replace('version = "1"', 'version = "2"'))
    config = str(tmp_path / "agent" / "config.toml")
    done = run_cli("add", str(new), "--config", config)
    assert done.returncode != 0
    assert "golden" in done.stderr + done.stdout


@pytest.mark.parametrize("engine", ["auto", "onnxruntime", "openvino"])
def test_a_model_that_was_refused_stays_silent(
    engine: str,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """What had left before the first start knew ends with that; a restart publishes nothing."""
    contradicted(tmp_path / "models" / "light", 44)
    heard = listen(broker.port, "edge/box/#")
    running = agent(settings(tmp_path, broker, engine))
    heard.wait_why("golden: ")
    wait_until(
        lambda: heard.wait_state("edge/box/model/light").get("live") is not None,
        "the model's topic",
    )
    before = len(heard.on("edge/box/result/p"))
    reports = len(heard.on("edge/box/health"))
    heard.wait_for(lambda _: len(heard.on("edge/box/health")) >= reports + 5, "further reports")
    assert len(heard.on("edge/box/result/p")) == before
    assert heard.on("edge/box/health")[-1]["state"] == "degraded"
    assert running.stop() == 0

    running.restart()
    reports = len(heard.on("edge/box/health"))
    heard.wait_for(lambda _: len(heard.on("edge/box/health")) >= reports + 5, "further reports")
    heard.wait_why("golden: ")
    assert len(heard.on("edge/box/result/p")) == before
    assert "found sound" not in running.words()


def test_an_edited_network_is_not_added(broker: Mosquitto, tmp_path: Path) -> None:
    """By hand it is refused at once, with the key that moves the margin."""
    config = tmp_path / "config.toml"
    config.write_text(settings(tmp_path, broker, "auto"))
    (tmp_path / "models").mkdir()
    added = run_cli("add", str(contradicted(tmp_path / "light", 44)), "--config", str(config))
    assert added.returncode == 1
    assert "golden: " in added.stderr
    assert "[trial] tolerance" in added.stderr
