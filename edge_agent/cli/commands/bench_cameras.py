"""`edge-agent bench cameras`: its options, and its figures as tables."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core.errors import UsageError
from ...tools import bars
from ..options import Options, add_config, not_negative, positive
from ..progress import say
from .bench_paths import Table, add_shared, carried_words, picture_of, show, spread_words

if TYPE_CHECKING:
    from ...bench.cameras.measure_cameras import CamerasReport

SIZES = {"720p": (1280, 720), "1080p": (1920, 1080), "4k": (3840, 2160)}
CODECS = ("H264", "H265")
MEANING = {
    "agent": "edge-agent: the whole daemon, one camera, one model",
    "loop": "a bare loop over PyAV: all frames are read, what is due is converted and inferred",
    "ffmpeg": "FFmpeg as a child for each camera, which writes raw frames into a pipe",
    "four": "edge-agent: four models on the one camera",
}
COLORS = {
    "receive": bars.GRAY,
    "decode": bars.BLUE,
    "convert": bars.SKY,
    "preprocess": bars.ORANGE,
    "infer": bars.VERMILION,
    "postprocess": bars.GREEN,
    "publish": bars.PURPLE,
}

EXAMPLES = (
    "edge-agent bench cameras face-detector --streams H264 --sizes 1080p",
    "edge-agent bench cameras yolov8n.onnx --rate 2 --most 0  no search",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="as for `bench cold-start`")
    parser.add_argument(
        "--streams",
        default="H264,H265",
        metavar="CODEC,…",
        help="of the cameras; default H264,H265",
    )
    parser.add_argument(
        "--sizes",
        default="1080p,4k",
        metavar="SIZE,…",
        help="720p, 1080p, 4k or as 640x480; default 1080p,4k",
    )
    parser.add_argument(
        "--rate",
        type=positive,
        default=5.0,
        metavar="R",
        help="results a second of each camera, which sends 30 frames; default 5",
    )
    parser.add_argument(
        "--seconds", type=positive, default=8.0, metavar="S", help="of each turn; default 8"
    )
    parser.add_argument(
        "--most",
        type=not_negative,
        default=64,
        metavar="N",
        help="cameras that are tried at most; 0: how many are carried is not measured; default 64",
    )
    parser.add_argument(
        "--p99-ms",
        type=positive,
        default=100.0,
        metavar="MS",
        help="what the 99th percentile of the age of their results may come to; default 100",
    )
    add_shared(parser, runs=3)
    add_config(parser)


def main(options: Options) -> int:
    """Measure and print."""
    from ...bench.cameras.measure_cameras import CamerasSetup, measure
    from ...bench.common.models import find_models

    picture = picture_of(options.picture)
    streams = tuple(
        (codec, size) for codec in _codecs(options.streams) for size in _sizes(options.sizes)
    )
    models = find_models(options.models, options.config, say)
    setup = CamerasSetup(
        *(streams, options.rate, options.runs, options.seconds),
        *(int(options.most), options.p99_ms),
    )
    show(measure(models, setup, say), options, picture, (_shown, _drawn))
    return 0


def _codecs(text: str) -> list[str]:
    codecs = [word.strip().upper().replace(".", "") for word in text.split(",")]
    if not set(codecs) <= set(CODECS):
        raise UsageError(f"--streams: expected {' or '.join(CODECS)}, found {text!r}")
    return codecs


def _sizes(text: str) -> list[tuple[int, int]]:
    found = []
    for word in text.lower().split(","):
        size = SIZES.get(word.strip())
        if size is None and (match := re.fullmatch(r"(\d{2,4})x(\d{2,4})", word.strip())):
            size = int(match[1]), int(match[2])
        if size is None or size[0] % 2 or size[1] % 2 or min(size) < 64:
            raise UsageError(
                f"--sizes: expected {', '.join(SIZES)}, or even numbers from 64 as 640x480, "
                f"found {text!r}"
            )
        found.append(size)
    return found


def _shown(report: CamerasReport) -> Iterator[Table | str]:

    figures, rate = report.json(), report.setup.rate
    title = f"{report.model} on {report.engine}; {report.stream.name}, {rate:g} results a second"
    parts = figures["parts_ms"]
    rows = [(n, f"{ms:.2f}", f"{figures['parts_core_percent'][n]:.2f}") for n, ms in parts.items()]
    whole = sum(parts.values())
    rows.append(("all", f"{whole:.2f}", f"{whole * rate / 10:.2f}"))
    yield Table(f"{title}: by part", ("", "CPU ms a result", "% of a core"), rows)
    headings = ("", "% of a core", "CPU ms a result", "age ms, p50", "p99", "agent over it")
    ways = []
    for name, percent in figures["core_percent"].items():
        age, over = figures["age_ms"][name], figures["agent_over"].get(name)
        ways.append(
            (
                name,
                spread_words(percent, 1),
                spread_words(figures["cpu_ms_per_result"][name], 2),
                f"{age['p50']:.1f}",
                f"{age['p99']:.1f}",
                "" if over is None else spread_words(over, 3),
            )
        )
    yield Table(f"{title}; {report.setup.runs} rounds, median (least to most)", headings, ways)
    for name in figures["core_percent"]:
        yield f"{name}: {MEANING[name]}"
    served = {"rtsp": "over RTSP from GStreamer here", "file": "as files at their own rate"}
    yield f"streams: made here, 30 frames a second, {served[figures['served']]}"
    four = spread_words(figures["four_over_four_times_one"], 3)
    yield (
        f"four models on one camera cost {four} of four cameras with one, and "
        f"{spread_words(figures['four_over_parts'], 3)} of one decoding and four inferences by part"
    )
    for name, found in figures.get("carried", {}).items():
        yield f"{name}: {carried_words(found)}"


def _drawn(report: CamerasReport) -> list[bars.Chart]:
    figures, parts = report.json(), report.parts_ms()
    whole = sum(parts.values())
    one = [(name, COLORS[name], took) for name, took in parts.items()]
    title = f"{report.model}, {report.stream.name}, {report.setup.rate:g} results a second"
    rows = []
    for name, found in figures["core_percent"].items():
        words = f"{found['median']:.1f} %"
        if name in report.carried:
            words += f"; {report.carried[name]['carried']} cameras are carried"
        ours = name in {"agent", "four"}
        rows.append(bars.spread_bar(name, found, words, strong=ours))
    bar = bars.Bar("one result", one, f"{whole:.1f} ms", [whole])
    return [
        bars.Chart(f"{title}: processor time of a result by part, ms", [bar]),
        bars.Chart(f"{title}: percent of a core", rows),
    ]
