"""Whether a network fits its manifest, as far as its file shows: before anything is run or sent.

What only an engine knows (its operators, the sizes it infers) is checked by the trial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.containment import contained
from ..core.errors import ModelError
from ..core.types import Kind, TensorSpec
from ..models.files.facts import NetworkFacts
from ..models.files.steps import step_between, with_steps
from ..models.manifest import MANIFEST, ModelFolder
from .decode.decoder import Decoder, build_decoder
from .engines.engine import fix_inputs
from .preprocess.inputs import fixed_shapes
from .preprocess.preprocessor import Preprocessor
from .repeated import build_for_one, decoding_first

if TYPE_CHECKING:
    from .folding.fold import Fold

READABLE = frozenset({"onnx", "ir"})
"""Formats whose files give tensors the same names and shapes as engines do."""


def fit(
    folder: ModelFolder,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    kind: Kind,
    fold: Fold | None = None,
) -> tuple[Preprocessor, Decoder]:
    """Make preprocessing and decoder of a network: *outputs* are those that are results.

    Raises:
        ModelError: network and manifest do not fit each other; says expected and found.
    """
    # The folder stays as it was told, without steps: a model may be loaded from it again.
    manifest, steps = with_steps(folder, inputs, outputs, pictures=kind == "picture")
    spec = manifest.input
    prepare, batch = build_for_one(spec, inputs, kind, fold, folder=folder.path)
    if batch is not None:
        inputs, outputs = batch.first(inputs), batch.results(outputs)
    decode = build_decoder(
        *(manifest, folder.labels, inputs, outputs, prepare.size, folder.gallery),
        step=step_between(folder.manifest.input, spec),
        steps=steps,
    )
    return prepare, decode if batch is None else decoding_first(decode, batch)


def check_fit(folder: ModelFolder, facts: NetworkFacts) -> None:
    """Check that preprocessing and decoder can be made for a network.

    Raises:
        ModelError: network and manifest do not fit each other; says expected and found.
    """
    if folder.manifest.task == "generate":
        return  # it runs on another engine
    # If no shape is declared, only the engine finds it.
    if facts.kind not in READABLE or not all(one.shape for one in facts.outputs):
        return
    why = _misfit(folder, facts, kind_of(folder, facts))
    if why is not None:
        raise ModelError(f"{folder.path / MANIFEST}: {why}")


def kind_of(folder: ModelFolder, facts: NetworkFacts) -> Kind:
    """Return the kind of sample that a model takes, as far as its file shows.

    A manifest that means pictures by default may belong to a network that takes ready inputs.
    """
    kind = folder.manifest.input.kind
    if kind == "signal" or facts.kind not in READABLE or _misfit(folder, facts, kind) is None:
        return kind
    return "signal" if _misfit(folder, facts, "signal") is None else kind


def input_size(folder: ModelFolder, facts: NetworkFacts) -> tuple[int, int] | None:
    """Return the width and height of a network's pictures; None: unknown, or it takes none."""
    spec = folder.manifest.input
    if spec.kind != "picture" or facts.kind not in READABLE:
        return None
    with contained(folder.manifest.id, ModelError):
        inputs = fix_inputs(facts.inputs, fixed_shapes(spec, "picture"), folder.network)
        return build_for_one(spec, inputs, "picture")[0].size


def _misfit(folder: ModelFolder, facts: NetworkFacts, kind: Kind) -> str | None:
    """Return why a model does not fit a source's samples of a kind, or None if it does."""
    spec = folder.manifest.input
    left = set(spec.state.values())
    outputs = tuple(one for one in facts.outputs if one.name not in left)
    try:
        with contained(folder.manifest.id, ModelError):
            inputs = fix_inputs(facts.inputs, fixed_shapes(spec, kind), folder.network)
            fit(folder, inputs, outputs, kind)
    except ModelError as problem:
        return str(problem)
    return None
