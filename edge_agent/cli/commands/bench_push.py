"""`edge-agent bench push`: its options, and its figures as tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...tools import bars
from ..options import Options, positive_int
from ..progress import say
from .bench_paths import Table, add_shared, clip_of, picture_of, show, spread_words

if TYPE_CHECKING:
    from ...bench.push.measure_push import PushReport, PushSetup

PHASES = ("before_ms", "during_ms")

EXAMPLES = (
    "edge-agent bench push --mb 20 --runs 3  20 MB of random weights, three times",
    "edge-agent bench push yolov8n.onnx --json",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="as for `bench cold-start`, or .onnx or .xml; default: random weights of 4 and 100 MB",
    )
    parser.add_argument(
        "--mb",
        type=positive_int,
        action="append",
        metavar="SIZE",
        help="random weights of this size instead; may be given several times",
    )
    parser.add_argument(
        "--protocol", choices=("5", "4"), default="5", help="MQTT 5, or 4 for 3.1.1; default 5"
    )
    parser.add_argument(
        "--max-packet",
        type=positive_int,
        metavar="BYTES",
        help="the broker's max_packet_size; default: its own",
    )
    parser.add_argument(
        "--source", metavar="CLIP", help="plays meanwhile; default: the bundled clip"
    )
    add_shared(parser, runs=5)


def main(options: Options) -> int:
    """Measure and print."""
    from ...bench.common.models import find_model
    from ...bench.push.measure_push import PushSetup, measure

    models = [
        Path(name) if Path(name).exists() else find_model(name, say) for name in options.models
    ]
    clip, picture = clip_of(options), picture_of(options.picture)
    sizes = options.mb or ([] if models else [4, 100])
    setup = PushSetup(options.runs, int(options.protocol), options.max_packet, clip)
    show(
        measure(models, sizes, setup, say),
        options,
        picture,
        (lambda report: _shown(report, setup), _drawn),
    )
    return 0


def _shown(report: PushReport, setup: PushSetup) -> Iterator[Table | str]:

    figures = report.json()
    version = "5" if setup.protocol == 5 else "3.1.1"
    limit = f", max_packet_size {setup.packet}" if setup.packet else ""
    columns = {
        "raw MB/s": ("raw_mb_s", 1),
        "at arrival": ("raw_arrival_mb_s", 1),
        "push MB/s": ("push_mb_s", 1),
        "ratio": ("ratio", 2),
        "took s": ("transfer_s", 2),
        "live s": ("total_s", 2),
    }
    row = [spread_words(figures[key], digits) for key, digits in columns.values()]
    yield Table(
        f"MQTT {version}{limit}, {setup.runs} pairs; median (least to most)",
        ("model", "MB", *columns),
        [(report.model, f"{report.size / 1e6:.1f}", *row)],
    )
    clip = figures["clip"]
    yield Table(
        f"{setup.clip.name} playing: age of its results, ms",
        ("model", "before p50/p99", "during p50/p99", "missing", "swap ms", "live s"),
        [
            (
                report.model,
                *(f"{clip[when]['p50']:.1f} / {clip[when]['p99']:.1f}" for when in PHASES),
                f"{clip['missing_before']} / {clip['missing_during']}",
                spread_words(clip["swap_ms"], 2),
                spread_words(clip["total_s"], 2),
            )
        ],
    )
    yield "raw: a plain script on the same broker, the same block sizes, QoS 1, paced, until the"
    yield "sender knows that all has arrived, as for the push; at arrival: without that way back;"
    yield "missing: frames of the clip without a result, before and during a push."


def _drawn(report: PushReport) -> list[bars.Chart]:
    figures = report.json()
    rates = [
        bars.spread_bar(name, found, f"{found['median']:.1f} MB/s", strong=name == "push")
        for name, found in (("raw", figures["raw_mb_s"]), ("push", figures["push_mb_s"]))
    ]
    ages = []
    for name in ("before", "during"):
        age = report.clip[f"{name}_ms"]
        words = f"p50 {age['p50']:.1f}, p99 {age['p99']:.1f} ms"
        part = ("", bars.SKY, age["p50"])
        ages.append(bars.Bar(name, [part], words, [age["p50"], age["p99"]]))
    title = f"{report.model}, {report.size / 1e6:.1f} MB"
    return [
        bars.Chart(f"{title}: rate of a push", rates),
        bars.Chart(f"{title}: age of results of a clip before and during pushes", ages),
    ]
