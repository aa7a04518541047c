"""Measures the ways of running a model beside each other, in a child process.

Run as a module by `tuner`. Ways take turns in several rounds and the best round of each counts, so
that what disturbs for a moment disturbs no figure.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core.child import answer_question, run_in_background
from ..core.errors import EngineError
from ..core.files import size_of
from ..core.types import Kind, Tensors, TensorSpec
from ..device.resources import text, usable_cpus
from ..inference.engines.engine import Engine, EngineChoice, FixShapes
from ..inference.engines.registry import open_engine
from ..inference.folding.cut import InputCut
from ..inference.folding.find import cut_for
from ..inference.prepared.artifact import Artifact, read
from ..inference.prepared.engine import open_artifact
from ..inference.preprocess.inputs import fixed_shapes
from ..inference.probe import probe_inputs
from ..models.manifest import ModelFolder, load
from .tuner import Question
from .tuning_results import Way

ROUNDS = 3
OTHERS = 0.1
"""Of a core, that others may take in a round that counts as quiet."""
BATCHES = (4, 8)
"""Tried beside single frames, where the network leaves its batch open."""
WARM_UP = 2
LARGE = 32 * 2**20
"""Bytes; models beyond are not loaded in several ways at once."""


def answer(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure what a `Question` of `tuner` asks for, as JSON."""
    question = Question(
        **{**asked, "choices": tuple(EngineChoice(**each) for each in asked["choices"])}
    )
    if question.polite:
        run_in_background()
    return [asdict(way) for way in measure(question)]


def measure(question: Question) -> list[Way]:
    """Measure every way here; those that cannot run the model are left out.

    Raises:
        AgentError: the model is not fit to run, or no way works.
    """
    folder = load(Path(question.model))
    entries = [_Entry(choice) for choice in question.choices]
    if question.form is not None:
        form = read(question.form)
        # What it was made for, whatever the number of threads.
        entries += [
            _Entry(choice, form)
            for choice in question.choices
            if choice.engine == form.engine and choice.device.upper() == "CPU"
        ]
    # Large ones one after the other: all at once may be more than there is memory for.
    alone = size_of(folder.path) > LARGE
    groups = [[entry] for entry in entries] if alone else [entries]
    problems: list[str] = []
    found: dict[_Key, Way] = {}
    for group in groups:
        running = _open(folder, question.kind, group, problems)
        for way in _measure_in_turns(running, question):
            # The agent, too, takes the better of a network and its form.
            key = (way.engine, way.device, way.threads, way.lanes, way.batch)
            if key not in found or way.fps > found[key].fps:
                found[key] = way
        for _, _, runner in running:
            runner.close()
    if not found:
        raise EngineError(f"{folder.manifest.id}: no engine can run it: {'; '.join(problems)}")
    return list(found.values())


_Key = tuple[str, str, int, int, int]
"""What tells a way from another, but for what it gives."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A way to load a model."""

    choice: EngineChoice
    form: Artifact | None = None
    """What is loaded in the network's place."""


def _open(
    folder: ModelFolder, kind: Kind, entries: Sequence[_Entry], problems: list[str]
) -> list[_Running]:
    """Load a model in every way; why some cannot be is added to *problems*."""
    running: list[_Running] = []
    cut = cut_for(folder, kind)
    for entry in entries:
        for batch, fix in _batches(folder, kind):
            if entry.form is not None and batch > 1:
                continue  # it takes one at a time
            try:
                runner = _Runner(_engine(entry, folder, fix, cut), entry.choice.lanes)
            except EngineError as problem:
                problems.append(str(problem))
                continue
            try:
                runner.warm_up()
            except EngineError as problem:
                runner.close()
                problems.append(str(problem))
                continue
            running.append((entry.choice, batch, runner))
    return running


def _engine(entry: _Entry, folder: ModelFolder, fix: FixShapes, cut: InputCut | None) -> Engine:
    """Load a network as the agent does."""
    if entry.form is None:
        return open_engine(entry.choice, folder.network, fix, cut)
    engine = open_artifact(entry.choice, entry.form, fix)
    try:
        engine.finish_load(entry.choice.threads or None)
    except EngineError:
        engine.close()
        raise
    return engine


