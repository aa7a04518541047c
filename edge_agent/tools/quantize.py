"""Quantization from a model folder to a report: search, measure, compare."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from statistics import fmean

from ..core.errors import ModelError, UsageError
from ..core.frozen import record
from ..core.text import counted
from ..core.types import Findings, Sample, Tensors
from ..inference.engines.engine import EngineChoice
from ..models.drift import Usual
from ..models.files.check_onnx import inspect
from ..models.manifest import ModelFolder, load
from .evaluation import (
    EXACT,
    Candidate,
    Comparison,
    Evaluator,
    Progress,
    Recipe,
    Scores,
    label,
    loaded,
    network_inputs,
    usual_findings,
)
from .float_model import make_ready
from .golden_cases import CANDIDATES, clearest, try_folder, write_golden
from .measure import Cost
from .metrics import Metric, Truth
from .quantization_search import Search
from .quantizers import Target

LEAST_SAMPLES = 8
HELD_OUT_FROM = 60
"""Number of samples from which every second one is only used for judging. That matters more than
calibration: one of 40 samples in which the networks differ is 2.5 %."""
SATURATED = 0.05
"""How much less an engine may agree than the exact computation before that is noted."""
WORST = 4
"""Number of examples shown."""


@record(quick=True, eq=False)
class Row:
    """One network on one engine."""

    engine: str
    scored: Scores
    cost: Cost | None
    """None for the exact computation, which no device runs."""


@record(kw_only=True, eq=False)
class Report:
    """The result of a quantization."""

    model: str
    target: Target
    foreign: bool
    """Whether the target is another processor than this one: then only the exact computation
    counts, because engines run such a network differently here."""
    calibrated_on: int = 0
    """Number of calibration samples; 0: it was only judged here."""
    judged_on: int
    held_out: bool = True
    metric: Metric | None
    max_drop: float
    drop: float
    passed: bool
    floats: list[Row]
    quantized: list[Row]
    float_bytes: int
    quantized_bytes: int
    chosen: Candidate
    candidates: list[Candidate] = field(default_factory=list)
    notes: list[str]
    worst: list[tuple[Sample, Findings, Findings, float]]
    """Samples, findings of the float network and of the other, and their agreement."""
    usual: Usual | None = None
    """Usual values of the calibration samples and of the chosen network's findings; None: it did
    not pass, or was only judged."""


def quantize(
    folder: ModelFolder,
    samples: Sequence[Sample],
    evaluation: tuple[Sequence[Sample], Sequence[Truth]] | None,
    *,
    engines: Sequence[EngineChoice],
    target: Target,
    own: Target,
    max_drop: float,
    place: Path,
    progress: Progress,
) -> Report:
    """Quantize a float model and compare the result with the original.

    Raises:
        UsageError: there are too few samples, or too many of them are equal.
        ModelError: the network cannot be quantized.
        EngineError: an engine cannot run it.
    """
    manifest = folder.manifest
    if manifest.input.state:
        raise ModelError(f"{manifest.id}: input.state: a network with a state is not quantized")
    if len(samples) < LEAST_SAMPLES:
        raise UsageError(
            f"--calibration: {counted(len(samples), 'sample')}, expected at least {LEAST_SAMPLES} "
            "(some hundred are better) of what the model will see"
        )
    held_out = evaluation is None and len(samples) >= HELD_OUT_FROM
    calibration = [each for n, each in enumerate(samples) if n % 2 == 0] if held_out else samples
    judged, truths = list(samples[1::2] if held_out else samples), None
    if evaluation is not None:
        judged, truths = list(evaluation[0]), list(evaluation[1])
    network = make_ready(folder.network, place)
    count = len(calibration)
    progress("preparing samples", 0, count)
    inputs = network_inputs(
        folder, calibration, lambda done: progress("preparing samples", done, count)
    )
    _check_distinct(inputs)
    comparison = _comparison(folder, judged, truths, engines, target != own, progress)
    search = Search(comparison, network, inputs, target, max_drop, place)
    found = search.run()
    usual, notes = None, []
    if found is not None:
        words, most = "learning what is usual", len(samples)
        made = load(found.folder)
        usual = usual_findings(made, samples, lambda done: progress(words, done, most))
        progress("trying its golden outputs", 0, 0)
        _write_golden(made, inputs)
        refused = try_folder(found.folder, [] if target != own else comparison.timed)
        if refused and len(refused) == len(comparison.timed):
            raise ModelError(f"{manifest.id}: no engine of this device would run it: {refused}")
        notes = [f"a trial would refuse it on {name}: {why}" for name, why in refused.items()]
    chosen = found or min(search.candidates, key=lambda each: each.drop)
    report = _report(comparison, chosen, target, target != own, max_drop)
    return replace(
        report,
        calibrated_on=len(calibration),
        held_out=held_out,
        passed=found is not None,
        candidates=search.candidates,
        notes=[*search.failed, *report.notes, *notes],
        usual=usual,
    )


def _check_distinct(inputs: Sequence[Tensors]) -> None:
    """Check that a lens cap, a still picture, or a dead sensor was not all that was recorded.

    Nothing can be told of what the network loses then: it agrees with itself on one input.
    """
    known = {tuple(zlib.crc32(tensor.tobytes()) for tensor in each.values()) for each in inputs}
    if len(known) < LEAST_SAMPLES:
        raise UsageError(
            f"--calibration: of {len(inputs)} samples all but {len(known)} are copies, expected at "
            f"least {LEAST_SAMPLES} that differ, of what the model will see"
        )


def _write_golden(folder: ModelFolder, inputs: Sequence[Tensors]) -> None:
    """Write the clearest golden cases for some inputs, computed exactly."""
    candidates = inputs[:: max(1, len(inputs) // CANDIDATES)][:CANDIDATES]
    with loaded(folder) as model:
        outputs = [model.run(each) for each in candidates]
        kept = clearest(model, candidates, outputs)
    write_golden(folder.path, [candidates[n] for n in kept], [outputs[n] for n in kept])


def judge(
    folder: ModelFolder,
    other: ModelFolder,
    name: str,
    samples: Sequence[Sample],
    truths: Sequence[Truth] | None,
    *,
    engines: Sequence[EngineChoice],
    target: Target,
    own: Target,
    max_drop: float,
    progress: Progress,
) -> Report:
    """Compare an existing eight-bit model, *other*, with the float one.

    Arguments are as for `quantize`; *name* is the name of the other in the report.

    Raises:
        UsageError: there are no samples.
        ModelError: the float model finds nothing to compare, or not what the truths say.
        EngineError: an engine cannot run one of them.
    """
    if not samples:
        raise UsageError("no samples to judge on: name a source that has some")
    comparison = _comparison(folder, samples, truths, engines, target != own, progress)
    progress(f"judging {name}", 0, 0)
    candidate = comparison.judge(Recipe(tool=name), other.path)
    comparison.time([candidate])
    return _report(comparison, candidate, target, target != own, max_drop)


def check_comparable(folder: ModelFolder, other: ModelFolder, name: str) -> None:
    """Check that a model can be compared with the float one, as far as is quick."""
    if inspect(other.network).kind != "onnx":
        raise ModelError(f"{name}: expected .onnx; of other files there is no exact computation")
    mine, its = folder.manifest, other.manifest
    if (mine.task, mine.input.kind) != (its.task, its.input.kind):
        raise ModelError(
            f"{name}: its task is {its.task} of a {its.input.kind}, that of {mine.id} "
            f"{mine.task} of a {mine.input.kind}: name the float model that it was made of"
        )


def _comparison(
    folder: ModelFolder,
    samples: Sequence[Sample],
    truths: Sequence[Truth] | None,
    engines: Sequence[EngineChoice],
    foreign: bool,
    progress: Progress,
) -> Comparison:
    progress("judging the float network", 0, 0)
    evaluator = Evaluator(folder, samples, truths)
    deciding = [EXACT] if foreign else [*engines, EXACT]
    return Comparison(folder, evaluator, deciding, engines, progress)


def _report(
    comparison: Comparison, chosen: Candidate, target: Target, foreign: bool, max_drop: float
) -> Report:
    """Return a report on a judged and timed network, without earlier attempts."""
    folder, evaluator = comparison.folder, comparison.evaluator
    floats: list[Row] = []
    quantized: list[Row] = []
    engines = [*comparison.timed, EXACT]
    for number, choice in enumerate(engines):
        name = label(choice)
        comparison.progress("measuring", number, len(engines))
        for rows, path, known, costs in (
            (floats, folder.path, comparison.floats, comparison.float_costs),
            (quantized, chosen.folder, chosen.scores, chosen.costs),
        ):
            scored = known.get(name) or evaluator.judge(path, choice)
            rows.append(Row(name, scored, costs.get(name)))
    worst_row = min(
        (row for row in quantized if not foreign or row.engine == label(EXACT)),
        key=lambda row: row.scored.agreement,
    )
    by_sample = worst_row.scored.by_sample
    order = sorted(range(len(by_sample)), key=by_sample.__getitem__)
    notes = _notes(floats, quantized, target, foreign)
    if chosen.drop <= max_drop < 1 - worst_row.scored.agreement and evaluator.metric is not None:
        notes.insert(
            0,
            f"{worst_row.engine} agrees with the float network in "
            f"{worst_row.scored.agreement:.1%} only, which the labels do not tell",
        )
    return Report(
        model=folder.manifest.id,
        target=target,
        foreign=foreign,
        judged_on=len(by_sample),
        metric=evaluator.metric,
        max_drop=max_drop,
        drop=chosen.drop,
        passed=chosen.drop <= max_drop,
        floats=floats,
        quantized=quantized,
        float_bytes=size_of_network(folder),
        quantized_bytes=size_of_network(load(chosen.folder)),
        chosen=chosen,
        notes=[*comparison.left_out, *notes],
        worst=[
            (
                evaluator.samples[place],
                evaluator.expected[place],
                worst_row.scored.findings[place],
                by_sample[place],
            )
            for place in order[:WORST]
        ],
    )


def size_of_network(folder: ModelFolder) -> int:
    """Return the total size of a network's files in bytes."""
    return sum(path.stat().st_size for path in inspect(folder.network).files)


