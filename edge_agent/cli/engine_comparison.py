"""Finds the fastest engine on this device that computes a model correctly."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from ..core.errors import EngineError, ModelError, SampleError
from ..core.types import Kind, Request, Sample
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import engine_words
from ..inference.golden import compare_golden
from ..inference.model import Model, load_model
from ..models.importing import ImportedModel
from ..serving.reference_check import ReferenceCheck, open_plain, why_wrong
from ..sources.spec import SourceSpec
from .attended import Attendant, OverdueError
from .lineup import engines_for
from .terminal import say


@dataclass(eq=False)
class _Comparison:
    """The state of a comparison of engines, which are tried one after another."""

    imported: ImportedModel
    spec: SourceSpec
    sample: Sample
    refusals: list[str] = field(default_factory=list, init=False)
    plain: Model | None = field(default=None, init=False)
    """A session without optimization."""
    _unlike: set[str] = field(default_factory=set, init=False)

    def try_engine(
        self, attendant: Attendant, choice: EngineChoice, seconds: float
    ) -> tuple[Model | None, float]:
        """Load the model on an engine, check it, and time it.

        Returns:
            The model and frames per second; None and 0.0 if it must not serve.
        """
        imported, spec, sample = self.imported, self.spec, self.sample
        name = f"{choice.engine}:{choice.device}"
        try:
            with attendant.doing(f"the first inference on {name}, loading included,"):
                model = load_model(imported.folder, [choice], spec.kind)
        except EngineError as problem:
            self._refuse(name, "cannot run it", str(problem).rpartition(f"{name}: ")[2])
            return None, 0.0
        with attendant.doing(f"the golden outputs on {name}"):
            trouble = _golden_trouble(model, name)
        if trouble is not None and trouble not in self._unlike:
            self._unlike.add(trouble)
            say(f"golden   {trouble}; devices refuse the model so")
        with attendant.doing(f"the comparison of {name} with a session without optimization"):
            plain = self.plain = self.plain or open_plain(imported.folder, spec.kind)
            why = None if plain is None else _why_wrong(plain, model, spec.kind, sample)
        if why is not None:
            self._refuse(name, "is wrong here, and does not serve", why)
            model.close()
            return None, 0.0
        with attendant.doing(f"timing of the inference on {name}"):
            rate, alone_ms = _rate(attendant, model, sample, choice.lanes, seconds)
        each = "frames" if sample.picture else "windows"
        say(
            f"engine   {engine_words(model.engine.label)}: {rate:.1f} {each} a second "
            f"({alone_ms:.2f} ms alone, {choice.lanes} at a time)"
        )
        return model, rate

    def leave(self, choice: EngineChoice, problem: OverdueError) -> None:
        """Continue without an engine that has not returned."""
        self.plain = None  # it may be in use there
        self._refuse(f"{choice.engine}:{choice.device}", "is left", str(problem))

    def _refuse(self, name: str, verb: str, reason: str) -> None:
        self.refusals.append(f"{name}: {reason}")
        say(f"engine   {name}: {verb}: {reason}")


def compare_engines(
    imported: ImportedModel,
    spec: SourceSpec,
    sample: Sample,
    seconds: float,
    patience_s: float | None,
) -> Model:
    """Time every engine of this device on the first sample; return the model on the fastest."""
    known, best, best_rate = _Comparison(imported, spec, sample), None, 0.0
    for choice in engines_for(imported.folder.network):
        attendant = Attendant(patience_s)
        try:
            model, rate = attendant.call(
                partial(known.try_engine, attendant, choice, seconds), f"a trial of {choice.engine}"
            )
        except OverdueError as problem:
            known.leave(choice, problem)
            continue
        if rate > best_rate:
            best, best_rate, model = model, rate, best
        if model is not None:
            model.close()
    plain = known.plain
    if best is None and plain is not None:
        say(f"engine   {engine_words(plain.engine.label)} without optimization serves")
        return plain
    if best is None:
        raise EngineError(f"no engine can run it: {'; '.join(known.refusals)}")
    if plain is not None:
        best.check = ReferenceCheck(plain)  # one sample is not enough
    return best


def _golden_trouble(model: Model, name: str) -> str | None:
    """Return why a device's trial would refuse the model; None: it passes, or nothing is golden."""
    try:
        agreement = compare_golden(model)
    except (ModelError, SampleError) as problem:
        return str(problem).removeprefix(f"{model.id}: ")
    return None if agreement is None or agreement.passed else f"{name}: {agreement.why}"


def _why_wrong(plain: Model, model: Model, kind: Kind, sample: Sample) -> str | None:
    """Return why an engine must not serve, from its findings in the first sample, or None."""
    try:
        tensors = plain.prepare(Request(sample)).tensors
    except SampleError:
        return None  # the sample does not fit the model, which is reported when it is inferred
    return why_wrong(plain, model, kind, [plain.unfolded(tensors)])


def _rate(
    attendant: Attendant, model: Model, sample: Sample, lanes: int, seconds: float
) -> tuple[float, float]:
    """Measure frames per second with all lanes busy, and the median milliseconds of one alone."""
    alone: list[float] = []
    deadline = time.perf_counter() + seconds / 3
    while time.perf_counter() < deadline or len(alone) < 3:
        attendant.check_open()
        start = time.perf_counter()
        model.infer(sample)
        alone.append((time.perf_counter() - start) * 1e3)
    deadline = time.perf_counter() + seconds

    def lane(_number: int) -> int:
        # At least one: on a busy machine the time may be over before a lane begins.
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
