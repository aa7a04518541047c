"""Several samples through a network at a time: the same results, in order, each its own fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from edge_agent.config.settings import SecondStage
from edge_agent.core.errors import AgentError, EngineError, SampleError
from edge_agent.core.types import Classes, Detections, Kind, Outcome, Request, Sample, Values
from edge_agent.inference.batching import Batch, load_batch, seconds_alone, sizes
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import EngineName
from edge_agent.inference.model import Model, load_model
from edge_agent.models.manifest import load
from edge_agent.runtime.pipelines import second_stage
from edge_agent.runtime.scheduler.board import Job
from tests.helpers.small_models import plain, write_manifest, write_pictures
from tests.helpers.start_box import SIDE, Box, own, weights
from tests.helpers.support import (
    ASSETS,
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    needs_assets,
    wait_until,
)
from tests.helpers.tiny_networks import node, save_onnx
from tests.runtime.test_board import Bench, FixedRoute, in_thread

__all__ = ["own"]

BOTH: Sequence[EngineName] = ("onnxruntime", "openvino")


def classifier(folder: Path, *, count: int | str | None = "n") -> Path:
    """Make a small classifier of pictures with random weights; *count* is its batch axis."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(5)
    save_onnx(
        folder / "model.onnx",
        [
            node("Conv", ["picture", "kernel"], ["features"], strides=[2, 2]),
            node("Relu", ["features"], ["active"]),
            node("ReduceMean", ["active"], ["pooled"], axes=[2, 3], keepdims=0),
            node("MatMul", ["pooled", "weight"], ["scores"]),
        ],
        [("picture", "float32", (count, 3, 16, 16))],
        [("scores", "float32", (count, 4))],
        {
            "kernel": random.standard_normal((8, 3, 3, 3), np.float32),
            "weight": random.standard_normal((8, 4), np.float32),
        },
    )
    output = {"decoder": "logits", "labels": ["a", "b", "c", "d"], "top_k": 4}
    return write_manifest(folder, "1", "classification", output=output)


def light(folder: Path) -> Path:
    """Make a model that gives the mean of a picture, of any number of pictures at a time."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [node("ReduceMean", ["picture"], ["light"], axes=[1, 2, 3], keepdims=0)],
        [("picture", "float32", ("n", 3, 16, 16))],
        [("light", "float32", ("n",))],
    )
    entries = {"interpolation": "area"}
    return write_manifest(folder, "1", "regression", input=entries, output={"decoder": "raw"})


def inverse(folder: Path) -> Path:
    """Make a model of windows that gives 1 / mean of each: nothing finite for silence."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["signal"], ["mean"], axes=[1, 2], keepdims=0),
            node("Reciprocal", ["mean"], ["inverse"]),
        ],
        [("signal", "float32", ("n", 1, 4))],
        [("inverse", "float32", ("n",))],
    )
    entries = {"window": 4, "layout": "ct"}
    return write_manifest(folder, "1", "regression", input=entries, output={"decoder": "raw"})


def opened(folder: Path, engine: EngineName, kind: Kind = "picture") -> Model:
    """Load a model."""
    return load_model(load(folder), [EngineChoice(engine, threads=1)], kind)


def batched(folder: Path, engine: EngineName, kind: Kind = "picture", most: int = 4) -> Model:
    """Load a model, and have it take several samples at a time."""
    model = opened(folder, engine, kind)
    model.batch = load_batch(model, kind, most)
    return model


def samples(*arrays: Any, picture: bool = True) -> list[Request]:
    """Ask for each of these."""
    return [
        Request(Sample(array, seq, 0, 0.0, picture=picture)) for seq, array in enumerate(arrays)
    ]


def pictures(count: int) -> list[Any]:
    """Make pictures that differ."""
    random = np.random.default_rng(1)
    return [random.integers(0, 256, (24, 32, 3), np.uint8) for _ in range(count)]


