"""Which engine of this box is the fastest for a model, of those that compute it rightly."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from ..core.errors import EngineError, ModelError, SampleError
from ..core.types import Kind, Request, Sample
from ..inference.engines.registry import engine_words
from ..inference.golden import compare_golden
from ..inference.model import Model, load_model
from ..models.importing import ImportedModel
from ..serving.reference_check import ReferenceCheck, open_plain, why_wrong
from ..sources.spec import SourceSpec
from .attended import Attendant
from .lineup import engines_for
from .terminal import say


def compare_engines(
    attendant: Attendant,
    imported: ImportedModel,
    spec: SourceSpec,
    sample: Sample,
    seconds: float,
) -> Model:
    """Time every engine of this box on the first sample; return the model on the fastest.

    Each engine gets so many *seconds*.

    Raises:
        EngineError: none can run it.
    """
    best: Model | None = None
    best_rate = 0.0
    refusals: list[str] = []
    plain: Model | None = None
    unlike: set[str] = set()
    for choice in engines_for(imported.folder.network):
        name = f"{choice.engine}:{choice.device}"
        attendant.check_open()
        try:
            with attendant.doing(f"the first inference on {name}, loading included,"):
                model, _ = load_model(imported.folder, [choice], spec.kind)
        except EngineError as problem:
            reason = str(problem).rpartition(f"{name}: ")[2]
            refusals.append(f"{name}: {reason}")
            say(f"engine   {name}: cannot run it: {reason}")
            continue
        with attendant.doing(f"the golden outputs on {name}"):
            trouble = _golden_trouble(model, name)
        if trouble is not None and trouble not in unlike:
            unlike.add(trouble)
            say(f"golden   {trouble}; devices refuse the model so")
        with attendant.doing(f"the comparison of {name} with a session without optimization"):
            plain = plain or open_plain(imported.folder, spec.kind)
            why = None if plain is None else _why_wrong(plain, model, spec.kind, sample)
        if why is not None:
            refusals.append(f"{name}: {why}")
            say(f"engine   {name}: is wrong here, and does not serve: {why}")
            model.close()
            continue
        with attendant.doing(f"timing of the inference on {name}"):
            rate, alone_ms = _rate(attendant, model, sample, choice.lanes, seconds)
        each = "frames" if sample.picture else "windows"
        say(
            f"engine   {engine_words(model.engine.label)}: {rate:.1f} {each} a second "
            f"({alone_ms:.2f} ms alone, {choice.lanes} at a time)"
        )
        if rate > best_rate:
            if best is not None:
                best.close()
            best, best_rate = model, rate
        else:
            model.close()
    if best is None and plain is not None:
        say(f"engine   {engine_words(plain.engine.label)} without optimization serves")
        return plain
    if best is None:
        raise EngineError(f"no engine can run it: {'; '.join(refusals)}")
    if plain is not None:
        best.check = ReferenceCheck(plain)  # one sample is not enough to go by
    return best


def _golden_trouble(model: Model, name: str) -> str | None:
    """Return what a device's trial would refuse the model for; None: nothing, or it has no file."""
    try:
        agreement = compare_golden(model)
    except (ModelError, SampleError) as problem:
        return str(problem).removeprefix(f"{model.id}: ")
    return None if agreement is None or agreement.passed else f"{name}: {agreement.why}"


def _why_wrong(plain: Model, model: Model, kind: Kind, sample: Sample) -> str | None:
    """Return why an engine must not serve, by what it finds in the first sample; None: it may."""
    try:
        tensors = plain.prepare(Request(sample)).tensors
    except SampleError:
        return None  # the sample does not fit the model, which is reported where it is inferred
    return why_wrong(plain, model, kind, [plain.unfolded(tensors)])


def _rate(
    attendant: Attendant, model: Model, sample: Sample, lanes: int, seconds: float
) -> tuple[float, float]:
    """Measure frames a second with all lanes busy, and the median milliseconds of one alone."""
    alone: list[float] = []
    deadline = time.perf_counter() + seconds / 3
    while time.perf_counter() < deadline or len(alone) < 3:
        attendant.check_open()
        start = time.perf_counter()
        model.infer(sample)
        alone.append((time.perf_counter() - start) * 1e3)
    deadline = time.perf_counter() + seconds

    def lane(_number: int) -> int:
        # One at least: on a busy machine the time may be over before a lane begins.
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
