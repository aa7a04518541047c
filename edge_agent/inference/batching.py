"""Several samples inferred together, each with a result of its own.

Only for networks whose inputs have an open first axis. An ONNX Runtime session takes any number as
it is; for OpenVINO the network is compiled for each of a few sizes, because an open one is slower
on its CPU and has given wrong numbers. Before a batch serves, samples of noise must give the same
results together as alone, for the smallest and the largest batch. This does not detect a network
in which samples affect each other only on rare inputs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np

from ..core.containment import contained
from ..core.errors import AgentError, EngineError, SampleError
from ..core.types import Array, Kind, Outcome, Request, Tensors, TensorSpec
from .agreement import relative_distance
from .engines.engine import Engine, FixShapes
from .engines.registry import capabilities, open_engine
from .folding.find import cut_for
from .model import Model
from .preprocess.inputs import column_inputs, constants, fixed_shapes, sample_input
from .preprocess.placement import ClientInputs, PreparedSample, like
from .probe import probe_input, race

log = logging.getLogger(__name__)

ROUNDS = 5
"""Runs timed, of which the fastest counts."""
COMPARED = 8
"""Most samples of a batch that are also inferred alone for comparison: all of them would take
minutes with a large network."""
SAME = 0.02
"""Greatest relative L2 distance between results of one sample in a batch and alone. Kernels for
several samples may round differently; one step of an 8-bit network is within it."""


class Batch:
    """A model's engines for several samples."""

    def __init__(
        self,
        model: Model,
        engines: Mapping[int, Engine],
        most: int,
        takes: str,
        repeated: frozenset[str],
    ) -> None:
        """Take ownership of engines, keyed by the number of samples they take; 0: any number."""
        self.most = most
        self._model = model
        self._engines = dict(engines)
        self._takes = takes
        """The input that takes the sample."""
        self._constants = constants(model.manifest.input, model.engine.inputs)
        self._repeated = repeated
        """The constants that are repeated for each sample."""

    def infer_all(self, requests: Sequence[Request]) -> list[Outcome | AgentError]:
        """Run the model on several samples; one that does not fit, or fails, fails alone."""
        answers: list[Outcome | AgentError | None] = [None] * len(requests)
        begin = 0
        while begin < len(requests):
            size = self._size(len(requests) - begin)
            if size == 1:
                answers[begin] = self._model.answer(requests[begin])
            else:
                self._together(requests, answers, range(begin, begin + size))
            begin += size
        return [answer for answer in answers if answer is not None]

    def _size(self, left: int) -> int:
        """Return how many samples go together next."""
        if 0 in self._engines:
            return min(left, self.most)
        return max((size for size in self._engines if size <= left), default=1)

    def _together(
        self, requests: Sequence[Request], answers: list[Outcome | AgentError | None], part: range
    ) -> None:
        """Infer some of the requests, and fill in their answers."""
        model = self._model
        prepared: list[tuple[int, PreparedSample]] = []
        for index in part:
            try:
                prepared.append((index, model.prepare(requests[index])))
            except SampleError as problem:
                answers[index] = problem
        count = len(prepared)
        engine = self._engines.get(0) or self._engines.get(count)
        start = time.perf_counter()
        outputs: Tensors | None = None
        # Otherwise too few are left, or nothing was compiled for this number.
        if count > 1 and engine is not None:
            samples = np.concatenate([one.tensors[self._takes] for _, one in prepared])
            try:
                theirs = [one.tensors for _, one in prepared]
                # One question among them makes it a client's.
                whose = next((each for each in theirs if isinstance(each, ClientInputs)), theirs[0])
                outputs = model.run(like(whose, self._joined(theirs[0], samples)), engine)
            except EngineError as problem:
                log.debug("model %s: %d together: %s; one by one", model.id, count, problem)
        took = (time.perf_counter() - start) * 1e3
        for number, (index, one) in enumerate(prepared):
            if outputs is None:
                answers[index] = model.answer(requests[index])
                continue
            results = {name: array[number : number + 1] for name, array in outputs.items()}
            try:
                answers[index] = model.conclude(requests[index], one, results, took, count)
            except (SampleError, EngineError) as problem:
                answers[index] = problem

    def _joined(self, tensors: Tensors, samples: Array) -> dict[str, Array]:
        """Return the inputs for all: the samples, and the constants repeated as needed."""
        count = len(samples)
        joined = {
            name: np.repeat(array, count, axis=0) if name in self._repeated else array
            for name, array in tensors.items()
        }
        joined[self._takes] = samples
        return joined

    def check(self) -> None:
        """Check for the smallest and the largest batch that samples do not affect each other.

        Raises:
            EngineError: they do, or several samples cannot be inferred together at all.
        """
        fewest = 2 if 0 in self._engines else min(self._engines)
        for size in sorted({min(fewest, self.most), self.most}):
            self._check_size(size)

    def _check_size(self, size: int) -> None:
        engine = self._engines.get(0) or self._engines[size]
        spec = next(spec for spec in self._model.engine.inputs if spec.name == self._takes)
        samples = _samples(spec, size)
        constants = self._constants
        # The first, the last, and others evenly spaced between them.
        places = {round(place) for place in np.linspace(0, size - 1, min(size, COMPARED))}
        alone = {
            number: self._model.run({**constants, spec.name: samples[number : number + 1]})
            for number in sorted(places)
        }
        found = self._model.run(self._joined({**constants, spec.name: samples}, samples), engine)
        for name, array in found.items():
            for number, outputs in alone.items():
                expected = outputs[name]
                if expected.ndim == 0 or expected.shape[0] != 1 or array.shape[0] != size:
                    raise EngineError(f"output {name} has no entry for each sample")
                distance = relative_distance(expected, array[number : number + 1])
                if not distance <= SAME:
                    raise EngineError(
                        f"output {name}: a sample gives another result in a batch than alone "
                        f"(relative distance {distance:.2g})"
                    )

    def pays(self, alone_s: float = float("inf")) -> bool:
        """Whether samples take no more time together than one after another.

        Also compared with *alone_s*, the seconds a sample took before this batch was loaded.

        Raises:
            EngineError: the engine failed.
        """
        size = self._size(self.most)
        engine = self._engines.get(0) or self._engines[size]
        spec = next(spec for spec in self._model.engine.inputs if spec.name == self._takes)
        samples = _samples(spec, size)
        # In the form of frames, not of golden inputs.
        joined = self._model.ready(self._joined({**self._constants, spec.name: samples}, samples))
        single = _ready(self._model)
        alone, together = race(
            [lambda _: self._model.run(single), lambda _: self._model.run(joined, engine)], ROUNDS
        )
        return min(together) <= min(alone_s * 1e3, *alone) * size

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


