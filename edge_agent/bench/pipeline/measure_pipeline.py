"""`edge-agent bench pipeline`: the whole way from source to broker, beside scripts and the engine.

The agent measured is the daemon itself in a process of its own, its results counted by a
subscriber: that is what users get. The scripts are counted in the same way. All take turns in each
round, so that what disturbs the device disturbs them alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...core.errors import UsageError
from ...core.scratch import scratch_folder
from ...device.resources import usable_cpus
from ...models.manifest import ModelFolder, load
from ...mqtt.loopback import Loopback, broker
from ...runtime.pipelines.draw import jpeg
from ..common.child import call
from .frame_cost import following_ms, overhead
from .pipeline_figures import AGENT, ENGINE, HANDMADE, PLAIN, PipelineReport, PipelineSetup, Turn
from .players import SETTLE_SECONDS, Line, Window, agent, played, script
from .streams import Place, carried, idle, together

Progress = Callable[[str], None]

TRIAL_SHARE = 2
"""The script pipelined by hand is tried for this part of a turn with each engine."""
TRIED_SECONDS = 8.0
"""Without a change of engine: what the profile prefers has been tried by then, and refused."""


def measure(
    models: list[Path], setup: PipelineSetup, report_progress: Progress
) -> list[PipelineReport]:
    """Measure each model.

    Raises:
        AgentError: a program failed.
    """
    folders = [_checked(model, setup) for model in models]
    reports = []
    with scratch_folder("bench") as place, broker(place) as loopback:
        pictures = place / "pictures"
        pictures.mkdir()
        (pictures / "still.jpg").write_bytes(jpeg(np.zeros((64, 64, 3), np.uint8)))
        for number, folder in enumerate(folders):
            own = place / f"model-{number}"
            own.mkdir()
            reports.append(
                _model(folder, Place(folder.path, loopback, own), setup, pictures, report_progress)
            )
    return reports


def _checked(model: Path, setup: PipelineSetup) -> ModelFolder:
    folder = load(model)
    if folder.network.suffix != ".onnx":
        raise UsageError(f"{model}: bench pipeline takes .onnx, which the scripts can run too")
    wanted = folder.manifest.input
    if wanted.is_signal != bool(setup.recording):
        mend = "a recording, as --source vibration.csv" if wanted.is_signal else "a clip"
        raise UsageError(f"--source: {folder.manifest.id} is a {wanted.kind} model; give {mend}")
    if wanted.resample_hz:
        raise UsageError(f"{model}: input.resample_hz: the plain script does not resample")
    return folder


def _model(
    folder: ModelFolder,
    place: Place,
    setup: PipelineSetup,
    pictures: Path,
    report_progress: Progress,
) -> PipelineReport:
    report = PipelineReport(folder.manifest.id, setup)
    _prepare(place, setup)
    if not setup.recording:
        report.handmade = _quickest(folder, place.loopback, setup, report_progress)
    for number in range(setup.runs):
        _round(folder, place, report, setup)
        fps = {name: turns[-1].fps for name, turns in report.turns.items()}
        shown = ", ".join(f"{name} {value:.1f}" for name, value in fps.items())
        report_progress(
            f"{report.model} round {number + 1} of {setup.runs}, results a second: {shown}"
        )
    for count in setup.pipelines:
        rounds = report.scaling[count] = list(together(place, setup, count))
        one, many = (statistics.median(both[who].fps for both in rounds) for who in (0, 1))
        report_progress(
            f"{report.model} pipelines together: {count} give {many:.1f} a second, one {one:.1f}"
        )
    # What an idle pipeline costs is no matter of the model, and is measured with a picture.
    if setup.pipelines and not setup.recording:
        report.idle = idle(place, setup, pictures)
    if setup.rate and not setup.recording:
        most = max(turn.fps for turn in report.turns[AGENT])
        guess = int(0.8 * most / setup.rate)
        report.carried = carried(
            place, setup, guess, lambda text: report_progress(f"{report.model} {text}")
        )
    return report


def _prepare(place: Place, setup: PipelineSetup) -> None:
    """Run the agent until it has prepared the model's form and chosen its engine, once."""
    line = Line(played(setup, "real"), rate=5)
    # Twice: what the form serves best is found out at the first start from it.
    for quiet in (SETTLE_SECONDS, TRIED_SECONDS):
        with agent(place.model, [line], place.loopback, place.folder) as player:
            player.settle(quiet)


def _quickest(
    folder: ModelFolder, loopback: Loopback, setup: PipelineSetup, report_progress: Progress
) -> str:
    """Find the engine and threads with which the script pipelined by hand runs quickest."""
    found: dict[str, float] = {}
    for engine in ("onnxruntime", "openvino"):
        for threads in sorted({1, usable_cpus()}):
            arguments = [setup.clip, folder.path, engine, threads]
            with script("handmade", arguments, loopback) as player:
                window = player.watch(setup.seconds / TRIAL_SHARE)
            found[f"{engine}:{threads}"] = window.fps
    shown = ", ".join(f"{name} {fps:.1f}" for name, fps in found.items())
    report_progress(
        f"{folder.manifest.id}, the script pipelined by hand, by engine:threads: {shown}"
    )
    return max(found, key=lambda name: found[name])


def _round(folder: ModelFolder, place: Place, report: PipelineReport, setup: PipelineSetup) -> None:
    """Measure one turn of each."""
    source = played(setup)
    if setup.recording:
        with script("plain_signal", [source, folder.path], place.loopback) as player:
            report.turns[PLAIN].append(_turn(player.watch(setup.seconds)))
    else:
        with script("plain", [setup.clip, folder.path], place.loopback) as player:
            report.turns[PLAIN].append(_turn(player.watch(setup.seconds)))
        arguments = [setup.clip, folder.path, *report.handmade.split(":")]
        with script("handmade", arguments, place.loopback) as player:
            report.turns[HANDMADE].append(_turn(player.watch(setup.seconds)))
    with agent(place.model, [Line(source)], place.loopback, place.folder) as player:
        player.settle()
        window = player.watch(setup.seconds)
    report.turns[AGENT].append(
        Turn(window.fps, window.cpu_per_1000, tuple(window.of("timing", "age_ms")))
    )
    report.engine = window.of("engine")[-1]
    alone = call(
        f"{__package__}.steps",
        "measure_signal" if setup.recording else "measure",
        model=str(folder.path),
        source=source,
        engine=report.engine,
        state=str(place.folder / "state"),
        seconds=setup.seconds,
    )
    report.lanes, report.threads = alone["lanes"], alone["threads"]
    report.turns[ENGINE].append(Turn(alone["raw_fps"]))
    report.floor_ms.append(alone["decode_cpu_ms"] + alone["engine_cpu_ms"])
    report.steps.append({**alone["step_ms"], "publish": overhead(place.loopback)})
    if not setup.recording:
        report.usual_ms.append(alone["usual_preprocess_ms"])
        report.cached_ms.append(alone["cached_preprocess_ms"])
        report.following_ms.append(following_ms())


def _turn(window: Window) -> Turn:
    return Turn(window.fps, window.cpu_per_1000)
