"""From "it has arrived" to "it serves" and back: shadow, probation, commands, pins, `add`, replace.

All with real agents; what a version does wrong, it does by what it computes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.flight_recorder import FILE
from edge_agent.models.store.pointers import CANCELED, Trial, read
from edge_agent.models.store.store import Store
from tests.helpers.memory_groups import filling, limited
from tests.helpers.push import (
    Box,
    PlainPackage,
    PlainSender,
    classifier,
    endless,
    model_folder,
    plain_package,
    send,
    start_box,
)
from tests.helpers.small_disk import small_disk
from tests.helpers.small_models import encode_jpeg, plain
from tests.helpers.support import PATIENCE, AgentProcess, Heard, Listener, Mosquitto, run_cli
from tests.helpers.tiny_networks import node

Boxes = Callable[..., Box]
ON_PROBATION = {"version": "2", "phase": "probation", "percent": 100.0}
UNSIGNED: dict[str, Any] = {"trust": {"allow_unsigned": True}}


@pytest.fixture
def box(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> Boxes:
    """Start boxes that take unsigned packages, with the settings that a test wants."""

    def start(**settings: Any) -> Box:
        return start_box(
            tmp_path, broker, listen(broker.port), agent, "edge-01", **{**UNSIGNED, **settings}
        )

    return start


def package(tmp_path: Path, version: str, name: str = "level", **how: Any) -> PlainPackage:
    """Make a package of a version."""
    return plain_package(model_folder(tmp_path / version, version, name, **how), name, version)


def deliver(box: Box, tmp_path: Path, version: str, **how: Any) -> dict[str, Any]:
    """Push a version; gives how that ended."""
    return send(box.broker.port, box.device, package(tmp_path, version, **how))


def bright_fails(nodes: list[Any]) -> list[Any]:
    """Give no finite output for any picture that is brighter than noise around zero.

    The trial's inputs are within ±1 and centered, frames of the clip are not: their mean is taken
    to a power that no float32 holds.
    """
    return [
        node("ReduceMean", ["images"], ["mean"], keepdims=0),
        node("Mul", ["mean", "steep"], ["power"]),
        node("Exp", ["power"], ["huge"]),
        node("Mul", ["huge", "tiny"], ["shift"]),
        node("Add", ["images", "shift"], ["sum"]),
        node("Flatten", ["sum"], ["flat"]),
        *nodes[1:],
    ]


STEEP = {"steep": np.array(1e5, np.float32), "tiny": np.array(1e-30, np.float32)}


def failing(tmp_path: Path, version: str) -> PlainPackage:
    """Make a package of a model that passes its trial, and fails on every frame of the clip."""
    new = model_folder(tmp_path / version, version)
    classifier(new / "model.onnx", more=bright_fails, weights=STEEP)
    return plain_package(new, "level", version)


# Shadow


def test_shadow_only_reports_by_default(box: Boxes, tmp_path: Path) -> None:
    """A version that finds something else goes live, and how far it agreed is reported."""
    one = box()
    end = deliver(one, tmp_path, "2", best=2)
    assert end["state"] == "probation"
    shadow = one.wait_settled(outcome="live", version="2")["last"]["shadow"]
    assert shadow["frames"] == 3
    assert shadow["agreement"] == 0.0
    assert shadow["errors"] == 0
    assert shadow["infer_ms"]["p95"] > 0
    assert "level@2 is live in place of 1" in one.agent.words()
    assert "; agrees with it on 0 of 3 live frames (best class" in one.agent.words()


def test_shadow_can_demand_agreement(box: Boxes, tmp_path: Path) -> None:
    """With min_agreement, one that finds something else is rejected, one that agrees goes live."""
    one = box(trial={"min_agreement": 0.9})
    end = deliver(one, tmp_path, "2", best=2)
    assert end["state"] == "rejected"
    assert "shadow: agrees on 0% of 3 frames, 90% wanted" in end["why"]
    one.results_go_on("1")
    end = deliver(one, tmp_path, "3", best=0, seed=11)
    assert end["state"] == "probation"
    one.wait_live("3")
    assert one.stored()["level"] == {"3"}


def test_manifest_can_be_stricter_never_laxer(box: Boxes, tmp_path: Path) -> None:
    """A manifest raises the bounds of a trial, and cannot lower what the device wants.

    Seen on the agreement that is wanted and the frames that are looked at.
    """
    one = box(trial={"min_agreement": 0.5, "shadow_frames": 4})
    end = deliver(one, tmp_path, "2", best=2, trial={"min_agreement": 0.0, "shadow_frames": 1})
    assert end["state"] == "rejected"
    assert "0% of 4 frames, 50% wanted" in end["why"]
    end = deliver(one, tmp_path, "3", best=2, trial={"min_agreement": 0.7, "shadow_frames": 6})
    assert "0% of 6 frames, 70% wanted" in end["why"]


def test_errors_in_shadow_reject(box: Boxes, tmp_path: Path) -> None:
    """A version that fails on a live frame is rejected before anybody gets a result of it."""
    one = box()
    end = send(one.broker.port, "edge-01", failing(tmp_path, "2"))
    assert end["state"] == "rejected"
    assert "shadow: failed on a live frame" in end["why"]
    assert "not finite" in end["why"]
    one.results_go_on("1")
    models = {each["model"] for each in one.listener.on(one.topic("result", "door"))}
    assert models == {"level@1"}
    assert one.health()["pipelines"]["door"]["dropped"]["error"] == 0


# Probation


def test_errors_in_probation_roll_back(box: Boxes, tmp_path: Path) -> None:
    """A version that fails on frames while it serves gives way to the one before, by itself."""
    one = box(trial={"shadow_frames": 0, "probation_s": 60})
    with_errors = send(one.broker.port, "edge-01", failing(tmp_path, "2"))
    assert with_errors["state"] in {"probation", "rejected"}
    state = one.wait_settled(outcome="rolled-back", version="2")
    assert re.search(r"failed on \d+ frames during its probation", state["last"]["why"])
    assert state["live"] == "1"
    one.results_go_on("1")
    said = one.listener.on(one.topic("push", with_errors["transfer"]))
    assert [each["state"] for each in said][-2:] == ["probation", "rejected"]


def test_push_until_live_waits_for_the_end_of_probation(box: Boxes, tmp_path: Path) -> None:
    """`push --until live` ends with 0 when probation was passed, with 1 when it was not."""
    one = box(trial={"shadow_frames": 0, "probation_s": 2})
    good = model_folder(tmp_path / "good", "2", best=2)
    where = ("--device", one.device, "--broker", one.url)
    done = run_cli("push", str(good), *where, "--until", "live")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-2:] == ["edge-01: probation", "edge-01: live"]
    one.wait_settled(outcome="live", version="2")
    bad = model_folder(tmp_path / "bad", "3")
    classifier(bad / "model.onnx", more=bright_fails, weights=STEEP)
    done = run_cli("push", str(bad), *where, "--until", "live")
    assert done.returncode == 1
    assert "edge-01: rejected: failed on" in done.stdout
    assert one.wait_settled(outcome="rolled-back", version="3")["live"] == "2"


def test_what_is_replaced_before_its_probation_is_over_has_not_passed(
    box: Boxes, tmp_path: Path
) -> None:
    """Its push ended as live, and when the next one failed, it came back without being watched."""
    one = box(trial={"shadow_frames": 0, "probation_s": 60})
    first = deliver(one, tmp_path, "2", best=2)
    assert first["state"] == "probation"
    send(one.broker.port, "edge-01", failing(tmp_path, "3"))
    assert one.wait_settled(outcome="rolled-back", version="3")["live"] == "1"
    one.results_go_on("1")
    last = one.listener.on(one.topic("push", first["transfer"]))[-1]
    assert (last["state"], last["why"]) == (
        "rejected",
        "replaced by 3 before its probation was over",
    )
    assert one.command("activate", "again", model="level", version="2")["ok"]
    one.wait_live("2")


def test_a_probation_is_watched_while_another_version_is_tried(box: Boxes, tmp_path: Path) -> None:
    """It was not for as long as a trial takes: a minute, for one that hangs."""
    one = box(trial={"shadow_frames": 0, "probation_s": 1, "timeout_s": 20})
    with PlainSender(one.broker.port, "edge-01", package(tmp_path, "2", best=2)) as first:
        first.offer()
        first.wait("probation")
        hanging = model_folder(tmp_path / "3", "3")
        endless(hanging)
        manifest = hanging / "model.toml"
        manifest.write_text(manifest.read_text().replace('version = "2"', 'version = "3"'))
        with PlainSender(one.broker.port, "edge-01", plain_package(hanging, "level", "3")) as next_:
            next_.offer()
            next_.wait("trial")
            assert first.wait("live", "rejected")["state"] == "live"
            assert next_.said[-1]["state"] == "trial"
            assert one.command("activate", "end", model="level", version="1")["ok"]
            next_.wait("rejected")


def test_what_only_a_split_names_is_watched_as_well(box: Boxes, tmp_path: Path) -> None:
    """All its frames failed, and it ended as live, "nothing came for it during its probation"."""
    split = [{"name": "door", "model": "level@1:50,level@2:50"}]
    one = box(trial={"shadow_frames": 0, "probation_s": 20}, pipelines=split)
    send(one.broker.port, "edge-01", failing(tmp_path, "2"))
    state = one.wait_settled(outcome="rolled-back", version="2")
    assert re.search(r"failed on \d+ frames during its probation", state["last"]["why"])
    assert state["live"] == "1"


def test_a_disk_that_takes_nothing_ends_no_probation_and_puts_a_rollback_off(
    box: Boxes, tmp_path: Path
) -> None:
    """What failed on probation was kept for good, and after a kill nothing watched it."""

    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(tmp_path / "disk")], check=True)

    with small_disk(tmp_path / "disk", "24m") as disk:
        one = box(state_dir=str(disk / "state"), trial={"probation_s": 600})
        assert deliver(one, tmp_path, "2", best=2)["state"] == "probation"
        one.wait_live("2")
        one.agent.signal(signal.SIGKILL)
        one.agent.wait()
        remount("ro")
        assert started_again(one) == "level@2"
        one.listener.wait_state(one.topic("model", "level"), live="2", candidate=ON_PROBATION)
        assert one.agent.stop() == 0
        remount("rw")
        assert started_again(one) == "level@2"
        one.agent.signal(signal.SIGABRT)
        one.agent.wait()
        remount("ro")
        one.agent.restart()
        one.listener.wait_for(
            lambda _h: "level@2: rolled back later: level: rolling back:" in one.agent.words(),
            "what hinders it",
        )
        remount("rw")
        state = one.wait_settled(outcome="rolled-back", version="2")
        assert state["last"]["why"] == "the agent crashed (Aborted) during its probation"
        assert state["live"] == "1"
        one.results_go_on("1")
        assert one.agent.stop() == 0


def test_a_probation_passes_once_a_full_disk_takes_it(box: Boxes, tmp_path: Path) -> None:
    """It counted as passed, and its mark stayed: a crash days later took the good version back."""
    with small_disk(tmp_path / "disk", "24m") as disk:
        one = box(state_dir=str(disk / "state"), trial={"shadow_frames": 0, "probation_s": 4})
        assert deliver(one, tmp_path, "2", best=2)["state"] == "probation"
        with (disk / "filler").open("wb", buffering=0) as filler:

            def fill_until_said(_heard: list[Heard]) -> bool:
                """Take what is free again, too: the new version is being prepared."""
                with suppress(OSError):
                    while True:
                        filler.write(bytes(4096))
                return "level@2: its probation goes on: level: " in one.agent.words()

            one.listener.wait_for(fill_until_said, "what hinders it")
        state = one.listener.wait_state(one.topic("model", "level"), live="2")
        assert state["candidate"]["phase"] == "probation"
        (disk / "filler").unlink()
        assert one.wait_settled(outcome="live", version="2")["live"] == "2"
        one.agent.signal(signal.SIGABRT)
        one.agent.wait()
        assert started_again(one) == "level@2"
        assert one.agent.stop() == 0


def test_latency_in_probation_rolls_back(box: Boxes, tmp_path: Path) -> None:
    """A version that becomes slower than allowed while it serves gives way to the one before."""
    one = box(trial={"shadow_frames": 0, "probation_s": 60})

    def often(nodes: list[Any]) -> list[Any]:
        """Multiply never for noise around zero, and tens of thousands of times for a picture.

        So the trial passes also on a machine that is busy with something else, and no machine is
        quick enough for the pictures.
        """
        from onnx import TensorProto, helper

        body = helper.make_graph(
            [
                node("Identity", ["go"], ["go_on"]),
                node("MatMul", ["state", "mixer"], ["next"]),
            ],
            "body",
            [
                helper.make_tensor_value_info("count", TensorProto.INT64, []),
                helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                helper.make_tensor_value_info("state", TensorProto.FLOAT, [64, 64]),
            ],
            [
                helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("next", TensorProto.FLOAT, [64, 64]),
            ],
        )
        return [
            node("ReduceMean", ["images"], ["mean"], keepdims=0),
            node("Sub", ["mean", "dark"], ["light"]),
            node("Relu", ["light"], ["positive"]),
            node("Mul", ["positive", "often"], ["many"]),
            node("Cast", ["many"], ["trips"], to=7),
            node("Loop", ["trips", "true", "mixer"], ["mixed"], body=body),
            node("ReduceMean", ["mixed"], ["rest"], keepdims=0),
            node("Mul", ["rest", "nought"], ["nothing"]),
            node("Add", ["images", "nothing"], ["sum"]),
            node("Flatten", ["sum"], ["flat"]),
            *nodes[1:],
        ]

    new = model_folder(tmp_path / "2", "2", trial={"max_infer_ms": 50})
    classifier(
        new / "model.onnx",
        more=often,
        weights={
            "dark": np.array(0.1, np.float32),
            "often": np.array(200_000, np.float32),
            "mixer": np.eye(64, dtype=np.float32),
            "true": np.array(True),
            "nought": np.array(0, np.float32),
        },
    )
    end = send(one.broker.port, "edge-01", plain_package(new, "level", "2"))
    assert end["state"] in {"probation", "rejected"}, end
    state = one.wait_settled(outcome="rolled-back", version="2")
    assert "too slow" in state["last"]["why"]
    one.results_go_on("1")


def on_probation(box: Boxes, tmp_path: Path) -> Box:
    """Start a box on which version 2 is on probation for longer than the test takes."""
    one = box(trial={"probation_s": 60})
    assert deliver(one, tmp_path, "2", best=2)["state"] == "probation"
    one.wait_live("2")
    return one


def started_again(one: Box) -> str:
    """Start an agent that has ended; give the model of its first result."""
    results = one.listener.on(one.topic("result", "door"))
    before = {each["session"] for each in results}
    one.agent.restart()
    first: str = one.listener.wait_for(
        lambda _heard: next(
            (
                each["model"]
                for each in one.listener.on(one.topic("result", "door"))
                if each["session"] not in before
            ),
            None,
        ),
        "a result",
    )
    return first


def died(one: Box, inside: str, how: str) -> int:
    """Leave behind what a run does that ends inside an engine's call for this model."""
    script = (
        "from edge_agent.core.flight_recorder import recorder\n"
        f"recorder.open({str(one.agent.folder / 'state')!r})\n"
        f"recorder.enter('infer', '{inside} onnxruntime:CPU 0-0')\n{how}"
    )
    return subprocess.run([sys.executable, "-c", script], check=False).returncode


