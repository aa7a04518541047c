"""The metadata of a TensorFlow Lite file: normalization, colors, labels.

The metadata are a separate FlatBuffer inside the file; labels are in a zip appended to it. Source:
metadata_schema.fbs of TensorFlow Lite, whose field numbers are used here.
"""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

from ...core.errors import ModelError
from ...core.types import TensorSpec
from ..manifest import MAX_LABEL_BYTES, MAX_LABELS, InputSpec, Manifest
from . import infer_layout
from .facts import MOST_INTEGER_SCALE, Draft, NetworkFacts
from .flatbuffer import Table
from .guess import draft_of
from .guess_picture import LABELS
from .protobuf import DamagedError
from .teachable_machine import classes_of, labels_beside, teachable_machine
from .tflite_ssd import post_process_of

log = logging.getLogger(__name__)

ENTRY = "TFLITE_METADATA"
IDENTIFIER = b"M001"
MAX_BYTES = 4 * 2**20
MAX_FILES = 100
_LABELS = frozenset({2, 3})
"""Files with the labels of an axis, or of values."""
_CALIBRATED = 4
"""File with the parameters of a score calibration."""
_NORMALIZATION = 1
_CALIBRATION = 2
_IMAGE = 2
_GRAY = 2

LABELMAP = "labelmap.txt"
"""The file of labels in the zips of TensorFlow's detectors."""
_OUTSIDE = 5
"""Steps by which normalized values may exceed the range of integers: two percent, from rounding."""

_ROUNDED = 0.01
"""Share by which a step that somebody has written down may differ from the file's."""

Said = dict[str, Any]


def describe(network: Path, facts: NetworkFacts, where: str) -> tuple[Said, list[str]]:
    """Return the keys of a manifest besides name, version and file, and the assumptions.

    Raises:
        ModelError: the metadata are damaged, or leave a question open.
    """
    try:
        about = _root(network, facts)
        if about is None:
            raise ModelError(
                f"{where}: has no metadata ({ENTRY}), so that labels and normalization are unknown"
            )
        return _describe(about, network, facts, where)
    except DamagedError as damaged:
        raise ModelError(f"{where}: its metadata ({ENTRY}) are damaged: {damaged}") from None


def _root(network: Path, facts: NetworkFacts) -> Table | None:
    place = facts.metadata.get(ENTRY)
    if place is None:
        return None
    start, length = map(int, place.split())
    if not 8 <= length <= MAX_BYTES:
        raise DamagedError("too long, or too short")
    with network.open("rb") as file:
        file.seek(start)
        data = file.read(length)
    if data[4:8] != IDENTIFIER:
        raise DamagedError(f"no {IDENTIFIER.decode()}")
    return Table.root(data)


def _describe(
    about: Table, network: Path, facts: NetworkFacts, where: str
) -> tuple[Said, list[str]]:
    graphs = about.tables(3)
    inputs = graphs[0].tables(2) if graphs else []
    outputs = graphs[0].tables(3) if graphs else []
    if not outputs:
        raise ModelError(
            f"{where}: its metadata say nothing of its outputs (no subgraph_metadata), so that "
            "labels are unknown"
        )
    if facts.detected:
        return _detector(outputs, inputs, network, facts)
    if len(facts.outputs) != 1:
        raise ModelError(f"{where}: metadata are read of one output, found {len(facts.outputs)}")
    labels = _labels(outputs[0], network, where)
    spec, picture = infer_layout.picture_input(facts, where)
    drawn = draft_of(facts).keys
    areas = drawn.get("task") == "segmentation" and facts.outputs[0].shape[-1] == len(labels)
    task = "segmentation" if areas else "classification"
    assumed = [
        f"task: {task}, by one output with labels",
        "resize: stretch, linear, as the Task Library has it",
        *_left_out(outputs),
    ]
    picture |= _normalization(spec, facts, inputs, assumed)
    if _is_gray(inputs):
        picture["color"] = "gray"
    if areas:
        output: Said = {**drawn["output"], "labels": labels}
    else:
        output, made = _output(facts.outputs[0], labels, facts, where)
        assumed.append(made)
    return {
        "description": about.text(1).strip()[:200],
        "license": about.text(5).strip()[:200],
        "task": task,
        "input": picture,
        "output": output,
    }, assumed


