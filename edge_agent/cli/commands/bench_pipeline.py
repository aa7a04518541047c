"""`edge-agent bench pipeline`: its options, and its figures as tables."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import AgentError, UsageError
from ...tools import bars
from ..options import Options, add_config, load_settings, not_negative, positive
from ..progress import say
from .bench_paths import (
    Table,
    add_shared,
    carried_words,
    clip_of,
    picture_of,
    recording_of,
    show,
    spread_words,
)

if TYPE_CHECKING:
    from ...bench.pipeline.pipeline_figures import PipelineReport
    from ...models.manifest import ModelFolder
    from ...serving.tuning_results import Way

MOST_PIPELINES = 256

MEANING = {
    "agent": "edge-agent: the whole daemon, through the broker",
    "sequential": "a plain script on ONNX Runtime: one step after the other",
    "pipelined": "a script pipelined by hand (decoding beside inference), on whichever engine and "
    "number of threads is quickest for it",
    "engine": "the agent's engine alone on ready tensors, as many at a time as the agent has lanes",
}
STEPS = {
    "decode": bars.BLUE,
    "preprocess": bars.SKY,
    "infer": bars.VERMILION,
    "postprocess": bars.GREEN,
    "publish": bars.PURPLE,
}

EXAMPLES = (
    "edge-agent bench pipeline models/parts-inspection --pipelines 1,4",
    "edge-agent bench pipeline bearing-vibration --source a.csv  a sensor model",
    "edge-agent bench pipeline yolov8n.onnx --tune  what suits this device",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="as for `bench cold-start`")
    parser.add_argument(
        "--source",
        metavar="CLIP|RECORDING",
        help="default: the bundled clip; of sensor models the bundled recording",
    )
    parser.add_argument(
        "--seconds", type=positive, default=4.0, metavar="S", help="of each turn; default 4"
    )
    parser.add_argument(
        "--pipelines",
        default="1,2,4,8,16",
        metavar="N,N…",
        help="for the scaling table; default 1,2,4,8,16; empty: none",
    )
    parser.add_argument(
        "--rate",
        type=not_negative,
        default=5.0,
        metavar="R",
        help="results a second of each stream that is to be carried; default 5; 0: not measured",
    )
    parser.add_argument(
        "--p99-ms",
        type=positive,
        default=100.0,
        metavar="MS",
        help="what the 99th percentile of their age may come to; default 100",
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="only find out which engine, threads, lanes and batch suit each model on this device, "
        "and have the agent use them",
    )
    add_shared(parser, runs=5)
    add_config(parser)


def main(options: Options) -> int:
    """Measure and print, or with `--tune` only tune."""
    from ...bench.common.models import find_models
    from ...config.load import find_file
    from ..service_settings import as_the_service

    models = find_models(options.models, options.config, say)
    if options.tune:
        with as_the_service(find_file(options.config)):
            return _tune(models, options)
    picture = picture_of(options.picture)
    clip, played = recording_of(options, models) or (clip_of(options), "")
    from ...bench.pipeline.measure_pipeline import measure
    from ...bench.pipeline.pipeline_figures import PipelineSetup

    setup = PipelineSetup(
        clip=clip.resolve(),
        runs=options.runs,
        seconds=options.seconds,
        pipelines=_pipelines(options.pipelines),
        rate=options.rate,
        p99_ms=options.p99_ms,
        recording=played,
    )
    show(measure(models, setup, say), options, picture, (_shown, _drawn))
    return 0


def _tune(models: list[Path], options: Options) -> int:
    """Tune each model for the agent with these settings."""
    from ...core.privileges import become
    from ...models.manifest import load
    from ...serving.choice import DeviceEngines, match_profile
    from ...serving.loader import ModelLoader, open_store
    from ...serving.tuner import tune_model
    from ..service_user import state_user

    settings = load_settings(options)
    if (user := state_user(settings.state)) is not None:
        become(user)  # who will read the results, and may have written the models
    match, facts = match_profile(settings)
    store = open_store(settings)
    engines = DeviceEngines(match.profile, facts, settings.engine, state=store.root)
    loader, usual = ModelLoader(engines, store), engines.lanes
    say(f"tunes are kept in {settings.state}; the agent uses them from its next start on")
    measured: list[tuple[ModelFolder, list[Way]]] = []
    for model in models:
        folder = load(model)
        if engines.budget.exceeds(folder):
            raise UsageError(
                f"{model}: is larger than memory_budget_mb, and is run in one way only"
            )
        kind = folder.manifest.input.kind
        say(f"{folder.manifest.id}: is being measured")
        try:
            measured.append((folder, tune_model(loader, folder, kind)))
        except OSError as problem:
            raise AgentError(f"{settings.state}: cannot be written: {problem.strerror}") from None
    tuning = engines.tuning
    assert tuning is not None  # noqa: S101 - the loader has a store
    # Only known now, because the number of lanes must suit all models.
    lanes = tuning.lanes(usual)
    for folder, ways in measured:
        best = tuning.best(folder.path, lanes, engines.lineup.choices)
        if options.json:
            figures = {
                "model": folder.manifest.id,
                "lanes": lanes,
                "best": None if best is None else asdict(best),
                "ways": [asdict(way) for way in ways],
            }
            print(json.dumps(figures), flush=True)
        else:
            for way in ways:
                print(f"{'*' if way == best else ' '} {folder.manifest.id} {way}")
    return 0


def _pipelines(text: str) -> tuple[int, ...]:
    """Parse the numbers for the scaling table."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isdecimal() and 0 < int(word) <= MOST_PIPELINES for word in words):
        raise UsageError(
            f"--pipelines: expected whole numbers from 1 to {MOST_PIPELINES} with commas between "
            f"them, found {text!r}"
        )
    return tuple(sorted({int(word) for word in words}))


