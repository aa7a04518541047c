"""Second stages that are unloaded, idle or for another version: no frame goes without them."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from edge_agent.config.device_profile import DeviceProfile, Lineup
from edge_agent.config.settings import Arm, SecondStage, Trial
from edge_agent.config.settings import Pipeline as PipelineSettings
from edge_agent.core.timeline import Timeline
from edge_agent.core.types import Kind, Outcome, Sample
from edge_agent.delivery.rollout.ledger import Candidate, Ledger
from edge_agent.delivery.rollout.swap import Swap
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model
from edge_agent.models.manifest import ModelFolder
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from edge_agent.runtime.pipelines.lane import infer
from edge_agent.runtime.pipelines.mqtt_sink import MqttSink
from edge_agent.runtime.pipelines.pipeline import Pipeline
from edge_agent.runtime.pipelines.sinks import Sink, Sinks, Stream
from edge_agent.runtime.pipelines.status import Common, Identity
from edge_agent.runtime.scheduler.board import Board, Job
from edge_agent.serving.active import ActiveModels, Serving
from edge_agent.serving.choice import DeviceEngines, EngineCandidate
from edge_agent.serving.loader import ModelLoader
from edge_agent.serving.memory import MemoryRelease
from edge_agent.sources.spec import parse_source
from tests.helpers.idle_parts import TOPICS, offline_client
from tests.helpers.small_models import color_classifier, detector, plain
from tests.helpers.support import PATIENCE, wait_until


class Colors(Sink):
    """Remembers which version has told the color in each result; None: none has."""

    def __init__(self) -> None:
        self.by: list[str | None] = []
        self.stages: list[set[str]] = []
        """Which stages each result has."""

    def result(self, stream: Stream, sample: Sample, outcome: Outcome) -> None:
        """Take one result."""
        del stream, sample
        self.stages.append(set(outcome.then))
        model = outcome.then["color"].by if outcome.then else None
        self.by.append(model.id if isinstance(model, Model) else None)


class Loader(ModelLoader):
    """Remembers each model that it has loaded, with those in memory just before that."""

    def __init__(self, engines: DeviceEngines) -> None:
        super().__init__(engines)
        self.opened: list[tuple[str, set[str]]] = []

    def open(
        self, folder: ModelFolder, candidate: EngineCandidate, kind: Kind, *, checked: bool = True
    ) -> Model:
        """Load a model."""
        holders = self.engines.budget.holders
        there = {held.folder.manifest.id for holder in holders for held in holder()}
        self.opened.append((folder.manifest.id, there))
        return super().open(folder, candidate, kind, checked=checked)


class Street:
    """A pipeline that tells the colors of cars, without threads: the test is its lanes."""

    def __init__(self, folder: Path, *more: str) -> None:
        """*more*: further second stages, like that for colors."""
        self.models = folder / "models"
        detector(self.models / "car", [(0, 0.9, 0.1, 0.1, 0.9, 0.9)], ["car"])
        for name in ("color", *more):
            color_classifier(self.models / name)
        profile = DeviceProfile(description="a test's own", engines=())
        self.loader = Loader(DeviceEngines(profile, read_facts(), "auto"))
        self.loader.engines.lineup = Lineup((EngineChoice("onnxruntime"),), (), ())
        self.catalog = Catalog(Store(folder / "state"), [self.models], None)
        self.board: Board[Model] = Board()
        self.active = ActiveModels(
            self.board, lambda: self.catalog, lambda: self.loader, stopping=self._begin
        )
        self.loading, self.may_load = threading.Event(), threading.Event()
        self.may_load.set()
        first, self.color, *others = (
            self.active.serving_for(Arm(name, None, 1), "picture")
            for name in ("car", "color", *more)
        )
        self.seconds = [self.color, *others]
        self.colors = Colors()
        self.pipeline = self._pipeline(first, folder)
        self.board.add(self.pipeline.queue)

    def _begin(self) -> bool:
        """Let what is about to load a model wait until it may."""
        self.loading.set()
        return not self.may_load.wait(PATIENCE)

    def _pipeline(self, first: Serving, folder: Path) -> Pipeline:
        identity, client = Identity("box", "session", TOPICS, Timeline()), offline_client()
        sinks = Sinks(MqttSink(client, identity), self.colors)
        common = Common(identity, self.board, client, sinks, load=self.active.load)
        names = [serving.arm.name for serving in self.seconds]
        stages = tuple(SecondStage(name=name, model=name) for name in names)
        settings = PipelineSettings(name="p", source="dir:none", model="car", then=stages)
        spec = parse_source("dir:none", folder)
        seconds = list(zip(stages, self.seconds, strict=True))
        return Pipeline(settings, spec, [first], seconds, common)

    def put(self) -> None:
        """Capture a picture."""
        take = partial(Sample, plain(9), time_ns=time.time_ns(), since=time.monotonic())
        assert self.board.put(self.pipeline.queue, take)

    def take(self) -> Job[Model]:
        """Take the picture for a lane."""
        job = self.board.take()
        assert job is not None
        return job

    def unload(self) -> list[Model]:
        """Unload what tells colors, as a swap does."""
        self.active.swapping.add("color")
        return self.active.unload(lambda serving, _: serving is self.color)

    def new_version(self) -> Model:
        """Load version 2."""
        color_classifier(self.models / "color-2", "2")
        return self.active.loader.load(self.active.find("color", "2"), "picture")[0]


@pytest.fixture
def street(tmp_path: Path) -> Street:
    """Give the street."""
    return Street(tmp_path)


def test_during_a_swap_no_result_lacks_its_second_stage(street: Street) -> None:
    """With `swap = "replace"` they went out without `then`, and an `absent` rule alarmed."""
    street.active.load_all()
    street.put()
    in_lane = street.take()
    (old,) = street.unload()
    street.put()
    assert not street.pipeline.queue.servable()
    # The old one is not closed before the frame in the lane has gone through it.
    assert not street.board.drain([old], 0.0)
    infer(street.board, in_lane)
    assert street.board.drain([old], 0.0) == [old]
    street.active.exchange({"picture": street.new_version()}, "color")
    infer(street.board, street.take())
    assert street.colors.by == ["color@1", "color@2"]
    street.active.close()


def test_frames_go_on_without_a_second_stage_that_cannot_be_loaded(street: Street) -> None:
    """Its problem is in health; nobody knows when it ends."""
    street.active.load_all()
    street.unload()
    street.color.problem = "it is too large"
    street.put()
    infer(street.board, street.take())
    assert street.colors.by == [None]
    street.active.close()


def test_a_lane_that_waits_for_a_second_stage_hears_that_it_cannot_be_loaded(
    street: Street,
) -> None:
    """The frames of a recording waited for ever: no other capture came to wake it."""
    (street.models / "color" / "model.toml").write_text("broken")
    street.active.load(street.pipeline.servings[0])
    street.put()
    lane = threading.Thread(target=lambda: infer(street.board, street.take()), daemon=True)
    lane.start()
    wait_until(lambda: street.board.lanes.spare == 1, "a waiting lane")
    street.active.load(street.color)
    lane.join(PATIENCE)
    assert street.colors.by == [None]
    street.active.close()


@pytest.fixture
def lazy(street: Street) -> Street:
    """Give the street, where what tells colors is loaded when it is needed, and a first result."""
    street.color.lazy = True
    street.active.load_all()
    street.put()
    infer(street.board, street.take())
    assert street.colors.by == ["color@1"]
    return street


def unload_idle(active: ActiveModels, serving: Serving) -> None:
    """Unload what has had nothing to do, as far as it is to be seen."""
    assert serving.model is not None
    serving.model.stats.used_at -= 61
    MemoryRelease(active, idle_s=60.0, short=list).step()


def in_lane(street: Street, job: Job[Model]) -> threading.Thread:
    """Infer a frame in a lane of its own."""
    lane = threading.Thread(target=infer, args=(street.board, job), daemon=True)
    lane.start()
    return lane


def test_a_swap_has_the_room_of_the_lazy_version_that_it_unloads(lazy: Street) -> None:
    """The next frame loaded that again: both were in memory, over the budget, without a word."""
    lazy.put()
    taken = lazy.take()
    for old in lazy.unload():
        lazy.active.retire(old)
    lane = in_lane(lazy, taken)
    lazy.put()
    assert not lazy.pipeline.queue.servable()
    new = lazy.new_version()
    lazy.active.load(lazy.color)  # as a reload or a check does
    assert lazy.color.model is None
    lazy.active.exchange({"picture": new}, "color")
    lane.join(PATIENCE)
    infer(lazy.board, lazy.take())
    assert lazy.colors.by == ["color@1", "color@2", "color@2"]
    lazy.active.close()


def test_frames_that_wait_for_a_version_that_is_refused_go_through_the_old_one(
    lazy: Street,
) -> None:
    """It is loaded again, by the first of them."""
    lazy.put()
    taken = lazy.take()
    lazy.unload()
    lane = in_lane(lazy, taken)
    lazy.active.end_swap("color")
    lane.join(PATIENCE)
    assert lazy.colors.by == ["color@1", "color@1"]
    lazy.active.close()


def test_a_stop_ends_the_wait_for_another_version(lazy: Street) -> None:
    """The frame gives no result rather than one without its second stage."""
    lazy.put()
    taken = lazy.take()
    lazy.unload()
    lane = in_lane(lazy, taken)
    lazy.board.close()
    lane.join(PATIENCE)
    assert not lane.is_alive()
    assert lazy.colors.by == ["color@1"]
    assert lazy.pipeline.queue.account.dropped["error"] == 1
    lazy.active.close()


def test_a_model_is_renewed_though_its_frames_need_another_to_be_loaded(
    lazy: Street, caplog: pytest.LogCaptureFixture
) -> None:
    """Each waited for the other for 30 s; then the old one was left in memory."""
    (car,) = lazy.pipeline.servings
    old = car.model
    assert old is not None
    for idle in lazy.active.unload(lambda serving, _: serving is lazy.color):
        lazy.active.retire(idle)
    lazy.put()
    taken = lazy.take()
    loader = lazy.active.loader
    again = partial(loader.load, old.folder, "picture")
    renewing = threading.Thread(target=lazy.active.renew, args=(old, lambda: again()[0]))
    renewing.start()
    wait_until(lambda: car.model is None, "the model to be unloaded")
    infer(lazy.board, taken)
    renewing.join()
    assert lazy.colors.by == ["color@1", "color@1"]
    assert "stuck in an inference" not in caplog.text
    assert car.model not in {None, old}
    lazy.active.close()


@pytest.fixture
def painted(tmp_path: Path) -> Street:
    """Give a street with two second stages, both lazy and loaded, and a first result."""
    street = Street(tmp_path, "paint")
    for serving in street.seconds:
        serving.lazy = True
    street.active.load_all()
    street.put()
    infer(street.board, street.take())
    assert street.colors.stages == [{"color", "paint"}]
    return street


@pytest.mark.parametrize("how", ["idle", "swap"])
def test_a_frame_that_waits_for_one_stage_lacks_no_other(painted: Street, how: str) -> None:
    """The other one was unloaded meanwhile: the result had no color, without a word."""
    color, paint = painted.seconds
    unload_idle(painted.active, paint)
    painted.loading.clear()
    painted.may_load.clear()
    painted.put()
    lane = in_lane(painted, painted.take())
    assert painted.loading.wait(PATIENCE)
    if how == "idle":
        unload_idle(painted.active, color)
    else:
        painted.unload()
    painted.may_load.set()
    if how == "swap":
        painted.active.exchange({"picture": painted.new_version()}, "color")
    lane.join(PATIENCE)
    assert painted.colors.stages == [{"color", "paint"}] * 2
    assert painted.colors.by == ["color@1", "color@1" if how == "idle" else "color@2"]
    painted.active.close()


def test_a_frame_that_waits_for_a_swap_holds_nothing_that_another_waits_for(
    painted: Street,
) -> None:
    """It has what it needs again once both are over."""
    color, paint = painted.seconds
    painted.put()
    taken = painted.take()
    painted.active.swapping.add("paint")
    for each in painted.active.unload(lambda serving, _: serving in {color, paint}):
        painted.active.retire(each)
    lane = in_lane(painted, taken)
    wait_until(lambda: color.model is not None, "the frame to load what it may")
    (old,) = painted.unload()
    assert painted.board.drain([old], PATIENCE) == [old]
    painted.active.end_swap("color")
    painted.active.end_swap("paint")
    lane.join(PATIENCE)
    assert painted.colors.stages == [{"color", "paint"}] * 2
    painted.active.close()


@pytest.fixture
def swap(lazy: Street) -> Swap:
    """Give what exchanges versions where memory has room for one; version 1 is live."""
    color_classifier(lazy.models / "color-2", "2")
    for name in ("color", "color-2"):
        with (lazy.models / name / "more.bin").open("wb") as file:
            file.truncate(6 * 2**20 - 2**18)
    lazy.loader.engines.budget.limit_mb = 10
    store = lazy.catalog.store
    store.activate("color", "1")
    ledger = Ledger(store, lazy.catalog, lambda _transfer, _says: True, lambda: None)
    return Swap(store, lazy.catalog, lazy.active, ledger, Trial, overlap=True)


def test_a_swap_has_the_room_of_a_version_that_is_unloaded_at_the_time(
    lazy: Street, swap: Swap
) -> None:
    """A frame loaded the old one while the new one loaded: 12 MB where 10 are allowed."""
    unload_idle(lazy.active, lazy.color)
    lazy.put()
    taken = lazy.take()
    new = lazy.catalog.find("color", "2")
    with swap.reopen("color", "2") as (folder, models):
        assert folder == new
        lane = in_lane(lazy, taken)
        lazy.active.load(lazy.color)  # as the frame does
        assert lazy.color.model is None
        swap.activate(folder, models, cancels="")
    lane.join(PATIENCE)
    assert lazy.colors.by == ["color@1", "color@2"]
    unload_idle(lazy.active, lazy.color)
    old = lazy.catalog.find("color", "1")
    assert swap.must_replace(old)
    lazy.loader.engines.budget.limit_mb = 20
    assert not swap.must_replace(old)
    swap.overlap = False
    assert swap.must_replace(old)
    lazy.active.close()


def test_a_version_that_is_just_being_loaded_is_unloaded_for_another(
    lazy: Street, swap: Swap
) -> None:
    """It was not there yet when the swap began, and came while the new one loaded."""
    unload_idle(lazy.active, lazy.color)
    lazy.loading.clear()
    lazy.may_load.clear()
    lazy.put()
    lane = in_lane(lazy, lazy.take())
    assert lazy.loading.wait(PATIENCE)
    folder, candidate = lazy.catalog.find("color", "2"), Candidate("color", "2", None)
    assert swap.must_replace(folder)
    replacing = threading.Thread(target=swap.replace, args=(candidate, folder, Trial()))
    replacing.start()
    wait_until(lambda: lazy.color.swapping, "the swap to begin")
    lazy.may_load.set()
    replacing.join(PATIENCE)
    lane.join(PATIENCE)
    (again, _), (last, beside) = lazy.loader.opened[-2:]
    assert (again, last, beside) == ("color@1", "color@2", {"car@1"})
    assert lazy.color.model is not None
    assert lazy.color.model.id == "color@2"
    assert len(lazy.colors.by) == 2
    lazy.active.close()