def _detector(
    outputs: Sequence[Table], inputs: list[Table], network: Path, facts: NetworkFacts
) -> tuple[Said, list[str]]:
    """Describe a detector, whose labels belong to whichever of its outputs has the classes."""
    draft, where = draft_of(facts), str(network)
    named = [one for one in outputs if any(f.number(2, "<b") in _LABELS for f in one.tables(6))]
    labels = _labels((named or outputs)[0], network, where)
    spec, picture = infer_layout.picture_input(facts, where)
    assumed = [line for line in draft.assumed if not line.startswith("labels")]
    assumed += _left_out(outputs)
    picture |= {"color": "rgb", "resize": "stretch"}
    picture |= _normalization(spec, facts, inputs, assumed)
    output = {**draft.keys["output"], "labels": labels}
    return {"task": "detection", "input": picture, "output": output}, assumed


def draft_with_labels(network: Path, facts: NetworkFacts) -> Draft:
    """Guess a network like `draft_of`, with the labels in a .tflite's metadata or beside it."""
    draft = draft_of(facts)
    if facts.kind != "tflite":
        return draft
    signal = "window" in draft.keys.get("input", ())
    if signal and (labeled := _labeled_signal(draft, network, facts)) is not None:
        return labeled
    if (said := post_process_of(network) if facts.detected else None) is not None:
        return _with_labels_beside(draft, *labels_beside(network, said.classes, LABELMAP))
    if draft.keys.get("task") != "classification" or LABELS not in draft.questions:
        return draft
    theirs = None if signal else teachable_machine(network, facts)
    if theirs is not None:
        return theirs
    return _with_labels_beside(draft, *labels_beside(network, classes_of(facts.outputs[0])))


def _labeled_signal(draft: Draft, network: Path, facts: NetworkFacts) -> Draft | None:
    """Draft a signal network with labels in its metadata, which classifies; None: it has none."""
    if draft.keys.get("task") not in {"raw", "classification"}:
        return None
    try:
        about = _root(network, facts)
        outputs = [one for graph in about.tables(3)[:1] for one in graph.tables(3)] if about else []
        if not len(outputs) == len(facts.outputs) == 1:
            return None
        labels = _labels(outputs[0], network, str(network))
        output, made = _output(facts.outputs[0], labels, facts, str(network))
    except (DamagedError, ModelError):
        return None  # the error that comes with a draft says what its metadata lack
    left = draft.questions[1:]  # without that for the task, or for the labels
    if output["decoder"] == "logits":
        left = ("output.decoder: softmax where its outputs are chances already", *left)
    return replace(
        draft,
        family="a classifier of signals, by the labels in its metadata",
        keys={**draft.keys, "task": "classification", "output": output},
        assumed=(
            *(line for line in draft.assumed if not line.startswith("decoder")),
            made,
            *_left_out(outputs),
        ),
        questions=left,
    )


def _with_labels_beside(draft: Draft, labels: tuple[str, ...], asked: str) -> Draft:
    """Add the labels beside a network, or the question that they leave."""
    left = tuple(question for question in draft.questions if question != LABELS)
    if not labels:
        same = asked == LABELS  # no file: a detector may be without
        return draft if same else replace(draft, questions=(asked, *left))
    assumed = (line for line in draft.assumed if not line.startswith("labels"))
    return replace(
        draft,
        keys={**draft.keys, "output": {**draft.keys["output"], "labels": labels}},
        assumed=(*assumed, "labels: those of the file beside it"),
        questions=left,
    )


def _output(
    spec: TensorSpec, labels: tuple[str, ...], facts: NetworkFacts, where: str
) -> tuple[Said, str]:
    sizes = [size for size in spec.shape[1:] if size != 1]
    if len(sizes) != 1 or sizes[0] not in {None, len(labels), len(labels) + 1}:
        raise ModelError(
            f"{where}: labels: {len(labels)} in its metadata, which are not as many as the classes "
            f"of its output {spec}"
        )
    maker = facts.makers[spec.name]
    decoder = "softmax" if maker in {"Softmax", "Sigmoid"} else "logits"
    output: Said = {"decoder": decoder, "labels": labels}
    output["first_label"] = int(sizes[0] == len(labels) + 1)
    if "int" in spec.dtype:
        if spec.name not in facts.steps:
            raise ModelError(
                f"{where}: output {spec} holds integers, and the file does not say their step; "
                "give output.scale and output.zero_point in a model.toml"
            )
        output["scale"], output["zero_point"] = facts.steps[spec.name]
    return output, f"decoder: {decoder}, as the network ends in {maker or 'its input'}"