def values(answer: Outcome | AgentError) -> list[float]:
    """Give the numbers of an answer, which must not be an error."""
    assert isinstance(answer, Outcome), answer
    match answer.findings:
        case Values(named):
            return list(named.values())
        case Classes(labels, scores):
            return [score for _, score in sorted(zip(labels, scores, strict=True))]
        case other:
            pytest.fail(f"unexpected {other}")


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_together_each_gives_what_it_gives_alone(
    tmp_path: Path, engine: EngineName, count: int
) -> None:
    """Any number of samples gives the results of one by one, in their order, and is counted."""
    model = batched(classifier(tmp_path / "m"), engine)
    asked = samples(*pictures(count))
    alone = [values(model.answer(request)) for request in asked]
    answers = model.infer_all(asked)
    for expected, answer in zip(alone, answers, strict=True):
        assert values(answer) == pytest.approx(expected, abs=1e-5)
    assert model.stats.inferred == 2 * count
    assert isinstance(answers[0], Outcome)
    most = min(count, 4) if engine == "onnxruntime" else {2: 2, 3: 2, 4: 4, 7: 4}[count]
    assert answers[0].timing.together == most
    model.close()


def test_the_sizes_that_are_compiled() -> None:
    """OpenVINO gets the largest and the powers of two below it, so that any number is a few."""
    assert [sizes(most) for most in (2, 3, 4, 6, 8)] == [
        [2],
        [2, 3],
        [2, 4],
        [2, 4, 6],
        [2, 4, 8],
    ]


@pytest.mark.parametrize("engine", BOTH)
def test_it_pays_only_against_what_was_there_before(tmp_path: Path, engine: EngineName) -> None:
    """What took no time at all before is not bettered by any number together."""
    model = batched(inverse(tmp_path / "m"), engine, "signal")
    assert isinstance(model.batch, Batch)
    assert not model.batch.pays(alone_s=0.0)
    assert seconds_alone(model) > 0


@pytest.mark.parametrize("engine", BOTH)
def test_a_sample_that_does_not_fit_fails_alone(tmp_path: Path, engine: EngineName) -> None:
    """One with a NaN, one of another length: an error each; their neighbors have results."""
    model = batched(inverse(tmp_path / "m"), engine, "signal")
    good = [np.full((4, 1), value, np.float32) for value in (1.0, 2.0, 4.0)]
    broken = np.full((4, 1), np.nan, np.float32)
    short = np.ones((3, 1), np.float32)
    answers = model.infer_all(samples(broken, good[0], short, good[1], good[2], picture=False))
    assert [isinstance(answer, SampleError) for answer in answers] == [
        *(True, False, True),
        *(False, False),
    ]
    found = [values(answers[index]) for index in (1, 3, 4)]
    assert found == [[pytest.approx(1.0)], [pytest.approx(0.5)], [pytest.approx(0.25)]]


@pytest.mark.parametrize("engine", BOTH)
def test_an_output_that_is_not_finite_fails_alone(tmp_path: Path, engine: EngineName) -> None:
    """Of a batch in which one sample comes to infinity that one fails, and it is noted as such."""
    model = batched(inverse(tmp_path / "m"), engine, "signal")
    silent = np.zeros((4, 1), np.float32)
    loud = np.full((4, 1), 8.0, np.float32)
    answers = model.infer_all(samples(loud, silent, picture=False))
    assert values(answers[0]) == [pytest.approx(0.125)]
    assert isinstance(answers[1], SampleError)
    assert (model.stats.inferred, model.stats.failing) == (1, 1)
    assert model.stats.failure is not None
    assert model.stats.failure[1].sample.seq == 1


def test_where_the_engine_fails_they_go_one_by_one(tmp_path: Path) -> None:
    """An engine that fails on several is not asked again for these; each has its result."""

    class Broken:
        """Takes several, and fails."""

        def infer(self, _tensors: Any) -> Any:
            raise EngineError("no memory for so many")

        def close(self) -> None:
            """Nothing is open."""

    model = opened(light(tmp_path / "m"), "onnxruntime")
    broken: Any = Broken()
    model.batch = Batch(model, {0: broken}, 4, "picture", frozenset())
    answers = model.infer_all(samples(plain(10), plain(200)))
    assert [values(answer) for answer in answers] == [[pytest.approx(10)], [pytest.approx(200)]]
    assert model.stats.failing == 0