def crashed(one: Box, inside: str) -> None:
    """As `died`, by a crash."""
    how = "import faulthandler\nfaulthandler._sigsegv()"
    assert died(one, inside, how) == -signal.SIGSEGV


def test_a_power_cut_within_probation_does_not_roll_a_good_model_back(
    box: Boxes, tmp_path: Path
) -> None:
    """Killed or stopped the new version stays, watched anew; not for ever, should it be to blame.

    The third end within one probation that is not orderly brings the one before back, which is
    said though the start that does so is killed amid it.
    """
    one = on_probation(box, tmp_path)
    assert one.agent.stop() == 0
    assert started_again(one) == "level@2"
    for _ in range(2):
        one.agent.signal(signal.SIGKILL)
        one.agent.wait()
        assert started_again(one) == "level@2"
        one.listener.wait_state(one.topic("model", "level"), live="2", candidate=ON_PROBATION)
    one.agent.signal(signal.SIGKILL)
    one.agent.wait()
    one.agent.environ["EDGE_AGENT_FAULT"] = "rollback.done"
    one.agent.restart()
    assert one.agent.wait() == -signal.SIGKILL
    del one.agent.environ["EDGE_AGENT_FAULT"]
    assert started_again(one) == "level@1"
    state = one.wait_settled(outcome="rolled-back", version="2")
    assert state["last"]["why"] == "the agent ended 3 times during its probation"
    assert read(one.state / "models" / "level").marks == ()


