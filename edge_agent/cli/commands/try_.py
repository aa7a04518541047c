"""`edge-agent try`: runs a model on a source, without settings, broker, or manifest."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...config.settings import Pipeline, Settings
from ...core.bundled import bundled
from ...core.errors import (
    AgentError,
    SampleError,
    SourceError,
    UsageError,
)
from ...core.names import READINGS, is_name
from ...core.text import counted, printable, span
from ...core.types import Array, Classes, Outcome, Sample
from ...inference.engines.registry import engine_words
from ...inference.model import Model
from ...models.describing import missing_labels
from ...models.idle_keys import doubtful_keys
from ...models.importing import BARE, ImportedModel, file_of, import_model
from ...models.manifest import InputSpec
from ...mqtt import payloads
from ...sources.spec import SourceSpec, guess_source, parse_source
from ..attended import Attendant
from ..broker_settings import broker_settings
from ..engine_comparison import compare_engines
from ..live import LiveView
from ..options import Options, positive
from ..picture_file import PictureFile
from ..samples import Samples
from ..saved import new_folder, save
from ..terminal import say

if TYPE_CHECKING:
    from ...mqtt.one_shot import TopicReader
    from ..tried_pipeline import TriedPipeline

PICTURE = Path("try.jpg")
PLOT = Path("try.png")
BENCH_SECONDS = 1.0
SILENT_SECONDS = 2.0
"""Time without data from a live source after which that is reported."""
MANY = 10
"""Pictures of a folder that are hardly all of one class."""
HANG_SECONDS = 30.0
"""Time beyond `--seconds` after which a model or source that does not return ends the command."""


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
    """Try the model; return 0 if there was at least one result."""
    spec = _source(options.source)
    path = Path(options.model)
    if options.model == READINGS and not path.exists():
        raise UsageError(
            f'MODEL: "{READINGS}" is no model, there is nothing to try; write it as a pipeline\'s '
            "model, `edge-agent check` then names its values"
        )
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
        shape = imported.folder.manifest.input
        with (
            _topics(options, spec) as topics,
            attendant.call(
                lambda: Samples(spec, shape, attendant.closing, topics), f"opening {spec.redacted}"
            ) as samples,
        ):
            # The time limit does not apply to a recording's first window.
            waits = options.seconds if spec.live and options.seconds else math.inf
            until = time.monotonic() + waits
            what = f"the first reading of {spec.redacted}"
            first = attendant.call(lambda: _first(attendant, samples, spec), what, until)
            _print_unread(samples.columns, shape)
            seconds = min(BENCH_SECONDS, (options.seconds or math.inf) / 4)
            best = compare_engines(imported, spec, first, seconds, attendant.patience_s)
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
            say(f"next     edge-agent run --config {shlex.quote(str(saved))}")
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
    """Return the pipeline to try: the first one of `--config`, or one without settings."""
    if options.config is None:
        return None, Pipeline(name="try", source=options.source, model="try")
    from ..tried_pipeline import read_pipeline

    return read_pipeline(options.config)


@contextmanager
def _topics(options: Options, spec: SourceSpec) -> Iterator[TopicReader | None]:
    """Yield a reader of topics on the broker in the settings if the source is one, else None."""
    if spec.topic is None:
        yield None
        return
    from ...mqtt.one_shot import TopicReader

    with TopicReader(broker_settings(options).broker) as reader:
        yield reader


def _first(attendant: Attendant, samples: Samples, spec: SourceSpec) -> Sample:
    first = samples.first()
    if first is None and attendant.closing.is_set():
        raise AgentError(_nothing(spec))
    if first is None:
        raise SourceError(f"{spec.redacted}: ended before it gave anything to look at")
    return first


def _source(text: str) -> SourceSpec:
    """Parse a source given by the user; a missing file is an error, a missing camera is not."""
    if not text.strip():
        raise UsageError("SOURCE: is empty; name a camera's URL, a device, a file or a folder")
    spec = parse_source(guess_source(text), Path.cwd())
    if spec.path is not None and not spec.live and not spec.path.exists():
        raise UsageError(f"SOURCE: {spec.path}: no such file or folder")
    return spec


def _bundled(name: str) -> str:
    """Return a hint about the bundled model with this name, or "" if there is none."""
    folder = bundled("models") / name
    return f"; the bundled one is {folder}" if is_name(name) and folder.is_dir() else ""


def _print_model(imported: ImportedModel, path: Path) -> None:
    """Print a description of the model, and the assumptions about it."""
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
    for line in doubtful_keys(manifest):
        say(f"note     {line}")


def _print_unread(columns: Sequence[str], shape: InputSpec) -> None:
    """Print which columns are read if a source has more and the manifest names none."""
    taken = [channel for channel in shape.channels if isinstance(channel, int)]
    if 0 < len(taken) == len(shape.channels) < len(columns):
        names = printable(", ".join(columns[n] for n in taken if n < len(columns)))
        text = f"{len(taken)} of the source's {len(columns)} columns are read, by number: {names}"
        say(f"note     {text}; input.channels of the manifest names others")


def _watch(
    options: Options,
    attendant: Attendant,
    model: Model,
    samples: Samples,
    first: Sample,
    spec: SourceSpec,
    tried: TriedPipeline,
) -> tuple[int, int, bool]:
    """Show results until the source ends, the time is over, or Ctrl-C is pressed.

    Returns:
        The number of results, the number of errors, and whether Ctrl-C was pressed.
    """
    shown = _Shown(model, samples, first, spec, tried)
    watch = _SourceWatch(samples, spec, shown.view)
    stopped = False
    deadline = time.monotonic() + options.seconds if options.seconds else math.inf

    def tick() -> bool:
        watch.look()
        shown.view.tick()
        return time.monotonic() < deadline

    outcomes = attendant.each(_outcomes(attendant, model, samples, tried), tick)
    with shown.view, closing(outcomes):
        try:
            for sample, outcome, age_ms in outcomes:
                watch.look()
                shown.add(sample, outcome, age_ms)
                if time.monotonic() >= deadline:
                    break
        except KeyboardInterrupt:
            stopped = True
            shown.view.print("stopped")
        except SourceError as problem:
            samples.trouble = str(problem)
    shown.sum_up()
    if attendant.left_behind is not None:
        say(f"left behind: {attendant.left_behind}", sys.stderr)
    if samples.trouble is not None:
        raise SourceError(samples.trouble)
    return shown.count, shown.dropped, stopped


class _Shown:
    """The display of results: the live view, and a picture file that is kept up to date."""

    def __init__(
        self, model: Model, samples: Samples, first: Sample, spec: SourceSpec, tried: TriedPipeline
    ) -> None:
        self._model = model
        self._tried = tried
        title = f"edge-agent try · {spec.redacted} · {model.id}"
        trace = None
        if first.picture:
            from ...runtime.pipelines.draw import annotate, jpeg

            self._draw: Callable[..., Array] = lambda picture, found: annotate(
                picture, found, shapes=tried.shapes()
            )
            self._picture = PictureFile(PICTURE, "annotated picture", jpeg)
        else:
            from ..signal_plot import plot, png
            from ..signal_trace import SignalTrace

            shape = model.manifest.input
            names = [str(name) for name in shape.channels or samples.columns]
            hop = shape.hop or shape.window or 1
            trace = shown = SignalTrace(first, names, hop, tried.path.limit(model))
            self._draw = lambda *_: plot(shown, title)
            self._picture = PictureFile(PLOT, "plot", png)
        self._wrong: str | None = None
        """The last reported reason why the engine is wrong."""
        self._doubt: str | None = None
        """The reported reason why its results are probably wrong."""
        # For a folder of pictures or a recording, every result gets a line.
        recorded = spec.scheme.name == "dir" or (spec.kind == "signal" and not spec.live)
        every = recorded and not spec.options["loop"]
        self._bests: set[str] = set()
        """The best classes of the pictures of a folder, which are expected to differ."""
        self._differ = every and first.picture
        self.view = LiveView(title, [self._picture.note()], pipelines=["try"], every=every)
        self.view.trace = trace
        self.count = 0
        """Number of results."""
        self.dropped = 0
        """Number of samples that did not fit."""

    def add(self, sample: Sample, outcome: Outcome | SampleError, age_ms: float) -> None:
        """Show a result, or its error, and any other messages."""
        view, check = self.view, self._model.check
        while self._tried.said:
            view.print(self._tried.said.popleft())
        if check is not None and check.why != self._wrong:
            self._wrong = check.why
            view.print(f"{engine_words(self._model.engine.label)} is wrong here: {check.why}")
        if isinstance(outcome, SampleError):
            self.dropped += 1
            view.print(f"dropped: {outcome}")
            return
        self.count += 1
        if (doubt := self._model.stats.doubt) is not None and self._doubt is None:
            view.print(f"doubtful: {doubt}")
        self._doubt = self._doubt or doubt
        if isinstance(outcome.findings, Classes):
            self._bests.update(outcome.findings.labels[:1])
        view.result(payloads.result("try", "", "try", sample, outcome, age_ms))
        if view.trace is not None:
            view.trace.add(sample, outcome)
        self._picture.take(partial(self._draw, sample.data, outcome.findings))
        self._picture.refresh()

    def sum_up(self) -> None:
        """Write the last picture; print the totals."""
        self._picture.write()
        for line in self.view.summary_lines():
            say(line)
        if self._differ and self.count >= MANY and len(self._bests) == 1:
            say(
                f"doubtful all {self.count} pictures are {printable(self._bests.pop())}: if they "
                "show other things, too, the network is given other numbers than in its training "
                "(input.scale, input.mean, input.color)"
            )
        if counts := self._tried.counts():
            say(f"counted  {counts}")
        if self._picture.written:
            say(f"picture  {self._picture.path.resolve()}")


class _SourceWatch:
    """Shows in the view when a source is lost, silent, or back."""

    def __init__(self, samples: Samples, spec: SourceSpec, view: LiveView) -> None:
        self._samples = samples
        self._live = spec.live
        self._view = view
        self._told: str | None = None
        samples.latest = time.monotonic()  # the engines were timed meanwhile

    def look(self) -> None:
        """Print a change of the source's state."""
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

    what = "loading the second stages"
    seconds = attendant.call(lambda: load_second_stages(settings, pipeline), what)
    try:
        yield TriedPipeline(pipeline, seconds, apart=spec.apart)
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
    """Yield each sample with the model's findings, or the error, and its age in milliseconds."""
    for sample in samples.follow():
        found: Outcome | SampleError
        try:
            with attendant.doing(f"an inference on {engine_words(model.engine.label)}"):
                sample, found = tried.infer(model, sample)  # noqa: PLW2901 - masked
        except SampleError as problem:
            found = problem
        yield sample, found, (time.monotonic() - sample.since) * 1e3