@pytest.mark.parametrize("engine", BOTH)
def test_a_network_for_one_sample_stays_so(tmp_path: Path, engine: EngineName) -> None:
    """Where the network's first axis is fixed, that is said."""
    model = opened(classifier(tmp_path / "m", count=1), engine)
    with pytest.raises(
        EngineError, match="m@1: samples go one by one: the network's batch is fixed"
    ):
        load_batch(model, "picture", 4)


@pytest.mark.parametrize("engine", BOTH)
def test_a_network_that_mixes_samples_is_found_out(tmp_path: Path, engine: EngineName) -> None:
    """Where a sample changes what another one gives, they are never put together."""
    folder = tmp_path / "m"
    folder.mkdir()
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMax", ["picture"], ["loudest"], keepdims=1),
            node("Div", ["picture", "loudest"], ["scaled"]),
            node("ReduceMean", ["scaled"], ["light"], axes=[1, 2, 3], keepdims=0),
        ],
        [("picture", "float32", ("n", 3, 16, 16))],
        [("light", "float32", ("n",))],
    )
    write_manifest(folder, "1", "regression", output={"decoder": "raw"})
    with pytest.raises(EngineError, match="gives another result in a batch than alone"):
        load_batch(opened(folder, engine), "picture", 4)


def test_a_network_that_mixes_only_many_samples_is_found_out(tmp_path: Path) -> None:
    """Two samples may keep to themselves where four do not: the most are looked at, too."""
    folder = tmp_path / "m"
    folder.mkdir()
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["own"], axes=[1, 2, 3], keepdims=0),
            node("Slice", ["picture", "third", "fourth", "first"], ["other"]),
            node("ReduceSum", ["other"], ["strange"], keepdims=0),
            node("Add", ["own", "strange"], ["light"]),
        ],
        [("picture", "float32", ("n", 3, 16, 16))],
        [("light", "float32", ("n",))],
        {
            "third": np.array([2], np.int64),
            "fourth": np.array([3], np.int64),
            "first": np.array([0], np.int64),
        },
    )
    write_manifest(folder, "1", "regression", output={"decoder": "raw"})
    load_batch(opened(folder, "onnxruntime"), "picture", 2).close()
    with pytest.raises(EngineError, match="gives another result in a batch than alone"):
        load_batch(opened(folder, "onnxruntime"), "picture", 4)


@pytest.mark.parametrize("engine", BOTH)
def test_a_network_with_one_output_for_all_is_found_out(tmp_path: Path, engine: EngineName) -> None:
    """Where the output has no entry for each sample, as with boxes of all in one list, likewise."""
    folder = tmp_path / "m"
    folder.mkdir()
    save_onnx(
        folder / "model.onnx",
        [node("ReduceMean", ["picture"], ["light"], axes=[0, 2, 3], keepdims=1)],
        [("picture", "float32", ("n", 3, 16, 16))],
        [("light", "float32", (1, 3, 1, 1))],
    )
    write_manifest(folder, "1", "raw", output={"decoder": "raw"})
    with pytest.raises(EngineError, match="has no entry for each sample"):
        load_batch(opened(folder, engine), "picture", 4)


@pytest.mark.parametrize("engine", BOTH)
def test_constants_are_given_once_for_each(tmp_path: Path, engine: EngineName) -> None:
    """An input of the manifest's whose first axis is open too has as many rows as samples."""
    folder = tmp_path / "m"
    folder.mkdir()
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["mean"], axes=[1, 2, 3], keepdims=0),
            node("Reshape", ["mean", "column"], ["rows"]),
            node("Mul", ["rows", "factor"], ["light"]),
        ],
        [("picture", "float32", ("n", 3, 16, 16)), ("factor", "float32", ("n", 1))],
        [("light", "float32", ("n", 1))],
        {"column": np.array([-1, 1])},
    )
    entries = {"fixed": {"factor": [[3.0]]}, "interpolation": "area"}
    write_manifest(folder, "1", "regression", input=entries, output={"decoder": "raw"})
    model = batched(folder, engine)
    answers = model.infer_all(samples(plain(10), plain(20)))
    assert [values(answer) for answer in answers] == [[pytest.approx(30)], [pytest.approx(60)]]


