"""A float network and what is to stand for it, side by side: what is lost, and what each takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

from ..core.frozen import record
from ..inference.engines.engine import EngineChoice
from ..models.manifest import ModelFolder
from .judging import EXACT, Jury, Verdict
from .measure import Cost, costs_of
from .static_quantization import Method

Progress = Callable[[str, int, int], None]
"""Takes what is being done, how much of it is done, and of how much."""


@record(kw_only=True)
class Way:
    """One way to quantise."""

    tool: str
    method: Method | None = None
    around: bool = True
    """Whether what lies between the heavy operators is quantised too."""
    float_nodes: tuple[str, ...] = ()
    """Heavy operators that stay float."""
    stepwise: bool = False
    """Whether NNCF corrects biases one after the other, each with those before it corrected."""

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
    """A network that came out of one way."""

    way: Way
    folder: Path
    verdicts: dict[str, Verdict]
    """By engine."""
    drop: float
    """What it loses, on the engine where it loses most."""
    costs: dict[str, Cost]
    """By engine, where it was measured."""

    @property
    def fastest_ms(self) -> float:
        return min((cost.infer_ms for cost in self.costs.values()), default=float("inf"))

    @property
    def product_ms(self) -> float:
        """Over all engines: of two, the lower one has the lower geometric mean."""
        return prod(cost.infer_ms for cost in self.costs.values())


class Comparison:
    """Judges networks on the engines that count, and times them beside the float one."""

    def __init__(
        self,
        folder: ModelFolder,
        jury: Jury,
        engines: Sequence[EngineChoice],
        timed: Sequence[EngineChoice],
        progress: Progress,
    ) -> None:
        """Judge the float network.

        Args:
            folder: of the float model.
            jury: judges.
            engines: that networks are judged on.
            timed: that they are timed on.
            progress: is told of each step.

        Raises:
            EngineError: an engine cannot run it.

        """
        self.folder = folder
        self.jury = jury
        self.timed = timed
        self.progress = progress
        self._engines = engines
        self.floats: dict[str, Verdict] = {
            label(choice): jury.judge(folder.path, choice) for choice in engines
        }
        """The float network itself, by engine …"""
        self.float_costs: dict[str, Cost] = {}
        """… and what it takes."""

    def judge(self, way: Way, folder: Path) -> Candidate:
        """Judge the network of a model folder, which came out of *way*."""
        verdicts = {label(choice): self.jury.judge(folder, choice) for choice in self._engines}
        drop = max(lost(self.floats[name], each) for name, each in verdicts.items())
        return Candidate(way, folder, verdicts, drop, {})

    def time(self, candidates: Sequence[Candidate]) -> None:
        """Time networks beside the float one."""
        folders = [self.folder.path, *(each.folder for each in candidates)]
        for number, choice in enumerate(self.timed):
            self.progress("timing", number, len(self.timed))
            self.float_costs[label(choice)], *costs = costs_of(folders, choice, self.jury.kind)
            for each, cost in zip(candidates, costs, strict=True):
                each.costs[label(choice)] = cost


def lost(before: Verdict, after: Verdict) -> float:
    """Return what is lost: of the metric where the truth is known, else of the agreement."""
    if before.metric is not None and after.metric is not None:
        return before.metric - after.metric
    return 1 - after.agreement


def label(choice: EngineChoice) -> str:
    """Name an engine in the report; the exact computation is none of a box's."""
    return "exact" if choice == EXACT else f"{choice.engine}:{choice.device}"
