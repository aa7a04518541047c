"""`edge-agent try`: a model on a source, with no settings, broker or manifest."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .. import wire
from ..bringing import BARE, Brought, bring, unpacked
from ..errors import AgentError, EngineError, ModelError, SampleError, SourceError, UsageError
from ..model import Model, open_model
from ..names import safe_name
from ..records import Array, Outcome, Sample
from ..sources import Source, SourceSpec, guess_source, open_source, parse_source
from ..window import Windower
from . import Options
from .live import LiveView

PICTURE = Path("try.jpg")
PICTURE_SECONDS = 0.5
BENCH_SECONDS = 1.5


def main(options: Options) -> int:
    """Try; 0 if there was at least one result."""
    spec = parse_source(guess_source(options.source), Path.cwd())
    path = Path(options.model)
    save = Path(options.save) if options.save else None
    if save is not None and save.exists() and any(save.iterdir()):
        raise UsageError(f"--save: {save} is there already and not empty; name a new folder")
    with unpacked(path) if path.suffix == ".tar" else bring(path) as brought:
        _say(brought, path)
        closing = threading.Event()
        source = open_source(spec, closing)
        try:
            samples = _samples(source, spec, brought)
            first = next(samples, None)
            if first is None:
                raise SourceError(f"{spec.redacted}: ended before it gave anything to look at")
            best = _compare_engines(brought, spec, first)
            try:
                count = _watch(options, best, samples, first, spec)
            finally:
                best.close()
        finally:
            closing.set()
            source.close()
        if save is not None:
            _save(save, brought, spec)
    if count == 0:
        raise AgentError("no result: every frame was dropped by an error")
    return 0


def _say(brought: Brought, path: Path) -> None:
    """Say aloud what the model is and what had to be assumed."""
    manifest = brought.folder.manifest
    print(
        f"model    {manifest.id}: {manifest.task}, decoder {manifest.decoder}, {len(brought.folder.labels)} labels"
    )
    if path.suffix in BARE:
        print("         of its own metadata:")
    for assumption in brought.assumptions:
        print(f"assumed  {assumption}")


def _samples(source: Source, spec: SourceSpec, brought: Brought) -> Iterator[Sample]:
    """Number what the source gives; of a signal, cut windows."""
    windower: Windower | None = None
    seq = 0
    while source.grab():
        try:
            reading = source.retrieve()
        except SampleError as problem:
            print(f"skipped  {problem}")
            continue
        if source.kind == "picture":
            yield Sample(reading.data, seq, reading.time_ns, reading.since, reading.file)
            seq += 1
            continue
        windower = windower or Windower(brought.folder.manifest.input, reading.columns)
        for data, time_ns, since in windower.push(reading.data, reading.time_ns, reading.since):
            yield Sample(data, seq, time_ns, since, picture=False)
            seq += 1
    if seq == 0 and spec.kind == "signal":
        print(f"skipped  {spec.redacted} holds less than one window")


def _compare_engines(brought: Brought, spec: SourceSpec, sample: Sample) -> Model:
    """Time every engine of this box on the first sample; give the fastest, open."""
    best: Model | None = None
    best_rate = 0.0
    refusals: list[str] = []
    for choice in _choices(brought):
        name = f"{choice.engine}:{choice.device}"
        try:
            model, _ = open_model(brought.folder, [choice], spec.kind)
        except EngineError as problem:
            refusals.append(f"{name}: {problem}")
            print(f"engine   {name}: cannot run it: {problem}")
            continue
        rate, alone_ms = _rate(model, sample, choice.lanes)
        print(
            f"engine   {model.engine.label}: {rate:.1f} frames a second "
            f"({alone_ms:.2f} ms for one alone, {choice.lanes} at a time)",
            flush=True,
        )
        if rate > best_rate:
            if best is not None:
                best.close()
            best, best_rate = model, rate
        else:
            model.close()
    if best is None:
        raise EngineError(f"no engine can run it: {'; '.join(refusals)}")
    return best


def _choices(brought: Brought) -> list[Any]:
    from ..engines.probe import probe
    from ..facts import read_facts
    from ..model import engine_order
    from ..profile import choose, default_dirs, lineup, load_profiles

    facts = read_facts()
    match = choose(load_profiles(default_dirs()), facts)
    return engine_order(lineup(match.profile, facts, probe).choices, "auto", brought.folder.network)


def _rate(model: Model, sample: Sample, lanes: int) -> tuple[float, float]:
    """Measure frames a second with all lanes busy, and the median milliseconds of one alone."""
    alone: list[float] = []
    deadline = time.perf_counter() + BENCH_SECONDS / 3
    while time.perf_counter() < deadline or len(alone) < 3:
        start = time.perf_counter()
        model.infer(sample)
        alone.append((time.perf_counter() - start) * 1e3)
    deadline = time.perf_counter() + BENCH_SECONDS

    def lane(_number: int) -> int:
        count = 0
        while time.perf_counter() < deadline:
            model.infer(sample)
            count += 1
        return count

    start = time.perf_counter()
    with ThreadPoolExecutor(lanes) as pool:
        count = sum(pool.map(lane, range(lanes)))
    return count / (time.perf_counter() - start), sorted(alone)[len(alone) // 2]


@contextmanager
def _newest(
    samples: Iterator[Sample], first: Sample, *, lossless: bool
) -> Iterator[Iterator[Sample]]:
    """Read ahead in a thread; of a live source, only the newest is worth looking at."""
    from collections import deque

    # The first is old by now: the engines were timed on it.
    waiting: deque[Sample] = deque([first] if lossless else [], maxlen=None if lossless else 1)
    changed = threading.Condition()
    state: dict[str, Any] = {"done": False, "error": None, "stop": False}

    def read() -> None:
        try:
            for sample in samples:
                with changed:
                    while lossless and len(waiting) >= 4 and not state["stop"]:
                        changed.wait(0.1)
                    if state["stop"]:
                        return
                    waiting.append(sample)
                    changed.notify_all()
        except AgentError as problem:
            state["error"] = problem
        finally:
            with changed:
                state["done"] = True
                changed.notify_all()

    def give() -> Iterator[Sample]:
        while True:
            with changed:
                while not waiting and not state["done"]:
                    changed.wait(0.25)
                if not waiting:
                    if state["error"] is not None:
                        raise state["error"]
                    return
                sample = waiting.popleft()
                changed.notify_all()
            yield sample

    reader = threading.Thread(target=read, name="capture", daemon=True)
    reader.start()
    try:
        yield give()
    finally:
        with changed:
            state["stop"] = True
            changed.notify_all()
        reader.join(2.0)


def _watch(
    options: Options, model: Model, samples: Iterator[Sample], first: Sample, spec: SourceSpec
) -> int:
    """Show results until the source ends, the time is over or somebody has seen enough."""
    deadline = time.monotonic() + options.seconds if options.seconds else float("inf")
    notes = [f"annotated picture: {PICTURE}, kept fresh"] if first.picture else []
    drawn = 0.0
    last: tuple[Array, Outcome] | None = None
    count = 0
    with LiveView(f"edge-agent try · {spec.redacted} · {model.id}", notes) as view:
        try:
            with _newest(samples, first, lossless=spec.lossless) as newest:
                for sample in newest:
                    try:
                        outcome = model.infer(sample)
                    except SampleError as problem:
                        view.say(f"dropped: {problem}")
                        continue
                    count += 1
                    now = time.monotonic()
                    age_ms = (now - sample.since) * 1e3
                    view.result(wire.result("try", "", "try", sample, outcome, age_ms))
                    if sample.picture:
                        last = (sample.data, outcome)
                        if now - drawn >= PICTURE_SECONDS:
                            drawn = now
                            _draw(*last)
                    if now >= deadline:
                        break
        except KeyboardInterrupt:
            view.say("stopped")
        except SourceError as problem:
            view.say(f"source lost: {problem}")
    if last is not None:
        _draw(*last)
    for line in view.summary_lines():
        print(line)
    return count


def _draw(picture: Array, outcome: Outcome) -> None:
    """Replace the picture in one step, for viewers that watch the file."""
    from ..annotate import annotate, jpeg

    temporary = PICTURE.with_name(".try.jpg.part")
    temporary.write_bytes(jpeg(annotate(picture, outcome.findings)))
    temporary.replace(PICTURE)


def _absolute(spec: SourceSpec) -> str:
    """Write a source so that it means the same wherever the settings lie."""
    if spec.path is None:
        return spec.text
    _, mark, query = spec.text.partition("?")
    return f"{spec.form}:{quote(str(spec.path.resolve()))}{mark}{query}"


def _save(place: Path, brought: Brought, spec: SourceSpec) -> None:
    """Write what `run` takes: the model folder and the settings."""
    manifest = brought.folder.manifest
    folder = place / "models" / manifest.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(brought.folder.path, folder)
    source = _absolute(spec)
    settings = place / "edge-agent.toml"
    settings.write_text(
        "\n".join(
            [
                'models_dirs = ["models"]',
                'state_dir = "state"',
                "",
                "[broker]",
                'url = "mqtt://localhost:1883"',
                "",
                "[[pipelines]]",
                f'name = "{safe_name(manifest.name)}"',
                f"source = {json.dumps(source, ensure_ascii=False)}",
                f'model = "{manifest.name}"',
                "",
            ]
        ),
        encoding="utf-8",
    )
    try:
        from ..manifest import load

        load(folder)
    except ModelError as problem:
        raise AgentError(f"--save: what was written cannot be read back: {problem}") from None
    print(f"saved    {folder} and {settings}; now: edge-agent run --config {settings}")
