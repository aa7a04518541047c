"""An agent whose starts are looked at from outside: what it says, what it computes, what it keeps.

The model is small, its weights are seeded, and what it must find in each picture is worked out
here with NumPy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.typing import NDArray

from tests.helpers.small_models import plain, write_pictures
from tests.helpers.support import (
    CHECKOUT,
    AgentProcess,
    Heard,
    Listener,
    Mosquitto,
    agent_settings,
    wait_until,
)
from tests.helpers.tiny_networks import node, save_onnx

GRAYS = (10, 60, 110, 160, 210, 250)
SIDE = 16
HIDDEN = 64
Found = dict[str, list[float]]
"""By file: the four numbers."""


def weights(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Give the two matrices, 768 x 64 and 64 x 4."""
    random = np.random.default_rng(seed)
    first = random.standard_normal((3 * SIDE * SIDE, HIDDEN), np.float32) / np.float32(16)
    return first, random.standard_normal((HIDDEN, 4), np.float32)


def numbers(folder: Path, seed: int = 1, version: str = "1", **more: Any) -> Path:
    """Make a model that gives four numbers for a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    network(folder / "model.onnx", seed, **more)
    manifest = {
        "name": "numbers",
        "version": version,
        "task": "regression",
        "file": "model.onnx",
        "input": {"scale": 255},
        "output": {"decoder": "raw"},
    }
    (folder / "model.toml").write_text(tomli_w.dumps(manifest))
    return folder


def network(path: Path, seed: int, **more: Any) -> None:
    """Save its network; in the place of another one if need be."""
    first, second = weights(seed)
    save_onnx(
        path,
        [
            node("Flatten", ["picture"], ["flat"]),
            node("MatMul", ["flat", "first"], ["hidden"]),
            node("Relu", ["hidden"], ["kept"]),
            node("MatMul", ["kept", "second"], ["table"]),
            node("Flatten", ["table"], ["numbers"], axis=0),
        ],
        [("picture", "float32", (1, 3, SIDE, SIDE))],
        [("numbers", "float32", (1, 4))],
        {"first": first, "second": second},
        **more,
    )


def expected(seed: int = 1) -> Found:
    """Work out what the model must find."""
    first, second = weights(seed)
    found = {}
    for index, gray in enumerate(GRAYS):
        picture = np.full((1, 3 * SIDE * SIDE), gray / 255, np.float32)
        found[f"{index:03}.png"] = [float(x) for x in (np.maximum(picture @ first, 0) @ second)[0]]
    return found


def same(one: Found, other: Found) -> bool:
    """Whether two findings agree, but for the order in which numbers were added."""
    return one.keys() == other.keys() and all(
        np.allclose(one[file], other[file], rtol=1e-3, atol=1e-3) for file in one
    )


class Program(AgentProcess):
    """The agent from a folder that holds the program, or from this checkout."""

    def __init__(self, box: Box) -> None:
        self._root = box.root
        self._given = box.given or box.config
        self._options = ["--verbose"] if box.verbose else []
        super().__init__(box.folder / "agent", box.settings(), box.environ)

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "edge_agent", *self._options),
                    *("run", "--config", str(self._given)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._root,
                env={**os.environ, **self.environ},
            )


class Start:
    """One start of the agent, and what was heard of it."""

    def __init__(self, box: Box, listener: Listener, said: int) -> None:
        self.box = box
        self.listener = listener
        self._said = said
        self._plan_made = box.plan_made()
        self.agent = box.launch()

    def heard(self, *levels: str) -> list[Heard]:
        """List what was said on a topic since the start began."""
        topic = self.box.topic(*levels)
        return [h for h in list(self.listener.heard) if h.topic == topic and not h.retained]

    def wait(self, *levels: str, **wanted: Any) -> dict[str, Any]:
        """Wait until something has been said on a topic that has these keys with these values."""

        def look(_: object) -> dict[str, Any] | None:
            for each in reversed(self.heard(*levels)):
                if each.payload and all(each.json.get(k) == v for k, v in wanted.items()):
                    return each.json
            return None

        found: dict[str, Any] = self.listener.wait_for(look, f"{levels} {wanted}")
        return found

    def steps(self) -> dict[str, float]:
        """Wait for the steps of the start."""

        def look(_: object) -> Any:
            said = [h.json for h in self.heard("model", "numbers") if h.payload]
            return next((says["cold_start"] for says in said if "cold_start" in says), None)

        steps: dict[str, float] = self.listener.wait_for(look, "the steps of the start")
        return steps

    def from_plan(self) -> bool:
        """Whether a model was begun before the rest, by a plan of an earlier start."""
        return "build" in self.steps() and " is live as " not in self.words()

    def drafted(self) -> bool:
        """Whether a model was begun before the rest, by a plan that this start has made itself."""
        return "build" in self.steps() and " is live as " in self.words()

    def results(self, pipeline: str = "p", **wanted: Any) -> list[dict[str, Any]]:
        """List the results with these values."""
        said = [h.json for h in self.heard("result", pipeline)]
        return [says for says in said if all(says.get(k) == v for k, v in wanted.items())]

    def found(self, pipeline: str = "p", model: str = "numbers@1") -> Found:
        """Wait until a version has looked at every picture; give what it found in each."""

        def look(_: object) -> Found | None:
            results = self.results(pipeline, model=model)
            found = {says["file"]: [*says["values"].values()] for says in results}
            return found if len(found) == len(GRAYS) else None

        whole: Found = self.listener.wait_for(look, f"results of {model} for every picture")
        return whole

    def all_right(self, seed: int = 1, pipeline: str = "p", model: str = "numbers@1") -> bool:
        """Whether every single result of a version so far is what it must be."""
        self.found(pipeline, model)
        right = expected(seed)
        return all(
            np.allclose([*says["values"].values()], right[says["file"]], rtol=1e-3, atol=1e-3)
            for says in self.results(pipeline, model=model)
        )

    def words(self) -> str:
        """Give what this start has logged."""
        return self.agent.words()[self._said :]

    def planned(self) -> None:
        """Wait until the next start has a plan that this one has made, with the model's form."""
        self.wait("model", "numbers", prepared="ready")

        def made() -> bool:
            return self.box.plan_made() != self._plan_made and any(self.box.planned_forms())

        wait_until(made, "a new plan with a prepared form")