def _shown(report: PipelineReport) -> Iterator[Table | str]:
    figures = report.json()
    yield _table(report, figures)
    for name in report.turns:
        yield f"{name}: {MEANING[name]}"
    one = "window" if report.setup.recording else "frame"
    yield f"one {one}, one at a time with nothing else running, ms: {_list(figures['step_ms'])}"
    if not report.setup.recording:
        yield f"the script pipelined by hand ran on {report.handmade.replace(':', ', threads: ')}"
        following = _list(figures["following_ms"])
        yield f"tracks, 8 zones, 8 lines and 16 rules, ms a frame: {following}"
        cached = figures["cached_preprocess_ms"]
        yield (
            "preprocessing by the usual lines (resize, colors, float, mean and scale, planes), ms: "
            f"{figures['usual_preprocess_ms']:.3f}; of a picture in the processor's cache: "
            f"{cached['usual']:.3f}, the agent {cached['agent']:.3f}"
        )
    age = figures["age_ms"]
    yield (
        f"age at full speed, with the wait in the queue of a lossless source: "
        f"p50 {age['p50']:.1f} ms, p99 {age['p99']:.1f} ms"
    )
    if report.scaling:
        yield _scaling(report, figures)
    yield from _notes(report)


def _list(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {took:.3f}" for name, took in figures.items())


def _table(report: PipelineReport, figures: dict[str, Any]) -> Table:

    title = f"{report.model} on {report.where}; {report.setup.clip.name}, "
    what = "windows" if report.setup.recording else "frames"
    rows = []
    for name, fps in figures["fps"].items():
        ratio, cpu = figures["ratio"].get(name), figures["cpu_s_per_1000"].get(name)
        over = "" if ratio is None else spread_words(ratio, 3)
        rows.append((name, spread_words(fps, 1), over, "" if cpu is None else spread_words(cpu, 2)))
    floor = spread_words(figures["cpu_s_per_1000"]["decode_and_engine"], 2)
    read = "reading" if report.setup.recording else "decode"
    rows.append((f"{read} + engine, one thread", "", "", floor))
    rows.append(("agent's CPU over it", "", "", spread_words(figures["cpu_ratio"], 3)))
    return Table(
        f"{title}{report.setup.runs} rounds; median (least to most)",
        ("", f"{what} a second", "agent over it", f"CPU s per 1000 {what}"),
        rows,
    )


def _scaling(report: PipelineReport, figures: dict[str, Any]) -> Table:

    return Table(
        f"{report.model}: pipelines at full pace through one model",
        (
            *("pipelines", "frames a second together", "over one beside them"),
            *("CPU s per 1000 frames", "age ms, p50"),
        ),
        [
            (
                str(row["pipelines"]),
                spread_words(row["fps"], 1),
                spread_words(row["ratio"], 3),
                spread_words(row["cpu_s_per_1000"], 2),
                f"{row['age_ms']['p50']:.1f}",
            )
            for row in figures["scaling"]
        ],
    )


def _drawn(report: PipelineReport) -> list[bars.Chart]:
    from ...bench.common.report import spread
    from ...bench.pipeline.pipeline_figures import AGENT, ENGINE, HANDMADE, PLAIN

    named = {
        **{
            name: report.turns[name]
            for name in (PLAIN, HANDMADE, AGENT, ENGINE)
            if name in report.turns
        },
        **{
            f"{count} pipeline{'s' if count > 1 else ''}": [many for _, many in measured]
            for count, measured in sorted(report.scaling.items())
        },
    }
    rows = []
    for name, turns in named.items():
        fps = spread(turn.fps for turn in turns)
        cpu = statistics.median(turn.cpu_ms for turn in turns)
        words = f"{fps['median']:.1f}" + (f", cpu {cpu:.2f} ms" if cpu else "")
        ours = name not in {PLAIN, HANDMADE, ENGINE}
        rows.append(bars.spread_bar(name, fps, words, strong=ours))
    taken = report.json()["step_ms"]
    parts = [(name, color, taken[name]) for name, color in STEPS.items()]
    whole = sum(taken.values())
    steps = "; ".join(f"{name} {took:.2f}" for name, took in taken.items())
    one = bars.Bar("one frame", parts, f"{whole:.2f} ms", [whole])
    return [
        bars.Chart(f"{report.model} on {report.where}: frames a second", rows),
        bars.Chart(f"{steps} ms", [one], "; ".join(_notes(report))),
    ]


def _notes(report: PipelineReport) -> list[str]:
    """Return lines about carried streams and idle pipelines, if measured."""
    notes = []
    if report.idle is not None:
        notes.append(
            f"an idle pipeline costs {report.idle['cpu_percent']:.3f} % of a core and "
            f"{report.idle['memory_mb']:.2f} MB (watched for {report.idle['seconds']:g} s)"
        )
    if report.carried is not None:
        notes.append(carried_words(report.carried))
    return notes
