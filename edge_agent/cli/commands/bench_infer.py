"""`edge-agent bench infer`: its options, and its figures as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import UsageError
from ...tools import bars
from ..options import Options, add_config, positive
from ..progress import say
from .bench_paths import Table, add_shared, picture_of, show, spread_words

if TYPE_CHECKING:
    from ...bench.infer.measure_infer import InferReport
MEANING = {
    "plain": "a plain server on Starlette, uvicorn and ONNX Runtime, one thread an inference",
    "agent": "edge-agent: the whole daemon, `/predict/<model>` of `[http]`",
    "agent over MQTT": "the same on `in/infer/<model>/<id>`; the broker's CPU is not counted",
}

EXAMPLES = (
    "edge-agent bench infer face-detector --source faces.jpg",
    "edge-agent bench infer yolov8n.onnx --runs 3 --json",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="as for `bench cold-start`")
    parser.add_argument(
        "--source", metavar="PICTURE", help="a JPEG or PNG; default: a frame of the bundled clip"
    )
    parser.add_argument(
        "--seconds", type=positive, default=4.0, metavar="S", help="of each turn; default 4"
    )
    add_shared(parser, runs=5)
    add_config(parser)


def main(options: Options) -> int:
    """Measure and print."""
    from ...bench.common.models import find_models
    from ...bench.infer.measure_infer import InferSetup, measure

    picture = picture_of(options.picture)
    asked = None if options.source is None else Path(options.source)
    if asked is not None and not asked.is_file():
        raise UsageError(f"--source: {asked}: no such picture")
    models = find_models(options.models, options.config, say)
    setup = InferSetup(options.runs, options.seconds, asked)
    show(measure(models, setup, say), options, picture, (_shown, _drawn))
    return 0


def _shown(report: InferReport) -> Iterator[Table | str]:

    figures = report.json()
    digits = {"requests_s": 1, "p50_ms": 1, "p99_ms": 1, "cpu_ms": 2}
    rows = []
    for count, ways in figures["callers"].items():
        for way, found in ways.items():
            cells = (spread_words(found[name], after) for name, after in digits.items())
            rows.append((way, count, *cells))
        over = figures["agent_over_plain"][count]
        cells = (spread_words(over[name], 3) for name in digits)
        rows.append(("agent over plain", count, *cells))
    yield Table(
        f"{report.model} on {report.engine}; {report.picture}, {report.setup.runs} "
        "rounds, median (least to most)",
        ("", "callers", "requests a second", "ms, p50", "ms, p99", "CPU ms a request"),
        rows,
    )
    for way, found in figures["memory_mb"].items():
        yield f"{way}: {MEANING[way]}; {found['median']:.0f} MB"


def _drawn(report: InferReport) -> list[bars.Chart]:
    charts = []
    for count, ways in report.json()["callers"].items():
        rows = [
            bars.spread_bar(
                way,
                found["requests_s"],
                f"{found['requests_s']['median']:.1f}, p99 {found['p99_ms']['median']:.1f} ms, "
                f"cpu {found['cpu_ms']['median']:.2f} ms",
                strong=way != "plain",
            )
            for way, found in ways.items()
        ]
        charts.append(bars.Chart(f"{report.model}, {count} caller(s): requests a second", rows))
    return charts