class Box:
    """A device: its settings, its state folder, its models and its pictures."""

    def __init__(self, folder: Path, broker: Mosquitto) -> None:
        self.folder = folder
        self.device = folder.name
        self.broker = broker
        self.models = folder / "models"
        numbers(self.models / "numbers")
        pictures = write_pictures(folder / "pictures", [plain(gray) for gray in GRAYS])
        self.pipelines: list[dict[str, Any]] = [
            {"name": "p", "source": f"{pictures}/?loop=1&rate=60", "model": "numbers"}
        ]
        self.more: dict[str, Any] = {
            "models_dirs": [str(self.models)],
            "trust": {"allow_unsigned": True},
            "trial": {"shadow_frames": 2, "probation_s": 0.3},
        }
        self.environ: dict[str, str] = {}
        self.verbose = False
        """Whether the agent says more."""
        self.root = CHECKOUT
        """Where the program is."""
        self.given: Path | None = None
        """How the settings file is named to the agent, if in a way of its own."""
        self._untouched = False

    @property
    def state(self) -> Path:
        return self.folder / "agent" / "state"

    @property
    def plan(self) -> Path:
        return self.state / "start.json"

    @property
    def config(self) -> Path:
        return self.folder / "agent" / "config.toml"

    def settings(self) -> str:
        return agent_settings(self.device, self.broker.url, self.pipelines, **self.more)

    def topic(self, *levels: str) -> str:
        return "/".join(("edge", self.device, *levels))

    def launch(self) -> AgentProcess:
        """Start the agent; whoever does so stops it."""
        return Program(self)

    def words(self) -> str:
        """Give what all starts have logged."""
        log = self.folder / "agent" / "agent.log"
        return log.read_text(errors="replace") if log.exists() else ""

    @contextmanager
    def start(self) -> Iterator[Start]:
        """Start the agent, with somebody who listens; it must stop in order."""
        listener = Listener(self.broker.port, self.topic("#"))
        self._untouched = False
        said = len(self.words())
        start = Start(self, listener, said)
        agent = start.agent
        try:
            yield start
            assert agent.stop() == 0, start.words()
            assert "Traceback" not in start.words(), start.words()
        finally:
            if agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait()
            print(agent.words())
            listener.close()

    def ready(self) -> None:
        """See that the next start has a plan, with a prepared form of the model."""
        if self._untouched:
            return
        self.plan.unlink(missing_ok=True)
        with self.start() as start:
            assert start.all_right()
            start.planned()
        self._untouched = True

    def plan_made(self) -> int:
        """Give when the plan was made, ns; 0: there is none."""
        return self.plan.stat().st_mtime_ns if self.plan.exists() else 0

    def planned_forms(self) -> list[str]:
        """List the forms that the plan names; empty where there is no plan."""
        try:
            _, _, body = self.plan.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return []
        return [entry[5] for entry in json.loads(body)["models"]]

    def forms(self) -> list[Path]:
        """List the prepared forms that lie there."""
        return sorted(path for path in (self.state / "prepared").glob("*") if path.is_dir())


@pytest.fixture(scope="module")
def kept(shared_broker: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Box:
    """Make the device whose starts most tests look at: preparing its model takes seconds."""
    return Box(tmp_path_factory.mktemp("kept"), shared_broker)


@pytest.fixture
def planned(kept: Box) -> Iterator[Box]:
    """Give that device with a plan and a prepared form; what a test sets, it takes back."""
    kept.ready()
    before = [dict(each) for each in kept.pipelines], dict(kept.more)
    yield kept
    kept.pipelines, kept.more = before
    kept.environ = {}


@pytest.fixture
def own(shared_broker: Mosquitto, tmp_path: Path) -> Box:
    """Make a device of the test's own, which has never been started."""
    folder = tmp_path / f"own-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    return Box(folder, shared_broker)
