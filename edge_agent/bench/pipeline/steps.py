"""The cost of each step for a frame when nothing else runs, and the engine's rate alone.

Runs in a separate process (`child`), so that leftovers of one engine do not slow down the next
measurement.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from ...config.device_profile import choose, default_dirs, load_profiles
from ...core.errors import AgentError, SampleError
from ...core.types import Sample, State, Timing
from ...device.hardware import read_facts
from ...inference.engines.engine import EngineChoice
from ...inference.model import Model, load_model
from ...inference.preprocess.windowing import Windower
from ...models.manifest import ModelFolder, load
from ...models.store.store import Store
from ...serving.choice import DeviceEngines
from ...serving.loader import ModelLoader
from ...serving.open import open_prepared
from ...sources.source import open_source
from ...sources.spec import parse_source
from ...sources.video import FILE, NETWORK
from ..common.recipe import recipe
from ..common.start_script import prepare
from .plain import load_on

OPEN_SECONDS = 10
KEPT = 48
"""Number of samples used in turn while engine and steps are measured."""
PICTURE_SHARE, SIGNAL_SHARE = 6, 4
"""Parts that the time is split into: reading, the steps, the engine alone, all lanes; for pictures
also the usual preprocessing in turn with the steps, and both kinds of it in the cache."""


class Opener(NamedTuple):
    """Opens a model as the agent that has served with it does."""

    folder: ModelFolder
    loader: ModelLoader
    choice: EngineChoice

    def open(self, *, single: bool) -> Model:
        """Open it, from its prepared form if that is for the engine; *single*: with one thread."""
        choice = replace(self.choice, threads=1, lanes=1) if single else self.choice
        kind, engines = self.folder.manifest.input.kind, self.loader.engines
        quick = engines.prepared_choice(self.folder)
        best = engines.best_way(self.folder)
        if quick is not None and quick.place == choice.place and best is None:
            form = self.loader.prepared_form(self.folder, kind)
            if form is not None:
                return open_prepared(self.folder, quick, form, kind, threads=choice.threads)
        return load_model(self.folder, [choice], kind, checked=False)


def opener(model: str, engine: str, state: str) -> Opener:
    """Return an opener for an engine given by an agent's label, such as "openvino:CPU"."""
    facts, folder = read_facts(), load(Path(model))
    match = choose(load_profiles(default_dirs()), facts)
    name, _, device = engine.partition(":")
    engines = DeviceEngines(match.profile, facts, "auto", state=Path(state))
    for choice in engines.choices_for(folder):
        alike = {choice.device.upper(), f"{choice.device}ExecutionProvider".upper()}
        if choice.engine == name and device.upper() in alike:
            return Opener(folder, ModelLoader(engines, Store(Path(state))), choice)
    raise AgentError(f"{engine} served, but is not in profile {match.name}")


def measure(model: str, source: str, engine: str, state: str, seconds: float) -> dict[str, Any]:
    """Measure one model on one engine with a clip or recording at full pace; see `opener`.

    Returns:
        `step_ms`, means of decode (for recordings: reading and cutting windows), medians of
        preprocess, infer, and postprocess; `decode_cpu_ms` and `engine_cpu_ms`, processor time per
        sample, single-threaded, for pictures with the engine as a script loads it; `raw_fps` of the
        agent's own engine on ready tensors, with its `lanes` and `threads`. For pictures also
        `usual_preprocess_ms`, of the usual lines that do the same, in turn with it;
        `cached_preprocess_ms`, of both for a picture in the processor's cache.
    """
    found = opener(model, engine, state)
    signal = found.folder.manifest.input.is_signal
    each = seconds / (SIGNAL_SHARE if signal else PICTURE_SHARE)
    kept, decode_ms, decode_cpu = _read(found.folder, source, each)
    single = found.open(single=True)
    how = {} if signal else recipe(single.folder, single.engine.inputs[0])
    steps, usual = _steps(single, how, cycle(kept), each if signal else 2 * each)
    tensors = single.last
    assert tensors is not None  # noqa: S101 - just used
    more: dict[str, Any] = {}
    alone: Callable[[], object] = partial(single.run, tensors)
    if not signal:
        picture = kept[0].data
        agents = partial(single.prepare_data, picture, stream=True)
        cached = {
            "agent": _again(agents, each / 2),
            "usual": _again(partial(prepare, picture, how), each / 2),
        }
        more["usual_preprocess_ms"] = statistics.median(usual)
        more["cached_preprocess_ms"] = cached
        if found.choice.device.upper() == "CPU":
            _, _, plain = load_on(found.choice.engine, single.folder, 1)
            alone = partial(plain, prepare(picture, how)[0])
    more["engine_cpu_ms"] = _lanes(alone, 1, each)[1]
    single.close()
    loaded = found.open(single=False)
    more["raw_fps"] = _lanes(partial(loaded.run, tensors), found.choice.lanes, each)[0]
    loaded.close()
    return {
        "step_ms": {"decode": decode_ms, **steps},
        "decode_cpu_ms": decode_cpu,
        "lanes": found.choice.lanes,
        "threads": found.choice.threads,
        **more,
    }


