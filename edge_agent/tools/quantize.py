"""Quantisation from a model folder to a report: search, measure, compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import ModelError, UsageError
from ..core.frozen import record
from ..core.text import counted
from ..core.types import Findings, Kind, Sample, Tensors
from ..inference.engines.engine import EngineChoice
from ..models.drift import Usual
from ..models.manifest import ModelFolder
from .judging import EXACT, Jury, Metric, Verdict, network_inputs, usual_findings
from .measure import Cost
from .metrics import Truth
from .network import make_ready
from .search import Candidate, Progress, Search, label
from .targets import Target

LEAST_SAMPLES = 8
HELD_OUT_FROM = 60
"""Samples from which on every fourth is kept for judging alone."""
SATURATED = 0.05
"""Agreement by which an engine may be behind the exact computation before that is said."""
WORST = 4
"""Examples that are shown."""


@record(quick=True, eq=False)
class Row:
    """One network on one engine."""

    engine: str
    verdict: Verdict
    cost: Cost | None
    """None: of the exact computation, which no box runs."""


@record(quick=True, eq=False)
class Report:
    """What came out."""

    model: str
    target: Target
    foreign: bool
    """Whether the target is another processor than this one: then only the exact computation
    counts, for this one's engines run such a network in another way."""
    calibrated_on: int
    judged_on: int
    held_out: bool
    metric: Metric | None
    max_drop: float
    drop: float
    passed: bool
    floats: list[Row]
    quantized: list[Row]
    float_bytes: int
    quantized_bytes: int
    chosen: Candidate
    candidates: list[Candidate]
    notes: list[str]
    worst: list[tuple[Sample, Findings, Findings, float]]
    """Sample, what the float network finds, what the other does, how far they agree."""
    golden: list[Tensors]
    """Inputs."""
    usual: Usual | None
    """Of the calibration samples and what the chosen network finds in them; None: it did not
    pass."""


def quantize(
    folder: ModelFolder,
    kind: Kind,
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
    """Quantise a model and compare what comes out with what went in.

    Args:
        folder: of the float model.
        kind: of the samples.
        samples: to calibrate with.
        evaluation: samples and what they show, to judge by; None: judged by agreement.
        engines: of this device.
        target: to quantise for.
        own: what this device is.
        max_drop: what may be lost.
        place: an empty folder to work in; the chosen network lies in it.
        progress: is told of each step.

    Raises:
        UsageError: too few samples.
        ModelError: the network cannot be quantised.
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
    calibration = [each for n, each in enumerate(samples) if n % 4 != 3] if held_out else samples
    judged, truths = list(samples[3::4] if held_out else samples), None
    if evaluation is not None:
        judged, truths = list(evaluation[0]), list(evaluation[1])
    network = make_ready(folder.network, place)
    count = len(calibration)
    progress("preparing samples", 0, count)
    inputs = network_inputs(
        folder, kind, calibration, lambda done: progress("preparing samples", done, count)
    )
    jury = Jury(folder, kind, judged, truths)
    foreign = target != own
    deciding = [EXACT] if foreign else [*engines, EXACT]
    search = Search(
        folder, network, jury, inputs, target, deciding, engines, max_drop, place, progress
    )
    found = search.run()
    chosen = found or min(search.candidates, key=lambda each: each.drop)
    floats: list[Row] = []
    quantized: list[Row] = []
    for number, choice in enumerate([*engines, EXACT]):
        name = label(choice)
        progress("measuring", number, len(engines) + 1)
        for rows, path, known, costs in (
            (floats, folder.path, search.floats, search.float_costs),
            (quantized, chosen.folder, chosen.verdicts, chosen.costs),
        ):
            verdict = known.get(name) or jury.judge(path, choice)
            rows.append(Row(name, verdict, costs.get(name)))
    notes = [*search.failed, *_notes(floats, quantized, target, foreign)]
    worst_row = min(
        (row for row in quantized if not foreign or row.engine == label(EXACT)),
        key=lambda row: row.verdict.agreement,
    )
    usual = None
    if found is not None:
        words, most = "learning what is usual", len(samples)
        usual = usual_findings(
            found.folder, kind, samples, lambda done: progress(words, done, most)
        )
    order = sorted(range(len(judged)), key=lambda place: worst_row.verdict.by_sample[place])
    step = max(1, len(inputs) // 4)
    return Report(
        manifest.id,
        target,
        foreign,
        len(calibration),
        len(judged),
        held_out,
        jury.metric,
        max_drop,
        chosen.drop,
        found is not None,
        floats,
        quantized,
        size_of_network(folder),
        (chosen.folder / "model.onnx").stat().st_size,
        chosen,
        search.candidates,
        notes,
        [
            (
                judged[place],
                jury.expected[place],
                worst_row.verdict.findings[place],
                worst_row.verdict.by_sample[place],
            )
            for place in order[:WORST]
        ],
        list(inputs[::step][:4]),
        usual,
    )


def size_of_network(folder: ModelFolder) -> int:
    """Return the bytes of a network's files."""
    from ..models.files.check_onnx import inspect

    return sum(path.stat().st_size for path in inspect(folder.network).files)


def _notes(floats: Sequence[Row], rows: Sequence[Row], target: Target, foreign: bool) -> list[str]:
    """Say where an engine computes something else than the file says."""
    exact = next(row for row in rows if row.cost is None)
    notes = []
    if foreign:
        notes.append(
            f"for {target.name}, which this device is not: judged by the exact computation alone"
        )
    notes += [
        f"{row.engine} agrees in {row.verdict.agreement:.1%}, the exact computation in "
        f"{exact.verdict.agreement:.1%}: on this processor it computes something else"
        for row in rows
        if row.verdict.agreement < exact.verdict.agreement - SATURATED
    ]
    faster = [
        before.cost.infer_ms > after.cost.infer_ms
        for before, after in zip(floats, rows, strict=True)
        if before.cost is not None and after.cost is not None
    ]
    if not any(faster):
        notes.append("eight bits are not faster than the float network on any engine here")
    return notes
