"""`edge-agent quantize`: a float model in eight bits, with what that costs and brings."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import AgentError, SourceError, UsageError
from ...core.text import counted, printable
from ...core.types import Sample
from ...models.importing import import_model
from ...models.manifest import ModelFolder
from ...sources.spec import SourceSpec, guess_source, parse_source
from ..lineup import engines_for
from ..options import Options, share
from ..progress import Progress, say
from ..samples import Samples

if TYPE_CHECKING:
    from ...tools.quantize import Report

MOST_PICTURES = 160
MOST_WINDOWS = 1000
LIVE_SECONDS = 60.0
"""What a live source is looked at for."""
MAX_DROP = 0.02


EXAMPLES = (
    "edge-agent quantize face/ --calibration pictures/ -o face-int8",
    "edge-agent quantize face/ --calibration clip.mp4 -o int8/ --picture face.png",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", metavar="MODEL", help="float model: a folder, .tar or .onnx")
    parser.add_argument(
        "--calibration",
        required=True,
        metavar="SOURCE",
        help="what the model will see: a folder of pictures or recordings, a clip, a recording, a "
        "camera (for a minute)",
    )
    parser.add_argument("-o", dest="output", required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--eval",
        metavar="DIR",
        help="labelled samples: one folder a label, or pictures and COCO's annotations",
    )
    parser.add_argument(
        "--target",
        choices=("auto", "x86", "x86-vnni", "arm"),
        default="auto",
        help="the processor that it is for; default: this one",
    )
    parser.add_argument(
        "--max-drop",
        type=share,
        default=MAX_DROP,
        metavar="D",
        help=f"what may be lost of the accuracy, 0 to 1; default {MAX_DROP}",
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.add_argument("--picture", metavar="FILE.png", help="draw the report")


def main(options: Options) -> int:
    """Quantise; 1 where more is lost than may be."""
    from ...device.hardware import read_facts
    from ...tools.folders import new_folder
    from ...tools.network import check_float
    from ...tools.output import as_json, publish
    from ...tools.quantize import quantize
    from ...tools.targets import own_target, target_of

    facts = read_facts()
    target, own = target_of(options.target, facts), own_target(facts)
    picture = _picture(options.picture)
    out = Path(options.output)
    with import_model(Path(options.model)) as imported, new_folder(out) as place:
        for assumption in imported.assumptions:
            say(f"assumed  {assumption}")
        folder = imported.folder
        # Before the samples are read, which may take long.
        check_float(folder.network)
        progress = Progress()
        samples = _calibration(options.calibration, folder, progress)
        evaluation = None
        if options.eval is not None:
            evaluation = _labelled(Path(options.eval), folder)
        try:
            report = quantize(
                folder,
                folder.manifest.input.kind,
                samples,
                evaluation,
                engines=engines_for(folder.network),
                target=target,
                own=own,
                max_drop=options.max_drop,
                place=place,
                progress=progress,
            )
        finally:
            progress.close()
        if options.json:
            print(json.dumps(as_json(report)))
        else:
            _print(report)
        if picture is not None:
            from ...tools.picture import draw

            draw(report, picture)
            say(f"{picture}: written")
        if not report.passed:
            raise AgentError(
                f"{report.drop:.1%} is lost where {report.max_drop:.1%} may be (--max-drop), also "
                "with the most sensitive operators left float: nothing is written; calibrate with "
                "more samples, or allow more"
            )
        publish(report, folder.manifest.input.kind, out)
    say(f"{out}: written; edge-agent push {out} --device ID sends it")
    return 0


def _picture(name: str | None) -> Path | None:
    """Return the picture's place, checked before any work.

    Raises:
        UsageError: it cannot be written, or matplotlib is missing.

    """
    if name is None:
        return None
    from ...tools.bars import check_installed

    picture = Path(name)
    if picture.suffix != ".png" or not picture.parent.is_dir():
        raise UsageError(
            f"--picture: {picture}: expected a name that ends in .png, in a folder that is there"
        )
    check_installed()
    return picture


def _calibration(text: str, folder: ModelFolder, progress: Progress) -> list[Sample]:
    """Read samples of a source, evenly over its length, as many as are of use."""
    if not text.strip():
        raise UsageError("--calibration: is empty; name a folder, a clip, a recording or a camera")
    most = MOST_WINDOWS if folder.manifest.input.kind == "signal" else MOST_PICTURES
    plain = Path(text)
    kept: list[Sample] = []
    step = 1
    found = _files(plain, folder) if plain.is_dir() else _read(_spec(text), folder)
    for number, sample in enumerate(found):
        if number % step == 0:
            kept.append(sample)
        if len(kept) == 2 * most:
            kept, step = kept[::2], step * 2
        progress("reading samples", len(kept), 0)
    return kept[:: -(-len(kept) // most)] if kept else kept


def _labelled(place: Path, folder: ModelFolder) -> Any:
    from ...tools.judging import metric_of
    from ...tools.labelled import labelled

    metric = metric_of(folder)
    if metric is None:
        task = folder.manifest.task
        raise UsageError(f"--eval: what task {task} finds has no labels to be compared with")
    return labelled(place, metric, folder.labels, lambda path: _files(path, folder))


def _files(place: Path, folder: ModelFolder) -> Iterable[Sample]:
    """Read a folder: of pictures as one source, of recordings each."""
    if folder.manifest.input.kind == "picture":
        yield from _read(parse_source(f"dir:{_quoted(place)}", Path.cwd()), folder)
        return
    for path in sorted(path for path in place.rglob("*") if path.is_file()):
        name = path.relative_to(place).as_posix()
        for sample in _read(_spec(str(path)), folder):
            yield replace(sample, file=name)


def _quoted(place: Path) -> str:
    from urllib.parse import quote

    return quote(str(place))


def _spec(text: str) -> SourceSpec:
    spec = parse_source(guess_source(text), Path.cwd())
    if spec.path is not None and not spec.live and not spec.path.exists():
        raise UsageError(f"--calibration: {spec.path}: no such file or folder")
    if spec.form.scheme == "file" and "pace" not in spec.text:
        # All frames, as fast as they go; none is missed.
        text = f"{spec.text}{'&' if '?' in spec.text else '?'}pace=max"
        return parse_source(text, Path.cwd())
    return spec


def _read(spec: SourceSpec, folder: ModelFolder) -> Iterator[Sample]:
    """Read what a source gives: all of a recording, of a live one a minute."""
    wanted = folder.manifest.input.kind
    if spec.kind != wanted:
        raise UsageError(
            f"{spec.redacted}: is a {spec.kind}, but {folder.manifest.id} takes a {wanted}"
        )
    closing = threading.Event()
    end = time.monotonic() + LIVE_SECONDS if spec.live else float("inf")
    with Samples(spec, folder.manifest.input, closing, tell=say) as samples:
        for sample in samples.follow():
            yield sample
            if time.monotonic() > end:
                return
        if samples.trouble is not None:
            raise SourceError(samples.trouble)


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    from ...tools.output import rows

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if not sys.stdout.isatty():
        console.width = 120
    tried = Table("tried", "loses", "fastest, ms")
    for each in report.candidates:
        fastest = f"{each.fastest_ms:.2f}" if each.costs else ""
        mark = " ← chosen" if each is report.chosen and report.passed else ""
        tried.add_row(f"{each.way}{mark}", f"{each.drop:.1%}", fastest)
    console.print(tried)
    metric = [] if report.metric is None else [report.metric]
    table = Table("engine", "network", "agreement", *metric, "ms", "memory, MB")
    for row, network in rows(report):
        truth = [] if not metric else [f"{row.verdict.metric:.3f}"]
        cost = (
            ["", ""]
            if row.cost is None
            else [f"{row.cost.infer_ms:.2f}", f"{row.cost.memory_mb:.0f}"]
        )
        table.add_row(row.engine, network, f"{row.verdict.agreement:.1%}", *truth, *cost)
    console.print(table)
    print(f"target   {report.target.name}: {report.target.why}")
    print(
        f"size     {report.float_bytes / 1e6:.2f} MB before, "
        f"{report.quantized_bytes / 1e6:.2f} MB now"
    )
    same = report.metric is None and not report.held_out
    calibrated = "the same that it was calibrated on, as there are few"
    if not same:
        calibrated = f"calibrated on {counted(report.calibrated_on, 'sample')}"
    print(f"judged   on {counted(report.judged_on, 'sample')}, {calibrated}")
    for note in report.notes:
        print(printable(f"note     {note}"))
    for sample, _, _, agrees in report.worst:
        if agrees < 1:
            print(printable(f"worst    {sample.file or sample.seq}: {agrees:.0%}"))