def _measure_in_turns(running: Sequence[_Running], question: Question) -> list[Way]:
    """Measure all in turns; return the best round of each.

    Where the cores were free, what counts is what came out. Where others were at work it is what
    each would give with the cores for itself, by the processor time that it took: that holds also
    on a device that is never idle, but does not see cores that a way leaves idle by itself.
    """
    cpus = usable_cpus()
    rounds: list[list[_Round]] = [[] for _ in running]
    for _ in range(ROUNDS):
        for (_, _, runner), mine in zip(running, rounds, strict=True):
            mine.append(runner.run(question.seconds / ROUNDS))
    quiet = all(any(one.quiet for one in mine) for mine in rounds)
    found = []
    for (choice, batch, _), mine in zip(running, rounds, strict=True):
        if quiet or choice.device.upper() != "CPU":
            rate = max(one.runs / one.wall for one in mine if one.quiet or not quiet)
        else:
            cores = min(cpus, choice.lanes * choice.threads)
            rate = max(cores * one.runs / max(one.cpu, 1e-6) for one in mine)
        fps = round(batch * rate, 2)
        found.append(Way(choice.engine, choice.device, choice.threads, choice.lanes, batch, fps))
    return found


@dataclass(frozen=True, slots=True)
class _Round:
    """What was measured in one turn; times in seconds."""

    runs: int
    wall: float
    cpu: float
    others: float
    """Processor time that other processes took meanwhile."""

    @property
    def quiet(self) -> bool:
        return self.others <= OTHERS * self.wall


def _busy_seconds() -> float:
    """Return the processor time that all cores have spent on anything so far."""
    fields = text(Path("/proc/stat")).partition("\n")[0].split()[1:9]
    idle = sum(int(field) for field in fields[3:5])  # idle, iowait: proc(5)
    return (sum(int(field) for field in fields) - idle) / os.sysconf("SC_CLK_TCK")


def _batches(folder: ModelFolder, kind: Kind) -> Iterator[tuple[int, FixShapes]]:
    """Yield single frames and, where the network's batch is open, several; with the shapes."""
    fix = fixed_shapes(folder.manifest.input, kind)
    seen: list[bool] = []

    def single(inputs: tuple[TensorSpec, ...]) -> Mapping[str, tuple[int, ...]]:
        seen.append(bool(inputs) and all(spec.shape and spec.shape[0] is None for spec in inputs))
        return fix(inputs)

    yield 1, single
    # What `single` was called with has shown whether the batch is open.
    if not (seen and seen[0]) or kind != "picture":
        return
    for batch in BATCHES:

        def several(
            inputs: tuple[TensorSpec, ...], batch: int = batch
        ) -> Mapping[str, tuple[int, ...]]:
            return {name: (batch, *shape[1:]) for name, shape in fix(inputs).items()}

        yield batch, several


class _Runner:
    """An engine and something to feed it."""

    def __init__(self, engine: Engine, lanes: int) -> None:
        self._engine = engine
        self._lanes = lanes
        tensors: Tensors = probe_inputs(engine.inputs, seed=1)
        # As frames come to it: whatever is folded into the network has been done.
        self._tensors = tensors if engine.fold is None else engine.fold.feed(tensors)

    def warm_up(self) -> None:
        for _ in range(WARM_UP):
            self._engine.infer(self._tensors)

    def close(self) -> None:
        self._engine.close()

    def run(self, seconds: float) -> _Round:
        """Run all lanes for so long."""
        counts = [0] * self._lanes
        problems: list[EngineError] = []
        deadline = time.perf_counter() + seconds

        def lane(number: int) -> None:
            try:
                while not counts[number] or time.perf_counter() < deadline:
                    self._engine.infer(self._tensors)
                    counts[number] += 1
            except EngineError as problem:
                problems.append(problem)

        threads = [threading.Thread(target=lane, args=(n,)) for n in range(self._lanes)]
        start, spent, busy = time.perf_counter(), time.process_time(), _busy_seconds()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        wall, cpu = time.perf_counter() - start, time.process_time() - spent
        return _Round(sum(counts), wall, cpu, max(0.0, _busy_seconds() - busy - cpu))


_Running = tuple[EngineChoice, int, _Runner]
"""A way, its batch, and what runs it."""


if __name__ == "__main__":
    answer_question(answer)
