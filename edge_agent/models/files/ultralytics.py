"""The metadata that Ultralytics' exporters write, and the defaults of their predictor.

An ONNX file has it as properties, with values as Python prints them; an IR has it in metadata.yaml
beside it; a .tflite ends in a zip with it. The exporters of YOLOv5, and of YOLOv9, which derives
from it, write only `names` and `stride`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import ModelError
from ..decoders import Task
from ..manifest import MAX_LABELS
from . import infer_layout
from .facts import NetworkFacts
from .tflite_metadata import member_of

MAX_TEXT = 1024 * 1024

# Heads whose outputs are read here. Exporters since 8.4 name the head; other heads return different
# numbers with the same shapes.
_RTDETR = "RTDETRDecoder"
_HEADS: Mapping[str, frozenset[str]] = {
    "detect": frozenset({"Detect", "v10Detect", "WorldDetect", "YOLOEDetect", _RTDETR}),
    "segment": frozenset({"Segment", "Segment26", "YOLOESegment", "YOLOESegment26"}),
    "pose": frozenset({"Pose", "Pose26"}),
    "obb": frozenset({"OBB", "OBB26"}),
    "semantic": frozenset({"SemanticSegment"}),
    "classify": frozenset({"Classify"}),
}
_YOLOV5_CLASSIFICATION = {
    "resize": "crop",
    "mean": [123.675, 116.28, 103.53],
    "scale": [58.395, 57.12, 57.375],
}
_TASKS: Mapping[str, Task] = {
    "detect": "detection",
    "segment": "instance-segmentation",
    "pose": "keypoints",
    "obb": "obb",
}


def fields_of(network: Path, facts: NetworkFacts) -> dict[str, str] | None:
    """Collect Ultralytics' fields from a network; returns None if it has none.

    Raises:
        ModelError: its metadata.yaml is too large or not text.
    """
    for prefix in ("", "framework "):
        fields = {
            key.removeprefix(prefix): value
            for key, value in facts.metadata.items()
            if key.startswith(prefix)
        }
        if _says_enough(fields):
            return fields
    if facts.kind == "tflite":
        return _in_zip(network)
    beside = network.parent / "metadata.yaml"
    if facts.kind == "ir" and beside.is_file():
        fields = _read_yaml(beside)
        return fields if _says_enough(fields) else None
    return None


def _says_enough(fields: Mapping[str, str]) -> bool:
    """Whether fields are Ultralytics', early ones among them, which state no task."""
    return "names" in fields and ("task" in fields or "stride" in fields)