def _read(folder: ModelFolder, source: str, seconds: float) -> tuple[list[Sample], float, float]:
    """Read for *seconds*; return some samples, and time and processor time per sample in ms."""
    windower = Windower(folder.manifest.input) if folder.manifest.input.is_signal else None
    kept: list[Sample] = []
    count = 0
    with closing(open_source(parse_source(source, Path.cwd()))) as opened:
        start, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() < start + seconds and opened.grab():
            with suppress(SampleError):  # only decodable frames of a damaged clip count
                reading = opened.retrieve()
                if windower is not None:
                    found = [replace(window, seq=count) for window in windower.push(reading)]
                else:
                    found = [Sample(reading.data, count, reading.time_ns, reading.since)]
                kept += found[: KEPT - len(kept)]
                count += len(found)
        took, spent = time.perf_counter() - start, time.process_time() - cpu
    if not count:
        raise AgentError(f"{source}: gives no {'frame' if windower is None else 'window'}")
    return kept, took / count * 1e3, spent / count * 1e3


def _steps(
    model: Model, how: dict[str, Any], samples: Iterator[Sample], seconds: float
) -> tuple[dict[str, float], list[float]]:
    """Return the median of each step of `Model.infer`, and the times of *how*, if any, ms.

    They take turns, with an inference after each, so that both find the cache as inference leaves
    it.
    """
    timings: list[Timing] = []
    usual: list[float] = []
    known = State()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(timings) < 2:
        timings.append(model.infer(next(samples), state=known).timing)
        if not how:
            continue
        picture = next(samples).data
        begin = time.perf_counter()
        prepare(picture, how)
        usual.append((time.perf_counter() - begin) * 1e3)
        if model.last is not None:
            model.run(model.last)
    names = ("preprocess", "infer", "postprocess")
    steps = {
        name: statistics.median(getattr(timing, f"{name}_ms") for timing in timings[1:])
        for name in names
    }
    return steps, usual[1:]


def _again(prepare: Callable[[], object], seconds: float) -> float:
    """Return the median time, in ms, of preparing the same picture repeatedly."""
    took: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(took) < 2:
        begin = time.perf_counter()
        prepare()
        took.append(time.perf_counter() - begin)
    return statistics.median(took[1:]) * 1e3


def _lanes(infer: Callable[[], object], lanes: int, seconds: float) -> tuple[float, float]:
    """Run only the engine in *lanes* threads; return runs per second and processor ms per run."""
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


def measure_camera(
    model: str, engine: str, state: str, stream: tuple[str, str], seconds: float
) -> dict[str, float]:
    """Measure one model with a stream, as a pipeline reads it and as FFmpeg opens it; see `opener`.

    Returns:
        Processor time of one thread in ms: `receive` and `decode` per frame, `convert` per frame
        that is due, `preprocess`, `infer`, and `postprocess` per result.
    """
    found, each = opener(model, engine, state), seconds / 3
    received = _received(stream[1], each)
    samples: list[Sample] = []
    frames, reading, converting = 0, 0.0, 0.0
    with closing(open_source(parse_source(stream[0], Path.cwd()))) as opened:
        begun, cpu = time.perf_counter(), time.process_time()
        while (frames < 2 or time.perf_counter() < begun + each) and opened.grab():
            grabbed = time.process_time()
            with suppress(SampleError):
                data = opened.retrieve()
                if len(samples) < KEPT:
                    samples.append(Sample(data.data, len(samples), data.time_ns, data.since))
            frames, reading = frames + 1, reading + grabbed - cpu
            cpu = time.process_time()
            converting += cpu - grabbed
    if not samples:
        raise AgentError(f"{stream[0]}: gives no frame")
    with closing(found.open(single=True)) as single:
        steps, _ = _steps(single, {}, cycle(samples), each)
    decoded = max(0.0, reading / frames * 1e3 - received)
    read = {"receive": received, "decode": decoded, "convert": converting / frames * 1e3}
    return {**read, **steps}


def _received(address: str, seconds: float) -> float:
    """Return the processor time, in ms, of receiving a frame without decoding it."""
    import av

    options = {**NETWORK, "rtsp_flags": "prefer_tcp"} if "://" in address else FILE
    packets, begun = 0, time.perf_counter()
    with av.open(address, options=dict(options), timeout=OPEN_SECONDS) as container:
        cpu = time.process_time()
        for packet in container.demux(video=0):
            packets += packet.size > 0
            if time.perf_counter() > begun + seconds:
                break
        return (time.process_time() - cpu) / max(1, packets) * 1e3
