"""Versions of a sensor's model that take other windows than the one that serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.push import Box, PlainSender, plain_package, start_box
from tests.helpers.small_models import loudness
from tests.helpers.support import AgentProcess, Listener, Mosquitto

Start = Callable[..., Box]


def version_of(folder: Path, version: str, *, window: int = 4, channels: str | None = None) -> Path:
    """Make a version that gives the mean of a window, of one channel if it is named."""
    loudness(folder, window, version)
    text = (folder / "model.toml").read_text()
    assert "[input]" in text
    if channels is not None:
        text = text.replace("[input]", f'[input]\nchannels = ["{channels}"]')
    (folder / "model.toml").write_text(text)
    return folder


@pytest.fixture(params=["mqtt", "csv"])
def sensor(
    request: pytest.FixtureRequest,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> Iterator[Start]:
    """Start an agent on a sensor that never ends."""
    listener, stop = listen(broker.port), threading.Event()
    (tmp_path / "v.csv").write_text("a,b\n" + "1,2\n" * 400)

    def feed() -> None:
        while not stop.wait(0.01):
            listener.publish("plant/v", json.dumps({"a": 1, "b": 2}).encode())

    def start(model: str, **settings: Any) -> Box:
        sources = {"mqtt": "mqtt:plant/v", "csv": f"csv:{tmp_path}/v.csv?loop=1&rate=100"}
        return start_box(
            *(tmp_path, broker, listener, agent, "edge-01"),
            source=sources[request.param],
            pipelines=[{"name": "door", "model": model}],
            version=None,
            models_dirs=[str(tmp_path / "library")],
            trust={"allow_unsigned": True},
            **settings,
        )

    thread = threading.Thread(target=feed)
    thread.start()
    yield start
    stop.set()
    thread.join()


def test_a_version_that_does_not_fit_the_source_is_rolled_back(
    sensor: Start, tmp_path: Path
) -> None:
    """It agreed in shadow on the windows of the version before, went live, and nothing came."""
    version_of(tmp_path / "library" / "level-1", "1", channels="a")
    one = sensor("level", trial={"shadow_frames": 3, "probation_s": 3})
    one.results_go_on("1")
    wrong = version_of(tmp_path / "level-2", "2", channels="nosuch")
    with PlainSender(one.broker.port, one.device, plain_package(wrong, "level", "2")) as sender:
        sender.offer().wait("probation", "rejected")
        state = one.wait_settled(outcome="rolled-back", version="2")
    assert "level@2 does not fit this source: input.channels" in state["last"]["why"]
    one.results_go_on("1")


@pytest.mark.parametrize("sensor", ["mqtt"], indirect=True)
def test_readings_that_no_version_takes_cost_none_its_probation(
    sensor: Start, tmp_path: Path
) -> None:
    """Three odd messages of anybody took a good version back, and with it a roll-out."""
    version_of(tmp_path / "library" / "level-1", "1", channels="a")
    one = sensor("level", trial={"shadow_frames": 3, "probation_s": 3})
    one.results_go_on("1")
    good = version_of(tmp_path / "level-2", "2", channels="a")
    with PlainSender(one.broker.port, one.device, plain_package(good, "level", "2")) as sender:
        sender.offer().wait("probation", "rejected")
        one.results_go_on("2")
        for odd in [[1, 2], {"b": 2}, [[1, 2, 3]]] * 4:
            one.listener.publish("plant/v", json.dumps(odd).encode())
        state = one.wait_settled(outcome="live", version="2")
    assert "why" not in state["last"]
    one.results_go_on("2")


def push_longer(sensor: Start, tmp_path: Path, window: int) -> tuple[Box, dict[str, Any]]:
    """Push a version with longer windows until it is live; give its state then."""
    version_of(tmp_path / "library" / "level-1", "1", channels="a")
    one = sensor("level", trial={"shadow_frames": 3, "probation_s": 1})
    one.results_go_on("1")
    longer = version_of(tmp_path / "level-2", "2", window=window, channels="b")
    with PlainSender(one.broker.port, one.device, plain_package(longer, "level", "2")) as sender:
        assert "shadow" not in sender.offer().wait("live", "rejected")
        return one, one.wait_settled(outcome="live", version="2")


def test_a_version_with_longer_windows_can_be_pushed(sensor: Start, tmp_path: Path) -> None:
    """Its trial compares nothing, as the two never see the same; its probation judges it."""
    one, _ = push_longer(sensor, tmp_path, 8)
    one.results_go_on("2")
    assert one.listener.on(one.topic("result", "door"))[-1]["anomaly"]["score"] == 2


def test_a_version_that_nothing_came_for_says_so(sensor: Start, tmp_path: Path) -> None:
    """Its windows never filled in its probation; only the log said that it was never tried."""
    _, state = push_longer(sensor, tmp_path, 100_000)
    assert state["last"]["why"] == "nothing came for it during its probation"
    assert "first_inference_ms" in state["last"]


def test_a_split_gives_no_version_windows_of_another(sensor: Start, tmp_path: Path) -> None:
    """The second version got the channel of the first, and said nothing."""
    for version, channel in (("1", "a"), ("2", "b")):
        version_of(tmp_path / "library" / f"level-{version}", version, channels=channel)
    one = sensor("level@1:50,level@2:50")
    one.results_go_on("1")
    health = one.listener.wait_state(one.topic("health"), state="degraded")
    (why,) = [each for each in health["why"] if "split" in each]
    assert why.startswith(
        "pipeline door: level@2 gets no frames of this split: it takes other windows than level@1 "
        "(input.channels)"
    )
    results = one.listener.on(one.topic("result", "door"))
    assert {(each["model"], each["anomaly"]["score"]) for each in results} == {("level@1", 1)}
