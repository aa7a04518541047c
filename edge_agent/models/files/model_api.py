"""The `model_info` of OpenVINO's Model API, and the defaults of its wrappers.

In an ONNX file each entry is a property whose key is its path ("model_info labels"); in an IR it is
an element with the same path in rt_info. Pictures are BGR unless `reverse_input_channels` is set;
lists are separated by spaces; spaces in a label are "_", which its wrappers leave unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import ModelError
from ..manifest import MAX_LABELS
from . import infer_layout
from .facts import NetworkFacts

_PREFIX = "model_info "
MOST_BOXES = 100_000
"""In effect no limit."""

# The manifest's keys by its `resize_type`. All its sizes round half to even.
_RESIZE: Mapping[str, Mapping[str, str]] = {
    "standard": {"resize": "stretch"},
    "fit_to_window": {"resize": "letterbox", "anchor": "top-left", "rounding": "half-even"},
    "fit_to_window_letterbox": {"resize": "letterbox", "rounding": "half-even"},
    "crop": {"resize": "crop"},
}
_DETECTORS = frozenset({"ssd", "yolox", "yolo", "yolov5", "yolov8", "yolo11", "yolov11"})
_SUPPORTED = "SSD, YOLOX, YOLO, YOLOv5, YOLOv8, YOLO11, Classification and AnomalyDetection"
_CHANCES = frozenset({"Softmax", "SoftMax", "Sigmoid"})


class _Info(dict[str, str]):
    """Entries of `model_info` by name; "None" is how a missing one is stored."""

    def __init__(self, entries: Mapping[str, str], where: str) -> None:
        super().__init__((key, text) for key, text in entries.items() if text.strip() != "None")
        self._where = where
        self.assumed: list[str] = []

    def number(self, key: str, default: float) -> float:
        """Read one number; record an assumption if the wrapper's default is used."""
        found = self.numbers(key)
        if len(found) == 1:
            return found[0]
        if found:
            raise ModelError(f"{self._where}: model_info {key}: expected one number, found {found}")
        self.assumed.append(f"{key}: {default:g}, the default of Model API")
        return default

    def numbers(self, key: str) -> list[float]:
        return infer_layout.numbers(self.get(key, ""), f"{self._where}: model_info {key}")

    def flag(self, key: str, *, default: bool = False) -> bool:
        return self[key].strip().lower() in {"yes", "true", "1"} if key in self else default


def info_of(facts: NetworkFacts) -> dict[str, str] | None:
    """Collect the entries of `model_info`; returns None if there are none."""
    return {
        key.removeprefix(_PREFIX): text
        for key, text in facts.metadata.items()
        if key.startswith(_PREFIX)
    } or None


