"""A manifest for a bare network, from the metadata that its exporter wrote into it.

Three kinds of metadata are enough for a manifest: that of Ultralytics, that of OpenVINO's Model
API, and the files that Hugging Face keeps beside a network. Without metadata, a network's shapes
may be enough. Defaults that the metadata omit but their own runtimes apply are assumed here too,
and every assumption is reported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.errors import ModelError
from ...core.names import safe_name
from ..manifest import Manifest, parse
from ..questions import keys_of
from . import guess, huggingface, model_api, tflite_metadata, ultralytics
from .check_onnx import inspect
from .facts import MOST_INTEGER_SCALE, Draft, NetworkFacts


def manifest_of(network: Path, name: str | None, version: str) -> tuple[Manifest, list[str]]:
    """Build the manifest of a bare .onnx, .xml or .tflite.

    Returns:
        The manifest, and each assumption, as text.

    Raises:
        ModelError: the file cannot run, or its metadata leaves a question open or asks for
            something unsupported, or it has none and its shapes leave a question open.
    """
    facts = inspect(network)
    where = str(network)
    fields = ultralytics.fields_of(network, facts)
    if fields is not None:
        described, assumed = ultralytics.describe(fields, facts, where)
    elif facts.kind == "tflite":
        try:
            described, assumed = tflite_metadata.describe(network, facts, where)
        except ModelError as problem:
            draft = tflite_metadata.draft_with_labels(network, facts)
            if draft.questions:
                raise _undecided(draft, where, str(problem)) from None
            described, assumed = dict(draft.keys), list(draft.assumed)
            if tflite_metadata.ENTRY in facts.metadata:
                assumed.append(f"metadata: left out, {str(problem).removeprefix(f'{where}: ')}")
    elif (info := model_api.info_of(facts)) is not None:
        described, assumed = model_api.describe(info, facts, where)
    elif (config := huggingface.config_of(network)) is not None:
        described, assumed = huggingface.describe(config, facts, where)
    else:
        draft = guess.draft_of(facts)
        if draft.questions:
            found = ", ".join(sorted(facts.metadata)[:5])
            raise _undecided(
                draft,
                where,
                "its metadata is neither Ultralytics' (task, names) nor Model API's "
                f"(model_info): found {found or 'none'}",
            )
        described, assumed = dict(draft.keys), list(draft.assumed)
    data: dict[str, Any] = {
        "name": name or safe_name(network.stem),
        "version": version,
        "file": network.name,
        **described,
    }
    manifest = parse(data, where)
    _check_levels(manifest, facts, where)
    return manifest, assumed


def _undecided(draft: Draft, where: str, why: str) -> ModelError:
    """Return the error for a file whose metadata and shapes are not enough for a manifest."""
    if draft.questions and draft.questions[0].startswith("export: "):
        return ModelError(f"{where}: it is {draft.family}, by its shapes; {draft.questions[0]}")
    keys = keys_of(draft.questions)
    left = f", which leaves to decide: {keys}" if keys else ""
    return ModelError(
        f"{where}: {why.removeprefix(f'{where}: ')}. By its shapes it is {draft.family}{left}; "
        "describe it in a model.toml beside it, of which `edge-agent describe` prints a draft"
    )


def _check_levels(manifest: Manifest, facts: NetworkFacts, where: str) -> None:
    """Check that an input of integers preserves the levels of a picture."""
    taken = [spec for spec in facts.inputs if len(spec.shape) == 4 and "int" in spec.dtype]
    scales = manifest.input.scale
    largest = max(map(abs, [scales] if isinstance(scales, int | float) else scales), default=1)
    if manifest.input.is_signal or len(taken) != 1 or taken[0].name in facts.steps:
        return
    if largest <= MOST_INTEGER_SCALE:
        return
    raise ModelError(
        f"{where}: input {taken[0]} takes integers, but of pixels divided by {largest:g}, as they "
        f"are for such networks, {int(255 / largest) + 1} values would be left: its normalization "
        "is inside, or its step is unknown; give input.mean and input.scale in a model.toml"
    )
