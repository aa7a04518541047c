"""An engine that fails again and again gives way to the next one, and is taken back later."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from edge_agent.config.device_profile import DeviceProfile, EngineLine
from edge_agent.config.settings import Arm
from edge_agent.core.errors import AgentError, EngineError
from edge_agent.core.types import Request, Sample
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model
from edge_agent.models.manifest import ModelFolder, load
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from edge_agent.runtime.scheduler.board import Board
from edge_agent.serving.active import ActiveModels, Serving
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.failover import (
    FAILURES,
    FIRST_PAUSE,
    MOST_PAUSE,
    STABLE,
    Breaker,
    Failover,
)
from edge_agent.serving.loader import ModelLoader
from tests.helpers.small_models import picky, plain, write_clip, write_manifest
from tests.helpers.support import (
    CHECKOUT,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
)
from tests.helpers.tiny_networks import node, save_onnx

ORT, OV = "onnxruntime:CPUExecutionProvider", "openvino:CPU"


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# The decision


def test_a_breaker_waits_longer_each_time() -> None:
    """A minute at first, then twice as long each time, up to six hours."""
    time = Time()
    breaker = Breaker(time)
    assert (breaker.state, breaker.due, breaker.wait) == ("closed", False, 0.0)
    pause = FIRST_PAUSE
    for _ in range(12):
        breaker.trip("no answer")
        assert (breaker.state, breaker.due) == ("open", False)
        time.now += pause - 1
        assert not breaker.due
        time.now += 1
        assert breaker.due
        pause = min(MOST_PAUSE, 2 * pause)
    assert pause == MOST_PAUSE


def test_what_works_for_long_enough_is_as_good_as_new() -> None:
    """Half-open, another failure counts double; after five minutes it begins from the start."""
    time = Time()
    breaker = Breaker(time)
    breaker.trip("first")
    time.now += FIRST_PAUSE
    breaker.close()
    states = [breaker.state]
    breaker.trip("second")
    assert breaker.wait == 2 * FIRST_PAUSE
    time.now += breaker.wait
    breaker.close()
    time.now += STABLE
    states.append(breaker.state)
    assert states == ["half-open", "closed"]
    breaker.trip("third")
    assert breaker.wait == FIRST_PAUSE


# The wiring, with both engines


class Desk:
    """A model that serves, and what watches it: all of it real but the clock."""

    def __init__(self, folder: Path, *engines: EngineLine) -> None:
        self.time = Time()
        profile = DeviceProfile(description="a test's own", engines=engines)
        self.loader = ModelLoader(DeviceEngines(profile, read_facts(), "auto"))
        self.board: Board[Model] = Board()
        catalog = Catalog(Store(folder / "state"), [folder / "models"], None)
        self.active = ActiveModels(self.board, lambda: catalog, lambda: self.loader)
        self.serving: Serving = self.active.serving_for(Arm("picky", None, 1), "picture")
        self.active.load_all()
        self.failover = Failover(self.active, self.loader, clock=self.time)

    @property
    def model(self) -> Model:
        assert self.serving.model is not None
        return self.serving.model

    @property
    def label(self) -> str:
        return self.model.engine.label

    def show(self, brightness: int, times: int = 1) -> list[str]:
        """Show it a gray picture so many times; gives what went wrong."""
        problems = []
        for number in range(times):
            try:
                self.model.infer(Sample(plain(brightness, 16, 16), number, 0, 0.0))
            except AgentError as problem:
                problems.append(str(problem))
        return problems


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Make a desk with the picky model, on engines as a profile lists them."""
    picky(tmp_path / "models" / "picky")
    made: list[Desk] = []

    def desk(*engines: str) -> Desk:
        lines: list[Any] = [EngineLine(engine=name) for name in engines]
        made.append(Desk(tmp_path, *lines))
        return made[-1]

    yield desk
    for each in made:
        each.active.close()


