"""Behind a quick start on ONNX Runtime, the engine that the profile prefers is tried by measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_agent.inference.engines.registry import engine_words
from edge_agent.serving.verdicts import FILE
from tests.helpers.start_box import Box, Start, numbers, own
from tests.helpers.support import Mosquitto, check_account, run_cli, wait_until

__all__ = ["own"]

QUICK = "onnxruntime:CPUExecutionProvider"
PREFERRED = "openvino:CPU"


@pytest.fixture(scope="module")
def box(shared_broker: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Box:
    """Make a device whose profile prefers OpenVINO; preparing its model takes seconds."""
    box = Box(tmp_path_factory.mktemp("steady"), shared_broker)
    box.more |= {"engine": "auto", "profile": "intel-cpu"}
    box.verbose = True
    return box


def ledger(box: Box) -> dict[str, Any]:
    """Read what is known of models on engines."""
    file = box.state / FILE
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"races": {}}
    return known


def decisions(box: Box) -> list[dict[str, Any]]:
    """Read what has been decided."""
    return list(ledger(box)["races"].values())


def forget(box: Box) -> None:
    """Have nothing decided."""
    if known := ledger(box):
        (box.state / FILE).write_text(json.dumps({**known, "races": {}}))


def settled(start: Start) -> bool:
    """Wait for the decision of this start; gives whether OpenVINO has taken over."""
    wait_until(
        lambda: any(words in start.words() for words in ("takes over:", " was tried:")),
        "a decision",
    )
    return "takes over:" in start.words()


def no_gap(start: Start) -> bool:
    """Whether each capture has had its result, in order: the source loses nothing by itself."""
    counted = [says["seq"] for says in start.results()]
    return counted == list(range(len(counted)))


def uses_openvino(start: Start) -> bool:
    """Whether a library of OpenVINO is in the agent's memory."""
    maps = Path(f"/proc/{start.agent.process.pid}/maps").read_text()
    return "libopenvino" in maps


def engines(start: Start) -> list[str]:
    """List the engines of the results so far, without repetitions in a row."""
    found: list[str] = []
    for says in start.results():
        if found[-1:] != [says["engine"]]:
            found.append(says["engine"])
    return found


def more_results(start: Start) -> None:
    """Wait until twenty more results are there."""
    count = len(start.results())
    start.listener.wait_for(lambda _: len(start.results()) >= count + 20, "more results")


def test_the_faster_engine_serves_in_the_long_run(box: Box) -> None:
    """Results change to OpenVINO if it was faster as measured, without a gap, and stay right."""
    box.ready()
    forget(box)
    with box.start() as start:
        taken = settled(start)
        more_results(start)
        wait_until(lambda: bool(decisions(box)), "the decision to be kept")
        (decision,) = decisions(box)
        assert decision["takes_over"] is taken
        faster = decision["challenger_ms"] <= 0.95 * decision["incumbent_ms"]
        assert taken is faster, decision
        assert engines(start) == ([QUICK, PREFERRED] if taken else [QUICK])
        assert start.all_right()
        assert no_gap(start)
        said = start.wait("health")["pipelines"]
        check_account(said["p"] if isinstance(said, dict) else said[0])


def keep_decision(box: Box, *, takes_over: bool) -> None:
    """Have it decided as it must be for a test, whatever this machine would decide."""
    known = ledger(box)
    races = known["races"].items()
    name, decision = next(each for each in races if not each[0].endswith(" prepared"))
    figures = {"incumbent_ms": 2.0, "challenger_ms": 1.0 if takes_over else 3.0}
    changed = {**decision, **figures, "takes_over": takes_over, "why": "as the test wants it"}
    (box.state / FILE).write_text(json.dumps({**known, "races": {name: changed}}))


@pytest.fixture
def decided_box(box: Box) -> Box:
    """Give the device with some decision."""
    box.ready()
    if not decisions(box):
        with box.start() as start:
            settled(start)
            wait_until(lambda: bool(decisions(box)), "the decision to be kept")
    return box


def test_a_decision_against_it_is_remembered(decided_box: Box) -> None:
    """At the next start OpenVINO is not even loaded, and ONNX Runtime goes on."""
    keep_decision(decided_box, takes_over=False)
    with decided_box.start() as start:
        assert start.from_plan()
        assert not settled(start)
        assert "as the test wants it" in start.words()
        more_results(start)
        assert not uses_openvino(start)
        assert engines(start) == [QUICK]
        assert start.all_right()
    (decision,) = decisions(decided_box)
    assert decision["takes_over"] is False


