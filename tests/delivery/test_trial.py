"""A candidate in a process of its own: whatever it does there, what comes back is a verdict."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from edge_agent.delivery.trial.process import Verdict, run_trial
from edge_agent.inference.engines.engine import EngineChoice
from tests.helpers.processes import children_of
from tests.helpers.push import LABELS, classifier, golden, model_folder
from tests.helpers.small_models import wrapping
from tests.helpers.support import wait_until
from tests.helpers.tiny_networks import node

ORT = EngineChoice("onnxruntime")
OPENVINO = EngineChoice("openvino")


def trial(folder: Path, *choices: EngineChoice, **how: Any) -> Verdict:
    """Try a model of pictures."""
    bounds = {"golden": True, "timeout_s": 60.0, "memory_mb": 0, **how}
    return run_trial(folder, choices or (ORT,), "picture", **bounds)


def children() -> list[psutil.Process]:
    """List the trials under this process."""
    return children_of(None, "edge_agent.delivery.trial.worker")


def heavy(folder: Path, megabytes: int) -> Path:
    """Make a model that is small on disk and holds so many megabytes while it runs."""
    new = model_folder(folder, "1")

    def more(nodes: list[Any]) -> list[Any]:
        return [
            node("ReduceMean", ["images"], ["mean"], keepdims=0),
            node("Reshape", ["mean", "one"], ["single"]),
            node("Expand", ["single", "large"], ["wide"]),
            node("Sin", ["wide"], ["waves"]),
            node("ReduceMean", ["waves"], ["rest"], keepdims=0),
            node("Mul", ["rest", "nought"], ["nothing"]),
            node("Add", ["images", "nothing"], ["sum"]),
            node("Flatten", ["sum"], ["flat"]),
            *nodes[1:],
        ]

    weights: dict[str, NDArray[Any]] = {
        "one": np.array([1], np.int64),
        "large": np.array([megabytes * 2**18], np.int64),
        "nought": np.array(0, np.float32),
    }
    classifier(new / "model.onnx", more=more, weights=weights)
    return new


def test_good_model_passes(tmp_path: Path) -> None:
    """A good model passes on each engine, which is named with its time; there is no child left."""
    new = model_folder(tmp_path / "1", "1")
    for choice, label in ((ORT, "onnxruntime:"), (OPENVINO, "openvino:")):
        verdict = trial(new, choice)
        assert verdict.passed, verdict.why
        assert verdict.engine.startswith(label)
        assert verdict.infer_ms > 0
        assert "agrees with onnxruntime:CPUExecutionProvider without" in verdict.why
    assert not children()


def test_golden_outputs_decide(tmp_path: Path) -> None:
    """Golden outputs that the model gives pass, others do not; unless they are not asked for."""
    new = model_folder(tmp_path / "1", "1", best=1)
    right = np.array([[0.02, 0.96, 0.02]], np.float32)
    golden(new, {"scores": right})
    verdict = trial(new)
    assert verdict.passed, verdict.why
    assert verdict.why.startswith("golden")
    golden(new, {"scores": right[:, ::-1].copy()})
    assert trial(new).passed, "the best class is the same"
    golden(new, {"scores": np.roll(right, 1, axis=1)})
    verdict = trial(new)
    assert not verdict.passed
    assert verdict.why.startswith("golden")
    assert LABELS[1] in verdict.why
    assert trial(new, golden=False).passed


def test_without_golden_another_engine_is_asked(tmp_path: Path) -> None:
    """Where there is no golden.npz and there is a second engine, the two are compared."""
    verdict = trial(model_folder(tmp_path / "1", "1"), OPENVINO, ORT)
    assert verdict.passed
    assert "agrees with onnxruntime" in verdict.why


def test_engine_that_cannot_is_passed_over(tmp_path: Path) -> None:
    """The trial runs on the first engine that can, as the agent would."""
    verdict = trial(model_folder(tmp_path / "1", "1"), EngineChoice("openvino", device="NONE"), ORT)
    assert verdict.passed
    assert verdict.engine.startswith("onnxruntime")


def test_memory_over_budget(tmp_path: Path) -> None:
    """A model that takes more than the budget is ended; the engines' own libraries do not count."""
    light = trial(heavy(tmp_path / "light", 1), memory_mb=150)
    assert light.passed, light.why
    verdict = trial(heavy(tmp_path / "heavy", 600), memory_mb=150)
    assert not verdict.passed
    assert verdict.why == "takes more than the 150 MB that models may take here"
    verdict = trial(tmp_path / "heavy", memory_mb=150, bound="of 300 MiB of the machine's memory")
    assert verdict.why.endswith(" may take here, of 300 MiB of the machine's memory")
    assert not children()


