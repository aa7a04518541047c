"""Measures the ways of running a model against each other, in a child process.

Run as a module by `tuner`. Ways take turns in several rounds and the best round of each counts, so
that short disturbances do not affect the figures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..core.child import answer_question, run_in_background
from ..core.errors import EngineError
from ..core.files import size_of
from ..core.types import Kind, TensorSpec
from ..device.resources import text, usable_cpus
from ..inference.engines.engine import Engine, EngineChoice, FixShapes
from ..inference.engines.registry import open_engine
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
"""Share of a core that others may use in a round that counts as quiet."""
BATCHES = (4, 8)
"""Batch sizes tried in addition to single frames if the network's batch is open."""
WARM_UP = 2
LARGE = 32 * 2**20
"""Bytes; larger models are not loaded in several ways at once."""


def answer(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Carry out the measurements of a `Question` of `tuner`; both as JSON."""
    question = Question(
        **{**asked, "choices": tuple(EngineChoice(**each) for each in asked["choices"])}
    )
    if question.polite:
        run_in_background()
    return [asdict(way) for way in measure(question)]


def measure(question: Question) -> list[Way]:
    """Measure every way here, except those that cannot run the model.

    Raises:
        AgentError: the model is not fit to run, or no way works.
    """
    folder = load(Path(question.model))
    entries: list[tuple[EngineChoice, Artifact | None]] = [
        (choice, None) for choice in question.choices
    ]
    if question.form is not None:
        form = read(question.form)
        # The way that it was made for, with any number of threads.
        entries += [
            (choice, form)
            for choice in question.choices
            if choice.engine == form.engine and choice.device.upper() == "CPU"
        ]
    # Large models one at a time: all at once may exceed the memory.
    alone = size_of(folder.path) > LARGE
    problems: list[str] = []
    found: dict[Way, Way] = {}
    for group in [[entry] for entry in entries] if alone else [entries]:
        running = [
            runner
            for choice, form in group
            for runner in _open(folder, question.kind, choice, form, problems)
        ]
        for _ in range(ROUNDS):
            for runner in running:
                runner.run(question.seconds / ROUNDS)
        quiet = all(any(one.quiet for one in runner.rounds) for runner in running)
        for runner in running:
            way = runner.way(quiet=quiet)
            key = replace(way, fps=0.0)
            # The agent also uses the better of a network and its form.
            found[key] = max(way, found.get(key, way), key=lambda each: each.fps)
            runner.engine.close()
    if not found:
        raise EngineError(f"{folder.manifest.id}: no engine can run it: {'; '.join(problems)}")
    return list(found.values())


def _open(
    folder: ModelFolder,
    kind: Kind,
    choice: EngineChoice,
    form: Artifact | None,
    problems: list[str],
) -> Iterator[_Runner]:
    """Load a model or its form for each batch size; append failures to *problems*."""
    for batch, fix in _batches(folder, kind):
        if form is not None and batch > 1:
            return  # it takes one sample at a time
        engine: Engine | None = None
        try:
            if form is None:
                engine = open_engine(choice, folder.network, fix, cut_for(folder, kind))
            else:
                engine = prepared = open_artifact(choice, form, fix)
                prepared.finish_load(choice.threads or None)
            runner = _Runner(choice, batch, engine)
        except EngineError as problem:
            problems.append(str(problem))
            if engine is not None:
                engine.close()
        else:
            yield runner


def _batches(folder: ModelFolder, kind: Kind) -> Iterator[tuple[int, FixShapes]]:
    """Yield the batch size 1 and, if the network's batch is open, others; with the shapes."""
    fix = fixed_shapes(folder.manifest.input, kind)
    seen: list[bool] = []

    def single(inputs: tuple[TensorSpec, ...]) -> Mapping[str, tuple[int, ...]]:
        seen.append(bool(inputs) and all(spec.shape and spec.shape[0] is None for spec in inputs))
        return fix(inputs)

    yield 1, single
    # The argument of `single` has shown whether the batch is open.
    if not (seen and seen[0]) or kind != "picture":
        return
    for batch in BATCHES:

        def several(
            inputs: tuple[TensorSpec, ...], batch: int = batch
        ) -> Mapping[str, tuple[int, ...]]:
            return {name: (batch, *shape[1:]) for name, shape in fix(inputs).items()}

        yield batch, several


class _Round(NamedTuple):
    """Measurements of one turn; times in seconds."""

    runs: int
    wall: float
    cpu: float
    others: float
    """Processor time used by other processes meanwhile."""

    @property
    def quiet(self) -> bool:
        return self.others <= OTHERS * self.wall


class _Runner:
    """One way of running a model: an engine and its inputs."""

    def __init__(self, choice: EngineChoice, batch: int, engine: Engine) -> None:
        """Warm up the engine.

        Raises:
            EngineError: the engine fails.
        """
        self.engine = engine
        self.rounds: list[_Round] = []
        self._choice = choice
        self._batch = batch
        tensors = probe_inputs(engine.inputs, seed=1)
        # In the form of frames: preprocessing folded into the network is already applied.
        self._tensors = tensors if engine.fold is None else engine.fold.feed(tensors)
        for _ in range(WARM_UP):
            engine.infer(self._tensors)

    def run(self, seconds: float) -> None:
        """Run all lanes for *seconds*.

        Raises:
            EngineError: the engine fails.
        """
        deadline = time.perf_counter() + seconds

        def lane(_: int) -> int:
            count = 0
            while not count or time.perf_counter() < deadline:
                self.engine.infer(self._tensors)
                count += 1
            return count

        lanes = self._choice.lanes
        start, spent, busy = time.perf_counter(), time.process_time(), _busy_seconds()
        with ThreadPoolExecutor(lanes) as pool:
            runs = sum(pool.map(lane, range(lanes)))
        wall, cpu = time.perf_counter() - start, time.process_time() - spent
        self.rounds.append(_Round(runs, wall, cpu, max(0.0, _busy_seconds() - busy - cpu)))

    def way(self, *, quiet: bool) -> Way:
        """Return the best round.

        If the cores were free (*quiet*), the measured rate counts. If others were using them, the
        rate is estimated from the processor time it used, as if it had the cores to itself: that
        works on a device that is never idle, but ignores cores that it leaves idle.
        """
        choice = self._choice
        if quiet or choice.device.upper() != "CPU":
            rate = max(one.runs / one.wall for one in self.rounds if one.quiet or not quiet)
        else:
            cores = min(usable_cpus(), choice.lanes * choice.threads)
            rate = max(cores * one.runs / max(one.cpu, 1e-6) for one in self.rounds)
        fps = round(self._batch * rate, 2)
        return Way(choice.engine, choice.device, choice.threads, choice.lanes, self._batch, fps)


def _busy_seconds() -> float:
    """Return the total processor time used so far on all cores, seconds."""
    fields = text(Path("/proc/stat")).partition("\n")[0].split()[1:9]
    idle = sum(int(field) for field in fields[3:5])  # idle, iowait: proc(5)
    return (sum(int(field) for field in fields) - idle) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    answer_question(answer)