def test_an_engine_that_fails_gives_way_to_the_next(
    make: Callable[..., Desk], caplog: pytest.LogCaptureFixture
) -> None:
    """After five failures in a row the next engine of the profile serves; that is said once."""
    desk = make("onnxruntime", "openvino")
    assert desk.label == ORT
    assert len(desk.show(250, FAILURES - 1)) == FAILURES - 1
    desk.failover.step()
    assert desk.label == ORT, "four failures are not enough"
    desk.show(250)
    caplog.set_level("INFO")
    desk.failover.step()
    assert desk.label == OV
    assert desk.show(250, 3) == []
    desk.failover.step()
    said = [r.message for r in caplog.records if "serves instead of" in r.message]
    assert len(said) == 1
    assert "onnxruntime:CPU, which failed on 5 frames in a row" in said[0]
    assert len(desk.serving.passed) == 1
    assert desk.serving.passed[0].startswith("onnxruntime:CPU: ")


def test_what_clients_send_moves_no_engine_that_works(make: Callable[..., Desk]) -> None:
    """Five questions that no frame resembles had moved a pipeline's model, for up to six hours."""
    desk = make("onnxruntime", "openvino")
    assert desk.show(20) == []
    asked = Request(Sample(plain(250, 16, 16), 0, 0, 0.0), foreign=True)
    failed = desk.model.infer_all([asked] * FAILURES)
    assert all(isinstance(each, EngineError) for each in failed)
    desk.failover.step()
    assert (desk.label, desk.failover.problems()) == (ORT, [])
    assert len(desk.show(250, FAILURES)) == FAILURES
    desk.failover.step()
    assert desk.label == OV


def test_failures_that_are_not_in_a_row_change_nothing(make: Callable[..., Desk]) -> None:
    """An engine that fails now and then is counted and kept."""
    desk = make("onnxruntime", "openvino")
    for _ in range(3):
        assert len(desk.show(250, FAILURES - 1)) == FAILURES - 1
        assert desk.show(20) == []
        desk.failover.step()
    assert desk.label == ORT


def test_an_engine_that_still_fails_is_not_taken_back(make: Callable[..., Desk]) -> None:
    """After its pause it must do the frame that it failed on; else it waits twice as long."""
    desk = make("onnxruntime", "openvino")
    desk.show(250, FAILURES)
    desk.failover.step()
    for pause in (FIRST_PAUSE, 2 * FIRST_PAUSE):
        model = desk.model
        desk.time.now += pause
        desk.failover.step()
        assert desk.model is model


def test_an_engine_that_works_again_is_taken_back(make: Callable[..., Desk]) -> None:
    """An engine that could not load the model at the start serves as soon as it can.

    Here ONNX Runtime is given options that it does not know until the profile is mended: to it, and
    to us, that is what a driver that is not there yet looks like.
    """
    desk = make("onnxruntime", "openvino")
    working = desk.loader.engines.lineup
    broken = replace(working.choices[0], options={"session.nonsense": 1})
    desk.loader.engines.lineup = replace(working, choices=(broken, working.choices[1]))
    desk.active.exchange({}, "picky")
    for old in desk.active.unload(lambda _serving, _model: True):
        desk.active.retire(old)
    desk.active.load_all()
    assert desk.label == OV
    assert "session.nonsense" in desk.serving.passed[0]
    desk.failover.step()
    desk.time.now += FIRST_PAUSE
    desk.failover.step()
    assert desk.label == OV
    desk.loader.engines.lineup = working
    desk.time.now += 2 * FIRST_PAUSE - 1
    desk.failover.step()
    assert desk.label == OV, "not before its time"
    desk.time.now += 1
    desk.failover.step()
    assert desk.label == ORT
    assert desk.serving.passed == []


def test_a_model_that_fails_everywhere_stays_and_is_told_of(make: Callable[..., Desk]) -> None:
    """Where no engine does the frame, nothing is exchanged; it is not tried at every look."""
    desk = make("onnxruntime")
    model = desk.model
    desk.show(250, FAILURES)
    desk.failover.step()
    assert desk.model is model
    assert len(desk.failover.problems()) == 1
    assert "fails on every engine" in desk.failover.problems()[0]
    desk.show(20)
    assert desk.failover.problems() == [], "it works again"