# Which frames go together


@pytest.fixture
def bench() -> Bench:
    """Give a board whose model takes three frames at a time."""
    bench = Bench()
    bench.model.together = 3
    return bench


def test_frames_of_several_pipelines_go_together(bench: Bench) -> None:
    """The oldest first, as many as the model takes; the others stay for the next lane."""
    queues = [bench.queue(f"p{number}") for number in range(4)]
    for number, queue in enumerate(queues):
        bench.put(queue, since=float(number))
    jobs = bench.board.gather(bench.take())
    assert [job.queue.name for job in jobs] == ["p0", "p1", "p2"]
    assert [job.batched for job in jobs] == [3, 3, 3]
    assert bench.model.users == 3
    assert bench.take().queue.name == "p3"


def test_results_of_a_batch_leave_in_order(bench: Bench) -> None:
    """Several frames of one recording in a batch are handed over in the order of capture."""
    queue = bench.queue(room=4, lossless=True)
    for _ in range(4):
        bench.put(queue)
    jobs = bench.board.gather(bench.take())
    last = bench.take()
    said: list[int] = []
    for job in [last, *reversed(jobs)]:
        bench.board.finish(job, lambda seq=job.sample.seq: said.append(seq))  # type: ignore[misc]
    assert said == [0, 1, 2, 3]
    assert bench.account().inferred == 4


def test_another_models_frames_are_not_taken_along(bench: Bench) -> None:
    """A batch is of one model's frames only; after an exchange the new one's wait for their own."""
    mine, other, later = bench.queue("mine"), bench.queue("other"), bench.queue("later")
    foreign, new = type(bench.model)("foreign"), type(bench.model)("new")
    other.route = FixedRoute(foreign)
    for queue in (mine, other, later):
        bench.put(queue)
    job = bench.take()
    with bench.board.boundary():
        later.route = FixedRoute(new)
    assert [one.queue.name for one in bench.board.gather(job)] == ["mine"]
    assert (bench.model.users, foreign.users, new.users) == (1, 0, 0)


def test_a_frame_that_is_too_old_is_not_taken_along(bench: Bench) -> None:
    """What waited longer than its deadline is dropped by that reason, not put into the batch."""
    bench.now = 100.0
    first, old = bench.queue("first"), bench.queue("old", deadline=1.0)
    bench.put(first, since=90.0)
    bench.put(old, since=95.0)
    assert [job.queue.name for job in bench.board.gather(bench.take())] == ["first"]
    assert bench.account("old").dropped["deadline"] == 1


def test_a_lane_waits_for_frames_that_may_come(bench: Bench) -> None:
    """With `max_delay` the first waits for others, and goes as soon as the batch is full."""
    bench.board.max_delay = PATIENCE
    queues = [bench.queue(f"p{number}") for number in range(3)]
    bench.put(queues[0])
    gathered: list[str] = []
    job = bench.take()
    lane = in_thread(lambda: gathered.extend(one.queue.name for one in bench.board.gather(job)))
    for queue in queues[1:]:
        bench.put(queue, since=1.0)
    lane.join(PATIENCE / 2)
    assert sorted(gathered) == ["p0", "p1", "p2"]


def test_nobody_waits_where_nothing_can_come(bench: Bench) -> None:
    """A pipeline that is the only one of its model does not wait for itself."""
    bench.board.max_delay = PATIENCE
    queue = bench.queue()
    bench.put(queue)
    job = bench.take()
    gathered: list[Job[Any]] = []
    lane = in_thread(lambda: gathered.extend(bench.board.gather(job)))
    lane.join(PATIENCE / 2)
    assert gathered == [job]


