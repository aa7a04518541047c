"""Which strategies an artifact can be loaded by, and which is best: proved, then measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....device.resources import usable_cpus
from ..artifact import Artifact
from ..load import MARGIN, SLACK_MS, choose
from .measure import Measured, figures, load_once, measure_in_turns, one_core
from .verify import Reference
from .weight_layout import Layout

BARE_TOLERANCE = 1e-4
"""Relative distance up to which a session without prepared weights may go first."""
_BUSY_ROUNDS = 2
"""With one core, where little disturbs."""
STEADY = 0.03
"""Slower than this share in the long run is exchanged for the whole session."""
_MIB = 1024 * 1024

Ways = Mapping[str, tuple[Artifact, str]]
"""By name: an artifact and the strategy to load it by. "staged <n>" for each number of stages."""


def choose_resident(
    artifacts: Mapping[int, Artifact],
    reference: Reference,
    table: dict[str, Any],
    weights_mb: float,
    budget_mb: int,
) -> int:
    """Measure the strategies for a network that fits in memory; return the best number of stages.

    Args:
        artifacts: by number of stages.
        reference: has the network's own numbers; loaded whole, the artifact has them.
        table: of the artifact; gets the figures and the decision.
        weights_mb: of the network.
        budget_mb: what it may take; 0: no bound.

    Raises:
        ArtifactError: it does not load or run.

    """
    head_ms: float = table["head_ms"]
    one = artifacts[min(artifacts)]
    sample = reference.timed_sample(one)
    proved, distances = _proved({"bare": (one, "bare")}, reference)
    plain = {"whole": (one, "whole"), **proved}
    idle = measure_in_turns(plain, sample, head_ms)
    with one_core():
        # With no core to spare nothing of a load is hidden: what goes before it only adds to it.
        busy = {
            name: [each._replace(total_ms=head_ms + each.total_ms) for each in loads]
            for name, loads in measure_in_turns(plain, sample, rounds=_BUSY_ROUNDS).items()
        }
    measured = {name: figures(loads) for name, loads in idle.items()}
    whole = measured["whole"]
    if not _hidden(whole, head_ms) or (budget_mb and whole["anon_mb"] + weights_mb > budget_mb):
        ways, more = _proved(_quicker(artifacts, table["session"]["threads"]), reference)
        distances |= more
        idle |= measure_in_turns(ways, sample, head_ms)
        measured |= {name: figures(idle[name]) for name in ways}
    staged = [name for name in measured if name.startswith("staged ")]
    best = min(staged, key=lambda name: measured[name]["total_ms"], default=None)
    fitting = [
        name
        for name, found in measured.items()
        if not (budget_mb and found["anon_mb"] + weights_mb > budget_mb)
        and (name == best or name not in staged)
    ]
    # Without weights of its own a session takes least; what it maps can be given back.
    kept = fitting or ["bare" if "bare" in measured else "whole"]
    spare = "idle" if usable_cpus() > 1 else "busy"
    strategies: dict[str, dict[str, Any]] = {
        name.partition(" ")[0]: {spare: measured[name]} for name in kept
    }
    for name, loads in busy.items():
        if name in strategies:
            strategies[name]["busy"] = figures(loads)
    table["tried"] = measured
    table["rungs"] = strategies
    table["distance"] = distances
    table["settled"] = {
        name: _settled(name, each, strategies, measured["whole"], distances)
        for name, each in strategies.items()
    }
    table["decision"] = choose(strategies, spare)
    table["why"] = f"first result, {head_ms:g} ms head start: " + ", ".join(
        f"{name} {each[spare]['total_ms']:.1f} ms" for name, each in strategies.items()
    )
    chosen = min(artifacts) if best is None else int(best.partition(" ")[2])
    _record_stages(artifacts[chosen], [] if best is None else idle[best])
    return chosen


def _hidden(whole: Mapping[str, float], head_ms: float) -> bool:
    """Whether loading whole was done when the first frame was there: nothing can be sooner."""
    waited = whole["total_ms"] - whole["first_ms"] - head_ms
    return waited <= SLACK_MS + MARGIN * whole["total_ms"]


def _quicker(artifacts: Mapping[int, Artifact], threads: int) -> Ways:
    """List the ways that may be loaded sooner than the whole, on several cores."""
    ways: dict[str, tuple[Artifact, str]] = {}
    if usable_cpus() > 1:
        if threads > 1:
            ways["parallel"] = (artifacts[min(artifacts)], "parallel")
        ways |= {f"staged {n}": (each, "staged") for n, each in artifacts.items() if n > 1}
    return ways


def _proved(ways: Ways, reference: Reference) -> tuple[Ways, dict[str, float]]:
    """Return the ways that have the network's numbers, and the distance of each."""
    proved = {}
    distances = {}
    for name, (artifact, strategy) in ways.items():
        distances[name] = reference.distance(artifact, strategy)
        if distances[name] <= (BARE_TOLERANCE if strategy == "bare" else 0):
            proved[name] = (artifact, strategy)
    return proved, distances


