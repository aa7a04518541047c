"""The form of an ONNX network for ONNX Runtime's CPU: made, proved and measured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_hexdigest

from ....core.types import Kind, Tensors, TensorSpec
from ....device.resources import return_freed_memory, usable_cpus
from ....models.files.onnx_reader import map_file
from ....models.manifest import ModelFolder
from ...engines.ort import OrtEngine, settle, specs
from ...engines.ort_options import NAME, Words, session_options
from ...engines.protocol import EngineChoice, fix_inputs
from ...folding.find import cut_for
from ...folding.fold import note
from ...model import assemble
from ...preprocess.inputs import fixed_shapes
from ..artifact import FORMAT, GRAPH, WEIGHTS, Artifact, processor
from ..strategy import choose
from .measure import Measured, figures, head_start_ms, ladder, load_once, one_core
from .optimize import OPTIMISED, OPTIMISED_WEIGHTS, MappedNetwork, optimise, tensors, whereabouts
from .rewrites import change, fold
from .signed import FILE as SIGNED
from .stage_cuts import Cut, plan_cuts
from .stage_graphs import stage_name, stage_table, write_graphs
from .verify import Trial
from .weight_layout import ALIGNED, Laid, align, lay_out
from .zero_point import FILE as CENTRED

if TYPE_CHECKING:
    from onnx import ModelProto

_MIB = 1024 * 1024
WAYS = (2, 3, 4, 6)
"""Numbers of stages that are tried; more lost to what each costs (8 and 9: measured)."""
BARE_TOLERANCE = 1e-4
"""Relative distance up to which a session without prepared weights may go first."""
STEADY = 0.03
"""Slower than this share in the long run is exchanged for the whole session."""
RESIDENT = 2.4
"""What a network takes at most, as a multiple of its weights: mapped, and prepared once more."""
_BARE = {"session.disable_prepacking": "1"}
_THRIFTY = {"enable_cpu_mem_arena": False}


def make_form(
    model: ModelFolder,
    choice: EngineChoice,
    kind: Kind,
    folder: Path,
    *,
    head_ms: float | None,
    budget_mb: int,
) -> dict[str, Any]:
    """Write the files of a form and return its table, but for its key and list of files.

    Raises:
        AgentError: the network cannot be prepared, or what comes out has not its numbers.

    """
    import onnxruntime as ort

    words, _ = settle(choice)
    outside = MappedNetwork(model.network)
    weights_mb = sum(len(data) for data in outside.files.values()) / _MIB
    roomy = not budget_mb or weights_mb * RESIDENT <= budget_mb
    if roomy:
        head_ms = head_start_ms() if head_ms is None else head_ms
        session = ort.InferenceSession(str(model.network), session_options(words))
    else:
        # The network itself does not fit: its weights stay in a file here too, and nothing is kept
        # that is not in use. A start in parts is not overlapped with anything.
        head_ms = 0.0
        return_freed_memory()
        align(outside, folder)
        session = outside.session({**words, "switches": _THRIFTY}, folder, _BARE)
    declared = specs(session.get_inputs(), model.network)
    inputs = fix_inputs(declared, fixed_shapes(model.manifest.input, kind), model.network)
    outputs = specs(session.get_outputs(), model.network)
    engine = OrtEngine(session, inputs, outputs)
    trial = Trial(engine, assemble(model, choice, engine, kind))
    label = engine.label
    engine.close()
    del session

    outside.fix({spec.name: _whole(spec) for spec in inputs})
    changes = change(outside, folder, words, trial, (inputs, outputs)) if roomy else []
    folded = fold(
        outside,
        cut_for(model, kind),
        words,
        trial,
        lambda: outside.session(words, folder, {} if roomy else _BARE),
        (inputs, outputs),
    )
    optimised = optimise(outside, words, folder)
    for written in (ALIGNED, SIGNED, CENTRED):
        (folder / written).unlink(missing_ok=True)
    ways, laid, weights = _write(optimised, words, folder, None if roomy else budget_mb)
    table: dict[str, Any] = {
        "format": FORMAT,
        "engine": NAME,
        "version": ort.__version__,
        "label": label,
        "cpu": processor(),
        "session": words,
        "declared": [listed(spec) for spec in declared],
        "inputs": [listed(spec) for spec in inputs],
        "outputs": [listed(spec) for spec in outputs],
        "fold": note(folded),
        "changes": changes,
        "head_ms": head_ms,
        # Whoever wonders about the figures sees what else was going on.
        "load": round(os.getloadavg()[0], 2),
        "kept": 0,
        "only": None,
    }
    forms = {
        count: _provisional(folder, table, cuts, laid, weights) for count, cuts in ways.items()
    }
    if roomy:
        chosen = _climb(forms, trial, table, head_ms, weights_mb, budget_mb)
    else:
        chosen = _stream(forms, trial, table, laid, budget_mb)
    for count in ways:
        if count != chosen:
            for number in range(count):
                (folder / stage_name(count, number)).unlink()
    table["stages"] = forms[chosen].table["stages"]
    return table


def _write(
    model: ModelProto, words: Words, folder: Path, budget_mb: int | None
) -> tuple[dict[int, list[Cut]], Laid, Any]:
    """Write weights and graphs; give the ways to cut, by number of stages."""
    sizes = {t.name: whereabouts(t)[2] for t in tensors(model.graph) if whereabouts(t)[0]}
    if budget_mb is None:
        wanted: Sequence[int] = (1, *WAYS) if usable_cpus() > 1 else (1,)
    else:
        # So that two of them are a small part of what there is.
        wanted = (max(2, -(-sum(sizes.values()) * 10 // (budget_mb * _MIB))),)
    cuts = [plan_cuts(model.graph, sizes, count) for count in wanted]
    ways = {len(each): each for each in cuts}
    places = sorted({cut.first for each in ways.values() for cut in each} - {0})
    if (folder / OPTIMISED_WEIGHTS).is_file() and sizes:
        laid = lay_out(model.graph, map_file(folder / OPTIMISED_WEIGHTS), folder, places)
    else:
        (folder / WEIGHTS).touch()
        laid = Laid(0, 0, dict.fromkeys([0, *places], 0))
    (folder / OPTIMISED_WEIGHTS).unlink(missing_ok=True)
    (folder / OPTIMISED).unlink()
    weights: Any = map_file(folder / WEIGHTS) if laid.size else b""
    write_graphs(model, ways, weights, words, folder)
    return ways, laid, weights


def _provisional(
    folder: Path, table: Mapping[str, Any], cuts: Sequence[Cut], laid: Laid, weights: Any
) -> Artifact:
    """Give a form that can be loaded, though it is not written yet."""
    stages = stage_table(cuts, laid, weights)
    graphs = [GRAPH, *(stage["graph"] for stage in stages)]
    files = {
        name: [path.stat().st_size, xxh3_64_hexdigest(path.read_bytes())]
        for name in graphs
        if (path := folder / name)
    }
    return Artifact(str(folder), {**table, "stages": stages, "files": files, "key": "being made"})


def _climb(
    forms: Mapping[int, Artifact],
    trial: Trial,
    table: dict[str, Any],
    head_ms: float,
    weights_mb: float,
    budget_mb: int,
) -> int:
    """Measure the ladder, note figures and decision; give the number of stages that is best."""
    one = min(forms)
    ways = {"whole": (forms[one], "whole"), "bare": (forms[one], "bare")}
    if usable_cpus() > 1:
        if table["session"]["threads"] > 1:
            ways["parallel"] = (forms[one], "parallel")
        ways |= {f"staged {n}": (form, "staged") for n, form in forms.items() if n > 1}
    distances = {}
    for name, (form, strategy) in list(ways.items()):
        distance = distances[name] = trial.distance(form, strategy)
        # The whole session must have the network's numbers, or there is no form. What else has
        # not is not a way to load it.
        if strategy == "whole":
            trial.need_identical(form, strategy)
        elif distance > (BARE_TOLERANCE if strategy == "bare" else 0):
            del ways[name]
    sample = _ready(forms[one], trial)
    idle = ladder(ways, sample, head_ms)
    with one_core():
        busy = ladder({n: ways[n] for n in ("whole", "bare") if n in ways}, sample, head_ms, 3)
    measured = {name: figures(loads) for name, loads in idle.items()}
    staged = [name for name in measured if name.startswith("staged ")]
    best = min(staged, key=lambda name: measured[name]["total_ms"], default=None)
    strategies: dict[str, dict[str, Any]] = {}
    spare = "idle" if usable_cpus() > 1 else "busy"
    for name, found in measured.items():
        strategy = name.partition(" ")[0]
        if budget_mb and found["anon_mb"] + weights_mb > budget_mb:
            continue
        if strategy != "staged" or name == best:
            strategies[strategy] = {spare: found}
    if not strategies:
        # Without weights of its own a session takes least; what it maps can be given back.
        least = "bare" if "bare" in measured else "whole"
        strategies[least] = {spare: measured[least]}
    for name, loads in busy.items():
        if name in strategies:
            strategies[name]["busy"] = figures(loads)
    table["tried"] = measured
    table["rungs"] = strategies
    table["distance"] = distances
    whole = measured["whole"]["steady_ms"]
    # In the long run the fastest, and exactly the network's own numbers.
    table["settled"] = {
        strategy: "whole"
        if "whole" in strategies and (_worse(found, whole) or distances.get(strategy, 0) > 0)
        else strategy
        for strategy, found in (
            (strategy, next(iter(each.values()))) for strategy, each in strategies.items()
        )
    }
    table["decision"] = choose(strategies, spare)
    table["why"] = f"first result, {head_ms:g} ms head start: " + ", ".join(
        f"{strategy} {found[spare]['total_ms']:.1f} ms" for strategy, found in strategies.items()
    )
    chosen = int(best.partition(" ")[2]) if best is not None else one
    _note_stages(forms[chosen], idle[best] if best is not None else [])
    return chosen


def _worse(found: Mapping[str, float], whole: float) -> bool:
    return found["steady_ms"] > whole * (1 + STEADY)


def _stream(
    forms: Mapping[int, Artifact], trial: Trial, table: dict[str, Any], laid: Laid, budget_mb: int
) -> int:
    """Measure running in parts; note how many of the first stages may stay in memory."""
    count, form = next(iter(forms.items()))
    sample = _ready(form, trial)
    # Nothing kept first: what is left over is known when it has run.
    form.table["kept"] = min(1, laid.shared)
    trial.need_identical(form, "streaming")
    first = load_once(form, "streaming", sample)
    sizes = [last - begin for begin, last, _ in (stage["range"] for stage in form.table["stages"])]
    left = budget_mb * _MIB - first.anon_mb * _MIB - 2 * max(sizes)
    kept = 0
    while kept < count - 1 and sum(sizes[: kept + 1]) <= left:
        kept += 1
    table["kept"] = form.table["kept"] = max(kept, min(1, laid.shared))
    trial.need_identical(form, "streaming")
    loads = ladder({"streaming": (form, "streaming")}, sample, rounds=3)
    measured = {name: figures(found) for name, found in loads.items()}
    table["tried"] = measured
    table["distance"] = {"streaming": 0.0}
    table["only"] = table["decision"] = "streaming"
    table["rungs"] = {"streaming": {"idle": measured["streaming"]}}
    table["settled"] = {"streaming": "streaming"}
    table["why"] = (
        f"{laid.size / _MIB:.0f} MiB of weights do not fit {budget_mb} MiB; {table['kept']} of "
        f"{count} stages stay in memory; {measured['streaming']['steady_ms']:.1f} ms a run"
    )
    _note_stages(form, loads["streaming"])
    return count


def _ready(form: Artifact, trial: Trial) -> Tensors:
    """Give the inputs that loads are timed with, as frames will come."""
    fold = form.fold
    return trial.samples[0] if fold is None else fold.feed(trial.samples[0])


def _note_stages(form: Artifact, loads: Sequence[Measured]) -> None:
    """Write what each stage took to its line of the table."""
    for number, stage in enumerate(form.table["stages"]):
        found = [load.stages[number] for load in loads]
        if found:
            stage["build_ms"] = round(min(build for build, _ in found), 2)
            stage["run_ms"] = round(min(run for _, run in found), 2)


def listed(spec: TensorSpec) -> tuple[str, list[int | None], str]:
    """Give an input or output as a form's table has it."""
    return spec.name, list(spec.shape), spec.dtype


def _whole(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(size or 1 for size in spec.shape)
