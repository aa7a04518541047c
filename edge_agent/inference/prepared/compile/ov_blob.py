"""Makes the artifact of a network for OpenVINO's CPU: compiled, exported, and verified."""

from __future__ import annotations

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
from .onnx_graph import listed
from .reference import Reference

TOLERANCE = 1e-5
"""Greatest relative distance between a network as compiled and as imported; measured: 0."""


def make_artifact(
    model: ModelFolder, choice: EngineChoice, kind: Kind, folder: Path, **_: object
) -> dict[str, Any]:
    """Write the blob of an artifact; return its table without its key and list of files.

    Raises:
        AgentError: the network cannot be compiled or exported, or gives other numbers once
            imported.
    """
    if not is_cpu(choice):
        raise EngineError(f"{choice.device}: only networks for the CPU are kept")
    made = compile_network(
        choice,
        model.network,
        fixed_shapes(model.manifest.input, kind),
        1,
        cut_for(model, kind),
    )
    (compiled,), declared, inputs, outputs, fold = made
    label = label_of(choice, compiled)
    exported = compiled.export_model()
    # It is a stream in 2026.4, though its annotation says bytes.
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
        "way": "blob",
    }
    artifact = Artifact(str(folder), {**table, "key": "being made", "files": {}})
    imported = OvPreparedEngine(choice, artifact)
    distance = reference.distance_from(imported)
    imported.close()
    if not distance <= TOLERANCE:
        raise ArtifactError(f"imported, its numbers are another network's: {distance:.2g} away")
    return table
