"""`edge-agent try`: a model on a source, with no settings, broker or manifest."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...config.settings import Pipeline, SecondStage, Settings
from ...core.bundled import bundled
from ...core.errors import (
    AgentError,
    EngineError,
    ModelError,
    SampleError,
    SourceError,
    UsageError,
)
from ...core.names import is_name
from ...core.text import counted
from ...core.types import Array, Kind, Outcome, Request, Sample
from ...inference.engines.label import engine_words
from ...inference.golden import compare_golden
from ...inference.model import Model, load_model
from ...inference.trust import PlainWitness, open_plain, why_wrong
from ...models.describing import missing_labels
from ...models.importing import BARE, ImportedModel, file_of, import_model
from ...models.manifest import idle_keys
from ...mqtt import payloads
from ...runtime.pipelines.overlay import Shape
from ...sources.spec import SourceSpec, guess_source, parse_source
from ..attended import Attendant
from ..lineup import engines_for
from ..live import LiveView
from ..options import Options, broker_settings, positive
from ..picture_file import PictureFile
from ..samples import Samples
from ..saved import new_folder, save
from ..terminal import say
from ..times import span

if TYPE_CHECKING:
    from ...mqtt.one_shot import TopicReader
    from ..signal_trace import SignalTrace
    from ..tried_pipeline import TriedPipeline

PICTURE = Path("try.jpg")
PLOT = Path("try.png")
BENCH_SECONDS = 1.0
SILENT_SECONDS = 2.0
"""Without anything from a live source, after which that is said."""
HANG_SECONDS = 30.0
"""Beyond `--seconds`, after which a model or source that does not come back ends the command."""


EXAMPLES = (
    "edge-agent try /dev/video0 yolov8n.onnx",
    "edge-agent try rtsp://user:password@camera/stream yolov8n.onnx --save my",
    "edge-agent try holiday/ models/parts-inspection --seconds 10",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="camera URL, /dev/video0, clip, folder of pictures, recording, mqtt:TOPIC",
    )
    parser.add_argument("model", metavar="MODEL", help="model folder, .onnx, .xml or .tflite")
    parser.add_argument(
        "--seconds",
        type=positive,
        metavar="N",
        help="end by itself; default: at the source's end or Ctrl-C",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings whose first pipeline's filters, zones, lines and rules are tried, too",
    )
    parser.add_argument(
        "--save", metavar="DIR", help="write the model folder and settings for `run`"
    )
    parser.add_argument(
        "--broker", metavar="URL", help="of a source mqtt:TOPIC; default: as the settings have it"
    )


def main(options: Options) -> int:
    """Try; 0 if there was at least one result."""
    spec = _source(options.source)
    path = Path(options.model)
    if not options.model or not path.exists():
        raise UsageError(
            f"MODEL: {options.model!r}: no such file or folder{_bundled(options.model)}"
        )
    path = file_of(path)
    settings, pipeline = _settings(options)
    attendant = Attendant(None if options.seconds is None else options.seconds + HANG_SECONDS)
    saving = nullcontext() if options.save is None else new_folder(options.save)
    with saving as place, import_model(path) as imported:
        _print_model(imported, path)
        with (
            _topics(options, spec) as topics,
            _opened(attendant, spec, imported, topics) as samples,
        ):
            # What a recording takes to its first window is no matter of waiting.
            waits = options.seconds if spec.live and options.seconds else math.inf
            until = time.monotonic() + waits
            first = attendant.call(lambda: _first(attendant, samples, spec), until)
            seconds = _bench_seconds(options.seconds)
            best = attendant.call(
                lambda: _compare_engines(attendant, imported, spec, first, seconds)
            )
            try:
                with _tried(attendant, settings, pipeline, spec) as tried:
                    count, dropped, stopped = _watch(
                        options, attendant, best, samples, first, spec, tried
                    )
            finally:
                if attendant.left_behind is None:
                    best.close()
        if place is not None:
            saved = save(place, imported, spec)
            say(f"saved    {place}: the model, and commented settings; readable by you only")
            say(f"next     edge-agent run --config {saved}")
        elif count:
            say("next     the same with --save DIR: a model folder and settings for edge-agent run")
    if count == 0 and stopped:
        raise KeyboardInterrupt
    if count == 0 and dropped:
        raise AgentError("no result: every frame was dropped by an error")
    if count == 0:
        raise AgentError(_nothing(spec))
    return 0


def _nothing(spec: SourceSpec) -> str:
    return f"no result: {spec.redacted} gave nothing in the time that there was"


def _settings(options: Options) -> tuple[Settings | None, Pipeline]:
    """Return what is tried: the first pipeline of `--config`, or one without settings."""
    if options.config is None:
        return None, Pipeline(name="try", source=options.source, model="try")
    from ..tried_pipeline import read_pipeline

    return read_pipeline(options.config)


@contextmanager
def _topics(options: Options, spec: SourceSpec) -> Iterator[TopicReader | None]:
    """Read topics from the broker of the settings, where the source is one; else None."""
    if spec.scheme.name != "mqtt":
        yield None
        return
    from ...mqtt.one_shot import TopicReader

    with TopicReader(broker_settings(options).broker) as reader:
        yield reader


def _opened(
    attendant: Attendant, spec: SourceSpec, imported: ImportedModel, topics: TopicReader | None
) -> Samples:
    def open_it() -> Samples:
        with attendant.doing(f"opening {spec.redacted}"):
            return Samples(spec, imported.folder.manifest.input, attendant.closing, topics)

    return attendant.call(open_it)


def _first(attendant: Attendant, samples: Samples, spec: SourceSpec) -> Sample:
    with attendant.doing(f"the first reading of {spec.redacted}"):
        first = samples.first()
    if first is None and attendant.closing.is_set():
        raise AgentError(_nothing(spec))
    if first is None:
        raise SourceError(f"{spec.redacted}: ended before it gave anything to look at")
    return first


def _source(text: str) -> SourceSpec:
    """Read what a person typed; a file that is not there is a slip, a camera that is not is not."""
    if not text.strip():
        raise UsageError("SOURCE: is empty; name a camera's URL, a device, a file or a folder")
    spec = parse_source(guess_source(text), Path.cwd())
    if spec.path is not None and not spec.live and not spec.path.exists():
        raise UsageError(f"SOURCE: {spec.path}: no such file or folder")
    return spec


def _bundled(name: str) -> str:
    """Return where a bundled model is that is asked for by its name; empty: there is none."""
    folder = bundled("models") / name
    return f"; the bundled one is {folder}" if is_name(name) and folder.is_dir() else ""


def _print_model(imported: ImportedModel, path: Path) -> None:
    """Print what the model is and what had to be assumed."""
    manifest = imported.folder.manifest
    told = " as the file itself tells" if path.suffix in BARE else ""
    say(
        f"model    {manifest.id}: {manifest.task}, decoder {manifest.decoder}, "
        f"{counted(len(imported.folder.labels), 'label')}{told}"
    )
    for assumption in imported.assumptions:
        say(f"assumed  {assumption}")
    for lack in missing_labels(imported.folder):
        say(f"missing  {lack}")
    if (idle := idle_keys(manifest)) is not None:
        say(f"note     {idle}")


def _bench_seconds(wanted: float | None) -> float:
    """Limit the time spent on each engine to a share of `--seconds`."""
    return BENCH_SECONDS if wanted is None else min(BENCH_SECONDS, wanted / 4)


def _compare_engines(
    attendant: Attendant,
    imported: ImportedModel,
    spec: SourceSpec,
    sample: Sample,
    seconds: float,
) -> Model:
    """Time every engine of this box on the first sample; give the fastest, open."""
    best: Model | None = None
    best_rate = 0.0
    refusals: list[str] = []
    plain: Model | None = None
    unlike: set[str] = set()
    for choice in engines_for(imported.folder.network):
        name = f"{choice.engine}:{choice.device}"
        attendant.check_open()
        try:
            with attendant.doing(f"the first inference on {name}, loading included,"):
                model, _ = load_model(imported.folder, [choice], spec.kind)
        except EngineError as problem:
            reason = str(problem).rpartition(f"{name}: ")[2]
            refusals.append(f"{name}: {reason}")
            say(f"engine   {name}: cannot run it: {reason}")
            continue
        with attendant.doing(f"the golden outputs on {name}"):
            trouble = _golden_trouble(model, name)
        if trouble is not None and trouble not in unlike:
            unlike.add(trouble)
            say(f"golden   {trouble}; devices refuse the model so")
        with attendant.doing(f"the comparison of {name} with a session without optimization"):
            plain = plain or open_plain(imported.folder, spec.kind)
            why = None if plain is None else _why_wrong(plain, model, spec.kind, sample)
        if why is not None:
            refusals.append(f"{name}: {why}")
            say(f"engine   {name}: is wrong here, and does not serve: {why}")
            model.close()
            continue
        with attendant.doing(f"timing of the inference on {name}"):
            rate, alone_ms = _rate(attendant, model, sample, choice.lanes, seconds)
        each = "frames" if sample.picture else "windows"
        say(
            f"engine   {engine_words(model.engine.label)}: {rate:.1f} {each} a second "
            f"({alone_ms:.2f} ms alone, {choice.lanes} at a time)"
        )
        if rate > best_rate:
            if best is not None:
                best.close()
            best, best_rate = model, rate
        else:
            model.close()
    if best is None and plain is not None:
        say(f"engine   {engine_words(plain.engine.label)} without optimization serves")
        return plain
    if best is None:
        raise EngineError(f"no engine can run it: {'; '.join(refusals)}")
    if plain is not None:
        best.witness = PlainWitness(plain)  # one sample is not enough to go by
    return best


def _golden_trouble(model: Model, name: str) -> str | None:
    """Return what a device's trial would refuse the model for; None: nothing, or it has no file."""
    try:
        agreement = compare_golden(model)
    except (ModelError, SampleError) as problem:
        return str(problem).removeprefix(f"{model.id}: ")
    return None if agreement is None or agreement.passed else f"{name}: {agreement.why}"


