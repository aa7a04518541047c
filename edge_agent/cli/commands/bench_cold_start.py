"""`edge-agent bench cold-start`: its options, and its figures as a table."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import UsageError
from ...tools import bars
from ..options import Options, add_config, positive
from ..progress import say
from .bench_paths import Table, add_shared, clip_of, picture_of, show, spread_words

if TYPE_CHECKING:
    from ...bench.cold_start.starts import Cold, ColdStartReport


# Parts of a bar, in order: legend, color, steps of script and agent.
PARTS: Sequence[tuple[str, str, frozenset[str]]] = (
    ("start Python", bars.BLUE, frozenset({"python", "exec"})),
    ("settings", bars.SKY, frozenset({"settings"})),
    ("imports", bars.ORANGE, frozenset({"imports"})),
    ("model", bars.VERMILION, frozenset({"model", "read", "build"})),
    ("first frame", bars.GREEN, frozenset({"clip", "first_frame"})),
    ("inference", bars.YELLOW, frozenset({"infer", "first_inference"})),
    ("connect, publish", bars.PURPLE, frozenset({"publish"})),
    ("other", bars.GRAY, frozenset()),
)
MEANING = (
    "a script with no model",
    "plain ONNX Runtime script",
    "plain OpenVINO script",
    "the same with its model cache",
    "best whole-model load of ONNX Runtime",
    "plain ONNX Runtime script under --beside",
    "this, with an empty state folder",
    "with a form, one value of the settings changed before each start",
    "with a form, another copy of the program at each start",
    "with a form, nothing changed",
)
"""Descriptions of `bench.cold_start.starts.VARIANTS`."""

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
    parser.add_argument(
        "--beside",
        metavar="PYTHON",
        help="another installation's Python, such as that of a folder where the agent runs from an "
        "image: it also runs the plain ONNX Runtime script",
    )
    parser.add_argument("--source", metavar="CLIP", help="default: the bundled clip")
    add_shared(parser, runs=7)
    add_config(parser)


def main(options: Options) -> int:
    """Measure and print."""
    from ...bench.cold_start.measure_starts import measure
    from ...bench.cold_start.starts import KINDS, ColdStartSetup

    clip, picture = clip_of(options), picture_of(options.picture)
    cold: Cold = "nothing"
    if options.no_page_cache:
        cold = "everything"
    elif options.no_model_cache or options.disk_mbps is not None:
        cold = "model"  # a limited disk only shows if something is read
    kinds = tuple(kind for kind in KINDS if not options.start or kind in options.start)
    beside = None if options.beside is None else _python(options.beside)
    setup = ColdStartSetup(options.runs, clip.resolve(), cold, options.disk_mbps, kinds, beside)
    reports = measure(options.models, setup, say, options.config)
    show(reports, options, picture, (_shown, _drawn))
    return 0


def _python(given: str) -> Path:
    """Return the Python to run the plain script with, which must have what that imports."""
    python = Path(given).absolute()  # not resolved: the link in an environment is what tells it
    needs = "import cv2, numpy, onnxruntime, paho.mqtt.client"
    try:
        done = subprocess.run([python, "-c", needs], capture_output=True, text=True, check=False)
    except OSError as problem:
        raise UsageError(f"--beside: {given}: {problem.strerror}; expected a Python") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it ended with an error"])[-1]
        raise UsageError(
            f"--beside: {given}: {last.partition(': ')[2] or last}; install there: "
            "onnxruntime opencv-python-headless numpy paho-mqtt"
        )
    return python


def _shown(report: ColdStartReport) -> Iterator[Table | str]:
    from ...bench.cold_start.starts import KINDS, NONE, VARIANTS

    meaning = dict(zip(VARIANTS, MEANING, strict=True))
    headings = ("variant", "ms to first result", "of ort's", "load ms", "of ort's")
    rows = []
    for name, figures in report.json()["variants"].items():
        load, ratio = f"{figures['load_ms']:.0f}", figures["ratio"]
        rows.append(
            (
                name,
                spread_words(figures["ms"], 0),
                f"{figures['of_ort']:.2f}",
                "" if name == NONE else load,
                "" if ratio is None else f"{ratio:.3f}",
            )
        )
    yield Table(report.title, headings, rows)
    yield ("; ".join(f"{name}: {meaning[name]}" for name in report.setup.variants))
    memory = " (not counted: it is in memory)" if report.setup.cold == "nothing" else ""
    limited = "as limited" if report.setup.disk_mbps is not None else "as measured"
    yield (
        f"floor of the load cost {report.floor:.0f} ms, the most of: "
        f"reading {report.size / 1e6:.1f} MB at {report.device / 1e6:.0f} MB/s {limited} "
        f"{report.read:.0f} ms{memory}; preparing the weights on all cores "
        f"{report.shared_preparation:.0f} ms; first inference {report.compute:.0f} ms"
    )
    for kind in report.setup.kinds:
        steps = report.steps(KINDS[kind])
        where = ", ".join(f"{step} {took:.1f}" for step, took in steps.items())
        where = where or "it does not say (cold_start on model/<name>)"
        yield (f"where the time of {KINDS[kind]} goes, ms (steps overlap): {where}")
    if report.prepared != "ready" and report.setup.kinds != ("first",):
        why = report.prepared or "it reported none"
        yield (f"the agent was timed without a prepared form of the model: {why}")
    yield ("ms: from exec to the first correct result over MQTT, median (least to most);")
    yield (
        "load cost: what it takes beyond the script with no model; of ort's: as a share of that."
    )


def _drawn(report: ColdStartReport) -> list[bars.Chart]:
    from ...bench.cold_start.starts import KINDS

    rows = []
    for name in report.setup.variants:
        run = report.middle(name)
        lengths = parts(run.steps, run.ms)
        rows.append(
            bars.Bar(
                name,
                [(w, color, ms) for (w, color, _), ms in zip(PARTS, lengths, strict=True)],
                f"{run.ms:.0f} ms",
                report.taken(name),
                strong=name in KINDS.values(),
            )
        )
    below = "ms; the run nearest to the median; the agent's steps overlap, all shortened alike"
    return [bars.Chart(report.title, rows, below)]


def parts(steps: Mapping[str, float], whole: float) -> list[float]:
    """Return the lengths of `PARTS`, which add up to the whole.

    Overlapping steps add up to more than the whole; all are then scaled down equally.
    """
    from ...bench.cold_start.starts import WHOLE

    taken = [sum(steps.get(step, 0.0) for step in names) for _, _, names in PARTS]
    known = {WHOLE} | {step for _, _, names in PARTS for step in names}
    taken[-1] = sum(took for step, took in steps.items() if step not in known)
    total = sum(taken)
    if total > whole:
        return [took * whole / total for took in taken]
    taken[-1] += whole - total
    return taken