def _settled(
    name: str,
    figures_of: Mapping[str, Mapping[str, float]],
    strategies: Iterable[str],
    whole: Mapping[str, float],
    distances: Mapping[str, float],
) -> str:
    """Return what runs in the long run: the fastest, and exactly the network's own numbers."""
    found = next(iter(figures_of.values()))
    slower = found["steady_ms"] > whole["steady_ms"] * (1 + STEADY)
    return "whole" if "whole" in strategies and (slower or distances.get(name, 0) > 0) else name


def choose_streaming(
    artifacts: Mapping[int, Artifact],
    reference: Reference,
    table: dict[str, Any],
    layout: Layout,
    budget_mb: int,
) -> int:
    """Measure running in stages; record how many of the first ones may stay in memory.

    Arguments and errors as for `choose_resident`; *layout*: of the weights.
    """
    count, artifact = next(iter(artifacts.items()))
    sample = reference.timed_sample(artifact)
    # Nothing kept first: what is left over is known when it has run.
    artifact.table["kept"] = min(1, layout.shared)
    reference.check_identical(artifact, "streaming")
    ways = {"streaming": (artifact, "streaming")}
    first = load_once(artifact, "streaming", sample)
    sizes = [
        last - start for start, last, _ in (each["range"] for each in artifact.table["stages"])
    ]
    left = budget_mb * _MIB - first.anon_mb * _MIB - 2 * max(sizes)
    kept = 0
    while kept < count - 1 and sum(sizes[: kept + 1]) <= left:
        kept += 1
    table["kept"] = artifact.table["kept"] = max(kept, min(1, layout.shared))
    reference.check_identical(artifact, "streaming")
    loads = measure_in_turns(ways, sample, rounds=3)["streaming"]
    measured = figures(loads)
    table["tried"] = {"streaming": measured}
    table["distance"] = {"streaming": 0.0}
    table["only"] = table["decision"] = "streaming"
    table["rungs"] = {"streaming": {"idle": measured}}
    table["settled"] = {"streaming": "streaming"}
    table["why"] = (
        f"{layout.size / _MIB:.0f} MiB of weights do not fit {budget_mb} MiB; {table['kept']} of "
        f"{count} stages stay in memory; {measured['steady_ms']:.1f} ms a run"
    )
    _record_stages(artifact, loads)
    return count


def _record_stages(artifact: Artifact, loads: Sequence[Measured]) -> None:
    """Write what each stage took to its line of the table."""
    for number, stage in enumerate(artifact.table["stages"]):
        found = [load.stages[number] for load in loads]
        if found:
            stage["build_ms"] = round(min(build for build, _ in found), 2)
            stage["run_ms"] = round(min(run for _, run in found), 2)
