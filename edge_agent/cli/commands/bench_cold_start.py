"""`edge-agent bench cold-start`: its options, and its figures as tables, JSON or a picture."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ..options import Options, add_config, positive, positive_int
from ..progress import say
from .bench_paths import clip_of, picture_of

if TYPE_CHECKING:
    from ...bench.cold_start.start_figures import Cold, ColdStartReport


EXAMPLES = (
    "edge-agent bench cold-start parts-inspection  a model of the agent's",
    "edge-agent bench cold-start resnet50-int8 --runs 3 --picture start.png",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="model folder, model of the agent's (NAME or NAME@VERSION), or one of random weights: "
        "resnet50-fp32, resnet50-int8, vit-b16-fp32, vit-b16-int8",
    )
    parser.add_argument(
        "--disk-mbps",
        type=positive,
        metavar="N",
        help="read from the disk at this rate, MB a second; the model is not in memory; needs root",
    )
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument(
        "--no-page-cache",
        action="store_true",
        help="nothing is in memory, as after a power cut; needs root",
    )
    memory.add_argument("--no-model-cache", action="store_true", help="the model is not in memory")
    parser.add_argument(
        "--start",
        action="append",
        choices=("first", "settings", "reinstalled", "prepared"),
        help="a start of the agent: with an empty state folder, with one value of the settings "
        "changed, with another copy of the program, or with nothing changed; may be given several "
        "times; default: all",
    )
    parser.add_argument("--runs", type=positive_int, default=7, metavar="N", help="default 7")
    parser.add_argument("--source", metavar="CLIP", help="default: the bundled clip")
    parser.add_argument("--picture", metavar="FILE.png", help="draw where the time goes")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    add_config(parser)


def main(options: Options) -> int:
    """Measure and print."""
    from ...bench.cold_start.measure_starts import measure
    from ...bench.cold_start.start_figures import ColdStartSetup
    from ...bench.cold_start.starts import KINDS

    clip, picture = clip_of(options), picture_of(options.picture)
    cold: Cold = "nothing"
    if options.no_page_cache:
        cold = "everything"
    elif options.no_model_cache or options.disk_mbps is not None:
        cold = "model"  # of a limited disk nothing is to be seen where nothing is read
    kinds = tuple(kind for kind in KINDS if not options.start or kind in options.start)
    setup = ColdStartSetup(options.runs, clip.resolve(), cold, options.disk_mbps, kinds)
    reports = measure(
        options.models,
        setup,
        say,
        options.config,
    )
    if picture is not None:
        from ...bench.cold_start.start_bars import draw

        draw(reports, picture)
        say(f"{picture}: written")
    for report in reports:
        if options.json:
            print(json.dumps(report.json()))
        else:
            _print(report)
    return 0


def _print(report: ColdStartReport) -> None:
    from rich.console import Console
    from rich.table import Table

    from ...bench.cold_start.starts import KINDS, MEANING, NONE, ORT

    table = Table(title=report.title)
    headings = ("variant", "ms to first result", "of ort's", "load ms", "of ort's")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "variant" else "right", no_wrap=True)
    for name in report.setup.variants:
        taken = [run.ms for run in report.runs[name]]
        ratio = report.ratio(name)
        table.add_row(
            name,
            f"{report.median(name):.0f} ({min(taken):.0f} to {max(taken):.0f})",
            f"{report.of_ort(name):.2f}",
            "" if name == NONE else f"{report.load(name):.0f}",
            "" if name == NONE or ratio is None else f"{ratio:.3f}",
        )
    Console().print(table)
    print("; ".join(f"{name}: {MEANING[name]}" for name in report.setup.variants))
    memory = " (not counted: it is in memory)" if report.setup.cold == "nothing" else ""
    limited = "as limited" if report.setup.disk_mbps is not None else "as measured"
    print(
        f"floor of the load cost {report.floor:.0f} ms, the most of: "
        f"reading {report.size / 1e6:.1f} MB at {report.device / 1e6:.0f} MB/s {limited} "
        f"{report.read:.0f} ms{memory}; preparing the weights on all cores "
        f"{report.shared_preparation:.0f} ms; first inference {report.compute:.0f} ms"
    )
    for kind in report.setup.kinds:
        steps = report.steps(KINDS[kind])
        where = ", ".join(f"{step} {took:.1f}" for step, took in steps.items())
        where = where or "it does not say (cold_start on model/<name>)"
        print(f"where the time of {KINDS[kind]} goes, ms (steps overlap): {where}")
    if report.noise > report.load(ORT) / 2:
        print(
            f"NOT QUIET: with no model starts differ by {report.noise:.0f} ms; load costs of that "
            "size say nothing. Let the device have nothing else to do, or raise --runs"
        )
    if report.prepared != "ready" and report.setup.kinds != ("first",):
        why = report.prepared or "it reported none"
        print(f"the agent was timed without a prepared form of the model: {why}")
    print("ms: from exec to the first correct result over MQTT, median (least to most);")
    print("load cost: what it takes beyond the script with no model; of ort's: as a share of that.")
