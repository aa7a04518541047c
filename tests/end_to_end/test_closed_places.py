"""Folders that the service's user may not enter any more: restored by root, or a server is away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.stranger import STRANGER, open_to_strangers, stranger
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    wait_until,
)

Start = Callable[..., AgentProcess]


@pytest.fixture
def start(tmp_path: Path, broker: Mosquitto, agent: Callable[..., AgentProcess]) -> Start:
    """Give what starts an agent of another user with a pipeline for each model of two libraries."""
    pictures = write_pictures(tmp_path / "pictures", [plain(90)])
    state = tmp_path / "state"

    def start(*models: str) -> AgentProcess:
        state.mkdir()
        open_to_strangers(tmp_path)
        if os.geteuid() == 0:
            os.chown(state, STRANGER, STRANGER)
        settings = agent_settings(
            "box",
            broker.url,
            [
                {"name": name, "source": f"{pictures}?loop=1", "model": name, "rate": 10}
                for name in models
            ],
            models_dirs=[str(tmp_path / "a"), str(tmp_path / "b")],
            state_dir=str(state),
            trust={"allow_unsigned": True},
        )
        environ = {"HOME": str(state)}
        return agent(settings, environ=environ, prefix=stranger(reading=False))

    return start


@pytest.mark.parametrize("closed", ["a/other", "a"])
def test_a_model_that_can_no_longer_be_looked_at_costs_itself_only(
    start: Start,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    tmp_path: Path,
    closed: str,
) -> None:
    """What was known of its files kept every new model from being loaded."""
    brightness(tmp_path / "a" / "other")
    brightness(tmp_path / "b" / "light")
    heard = listen(broker.port, "edge/box/#")
    running = start("other", "light")
    topics = {f"edge/box/result/{name}" for name in ("other", "light")}
    wait_until(lambda: topics <= {message.topic for message in heard.heard}, "results")
    memo = tmp_path / "state" / "prepared" / "digests.json"
    wait_until(lambda: memo.exists() and "other" in memo.read_text(), "its digests")
    assert running.stop() == 0
    manifest = tmp_path / "b" / "light" / "model.toml"
    manifest.write_text(manifest.read_text().replace('version = "1"', 'version = "2"'))
    os.utime(manifest.with_name("model.onnx"))
    (tmp_path / closed).chmod(0)
    try:
        running.restart()
        heard.wait_for(
            lambda _: [x for x in heard.on("edge/box/result/light") if x["model"] == "light@2"],
            "results of the new version",
        )
        heard.wait_why("Permission denied")
        assert running.stop() == 0
    finally:
        (tmp_path / closed).chmod(0o755)
    assert "start.json: cannot be written" not in running.words()
