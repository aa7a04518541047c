"""What each step of a frame's way costs when nothing else runs, and what the engine alone gives.

Runs in a process of its own (`apart`), so that what one engine leaves behind does not slow down
the next measurement.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..engines import EngineChoice
from ..errors import AgentError, SampleError, SourceError, UsageError
from ..facts import read_facts
from ..manifest import load
from ..model import Model, open_model
from ..opening import Engines
from ..profile import choose, default_dirs, load_profiles
from ..records import Array, Reading, Sample, Timing
from ..sources import open_source, parse_source
from .handmade import ENGINES
from .recipe import recipe
from .start_script import prepare

KEPT = 48
"""Frames to go round in while engine and steps are measured."""
SHARE = 6
"""Parts that the time is split into: decoding, the steps, the usual preprocessing, both kinds of a
picture in the cache, the engine alone, all lanes."""


def need_playable(clip: str) -> None:
    """See that a clip can be played: agents and scripts would be waited for in vain.

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


def measure(model: str, source: str, engine: str, seconds: float) -> dict[str, Any]:
    """Measure one model on one engine.

    Args:
        model: its folder.
        source: a clip at full pace.
        engine: the label of what the agent served with, as "openvino:CPU".
        seconds: for all of it, without loading.

    Returns:
        `step_ms`, medians of decode, preprocess, infer and postprocess; `usual_preprocess_ms`, of
        the usual lines that do the same; `cached_preprocess_ms`, of both for a picture that is in
        the processor's cache; `decode_cpu_ms` and `engine_cpu_ms`, processor time of a frame,
        single-threaded, of the engine as a script loads it, without what the agent does to a
        network; `raw_fps` of the agent's own engine on ready tensors, with its `lanes` and
        `threads`.

    Raises:
        AgentError: the engine cannot be used here, or the clip gives nothing.

    """
    each = seconds / SHARE
    choice = _choice(Path(model), engine)
    kept, decode_ms, decode_cpu = _decode(source, each)
    single = _open(model, replace(choice, threads=1, lanes=1))
    steps = _steps(single, kept, each)
    how = recipe(single.folder, single.engine.inputs[0])
    pictures = [reading.data for reading in kept]
    usual_ms = _each(partial(prepare, how=how), pictures, each)
    cached_ms = {
        "agent": _each(partial(single.make_ready, stream=True), pictures[:1], each / 2),
        "usual": _each(partial(prepare, how=how), pictures[:1], each / 2),
    }
    tensor, _ = prepare(pictures[0], how)
    tensors = single.last
    assert tensors is not None  # noqa: S101 - it has just been used
    if choice.device.upper() == "CPU":
        _, _, plain = ENGINES[choice.engine](single.folder.network, 1)
        _, engine_cpu = _lanes(partial(plain, tensor), 1, each)
    else:
        _, engine_cpu = _lanes(partial(single.raw, tensors), 1, each)
    single.close()
    loaded = _open(model, choice)
    raw_fps, _ = _lanes(partial(loaded.raw, tensors), choice.lanes, each)
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


def _choice(model: Path, engine: str) -> EngineChoice:
    """Find the line of the device's profile that stands behind a label."""
    facts = read_facts()
    match = choose(load_profiles(default_dirs()), facts)
    name, _, device = engine.partition(":")
    for choice in Engines(match.profile, facts, "auto").choices_for(load(model)):
        alike = {choice.device.upper(), f"{choice.device}ExecutionProvider".upper()}
        if choice.engine == name and device.upper() in alike:
            return choice
    raise AgentError(f"{engine} served, but is not in profile {match.name}")


def _open(model: str, choice: EngineChoice) -> Model:
    return open_model(load(Path(model)), [choice], "picture")[0]


def _decode(source: str, seconds: float) -> tuple[list[Reading], float, float]:
    """Decode for so long; gives some frames, and time and processor time of a frame, ms."""
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


def _steps(model: Model, kept: list[Reading], seconds: float) -> dict[str, float]:
    """Give the median of each step of `Model.infer`, ms."""
    timings: list[Timing] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(timings) < 2:
        reading = kept[len(timings) % len(kept)]
        sample = Sample(reading.data, len(timings), reading.time_ns, reading.since)
        timings.append(model.infer(sample).timing)
    warm = timings[1:]
    return {
        "preprocess": statistics.median(t.preprocess_ms for t in warm),
        "infer": statistics.median(t.infer_ms for t in warm),
        "postprocess": statistics.median(t.postprocess_ms for t in warm),
    }


def _each(prepare: Callable[[Array], object], pictures: list[Array], seconds: float) -> float:
    """Give the median of what it takes to prepare a picture, in turn, ms."""
    took: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(took) < 2:
        picture = pictures[len(took) % len(pictures)]
        begin = time.perf_counter()
        prepare(picture)
        took.append(time.perf_counter() - begin)
    return statistics.median(took[1:]) * 1e3


def _lanes(infer: Callable[[], object], lanes: int, seconds: float) -> tuple[float, float]:
    """Run the engine alone in so many threads; gives runs a second and processor ms of a run."""
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
