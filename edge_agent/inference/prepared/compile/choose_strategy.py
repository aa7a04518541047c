"""Which strategies an artifact can be loaded by, and which is best: proved, then measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....device.resources import usable_cpus
from ..artifact import Artifact
from ..load import choose
from .measure import figures, load_once, measure_in_turns, one_core
from .verify import Reference
from .weight_layout import Layout

BARE_TOLERANCE = 1e-4
"""Relative distance up to which a session without prepared weights may go first."""
_BUSY_ROUNDS = 2
"""With one core, where little disturbs."""
STEADY = 0.03
"""Slower than this share in the long run is exchanged for the whole session."""
_MIB = 1024 * 1024


def choose_resident(
    artifact: Artifact,
    reference: Reference,
    table: dict[str, Any],
    weights_mb: float,
    budget_mb: int,
) -> None:
    """Measure the strategies for a network that fits in memory.

    Args:
        artifact: loaded whole, it has the network's own numbers.
        reference: has them.
        table: of the artifact; gets the figures and the decision.
        weights_mb: of the network.
        budget_mb: what it may take; 0: no bound.

    Raises:
        ArtifactError: it does not load or run.
    """
    head_ms: float = table["head_ms"]
    sample = reference.timed_sample(artifact)
    distance = reference.distance(artifact, "bare")
    ways = ("whole", "bare") if distance <= BARE_TOLERANCE else ("whole",)
    idle = measure_in_turns(artifact, ways, sample, head_ms)
    with one_core():
        busy = measure_in_turns(artifact, ways, sample, rounds=_BUSY_ROUNDS)
    measured = {name: figures(loads) for name, loads in idle.items()}
    fitting = [
        name
        for name, found in measured.items()
        if not budget_mb or found["anon_mb"] + weights_mb <= budget_mb
    ]
    spare = "idle" if usable_cpus() > 1 else "busy"
    strategies: dict[str, dict[str, Any]] = {}
    # Without weights of its own a session takes least; what it maps can be given back.
    for name in fitting or ways[-1:]:
        # With no core to spare nothing of a load is hidden: what goes before it only adds to it.
        loads = [each._replace(total_ms=head_ms + each.total_ms) for each in busy[name]]
        strategies[name] = {spare: measured[name]} | {"busy": figures(loads)}
    table["tried"] = measured
    table["rungs"] = strategies
    table["distance"] = {"bare": distance}
    table["settled"] = {
        name: _settled(name, each, strategies, measured["whole"], distance)
        for name, each in strategies.items()
    }
    table["decision"] = choose(strategies, spare)
    table["why"] = f"first result, {head_ms:g} ms head start: " + ", ".join(
        f"{name} {each[spare]['total_ms']:.1f} ms" for name, each in strategies.items()
    )


def _settled(
    name: str,
    figures_of: Mapping[str, Mapping[str, float]],
    strategies: Iterable[str],
    whole: Mapping[str, float],
    distance: float,
) -> str:
    """Return what runs in the long run: the fastest, and exactly the network's own numbers."""
    slower = next(iter(figures_of.values()))["steady_ms"] > whole["steady_ms"] * (1 + STEADY)
    return "whole" if "whole" in strategies and (slower or distance > 0) else name


def choose_streaming(
    artifact: Artifact,
    reference: Reference,
    table: dict[str, Any],
    layout: Layout,
    budget_mb: int,
) -> None:
    """Measure running in stages; record how many of the first ones may stay in memory.

    Arguments and errors as for `choose_resident`; *layout*: of the weights.
    """
    stages = artifact.table["stages"]
    sample = reference.timed_sample(artifact)
    # Nothing kept first: what is left over is known when it has run.
    artifact.table["kept"] = min(1, layout.shared)
    reference.check_identical(artifact, "streaming")
    first = load_once(artifact, "streaming", sample)
    sizes = [last - start for start, last, _ in (each["range"] for each in stages)]
    left = budget_mb * _MIB - first.anon_mb * _MIB - 2 * max(sizes)
    kept = 0
    while kept < len(stages) - 1 and sum(sizes[: kept + 1]) <= left:
        kept += 1
    table["kept"] = artifact.table["kept"] = max(kept, min(1, layout.shared))
    reference.check_identical(artifact, "streaming")
    measured = figures(measure_in_turns(artifact, ("streaming",), sample)["streaming"])
    table["tried"] = {"streaming": measured}
    table["distance"] = {"streaming": 0.0}
    table["only"] = table["decision"] = "streaming"
    table["rungs"] = {"streaming": {"idle": measured}}
    table["settled"] = {"streaming": "streaming"}
    table["why"] = (
        f"{layout.size / _MIB:.0f} MiB of weights do not fit {budget_mb} MiB; {table['kept']} of "
        f"{len(stages)} stages stay in memory; {measured['steady_ms']:.1f} ms a run"
    )
