"""Makes the artifact of a network for OpenVINO's CPU: compiled, exported, proved and measured."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from ....core.errors import EngineError
from ....core.types import Kind
from ....models.manifest import ModelFolder
from ...engines.engine import EngineChoice
from ...engines.ov import NAME, VERSION, OvEngine, compile_network, is_cpu, label_of
from ...folding.find import cut_for
from ...folding.fold import note
from ...model import assemble
from ...preprocess.inputs import fixed_shapes
from ..artifact import BLOB, FORMAT, Artifact, ArtifactError, processor
from ..ov_engine import OvPreparedEngine
from .measure import Reference
from .onnx_graph import listed

TOLERANCE = 1e-5
"""Relative distance between a network as compiled and as imported; seen: 0."""
_RUNS = 5


def make_artifact(
    model: ModelFolder, choice: EngineChoice, kind: Kind, folder: Path, **_: object
) -> dict[str, Any]:
    """Write the blob of an artifact; return its table, but for its key and list of files.

    Raises:
        AgentError: the network cannot be compiled or exported, or gives other numbers imported.
    """
    if not is_cpu(choice):
        raise EngineError(f"{choice.device}: only networks for the CPU are kept")
    start = time.perf_counter()
    made = compile_network(
        choice,
        model.network,
        fixed_shapes(model.manifest.input, kind),
        1,
        cut_for(model, kind),
    )
    (compiled,), declared, inputs, outputs, fold = made
    compile_ms = (time.perf_counter() - start) * 1e3
    label = label_of(choice, compiled)
    exported = compiled.export_model()
    # A stream in 2026.4, though its annotation says bytes.
    blob: bytes = exported if isinstance(exported, bytes) else exported.getvalue()
    (folder / BLOB).write_bytes(blob)
    engine = OvEngine([compiled], label, inputs, outputs, fold)
    reference = Reference(engine, assemble(model, choice, engine, kind))
    engine.close()
    digest = xxh3_64_hexdigest(blob)
    table: dict[str, Any] = {
        "format": FORMAT,
        "engine": NAME,
        "version": VERSION,
        "label": label,
        "cpu": processor(),
        "declared": [listed(spec) for spec in declared],
        "inputs": [listed(spec) for spec in inputs],
        "outputs": [listed(spec) for spec in outputs],
        "fold": note(fold),
        "stages": [{"range": [0, len(blob), digest]}],
        "only": "blob",
        "measured": True,
        "decision": "blob",
        "compile_ms": round(compile_ms, 1),
    }
    artifact = Artifact(str(folder), {**table, "key": "being made", "files": {}})
    figures, distance = _measure(choice, artifact, reference)
    if not distance <= TOLERANCE:
        raise ArtifactError(f"imported, its numbers are another network's: {distance:.2g} away")
    table["distance"] = {"blob": distance}
    table["rungs"] = {"blob": {"idle": figures}}
    table["why"] = f"import {figures['build_ms']:.1f} ms, compile {compile_ms:.1f} ms"
    return table


def _measure(
    choice: EngineChoice,
    artifact: Artifact,
    reference: Reference,
) -> tuple[dict[str, float], float]:
    """Import a few times; return figures and the distance from the compiled network's numbers."""
    builds, firsts, steady = [], [], []
    distance = 0.0
    sample = reference.timed_sample(artifact)
    for _ in range(_RUNS):
        start = time.perf_counter()
        engine = OvPreparedEngine(choice, artifact)
        built = time.perf_counter()
        engine.infer(sample)
        first = time.perf_counter()
        for _ in range(_RUNS):
            again = time.perf_counter()
            engine.infer(sample)
            steady.append((time.perf_counter() - again) * 1e3)
        distance = max(distance, reference.distance_from(engine))
        engine.close()
        builds.append((built - start) * 1e3)
        firsts.append((first - built) * 1e3)
    figures = {
        "build_ms": round(min(builds), 2),
        "first_ms": round(min(firsts), 2),
        "total_ms": round(min(map(sum, zip(builds, firsts, strict=True))), 2),
        "steady_ms": round(min(steady), 2),
    }
    return figures, distance
