"""Evaluates networks on engines against the float network: findings, losses, time, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np

from ..core.errors import AgentError, EngineError, ModelError, SampleError
from ..core.frozen import record
from ..core.types import Detections, Findings, Request, Sample, Tensors
from ..inference.agreement import Margin, compare_findings
from ..inference.drift import usual_of
from ..inference.engines.engine import EngineChoice
from ..inference.engines.ort_session import NAME
from ..inference.model import Model, default_threshold, load_model
from ..models.decoders import BOXED, SCORED
from ..models.drift import Usual
from ..models.manifest import ModelFolder, load
from .measure import Cost, costs_of
from .metrics import METRICS, Metric, Truth, chance
from .quantizers import Method

EXACT = EngineChoice(NAME, options={"graph_optimization_level": "none"})
"""Computes the file's steps one by one: quantized ones in float, without saturation."""
_LOWEST = 0.01
"""Least score of boxes that count for mAP."""
Advance = Callable[[int], None]
"""Takes the number of samples done."""


@contextmanager
def loaded(
    folder: ModelFolder, choice: EngineChoice = EXACT, *, checked: bool = True
) -> Iterator[Model]:
    """Load a model on one engine, and close it at the end; *checked*: its network was checked."""
    model = load_model(folder, [choice], folder.manifest.input.kind, checked=checked)
    try:
        yield model
    finally:
        model.close()


@record(quick=True, eq=False)
class Scores:
    """How good a network is on one engine."""

    agreement: float
    """Agreement with the float network, 0 to 1."""
    metric: float | None
    """Accuracy compared with the truth; None: that is unknown."""
    by_sample: tuple[float, ...]
    """Agreement on each sample."""
    findings: tuple[Findings, ...]


class Evaluator:
    """The samples that networks are judged on, and the float network's findings in them."""

    def __init__(
        self, folder: ModelFolder, samples: Sequence[Sample], truths: Sequence[Truth] | None
    ) -> None:
        """Run the float model; *truths* belong to the samples, if known.

        Raises:
            ModelError: the float model finds nothing to compare, or not what the truths say.
            EngineError: it cannot be run.
        """
        self.samples = samples
        self.truths = truths
        self.metric = None if truths is None else metric_of(folder)
        given = default_threshold(folder)
        self._threshold = given if folder.manifest.task in BOXED else 0.0
        self._margin = Margin(folder.manifest.trial.tolerance, given)
        found = self._look(folder, EXACT)
        self.expected = self._shown(found)
        if all(isinstance(one, Detections) and not len(one) for one in self.expected):
            raise ModelError(
                f"{folder.manifest.id}: finds nothing in any of {len(samples)} samples, so that "
                "nothing can be compared; give samples that show what it is for"
            )
        figure = self._measure(found)
        if figure is not None and self.metric and figure <= chance(self.metric, folder.labels):
            raise ModelError(
                f"{folder.manifest.id}: --eval: {self.metric} of the float network is "
                f"{figure:.3f}, which is no better than chance, so that nothing can be lost; are "
                "these the labels that it was trained with, in the same order?"
            )

    def judge(self, folder: Path, choice: EngineChoice) -> Scores:
        """Judge a model folder on an engine."""
        all_found = self._look(load(folder), choice)
        shown = self._shown(all_found)
        by_sample = tuple(
            compare_findings(expected, found, self._margin).share
            for expected, found in zip(self.expected, shown, strict=True)
        )
        figure = self._measure(all_found)
        return Scores(float(np.mean(by_sample)), figure, by_sample, tuple(shown))

    def _measure(self, found: Sequence[Findings]) -> float | None:
        """Return the accuracy compared with the truth; None: that is unknown."""
        if self.truths is None or self.metric is None:
            return None
        return METRICS[self.metric](found, self.truths)

    def _look(self, folder: ModelFolder, choice: EngineChoice) -> list[Findings]:
        lowest = _LOWEST if self.metric == "mAP" else None
        with loaded(folder, choice) as model:
            try:
                return [model.infer(sample, threshold=lowest).findings for sample in self.samples]
            except SampleError as problem:
                why = f"{folder.manifest.id} on {model.engine.label}: {problem}"
                raise ModelError(why) from None

    def _shown(self, found: Sequence[Findings]) -> list[Findings]:
        """Return findings without the boxes that only count for mAP."""
        if self.metric != "mAP":
            return list(found)
        return [one.above(self._threshold) for one in found]


def metric_of(folder: ModelFolder) -> Metric | None:
    """Return the metric that compares a model's findings with the truth, or None."""
    by_task: dict[str, Metric] = {"classification": "top-1", "anomaly": "AUC"}
    by_task |= dict.fromkeys(BOXED - {"text"}, "mAP")
    return by_task.get(folder.manifest.task)


def network_inputs(
    folder: ModelFolder, samples: Sequence[Sample], advance: Advance
) -> list[Tensors]:
    """Make the network's inputs from samples, with the agent's own code."""
    made: list[Tensors] = []
    with loaded(folder, checked=False) as model:
        for sample in samples:
            name = sample.file or f"sample {sample.seq}"
            try:
                tensors = model.unfolded(model.prepare(Request(sample)).tensors)
                outputs = model.run(tensors)
            except AgentError as problem:
                raise ModelError(f"{name}: {problem}") from None
            for output, values in outputs.items():
                if not np.isfinite(values).all():
                    raise ModelError(
                        f"{name}: output {output} of the float network is not finite; leave it out"
                    )
            made.append({key: np.array(array) for key, array in tensors.items()})
            advance(len(made))
    return made