def test_impossible_amount_of_memory(tmp_path: Path) -> None:
    """A model that asks for more memory than any machine has is a verdict too."""
    verdict = trial(heavy(tmp_path / "1", 2**30))
    assert not verdict.passed
    assert "\n" not in verdict.why


def running(work: Callable[[], Verdict]) -> tuple[threading.Thread, list[Verdict]]:
    """Run a trial beside us, until its child is there."""
    verdicts: list[Verdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(work()))
    thread.start()
    deadline = time.monotonic() + 30
    while not children() and time.monotonic() < deadline:
        os.sched_yield()
    assert children(), "no child has been started"
    return thread, verdicts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL])
def test_death_of_the_child_is_a_verdict(tmp_path: Path, number: signal.Signals) -> None:
    """However the child dies, its death is named and the caller lives."""
    new = heavy(tmp_path / "1", 300)
    thread, verdicts = running(lambda: trial(new))
    children()[0].send_signal(number)
    thread.join(30)
    assert verdicts
    assert not verdicts[0].passed
    assert verdicts[0].why == f"crashes the engine ({number.name})"


@pytest.mark.parametrize("ready", [False, True])
def test_a_service_that_stops_is_no_verdict(tmp_path: Path, ready: bool) -> None:
    """Systemd tells the child to end, too, and maybe before the agent: the model is still good."""
    new = heavy(tmp_path / "1", 300)
    thread, verdicts = running(lambda: trial(new))
    child = children()[0]
    if ready:
        loaded = f"/proc/{child.pid}/maps"
        wait_until(lambda: "onnxruntime" in Path(loaded).read_text(), "the child's engine")
    child.terminate()
    thread.join(60)
    assert verdicts[0].passed, verdicts[0].why
    assert not children()


def test_trial_can_be_stopped(tmp_path: Path) -> None:
    """A trial that nobody needs any more ends at once, with the reason that was given."""
    why: list[str] = []
    new = heavy(tmp_path / "1", 300)
    thread, verdicts = running(lambda: trial(new, stopped=lambda: why[0] if why else None))
    why.append("rolled back by command")
    thread.join(30)
    assert verdicts == [Verdict(False, "rolled back by command")]
    assert not children()


def test_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """A trial whose agent is killed dies with it."""
    import subprocess
    import sys

    new = heavy(tmp_path / "1", 300)
    program = (
        "from pathlib import Path; from edge_agent.delivery.trial.process import run_trial;"
        "from edge_agent.inference.engines.engine import EngineChoice;"
        f"run_trial(Path({str(new)!r}), [EngineChoice('onnxruntime')], 'picture', golden=True,"
        " timeout_s=60, memory_mb=0, stopped=lambda: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", f"while True: {program}"])
    try:
        deadline = time.monotonic() + 30
        while not (found := children()) and time.monotonic() < deadline:
            os.sched_yield()
        assert found, "no child has been started"
    finally:
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs(found, timeout=30)
    assert not alive


def test_an_engine_that_computes_wrongly_gives_way_to_the_next(tmp_path: Path) -> None:
    """It is named with the reason; where there is no other, the model is rejected."""
    new = wrapping(tmp_path / "1")
    bright = {"picture": np.full((1, 3, 16, 16), 200, np.float32)}
    verdict = trial(new, OPENVINO, ORT, frame=lambda _specs: bright)
    assert verdict.passed
    assert verdict.engine.startswith("onnxruntime:")
    ((number, why),) = verdict.wrong
    assert number == 0
    assert why.startswith("beside onnxruntime:CPUExecutionProvider without optimization: output ")
    alone = trial(new, OPENVINO, frame=lambda _specs: bright)
    assert not alone.passed
    assert alone.why == why


def test_dark_frames_do_not_tell_engines_apart(tmp_path: Path) -> None:
    """What is compared is what the cameras see; the noise beside it is dark, too."""
    dark = {"picture": np.full((1, 3, 16, 16), 20, np.float32)}
    verdict = trial(wrapping(tmp_path / "1"), OPENVINO, ORT, frame=lambda _specs: dark)
    assert verdict.passed
    assert verdict.engine.startswith("openvino:")
    assert verdict.why.endswith("without optimization on 3 live frames")
    # They were the same frame.
    assert verdict.proven is None


def test_what_live_frames_have_shown_of_an_engine_is_said(tmp_path: Path) -> None:
    """By its number among the choices; a single frame is not enough."""
    new, grays = wrapping(tmp_path / "1"), iter(range(20, 30))
    verdict = trial(
        *(new, ORT, OPENVINO),
        frame=lambda _specs: {"picture": np.full((1, 3, 16, 16), next(grays), np.float32)},
    )
    assert verdict.proven == 0
    assert trial(new, ORT).proven is None