def test_what_is_added_during_an_interrupted_probation_is_tried_at_the_next_start(
    box: Boxes, tmp_path: Path
) -> None:
    """It was tried one start later."""
    one = on_probation(box, tmp_path)
    assert one.agent.stop() == 0
    added = model_folder(tmp_path / "added", "3", best=2)
    done = run_cli("add", str(added), "--config", str(one.agent.config))
    assert done.returncode == 0, done.stderr
    assert started_again(one) == "level@2"
    one.wait_live("3")
    one.results_go_on("3")


def test_crash_in_probation_rolls_back(box: Boxes, tmp_path: Path) -> None:
    """The version before comes back before the new one has seen another frame."""
    one = on_probation(box, tmp_path)
    one.agent.signal(signal.SIGABRT)
    one.agent.wait()
    assert started_again(one) == "level@1"
    state = one.wait_settled(outcome="rolled-back", version="2")
    assert state["last"]["why"] == "the agent crashed (Aborted) during its probation"
    one.results_go_on("1")
    results = one.listener.on(one.topic("result", "door"))
    session = results[-1]["session"]
    assert {each["model"] for each in results if each["session"] == session} == {"level@1"}


def test_a_push_hears_that_its_version_was_rolled_back_at_a_start(
    box: Boxes, tmp_path: Path
) -> None:
    """Decided before there was a connection, it was not sent, and the push tried it for ever."""
    one = box(trial={"probation_s": 600})
    new = model_folder(tmp_path / "2", "2", best=2)
    where = ("--device", one.device, "--broker", one.url, "--until", "live")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(run_cli, "push", str(new), *where)
        one.wait_live("2")
        one.listener.wait_state(one.topic("model", "level"), candidate=ON_PROBATION)
        for serving in ("level@2", "level@2", "level@1"):
            one.agent.signal(signal.SIGKILL)
            one.agent.wait()
            assert started_again(one) == serving
        done = waiting.result()
    assert done.returncode == 1
    assert "edge-01: rejected: the agent ended 3 times during its probation" in done.stdout
    assert one.wait_settled(outcome="rolled-back", version="2")["live"] == "1"