def test_another_models_frame_ends_the_wait(bench: Bench) -> None:
    """Where no lane is idle, what waits for its own model is not held up by a batch."""
    bench.board.max_delay = PATIENCE
    mine, other = bench.queue("mine"), bench.queue("other")
    bench.queue("silent")
    foreign = type(bench.model)("foreign")
    other.route = FixedRoute(foreign)
    bench.put(mine)
    job = bench.take()
    gathered: list[Job[Any]] = []
    lane = in_thread(lambda: gathered.extend(bench.board.gather(job)))
    bench.put(other)
    lane.join(PATIENCE / 2)
    assert gathered == [job]
    assert bench.take().queue is other


def test_lanes_leave_frames_to_the_one_that_gathers(bench: Bench) -> None:
    """While one lane waits for a batch another one does not take its frames, and misses none."""
    bench.board.max_delay = PATIENCE
    queues = [bench.queue(f"p{number}") for number in range(5)]
    bench.put(queues[0])
    job = bench.take()
    taken: list[str] = []
    gatherer = in_thread(lambda: taken.extend(one.queue.name for one in bench.board.gather(job)))
    other = in_thread(lambda: taken.append(bench.take().queue.name))
    for queue in queues[1:4]:
        bench.put(queue, since=1.0)
    gatherer.join(PATIENCE / 2)
    other.join(PATIENCE / 2)
    assert sorted(taken) == ["p0", "p1", "p2", "p3"]
    assert bench.model.users == 4


# Cascades


def found(*boxes: tuple[float, float, float, float]) -> Detections:
    """Make a first stage's detections."""
    array = np.array(boxes, np.float32).reshape(-1, 4)
    return Detections(array, np.ones(len(boxes), np.float32), ("box",) * len(boxes))


@pytest.mark.parametrize("engine", BOTH)
def test_crops_go_together_and_give_the_same(tmp_path: Path, engine: EngineName) -> None:
    """The crops of a frame go through the second model at once; limit and order are kept."""
    model = batched(light(tmp_path / "m"), engine)
    picture = np.concatenate([plain(value, 8, 16) for value in (10, 60, 110, 160, 210)], axis=1)
    sample = Sample(picture, 0, 0, 0.0)
    stage = SecondStage(name="s", model="m", limit=4)
    first = found(*((8.0 * i, 0.0, 8.0 * i + 8, 16.0) for i in range(5)))
    alone = second_stage.infer(stage, opened(tmp_path / "m", engine), sample, first)
    together = second_stage.infer(stage, model, sample, first)
    assert [None if one is None else values_of(one) for one in together.found] == [
        *([pytest.approx(value)] for value in (10, 60, 110, 160)),
        None,
    ]
    assert str(together.found) == str(alone.found)
    assert (alone.crops, alone.together) == (4, 1)
    assert (together.crops, together.together) == (4, 4)
    assert max(model.stats.infer_ms) > 0
    assert model.stats.inferred == 4


def values_of(findings: Any) -> list[float]:
    """Give the numbers of a regression."""
    assert isinstance(findings, Values)
    return list(findings.values.values())


@needs_assets
@pytest.mark.parametrize("engine", BOTH)
def test_yolox_and_a_classifier_of_its_crops(tmp_path: Path, engine: EngineName) -> None:
    """Of what YOLOX finds in a street, the classifier sees persons, together as one by one."""
    import shutil

    from edge_agent.sources.opencv import load as load_cv2
    from tests.end_to_end.test_run import ALL

    models = []
    for name in ("yolox", "person-int8"):
        file, task, entries, output = ALL[name]
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(ASSETS / "models" / file, folder / "model.onnx")
        labels = output["labels"]
        if isinstance(labels, str):
            output = {**output, "labels": (ASSETS / "media" / labels).read_text().splitlines()}
        tables = {"name": name, "version": "1", "task": task, "file": "model.onnx"}
        (folder / "model.toml").write_text(
            tomli_w.dumps({**tables, "input": entries, "output": output})
        )
        models.append(opened(folder, engine))
    detector, second = models
    picture = load_cv2().imread(str(ASSETS / "media" / "jet_peds_0.jpg"))
    sample = Sample(picture, 0, 0, 0.0)
    first = detector.infer(sample).findings
    assert isinstance(first, Detections)
    stage = SecondStage(name="who", model="person-int8", labels=("person",), margin=0.1)
    assert sum(region is not None for region in second_stage.regions(stage, first)) >= 2
    alone = second_stage.infer(stage, second, sample, first)
    second.batch = load_batch(second, "picture", 8)
    together = second_stage.infer(stage, second, sample, first)
    assert str(together.found) == str(alone.found)
    assert alone.together == 1 < together.together
    assert together.crops == alone.crops >= 2
    best = [one.labels[0] for one in together.found if isinstance(one, Classes)]
    assert "person" in best


