"""The files that Hugging Face keeps beside a network, and the defaults of its processors.

`transformers` writes config.json (architecture, labels) and preprocessor_config.json (how pictures
are prepared); timm's config.json has both. They are in the network's folder, or in its parent if
that folder is called "onnx".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.errors import ModelError
from ...core.files import read_plain_file
from ...core.types import TensorSpec
from ..manifest import MAX_LABELS
from . import infer_layout
from .facts import Draft, NetworkFacts, takes_texts

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
MAX_BYTES = 8 * 2**20

# The manifest's filters by PIL's numbers; Lanczos and Hamming have no counterpart.
_FILTERS: Mapping[int, str] = {0: "nearest", 2: "linear", 3: "cubic", 4: "area"}
_TIMM_FILTERS = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}
_LAYOUT = "nchw"
_CLASSIFIER, _DETECTOR = "ForImageClassification", "ForObjectDetection"
_SPEAKER, _TOKENIZER = "ForCausalLM", "openvino_tokenizer.xml"
_CONVNEXT_CROP = 224 / 256
"""The default `crop_pct` of its processor."""
_CONVNEXT_STRETCHED = 384
"""Size from which its processor stretches the picture."""
_SQUARES = ("DeiT", "Beit", "EfficientNet", "EfficientFormer", "Perceiver")
"""Processors that crop, and stretch to a square if `size` is one number."""
_EDGES = ("ConvNext", "Detr", "Deta", "Yolos")
"""Processors that do not crop, and use a `size` of one number as the shorter edge."""
_LEVIT_ENLARGED = 256 / 224
_POOLFORMER_CROP = 0.9
"""The default `crop_pct` of its processor."""

Said = dict[str, Any]


def config_of(network: Path) -> Mapping[str, Any] | None:
    """Read the config.json of a network; returns None if it has none from these libraries.

    Raises:
        ModelError: it is too large or not JSON.
    """
    for folder in _folders(network):
        config: dict[str, Any] | None = read_beside(folder / CONFIG)
        if config is not None and {"architectures", "architecture"} & config.keys():
            return config
    return None


def draft_of_speaker(network: Path) -> Draft | None:
    """Return the draft for a language model as optimum-cli leaves one; None: it is none.

    Raises:
        ModelError: its config.json is too large or not JSON.
    """
    if not _architecture(config_of(network) or {}).endswith(_SPEAKER):
        return None
    speaks = network.with_name(_TOKENIZER).is_file()
    return Draft("a language model", {"task": "generate"}) if speaks else None


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def describe(
    config: Mapping[str, Any], facts: NetworkFacts, where: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a manifest besides name, version and file, and the assumptions.

    Raises:
        ModelError: an entry is missing or wrong, or asks for something that is not supported.
    """
    if "architectures" not in config:
        return _timm(config, facts, where)
    name = _architecture(config)
    task = _task(name, facts, where)
    processor = next(
        (
            read
            for f in _folders(Path(where))
            if (read := read_beside(f / PREPROCESSOR)) is not None
        ),
        None,
    )
    if processor is None:
        raise ModelError(
            f"{where}: {PREPROCESSOR}: is not beside its {CONFIG}, so that size, mean and scale "
            "are unknown; put it there, or describe the model in a model.toml"
        )
    spec, picture, assumed = _picture(processor, facts, where)
    labels, placeholders = _labels(config, where)
    assumed = [f"task: {task}, by the architecture {name}", *assumed]
    if placeholders:
        assumed.append("labels: those of its config.json, which are placeholders: name them")
    if task == "detection":
        if len(facts.inputs) > 1:
            # The mask of picture versus padding: all is picture.
            others = [one.name for one in facts.inputs if one.name != spec.name]
            for one in facts.inputs:
                if one.name in others and len(one.shape) != 3:
                    raise ModelError(
                        f"{where}: input {one} is neither the picture nor the mask of its padding; "
                        "detectors that take words or other things are not supported"
                    )
            picture["fixed"] = dict.fromkeys(others, 1)
            assumed.append(f"{', '.join(others)}: 1 everywhere, as nothing of the input is padding")
        if picture["resize"] != "stretch":
            raise ModelError(f"{where}: {PREPROCESSOR}: a detector that cuts is not supported")
        output: Said = {"decoder": "detr", "labels": labels, "threshold": 0.5}
        return {"task": task, "input": picture, "output": output}, [
            *assumed,
            "threshold: 0.5, the default of post_process_object_detection",
        ]
    problem = config.get("problem_type")
    if problem in {"multi_label_classification", "regression"}:
        raise ModelError(
            f"{where}: {CONFIG}: problem_type {problem!r} is not supported: its scores are no "
            "softmax; describe the model in a model.toml"
        )
    return {
        "task": task,
        "input": picture,
        "output": _classes(labels, facts, where),
    }, [*assumed, "decoder: logits, as all its classifiers give"]