def describe(
    fields: Mapping[str, str], facts: NetworkFacts, where: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a manifest besides name, version and file, and the assumptions.

    Raises:
        ModelError: the task is not supported, or fields contradict the network.
    """
    labels = _labels(fields, where)
    if "task" in fields:
        task = fields["task"].strip()
        assumed = []
    else:
        # YOLOv5's segmentation: rows, and prototypes of masks; its classification: one row.
        shapes = [len(one.shape) for one in facts.outputs]
        task = "classify" if shapes == [2] else "segment" if len(shapes) == 2 else "detect"
        assumed = [f"task: {task}; its exporter, YOLOv5's or an early one, does not say"]
    described = {
        "description": fields.get("description", "").strip()[:200],
        "license": fields.get("license", "").strip()[:200],
    }
    if task not in _HEADS:
        raise ModelError(
            f"{where}: task {task!r} is not supported; {', '.join(_HEADS)} are: train or export "
            "the model for one of these"
        )
    head = fields.get("head", "").strip()
    if head and head not in _HEADS[task]:
        raise ModelError(
            f"{where}: head {head!r} is not known, and what its output means may differ; known are "
            f"{', '.join(sorted(_HEADS[task]))}; describe the model in a model.toml"
        )
    if task == "semantic":
        body, more = _semantic(fields, facts, labels, where)
    elif task == "classify":
        body, more = _classification(fields, facts, labels, where)
    else:
        body, more = _boxes(task, fields, facts, labels, where)
    return described | body, assumed + more


def _boxes(
    task: str, fields: Mapping[str, str], facts: NetworkFacts, labels: tuple[str, ...], where: str
) -> tuple[dict[str, Any], list[str]]:
    if _is_rtdetr(fields):
        return _rtdetr(fields, facts, labels, where)
    arguments = _value(fields, "args", where)
    inside = isinstance(arguments, dict) and arguments.get("nms") is True
    older = "task" not in fields
    behind, more = _behind(task, fields, facts, where)
    rows = [one for one in facts.outputs if task != "segment" or len(one.shape) == 3]
    decoder = infer_layout.yolo_decoder(
        rows,
        len(labels),
        where,
        end_to_end=inside or _value(fields, "end2end", where) is True,
        objectness=older,
        behind=behind,
    )
    picture, _, assumed = _picture(fields, facts, where)
    picture |= {"resize": "letterbox", "pad": 114}
    output: dict[str, Any] = {"decoder": decoder, "threshold": 0.25, "labels": labels, **more}
    assumed = [
        f"decoder: {decoder}, by the output {rows[0]}",
        "input: letterboxed on gray 114, RGB in 0..1, as Ultralytics' predictor does",
        "threshold: 0.25, the predictor's default",
        *assumed,
    ]
    if decoder != "yolo-e2e":
        # Without a version the exporter is YOLOv5's, or YOLOv9's, which derives from it.
        yolov5 = older and (decoder == "yolov5" or "version" not in fields)
        output["iou"] = 0.45 if yolov5 else 0.7
        assumed.append(f"iou: {output['iou']}, the predictor's default")
    return {"task": _TASKS[task], "input": picture, "output": output}, assumed


def _behind(
    task: str, fields: Mapping[str, str], facts: NetworkFacts, where: str
) -> tuple[int, dict[str, Any]]:
    """Return how many numbers a task adds to a row, and its keys in [output]."""
    if task == "segment":
        pictures = [one.shape for one in facts.outputs if len(one.shape) == 4]
        count = pictures[0][3 if facts.kind == "tflite" else 1] if len(pictures) == 1 else None
        if count is None:
            found = ", ".join(map(str, facts.outputs))
            raise ModelError(
                f"{where}: expected rows and the prototypes of masks [1, k, h, w], found {found}"
            )
        return count, {}
    if task != "pose":
        return int(task == "obb"), {}
    shape = _value(fields, "kpt_shape", where)
    if not (
        isinstance(shape, list | tuple)
        and len(shape) == 2
        and all(type(each) is int and each > 0 for each in shape)
    ):
        raise ModelError(
            f"{where}: kpt_shape: not in the metadata; say output.points in a model.toml"
        )
    return shape[0] * shape[1], {"points": shape[0]}


def _is_rtdetr(fields: Mapping[str, str]) -> bool:
    """Whether it is an RT-DETR; exporters before 8.4 only name it in the description."""
    head = fields.get("head", "").strip()
    return head == _RTDETR or (not head and "rtdetr" in fields.get("description", "").lower())


def _rtdetr(
    fields: Mapping[str, str], facts: NetworkFacts, labels: tuple[str, ...], where: str
) -> tuple[dict[str, Any], list[str]]:
    picture, _, assumed = _picture(fields, facts, where)
    return {
        "task": "detection",
        "input": picture | {"resize": "stretch"},
        "output": {"decoder": "rtdetr", "threshold": 0.25, "labels": labels},
    }, [
        "input: stretched, RGB in 0..1, as Ultralytics' predictor does for RT-DETR",
        "threshold: 0.25, the predictor's default",
        *assumed,
    ]


def _classification(
    fields: Mapping[str, str], facts: NetworkFacts, labels: tuple[str, ...], where: str
) -> tuple[dict[str, Any], list[str]]:
    outputs = facts.outputs
    if len(outputs) != 1 or outputs[0].shape[-1] not in {len(labels), None}:
        found = ", ".join(map(str, outputs))
        raise ModelError(
            f"{where}: expected one output of {len(labels)} classes, as there are names, found "
            f"{found}"
        )
    picture, (width, height), assumed = _picture(fields, facts, where)
    square = width == height
    if "task" not in fields and square:
        made = {"task": "classification", "input": picture | _YOLOV5_CLASSIFICATION}
        how = "center cut of the whole shorter side, RGB by ImageNet's mean and scale"
        assumed = [f"input: {how}, as YOLOv5's classify/predict.py does", *assumed]
        return made | {"output": {"decoder": "logits", "labels": labels}}, assumed
    picture |= {"resize": "crop" if square else "stretch", "antialias": True}
    how = "center cut of the whole shorter side" if square else "stretched, as it is not square"
    return {
        "task": "classification",
        "input": picture,
        "output": {"decoder": "softmax", "labels": labels},
    }, [f"input: {how}, antialiased, RGB in 0..1, as Ultralytics' predictor does", *assumed]


def _semantic(
    fields: Mapping[str, str], facts: NetworkFacts, labels: tuple[str, ...], where: str
) -> tuple[dict[str, Any], list[str]]:
    picture, _, assumed = _picture(fields, facts, where)
    # For a single class its exporter returns 0 and 1, where 1 is the class.
    output = {"decoder": "semantic", "labels": labels} | (
        {"first_label": 1} if len(labels) == 1 else {}
    )
    return {
        "task": "segmentation",
        "input": picture | {"resize": "letterbox", "pad": 114},
        "output": output,
    }, ["input: letterboxed on gray 114, RGB in 0..1, as Ultralytics' predictor does", *assumed]


def _picture(
    fields: Mapping[str, str], facts: NetworkFacts, where: str
) -> tuple[dict[str, Any], tuple[int, int], list[str]]:
    """Describe the input; the size comes from `imgsz` if the network leaves it open.

    Returns:
        Keys for a manifest's [input], width and height, and the assumptions.
    """
    spec, said = infer_layout.picture_input(facts, where)
    width, height = infer_layout.picture_size(spec, said["layout"])
    said = {"color": "rgb", "mean": 0, "scale": 255, **said}
    if width is not None and height is not None:
        return said, (width, height), []
    size = _value(fields, "imgsz", where)
    if isinstance(size, int):
        size = [size, size]
    if not (
        isinstance(size, list | tuple)
        and len(size) == 2
        and all(isinstance(side, int) for side in size)
    ):
        raise ModelError(
            f"{where}: imgsz: not in the metadata, and the input {spec} leaves its size open; "
            "say width and height under [input] of a model.toml"
        )
    width, height = width or size[1], height or size[0]
    assumed = (
        f"size: {width}x{height}, its imgsz; the network's is open, and Ultralytics' predictor "
        "gives it a rectangle of each frame's shape, in which it may find other boxes: for that "
        "say width and height under [input] of a model.toml"
    )
    return said | {"width": width, "height": height}, (width, height), [assumed]


def _labels(fields: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Read `names`: a dictionary with keys from 0 on, or a list."""
    names = _value(fields, "names", where)
    if isinstance(names, dict):
        if sorted(names) != list(range(len(names))):
            raise ModelError(f"{where}: names: expected keys 0 to {len(names) - 1}, one a class")
        names = [names[index] for index in range(len(names))]
    if not isinstance(names, list | tuple) or not 0 < len(names) <= MAX_LABELS:
        raise ModelError(f"{where}: names: expected a label for each class, found none")
    return tuple(str(name) for name in names)


def _value(fields: Mapping[str, str], key: str, where: str) -> Any:
    """Read a field as the Python literal that it was printed from; None if it is missing."""
    text = fields.get(key)
    if text is None:
        return None
    if len(text) > MAX_TEXT:
        raise ModelError(f"{where}: {key}: longer than {MAX_TEXT} characters")
    try:
        value = ast.literal_eval(text.strip())
        # Sorting and counting below needs keys of one plain type.
        if isinstance(value, dict) and key == "names" and not all(type(k) is int for k in value):
            raise TypeError
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if key == "names":
            raise ModelError(
                f"{where}: names: expected a dictionary of numbers and labels, found {text[:60]!r}"
            ) from None
        return None
    return value


def _in_zip(network: Path) -> dict[str, str] | None:
    """Read the dictionary in the zip at the end of their .tflite files; None if there is none.

    Source: `export_tflite` and `add_tflite_metadata` in the exporters of YOLOv5 and Ultralytics.
    """
    text = member_of(network, ("metadata.json", "temp_meta.txt", "meta.txt"), MAX_TEXT)
    if text is None:
        return None
    try:
        try:
            data = json.loads(text)
        except ValueError:
            data = ast.literal_eval(text)  # Python's form, of versions before 8.4
        names = data["names"]
        if isinstance(names, dict):
            data["names"] = {int(key): str(name) for key, name in names.items()}
        return {
            str(key): value if isinstance(value, str) else repr(value)
            for key, value in data.items()
        }
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return None


def _read_yaml(path: Path) -> dict[str, str]:
    """Read the simple YAML that the exporter writes: scalars, one level of mappings and lists.

    Mappings and lists are returned as Python prints them, like the properties of an ONNX file.
    """
    try:
        if path.stat().st_size > MAX_TEXT:
            raise ModelError(f"{path}: larger than {MAX_TEXT} bytes, not an exporter's metadata")
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ModelError(f"{path}: is not UTF-8 text") from None
    fields: dict[str, str] = {}
    nested: dict[str, tuple[dict[Any, Any], list[Any]]] = {}
    key = ""
    for indent, text in _entries(lines):
        if text.startswith("- ") and key:
            nested.setdefault(key, ({}, []))[1].append(_scalar(text[2:]))
        elif not indent:
            key, _, value = text.partition(":")
            fields[key] = str(_scalar(value))
        elif key:
            inner, colon, value = text.partition(":")
            if colon:
                nested.setdefault(key, ({}, []))[0][_scalar(inner)] = _scalar(value)
    for key, (mapping, items) in nested.items():
        fields[key] = repr(mapping or items)
    return fields


def _entries(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Return the indentation and text of each entry; long ones continue in deeper lines."""
    entries: list[tuple[int, str]] = []
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        above, begun = entries[-1] if entries else (indent, "")
        if indent <= above or begun.endswith(":"):
            entries.append((indent, text))
        elif begun.endswith("\\"):  # between double quotes, where a backslash keeps the space
            entries[-1] = above, begun[:-1] + text.removeprefix("\\")
        else:
            entries[-1] = above, f"{begun} {text}"
    return entries


def _scalar(text: str) -> str | int | bool:
    """Read one YAML scalar: an integer, a boolean, or text, quoted or not."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    if text in {"true", "false"}:
        return text == "true"
    if text.lstrip("-").isdecimal() and len(text) < 10:
        return int(text)
    return text
