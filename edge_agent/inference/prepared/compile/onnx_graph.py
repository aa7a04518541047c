"""Makes the artifact of an ONNX network for ONNX Runtime's CPU: rewritten, and verified."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ....core.errors import EngineError
from ....core.types import Kind, TensorSpec
from ....device.allocator import return_freed_memory
from ....models.manifest import ModelFolder
from ...engines.engine import EngineChoice, fix_inputs
from ...engines.ort import OrtEngine, is_numbers, specs
from ...engines.ort_session import NAME, Words, open_exact, open_session, session_config
from ...folding.find import cut_for
from ...folding.fold import Fold, note
from ...model import assemble
from ...preprocess.inputs import fixed_shapes
from ..artifact import FORMAT, STREAMED, WHOLE, ArtifactError, processor
from .mapped_network import NO_PREPACKING, MappedNetwork
from .reference import Reference, settle_stages
from .rewrites import FILES, Rewriter
from .stage_graphs import ALIGNED, align, external_sizes, provisional, stage_table, write_files

if TYPE_CHECKING:
    from onnx import ModelProto

log = logging.getLogger(__name__)

_MIB = 1024 * 1024
RESIDENT = 2.4
"""Most memory of a network, as a multiple of its weights: mapped, and rearranged once more."""
_THRIFTY = {"enable_cpu_mem_arena": False}


class _Original(NamedTuple):
    """What was learned from running the original network, which is closed again."""

    label: str
    declared: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    reference: Reference


def make_artifact(
    model: ModelFolder,
    choice: EngineChoice,
    kind: Kind,
    folder: Path,
    *,
    budget_mb: int,
) -> dict[str, Any]:
    """Write the files of an artifact; return its table without its key and list of files.

    Raises:
        AgentError: the network cannot be prepared, or the result gives other numbers.
    """
    network = MappedNetwork(model.network)
    weights_mb = sum(len(data) for data in network.files.values()) / _MIB
    resident = not budget_mb or weights_mb * RESIDENT <= budget_mb
    original, words = open_exact(
        session_config(choice)[0],
        lambda words: _run_original(
            model, choice, kind, network, words, None if resident else folder
        ),
    )
    ends = original.inputs, original.outputs
    network.fix({spec.name: tuple(size or 1 for size in spec.shape) for spec in original.inputs})
    entries = {} if resident else NO_PREPACKING
    rewriter = Rewriter(network, folder, words, original.reference, ends, entries)
    changes = rewriter.rewrite_weights() if resident else []
    fold = rewriter.fold_input(cut_for(model, kind))
    optimized = network.optimize(words, folder)
    for name in (ALIGNED, *FILES):
        (folder / name).unlink(missing_ok=True)
    stages = 1 if resident else _stage_count(optimized, budget_mb)
    written = write_files(optimized, words, folder, stages)
    table = _describe(original, words, fold, changes)
    table["stages"] = stage_table(written)
    table["way"] = WHOLE if resident else STREAMED
    artifact = provisional(folder, table)
    if resident:
        original.reference.check_identical(artifact)
    else:
        budget = budget_mb * _MIB
        table["kept"] = settle_stages(artifact, original.reference, written.layout.shared, budget)
    return table


def _run_original(
    model: ModelFolder,
    choice: EngineChoice,
    kind: Kind,
    network: MappedNetwork,
    words: Words,
    thrifty: Path | None,
) -> _Original:
    """Run the original network for its numbers; its weights stay in a file in *thrifty*, if set."""
    if thrifty is None:
        session = open_session(str(model.network), words, model.network.name)
        if not all(map(is_numbers, session.get_outputs())):
            graph = network.model.SerializeToString()
            session = open_session(graph, words, model.network.name, weights=network.files)
    else:
        # Its weights stay in a file here too, and no unused memory is kept.
        return_freed_memory()
        align(network, thrifty)
        session = network.session({**words, "switches": _THRIFTY}, thrifty, NO_PREPACKING)
    declared = specs(session.get_inputs(), model.network)
    inputs = fix_inputs(declared, fixed_shapes(model.manifest.input, kind), model.network)
    outputs = specs(session.get_outputs(), model.network)
    engine = OrtEngine(session, inputs, outputs)
    reference = Reference(engine, assemble(model, choice, engine, kind))
    engine.close()
    if thrifty is not None and words["level"] != "none":
        # While it serves, nothing else can be loaded beside it.
        as_written = {**words, "switches": _THRIFTY, "level": "none"}
        try:
            session = network.session(as_written, thrifty, NO_PREPACKING)
            reference.check_like(OrtEngine(session, inputs, outputs))
        except ArtifactError:
            raise
        except EngineError as problem:
            log.info("model %s: nothing to compare engines with: %s", model.manifest.id, problem)
    return _Original(engine.label, declared, inputs, outputs, reference)


def _stage_count(optimized: ModelProto, budget_mb: int) -> int:
    """Return the number of stages for a network that does not fit in memory."""
    # So that two of them take a small part of the memory.
    size = sum(external_sizes(optimized).values())
    return max(2, -(-size * 10 // (budget_mb * _MIB)))


def _describe(
    original: _Original, words: Words, fold: Fold | None, changes: list[str]
) -> dict[str, Any]:
    """Return the table of an artifact, for its network and session."""
    import onnxruntime as ort

    return {
        "format": FORMAT,
        "engine": NAME,
        "version": ort.__version__,
        "label": original.label,
        "cpu": processor(),
        "session": words,
        "declared": [listed(spec) for spec in original.declared],
        "inputs": [listed(spec) for spec in original.inputs],
        "outputs": [listed(spec) for spec in original.outputs],
        "fold": note(fold),
        "changes": changes,
        "kept": 0,
    }


def listed(spec: TensorSpec) -> tuple[str, list[int | None], str]:
    """Return an input or output as an entry in an artifact's table."""
    return spec.name, list(spec.shape), spec.dtype