def _task(architecture: str, facts: NetworkFacts, where: str) -> str:
    if architecture.endswith(_CLASSIFIER):
        return "classification"
    if architecture.endswith(_DETECTOR):
        return "detection"
    speaks, reads = draft_of_speaker(Path(where)) is not None, takes_texts(facts)
    if speaks or reads:
        kind, is_for = (
            ("language model", "generate") if speaks else ("network of texts", "embedding")
        )
        raise ModelError(
            f"{where}: {CONFIG}: {architecture[:80]} is a {kind}: write a model.toml beside it "
            f'with task = "{is_for}", of which `edge-agent describe` prints a draft'
        )
    raise ModelError(
        f"{where}: {CONFIG}: architecture {architecture[:80]!r} is not supported; "
        f"…{_CLASSIFIER} and …{_DETECTOR} are"
    )


def _timm(
    config: Mapping[str, Any], facts: NetworkFacts, where: str
) -> tuple[dict[str, Any], list[str]]:
    given = config.get("pretrained_cfg")
    entries: Mapping[str, Any] = given if isinstance(given, dict) else config
    spec, picture = infer_layout.picture_input(facts, where, usual=_LAYOUT)
    size = entries.get("input_size")
    sides = size[1:] if isinstance(size, list) and len(size) == 3 else [None, None]
    _settle_size(picture, spec, sides[0], sides[1], where)
    crop = _number(entries.get("crop_pct", 0.875), "crop_pct", where)
    mode = entries.get("crop_mode", "center")
    if mode not in {"center", "squash"}:
        raise ModelError(f"{where}: {CONFIG}: crop_mode {mode!r} is not supported; center is")
    kind = entries.get("interpolation", "bicubic")
    if kind not in _TIMM_FILTERS:
        raise ModelError(f"{where}: {CONFIG}: interpolation {kind!r} is not supported")
    picture |= _crop(crop) | ({} if mode == "center" else {"resize": "stretch"})
    picture |= _filter(_TIMM_FILTERS[kind])
    picture.setdefault("color", "rgb")
    for key in ("mean", "std"):
        if key not in entries:
            raise ModelError(f"{where}: {CONFIG}: {key}: is missing; give it in a model.toml")
    picture["mean"] = [255 * value for value in _numbers(entries["mean"], "mean", where)]
    picture["scale"] = [255 * value for value in _numbers(entries["std"], "std", where)]
    assumed = ["task: classification, decoder logits: what timm's networks are"]
    names = config.get("label_names")
    if not isinstance(names, list) or not 0 < len(names) <= MAX_LABELS:
        count = config.get("num_classes", entries.get("num_classes"))
        raise ModelError(
            f"{where}: {CONFIG}: label_names: is missing ({count} classes); write a labels.txt, "
            "one a line, and a model.toml that names it"
        )
    return {
        "task": "classification",
        "input": picture,
        "output": _classes(tuple(map(str, names)), facts, where),
    }, assumed


