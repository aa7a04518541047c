"""Changes to OpenVINO's graph of a network before it is compiled for the CPU.

`cut_quantizer` makes the cut of `folding` in it. There a quantization is two operations: one rounds
floats to 256 steps, one converts them to bytes.

`join` rewrites two patterns that OpenVINO computes slowly on the CPU: on two x86 cores, both
together bring rfb320 INT8 from 2.1 ms to 1.45.

Quantizers put a rounding before an activation and another after it. OpenVINO computes the first
with the convolution, and the rest in a separate pass over the convolution's whole output. Written
as a product, a rounding, and a clamp, it is computed with the convolution, too. A sum halfway
between two steps may then be rounded to the other one, which is as close to what ONNX defines.

A softmax over two classes at thousands of places is computed place by place, with a vector register
of sixteen numbers for each; over the first axis it takes a sixth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13

from ...device.resources import SAFE_WEIGHT
from ..folding.fold import FIRST, LAST, Fold

_CONVOLUTIONS = frozenset({"Convolution", "GroupConvolution", "MatMul"})
# Not Clamp, which OpenVINO joins by itself.
_ACTIVATIONS = frozenset({"Elu", "HSwish", "PRelu", "Relu", "Sigmoid", "Tanh"})
_STEPS = {ov.Type.u8: (0, 255), ov.Type.i8: (-128, 127)}
FEW = 8
"""Most classes of a softmax that is rewritten; from 12 on the gain is less than half, with 90 it is
a loss."""
PLACES = 16
_MOVERS = frozenset(
    {"Concat", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose", "Unsqueeze"}
)
_TYPES = {"uint8": ov.Type.u8, "int8": ov.Type.i8}
MOST = 64
"""The same limit as in `inference.folding.find`."""


def cut_quantizer(model: ov.Model, fold: Fold) -> bool:
    """Make a model take bytes if its graph is as expected; return whether it was.

    Args:
        model: the model as read; changed in place, or not at all.
        fold: the fold found in the ONNX file.
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
        # After the conversion of bytes to floats: before it, OpenVINO would convolve floats.
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
    """Find the operations that round and convert to bytes; None if the input has other uses."""
    limits = _STEPS[_TYPES[fold.dtype]]
    found = []
    ways = [given.output(0)]
    for way in ways:  # it grows meanwhile
        for user in _users(way):
            kind = user.get_type_name()
            if kind == "FakeQuantize":
                makers = _targets(user.output(0))
                rounds = _rounds(user, fold.scale, fold.zero_point, limits)
                if not (rounds and makers and all(_makes(maker, fold) for maker in makers)):
                    return None
                found += [(user, maker) for maker in makers]
            elif kind not in _MOVERS:
                return None
            # These have been checked in the file itself: only the type is new here.
            elif user.output(0) not in ways:
                ways.append(user.output(0))
        if len(ways) > MOST:
            return None
    return found


def _floats(given: Any, quantizers: list[tuple[Any, Any]]) -> Any | None:
    """Find the operation that converts the bytes to floats, if the input has no other users."""
    if len(quantizers) > 1 or len(_targets(given.output(0))) > 1:
        return None
    node = quantizers[0][1]
    for wanted in ("Convert", "Subtract", "Multiply"):
        user = _only(_targets(node.output(0)))
        if user is None:
            return None
        if user.get_type_name() == wanted:
            node = user
        elif wanted != "Subtract":  # absent if the zero point is 0
            return None
        # One number per channel would then be along another axis.
        if any(np.prod(each.get_shape()) != 1 for each in node.input_values()[1:]):
            return None
    return node


def _makes(node: Any, fold: Fold) -> bool:
    """Whether a node converts steps to bytes."""
    kind: str = node.get_type_name()
    return kind == "Convert" and node.get_output_element_type(0) == _TYPES[fold.dtype]


def join(model: ov.Model) -> int:
    """Rewrite a model in place; return the number of rewrites.

    Args:
        model: the model as read, with fixed shapes; to run on the CPU, in f32.
    """
    joined = 0
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "FakeQuantize":
            joined += _join_rounding(node)
        elif kind == "Softmax":
            joined += _turn_softmax(node)
    if joined:
        model.validate_nodes_and_infer_types()
    return joined


def may_saturate(model: ov.Model) -> bool:
    """Whether eight-bit weights are so large that x86 without VNNI saturates their sums."""
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind == "Constant" and node.get_output_element_type(0) == ov.Type.i8:
            steps = node.data
            if steps.size and max(int(steps.max()), -int(steps.min())) > SAFE_WEIGHT:
                return True
        # Weights that are still floats, and will become bytes of the full range.
        if kind == "FakeQuantize" and node.input_value(0).get_node().get_type_name() == "Constant":
            return True
    return False


class _Rounding(NamedTuple):
    """A quantization to bytes and back to floats."""

    scale: np.float32
    zero_point: int
    limits: tuple[int, int]
    back: Any
    """The node that gives the floats."""


