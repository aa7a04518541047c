"""A manifest for a bare network, from the metadata that its exporter wrote into it.

Three kinds of metadata answer a manifest's questions: that of Ultralytics, that of OpenVINO's Model
API, and the files that Hugging Face keeps beside a network. Where there is none, a network's shapes
may leave no doubt. What none of them says but their own runtimes take for granted is assumed here
too, and every assumption is put into words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.errors import ModelError
from ...core.names import safe_name
from ..manifest import Manifest, parse
from . import guess, huggingface, model_api, tflite_metadata, ultralytics
from .check_onnx import inspect


def manifest_of(network: Path, name: str | None, version: str) -> tuple[Manifest, list[str]]:
    """Build the manifest of a bare .onnx, .xml or .tflite.

    Args:
        network: the file; beside it its weights and what some exporters leave there.
        name: the model's name; None: the file's stem made safe.
        version: its version.

    Returns:
        The manifest, and each thing that was assumed, in words.

    Raises:
        ModelError: the file is not fit to run, or its metadata leaves a question open or asks for
            something that is not supported, or it has none and its shapes leave a question open.

    """
    facts = inspect(network)
    where = str(network)
    fields = ultralytics.fields_of(network, facts)
    if facts.kind == "tflite":
        described, assumed = tflite_metadata.describe(network, facts, where)
    elif fields is not None:
        described, assumed = ultralytics.describe(fields, facts, where)
    elif (info := model_api.info_of(facts)) is not None:
        described, assumed = model_api.describe(info, facts, where)
    elif (config := huggingface.config_of(network)) is not None:
        described, assumed = huggingface.describe(config, facts, where)
    else:
        draft = guess.draft_of(facts)
        if draft.left:
            found = ", ".join(sorted(facts.metadata)[:5])
            keys = "; ".join(question.partition(":")[0] for question in draft.left)
            raise ModelError(
                f"{where}: its metadata is neither Ultralytics' (task, names) nor Model API's "
                f"(model_info): found {found or 'none'}. By its shapes it is {draft.family}, which "
                f"leaves to decide: {keys}; describe it in a model.toml beside it, of which "
                "`edge-agent describe` prints a draft"
            )
        described, assumed = dict(draft.said), list(draft.assumed)
    data: dict[str, Any] = {
        "name": name or safe_name(network.stem),
        "version": version,
        "file": network.name,
        **described,
    }
    return parse(data, where), assumed
