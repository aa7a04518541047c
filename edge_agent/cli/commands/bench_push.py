"""`edge-agent bench push`: its options, and its figures as tables or JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..options import Options, positive_int
from ..progress import say
from .bench_paths import clip_of, spread_words

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
        "--runs", type=positive_int, default=5, metavar="N", help="pairs; default 5"
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
    parser.add_argument("--json", action="store_true", help="figures as JSON")


def main(options: Options) -> int:
    """Measure and print, as tables or as JSON."""
    from ...bench.common.models import find_model
    from ...bench.push.measure_push import PushSetup, measure

    models = [
        Path(name) if Path(name).exists() else find_model(name, say) for name in options.models
    ]
    clip = clip_of(options)
    sizes = options.mb or ([] if models else [4, 100])
    setup = PushSetup(options.runs, int(options.protocol), options.max_packet, clip)
    reports = measure(models, sizes, setup, say)
    if options.json:
        for report in reports:
            print(json.dumps(report.json()))
        return 0
    from rich.console import Console
    from rich.table import Table

    version = "5" if setup.protocol == 5 else "3.1.1"
    limit = f", max_packet_size {setup.packet}" if setup.packet else ""
    rates = Table(title=f"MQTT {version}{limit}, {setup.runs} pairs; median (least to most)")
    headings = ("model", "MB", "raw MB/s", "at arrival", "push MB/s", "ratio", "took s", "live s")
    for heading in headings:
        rates.add_column(heading)
    frames = Table(title=f"{clip.name} playing: age of its results, ms")
    for heading in ("model", "before p50/p99", "during p50/p99", "missing", "swap ms", "live s"):
        frames.add_column(heading)
    for report in reports:
        figures = report.json()
        rates.add_row(
            report.model,
            f"{report.size / 1e6:.1f}",
            spread_words(figures["raw_mb_s"], 1),
            spread_words(figures["raw_arrival_mb_s"], 1),
            spread_words(figures["push_mb_s"], 1),
            spread_words(figures["ratio"], 2),
            spread_words(figures["transfer_s"], 2),
            spread_words(figures["total_s"], 2),
        )
        clip_figures = figures["clip"]
        before, during = clip_figures["before_ms"], clip_figures["during_ms"]
        frames.add_row(
            report.model,
            f"{before['p50']:.1f} / {before['p99']:.1f}",
            f"{during['p50']:.1f} / {during['p99']:.1f}",
            f"{clip_figures['missing_before']} / {clip_figures['missing_during']}",
            spread_words(clip_figures["swap_ms"], 2),
            spread_words(clip_figures["total_s"], 2),
        )
    Console().print(rates)
    Console().print(frames)
    print("raw: a plain script on the same broker, the same block sizes, QoS 1, paced, until the")
    print("sender knows that all has arrived, as for the push; at arrival: without that way back;")
    print("missing: frames of the clip without a result, before and during a push.")
    return 0