def _picture(
    processor: Mapping[str, Any], facts: NetworkFacts, where: str
) -> tuple[TensorSpec, Said, list[str]]:
    """Describe the input from a processor's entries."""
    spec, said = infer_layout.picture_input(facts, where, usual=_LAYOUT)
    assumed: list[str] = []
    kind = _kind(processor)
    enlarging = any(name in kind for name in ("Levit", "PoolFormer"))
    # These two crop by default; old PoolFormer files have the other key.
    cuts = processor.get("do_center_crop", enlarging) is True
    cuts = cuts or processor.get("do_resize_and_center_crop") is True
    as_edge = any(name in kind for name in _EDGES)
    if cuts:
        as_edge = not any(name in kind for name in _SQUARES)
    size = _size(processor.get("size"), as_edge=as_edge, where=where)
    edge = size.get("shortest_edge")
    if processor.get("do_resize") is False:
        said["resize"] = "stretch"
        assumed.append("resize: stretch; its processor leaves pictures as they are")
        height = width = None
    elif cuts:
        given = processor.get("crop_size")
        cut = _size(edge if given is None and enlarging else given, as_edge=False, where=where)
        height, width = cut.get("height"), cut.get("width")
        if enlarging and edge is not None:
            edge = _enlarged(edge, kind, processor, where)
        if edge is not None and height == width and height is not None and height <= edge:
            said |= _crop(height / edge)
        elif (share := _share(size, height, width)) is not None:
            said |= _crop(share) | {"resize": "stretch"}
        else:
            raise ModelError(
                f"{where}: {PREPROCESSOR}: size {size} and then crop_size {cut} is not supported; "
                "say what comes nearest in a model.toml"
            )
    elif "ConvNext" in kind and edge is not None:
        height = width = edge
        if edge < _CONVNEXT_STRETCHED:
            crop = processor.get("crop_pct")
            said |= _crop(_CONVNEXT_CROP if crop is None else _number(crop, "crop_pct", where))
        else:
            said["resize"] = "stretch"
    else:
        said["resize"] = "stretch"
        height, width = size.get("height"), size.get("width")
        if height is None:
            assumed.append(
                "resize: stretch; its processor keeps the sides' proportion, for which a network "
                "of one size has no room"
            )
    _settle_size(said, spec, height, width, where)
    number = processor.get("resample", 2)
    if number not in _FILTERS:
        assumed.append(f"interpolation: cubic, nearest to filter {number} of PIL")
    said |= _filter(_FILTERS.get(number, "cubic"))
    if said.setdefault("color", "rgb") == "rgb" and processor.get("do_flip_channel_order") is True:
        said["color"] = "bgr"
    said["mean"], said["scale"] = _normalization(processor, where)
    return spec, said, assumed


def _share(size: Mapping[str, int], height: int | None, width: int | None) -> float | None:
    """Return the share of both sides of *size* that is cut out; None if it is not the same."""
    if not height or not width or not size.get("height") or not size.get("width"):
        return None
    share = height / size["height"]
    return share if share <= 1 and share == width / size["width"] else None


def _kind(processor: Mapping[str, Any]) -> str:
    """Return the name of a processor's class; "" if an old file lacks it."""
    name = processor.get("image_processor_type") or processor.get("feature_extractor_type")
    return str(name or "")


def _enlarged(edge: int, kind: str, processor: Mapping[str, Any], where: str) -> int:
    """Return the size of the shorter edge before cropping, if that is more than `size`."""
    if "Levit" in kind:
        return int(_LEVIT_ENLARGED * edge)
    crop = processor.get("crop_pct", _POOLFORMER_CROP)
    share = 1.0 if crop is None else _number(crop, "crop_pct", where)
    if not 0 < share <= 1:
        raise ModelError(f"{where}: {PREPROCESSOR}: crop_pct: expected a share of 1, found {crop}")
    return int(edge / share)


def _normalization(processor: Mapping[str, Any], where: str) -> tuple[list[float], list[float]]:
    """Return mean and scale in units of 0..255 from factor, offset, mean and deviation."""
    factor, offset = 1.0, 0.0
    if processor.get("do_rescale", True) is not False:
        factor = _number(processor.get("rescale_factor", 1 / 255), "rescale_factor", where)
        offset = 1.0 if processor.get("rescale_offset") is True else 0.0
    if factor <= 0:
        raise ModelError(f"{where}: {PREPROCESSOR}: rescale_factor: must be above 0")
    means, deviations = [0.0], [1.0]
    if processor.get("do_normalize") is True:
        means = _numbers(processor.get("image_mean"), "image_mean", where)
        deviations = _numbers(processor.get("image_std"), "image_std", where)
    elif processor.get("do_normalize") is None and processor.get("image_mean") is not None:
        raise ModelError(
            f"{where}: {PREPROCESSOR}: do_normalize: is missing, and without it image_mean may "
            "count or not; say true or false"
        )
    if processor.get("include_top", "EfficientNet" in _kind(processor)) is True:
        # Its processor divides by the deviation again, whatever do_normalize says.
        again = _numbers(processor.get("image_std"), "image_std", where)
        deviations = again if deviations == [1.0] else [value * value for value in again]
    return [_short((mean + offset) / factor) for mean in means], [
        _short(deviation / factor) for deviation in deviations
    ]