def test_a_decision_against_it_holds_at_every_start(decided_box: Box) -> None:
    """Also a start that is not from a plan, as after a change of the settings, begins with ORT."""
    keep_decision(decided_box, takes_over=False)
    decided_box.plan.unlink()
    with decided_box.start() as start:
        more_results(start)
        assert not start.from_plan()
        assert not uses_openvino(start)
        assert engines(start) == [QUICK]
        assert start.all_right()
        start.planned()


def test_a_decision_for_it_is_remembered(decided_box: Box) -> None:
    """At the next start it takes over without being measured, once it has agreed on live inputs."""
    keep_decision(decided_box, takes_over=True)
    with decided_box.start() as start:
        assert start.from_plan()
        assert settled(start)
        start.listener.wait_for(lambda _: start.results(engine=PREFERRED), "its results")
        more_results(start)
        assert uses_openvino(start)
        assert engines(start) == [QUICK, PREFERRED]
        assert start.all_right()
        assert no_gap(start)
        # What the device says of itself follows, and the next start is a quick one all the same.
        start.wait("model", "numbers", engine=PREFERRED, prepared="ready")
    with decided_box.start() as start:
        assert start.from_plan()
        start.found()
        assert engines(start)[0] == QUICK


@pytest.mark.parametrize("takes_over", [False, True])
def test_check_and_run_name_the_same_engines(decided_box: Box, *, takes_over: bool) -> None:
    """Also where the agent has found that the profile's first one is not the best."""
    keep_decision(decided_box, takes_over=takes_over)
    check = run_cli("check", "--config", str(decided_box.config))
    said = next(line for line in check.stdout.splitlines() if " runs on " in line)
    with decided_box.start() as start:
        assert settled(start) is takes_over
        start.listener.wait_for(
            lambda _: start.results(engine=PREFERRED if takes_over else QUICK), "its results"
        )
        named = [engine_words(engine) for engine in engines(start)]
    sooner = f" once it is seen to be faster than {named[0]}, which starts sooner"
    assert said.endswith(f"numbers@1 runs on {named[-1]}{sooner if takes_over else ''}")


def no_quick_way(box: Box) -> None:
    """Have weights beside the network: such a model is loaded whole."""
    numbers(box.models / "numbers", external="weights.data")


def test_a_form_may_take_over_from_what_was_loaded_whole(own: Box) -> None:
    """What had no form yet gets the better of the two ways, and the next start knows which."""
    no_quick_way(own)
    own.more |= {"engine": "auto", "profile": "intel-cpu"}
    own.verbose = True
    with own.start() as start:
        taken = settled(start)
        assert "its prepared form on onnxruntime:CPU " in start.words()
        wait_until(lambda: len(decisions(own)) == 2, "both decisions to be kept")
        more_results(start)
        assert engines(start) == ([PREFERRED, QUICK] if taken else [PREFERRED])
        assert start.all_right()
        assert no_gap(start)
        start.planned()
    kept = ledger(own)["races"]
    form = next(each for name, each in kept.items() if name.endswith(" prepared"))
    other = next(each for name, each in kept.items() if not name.endswith(" prepared"))
    assert form["takes_over"] is taken
    assert other["takes_over"] is not taken
    assert (form["incumbent_ms"], form["challenger_ms"]) == (
        other["challenger_ms"],
        other["incumbent_ms"],
    )
    with own.start() as start:
        assert start.from_plan()
        assert settled(start) is not taken
        more_results(start)
        assert engines(start)[-1] == (QUICK if taken else PREFERRED)
    assert ledger(own)["races"] == kept


def test_a_form_may_take_over_where_nothing_can_go_together(own: Box) -> None:
    """Batches were asked for, of a network that takes one sample: its form costs it nothing."""
    no_quick_way(own)
    own.more |= {"engine": "auto", "profile": "intel-cpu", "batching": {"max_batch": 4}}
    with own.start() as start:
        settled(start)
        assert "the network's batch is fixed" in start.words()
        assert "its prepared form on onnxruntime:CPU " in start.words()
        assert start.all_right()
