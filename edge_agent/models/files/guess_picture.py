"""What all guesses for picture networks share: their input, and a detector's draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.types import TensorSpec
from . import infer_layout
from .facts import CONVERSION, PUT_INSIDE, Draft, NetworkFacts

# How a converter writes an option that was not given.
_NOT_PUT = frozenset({"", "()", "[]", "{}", "None", "False"})

COLORS = (
    'input.color, input.mean and input.scale: as in training; usual are "rgb" with mean '
    "[123.675, 116.28, 103.53] and scale [58.395, 57.12, 57.375] (PyTorch), with 0 and 255, with "
    '127.5 and 127.5 (TensorFlow), and "bgr" with 0 and 1'
)
RESIZE = (
    "input.resize: stretch, letterbox or crop, as in training; with interpolation, antialias (of "
    "PIL and torchvision), crop_ratio and rounding as its own code has them"
)
CHANCES = frozenset({"Softmax", "SoftMax", "Sigmoid"})
DENSE = frozenset({"Gemm", "MatMul", "FullyConnected", *CHANCES})
"""Operators that a classifier ends in, before a bias."""
LABELS = "output.labels: the names of the classes, in the order of training"


@dataclass(frozen=True, slots=True)
class Picture:
    """A network that takes one picture."""

    facts: NetworkFacts
    input: TensorSpec
    given: dict[str, Any]
    """Keys under [input] that follow from the shape."""
    outputs: Mapping[str, TensorSpec] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", {one.name: one for one in self.facts.outputs})

    @property
    def said(self) -> dict[str, Any]:
        return dict(self.given)

    @property
    def only(self) -> tuple[int, ...]:
        """The shape of the only output; () if there are several, or it leaves a size open.

        An open batch counts as 1.
        """
        # Early exports of YOLOv5 also have its heads, which are not decoded.
        outputs = [one for one in self.facts.outputs if len(one.shape) != 5]
        if len(outputs) != 1:
            return ()
        batch, *sizes = outputs[0].shape or (0,)
        known = [size for size in sizes if size is not None]
        return (batch or 1, *known) if len(known) == len(sizes) else ()

    def cells(self, *strides: int, anchors: Mapping[int, int] | None = None) -> int | None:
        """Return the number of cells at these strides; None if the picture's size is open."""
        width, height = infer_layout.picture_size(self.input, self.given["layout"])
        if width is None or height is None:
            return None
        return sum(
            -(-width // stride) * -(-height // stride) * (1 if anchors is None else anchors[stride])
            for stride in strides
        )


def detector(
    picture: Picture,
    family: str,
    input_: Mapping[str, Any],
    output: Mapping[str, Any],
    *left: str,
    words: str = "",
) -> Draft:
    """Make a detector's draft; its assumptions are the given values.

    *words*, if given, say how pictures are prepared, whatever the IR does itself.
    """
    inside = [] if words else inside_of(picture.facts)
    assumed = [f"family: {family}, by the output {', '.join(map(str, picture.facts.outputs))}"]
    if inside:
        names = " and ".join(inside)
        before = _before(input_, inside)
        if before is None:
            question = (
                f"input.color, input.mean and input.scale: its converter has put {names} inside, "
                f"which does not tell what {family} is given before that"
            )
            left = (question, *left)
        else:
            input_ = before
            assumed.append(f"input: {names} inside already, as its converter has written into it")
    made = {"task": "detection", "input": {**picture.said, **input_}, "output": dict(output)}
    if input_:
        assumed.append(f"input: {words or _in_words(input_)}, as its own code has it")
    if "threshold" in output:
        iou = f", iou: {output['iou']}" if "iou" in output else ""
        assumed.append(f"threshold: {output['threshold']}{iou}, as its own demo has it")
    if "labels" not in output:
        assumed.append("labels: none are known, so classes are called by their numbers")
    return Draft(family, made, tuple(assumed), left)


def inside_of(facts: NetworkFacts) -> list[str]:
    """List the pixel preprocessing that the converter built into an IR."""
    said = facts.metadata
    return [
        key for key in PUT_INSIDE if said.get(f"{CONVERSION} {key}", "").strip() not in _NOT_PUT
    ]


def _before(input_: Mapping[str, Any], inside: list[str]) -> dict[str, Any] | None:
    """Return the keys still to be applied before the network, or None if they are unknown.

    Operations inside are assumed to be the family's own, so each must be one of its keys.
    """
    made = dict(input_)
    turned, mean = "reverse_input_channels" in inside, "mean_values" in inside
    scale = "scale_values" in inside or "scale" in inside
    if not {"mean", "scale"} & made.keys():
        # Raw pixels: the family was trained otherwise, so all preprocessing is inside.
        return made if turned and (mean or scale) else None
    for key, put in (("mean", mean), ("scale", scale)):
        if put and made.pop(key, None) is None:
            return None
    if mean and "scale" in made:
        return None  # the mean is subtracted first
    if turned:
        if any(isinstance(made.get(key), list) for key in ("mean", "scale")):
            return None
        made["color"] = {"rgb": "bgr", "bgr": "rgb"}[made["color"]]
    return made


def _in_words(input_: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in input_.items())
