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
"""In the metadata of an IR: begins what its converter was asked for."""
PUT_INSIDE = ("mean_values", "scale_values", "scale", "reverse_input_channels")
"""The entries there that name pixel operations inside the network."""


@record(kw_only=True)
class NetworkFacts:
    """The facts in a network's file."""

    kind: Literal["onnx", "ir", "tflite"]
    files: tuple[Path, ...]
    """The file itself, then those that hold its weights."""
    inputs: tuple[TensorSpec, ...]
    """Without initializers."""
    outputs: tuple[TensorSpec, ...]
    makers: Mapping[str, str]
    """By name of an output: the type of the operator whose numbers it gives."""
    metadata: Mapping[str, str]
    """ONNX: `metadata_props`. IR: `rt_info`, a path of tags joined by spaces = value; what older
    ones have in `meta_data` of their conversion, likewise. TensorFlow Lite: its description and the
    texts among its entries."""
    nodes: int
    operators: frozenset[str]
    """Types of its nodes; of other domains than ONNX's own with the domain before a dot."""
    weight_bytes: int
    quantized: bool
    """Whether it computes with integers."""
    steps: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """By name of an input or output, where the file says it: scale and zero point."""
    ends: Mapping[str, str] = field(default_factory=dict)
    """As `makers`, of the last part where parts are joined, and before a bias."""


# Operators that only reshape, retype or rescale what the one before them made.
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
JOINED = NEUTRAL | {"Add", "Concat"}


def maker_of(
    output: T, made: Callable[[T], tuple[str, T] | None], neutral: frozenset[str] = NEUTRAL
) -> str:
    """Return the type of the operator that computes an output's numbers; empty: none does.

    Args:
        output: a tensor, or what else stands for it.
        made: returns the operator that makes a tensor, and its first input, of a Concat the last;
            None: nothing does.
        neutral: operators that are passed over.
    """
    seen: set[T] = set()
    while output not in seen and (found := made(output)) is not None:
        seen.add(output)
        operator, output = found
        if operator not in neutral:
            return operator
    return ""


# OpenVINO's names of types = NumPy's.
OPENVINO_TYPES: Mapping[str, str] = {
    "boolean": "bool",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


@record
class Draft:
    """A manifest, as far as a network's shapes tell it."""

    family: str
    """The apparent family of the network, in words."""
    keys: Mapping[str, Any]
    """The keys of a manifest besides name, version and file; some may be missing if there are
    questions."""
    assumed: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    """Questions that keep it from being a manifest: a key, and the choices. Empty: it is one."""
