"""`edge-agent bench pipeline`: from source to broker, compared with scripts and the bare engine.

The agent is measured as users get it: the daemon in its own process, with its results counted by a
subscriber. The scripts are measured in the same way.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from ...core.errors import SourceError, UsageError
from ...core.scratch import scratch_folder
from ...device.resources import usable_cpus
from ...models.manifest import ModelFolder, load
from ...mqtt.loopback import broker
from ...runtime.pipelines.draw import jpeg
from ...sources.source import open_source
from ...sources.spec import parse_source
from ..common.child import call
from ..common.programs import SETTLE_SECONDS, Line, endless, script
from ..common.report import Progress, rounds
from .pipeline_figures import AGENT, ENGINE, HANDMADE, PLAIN, PipelineReport, PipelineSetup, Turn
from .streams import Place, attempt, carried, idle, together

SCRIPTS = __package__
TRIAL_SHARE = 2
"""The script pipelined by hand is tried with each engine for 1 / `TRIAL_SHARE` of a turn."""
TRIED_SECONDS = 8.0
"""Time without a change of engine after which the preferred one has been tried and refused."""
AHEAD = 4
"""Frames that the script pipelined by hand decodes ahead."""


def measure(
    models: list[Path], setup: PipelineSetup, report_progress: Progress
) -> list[PipelineReport]:
    """Measure each model."""
    if not setup.recording:
        need_playable(setup.clip)
    folders = [checked(model, recording=bool(setup.recording)) for model in models]
    reports = []
    with scratch_folder("bench") as place, broker(place) as loopback:
        pictures = place / "pictures"
        pictures.mkdir()
        (pictures / "still.jpg").write_bytes(jpeg(np.zeros((64, 64, 3), np.uint8)))
        for number, folder in enumerate(folders):
            own = Place(folder.path, loopback, place / f"model-{number}")
            reports.append(_model(folder, own, setup, pictures, report_progress))
    return reports


def need_playable(clip: Path) -> None:
    """Check that a clip can be played: otherwise agents and scripts would never publish."""
    try:
        with closing(open_source(parse_source(endless(clip), Path.cwd()))) as source:
            played = source.grab()
    except SourceError as problem:
        raise UsageError(f"--source: {problem}") from None
    if not played:
        raise UsageError(f"--source: {clip}: gives no frame")


def checked(model: Path, *, recording: bool | None = None) -> ModelFolder:
    """Check that the scripts can run a model, too; *recording* None: a default clip is played."""
    folder = load(model)
    if folder.network.suffix != ".onnx":
        raise UsageError(f"{model}: bench takes .onnx here, which the scripts can run too")
    wanted = folder.manifest.input
    if recording is None and wanted.is_signal:
        raise UsageError(f"{model}: is a signal model; this takes models of pictures")
    if wanted.is_signal != bool(recording):
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
    name = report.model
    prepare(place, setup.source("real"))
    if not setup.recording:
        report.handmade = _quickest(place, setup, report_progress)
    measured = rounds(setup.runs, _turns(place, report, setup), report.others)
    for number, found in enumerate(measured, 1):
        for who, turn in found.items():
            report.turns[who].append(turn)
        shown = ", ".join(f"{who} {turn.fps:.1f}" for who, turn in found.items())
        report_progress(f"{name} round {number} of {setup.runs}, results a second: {shown}")
    for count in setup.pipelines:
        both = report.scaling[count] = list(together(place, setup, count))
        one, many = (statistics.median(each[who].fps for each in both) for who in (0, 1))
        report_progress(
            f"{name} pipelines together: {count} give {many:.1f} a second, one {one:.1f}"
        )
    # The cost of an idle pipeline does not depend on the model, and is measured with a picture.
    if setup.pipelines and not setup.recording:
        report.idle = idle(place, setup, pictures)
    if setup.rate and not setup.recording:
        guess = int(0.8 * max(turn.fps for turn in report.turns[AGENT]) / setup.rate)
        report.carried = carried(
            lambda count: attempt(place, setup, count),
            guess,
            name,
            (setup.rate, setup.p99_ms),
            report_progress,
        )
    return report


def prepare(place: Place, source: str) -> None:
    """Run the agent until it has prepared the model's form and chosen its engine, once."""
    # Twice: whether the form is best is only known after a start from it.
    for quiet in (SETTLE_SECONDS, TRIED_SECONDS):
        with place.agent([Line(source, rate=5)]) as player:
            player.settle(quiet)


def _quickest(place: Place, setup: PipelineSetup, report_progress: Progress) -> str:
    """Find the engine and threads with which the script pipelined by hand runs fastest."""
    found: dict[str, float] = {}
    for engine in ("onnxruntime", "openvino"):
        for threads in sorted({1, usable_cpus()}):
            name = f"{engine}:{threads}"
            found[name] = _script(place, setup, name, setup.seconds / TRIAL_SHARE).fps
    shown = ", ".join(f"{name} {fps:.1f}" for name, fps in found.items())
    report_progress(f"{place.model.name}, pipelined by hand, by engine:threads: {shown}")
    return max(found, key=lambda name: found[name])


def _script(place: Place, setup: PipelineSetup, engine: str, seconds: float) -> Turn:
    """Measure the plain script, or, with engine and threads, the one pipelined by hand."""
    module, arguments = f"{SCRIPTS}.plain_signal", [setup.source(), place.model]
    if not setup.recording:
        on = [*engine.split(":"), AHEAD] if engine else ["onnxruntime", 0, 0]
        module, arguments = f"{SCRIPTS}.plain", [setup.clip, place.model, *on]
    with script(module, arguments, place.loopback) as player:
        return Turn.of(player.watch(seconds))


def _turns(
    place: Place, report: PipelineReport, setup: PipelineSetup
) -> dict[str, Callable[[], Turn]]:
    """Return for each program a function that measures one turn of it."""

    def agents() -> Turn:
        with place.agent([Line(setup.source())]) as player:
            player.settle()
            window = player.watch(setup.seconds)
        report.engine = window.of("engine")[-1]
        return Turn.of(window, ages=True)

    def alone() -> Turn:
        found = call(
            f"{SCRIPTS}.steps",
            "measure",
            model=str(place.model),
            source=setup.source(),
            engine=report.engine,
            state=str(place.folder / "state"),
            seconds=setup.seconds,
        )
        found["step_ms"]["publish"] = place.overhead()
        if not setup.recording:
            found["following_ms"] = call(f"{SCRIPTS}.frame_cost", "following_ms")
        report.alone.append(found)
        return Turn(found["raw_fps"])

    turns = {PLAIN: lambda: _script(place, setup, "", setup.seconds)}
    if not setup.recording:
        turns[HANDMADE] = lambda: _script(place, setup, report.handmade, setup.seconds)
    return {**turns, AGENT: agents, ENGINE: alone}