def test_only_another_push_tries_again_what_was_rolled_back(box: Boxes, tmp_path: Path) -> None:
    """A sender that has missed the outcome is told, also by a later run; whoever pushes is not."""
    one = box(trial={"probation_s": 600})
    began = {"began": "2026-01-01T00:00:00.000Z"}
    with PlainSender(one.broker.port, one.device, package(tmp_path, "2", best=2)) as sender:
        sender.offer(age_s=0, **began).wait("probation")
        one.listener.wait_state(one.topic("model", "level"), candidate=ON_PROBATION)
        one.agent.signal(signal.SIGABRT)
        one.agent.wait()
        for _ in range(2):
            assert started_again(one) == "level@1"
            last = one.wait_settled(outcome="rolled-back", version="2")["last"]
            sender.said.clear()
            sender.offer(age_s=0, **began)
            end = sender.wait("rejected", "verifying", "need")
            assert end["why"] == last["why"] == "the agent crashed (Aborted) during its probation"
            assert one.agent.stop() == 0
        assert started_again(one) == "level@1"
        sender.said.clear()
        sender.offer(age_s=0, began="2026-01-01T00:00:01.000Z").wait("probation")
        one.wait_live("2")


def test_a_crash_counts_against_the_model_in_whose_call_it_happened(
    box: Boxes, tmp_path: Path
) -> None:
    """Not another model's against that on probation; its own does, in an orderly end too."""
    one = on_probation(box, tmp_path)
    one.agent.signal(signal.SIGKILL)
    one.agent.wait()
    crashed(one, "other@2")
    assert started_again(one) == "level@2"
    assert one.agent.stop() == 0
    crashed(one, "level@2")
    assert started_again(one) == "level@1"
    state = one.wait_settled(outcome="rolled-back", version="2")
    assert "crashed (Segmentation fault) during its probation" in state["last"]["why"]


def test_a_crash_of_its_own_in_shadow_rejects(box: Boxes, tmp_path: Path) -> None:
    """At once; another model's does not. It took the agent down three times."""
    one = box(trial={"shadow_frames": 100_000, "timeout_s": 600})
    with PlainSender(one.broker.port, one.device, package(tmp_path, "2", best=2)) as sender:
        sender.offer().wait("shadow")
        for crashing in ("other@2", "level@2"):
            one.agent.signal(signal.SIGKILL)
            one.agent.wait()
            crashed(one, crashing)
            assert started_again(one) == "level@1"
            if crashing == "other@2":
                sender.said.clear()
                sender.wait("shadow")
    state = one.wait_settled(outcome="rejected", version="2")
    assert state["last"]["why"] == "the agent crashed (Segmentation fault) during its trial"


