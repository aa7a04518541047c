"""What each step of a frame's way costs when nothing else runs, and what the engine alone gives.

Runs in a process of its own (`apart`), so that what one engine leaves behind does not slow down
the next measurement.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...config.device_profile import choose, default_dirs, load_profiles
from ...core.errors import AgentError, SampleError, SourceError, UsageError
from ...core.types import Kind, Reading, Sample, State, Timing
from ...device.hardware import read_facts
from ...inference.engines.engine import EngineChoice
from ...inference.model import Model, load_model
from ...inference.preprocess.windowing import Windower
from ...models.manifest import load
from ...models.store.store import Store
from ...serving.choice import DeviceEngines
from ...serving.loader import ModelLoader
from ...serving.open import open_prepared
from ...sources.source import open_source
from ...sources.spec import parse_source
from ..common.recipe import recipe
from ..common.start_script import prepare
from .handmade import ENGINES

KEPT = 48
"""Frames to go round in while engine and steps are measured."""
SHARE = 6
"""Parts that the time is split into: decoding, the steps in turn with the usual preprocessing (two
parts), both kinds of it in the cache, the engine alone, all lanes."""

SIGNAL_SHARE = 4
"""Parts likewise: reading, steps, the engine alone, all lanes."""


def need_playable(clip: str) -> None:
    """Check that a clip can be played: agents and scripts would publish nothing for ever.

    Raises:
        UsageError: it cannot.
    """
    try:
        with closing(open_source(parse_source(f"file:{quote(clip)}", Path.cwd()))) as source:
            played = source.grab()
    except SourceError as problem:
        raise UsageError(f"--source: {problem}") from None
    if not played:
        raise UsageError(f"--source: {clip}: gives no frame")


def measure(model: str, source: str, engine: str, state: str, seconds: float) -> dict[str, Any]:
    """Measure one model on one engine.

    Args:
        model: its folder.
        source: a clip at full pace.
        engine: the label of what the agent served with, as "openvino:CPU".
        state: the agent's state folder, with the model's prepared form.
        seconds: for all of it, without loading.

    Returns:
        `step_ms`, medians of decode, preprocess, infer and postprocess; `usual_preprocess_ms`, of
        the usual lines that do the same, in turn with it; `cached_preprocess_ms`, of both for a
        picture that is in the processor's cache; `decode_cpu_ms` and `engine_cpu_ms`, processor
        time of a frame, single-threaded, of the engine as a script loads it, without what the agent
        does to a network; `raw_fps` of the agent's own engine on ready tensors, with its `lanes`
        and `threads`.

    Raises:
        AgentError: the engine cannot be used here, or the clip gives nothing.
    """
    each = seconds / SHARE
    loader, choice = _choice(Path(model), engine, Path(state))
    kept, decode_ms, decode_cpu = _decode(source, each)
    single = _open(model, replace(choice, threads=1, lanes=1), loader, "picture")
    how = recipe(single.folder, single.engine.inputs[0])
    steps, usual_ms = _steps(single, how, kept, 2 * each)
    pictures = [reading.data for reading in kept]
    cached_ms = {
        "agent": _again(partial(single.prepare_data, pictures[0], stream=True), each / 2),
        "usual": _again(partial(prepare, pictures[0], how), each / 2),
    }
    tensor, _ = prepare(pictures[0], how)
    tensors = single.last
    assert tensors is not None  # noqa: S101 - it has just been used
    if choice.device.upper() == "CPU":
        _, _, plain = ENGINES[choice.engine](single.folder.network, 1)
        _, engine_cpu = _lanes(partial(plain, tensor), 1, each)
    else:
        _, engine_cpu = _lanes(partial(single.run, tensors), 1, each)
    single.close()
    loaded = _open(model, choice, loader, "picture")
    raw_fps, _ = _lanes(partial(loaded.run, tensors), choice.lanes, each)
    loaded.close()
    return {
        "step_ms": {"decode": decode_ms, **steps},
        "usual_preprocess_ms": usual_ms,
        "cached_preprocess_ms": cached_ms,
        "decode_cpu_ms": decode_cpu,
        "engine_cpu_ms": engine_cpu,
        "raw_fps": raw_fps,
        "lanes": choice.lanes,
        "threads": choice.threads,
    }


def measure_signal(
    model: str, source: str, engine: str, state: str, seconds: float
) -> dict[str, Any]:
    """Measure one sensor model on one engine; see `measure`.

    Returns:
        `step_ms`, of which `decode` is reading and cutting windows, its mean; `decode_cpu_ms` and
        `engine_cpu_ms`, the latter of the engine as the agent has it; `raw_fps`, `lanes`,
        `threads`.

    Raises:
        AgentError: the engine cannot be used here, or the recording gives no window.
    """
    each = seconds / SIGNAL_SHARE
    loader, choice = _choice(Path(model), engine, Path(state))
    single = _open(model, replace(choice, threads=1, lanes=1), loader, "signal")
    kept, read_ms, read_cpu = _windows(single, source, each)
    known = State()
    timings: list[Timing] = []
    samples = cycle(kept)
    deadline = time.perf_counter() + each
    while time.perf_counter() < deadline or len(timings) < 2:
        timings.append(single.infer(next(samples), state=known).timing)
    tensors = single.last
    assert tensors is not None  # noqa: S101 - it has just been used
    _, engine_cpu = _lanes(partial(single.run, tensors), 1, each)
    single.close()
    loaded = _open(model, choice, loader, "signal")
    raw_fps, _ = _lanes(partial(loaded.run, tensors), choice.lanes, each)
    loaded.close()
    return {
        "step_ms": {"decode": read_ms, **_medians(timings[1:])},
        "decode_cpu_ms": read_cpu,
        "engine_cpu_ms": engine_cpu,
        "raw_fps": raw_fps,
        "lanes": choice.lanes,
        "threads": choice.threads,
    }


def _windows(model: Model, source: str, seconds: float) -> tuple[list[Sample], float, float]:
    """Read for so long; return some windows, and time and processor time of one, ms."""
    opened = open_source(parse_source(source, Path.cwd()))
    windower = Windower(model.folder.manifest.input)
    kept: list[Sample] = []
    count = 0
    start, cpu = time.perf_counter(), time.process_time()
    try:
        while time.perf_counter() < start + seconds and opened.grab():
            windows = windower.push(opened.retrieve())
            kept += [w.sample(count) for w in windows[: KEPT - len(kept)]]
            count += len(windows)
    finally:
        opened.close()
    if not count:
        raise AgentError(f"{source}: gives no window")
    took, spent = time.perf_counter() - start, time.process_time() - cpu
    return kept, took / count * 1e3, spent / count * 1e3


def _choice(model: Path, engine: str, state: Path) -> tuple[ModelLoader, EngineChoice]:
    """Find the line of the device's profile that stands behind a label."""
    facts = read_facts()
    match = choose(load_profiles(default_dirs()), facts)
    name, _, device = engine.partition(":")
    engines = DeviceEngines(match.profile, facts, "auto", state=state)
    loader = ModelLoader(engines, Store(state))
    for choice in engines.choices_for(load(model)):
        alike = {choice.device.upper(), f"{choice.device}ExecutionProvider".upper()}
        if choice.engine == name and device.upper() in alike:
            return loader, choice
    raise AgentError(f"{engine} served, but is not in profile {match.name}")