def _normalization(
    spec: TensorSpec, facts: NetworkFacts, inputs: list[Table], assumed: list[str]
) -> Said:
    """Return mean and scale in units of 0..255, for an input of floats or integers."""
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    for unit in inputs[0].tables(4) if inputs else []:
        options = unit.table(1)
        if unit.number(0, "<B") == _NORMALIZATION and options is not None:
            means, deviations = options.numbers(0, "<f"), options.numbers(1, "<f")
    if spec.dtype == "uint8":
        # A quantized network for pixels has its normalization in its input's step.
        assumed.append("mean and scale: 0 and 1, as the input takes bytes")
        return {}
    if spec.dtype == "int8":
        made = _quantized(means, deviations, facts.steps.get(spec.name))
        if made is not None:
            assumed.append("mean and scale: those of its metadata, by the step of its input")
            return made
        assumed.append("mean and scale: 128 and 1, as the input takes signed bytes")
        return {"mean": 128, "scale": 1}
    if not means or not deviations:
        assumed.append("mean and scale: 127.5 and 127.5; its metadata do not say them")
        means = deviations = (127.5,)
    return {"mean": list(means), "scale": list(deviations)}


def _quantized(
    means: tuple[float, ...], deviations: tuple[float, ...], step: tuple[float, int] | None
) -> Said | None:
    """Return mean and scale of signed bytes: normalized, then divided by the input's step.

    None if the file does not state them, or if they only map pixels to signed bytes.
    """
    if not means or not deviations or step is None or len(means) != len(deviations):
        return None
    size, zero = step
    scales = [size * deviation for deviation in deviations]
    offsets = [mean - zero * scale for mean, scale in zip(means, scales, strict=True)]
    away = [
        abs((pixel - offset) / scale - (pixel - 128))
        for offset, scale in zip(offsets, scales, strict=True)
        for pixel in (0, 255)
        if scale
    ]
    return {"mean": offsets, "scale": scales} if max(away, default=0) > 1 else None


def _is_gray(inputs: list[Table]) -> bool:
    content = inputs[0].table(3) if inputs else None
    if content is None or content.number(0, "<B") != _IMAGE:
        return False
    properties = content.table(1)
    return properties is not None and properties.number(0, "<b") == _GRAY


def _left_out(outputs: Sequence[Table]) -> tuple[str, ...]:
    """Return words on a score calibration, if the metadata have one; none is computed here."""
    units = (unit.number(0, "<B") for one in outputs for unit in one.tables(4))
    files = (file.number(2, "<b") for one in outputs for file in one.tables(6))
    if _CALIBRATION not in units and _CALIBRATED not in files:
        return ()
    return ("scores: the network's own; the score calibration in its metadata is left out",)


def _labels(output: Table, network: Path, where: str) -> tuple[str, ...]:
    names = [each.text(0) for each in output.tables(6) if each.number(2, "<b") in _LABELS]
    if not names:
        raise ModelError(f"{where}: labels: its metadata name none; write a labels.txt, one a line")
    text = member_of(network, names, MAX_LABEL_BYTES)
    if text is None:
        raise ModelError(f"{where}: {names[0]}: its metadata name it, and it cannot be read")
    labels = tuple(line.strip() for line in text.rstrip().splitlines())
    if not 0 < len(labels) <= MAX_LABELS:
        raise ModelError(f"{where}: {names[0]}: holds {len(labels)} labels")
    return labels