def describe(
    entries: Mapping[str, str], facts: NetworkFacts, where: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a manifest besides name, version and file, and the assumptions.

    Raises:
        ModelError: an entry is missing or wrong, or asks for something that is not supported.
    """
    info = _Info(entries, where)
    if "model_type" not in info:
        raise ModelError(
            f"{where}: model_type: not in its model_info; describe the model in a model.toml"
        )
    kind = info["model_type"].strip()
    if kind.lower() in _DETECTORS:
        described = _detector(kind.lower(), info, facts, where)
    elif kind.lower() == "classification":
        described = _classifier(info, facts, where)
    elif kind.lower() == "anomalydetection":
        described = _anomaly(info, facts, where)
    else:
        raise ModelError(f"{where}: model_type {kind!r} is not supported; {_SUPPORTED} are")
    return described, info.assumed


def _detector(kind: str, info: _Info, facts: NetworkFacts, where: str) -> dict[str, Any]:
    # Ultralytics' exporter calls classifiers YOLO too; only their output shows the difference.
    shapes = [spec.shape for spec in facts.outputs]
    if kind.startswith("yolo") and len(shapes) == 1 and len(shapes[0]) == 2:
        return _yolo_classifier(info, facts, where)
    labels = _labels(info, where)
    ultralytics = kind not in {"ssd", "yolox"}
    if kind == "ssd":
        decoder = "ssd"
        picture = _picture(info, facts, where, resize="standard")
    elif kind == "yolox":
        decoder = "yolox"
        # Its wrapper ignores resize_type.
        picture = _picture(info, facts, where, resize="fit_to_window")
        picture |= {**_RESIZE["fit_to_window"], "pad": 114}
    else:
        decoder = infer_layout.yolo_decoder(facts.outputs, len(labels), where)
        if decoder == "yolo-e2e":
            raise ModelError(
                f"{where}: output {facts.outputs[0]}: may be a YOLO's or an RT-DETR's, which "
                "model_info does not tell; put the exporter's metadata.yaml beside it"
            )
        info.assumed.append(f"decoder: {decoder}, by the output {facts.outputs[0]}")
        # For missing entries, the wrapper does what Ultralytics does.
        picture = _picture(
            info, facts, where, resize="fit_to_window_letterbox", pad=114, rgb=True, scale=255
        )
    output: dict[str, Any] = {"decoder": decoder, "labels": labels}
    output["threshold"] = info.number("confidence_threshold", 0.25 if ultralytics else 0.5)
    output |= _suppression(kind, info, ultralytics=ultralytics)
    return {"task": "detection", "input": picture, "output": output}


def _suppression(kind: str, info: _Info, *, ultralytics: bool) -> dict[str, Any]:
    """Return a manifest's keys for suppression; by default the SSD wrapper does none."""
    if not info.flag("nms_execute", default=kind != "ssd"):
        # No two boxes overlap by more than 1.
        return {} if kind == "ssd" else {"iou": 1.0, "max_detections": MOST_BOXES}
    most = info.number("nms_max_predictions", 30_000 if ultralytics else 200)
    return {
        "iou": info.number("iou_threshold", {"ssd": 0.5, "yolox": 0.65}.get(kind, 0.7)),
        "agnostic": info.flag("agnostic_nms", default=kind == "yolox"),
        "max_detections": min(int(most), MOST_BOXES) or MOST_BOXES,
    }


def _yolo_classifier(info: _Info, facts: NetworkFacts, where: str) -> dict[str, Any]:
    labels = _labels(info, where)
    info.assumed.append("task: classification, by the output of 2 dimensions")
    picture = _picture(info, facts, where, resize="crop", rgb=True, scale=255)
    return {
        "task": "classification",
        "input": picture | {"antialias": True},
        "output": {"decoder": "softmax", **_classes(labels, facts, where)},
    }


def _classifier(info: _Info, facts: NetworkFacts, where: str) -> dict[str, Any]:
    for flag in ("multilabel", "hierarchical"):
        if info.flag(flag):
            raise ModelError(f"{where}: {flag} classification is not supported")
    output = _classes(_labels(info, where), facts, where)
    maker = facts.makers[facts.outputs[0].name]
    output["decoder"] = "softmax" if maker in _CHANCES else "logits"
    info.assumed.append(
        f"decoder: {output['decoder']}, as the network ends in {maker or 'its input'}"
    )
    if "topk" in info:
        output["top_k"] = int(info.number("topk", 1))
    picture = _picture(info, facts, where, resize="standard")
    return {"task": "classification", "input": picture, "output": output}


def _classes(labels: tuple[str, ...], facts: NetworkFacts, where: str) -> dict[str, Any]:
    """Compare labels with the first output; if it has one more class, the first has no label."""
    spec = facts.outputs[0]
    sizes = [size for size in spec.shape[1:] if size != 1] or [1]
    if "int" in spec.dtype:
        raise ModelError(
            f"{where}: output {spec} holds integers; give output.scale and output.zero_point in a "
            "model.toml"
        )
    if len(sizes) > 1 or sizes[0] not in {None, len(labels), len(labels) + 1}:
        raise ModelError(
            f"{where}: labels: {len(labels)} in the metadata, but the output is {spec}"
        )
    return {"labels": labels, "first_label": int(sizes[0] == len(labels) + 1)}


def _anomaly(info: _Info, facts: NetworkFacts, where: str) -> dict[str, Any]:
    names = [spec.name for spec in facts.outputs]
    if "pred_score" not in names:
        raise ModelError(
            f"{where}: AnomalyDetection without an output pred_score is not supported: found "
            f"{', '.join(names)}"
        )
    if not {"mean_values", "scale_values"} & set(info) and not info.flag("embedded_processing"):
        raise ModelError(
            f"{where}: mean_values and scale_values: not in its model_info, and pictures may be "
            "meant in 0..1, as anomalib exports its networks, or in 0..255, as Model API gives "
            "them; say scale = 255 or scale = 1 under [input] of a model.toml"
        )
    return {
        "task": "anomaly",
        "input": _picture(info, facts, where, resize="standard"),
        "output": {
            "decoder": "score",
            "threshold": info.number("image_threshold", 0.5),
            "names": {"score": "pred_score"},
        },
    }


def _labels(info: _Info, where: str) -> tuple[str, ...]:
    labels = info.get("labels", "").split()
    if not labels:
        raise ModelError(
            f"{where}: labels: not in its model_info; name them in a model.toml under [output]"
        )
    if len(labels) > MAX_LABELS:
        raise ModelError(f"{where}: labels: more than {MAX_LABELS}")
    return tuple(labels)


def _picture(
    info: _Info,
    facts: NetworkFacts,
    where: str,
    *,
    resize: str,
    pad: float = 0,
    rgb: bool = False,
    scale: float = 1,
) -> dict[str, Any]:
    """Describe the input; missing entries get the wrapper's defaults."""
    spec, said = infer_layout.picture_input(facts, where)
    width, height = infer_layout.picture_size(spec, said["layout"])
    if None in {width, height}:
        said |= _open_size(info, where)
    kind = info.get("resize_type", "").strip() or resize
    if kind not in _RESIZE:
        raise ModelError(
            f"{where}: model_info resize_type: {kind!r} is not one of {', '.join(_RESIZE)}"
        )
    if "resize_type" not in info:
        info.assumed.append(f"resize_type: {resize}, the default of Model API")
    if kind == "crop" and width != height:
        raise ModelError(
            f"{where}: model_info resize_type: crop is not supported for an input that is not "
            f"square, found {spec}"
        )
    said |= _RESIZE[kind]
    letterboxed = said["resize"] == "letterbox"
    said["pad"] = (info.numbers("pad_value") or [pad])[0] if letterboxed else 0
    said["interpolation"] = info.get("interpolation_mode", "linear").strip().lower()
    if info.flag("embedded_processing"):
        # Color, mean, and scale are already in the network, which takes BGR pixels unchanged.
        return {"color": "bgr", **said}
    reverse = info.flag("reverse_input_channels") if "reverse_input_channels" in info else rgb
    said.setdefault("color", "rgb" if reverse else "bgr")
    said["mean"] = info.numbers("mean_values") or 0
    said["scale"] = info.numbers("scale_values") or scale
    mode = info.get("intensity_mode", "none").strip()
    if mode != "none":
        raise ModelError(f"{where}: model_info intensity_mode: {mode!r} is not supported")
    if "mean_values" not in info and "scale_values" not in info:
        info.assumed.append(f"mean and scale: 0 and {scale:g}, the default of Model API")
    said["tensor"] = spec.name if len(facts.inputs) > 1 else None
    return _with_image_info(said, facts, (width, height))


def _open_size(info: _Info, where: str) -> dict[str, Any]:
    """Return the network's input size before preprocessing was put inside it."""
    width, height = info.numbers("orig_width"), info.numbers("orig_height")
    if len(width) != 1 or len(height) != 1:
        raise ModelError(
            f"{where}: orig_width and orig_height: not in its model_info, and the input leaves its "
            "size open; say width and height under [input] of a model.toml"
        )
    return {"width": int(width[0]), "height": int(height[0])}


def _with_image_info(
    said: dict[str, Any], facts: NetworkFacts, size: tuple[int | None, int | None]
) -> dict[str, Any]:
    """Add the constant for a detector's second input, if it has one: height, width, and 1."""
    width = said.get("width") or size[0]
    height = said.get("height") or size[1]
    others = [spec for spec in facts.inputs if len(spec.shape) == 2]
    if others:
        said["fixed"] = {spec.name: [[height, width, 1]] for spec in others}
    return infer_layout.filled(said)
