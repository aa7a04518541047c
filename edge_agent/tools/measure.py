"""Measures the time and memory of a network on one engine, in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..core.child import answer_question, ask
from ..core.frozen import record
from ..inference.engines.engine import EngineChoice

ROUNDS = 30
"""Number of rounds, in each of which every network has a turn, so that disturbances affect all."""


@record(kw_only=True)
class Cost:
    """The cost of one network on one engine."""

    infer_ms: float
    """Median, one sample at a time."""
    memory_mb: float
    """Memory that loading and running it added to the process."""


def costs_of(folders: Sequence[Path], choice: EngineChoice) -> list[Cost]:
    """Measure model folders on an engine, in turns."""
    words = choice.words()
    times, _ = ask(__name__, [list(map(str, folders)), words, ROUNDS], "timing")
    # Each alone: libraries loaded by one would already be there for the next.
    return [
        Cost(
            infer_ms=taken,
            memory_mb=ask(__name__, [[str(folder)], words, 1], f"measuring {folder}")[1],
        )
        for folder, taken in zip(folders, times, strict=True)
    ]


def _answer(question: list[Any]) -> tuple[list[float], float]:
    """Return the median milliseconds of each network, and the memory of all together in MB."""
    paths, words, rounds = question
    from ..inference.engines.registry import load_library
    from ..inference.probe import race

    choice = EngineChoice(**words)
    load_library(choice.engine)
    before = _resident_mb()
    runs = [_runner(Path(path), choice) for path in paths]
    took = race(runs, rounds)
    return [median(times) for times in took], _resident_mb() - before


def _runner(path: Path, choice: EngineChoice) -> Callable[[int], object]:
    """Load a model; return a function that runs it on one of a few inputs, by round number."""
    from ..inference.model import load_model
    from ..inference.probe import probe_inputs
    from ..models.manifest import load

    folder = load(path)
    model = load_model(folder, [choice], folder.manifest.input.kind, checked=True)
    inputs = [model.ready(probe_inputs(model.engine.inputs, seed)) for seed in range(4)]
    for each in inputs:
        model.run(each)
    return lambda number: model.run(inputs[number % len(inputs)])


def _resident_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    answer_question(_answer)