def test_numbers_that_are_not_finite_count_as_failures(tmp_path: Path) -> None:
    """An output of NaN is the engine's failure; an input of NaN is nobody's but the sensor's."""
    folder = tmp_path / "models" / "picky"
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["signal"], ["mean"], axes=[1, 2], keepdims=0),
            node("Log", ["mean"], ["log"]),
        ],
        [("signal", "float32", (1, 1, 4))],
        [("log", "float32", (1,))],
    )
    entries = {"window": 4, "layout": "ct"}
    output = {"decoder": "score", "threshold": 100.0}
    write_manifest(folder, "1", "anomaly", input=entries, output=output)
    desk = Desk(tmp_path, EngineLine(engine="onnxruntime"))
    serving = desk.active.serving_for(Arm("picky", None, 1), "signal")
    desk.active.load_all()
    model = serving.model
    assert model is not None
    for value, told in ((-1.0, 1), (np.nan, 0)):
        data = np.full((4, 1), value, np.float32)
        for number in range(FAILURES):
            with pytest.raises(AgentError, match="finite"):
                model.infer(Sample(data, number, 0, 0.0, picture=False))
        desk.failover.step()
        assert len(desk.failover.problems()) == told
        assert model.infer(Sample(np.ones((4, 1), np.float32), 9, 0, 0.0, picture=False))
    desk.active.close()


def test_a_push_that_is_faster_wins(make: Callable[..., Desk], tmp_path: Path) -> None:
    """A model that has been exchanged meanwhile is left where it is."""
    desk = make("onnxruntime", "openvino")
    desk.show(250, FAILURES)
    old = desk.model
    folder: ModelFolder = load(tmp_path / "models" / "picky")
    new = desk.loader.load(folder, "picture")[0]
    choice: EngineChoice = new.choice
    desk.active.exchange({"picture": new}, "picky")
    desk.active.retire(old)
    desk.failover.step()
    assert desk.model is new
    assert choice.engine == "onnxruntime"


# The agent


class Program(AgentProcess):
    """An agent that runs from a tree of its own, with a device profile of the test's."""

    def __init__(self, folder: Path, settings: str, profile: dict[str, Any]) -> None:
        self.root = folder / "program"
        for name in ("edge_agent", "device_profiles", "models"):
            leave = shutil.ignore_patterns(".mypy_cache", ".ruff_cache", "__pycache__")
            shutil.copytree(CHECKOUT / name, self.root / name, ignore=leave)
        (self.root / "device_profiles" / "mine.toml").write_text(tomli_w.dumps(profile))
        super().__init__(folder / "agent", settings)

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "edge_agent", "run", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.root,
            )


def test_what_an_agent_says_of_an_engine_that_fails(
    broker: Mosquitto, listen: Callable[..., Listener], tmp_path: Path
) -> None:
    """Results go on from the next engine; log, health and the model's topic say why.

    The frames in between are dropped as errors, and the account adds up.
    """
    picky(tmp_path / "models" / "picky")
    pictures = [plain(20)] * 50 + [plain(250)] * 150
    clip = write_clip(tmp_path / "clip.avi", pictures)
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "picky"}
    settings = agent_settings(
        *("box", broker.url, [pipeline]),
        engine="auto",
        profile="mine",
        models_dirs=[str(tmp_path / "models")],
    )
    engines = [{"engine": "onnxruntime"}, {"engine": "openvino"}]
    profile = {"description": "a test's own", "lanes": 1, "engines": engines}
    listener = listen(broker.port)
    running = Program(tmp_path, settings, profile)
    try:
        first = listener.wait_for(lambda _: listener.on("edge/box/result/p"), "results")[0]
        assert first["engine"] == ORT
        listener.wait_state("edge/box/result/p", engine=OV)
        model = listener.wait_state("edge/box/model/picky", engine=OV)
        assert model["passed_over"][0].startswith("onnxruntime:CPU: ")
        health = listener.wait_for(
            lambda _: (
                (h := listener.last("edge/box/health"))
                and any("on openvino:CPU, because onnxruntime:CPU: " in why for why in h["why"])
                and h
            ),
            "health to say so",
        )
        account = health["pipelines"]["p"]
        check_account(account)
        assert account["dropped"]["error"] >= FAILURES
        assert running.words().count("serves instead of") == 1
        assert running.stop() == 0
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        print(running.words())