def _open(model: str, choice: EngineChoice, loader: ModelLoader, kind: Kind) -> Model:
    """Open a model as the agent does: from its prepared form, where that is of the engine."""
    folder = load(Path(model))
    engines = loader.engines
    quick = engines.prepared_choice(folder)
    if quick is not None and quick.place == choice.place and engines.best_way(folder) is None:
        form = loader.prepared_form(folder, kind)
        if form is not None:
            return open_prepared(folder, quick, form, kind, threads=choice.threads)
    return load_model(folder, [choice], kind, checked=False)


def _decode(source: str, seconds: float) -> tuple[list[Reading], float, float]:
    """Decode for so long; return some frames, and time and processor time of a frame, ms."""
    opened = open_source(parse_source(source, Path.cwd()))
    kept: list[Reading] = []
    took = []
    cpu, deadline = time.process_time(), time.perf_counter() + seconds
    try:
        start = time.perf_counter()
        while start < deadline and opened.grab():
            # Of a damaged clip, what can be decoded counts.
            with suppress(SampleError):
                reading = opened.retrieve()
                took.append(time.perf_counter() - start)
                if len(kept) < KEPT:
                    kept.append(reading)
            start = time.perf_counter()
    finally:
        opened.close()
    if not took:
        raise AgentError(f"{source}: gives no frame")
    return kept, statistics.median(took) * 1e3, (time.process_time() - cpu) / len(took) * 1e3


def _steps(
    model: Model, how: dict[str, Any], kept: list[Reading], seconds: float
) -> tuple[dict[str, float], float]:
    """Return the median of each step of `Model.infer`, and of the usual preprocessing, ms.

    They take turns, with an inference after each, so that the cache is to both as inference
    leaves it.
    """
    timings: list[Timing] = []
    usual: list[float] = []
    frames = cycle(kept)
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(timings) < 2:
        reading = next(frames)
        sample = Sample(reading.data, len(timings), reading.time_ns, reading.since)
        timings.append(model.infer(sample).timing)
        picture = next(frames).data
        begin = time.perf_counter()
        prepare(picture, how)
        usual.append((time.perf_counter() - begin) * 1e3)
        if model.last is not None:
            model.run(model.last)
    return _medians(timings[1:]), statistics.median(usual[1:])


def _medians(timings: Sequence[Timing]) -> dict[str, float]:
    return {
        "preprocess": statistics.median(t.preprocess_ms for t in timings),
        "infer": statistics.median(t.infer_ms for t in timings),
        "postprocess": statistics.median(t.postprocess_ms for t in timings),
    }


def _again(prepare: Callable[[], object], seconds: float) -> float:
    """Return the median time of preparing the same picture repeatedly, ms."""
    took: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(took) < 2:
        begin = time.perf_counter()
        prepare()
        took.append(time.perf_counter() - begin)
    return statistics.median(took[1:]) * 1e3


def _lanes(infer: Callable[[], object], lanes: int, seconds: float) -> tuple[float, float]:
    """Run the engine alone in this many threads; return runs a second and processor ms of a run."""
    counts = [0] * lanes
    infer()
    deadline = time.perf_counter() + seconds

    def lane(number: int) -> None:
        while time.perf_counter() < deadline:
            infer()
            counts[number] += 1

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(lanes)]
    start, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, spent = time.perf_counter() - start, time.process_time() - cpu
    runs = max(1, sum(counts))
    return runs / took, spent / runs * 1e3
