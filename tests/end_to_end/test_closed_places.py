"""Folders that the service's user may not enter any more: restored by root, or a server is away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.stranger import STRANGER, open_to_strangers, stranger
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    run_cli,
    wait_until,
)

Start = Callable[..., AgentProcess]


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """Close a folder to everybody but root, whose it is then if these tests are root's."""
    mode = path.stat().st_mode
    if os.geteuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)


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


@pytest.mark.parametrize("place", ["a/other", "a"])
def test_a_model_that_can_no_longer_be_looked_at_costs_itself_only(
    start: Start,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    tmp_path: Path,
    place: str,
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
    with closed(tmp_path / place):
        running.restart()
        heard.wait_for(
            lambda _: [x for x in heard.on("edge/box/result/light") if x["model"] == "light@2"],
            "results of the new version",
        )
        heard.wait_why("Permission denied")
        assert running.stop() == 0
    assert "start.json: cannot be written" not in running.words()


def test_transfers_that_cannot_be_looked_at_end_nothing(
    start: Start, broker: Mosquitto, listen: Callable[..., Listener], tmp_path: Path
) -> None:
    """Root had restored `incoming/`: the agent ended some seconds after each start."""
    brightness(tmp_path / "b" / "light")
    heard = listen(broker.port, "edge/box/#")
    running = start("light")
    heard.wait_state("edge/box/status", state="online")
    assert running.stop() == 0
    state = tmp_path / "state"
    with closed(state / "incoming"):
        heard.heard.clear()
        running.restart()
        heard.wait_why(f"{state / 'incoming'}: cannot be cleaned up: Permission denied")
        if os.geteuid() == 0:
            whose = f"{state / 'incoming'} belongs to root; sudo chown -R {STRANGER}: {state}"
            heard.wait_why(f"state_dir: {whose}")
        pushed = run_cli(
            *("push", str(brightness(tmp_path / "third"))),
            *("--device", "box", "--broker", broker.url),
        )
        assert pushed.returncode == 1
        assert "Permission denied" in pushed.stdout
        assert "interrupted transfers are not resumed" in running.words()
        wait_until(lambda: heard.on("edge/box/result/light") != [], "results")
        assert running.stop() == 0


def test_models_that_cannot_be_looked_at_are_wrong_settings(
    start: Start, broker: Mosquitto, listen: Callable[..., Listener], tmp_path: Path
) -> None:
    """Which version is live cannot be known: the unit does not try again before they are mended."""
    brightness(tmp_path / "b" / "light")
    heard = listen(broker.port, "edge/box/#")
    running = start("light")
    heard.wait_state("edge/box/status", state="online")
    assert running.stop() == 0
    state = tmp_path / "state"
    with closed(state / "models"):
        running.restart()
        assert running.wait() == 2
    last = running.words().splitlines()[-1]
    assert last.startswith(f"edge-agent: state_dir: {state}: Permission denied")
    if os.geteuid() == 0:
        whose = f"{state / 'models'} belongs to root; sudo chown -R {STRANGER}: {state}"
        assert last.endswith(f": {whose}")
