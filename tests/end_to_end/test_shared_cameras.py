"""Pipelines whose source has the same text share one opening of it, each with its settings."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.cameras import RTSP_PACKAGES, MjpegServer, RtspServer, rtsp_missing
from tests.helpers.small_models import brightness, encode_jpeg, loudness, plain
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    wait_until,
)

D = "edge/box"
TOP = [[[0.0, 0.0], [1.0, 0.0], [1.0, 0.5], [0.0, 0.5]]]
PICTURES = [encode_jpeg(plain(value)) for value in range(8, 248, 8)]


class Box:
    """An agent whose pipelines come and go, and what is heard of it."""

    def __init__(self, folder: Path, broker: Mosquitto, heard: Listener) -> None:
        brightness(folder / "models" / "light")
        loudness(folder / "models" / "loud", window=4)
        self.heard = heard
        self._url = broker.url
        self._models = str(folder / "models")
        self._agent: AgentProcess | None = None

    def settings(self, *pipelines: dict[str, Any]) -> str:
        """Write settings with these pipelines."""
        full = [{"model": "light", **pipeline} for pipeline in pipelines]
        return agent_settings("box", self._url, full, models_dirs=[self._models])

    def values(self, name: str) -> dict[int, float]:
        """Give what was found, by number of the capture."""
        results = self.heard.on(f"{D}/result/{name}")
        return {
            each["capture"]["seq"]: next(iter(each["values"].values()))
            for each in results
            if "capture" in each
        }

    def more(self, *names: str, count: int = 10) -> None:
        """Wait for further results of each."""
        before = {name: len(self.heard.on(f"{D}/result/{name}")) for name in names}

        def enough(_: object) -> bool:
            now = {name: len(self.heard.on(f"{D}/result/{name}")) for name in names}
            return all(now[name] >= before[name] + count for name in names)

        self.heard.wait_for(enough, f"results of {', '.join(names)}")


@pytest.fixture
def box(tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]) -> Box:
    """Prepare models and ears."""
    return Box(tmp_path, broker, listen(broker.port))


def connections(agent: AgentProcess, port: int) -> int:
    """Count an agent's connections to a camera."""
    all_of_it = psutil.Process(agent.process.pid).net_connections()
    return sum(bool(each.raddr) and each.raddr.port == port for each in all_of_it)


def test_pipelines_on_one_camera_are_one_client_of_it(
    box: Box, agent: Callable[..., AgentProcess]
) -> None:
    """Each has its masks, region and rate; coming, going and changing touch no session."""
    camera = MjpegServer(PICTURES, rate=25)
    source = {"source": camera.url()}
    whole: dict[str, Any] = {"name": "whole", **source}
    masked: dict[str, Any] = {"name": "masked", "masks": TOP, **source}
    slow: dict[str, Any] = {"name": "slow", "rate": 5, "motion": True, **source}
    part: dict[str, Any] = {"name": "part", "rate": 5, "roi": [0, 0, 20, 20], **source}
    alone: dict[str, Any] = {"name": "alone", "share": False, **source}
    with camera:
        running = agent(box.settings(whole, masked, slow, part))
        box.more("whole", "masked", "slow", "part", count=15)
        assert camera.clients == 1
        found = {name: box.values(name) for name in ("whole", "masked", "slow", "part")}
        both = found["whole"].keys() & found["masked"].keys()
        assert len(both) > 10
        for number in both:
            # Of 48 rows 25 are black: the one that the mask's edge touches, too.
            assert found["masked"][number] == pytest.approx(found["whole"][number] * 23 / 48, abs=1)
        # The same are due, whose pixels nobody else's mask has touched.
        assert len(found["slow"].keys() & found["part"].keys()) > 10
        for number in found["part"].keys() & found["whole"].keys():
            assert found["part"][number] == pytest.approx(found["whole"][number], abs=1)

        late = {"name": "late", **source}
        running.config.write_text(box.settings(whole, {**part, "priority": 3}, late, alone))
        running.signal(signal.SIGHUP)
        box.more("whole", "part", "late", "alone")
        assert camera.clients == 2
        assert [each["state"] for each in box.heard.on(f"{D}/source/whole")] == ["running"]
        assert box.values("alone") == {}
        values = {
            name: {repr(each["values"]) for each in box.heard.on(f"{D}/result/{name}")}
            for name in ("whole", "alone")
        }
        assert values["alone"] <= values["whole"]
        for pipeline in box.heard.wait_state(f"{D}/health")["pipelines"].values():
            check_account(pipeline)
    for name in ("whole", "part", "late", "alone"):
        box.heard.wait_state(f"{D}/source/{name}", state="lost")
    lost = [line for line in running.words().splitlines() if "stopped sending pictures" in line]
    assert len(lost) == 2, "of those that share it one"
    assert sum("source of alone" in line for line in lost) == 1
    with MjpegServer(PICTURES, port=camera.port) as camera:
        box.more("whole", "part", "late", "alone")
        assert camera.clients == 2
        numbers = [each["capture"]["seq"] for each in box.heard.on(f"{D}/result/late")]
        assert numbers == sorted(set(numbers)), "of another opening, too"


@pytest.mark.rtsp
@pytest.mark.skipif(rtsp_missing() is not None, reason=f"no RTSP server: {RTSP_PACKAGES}")
def test_four_pipelines_are_one_session_at_an_rtsp_server(
    box: Box, agent: Callable[..., AgentProcess]
) -> None:
    """One that hangs is given up once for all of them."""
    server = RtspServer()
    try:
        source = server.url() + "?stall_s=2"
        names = [f"p{number}" for number in range(4)]
        running = agent(box.settings(*({"name": name, "source": source} for name in names)))
        box.more(*names)
        assert connections(running, server.port) == 1
        psutil.Process(server.pid).suspend()
        for name in names:
            box.heard.wait_state(f"{D}/source/{name}", state="lost")
        psutil.Process(server.pid).resume()
        box.more(*names)
        wait_until(lambda: connections(running, server.port) == 1, "one session again")
        assert running.words().count("WARNING source of") <= 3
    finally:
        server.kill()


def test_windows_of_one_sensor_say_which_reading_they_end_with(
    box: Box, agent: Callable[..., AgentProcess]
) -> None:
    """Two pipelines on one topic."""
    sensor = {"source": "mqtt:plant/press", "model": "loud"}
    agent(box.settings({"name": "one", **sensor}, {"name": "other", **sensor}))
    for name in ("one", "other"):
        box.heard.wait_state(f"{D}/source/{name}", state="running")
    for number in range(12):
        box.heard.publish("plant/press", str(number))
    box.more("one", "other", count=0)

    def captures(name: str) -> list[Any]:
        return [result["capture"] for result in box.heard.on(f"{D}/result/{name}")]

    box.heard.wait_for(lambda _: captures("one") and captures("other"), "results")
    assert captures("one")[0] == captures("other")[0]