def _short(value: float) -> float:
    """Round away the error of 1/255: 127.49999999999999 becomes 127.5."""
    return round(value, 6)


def _filter(kind: str) -> Said:
    # PIL filters when it downscales.
    return {"interpolation": kind, "antialias": kind in {"linear", "cubic"}}


def _crop(share: float) -> Said:
    return {"resize": "crop", "crop_ratio": round(min(share, 1.0), 6)}


def _settle_size(said: Said, spec: TensorSpec, height: Any, width: Any, where: str) -> None:
    """Add the size if the network leaves it open; otherwise check that it agrees."""
    have_width, have_height = infer_layout.picture_size(spec, said["layout"])
    for key, have, want in (("width", have_width, width), ("height", have_height, height)):
        if have is None and want is None:
            raise ModelError(
                f"{where}: {key}: the input {spec} leaves it open, and the files beside it do not "
                f"say it; give input.{key} in a model.toml"
            )
        if have is None:
            said[key] = int(want)
        elif want is not None and have != want:
            raise ModelError(
                f"{where}: the files beside it say {key} {want}, but its input is {spec}; they "
                "belong to another network"
            )


def _size(given: Any, *, as_edge: bool, where: str) -> dict[str, int]:
    """Read a size, which older processors wrote as one number."""
    if isinstance(given, bool) or given is None:
        return {}
    if isinstance(given, int):
        return {"shortest_edge": given} if as_edge else {"height": given, "width": given}
    if isinstance(given, dict) and all(type(side) is int and side > 0 for side in given.values()):
        return dict(given)
    raise ModelError(f"{where}: {PREPROCESSOR}: size: expected numbers, found {str(given)[:60]}")


def _classes(labels: tuple[str, ...], facts: NetworkFacts, where: str) -> Said:
    outputs = [one for one in facts.outputs if len(one.shape) == 2]
    if not outputs or outputs[0].shape[1] not in {None, len(labels)}:
        found = ", ".join(map(str, facts.outputs))
        raise ModelError(
            f"{where}: expected an output of {len(labels)} classes, as {CONFIG} has labels, found "
            f"{found}"
        )
    output: Said = {"decoder": "logits", "labels": labels}
    if len(facts.outputs) > 1:
        output["names"] = {"scores": outputs[0].name}
    return output


def _labels(config: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], bool]:
    """Read `id2label`; also return whether the labels are placeholders with numbers."""
    names = config.get("id2label")
    if not isinstance(names, dict) or not 0 < len(names) <= MAX_LABELS:
        raise ModelError(
            f"{where}: {CONFIG}: id2label: expected a label for each class; write a labels.txt, "
            "one a line, and a model.toml that names it"
        )
    try:
        labels = tuple(str(names[str(index)]) for index in range(len(names)))
    except KeyError as missing:
        raise ModelError(f"{where}: {CONFIG}: id2label: {missing} is missing") from None
    return labels, all(label == f"LABEL_{index}" for index, label in enumerate(labels))


def _number(given: Any, key: str, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ModelError(f"{where}: {key}: expected a number, found {str(given)[:60]}")
    return float(given)


def _numbers(given: Any, key: str, where: str) -> list[float]:
    values = given if isinstance(given, list) else [given]
    return [_number(value, key, where) for value in values]


def _folders(network: Path) -> list[Path]:
    above = network.absolute().parent
    return [above, above.parent] if above.name == "onnx" else [above]


def read_beside(path: Path, kind: type[Any] = dict) -> Any:
    """Read a JSON object, or a list; returns None if there is no such file.

    Raises:
        ModelError: it is too large, not JSON, or of the other kind.
    """
    if not path.is_file():
        return None
    try:
        read = json.loads(read_plain_file(path, MAX_BYTES, ModelError, "a configuration"))
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is not valid JSON") from None
    if not isinstance(read, kind):
        raise ModelError(f"{path}: expected a JSON {'list' if kind is list else 'object'}")
    return read