def score_shift(before: Row, after: Row) -> float | None:
    """Return how far the best score of a sample moves on average; None: there are no scores.

    Of samples in which both networks find something.
    """
    pairs = zip(before.scored.findings, after.scored.findings, strict=True)
    scores = [(one.best_score, other.best_score) for one, other in pairs]
    moved = [other - one for one, other in scores if one and other]
    return round(fmean(moved), 4) if moved else None


def _notes(floats: Sequence[Row], rows: Sequence[Row], target: Target, foreign: bool) -> list[str]:
    """List notes on the target, and on engines that compute something other than the file says."""
    exact = next(row for row in rows if row.cost is None)
    notes = []
    if foreign:
        notes.append(
            f"for {target.name}, which this device is not: judged by the exact computation alone"
        )
    notes += [
        f"{row.engine} agrees in {row.scored.agreement:.1%}, the exact computation in "
        f"{exact.scored.agreement:.1%}: on this processor it computes something else"
        for row in rows
        if row.scored.agreement < exact.scored.agreement - SATURATED
    ]
    pairs = list(zip(floats, rows, strict=True))
    shifts = {after.engine: score_shift(before, after) for before, after in pairs}
    notes += [
        f"{engine}: the best score of a sample moves by {shift:+.3f} on average"
        for engine, shift in shifts.items()
        if shift is not None
    ]
    found = floats[0].scored.findings
    if empty := sum(one.best_score == 0 for one in found):
        notes.append(f"the float network finds nothing in {empty} of {len(found)} samples")
    faster = [
        before.cost.infer_ms > after.cost.infer_ms
        for before, after in pairs
        if before.cost is not None and after.cost is not None
    ]
    if not any(faster):
        notes.append("eight bits are not faster than the float network on any engine here")
    return notes
