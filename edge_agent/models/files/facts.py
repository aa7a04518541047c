"""The facts that a network's file states without being run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ...core.frozen import record
from ...core.types import TensorSpec

T = TypeVar("T")

CONVERSION = "conversion_parameters"
"""Prefix of the converter's options in an IR's metadata."""
FRAMEWORK = f"{CONVERSION} framework"
"""What was converted: `tf`, `caffe`, `onnx` and others."""
PUT_INSIDE = ("mean_values", "scale_values", "scale", "reverse_input_channels")
"""The options that name pixel operations inside the network."""


@record(kw_only=True)
class NetworkFacts:
    """The facts in a network's file."""

    kind: Literal["onnx", "ir", "tflite"]
    files: tuple[Path, ...]
    """The file itself, then those with its weights."""
    inputs: tuple[TensorSpec, ...]
    """Inputs, without initializers."""
    outputs: tuple[TensorSpec, ...]
    makers: Mapping[str, str]
    """By name of an output: the type of the operator that computes its numbers."""
    metadata: Mapping[str, str]
    """ONNX: `metadata_props`. IR: `rt_info`, values by their path of tags joined with spaces; for
    older ones, the same of `meta_data`. TensorFlow Lite: its description and the texts among its
    entries."""
    nodes: int
    operators: frozenset[str]
    """Types of its nodes; those of domains other than ONNX's begin with the domain and a dot."""
    weight_bytes: int
    quantized: bool
    """Whether it computes with integers."""
    steps: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Scale and zero point by name of an input or output, if the file has them."""
    coarse: Mapping[str, float] = field(default_factory=dict)
    """By name of an output of floats: the step between its numbers, which were integers."""
    ends: Mapping[str, str] = field(default_factory=dict)
    """Like `makers`, but for the last of concatenated parts, and before a bias."""
    classes: tuple[str, ...] = ()
    """The classes' names, where a classifier of scikit-learn's kind states them."""
    detected: Mapping[str, str] = field(default_factory=dict)
    """By role of decoder ssd: the outputs of TensorFlow Lite's detection post-processing."""


IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
"""Inputs of networks for texts, as all exporters name them for Hugging Face's models."""
MOST_INTEGER_SCALE = 16
"""Greatest divisor of pixels for an input of integers; floats are divided by 1, or 50 and more."""
# Operators that only reshape, retype, or rescale the output of the one before them.
NEUTRAL = frozenset(
    {
        "Cast",
        "Convert",
        "DequantizeLinear",
        "FakeQuantize",
        "Flatten",
        "Identity",
        "QuantizeLinear",
        "Reshape",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
_DIVISIONS = frozenset({"Div", "Divide"})
JOINED = NEUTRAL | {"Add", "Concat"}


def maker_of(
    output: T, made: Callable[[T], tuple[str, T] | None], neutral: frozenset[str] = NEUTRAL
) -> str:
    """Return the type of the operator that computes an output's numbers; empty: none does.

    A softmax may be spelled out: powers divided by their sum.

    Args:
        output: a tensor, or a value that identifies it.
        made: returns the operator that makes a tensor, and its first input, or for a Concat its
            last; None: nothing makes it.
        neutral: operators that are skipped.
    """
    seen: set[T] = set()
    while output not in seen and (found := made(output)) is not None:
        seen.add(output)
        operator, output = found
        if operator not in neutral:
            before = made(output) if operator in _DIVISIONS else None
            return "Softmax" if before is not None and before[0] == "Exp" else operator
    return ""


def takes_texts(facts: NetworkFacts) -> bool:
    """Whether a network takes the numbers of a text's tokens, as its inputs are named."""
    names = {one.name for one in facts.inputs}
    return IDS in names and names <= {IDS, MASK, TYPES}


# NumPy's names of types by OpenVINO's.
OPENVINO_TYPES: Mapping[str, str] = {
    "boolean": "bool",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


@record
class Draft:
    """A manifest, as far as it follows from a network's shapes."""

    family: str
    """The apparent family of the network, as text."""
    keys: Mapping[str, Any]
    """The keys of a manifest besides name, version, and file; if there are questions, some may be
    missing."""
    assumed: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    """Open questions, each a key and the choices; empty: the draft is a complete manifest."""
