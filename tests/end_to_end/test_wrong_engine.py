"""An engine that computes a model wrongly never has a result published, whatever it starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.load import load as load_settings
from edge_agent.models.manifest import load
from edge_agent.models.store.store import Store
from edge_agent.serving.choice import DeviceEngines, match_profile
from edge_agent.serving.loader import ModelLoader
from tests.helpers.small_models import plain, wrapping, write_pictures
from tests.helpers.support import AgentProcess, Heard, Listener, Mosquitto, agent_settings

RIGHT, WRONG = 44, 255
"""Of a bright picture: OpenVINO lets the byte stop where it should wrap."""


@pytest.fixture
def settings(broker: Mosquitto, tmp_path: Path) -> str:
    """Insist on OpenVINO, for a model that it computes wrongly in bright pictures."""
    wrapping(tmp_path / "models" / "wrapping")
    source = write_pictures(tmp_path / "p", [plain(200, 16, 16)] * 4)
    pipeline = {"name": "p", "source": f"{source}?loop=1&rate=50", "model": "wrapping"}
    more: dict[str, Any] = {"engine": "openvino", "models_dirs": [str(tmp_path / "models")]}
    return agent_settings("box", broker.url, [pipeline], **more)


@pytest.fixture
def agents(tmp_path: Path, settings: str) -> Iterator[Callable[[], AgentProcess]]:
    """Start agents; each ends in order at last."""
    started: list[AgentProcess] = []

    def start() -> AgentProcess:
        started.append(AgentProcess(tmp_path / "agent", settings))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            assert each.stop() == 0


def refused(listener: Listener) -> dict[str, Any]:
    """Wait until the agent that runs says in its health that the model is not loaded, and why."""

    def look(heard: list[Heard]) -> dict[str, Any] | None:
        said = [h.json for h in heard if h.topic == "edge/box/health" and not h.retained]
        return next((h for h in said if "computes it wrongly here" in str(h["why"])), None)

    found: dict[str, Any] = listener.wait_for(look, "health to say so")
    return found


def values(listener: Listener) -> set[float]:
    """Return all numbers that were published."""
    return {one["values"]["light"] for one in listener.on("edge/box/result/p")}


def test_a_first_start_publishes_what_is_right_and_then_refuses(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agents: Callable[[], AgentProcess],
) -> None:
    """The next start refuses at once, and says so too."""
    listener = listen(broker.port)
    first = agents()
    refused(listener)
    assert values(listener) == {RIGHT}
    assert "openvino:CPU computes it wrongly" in first.words()
    assert first.stop() == 0
    again = listen(broker.port)
    agents()
    refused(again)
    assert values(again) <= {RIGHT}


def test_a_start_from_a_form_that_nothing_was_compared_with(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agents: Callable[[], AgentProcess],
    settings: str,
    tmp_path: Path,
) -> None:
    """As when the run before ended as soon as it had made one."""
    config = tmp_path / "agent" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(settings)
    read = load_settings(config)
    match, facts = match_profile(read)
    read.state.mkdir(parents=True, exist_ok=True)
    loader = ModelLoader(
        DeviceEngines(match.profile, facts, read.engine, state=read.state), Store(read.state)
    )
    folder = load(tmp_path / "models" / "wrapping")
    assert loader.prepared_form(folder, "picture", make=True) is not None
    listener = listen(broker.port)
    agents()
    refused(listener)
    assert values(listener) == {RIGHT}