def member_of(network: Path, names: Sequence[str], most: int) -> str | None:
    """Read a text from the zip at the end of a file; None if there is no such zip or member.

    Raises:
        ModelError: it is longer than *most* bytes, or not text.
    """
    try:
        with zipfile.ZipFile(network) as archive:
            inside = archive.namelist()[: MAX_FILES + 1]
            name = next((name for name in names if name in inside), None)
            if name is None or len(inside) > MAX_FILES:
                return None
            with archive.open(name) as member:
                data = member.read(most + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error):
        return None
    if len(data) > most:
        raise ModelError(f"{network}: {name}: larger than {most >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ModelError(f"{network}: {name}: is not UTF-8 text") from None


def in_steps(manifest: Manifest, facts: NetworkFacts, *, pictures: bool) -> Manifest:
    """Return a manifest with the steps that a file states for its integer inputs and outputs.

    Mean and scale of floats become those of the integers that the input takes; if they do not fit
    its step, pixels fill its range. The output's scale and zero point are the file's if the
    manifest gives none, but for task raw, which leaves integers as they are. Of an ONNX file, mean
    and scale of a window that are given are those of integers already.

    Raises:
        ModelError: numbers by name are in steps of different sizes.
    """
    picture = [spec for spec in facts.inputs if len(spec.shape) == 4]
    if len(picture) == 1 and not manifest.input.is_signal and picture[0].name in facts.steps:
        given = _input_in_steps(manifest.input, picture[0], facts, pictures=pictures)
        manifest = replace(manifest, input=given)
    elif manifest.input.is_signal:
        manifest = replace(manifest, input=_window_in_steps(manifest.input, facts))
    output = manifest.output
    steps = [facts.steps[one.name] for one in facts.outputs if one.name in facts.steps]
    taken = manifest.task != "raw" and (output.scale, output.zero_point) == (1, 0)
    if taken and len(steps) == len(facts.outputs) == 1:
        output = replace(output, scale=steps[0][0], zero_point=steps[0][1])
        manifest = replace(manifest, output=output)
    elif manifest.task == "regression" and len(set(steps)) > 1:
        names = ", ".join(map(str, facts.outputs))
        raise ModelError(
            f"output.scale: {names} count in steps of different sizes; export it with outputs of "
            "floats"
        )
    return manifest


def _window_in_steps(given: InputSpec, facts: NetworkFacts) -> InputSpec:
    """Return mean and scale of the integers that a window, or its features, become."""
    free = [spec for spec in facts.inputs if spec.name not in given.given]
    taken = [spec for spec in free if given.tensor in {None, spec.name}]
    if len(taken) != 1 or "int" not in taken[0].dtype or taken[0].name not in facts.steps:
        return given
    if facts.kind == "onnx" and (given.mean, given.scale) != ((), ()):
        return given
    size, zero = facts.steps[taken[0].name]
    numbers = [each if isinstance(each, tuple) else (each,) for each in (given.mean, given.scale)]
    count = max(1, *map(len, numbers))
    means, scales = given.per_channel("mean", count), given.per_channel("scale", count)
    if all(isclose(scale, size, rel_tol=_ROUNDED) for scale in scales):
        return given  # already for integers
    made = tuple(scale * size for scale in scales)
    offsets = (mean - zero * scale for mean, scale in zip(means, made, strict=True))
    return replace(given, mean=tuple(offsets), scale=made)


def _input_in_steps(
    given: InputSpec, spec: TensorSpec, facts: NetworkFacts, *, pictures: bool
) -> InputSpec:
    count = 1 if given.color == "gray" else 3
    means, scales = given.per_channel("mean", count), given.per_channel("scale", count)
    if "int" not in spec.dtype:
        return given
    size, zero = facts.steps[spec.name]
    low, high = (-128, 127) if spec.dtype == "int8" else (0, 255)

    def fit(means: Sequence[float], scales: Sequence[float]) -> bool:
        pairs = zip(means, scales, strict=True)
        ends = [(pixel - mean) / scale for mean, scale in pairs for pixel in (0, 255)]
        return min(ends) >= low - _OUTSIDE and max(ends) <= high + _OUTSIDE

    # Features of a sound in a file have any range.
    if max(map(abs, scales)) <= MOST_INTEGER_SCALE and (not pictures or fit(means, scales)):
        return given  # already for integers
    made = [scale * size for scale in scales]
    offsets = [mean - zero * scale for mean, scale in zip(means, made, strict=True)]
    if not fit(offsets, made):
        log.warning(
            "input.mean and input.scale do not fit the step %.6g and zero point %d that the file "
            "states for its input %s: pixels fill its range instead (mean = %d, scale = 1)",
            *(size, zero, spec, -low),
        )
        return replace(given, mean=-low, scale=1)
    return replace(given, mean=tuple(offsets), scale=tuple(made))