# A whole agent


@pytest.fixture(scope="module")
def listener(shared_broker: Mosquitto) -> Iterator[Listener]:
    """Hear what the agent says."""
    heard = Listener(shared_broker.port)
    yield heard
    heard.close()


def test_an_agent_puts_frames_together(
    tmp_path: Path, shared_broker: Mosquitto, listener: Listener
) -> None:
    """With `max_batch` frames of four pipelines go together, and each has its own result.

    Every capture has one, in order, with the number that its picture must give.
    """
    light(tmp_path / "models" / "light")
    shades = [20, 80, 140, 200]
    pipelines = [
        {
            "name": f"p{shade}",
            "source": write_pictures(tmp_path / str(shade), [plain(shade), plain(shade + 30)])
            + "?loop=1",
            "model": "light",
        }
        for shade in shades
    ]
    agent = AgentProcess(
        tmp_path,
        agent_settings(
            "together",
            shared_broker.url,
            pipelines,
            models_dirs=["models"],
            batching={"max_batch": 4, "max_delay_ms": 5},
        ),
    )
    try:
        for shade in shades:
            topic = f"edge/together/result/p{shade}"
            wait_until(
                lambda topic=topic: any(  # type: ignore[misc]
                    says["timing"].get("together", 1) > 1 for says in listener.on(topic)
                ),
                f"frames together on {topic}",
            )
            results = listener.on(topic)
            assert [says["seq"] for says in results] == list(range(len(results)))
            for says in results:
                expected = shade + 30 * (says["seq"] % 2)
                assert says["values"]["light"] == pytest.approx(expected, abs=1)
        health = listener.wait_state("edge/together/health")
        for account in health["pipelines"].values():
            check_account(account)
    finally:
        agent.stop()


def test_a_model_started_from_its_form_is_exchanged(own: Box) -> None:
    """A quick start serves one by one; then the model is loaded whole, and nothing is lost."""
    first, second = weights(1)
    save_onnx(
        own.models / "numbers" / "model.onnx",
        [
            node("Flatten", ["picture"], ["flat"]),
            node("MatMul", ["flat", "first"], ["hidden"]),
            node("Relu", ["hidden"], ["kept"]),
            node("MatMul", ["kept", "second"], ["numbers"]),
        ],
        [("picture", "float32", ("n", 3, SIDE, SIDE))],
        [("numbers", "float32", ("n", 4))],
        {"first": first, "second": second},
    )
    (one,) = own.pipelines
    own.pipelines.append({**one, "name": "q"})
    own.more["batching"] = {"max_batch": 2, "max_delay_ms": 50}
    own.ready()
    with own.start() as start:
        assert start.from_plan()
        for name in ("p", "q"):

            def together(_: object, name: str = name) -> bool:
                said = start.results(name)
                return any(says["timing"].get("together") == 2 for says in said)

            start.listener.wait_for(together, f"frames of {name} that went together")
            assert start.all_right(pipeline=name)
            counted = [says["seq"] for says in start.results(name)]
            assert counted == list(range(len(counted)))
            assert "together" not in start.results(name)[0]["timing"]
        health = start.wait("health")
        assert [health["pipelines"][name]["dropped"]["error"] for name in "pq"] == [0, 0]