def test_taking_too_much_memory_in_probation_rolls_back(box: Boxes, tmp_path: Path) -> None:
    """At once, where its inference was in flight when the kernel killed the agent."""
    one = on_probation(box, tmp_path)
    one.agent.signal(signal.SIGKILL)
    one.agent.wait()
    with limited(64) as members:
        assert died(one, "other@2", filling(members)) == -signal.SIGKILL
        assert started_again(one) == "level@2"
        assert one.agent.stop() == 0
        assert died(one, "level@2", filling(members)) == -signal.SIGKILL
    assert started_again(one) == "level@1"
    state = one.wait_settled(outcome="rolled-back", version="2")
    assert "was killed for lack of memory during its probation" in state["last"]["why"]


def test_orderly_end_during_a_trial_begins_it_again(box: Boxes, tmp_path: Path) -> None:
    """Stopped during a trial the agent ends at once; started again, it begins the trial anew."""
    one = box()
    new = model_folder(tmp_path / "2", "2")
    endless(new)
    with PlainSender(one.broker.port, "edge-01", plain_package(new, "level", "2")) as sender:
        sender.offer()
        sender.wait("trial")
        assert one.agent.stop() == 0
        assert "left behind" not in one.agent.words()
        assert one.stored()["level"] == {"2"}
        one.agent.restart()
        end = sender.wait("live", "rejected")
    assert end["state"] == "rejected"
    assert "hangs: no verdict within 4 s" in end["why"]
    one.results_go_on("1")
    one.wait_settled(outcome="rejected", version="2")
    assert one.stored()["level"] == set()


def test_first_version_that_fails_stays_for_want_of_another(box: Boxes, tmp_path: Path) -> None:
    """With nothing to go back to, a version that fails its probation goes on, and that is said."""
    one = box(version=None, trial={"probation_s": 60})
    sent = send(one.broker.port, "edge-01", failing(tmp_path, "1"))
    assert sent["state"] == "probation"
    state = one.wait_settled(outcome="live", version="1")
    assert "goes on all the same" in state["last"]["why"]
    assert state["live"] == "1"
    end = one.listener.on(one.topic("push", sent["transfer"]))[-1]
    assert (end["state"], end["why"]) == ("rejected", state["last"]["why"])
    # A better one takes its place.
    assert deliver(one, tmp_path, "2")["state"] == "probation"
    one.wait_live("2")


# Commands


def test_commands_change_what_serves(box: Boxes, tmp_path: Path) -> None:
    """Rollback, activate and delete are answered and do what they say, once.

    Also over a restart; and they never touch what is in use.
    """
    one = box(trial={"probation_s": 0})
    for version, best in (("2", 1), ("3", 2)):
        assert deliver(one, tmp_path, version, best=best)["state"] == "live"
    one.wait_live("3")
    asked = {"id": "back", "model": "level", "time": datetime.now(UTC).isoformat()}
    reply = one.command("rollback", "back", model="level", time=asked["time"])
    assert (reply["ok"], reply["result"]) == (True, {"model": "level", "version": "2"})
    one.wait_live("2")
    assert one.model()["last"]["outcome"] == "rolled-back"
    # The same request again is answered alike and not done again.
    before = len(one.listener.on(one.topic("reply", "back")))
    one.listener.publish(one.topic("in", "command", "rollback"), json.dumps(asked))
    one.listener.wait_for(
        lambda _h: len(one.listener.on(one.topic("reply", "back"))) > before, "a second reply"
    )
    assert one.listener.last(one.topic("reply", "back")) == {**reply, "repeated": True}
    one.results_go_on("2")

    reply = one.command("activate", "forth", model="level", version="3")
    assert reply["ok"], reply
    one.wait_live("3")
    for request, version, reason in (("live", "3", "live"), ("before", "2", "previous")):
        refusal = one.command("delete", f"delete-{request}", model="level", version=version)
        assert not refusal["ok"]
        assert reason in refusal["error"]
    assert not one.command("delete", "none", model="level", version="7")["ok"]
    mistyped = one.command("delete", "none-1", model="levle", version="2")
    assert mistyped["error"] == "levle@2: not found; no model of that name; did you mean 'level'?"
    assert not one.command("activate", "none-2", model="level", version="7")["ok"]
    mistyped = one.command("rollback", "none-3", model="levle")
    assert mistyped["error"] == "levle: no model of that name; did you mean 'level'?"
    assert deliver(one, tmp_path, "4", best=0)["state"] == "live"
    one.wait_live("4")
    assert one.command("delete", "delete-2", model="level", version="2")["ok"]
    assert one.stored()["level"] == {"3", "4"}

    # Over a restart.
    assert one.agent.stop() == 0
    one.agent.restart()
    one.wait_live("4")
    replies = len(one.listener.on(one.topic("reply", "back")))
    one.listener.publish(one.topic("in", "command", "rollback"), json.dumps(asked))
    one.listener.wait_for(
        lambda _h: len(one.listener.on(one.topic("reply", "back"))) > replies, "another reply"
    )
    again = one.listener.last(one.topic("reply", "back"))
    assert again is not None
    # It may be more than a minute later by now.
    assert again.get("repeated") or "expired" in again["error"]
    one.results_go_on("4")

    done = run_cli("rollback", "level", "--device", "edge-01", "--broker", one.url)
    assert done.returncode == 0, done.stderr
    assert "level is back at version 3" in done.stdout
    one.wait_live("3")
    done = run_cli("models", "--broker", one.url)
    assert done.returncode == 0
    assert "level: live 3" in done.stdout


