"""The same cut in OpenVINO's graph, which an ONNX file has become while it was read.

There a quantization is two operations: one rounds floats to 256 steps, one makes bytes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from ..folding.fold import FIRST, LAST, Fold

_MOVERS = frozenset(
    {"Concat", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose", "Unsqueeze"}
)
_TYPES = {"uint8": ov.Type.u8, "int8": ov.Type.i8}
MOST = 64
"""As `inference.folding.cut` has it."""


def cut_quantizer(model: ov.Model, fold: Fold) -> bool:
    """Make a model take bytes if its graph is as expected; return whether it was.

    Args:
        model: as it was read; changed in place, or not at all.
        fold: found in the ONNX file.
    """
    given = next(
        (each for each in model.get_parameters() if fold.name in each.output(0).get_names()), None
    )
    if given is None or given.get_element_type() != ov.Type.f32:
        return False
    quantizers = _quantizers(given, fold)
    if not quantizers:
        return False
    shape = given.get_partial_shape()
    if fold.turned:
        floats = _floats(given, quantizers)
        if floats is None:
            return False
        # Behind what makes floats of the bytes: in front of it, OpenVINO convolves floats.
        turned = opset13.transpose(floats.output(0), opset13.constant(list(FIRST)))
        for user in floats.output(0).get_target_inputs():
            if user.get_node() != turned:
                user.replace_source_output(turned.output(0))
        shape = ov.PartialShape([shape[axis] for axis in LAST])
    for rounded, made in quantizers:
        made.output(0).replace(rounded.input_value(0))
    taken = opset13.parameter(shape, _TYPES[fold.dtype])
    taken.set_friendly_name(given.get_friendly_name())
    taken.output(0).set_names(given.output(0).get_names())
    given.output(0).replace(taken.output(0))
    model.replace_parameter(model.get_parameter_index(given), taken)
    model.validate_nodes_and_infer_types()
    return True


def _quantizers(given: Any, fold: Fold) -> list[tuple[Any, Any]] | None:
    """Find what rounds and what makes bytes; None where anything else is done with the input."""
    found = []
    ways = [given.output(0)]
    for way in ways:  # it grows meanwhile
        for user in _users(way):
            kind = user.get_type_name()
            if kind == "FakeQuantize":
                makers = list(_users(user.output(0)))
                if not (_is(user, fold) and makers and all(_makes(m, fold) for m in makers)):
                    return None
                found += [(user, maker) for maker in makers]
            elif kind in _MOVERS:
                # What the file itself says of these has been looked at: only the type is new here.
                if user.output(0) not in ways:
                    ways.append(user.output(0))
            elif kind != "ShapeOf":
                return None
        if len(ways) > MOST:
            return None
    return found


def _floats(given: Any, quantizers: list[tuple[Any, Any]]) -> Any | None:
    """Find what makes floats of the bytes, where that is all that is done with the input."""
    if len(quantizers) > 1 or len(list(_users(given.output(0)))) > 1:
        return None
    node = quantizers[0][1]
    for wanted in ("Convert", "Subtract", "Multiply"):
        users = list(_users(node.output(0)))
        if len(users) != 1:
            return None
        if users[0].get_type_name() == wanted:
            (node,) = users
        elif wanted != "Subtract":  # which a zero point of 0 does without
            return None
        # A number for each channel would lie along another axis then.
        if any(np.prod(each.get_shape()) != 1 for each in node.input_values()[1:]):
            return None
    return node


def _users(output: Any) -> Iterator[Any]:
    for target in output.get_target_inputs():
        yield target.get_node()


def _is(node: Any, fold: Fold) -> bool:
    """Whether it rounds to the steps of the fold."""
    limits = np.iinfo(fold.dtype)
    low, high = (
        np.float64(fold.scale) * (limit - fold.zero_point) for limit in (limits.min, limits.max)
    )
    wanted = (low, high, limits.min, limits.max)
    bounds = [node.input_value(index).get_node() for index in range(1, 5)]
    if node.get_attributes()["levels"] != 256:
        return False
    if any(b.get_type_name() != "Constant" or b.data.size != 1 for b in bounds):
        return False
    return all(
        np.isclose(float(bound.data.reshape(())), want, rtol=1e-5, atol=1e-5 * (high - low))
        for bound, want in zip(bounds, wanted, strict=True)
    )


def _makes(node: Any, fold: Fold) -> bool:
    """Whether it makes bytes of steps."""
    kind: str = node.get_type_name()
    return kind == "Convert" and node.get_output_element_type(0) == _TYPES[fold.dtype]
