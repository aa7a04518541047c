"""The last results of an agent, or of a pipeline: what is published has been seen by the rules."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.small_models import heavy, plain, write_pictures
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings

RESULTS, EVENTS = "edge/box/result/door", "edge/box/event/door"
BRIGHT = {"name": "bright", "when": "value", "value": "light", "above": 100, "frames": "1/1"}


class Slow:
    """A pipeline whose model takes long: each other picture is bright, and begins an event."""

    def __init__(self, tmp_path: Path) -> None:
        heavy(tmp_path / "models" / "heavy", 20)
        self._models = str(tmp_path / "models")
        pictures = [plain(220), plain(20)]
        self._sources = [write_pictures(tmp_path / name, pictures) for name in ("one", "two")]

    def settings(self, url: str, source: int = 0) -> str:
        """Write the settings of an agent with one of two like sources."""
        pipeline = {
            "name": "door",
            "source": f"{self._sources[source]}?loop=1",
            "model": "heavy",
            "qos": 1,
            "rules": [BRIGHT],
        }
        return agent_settings("box", url, [pipeline], models_dirs=[self._models])


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    """Make the model and the sources."""
    return Slow(tmp_path)


def seen(heard: Listener) -> tuple[list[int], list[int]]:
    """Give the numbers of the bright results, and of the results with which an event began."""
    results, events = heard.on(RESULTS), heard.on(EVENTS)
    bright = [each["seq"] for each in results if each["values"]["light"] > 100]
    return sorted(bright), sorted(each["seq"] for each in events if each["state"] == "begin")


def wait_seen(heard: Listener, count: int) -> None:
    """Wait until so many further events have begun."""
    wanted = len(seen(heard)[1]) + count
    heard.wait_for(lambda _: len(seen(heard)[1]) >= wanted, "events")


def test_what_is_in_the_lanes_as_the_agent_stops_has_its_events(
    slow: Slow,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """Both lanes are busy at any time: one of the last two results is bright."""
    heard = listen(broker.port)
    running = agent(slow.settings(broker.url))
    wait_seen(heard, 3)
    assert running.stop() == 0
    heard.catch_up()
    bright, begun = seen(heard)
    assert bright == begun
    ends = [each["event"] for each in heard.on(EVENTS) if each["state"] == "end"]
    assert len(ends) == len(begun)


def test_what_is_in_the_lanes_as_a_pipeline_is_replaced_has_its_events(
    slow: Slow,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """Another source is another pipeline, with rules that begin anew."""
    heard = listen(broker.port)
    running = agent(slow.settings(broker.url))
    wait_seen(heard, 3)
    running.config.write_text(slow.settings(broker.url, 1))
    running.signal(signal.SIGHUP)
    wait_seen(heard, 3)
    assert running.stop() == 0
    heard.catch_up()
    bright, begun = seen(heard)
    assert bright == begun