def _why_wrong(plain: Model, model: Model, kind: Kind, sample: Sample) -> str | None:
    """Return why an engine must not serve, by what it finds in the first sample; None: it may."""
    try:
        tensors = plain.prepare(Request(sample)).tensors
    except SampleError:
        return None  # the sample does not fit the model, which is reported where it is inferred
    return why_wrong(plain, model, kind, [plain.unfolded(tensors)])


def _rate(
    attendant: Attendant, model: Model, sample: Sample, lanes: int, seconds: float
) -> tuple[float, float]:
    """Measure frames a second with all lanes busy, and the median milliseconds of one alone."""
    alone: list[float] = []
    deadline = time.perf_counter() + seconds / 3
    while time.perf_counter() < deadline or len(alone) < 3:
        attendant.check_open()
        start = time.perf_counter()
        model.infer(sample)
        alone.append((time.perf_counter() - start) * 1e3)
    deadline = time.perf_counter() + seconds

    def lane(_number: int) -> int:
        # One at least: on a busy machine the time may be over before a lane begins.
        model.infer(sample)
        count = 1
        while time.perf_counter() < deadline and not attendant.closing.is_set():
            model.infer(sample)
            count += 1
        return count

    start = time.perf_counter()
    with ThreadPoolExecutor(lanes) as pool:
        count = sum(pool.map(lane, range(lanes)))
    return count / (time.perf_counter() - start), sorted(alone)[len(alone) // 2]


def _watch(  # noqa: PLR0915 - one loop over the source
    options: Options,
    attendant: Attendant,
    model: Model,
    samples: Samples,
    first: Sample,
    spec: SourceSpec,
    tried: TriedPipeline,
) -> tuple[int, int, bool]:
    """Show results until the source ends, the time is over or Ctrl-C.

    Returns:
        How many there were, how many errors, and whether it was Ctrl-C.

    """
    trace = None if first.picture else _trace(model, samples, first, tried.path.limit(model))
    picture = _picture_file() if trace is None else _plot_file()
    count = dropped = 0
    stopped = False
    deadline = time.monotonic() + options.seconds if options.seconds else float("inf")
    title = f"edge-agent try · {spec.redacted} · {model.id}"
    view = LiveView(
        title,
        [picture.note()],
        pipelines=["try"],
        every=_is_short(spec),
    )
    view.trace = trace
    watch = _SourceWatch(samples, spec, view)
    doubt = None

    def tick() -> bool:
        watch.look()
        view.tick()
        return time.monotonic() < deadline

    outcomes = attendant.each(_outcomes(attendant, model, samples, tried), tick)
    with view, closing(outcomes):
        try:
            for sample, outcome, age_ms in outcomes:
                watch.look()
                while tried.said:
                    view.print(tried.said.popleft())
                if model.witness is not None and model.witness.why != doubt:
                    doubt = model.witness.why
                    view.print(f"{engine_words(model.engine.label)} is wrong here: {doubt}")
                if isinstance(outcome, SampleError):
                    dropped += 1
                    view.print(f"dropped: {outcome}")
                    continue
                count += 1
                view.result(payloads.result("try", "", "try", sample, outcome, age_ms))
                if trace is None:
                    picture.take(partial(_annotated, sample.data, outcome, tried.shapes()))
                else:
                    trace.add(sample, outcome)
                    picture.take(partial(_plotted, trace, title))
                picture.refresh()
                if time.monotonic() >= deadline:
                    break
        except KeyboardInterrupt:
            stopped = True
            view.print("stopped")
        except SourceError as problem:
            samples.trouble = str(problem)
    picture.write()
    for line in view.summary_lines():
        say(line)
    if counts := tried.counts():
        say(f"counted  {counts}")
    if picture.written:
        say(f"picture  {picture.path.resolve()}")
    if attendant.left_behind is not None:
        say(f"left behind: {attendant.left_behind}", sys.stderr)
    if samples.trouble is not None:
        raise SourceError(samples.trouble)
    return count, dropped, stopped


def _is_short(spec: SourceSpec) -> bool:
    """Whether each result is worth a line: of a folder of pictures or a recording, once through."""
    recorded = spec.scheme.name == "dir" or (spec.kind == "signal" and not spec.live)
    return recorded and not spec.options["loop"]


class _SourceWatch:
    """Tells the view when a source is lost, silent, or back."""

    def __init__(self, samples: Samples, spec: SourceSpec, view: LiveView) -> None:
        self._samples = samples
        self._live = spec.live
        self._view = view
        self._told: str | None = None
        samples.latest = time.monotonic()  # the engines were timed meanwhile

    def look(self) -> None:
        """Print what has changed."""
        why = self._samples.trouble
        silent = time.monotonic() - self._samples.latest
        if why is not None:
            self._view.trouble = f"source lost {span(silent)} ago, trying again: {why}"
        elif self._live and silent > SILENT_SECONDS:
            self._view.trouble = f"the source has given nothing for {span(silent)}"
        else:
            self._view.trouble = ""
        if why == self._told:
            return
        self._told = why
        self._view.print("source is back" if why is None else f"source lost, trying again: {why}")


@contextmanager
def _tried(
    attendant: Attendant, settings: Settings | None, pipeline: Pipeline, spec: SourceSpec
) -> Iterator[TriedPipeline]:
    from ..tried_pipeline import TriedPipeline, load_second_stages

    def load() -> list[tuple[SecondStage, Model]]:
        with attendant.doing("loading the second stages"):
            return load_second_stages(settings, pipeline)

    seconds = attendant.call(load)
    try:
        yield TriedPipeline(pipeline, seconds, lossless=spec.lossless)
    finally:
        for _, model in seconds:
            if attendant.left_behind is None:
                model.close()


def _outcomes(
    attendant: Attendant,
    model: Model,
    samples: Samples,
    tried: TriedPipeline,
) -> Iterator[tuple[Sample, Outcome | SampleError, float]]:
    """Yield what the model finds in each sample, or why nothing, and its age in milliseconds."""
    for sample in samples.follow():
        found: Outcome | SampleError
        try:
            with attendant.doing(f"an inference on {engine_words(model.engine.label)}"):
                sample, found = tried.infer(model, sample)  # noqa: PLW2901 - masked
        except SampleError as problem:
            found = problem
        yield sample, found, (time.monotonic() - sample.since) * 1e3


def _trace(model: Model, samples: Samples, first: Sample, limit: float) -> SignalTrace:
    """Make what is seen of a sensor beside its results."""
    from ..signal_trace import SignalTrace

    spec = model.manifest.input
    names = spec.channels or samples.columns
    hop = spec.hop or spec.window or 1
    return SignalTrace(first, [str(name) for name in names], hop, limit)


def _annotated(picture: Array, outcome: Outcome, shapes: Sequence[Shape]) -> Array:
    from ...runtime.pipelines.draw import annotate

    return annotate(picture, outcome.findings, shapes=shapes)


def _plotted(trace: SignalTrace, title: str) -> Array:
    from ..signal_plot import plot

    return plot(trace, title)


def _picture_file() -> PictureFile:
    from ...runtime.pipelines.draw import jpeg

    return PictureFile(PICTURE, "annotated picture", jpeg)


def _plot_file() -> PictureFile:
    from ..signal_plot import png

    return PictureFile(PLOT, "plot", png)
