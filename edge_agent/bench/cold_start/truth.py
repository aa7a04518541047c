"""Facts about a model for `bench cold-start`, and checks whether published results are true.

The truth for a frame is computed by ONNX Runtime without optimization, with the plain script's own
steps around it. Loads engines, so it runs in a separate process (`child`).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import AgentError, EngineError, ModelError, UsageError
from ...core.types import Array, Detections
from ...inference.engines.engine import native_reason
from ...inference.likeness import unmatched
from ...models.files.check_onnx import inspect
from ...models.files.facts import NetworkFacts
from ...models.manifest import ModelFolder, load
from ..common.models import find_models
from ..common.recipe import recipe
from ..common.start_script import CLASSIFIERS, DETECTORS, detect, prepare

LEEWAY = 0.1
"""Engines round differently: a class this close to the best, as a share of how far the best is
above the average, may be reported in its place; a box whose score is this close to the threshold
may be reported or not."""

Box = tuple[str, float, list[float]]
"""Label, score, x1, y1, x2, y2 in pixels of the frame."""


def check(model: dict[str, Any], clip: str, claims: list[dict[str, Any]]) -> list[str]:
    """Compare published results with the truth; return a line for each that is wrong.

    *model* is as returned by `look`; *claims* are results of the agent and of the plain script,
    each with its `variant` and `seq`.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = open_session(Path(model["network"]), options)
    how = {**model["how"], "threshold": model["how"]["threshold"] - LEEWAY}
    wrong = []
    for seq, frame in frames(clip, {claim["seq"] for claim in claims}):
        tensor, way = prepare(frame, how)
        outputs = session.run(None, {session.get_inputs()[0].name: tensor})
        for claim in claims:
            if claim["seq"] != seq:
                continue
            if how["decoder"] in CLASSIFIERS:
                problem = _check_class(model, outputs[0], claim)
            else:
                boxes = [(_label(model, c), s, b) for c, s, b in detect(outputs, how, way)]
                problem = compare(boxes, _claimed_boxes(model, claim), model["how"]["threshold"])
            if problem is not None:
                wrong.append(f"{model['id']}: {claim['variant']}, frame {seq}: {problem}")
    return wrong


def frames(clip: str, wanted: Collection[int]) -> Iterator[tuple[int, Array]]:
    """Yield wanted frames (height, width, 3) of an endlessly repeated clip, with their numbers."""
    for number, frame in enumerate(_endless(clip)):
        if number in wanted:
            yield number, frame
        if number >= max(wanted):
            return


def _endless(clip: str) -> Iterator[Array]:
    from ...sources.video import FILE, Video

    while True:
        video = Video(str(Path(clip).absolute()), clip, FILE)
        if not video.advance():
            raise AgentError(f"{clip}: gives no frame")
        yield video.picture()
        while video.advance():
            yield video.picture()
        video.close()


def _check_class(model: dict[str, Any], output: Array, claim: dict[str, Any]) -> str | None:
    """Return how the claimed best class is wrong, or None."""
    scores = output.reshape(-1).astype(np.float32)
    best = float(scores.max())
    near = scores >= best - LEEWAY * (best - float(scores.mean()))
    allowed = {_label(model, int(index)) for index in np.flatnonzero(near)}
    found = [_label(model, claim["class"][0])] if "class" in claim else []
    found += [str(each["label"]) for each in claim.get("classes", ())]
    said = found[0] if found else None
    least = model["how"]["threshold"]
    unsure = least > 0 and _chance(model, scores) < least + LEEWAY
    if said in allowed or (said is None and unsure):
        return None
    return f"expected class {_label(model, int(scores.argmax()))}, found {said or 'none'}"


def _chance(model: dict[str, Any], scores: Array) -> float:
    """Return the score of the best class as it appears in results."""
    if model["how"]["decoder"] == "softmax":
        return float(scores.max())
    return float(1 / np.exp(scores - scores.max()).sum())


def _claimed_boxes(model: dict[str, Any], claim: dict[str, Any]) -> list[Box]:
    if "boxes" in claim:
        return [(_label(model, c), s, b) for c, s, b in claim["boxes"]]
    return [(found["label"], found["score"], found["box"]) for found in claim["detections"]]


def compare(true: Sequence[Box], said: Sequence[Box], threshold: float) -> str | None:
    """Compare boxes; return the first difference, or None.

    Args:
        true: the true boxes, with scores down to `LEEWAY` below the threshold.
        said: the published boxes.
        threshold: least score of published boxes.
    """
    missing, extra, _ = unmatched(_detections(true), _detections(said), threshold + LEEWAY)
    wrong = [(true[place], "is missing") for place in missing]
    wrong += [(said[place], "is not there") for place in extra]
    if not wrong:
        return None
    (label, score, box), what = wrong[0]
    return f"{label} {score:.2f} at {', '.join(f'{value:.0f}' for value in box)} {what}"


def _detections(boxes: Sequence[Box]) -> Detections:
    return Detections(
        np.array([box for _, _, box in boxes], np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in boxes], np.float32),
        tuple(label for label, _, _ in boxes),
    )


def _label(model: dict[str, Any], number: int) -> str:
    """Return a class's name as in the agent."""
    labels: list[str] = model["labels"]
    place = number - model["first"]
    return labels[place] if 0 <= place < len(labels) else str(number)


def open_session(network: Path, options: Any) -> Any:
    """Open a network on ONNX Runtime."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)  # problems come as exceptions
    try:
        return ort.InferenceSession(network, options)
    except Exception as problem:  # its exceptions have no common class but this one
        raise EngineError(f"{network}: {native_reason(problem, network)}") from problem


def look(models: list[str], place: str, config: str | None = None) -> list[dict[str, Any]]:
    """Find or make each model, and its prepared form, below *place*.

    Returns:
        For each: id, name, folder, network, the best form's network, the place for its files,
        bytes, the largest file, how the plain script uses it, labels, and the number of the class
        named by the first label.
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
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - for the command's user


def _facts(folder: ModelFolder) -> NetworkFacts:
    """Check that a plain script can run the model."""
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
    """Return the number of the class named by the first label."""
    if folder.manifest.decoder == "ultraface" and folder.labels:
        classes = [output.shape[2] for output in facts.outputs if output.shape[2] != 4]
        return 1 if classes == [len(folder.labels) + 1] else 0
    return folder.manifest.output.first_label


def _optimize(network: Path, made: Path) -> None:
    """Write the whole model as optimized by all of ONNX Runtime's optimizers.

    The weights go to a separate file, which a session maps.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(made)
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "model.data"
    )
    open_session(network, options)
