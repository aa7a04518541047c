"""Finds the quantization at an ONNX network's input that can be cut off without changing a number.

The nodes between the input and its quantization may move numbers, but not change them. Other
networks are left unchanged, and the reason is returned.
"""

from __future__ import annotations

import logging
import math
import struct
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...core.errors import ModelError
from ...core.types import Kind
from ...models.decoders import DECODERS
from ...models.files.external_weights import parse_graph
from ...models.files.onnx_reader import map_file
from ...models.files.onnx_schema import FLOAT, INT8, UINT8
from ...models.manifest import ModelFolder
from .cut import InputCut
from .fold import Fold

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

log = logging.getLogger(__name__)

MOST = 64
"""Most tensors between an input and its quantization: YOLOX, which slices the picture, has 7."""

_ONNX = frozenset({"", "ai.onnx"})
_QUANTIZERS = frozenset({*_ONNX, "com.microsoft"})
# Operators that pass on their numbers unchanged, whatever their type …
_MOVERS = frozenset(
    {"Concat", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
# … and operators that do not use the numbers.
_SIZES = frozenset({"Shape", "Size"})
# Engines fuse these into convolutions.
_CLAMPS = frozenset({"Clip", "Relu"})
_ATTRIBUTES = frozenset({"axis", "saturate", "output_dtype", "block_size"})
_FORMS: Mapping[int, str] = {FLOAT: "<f", UINT8: "<B", INT8: "<b"}
"""Format of a number for `struct`, by TensorProto.DataType."""


def cut_for(folder: ModelFolder, kind: Kind) -> InputCut | None:
    """Find the cut for the network of a model, or return None and log why there is none.

    Only for pictures, whose pixels have few values, and only if the decoder does not compare the
    outputs with the inputs, because it would need their numbers.
    """
    spec = folder.manifest.input
    if kind != "picture" or DECODERS[folder.manifest.decoder].compares_input:
        return None
    found = find(folder.network, spec.tensor, spec.fixed)
    if isinstance(found, str):
        log.debug("model %s: its input is not folded: %s", folder.manifest.id, found)
        return None
    return found


def find(
    network: Path, tensor: str | None = None, constants: Container[str] = ()
) -> InputCut | str:
    """Find the quantization that can be cut off; or return why none can be.

    Args:
        network: an ONNX file.
        tensor: the input that takes the sample; None: the only one that is not constant.
        constants: names of inputs that always get the same values.
    """
    if network.suffix.lower() != ".onnx":
        return f"{network.name} is no ONNX file"
    try:
        with map_file(network) as data:
            graph = parse_graph(data, network.name).graph
        return _find(graph, network, tensor, constants)
    except UnfoldableError as reason:
        return str(reason)
    except (ModelError, IndexError) as problem:
        # Loading it reports the problem.
        return f"{network.name} cannot be looked into: {problem}"


def _find(
    graph: GraphProto, network: Path, tensor: str | None, constants: Container[str]
) -> InputCut:
    known = {each.name for each in graph.initializer}
    inputs = {each.name: each.type.tensor_type for each in graph.input if each.name not in known}
    names = [name for name in inputs if name not in constants]
    if tensor is not None:
        names = [name for name in names if name == tensor]
    if len(names) != 1:
        raise UnfoldableError(f"{len(names)} inputs might take the sample")
    (given,) = names
    if inputs[given].elem_type != FLOAT:
        raise UnfoldableError(f"{given} does not take float32")
    way = _Way(graph, given)
    scale, zero = way.step
    fold = Fold(given, "int8" if zero.dtype == INT8 else "uint8", scale.value, int(zero.value))
    back = None if way.back is None else frozenset(way.back)
    sizes = [size.dim_value for size in inputs[given].shape.dim]
    convolved = len(sizes) == 4 and sizes[1] == 3 and way.convolved()
    return InputCut(network, fold, way.quantizers, frozenset(way.passed), back, convolved)


class UnfoldableError(Exception):
    """Why the input is left unchanged."""


class Scalar(NamedTuple):
    """A tensor of one number."""

    dtype: int
    """TensorProto.DataType."""
    value: float


class _Way:
    """The nodes between an input and its quantization."""

    def __init__(self, graph: GraphProto, given: str) -> None:
        """Follow an input to its quantization.

        Raises:
            UnfoldableError: some of its numbers are used directly, or quantized differently.
        """
        self._nodes = graph.node
        self._outputs = {each.name for each in graph.output}
        self._constants: dict[str, TensorProto] = {each.name: each for each in graph.initializer}
        self._makers: dict[str, NodeProto] = {}
        self._positions: dict[str, list[int]] = defaultdict(list)
        """By tensor: the indices of the nodes that take it."""
        self._within: dict[str, str] = {}
        """By tensor: the operator that takes it within a branch or loop."""
        for position, node in enumerate(graph.node):
            self._index(position, node)
        self.passed = [given]
        self.quantizers: dict[int, tuple[str, str]] = {}
        self.back: set[int] | None = set()
        self._shape_is_read = False
        self.step = self._follow()

    def _index(self, position: int, node: NodeProto) -> None:
        for name in dict.fromkeys(node.input):
            self._positions[name].append(position)
        self._makers.update(dict.fromkeys(node.output, node))
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                self._constants[node.output[0]] = attribute.t
            for inner in _graphs(attribute):
                self._within.update(dict.fromkeys(_taken(inner), node.op_type))

    def _follow(self) -> tuple[Scalar, Scalar]:
        """Follow the numbers; return the scale and zero point with which all are quantized."""
        steps: set[tuple[Scalar, Scalar]] = set()
        joined: set[str] = set()
        for name in self.passed:  # it grows meanwhile
            if name in self._outputs:
                raise UnfoldableError(f"{name} is an output, too")
            if len(self.passed) > MOST:
                raise UnfoldableError(f"more than {MOST} tensors lie before its quantization")
            for position, node in self._users(name):
                if node.op_type == "QuantizeLinear" and node.domain in _QUANTIZERS:
                    steps.add(self._quantizer(position, node, name))
                elif node.op_type in _MOVERS and node.domain in _ONNX:
                    others = node.input[1:] if node.input[0] == name else node.input
                    if node.op_type == "Concat":
                        joined.update(node.input)
                    elif name in others:
                        raise UnfoldableError(f"{node.op_type} goes by {name}")
                    if node.output[0] not in self.passed:
                        self.passed.append(node.output[0])
                elif node.op_type in _SIZES and node.domain in _ONNX:
                    self._shape_is_read = True
                else:
                    raise UnfoldableError(f"{node.op_type} takes {name} as it is")
        if joined - set(self.passed):
            raise UnfoldableError("other numbers are joined to the input's before they are steps")
        if len(steps) != 1:
            raise UnfoldableError("is quantized in several ways" if steps else "is not quantized")
        return steps.pop()

    def _users(self, name: str) -> list[tuple[int, NodeProto]]:
        """List the nodes that take a tensor, with their indices."""
        if name in self._within:
            raise UnfoldableError(f"{name} is used within {self._within[name]}")
        return [(position, self._nodes[position]) for position in self._positions.get(name, ())]

    def convolved(self) -> bool:
        """Whether the steps are only used by an eight-bit convolution."""
        if self._shape_is_read or len(self.passed) > 1 or len(self.quantizers) != 1:
            return False
        ((_, steps),) = self.quantizers.values()
        users = [node for _, node in self._users(steps)]
        if self.back:
            users = [after for user in users for _, after in self._users(user.output[0])]
        return bool(users) and all(self._in_eight_bits(user) for user in users)

    def _in_eight_bits(self, node: NodeProto) -> bool:
        """Whether a convolution is computed in eight bits: weights and result are quantized."""
        if node.op_type == "QLinearConv":
            return True
        if node.op_type != "Conv":
            return False
        weights = self._makers.get(node.input[1])
        after = self._users(node.output[0])
        if len(after) == 1 and after[0][1].op_type in _CLAMPS:
            after = self._users(after[0][1].output[0])
        return (
            weights is not None
            and weights.op_type == "DequantizeLinear"
            and [each.op_type for _, each in after] == ["QuantizeLinear"]
        )

    def _quantizer(self, position: int, node: NodeProto, name: str) -> tuple[Scalar, Scalar]:
        """Return the scale and zero point of a quantization, and check that the path ends there."""
        if node.input[0] != name or name in node.input[1:]:
            raise UnfoldableError("the input is a scale")
        numbers = {each.name: each.i for each in node.attribute}
        if not numbers.keys() <= _ATTRIBUTES or numbers.get("block_size"):
            raise UnfoldableError("its quantization is of another kind")
        scale = self._scalar(node.input[1])
        if len(node.input) > 2 and node.input[2]:
            zero = self._scalar(node.input[2])
        else:
            zero = Scalar(numbers.get("output_dtype") or UINT8, 0)
        fits = scale.dtype == FLOAT and 0 < scale.value < math.inf and zero.dtype in {UINT8, INT8}
        if not fits:
            raise UnfoldableError("its quantization is not to eight bits of float32")
        (steps,) = node.output
        if steps in self._outputs:
            raise UnfoldableError("its steps are an output, too")
        self.quantizers[position] = (name, steps)
        # ONNX Runtime merges two consecutive quantizations, which changes numbers.
        for place, user in self._users(steps):
            back = user.op_type == "DequantizeLinear"
            if back and any(
                after.op_type == "QuantizeLinear" for _, after in self._users(user.output[0])
            ):
                raise UnfoldableError("it is quantized twice")
            if not (back and len(user.input) > 2 and user.input[1:] == node.input[1:]):
                self.back = None
            elif self.back is not None:
                self.back.add(place)
        return scale, zero

    def _scalar(self, name: str) -> Scalar:
        """Return a constant of one number."""
        tensor = self._constants.get(name)
        if tensor is None:
            raise UnfoldableError(f"{name} is not one number that is known")
        form = _FORMS.get(tensor.data_type)
        if form is not None and all(size == 1 for size in tensor.dims):
            numbers = tensor.float_data if tensor.data_type == FLOAT else tensor.int32_data
            if len(tensor.raw_data) == struct.calcsize(form):
                numbers = struct.unpack(form, tensor.raw_data)
            if len(numbers) == 1:
                return Scalar(tensor.data_type, numbers[0])
        raise UnfoldableError(f"{name} is not one number for the whole input")


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _taken(graph: GraphProto) -> Iterator[str]:
    """Yield the tensors that a graph within a node uses, its own included."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                yield from _taken(inner)
    yield from (value.name for value in graph.output)
