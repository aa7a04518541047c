"""`edge-agent quantize`: converts a float model to eight bits, and reports cost and gain."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ...core.errors import AgentError, SourceError, UsageError
from ...core.scratch import scratch_folder
from ...core.text import counted, printable
from ...core.types import Sample
from ...models.files.check_onnx import inspect
from ...models.importing import import_model
from ...models.manifest import ModelFolder
from ...sources.spec import SourceSpec, guess_source, parse_source
from ..lineup import engines_for
from ..options import Options, share
from ..progress import Progress, say
from ..samples import Samples
from .bench_paths import picture_of

if TYPE_CHECKING:
    from ...tools.metrics import Truth
    from ...tools.quantize import Report

    Labeled = tuple[Sequence[Sample], Sequence[Truth]]

MOST_PICTURES = 160
MOST_WINDOWS = 1000
LIVE_SECONDS = 60.0
"""How long a live source is read."""
MAX_DROP = 0.02


EXAMPLES = (
    "edge-agent quantize face/ --calibration pictures/ -o face-int8",
    "edge-agent quantize face/ --calibration clip.mp4 -o int8/ --picture face.png",
    "edge-agent quantize face/ --judge face-int8/ --calibration other-day.mp4",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", metavar="MODEL", help="float model: a folder, .tar or .onnx")
    parser.add_argument(
        "--calibration",
        action="append",
        default=[],
        metavar="SOURCE",
        help="what the model will see: a folder of pictures or recordings, a clip, a recording, a "
        "camera (for a minute); once for each source",
    )
    parser.add_argument("-o", dest="output", metavar="DIR", help="a new folder")
    parser.add_argument(
        "--judge",
        metavar="INT8",
        help="make nothing, but judge this eight-bit model beside MODEL; --calibration (or --eval) "
        "says on what",
    )
    parser.add_argument(
        "--eval",
        metavar="DIR",
        help="labeled samples: one folder a label, or pictures and COCO's annotations",
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
    """Quantize or evaluate; return 1 if more accuracy is lost than allowed."""
    needed = {"--calibration": options.calibration, "-o": options.output}
    if options.judge is not None:
        if options.output is not None:
            raise UsageError("-o: with --judge nothing is made; leave it out")
        if options.calibration and options.eval:
            raise UsageError("--judge: on the samples of --calibration or of --eval, not of both")
        needed = {"--calibration or --eval": options.calibration or options.eval}
    missing = [name for name, given in needed.items() if not given]
    if missing:
        raise UsageError(f"the following arguments are required: {', '.join(missing)}")
    picture = picture_of(options.picture)
    progress = Progress()
    try:
        return (_make if options.judge is None else _judge)(options, picture, progress)
    finally:
        progress.close()


def _make(options: Options, picture: Path | None, progress: Progress) -> int:
    from ...device.hardware import read_facts
    from ...tools.folders import new_folder
    from ...tools.quantize import quantize
    from ...tools.quantizers import own_target, target_of
    from ...tools.report import publish

    facts = read_facts()
    target, own = target_of(options.target, facts), own_target(facts)
    out = Path(options.output)
    if Path(options.model).resolve() in out.resolve().parents:
        raise UsageError(f"-o: {out} is within {options.model}; name a folder elsewhere")
    with _floating(options.model) as folder, new_folder(out) as place:
        samples = _calibration(options.calibration, folder, progress)
        report = quantize(
            folder,
            samples,
            _labeled(options.eval, folder),
            engines=engines_for(folder.network),
            target=target,
            own=own,
            max_drop=options.max_drop,
            place=place,
            progress=progress,
        )
        progress.close()
        _show(report, options, picture)
        if not report.passed:
            raise AgentError(
                f"{report.drop:.1%} is lost where {report.max_drop:.1%} may be (--max-drop), by "
                f"the row that loses most on {counted(report.judged_on, 'sample')}, also with the "
                "most sensitive operators left float: nothing is written; calibrate with more "
                "samples, or allow more"
            )
        publish(report, out)
    say(f"{out}: written; edge-agent push {out} --device ID --key FILE sends it")
    return 0


def _judge(options: Options, picture: Path | None, progress: Progress) -> int:
    from ...device.hardware import read_facts
    from ...tools.quantize import check_comparable, judge
    from ...tools.quantizers import own_target, target_of

    facts = read_facts()
    name = options.judge
    with _floating(options.model) as folder, _judged(Path(name), folder) as other:
        check_comparable(folder, other, name)
        labeled = _labeled(options.eval, folder)
        samples, truths = labeled or (_calibration(options.calibration, folder, progress), None)
        report = judge(
            folder,
            other,
            name,
            samples,
            truths,
            engines=engines_for(other.network),
            target=target_of(options.target, facts),
            own=own_target(facts),
            max_drop=options.max_drop,
            progress=progress,
        )
        progress.close()
        _show(report, options, picture)
        scored = (
            f"{report.drop:.1%} is lost where {report.max_drop:.1%} may be (--max-drop), on "
            f"{counted(report.judged_on, 'sample')}"
        )
        if not report.passed:
            raise AgentError(f"{name} is bad: {scored}")
    say(f"{name} is good: {scored}")
    return 0


@contextmanager
def _imported(name: str) -> Iterator[ModelFolder]:
    with import_model(Path(name)) as imported:
        for assumption in imported.assumptions:
            say(f"assumed  {assumption}")
        yield imported.folder


@contextmanager
def _floating(name: str) -> Iterator[ModelFolder]:
    """Import the float model, checking it before samples are read, which may take long."""
    from ...tools.float_model import check_float

    with _imported(name) as folder:
        check_float(folder.network)
        yield folder


@contextmanager
def _judged(path: Path, folder: ModelFolder) -> Iterator[ModelFolder]:
    """Import the model to judge; a bare .onnx with the same tensors gets the float manifest."""
    from ...tools.folders import stand_in

    if path.suffix == ".onnx" and path.is_file():
        facts, given = inspect(path), inspect(folder.network)
        if (facts.inputs, facts.outputs) == (given.inputs, given.outputs):
            with scratch_folder("judge") as place:
                yield stand_in(path, folder, place)
            return
    with _imported(str(path)) as other:
        yield other


def _show(report: Report, options: Options, picture: Path | None) -> None:
    """Print the report, and draw it."""
    if options.json:
        from ...tools.report import as_json

        print(json.dumps(as_json(report)))
    else:
        _print(report)
    if picture is not None:
        from ...tools.report import draw

        draw(report, picture)
        say(f"{picture}: written")


def _calibration(texts: Sequence[str], folder: ModelFolder, progress: Progress) -> list[Sample]:
    """Read samples from sources, evenly over the length of each, as many as are useful."""
    if not all(text.strip() for text in texts):
        raise UsageError("--calibration: is empty; name a folder, a clip, a recording or a camera")
    return [sample for text in texts for sample in _samples(text, folder, progress)]


def _samples(text: str, folder: ModelFolder, progress: Progress) -> list[Sample]:
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


def _labeled(name: str | None, folder: ModelFolder) -> Labeled | None:
    if name is None:
        return None
    from ...tools.evaluation import metric_of
    from ...tools.metrics import labeled

    metric = metric_of(folder)
    if metric is None:
        task = folder.manifest.task
        raise UsageError(f"--eval: what task {task} finds has no labels to be compared with")
    return labeled(Path(name), metric, folder.labels, lambda path: _files(path, folder))


def _files(place: Path, folder: ModelFolder) -> Iterable[Sample]:
    """Read a folder: pictures as one source, recordings as one source each."""
    if folder.manifest.input.kind == "picture":
        yield from _read(parse_source(f"dir:{quote(str(place))}", Path.cwd()), folder)
        return
    for path in sorted(path for path in place.rglob("*") if path.is_file()):
        name = path.relative_to(place).as_posix()
        for sample in _read(_spec(str(path)), folder):
            yield replace(sample, file=name)


def _spec(text: str) -> SourceSpec:
    spec = parse_source(guess_source(text), Path.cwd())
    if spec.path is not None and not spec.live and not spec.path.exists():
        raise UsageError(f"--calibration: {spec.path}: no such file or folder")
    if spec.scheme.name == "file" and "pace" not in spec.text:
        # All frames, as fast as possible, without missing any.
        text = f"{spec.text}{'&' if '?' in spec.text else '?'}pace=max"
        return parse_source(text, Path.cwd())
    return spec


def _read(spec: SourceSpec, folder: ModelFolder) -> Iterator[Sample]:
    """Read the samples of a source: all of a recording, or a minute of a live one."""
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

    from ...tools.report import table

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if not sys.stdout.isatty():
        console.width = 120
    tried = Table("tried", "loses", "fastest, ms")
    for each in report.candidates:
        fastest = f"{each.fastest_ms:.2f}" if each.costs else ""
        mark = " ← chosen" if each is report.chosen and report.passed else ""
        tried.add_row(f"{each.recipe}{mark}", f"{each.drop:.1%}", fastest)
    if report.candidates:
        console.print(tried)
    heading, *rows = table(report)
    engines = Table(*heading)
    for cells in rows:
        engines.add_row(*cells)
    console.print(engines)
    print(f"target   {report.target.name}: {report.target.why}")
    print(
        f"size     {report.float_bytes / 1e6:.2f} MB before, "
        f"{report.quantized_bytes / 1e6:.2f} MB now"
    )
    same = report.metric is None and not report.held_out
    calibrated = ", the same that it was calibrated on, as there are few" if same else ""
    if not same and report.calibrated_on:
        calibrated = f", calibrated on {counted(report.calibrated_on, 'sample')}"
    print(f"judged   on {counted(report.judged_on, 'sample')}{calibrated}")
    for note in report.notes:
        print(printable(f"note     {note}"))
    for sample, _, _, agrees in report.worst:
        if agrees < 1:
            print(printable(f"worst    {sample.file or sample.seq}: {agrees:.0%}"))
