"""A trained network that OpenVINO computes wrongly is served wrong on no way into the agent."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.load import load as load_settings
from edge_agent.inference.engines.registry import installed
from edge_agent.models.manifest import load
from edge_agent.serving.choice import DeviceEngines, match_profile
from edge_agent.serving.tuning_results import FILE as TUNES
from edge_agent.serving.verdicts import FILE
from tests.helpers.push import QUICK
from tests.helpers.signed_network import NETWORK, detector, expected, pictures, quantize
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    needs_assets,
    run_cli,
    wait_until,
)

pytestmark = [pytest.mark.assets, needs_assets]
WHY = "beside onnxruntime:CPUExecutionProvider without optimization: "
OLDER = "2020.1.0"
"""A version of OpenVINO that is not installed."""
Found = dict[str, list[str]]
"""By picture: the labels of its boxes."""


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Quantize the network."""
    return quantize(tmp_path_factory.mktemp("signed"))


@pytest.fixture(scope="module")
def right(signed: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Give what is in the pictures."""
    return expected(detector(tmp_path_factory.mktemp("right") / "coco", signed, "1"))


class Device:
    """A device that prefers OpenVINO, shown the pictures again and again."""

    def __init__(
        self, folder: Path, broker: Mosquitto, listener: Listener, agent: Callable[..., Any]
    ) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.config = folder / "agent" / "config.toml"
        self.log = folder / "agent" / "agent.log"
        self._broker = broker
        self._listener = listener
        self._agent = agent
        self._source = f"dir:{pictures(folder / 'pictures')}?loop=1&rate=10"

    def settings(self, **more: Any) -> str:
        pipeline = {"name": "p", "source": self._source, "model": "coco"}
        tables: dict[str, Any] = {"engine": "auto", "profile": "intel-cpu-vnni", **more}
        # What is tried and compared beside other work leaves the processor to that.
        trial = {**QUICK, "timeout_s": 3 * PATIENCE}
        tables |= {"models_dirs": [str(self.models)], "trial": trial}
        return agent_settings("box", self._broker.url, [pipeline], **tables)

    def start(self, environ: dict[str, str] | None = None, **more: Any) -> AgentProcess:
        process: AgentProcess = self._agent(self.settings(**more), "agent", environ)
        return process

    def settle(self, **more: Any) -> None:
        """Write the settings without starting an agent."""
        self.config.parent.mkdir(exist_ok=True)
        self.config.write_text(self.settings(**more))

    def says(self, words: str) -> None:
        """Wait until the log says something, once it has the lines of what is waited for."""
        said = f"the log to say {words!r}"
        wait_until(lambda: words in self.log.read_text(), said, 3 * PATIENCE)

    def results(self, version: str) -> list[dict[str, Any]]:
        """Return all that a version has had published."""
        results = self._listener.on("edge/box/result/p")
        return [one for one in results if one["model"] == f"coco@{version}"]

    def check(self, right: Found, version: str = "1", times: int = 2) -> None:
        """See that every picture comes so many times more, and that no result is wrong."""
        before = len(self.results(version))

        def seen(_: object) -> bool:
            counts = Counter(one["file"] for one in self.results(version)[before:])
            return all(counts[name] >= times for name in right)

        self._listener.wait_for(seen, "every picture")
        for one in self.results(version):
            labels = sorted(each["label"] for each in one["detections"])
            assert labels == right[one["file"]], (one["file"], one["engine"])


@pytest.fixture
def device(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener], agent: Callable[..., Any]
) -> Device:
    """Give a device that has no model yet."""
    return Device(tmp_path, broker, listen(broker.port), agent)


def test_try(device: Device, signed: Path, right: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the engine that is wrong, and why; the other one answers."""
    monkeypatch.chdir(device.folder)
    model = detector(device.models / "coco", signed, "1")
    said = run_cli("try", str(device.folder / "pictures"), str(model))
    assert said.returncode == 0, said.stderr
    assert f"engine   openvino:CPU: is wrong here, and does not serve: {WHY}" in said.stdout
    assert "coco@1 on onnxruntime:CPU" in said.stdout
    shown = re.findall(r"try #\d \S+  (.*?)  ", said.stdout)
    labels = [sorted(re.findall(r"([a-z][a-z ]*) 0\.\d\d", line)) for line in shown]
    assert labels == [right[name] for name in sorted(right)], said.stdout


def test_a_first_start_and_an_exchange(device: Device, signed: Path, right: Found) -> None:
    """What is there soonest serves; OpenVINO, which the profile prefers, is refused beside it."""
    detector(device.models / "coco", signed, "1")
    device.start()
    device.says("openvino:CPU was tried: disagrees: ")
    device.check(right)


def test_a_first_start_on_the_engine_that_is_wrong(
    device: Device, signed: Path, right: Found
) -> None:
    """Where the settings insist on it, the model is refused; until then another answers."""
    detector(device.models / "coco", signed, "1")
    device.start(engine="openvino")
    device.says(f"openvino:CPU computes it wrongly: {WHY}")
    for one in device.results("1"):
        assert sorted(each["label"] for each in one["detections"]) == right[one["file"]]


@pytest.mark.parametrize("way", ["push", "add"])
def test_a_version_that_comes_in(device: Device, signed: Path, right: Found, way: str) -> None:
    """Its trial finds it out, and it serves on the other engine."""
    detector(device.models / "coco", NETWORK, "1")
    device.start(trust={"allow_unsigned": True})
    new = detector(device.folder / "new", signed, "2")
    wait_until(lambda: len(device.results("1")) > 4, "results of the version before")
    to = ["--device", "box"] if way == "push" else []
    done = run_cli(way, str(new), *to, "--config", str(device.config))
    assert done.returncode == 0, done.stderr
    device.check(right, "2")
    device.says(f"coco@2: does not run on openvino:CPU: {WHY}")


def test_what_is_added_while_no_agent_runs(device: Device, signed: Path, right: Found) -> None:
    """`add` itself compares nothing: the start after it does."""
    device.settle()
    new = detector(device.folder / "new", signed, "1")
    done = run_cli("add", str(new), "--config", str(device.config))
    assert done.returncode == 0, done.stderr
    device.start()
    device.check(right)
    device.says("openvino:CPU")


def test_a_tune_that_prefers_it(device: Device, signed: Path, right: Found) -> None:
    """However fast it is: the next start has it answered for, and then leaves it."""
    model = detector(device.models / "coco", signed, "1")
    device.settle()
    tuned = run_cli("bench", "pipeline", str(model), "--tune", "--config", str(device.config))
    assert tuned.returncode == 0, tuned.stderr
    file = device.config.parent / "state" / TUNES
    content = json.loads(file.read_text())
    # Whatever this machine has found.
    for entry in content["models"].values():
        for each in entry["ways"]:
            each["fps"] = 999.0 if each["engine"] == "openvino" else 1.0
    file.write_text(json.dumps(content))
    device.start()
    device.says("openvino:CPU")
    device.check(right)


def test_an_upgrade_of_the_engine(device: Device, signed: Path, right: Found) -> None:
    """What another version of the engine was worth counts for nothing.

    The version before computed it rightly, as far as the agent knows: it believes so, and serves.
    """
    model = load(detector(device.models / "coco", signed, "1"))
    device.settle()
    settings = load_settings(device.config)
    match, facts = match_profile(settings)
    settings.state.mkdir()
    engines = DeviceEngines(match.profile, facts, "auto", state=settings.state)
    choice = next(one for one in engines.choices_for(model) if one.engine == "openvino")
    assert engines.verdicts is not None
    engines.verdicts.mark_correct(model.path, choice)
    file = settings.state / FILE
    file.write_text(file.read_text().replace(f" {installed()['openvino']} ", f" {OLDER} "))
    place = device.folder / "site-packages" / f"openvino-{OLDER}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: openvino\nVersion: {OLDER}\n")
    environ = {"PYTHONPATH": str(place.parent)}
    first = device.start(environ, engine="openvino")
    wait_until(lambda: bool(device.results("1")), "results of the version before")
    assert not any(one["detections"] for one in device.results("1"))
    assert first.stop() == 0
    trusting = {one["session"] for one in device.results("1")}
    first.environ = {}
    first.restart()
    device.says(f"openvino:CPU computes it wrongly: {WHY}")
    later = [one for one in device.results("1") if one["session"] not in trusting]
    assert later
    for one in later:
        assert sorted(each["label"] for each in one["detections"]) == right[one["file"]]