def _join_rounding(node: Any) -> bool:
    """Fuse a rounding, and the activation after it, into the convolution before it."""
    rounding = _rounding(node)
    if rounding is None or not _convolved(node.input_value(0)):
        return False
    # A scale with more dimensions than the numbers adds these to the result.
    if rounding.back.get_output_partial_shape(0) != node.input_value(0).get_partial_shape():
        return False
    activation = _only(_users(rounding.back.output(0)))
    if activation is None or activation.get_type_name() not in _ACTIVATIONS:
        return False
    # For users that take floats, the convolution would have to write four times the bytes.
    after = _users(activation.output(0))
    if not after or any(each.get_type_name() != "FakeQuantize" for each in after):
        return False
    scale, zero, (low, high) = rounding[:3]
    steps = opset13.multiply(node.input_value(0), _constant(np.float32(1) / scale))
    steps = opset13.round(steps, "half_to_even")
    steps = opset13.clamp(steps, float(low - zero), float(high - zero))
    floats = opset13.multiply(steps, _constant(scale))
    rounding.back.output(0).replace(floats.output(0))
    return True


def _rounding(node: Any) -> _Rounding | None:
    """Return a quantization whose result is used only as floats, or None if it is another."""
    there = _only(_users(node.output(0)))
    if there is None or there.get_type_name() != "Convert":
        return None
    limits = _STEPS.get(there.get_output_element_type(0))
    back = _only(_users(there.output(0)))
    if limits is None or back is None or back.get_output_element_type(0) != ov.Type.f32:
        return None
    last, zero = _only(_users(back.output(0))), 0.0
    if last is not None and last.get_type_name() == "Subtract":
        found = _number(last.input_value(1))
        if found is None:
            return None
        last, zero = _only(_users(last.output(0))), found
    if last is None or last.get_type_name() != "Multiply":
        return None
    scale = _number(last.input_value(1))
    if scale is None or not scale > 0 or not zero.is_integer():
        return None
    fits = _rounds(node, scale, zero, limits)
    return _Rounding(np.float32(scale), int(zero), limits, last) if fits else None


def _convolved(value: Any) -> bool:
    """Whether a value is the output of a convolution, or of the addition of its bias."""
    node = value.get_node()
    if node.get_type_name() == "Add" and len(_users(value)) == 1:
        sides = [node.input_value(index) for index in (0, 1)]
        # A bias is recognized by its shape: it is not yet a constant.
        value = next((sides[1 - index] for index in (0, 1) if _each_channel(sides[index])), value)
        node = value.get_node()
    return len(_users(value)) == 1 and node.get_type_name() in _CONVOLUTIONS


def _each_channel(value: Any) -> bool:
    """Whether a value has one number for each channel."""
    shape = value.get_partial_shape()
    if shape.is_dynamic:
        return False
    sizes = list(value.get_shape())
    return len(sizes) < 2 or np.prod(sizes) == sizes[1]


def _turn_softmax(node: Any) -> bool:
    """Compute a softmax over few classes for many places at once, not place by place."""
    shape = node.get_output_partial_shape(0)
    if shape.is_dynamic or len(shape) < 2:
        return False
    sizes, last = list(node.get_output_shape(0)), len(shape) - 1
    if node.get_attributes()["axis"] not in {-1, last}:
        return False
    if not 1 < sizes[-1] <= FEW or np.prod(sizes[:-1]) < PLACES:
        return False
    axes = [*range(last - 1), last, last - 1]
    turned = opset13.transpose(node.input_value(0), opset13.constant(axes))
    shares = opset13.softmax(turned, last - 1)
    back = opset13.transpose(shares, opset13.constant(axes))
    back.set_friendly_name(node.get_friendly_name())
    node.output(0).replace(back.output(0))
    return True


def _targets(output: Any) -> list[Any]:
    """List the nodes that an output goes to."""
    return [target.get_node() for target in output.get_target_inputs()]


def _users(output: Any) -> list[Any]:
    """List the nodes that read an output's values; ShapeOf does not."""
    return [node for node in _targets(output) if node.get_type_name() != "ShapeOf"]


def _only(nodes: Sequence[Any]) -> Any | None:
    """Return the only node, or None if there are none or several."""
    return nodes[0] if len(nodes) == 1 else None


def _rounds(node: Any, scale: float, zero: float, limits: tuple[int, int]) -> bool:
    """Whether a FakeQuantize rounds floats to the eight-bit steps given by scale and zero."""
    bounds = [_number(node.input_value(index)) for index in range(1, 5)]
    wanted = [*(scale * (limit - zero) for limit in limits), *limits]
    width = wanted[1] - wanted[0]
    return node.get_attributes()["levels"] == 256 and all(
        bound is not None and np.isclose(bound, want, rtol=1e-5, atol=1e-5 * width)
        for bound, want in zip(bounds, wanted, strict=True)
    )


def _number(value: Any) -> float | None:
    """Return the value of a constant of one number, whatever its type; None: it is not one."""
    node = value.get_node()
    while node.get_type_name() in {"Convert", "Reshape", "Unsqueeze"}:
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant" or node.data.size != 1:
        return None
    return float(node.data.reshape(()))


def _constant(value: np.float32) -> Any:
    return opset13.constant(np.array(value, np.float32))
