"""`edge-agent bench pipeline`: its options, and its figures as a table, JSON or a picture."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import AgentError, UsageError
from ..options import Options, add_config, load_settings, not_negative, positive, positive_int
from ..progress import say
from .bench_paths import clip_of, picture_of, recording_of, spread_words

if TYPE_CHECKING:
    from ...bench.pipeline.pipeline_figures import PipelineReport
    from ...models.manifest import ModelFolder
    from ...serving.tuning_results import Way

MOST_PIPELINES = 256


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
        "--runs", type=positive_int, default=5, metavar="N", help="rounds; default 5"
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
    parser.add_argument("--picture", metavar="FILE.png", help="draw the figures")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    add_config(parser)


def main(options: Options) -> int:
    """Measure and print; with `--tune` only tune."""
    from ...bench.common.models import find_models

    models = find_models(options.models, options.config, say)
    if options.tune:
        return _tune(models, options)
    from ...bench.common.child import call

    picture = picture_of(options.picture)
    recording = recording_of(options, models)
    if recording is None:
        clip, played = clip_of(options), ""
        # Apart: what opens a clip leaves words for FFmpeg in the environment, which scripts
        # inherit.
        call("edge_agent.bench.pipeline.steps", "need_playable", clip=str(clip))
    else:
        clip, played = recording
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
    reports = measure(models, setup, say)
    if picture is not None:
        from ...bench.pipeline.pipeline_bars import draw

        draw(reports, picture)
        say(f"{picture}: written")
    for report in reports:
        if options.json:
            print(json.dumps(report.json()), flush=True)
        else:
            _print(report)
    return 0


def _tune(models: list[Path], options: Options) -> int:
    """Tune each model for the agent whose settings these are."""
    from ...models.manifest import load
    from ...serving.choice import DeviceEngines, match_profile
    from ...serving.loader import ModelLoader, open_store
    from ...serving.tuner import tune_model

    settings = load_settings(options)
    match, facts = match_profile(settings)
    store = open_store(settings)
    engines = DeviceEngines(match.profile, facts, settings.engine, state=store.root)
    loader, usual = ModelLoader(engines, store), engines.lanes
    say(f"tunes are kept in {settings.state}; the agent uses them from its next start on")
    measured: list[tuple[ModelFolder, list[Way]]] = []
    for model in models:
        folder = load(model)
        if engines.exceeds_budget(folder):
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
    # Known only now: lanes are those that suit all models.
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
    """Read the numbers of the scaling table."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isdecimal() and 0 < int(word) <= MOST_PIPELINES for word in words):
        raise UsageError(
            f"--pipelines: expected whole numbers from 1 to {MOST_PIPELINES} with commas between "
            f"them, found {text!r}"
        )
    return tuple(sorted({int(word) for word in words}))


def _print(report: PipelineReport) -> None:
    from rich.console import Console

    from ...bench.pipeline.pipeline_figures import MEANING

    figures = report.json()
    console = Console()
    console.print(_table(report, figures))
    for name in report.turns:
        print(f"{name}: {MEANING[name]}")
    steps = ", ".join(f"{name} {took:.3f}" for name, took in figures["step_ms"].items())
    one = "window" if report.setup.recording else "frame"
    print(f"one {one}, one at a time with nothing else running, ms: {steps}")
    if not report.setup.recording:
        _print_picture_costs(report, figures)
    age = figures["age_ms"]
    print(
        f"age at full speed, with the wait in the queue of a lossless source: "
        f"p50 {age['p50']:.1f} ms, p99 {age['p99']:.1f} ms"
    )
    if report.scaling:
        console.print(_scaling(report, figures))
    if report.idle is not None:
        from ...bench.pipeline.streams import idle_seconds

        print(
            f"an idle pipeline costs {report.idle.cpu_percent:.3f} % of a core and "
            f"{report.idle.memory_mb:.2f} MB (watched for {idle_seconds(report.setup):g} s)"
        )
    if report.carried is not None:
        found = report.carried
        print(
            f"{found.streams} streams of {found.rate:g} results a second are carried with p99 of "
            f"the age within {found.bound_ms:g} ms (it was {found.p99_ms:.1f})"
            + (f"; {found.refused} are too many: {found.why}" if found.refused else "")
        )


def _print_picture_costs(report: PipelineReport, figures: dict[str, Any]) -> None:
    print(f"the script pipelined by hand ran on {report.handmade.replace(':', ', threads: ')}")
    follow = ", ".join(f"{name} {took:.3f}" for name, took in figures["following_ms"].items())
    print(f"tracks, 8 zones, 8 lines and 16 rules, ms a frame: {follow}")
    cached = figures["cached_preprocess_ms"]
    print(
        "preprocessing by the usual lines (resize, colors, float, mean and scale, planes), ms: "
        f"{figures['usual_preprocess_ms']:.3f}; of a picture in the processor's cache: "
        f"{cached['usual']:.3f}, the agent {cached['agent']:.3f}"
    )


def _table(report: PipelineReport, figures: dict[str, Any]) -> Any:
    from rich.table import Table

    where = f"{report.engine}, {report.lanes} lane(s) of {report.threads} thread(s)"
    title = f"{report.model} on {where}; {report.setup.clip.name}, {report.setup.runs} rounds; "
    table = Table(title=title + "median (least to most)")
    what = "windows" if report.setup.recording else "frames"
    for heading in ("", f"{what} a second", "agent over it", f"CPU s per 1000 {what}"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, fps in figures["fps"].items():
        ratio, cpu = figures["ratio"].get(name), figures["cpu_s_per_1000"].get(name)
        table.add_row(
            name,
            spread_words(fps, 1),
            "" if ratio is None else spread_words(ratio, 3),
            "" if cpu is None else spread_words(cpu, 2),
        )
    floor = spread_words(figures["cpu_s_per_1000"]["decode_and_engine"], 2)
    read = "reading" if report.setup.recording else "decode"
    table.add_row(f"{read} + engine, one thread", "", "", floor)
    table.add_row("agent's CPU over it", "", "", spread_words(figures["cpu_ratio"], 3))
    return table


def _scaling(report: PipelineReport, figures: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{report.model}: pipelines at full pace through one model")
    together, over = "frames a second together", "over one beside them"
    for heading in ("pipelines", together, over, "CPU s per 1000 frames", "age ms, p50"):
        table.add_column(heading, justify="right")
    for row in figures["scaling"]:
        table.add_row(
            str(row["pipelines"]),
            spread_words(row["fps"], 1),
            spread_words(row["ratio"], 3),
            spread_words(row["cpu_s_per_1000"], 2),
            f"{row['age_ms']['p50']:.1f}",
        )
    return table
