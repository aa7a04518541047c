"""What `bench cold-start` needs to know and to have before it times a model.

Loads the engine, so it runs in a process of its own (`apart`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...core.errors import ModelError, UsageError
from ...models.files.check_onnx import inspect
from ...models.files.facts import NetworkFacts
from ...models.manifest import ModelFolder, load
from ..common.models import find_models
from ..common.recipe import recipe
from ..common.start_script import CLASSIFIERS, DETECTORS
from ..common.truth import open_session


def look(models: list[str], place: str, config: str | None = None) -> list[dict[str, Any]]:
    """Find or make each model, and its form that was optimized in advance.

    Args:
        models: folders, or names of the agent's or of generated models.
        place: a folder for what is made.
        config: settings of the agent whose models they are; None: the usual ones.

    Returns:
        Of each: id, name, folder, network, the best form's network, the place for what belongs to
        it, bytes, the largest file, how the plain script is to use it, labels and the number of
        the class that the first of them names.

    Raises:
        UsageError: a model that this cannot measure.
        EngineError: one that ONNX Runtime cannot load.
    """
    folders = [load(path) for path in find_models(models, config, _progress)]
    looked = [(folder, _facts(folder)) for folder in folders]
    return [
        _prepared(folder, facts, Path(place) / str(number))
        for number, (folder, facts) in enumerate(looked)
    ]


def _prepared(folder: ModelFolder, facts: NetworkFacts, place: Path) -> dict[str, Any]:
    how = recipe(folder, facts.inputs[0])
    best = place / "best" / "model.onnx"
    best.parent.mkdir(parents=True)
    _optimize(folder.network, best)
    return {
        "id": folder.manifest.id,
        "name": folder.manifest.name,
        "folder": str(folder.path.resolve()),
        "network": str(folder.network.resolve()),
        "best": str(best),
        "place": str(place),
        "bytes": sum(path.stat().st_size for path in facts.files),
        "weights": str(max(facts.files, key=lambda path: path.stat().st_size)),
        "how": how,
        "labels": list(folder.labels),
        "first": _first_label(folder, facts),
    }


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - for the user of the command


def _facts(folder: ModelFolder) -> NetworkFacts:
    """Check that a plain script can run the model.

    Raises:
        UsageError: it cannot.
    """
    manifest, decoders = folder.manifest, (*CLASSIFIERS, *DETECTORS)
    if manifest.input.is_signal or folder.network.suffix != ".onnx":
        raise UsageError(
            f"{folder.path}: bench cold-start takes picture models as .onnx, "
            "which the plain script can run too"
        )
    if manifest.decoder not in decoders:
        raise UsageError(
            f"{folder.path}: bench cold-start takes models of the decoders {', '.join(decoders)}, "
            f"which the plain script knows; this one has {manifest.decoder!r}"
        )
    try:
        facts = inspect(folder.network)
    except ModelError as problem:
        raise UsageError(str(problem)) from None
    if len(facts.inputs) != 1 or len(facts.inputs[0].shape) != 4:
        raise UsageError(
            f"{folder.path}: bench cold-start takes models of one input [1, …] for the picture, "
            f"this one has {', '.join(map(str, facts.inputs))}"
        )
    return facts


def _first_label(folder: ModelFolder, facts: NetworkFacts) -> int:
    """Return the number of the class that the first label names."""
    if folder.manifest.decoder == "ultraface" and folder.labels:
        classes = [output.shape[2] for output in facts.outputs if output.shape[2] != 4]
        return 1 if classes == [len(folder.labels) + 1] else 0
    return folder.manifest.output.first_label


def _optimize(network: Path, made: Path) -> None:
    """Write the whole model as ONNX Runtime has it once all its optimizers have run.

    The weights go into a file of their own, which a session maps.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(made)
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "model.data"
    )
    open_session(network, options)