def test_retained_command_is_refused(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """A retained rollback is answered with a refusal, at the connect that replays it."""
    listener = listen(broker.port)
    body = json.dumps({"id": "kept", "model": "level"})
    listener.publish("edge/edge-01/in/command/rollback", body, retain=True)
    one = start_box(tmp_path, broker, listener, agent, "edge-01", **UNSIGNED)
    reply = one.listener.wait_state(one.topic("reply", "kept"), id="kept")
    assert not reply["ok"]
    assert "retain" in reply["error"]
    one.results_go_on("1")


def test_rollback_of_what_is_being_tried(box: Boxes, tmp_path: Path) -> None:
    """A rollback while a newer version is in its shadow phase ends that one, too."""
    one = box(trial={"probation_s": 0})
    assert deliver(one, tmp_path, "2", best=1)["state"] == "live"
    one.wait_live("2")
    third = package(tmp_path, "3", best=2, trial={"shadow_frames": 10_000})
    with PlainSender(one.broker.port, "edge-01", third) as sender:
        sender.offer()
        sender.wait("shadow")
        assert one.command("rollback", "now", model="level")["ok"]
        end = sender.wait("live", "rejected")
    assert end["state"] == "rejected"
    assert "by command" in end["why"]
    one.wait_live("1")
    one.results_go_on("1")


def test_what_a_rollback_has_ended_is_not_tried_again_after_a_kill(
    box: Boxes, tmp_path: Path
) -> None:
    """The next start answered the rollback, and began the trial of the newer version again."""
    one = box(trial={"probation_s": 0})
    assert deliver(one, tmp_path, "2", best=1)["state"] == "live"
    third = package(tmp_path, "3", best=2, trial={"shadow_frames": 10_000})
    one.agent.environ["EDGE_AGENT_FAULT"] = "rollback.done"
    assert one.agent.stop() == 0
    assert started_again(one) == "level@2"
    with PlainSender(one.broker.port, "edge-01", third) as sender:
        sender.offer()
        sender.wait("shadow")
        body = {"model": "level", "id": "now", "time": datetime.now(UTC).isoformat()}
        one.listener.publish(one.topic("in", "command", "rollback"), json.dumps(body).encode())
        assert one.agent.wait() == -signal.SIGKILL
        del one.agent.environ["EDGE_AGENT_FAULT"]
        assert started_again(one) == "level@1"
        end = sender.wait("live", "rejected")
    assert (end["state"], end["why"]) == ("rejected", "rolled back by command")
    assert one.listener.wait_state(one.topic("reply", "now"), ok=True)
    state = one.wait_settled(outcome="rejected", version="3")
    assert state["live"] == "1"
    assert "its trial was interrupted" not in one.agent.words()


def test_what_is_activated_ends_what_is_being_tried_in_one_write(tmp_path: Path) -> None:
    """After a kill right behind it, the newer version was tried again, and came to serve."""
    store = Store(tmp_path)
    for version in ("1", "2"):
        store.activate("level", version)
    store.set_trial("level", Trial("3", "shadow", 0, push="p"))
    done = store.activate("level", "1", cancels="1 was activated by command")
    assert done.live == "1"
    assert done.trial == Trial("3", CANCELED, 0, why="1 was activated by command", push="p")


def test_a_rollback_that_failed_has_not_ended_what_is_being_tried(
    box: Boxes, tmp_path: Path
) -> None:
    """With no version to go back to, or to activate, the candidate goes on and comes to serve."""
    one = box(trial={"probation_s": 0})
    second = package(tmp_path, "2", best=2, trial={"shadow_frames": 150})
    with PlainSender(one.broker.port, "edge-01", second) as sender:
        sender.offer()
        sender.wait("shadow")
        assert not one.command("rollback", "now", model="level")["ok"]
        assert not one.command("activate", "other", model="level", version="7")["ok"]
        assert sender.wait("live", "rejected")["state"] == "live"
    one.wait_live("2")


def test_pinned_version_stays(box: Boxes, tmp_path: Path) -> None:
    """A pipeline that names a version keeps it while another follows the live one."""
    one = box(
        trial={"probation_s": 0},
        pipelines=[
            {"name": "door", "model": "level"},
            {"name": "pinned", "model": "level@1"},
        ],
    )
    assert deliver(one, tmp_path, "2", best=1)["state"] == "live"
    one.wait_live("2")
    one.results_go_on("1", "pinned")
    one.results_go_on("2")
    assert one.health()["pipelines"]["pinned"]["dropped"]["error"] == 0


def test_pinned_version_can_come_later(box: Boxes, tmp_path: Path) -> None:
    """A pipeline that names a version which is not there yet starts when it has been pushed.

    It keeps it over newer ones, and protects it from being deleted.
    """
    one = box(
        version=None,
        trial={"probation_s": 0, "shadow_frames": 0},
        pipelines=[{"name": "door", "model": "level"}, {"name": "pinned", "model": "level@2"}],
    )
    for version, best in (("2", 1), ("3", 2), ("4", 0)):
        assert deliver(one, tmp_path, version, best=best)["state"] == "live"
    one.wait_live("4")
    one.wait_live("2", pipeline="pinned")
    one.results_go_on("2", "pinned")
    refusal = one.command("delete", "pinned", model="level", version="2")
    assert not refusal["ok"]
    assert "pipeline" in refusal["error"]


def test_a_pinned_version_does_not_serve_before_its_trial_is_over(
    box: Boxes, tmp_path: Path
) -> None:
    """A reload or a kill within its shadow made it serve, and it went on when it was rejected."""
    one = box(
        trial={"min_agreement": 0.9, "shadow_frames": 100_000, "timeout_s": 300},
        pipelines=[{"name": "door", "model": "level"}, {"name": "pinned", "model": "level@2"}],
        infer={"models": ["level@2"]},
    )
    waits, gray = "level@2: has not passed its trial yet", encode_jpeg(plain(100))
    new = package(tmp_path, "2", best=2)
    with PlainSender(one.broker.port, one.device, new) as sender:
        sender.offer().wait("shadow")
        one.agent.signal(signal.SIGHUP)
        one.listener.wait_for(
            lambda _h: waits in str(one.listener.last(one.topic("health"))), "why it does not serve"
        )
        one.listener.publish(one.topic("in", "infer", "level", "early"), gray)
        answer = one.listener.wait_state(one.topic("reply", "early"), id="early")
        assert not answer["ok"]
        assert waits in answer["error"]
        one.agent.process.kill()
        one.agent.wait()
        settings = one.agent.config.read_text()
        one.agent.config.write_text(settings.replace("100000", "30"))
        one.agent.restart()
        assert "shadow: agrees on 0% of 30" in sender.wait("live", "rejected")["why"]
    one.results_go_on("1")
    assert one.health()["why"] == ["model level@2: not found; there is 1"]
    assert not one.listener.on(one.topic("result", "pinned"))
    assert deliver(one, tmp_path / "better", "2", best=0, seed=11)["state"] == "probation"
    one.results_go_on("2", "pinned")
    one.listener.publish(one.topic("in", "infer", "level", "late"), gray)
    assert one.listener.wait_state(one.topic("reply", "late"), id="late")["model"] == "level@2"


@pytest.mark.parametrize("way", ["added", "killed"])
def test_what_a_start_finds_untried_serves_no_pin_before_its_trial_is_over(
    box: Boxes, tmp_path: Path, way: str
) -> None:
    """It served at once, and went on when it was rejected; health was ok."""
    one = box(
        trial={"min_agreement": 0.9, "shadow_frames": 30},
        pipelines=[{"name": "door", "model": "level"}, {"name": "pinned", "model": "level@2"}],
    )
    assert one.agent.stop() == 0
    bad, config = package(tmp_path, "2", best=2), ["--config", str(one.agent.config)]
    if way == "added":
        assert run_cli("add", str(tmp_path / "2"), *config).returncode == 0
    else:
        one.agent.environ["EDGE_AGENT_FAULT"] = "commit.done"
        one.agent.restart()
        with PlainSender(one.broker.port, one.device, bad) as sender:
            sender.offer()
            one.agent.wait()
        del one.agent.environ["EDGE_AGENT_FAULT"]
    one.agent.restart()
    why = one.wait_settled(outcome="rejected", version="2")["last"]["why"]
    assert "shadow: agrees on 0% of 30" in why
    one.results_go_on("1")
    assert not one.listener.on(one.topic("result", "pinned"))
    assert one.health()["why"] == ["model level@2: not found; there is 1"]
    assert one.agent.stop() == 0
    model_folder(tmp_path / "better" / "2", "2", best=0, seed=11)
    assert run_cli("add", str(tmp_path / "better" / "2"), *config).returncode == 0
    one.agent.restart()
    one.wait_settled(outcome="live", version="2")
    one.results_go_on("2", "pinned")


def test_what_a_start_finds_untried_and_damaged_says_so(box: Boxes, tmp_path: Path) -> None:
    """It waits for no trial that never comes; a mended one is tried at the next start."""
    one = box(
        pipelines=[{"name": "door", "model": "level"}, {"name": "pinned", "model": "level@2"}],
    )
    assert one.agent.stop() == 0
    folder = model_folder(tmp_path / "2", "2", best=2)
    assert run_cli("add", str(folder), "--config", str(one.agent.config)).returncode == 0
    network = one.state / "models" / "level" / "2" / "model.onnx"
    whole = network.read_bytes()
    network.write_bytes(whole[:-1])
    one.agent.restart()
    state = one.wait_settled(outcome="rejected", version="2")
    assert "model.onnx has changed on the disk" in state["last"]["why"]
    assert any("model.onnx has changed on the disk" in why for why in one.health()["why"])
    assert read(network.parents[1]).trial is None
    assert one.agent.stop() == 0
    network.write_bytes(whole)
    one.agent.restart()
    one.wait_settled(outcome="live", version="2")
    one.results_go_on("2", "pinned")


def test_an_untried_version_serves_no_pin_while_another_is_on_probation(
    box: Boxes, tmp_path: Path
) -> None:
    """It served, and after its rejection from memory until the next start."""
    one = box(
        trial={"probation_s": 60},
        pipelines=[{"name": "door", "model": "level"}, {"name": "pinned", "model": "level@3"}],
    )
    assert deliver(one, tmp_path, "2", best=2)["state"] == "probation"
    assert one.agent.stop() == 0
    failing(tmp_path, "3")
    added = run_cli("add", str(tmp_path / "3"), "--config", str(one.agent.config))
    assert added.returncode == 0, added.stderr
    one.agent.restart()
    one.listener.wait_for(
        lambda _h: one.model().get("last", {}).get("outcome") == "rejected", "its rejection"
    )
    assert "model level@3: has not passed its trial yet" in one.agent.words()
    assert "model level@3 is live" not in one.agent.words()
    assert one.stored()["level"] == {"2"}
    said = "model level@3: not found; there is 2, 1"
    one.listener.wait_for(lambda _h: said in one.health()["why"], "what it waits for")


def test_a_version_that_may_be_asked_stays(box: Boxes, tmp_path: Path) -> None:
    """Also before anybody has asked: it was deleted, and every question failed from then on."""
    one = box(
        version=None,
        trial={"probation_s": 0, "shadow_frames": 0},
        infer={"models": ["level@2:50,level@3.0:50"]},
    )
    for version, best in (("1", 0), ("2", 1), ("3", 2), ("4", 0), ("5", 1)):
        assert deliver(one, tmp_path, version, best=best)["state"] == "live"
    one.wait_live("5")
    for version in ("2", "3"):
        refusal = one.command("delete", f"asked-{version}", model="level", version=version)
        assert not refusal["ok"]
        assert "infer.models" in refusal["error"]
    assert one.command("delete", "no-one-asks", model="level", version="1")["ok"]


# `add`


def test_add_beside_an_agent_is_like_a_push(box: Boxes, tmp_path: Path) -> None:
    """`add` on the state_dir of an agent at work has it try the model, and ends as a push does."""
    one = box()
    config = ["--config", str(one.agent.config)]
    done = run_cli("add", str(model_folder(tmp_path / "2", "2", best=2)), *config)
    assert done.returncode == 0, done.stderr
    one.wait_live("2")
    phases = [
        each["candidate"]["phase"]
        for each in one.listener.on(one.topic("model", "level"))
        if "candidate" in each
    ]
    assert {"trial", "shadow"} <= set(phases)
    one.wait_settled(outcome="live", version="2")

    new = failing(tmp_path, "3")
    assert new.blocks
    done = run_cli("add", str(tmp_path / "3"), *config)
    assert done.returncode == 1
    assert "shadow: failed on a live frame" in done.stderr
    assert "Traceback" not in done.stderr
    one.results_go_on("2")
    assert one.stored()["level"] == {"2"}
    assert not list((one.state / "added").iterdir())


def test_add_without_an_agent_is_tried_at_its_start(box: Boxes, tmp_path: Path) -> None:
    """What was added while no agent ran is tried when it starts.

    It serves if it passes, and is rejected if not.
    """
    one = box()
    assert one.agent.stop() == 0
    config = ["--config", str(one.agent.config)]
    assert run_cli("add", str(model_folder(tmp_path / "2", "2", best=2)), *config).returncode == 0
    one.agent.restart()
    one.wait_live("2")
    state = one.wait_settled(outcome="live", version="2")
    assert "shadow" in state["last"]
    assert one.agent.stop() == 0
    failing(tmp_path, "3")
    assert run_cli("add", str(tmp_path / "3"), *config).returncode == 0
    one.agent.restart()
    state = one.wait_settled(outcome="rejected", version="3")
    assert "shadow: failed on a live frame" in state["last"]["why"]
    one.results_go_on("2")
    assert one.stored()["level"] == {"2"}


# Little memory, no clock


def test_replace_mode_says_what_it_costs(box: Boxes, tmp_path: Path) -> None:
    """On a profile that cannot hold two models the old one goes first; that is said.

    So is its cost in frames; and one that does not pass its trial changes nothing.
    """
    one = box(profile="arm-small", engine="auto", trial={"probation_s": 0})
    assert deliver(one, tmp_path, "2", best=2)["state"] == "live"
    one.wait_live("2")
    last = one.wait_settled(outcome="live", version="2")["last"]
    assert last["mode"] == "replace"
    assert last["swap_ms"] > 0
    assert last["frames_dropped"] >= 0
    one.results_go_on("2")
    end = deliver(one, tmp_path, "3", best=1, trial={"max_infer_ms": 0.0001})
    assert end["state"] == "rejected"
    one.results_go_on("2")
    done = run_cli("rollback", "level", "--device", "edge-01", "--broker", one.url)
    assert done.returncode == 0
    assert one.wait_settled(outcome="rolled-back", version="2")["last"]["mode"] == "replace"
    one.results_go_on("1")


UNSET_CLOCK = """
import sys
# Whatever keeps the clock of the machine that this test runs on.
import edge_agent.device.wall_clock as wall_clock
wall_clock.system_has_set_clock = lambda: False
sys.argv = ["edge-agent", "run", "--config", sys.argv[1]]
from edge_agent.__main__ import main
sys.exit(main())
"""


def test_without_a_clock_the_push_waits(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """Before the clock is set, a package that expires waits, and says so; health says `unset`.

    One that does not expire goes live. The clock is behind the end of the last run, as it is on a
    box without a battery that was away from the network when it was switched on.
    """
    listener = listen(broker.port)

    def start(settings: str, name: str) -> AgentProcess:
        process = AgentProcess.__new__(AgentProcess)
        process.folder = tmp_path / name
        process.folder.mkdir()
        process.config = process.folder / "config.toml"
        process.config.write_text(settings)
        process.log = process.folder / "agent.log"
        ended = process.folder / "state" / FILE
        ended.parent.mkdir()
        ended.touch()
        later = time.time() + 3600
        os.utime(ended, (later, later))
        with process.log.open("wb") as log:
            process.process = subprocess.Popen(
                [sys.executable, "-c", UNSET_CLOCK, str(process.config)], stdout=log, stderr=log
            )
        return process

    one = start_box(tmp_path, broker, listener, start, "edge-01", **UNSIGNED)
    try:
        new = model_folder(tmp_path / "2", "2", best=2)
        dated = plain_package(new, "level", "2", expires="2020-01-01T00:00:00.000Z")
        with PlainSender(broker.port, "edge-01", dated) as sender:
            sender.offer()
            says = sender.wait("need", "rejected", "live")
        assert says["state"] == "need"
        assert "clock" in says["why"]
        assert not says.get("need")
        assert not sender.sent
        one.results_go_on("1")
        assert one.health()["clock"] == "unset"
        assert send(broker.port, "edge-01", plain_package(new, "level", "2"))["state"] == (
            "probation"
        )
        one.wait_live("2")
    finally:
        one.agent.process.terminate()
        one.agent.process.wait(PATIENCE)
        print(one.agent.words())
