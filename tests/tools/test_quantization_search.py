"""Which of several eight-bit networks is taken."""

from __future__ import annotations

from pathlib import Path

from edge_agent.tools.evaluation import Candidate, Recipe
from edge_agent.tools.measure import Cost
from edge_agent.tools.quantization_search import best_of


def candidate(tool: str, drop: float, *ms: float) -> Candidate:
    """Make a candidate that loses so much and takes so long on each engine."""
    costs = {str(n): Cost(infer_ms=each, memory_mb=1) for n, each in enumerate(ms)}
    return Candidate(Recipe(tool=tool), Path(tool), {}, drop, costs)


def test_the_fastest_then_what_loses_least_then_the_fastest_everywhere() -> None:
    """A tenth is no difference of speed; of equals the one that is quick on the other engine."""
    one_sided = candidate("one-sided", 0.0, 1.78, 8.90)
    both = candidate("both", 0.0, 1.83, 4.30)
    assert best_of([one_sided, both]) is both
    assert best_of([one_sided, candidate("lossy", 0.01, 1.70, 4.0)]) is one_sided
    assert best_of([both, candidate("faster", 0.01, 1.2, 9.0)]).recipe.tool == "faster"  # type: ignore[union-attr]
    assert best_of([]) is None