def usual_findings(folder: ModelFolder, samples: Sequence[Sample], advance: Advance) -> Usual:
    """Return the usual values of samples, and of a network's findings, computed exactly."""
    manifest = folder.manifest

    def results(model: Model) -> Iterator[tuple[Sample, Findings]]:
        for number, sample in enumerate(samples, 1):
            yield sample, model.infer(sample).findings
            advance(number)

    floor = default_threshold(folder) if manifest.task in SCORED else 0.0
    try:
        with loaded(folder) as model:
            return usual_of(results(model), manifest.input.channels, floor)
    except SampleError as problem:
        raise ModelError(f"{manifest.id}: {problem}") from None


def outputs_of(folder: Path, inputs: Sequence[Tensors]) -> list[Tensors]:
    """Return a network's outputs for ready inputs, computed exactly."""
    with loaded(load(folder)) as model:
        return [model.run(each) for each in inputs]


Progress = Callable[[str, int, int], None]
"""Takes the current step, how much of it is done, and the total."""


@record(kw_only=True)
class Recipe:
    """How a network is quantized."""

    tool: str
    method: Method | None = None
    around: bool = True
    """Whether operators between the heavy ones are quantized, too."""
    float_nodes: tuple[str, ...] = ()
    """Heavy operators that stay float."""
    stepwise: bool = False
    """Whether NNCF corrects biases one after another, each after those before it."""

    def __str__(self) -> str:
        words = [self.tool]
        if self.method is not None:
            words.append(self.method)
        if self.stepwise:
            words.append("biases corrected stepwise")
        if not self.around:
            words.append("heavy operators only")
        if self.float_nodes:
            words.append(f"{len(self.float_nodes)} left float")
        return ", ".join(words)


@record(quick=True, eq=False)
class Candidate:
    """A network made with one recipe."""

    recipe: Recipe
    folder: Path
    scores: dict[str, Scores]
    """Scores by engine."""
    drop: float
    """The loss on the engine where it is greatest."""
    costs: dict[str, Cost]
    """Costs by engine, if measured."""

    @property
    def fastest_ms(self) -> float:
        return min((cost.infer_ms for cost in self.costs.values()), default=float("inf"))

    @property
    def product_ms(self) -> float:
        """The product of its times on all engines, which orders like their geometric mean."""
        return prod(cost.infer_ms for cost in self.costs.values())


class Comparison:
    """Judges networks on the engines that count, and times them against the float one."""

    def __init__(
        self,
        folder: ModelFolder,
        evaluator: Evaluator,
        engines: Sequence[EngineChoice],
        timed: Sequence[EngineChoice],
        progress: Progress,
    ) -> None:
        """Judge the float model on *engines*, which decide, and time it on those in *timed*.

        Engines that cannot run it are left out.

        Raises:
            EngineError: none of those can, or none of them is left to time it on.
        """
        self.folder = folder
        self.evaluator = evaluator
        self.progress = progress
        self.floats: dict[str, Scores] = {}
        """Scores of the float network by engine."""
        self.left_out: list[str] = []
        """Which engines cannot run it, and why, a line each."""
        unable: list[EngineChoice] = []
        for choice in engines:
            try:
                self.floats[label(choice)] = evaluator.judge(folder.path, choice)
            except EngineError as problem:
                unable.append(choice)
                self._leave_out(problem)
        self._engines = [choice for choice in engines if choice not in unable]
        self.timed = [choice for choice in timed if choice not in unable]
        if not self.floats or (timed and not self.timed):
            raise EngineError("; ".join(self.left_out))
        self.float_costs: dict[str, Cost] = {}
        """Costs of the float network by engine."""

    def _leave_out(self, problem: EngineError) -> None:
        why = str(problem).rpartition("no engine can run it: ")[2]
        self.left_out.append(f"left out, as it does not run the float network: {why}")

    def judge(self, recipe: Recipe, folder: Path) -> Candidate:
        """Judge the network in a model folder, which was made with *recipe*."""
        scores = {label(choice): self.evaluator.judge(folder, choice) for choice in self._engines}
        drop = max(lost(self.floats[name], each) for name, each in scores.items())
        return Candidate(recipe, folder, scores, drop, {})

    def time(self, candidates: Sequence[Candidate]) -> None:
        """Time networks against the float one."""
        folders = [self.folder.path, *(each.folder for each in candidates)]
        for number, choice in enumerate(list(self.timed)):
            self.progress("timing", number, len(self.timed))
            try:
                self.float_costs[label(choice)], *costs = costs_of(folders, choice)
            except EngineError as problem:
                if choice in self._engines:
                    raise
                self.timed.remove(choice)  # for another target it was not judged on
                self._leave_out(problem)
                continue
            for each, cost in zip(candidates, costs, strict=True):
                each.costs[label(choice)] = cost


def lost(before: Scores, after: Scores) -> float:
    """Return the loss of the metric if the truth is known, else of the agreement."""
    if before.metric is not None and after.metric is not None:
        return before.metric - after.metric
    return 1 - after.agreement


def label(choice: EngineChoice) -> str:
    """Return an engine's name for the report; the exact computation gets its own."""
    return "exact" if choice == EXACT else f"{choice.engine}:{choice.device}"