def seconds_alone(model: Model) -> float:
    """Return the seconds one sample takes: the minimum of several runs."""
    ready = _ready(model)
    return min(race([lambda _: model.run(ready)], ROUNDS)[0]) / 1e3


def _ready(model: Model) -> Tensors:
    """Return the inputs of one sample in the form of frames, not of golden inputs."""
    spec = _taker(model)
    return model.ready(
        {**constants(model.manifest.input, model.engine.inputs), spec.name: _samples(spec, 1)}
    )


def _taker(model: Model) -> TensorSpec:
    """Return the input that takes the samples.

    Raises:
        EngineError: there are several, each of which takes a column of a row.
    """
    spec = model.manifest.input
    if column_inputs(spec, model.engine.inputs):
        raise EngineError(f"{model.id}: samples go one by one: each of its inputs takes a column")
    return sample_input(spec, model.engine.inputs)


def load_batch(model: Model, kind: Kind, most: int) -> Batch:
    """Load a model for up to *most* samples at a time.

    Raises:
        EngineError: its network does not take several, or its engine cannot.
    """
    spec = model.manifest.input
    if spec.tokenizer:
        raise EngineError(f"{model.id}: texts go one by one, each with a mask of its own")
    if spec.state:
        raise EngineError(f"{model.id}: samples go one by one: each needs what the one before left")
    takes = _taker(model).name
    engines: dict[int, Engine] = {}
    try:
        with contained(model.id):
            if capabilities(model.choice.engine).open_batch:
                engines[0] = _widened(model.engine)
                opened = {
                    one.name for one in engines[0].inputs if one.shape and one.shape[0] is None
                }
            else:
                opened = set()
                cut = cut_for(model.folder, kind)
                for size in sizes(most):
                    shapes = _sized(fixed_shapes(spec, kind), size, opened)
                    engines[size] = open_engine(model.choice, model.folder.network, shapes, cut)
            if takes not in opened:
                raise EngineError("the network's batch is fixed")
            batch = Batch(model, engines, most, takes, frozenset(opened - {takes}))
            batch.check()
    except AgentError as problem:
        for engine in engines.values():
            engine.close()
        raise EngineError(f"{model.id}: samples go one by one: {problem}") from problem
    return batch


def _widened(engine: Engine) -> Engine:
    if engine.widened is None:
        raise EngineError("it was loaded from a prepared form, which takes one at a time")
    return engine.widened()


def _sized(fix: FixShapes, count: int, opened: set[str]) -> FixShapes:
    """Fix the batch of open inputs at *count*, and add their names to *opened*."""

    def decide(inputs: tuple[TensorSpec, ...]) -> Mapping[str, tuple[int, ...]]:
        found = {**fix(inputs)}
        for one in inputs:
            shape = found.get(one.name, ())
            if len(shape) > 1 and one.shape[0] is None and shape[0] == 1:
                opened.add(one.name)
                found[one.name] = (count, *shape[1:])
        if not opened:
            raise EngineError("the network's batch is fixed")
        return found

    return decide


def sizes(most: int) -> list[int]:
    """List the batch sizes to compile: the largest, and the powers of two below it."""
    found = [most]
    size = 2
    while size < most:
        found.append(size)
        size *= 2
    return sorted(found)


def _samples(spec: TensorSpec, count: int) -> Array:
    """Return samples of noise, the first so weak that any other would dominate it."""
    return np.concatenate(
        [
            probe_input(spec, np.random.default_rng(number), 1.0 if number else 0.1)
            for number in range(count)
        ]
    )
