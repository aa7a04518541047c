"""Pass: eight-bit weights with a zero point are centered on zero; the same sums, computed faster.

A converter that spreads 256 steps over the range of a layer's weights gives them a zero point
(TensorFlow's does, and ONNX Runtime's own with weights of type uint8). ONNX Runtime's fast kernels
are for weights without one. With the zero point subtracted, a layer has one or two weights, at the
end of the range, that no longer fit in eight bits. The channel that such a weight multiplies is
repeated, and the weight is split between the two: every sum stays the same, to the last bit. The
repeated channel comes from the previous layer, of which a row is repeated, and takes the same path
as the first.

TensorFlow Lite's MobileNetV2: 4.1 instead of 4.9 ms of one core per inference, though most of its
depthwise layers do not change: there, no sum goes over two channels. Carrying repeated channels
through those layers to the next ones lost more than it gained (416 instead of 485 inferences per
second on two cores).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....core.types import Array
from .mapped_network import Constants, MappedNetwork

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

FILE = "zero_point.bin"
_SAME_CHANNELS = frozenset(
    {"Clip", "DequantizeLinear", "LeakyRelu", "MaxPool", "QuantizeLinear", "Relu"}
)
"""Operations that treat each channel of their first input alike, and round nothing: sums and
approximations might be computed in another order if there are more channels."""
_JOIN = frozenset({"Add", "Mul"})
"""Operations on corresponding channels of two inputs."""
_LEAST, _MOST = -128, 127
_SHARE = 8
"""One in this many channels may be repeated; more would cost more than they save."""
_TOGETHER = 4
"""Channels that ONNX Runtime's kernels multiply together; the number must be a multiple."""
_EIGHT_BITS = (2, 3)


@dataclass
class _Space:
    """A set of tensors that have the same channels."""

    tensors: set[str] = field(default_factory=set)
    repeated: list[int] = field(default_factory=list)
    """The channels that are repeated, after the others, in this order."""
    idle: int = 0
    """How many padding channels follow them."""

    def repeat(self, channels: list[int], of: int) -> bool:
        """Repeat channels unless they become too many; return whether they are repeated."""
        more = [channel for channel in channels if channel not in self.repeated]
        if len(self.repeated) + len(more) > max(1, of // _SHARE):
            return False
        self.repeated += more
        self.idle = -(of + len(self.repeated)) % _TOGETHER
        return True


@dataclass
class _Layer:
    """A convolution whose weights are eight-bit steps."""

    node: NodeProto
    weights: NodeProto
    """The node that dequantizes the weights."""
    bias: NodeProto | None
    """The node that dequantizes the bias; None: there is no bias, or it is not quantized."""
    steps: Array
    zero: Array
    """Zero point of the weights: one, or one per row."""
    without_zero: bool = False

    @property
    def group(self) -> int:
        """The number of groups."""
        return next((a.i for a in self.node.attribute if a.name == "group"), 1)

    @cached_property
    def exact(self) -> Array:
        """The weights without zero point, (rows, columns, …) int16."""
        zero = self.zero.astype(np.int16).reshape(-1, *[1] * (self.steps.ndim - 1))
        exact: Array = self.steps.astype(np.int16) - zero
        return exact

    @property
    def excess(self) -> Array:
        """The part of the weights beyond eight bits, (rows, columns, …) int16."""
        excess: Array = self.exact - np.clip(self.exact, _LEAST, _MOST)
        return excess


def rewrite(
    network: MappedNetwork, folder: Path, in_floats: Callable[[], Container[str]]
) -> ModelProto | None:
    """Return a network's graph with weights centered on zero; None: they are, or cannot be.

    Args:
        network: the network to rewrite; gets one more file, with the changed weights.
        folder: where that file is written.
        in_floats: returns the weights of layers that the engine computes in floats anyway, where
            one more number in a sum may round differently.
    """
    from onnx import ModelProto

    model = ModelProto()
    model.CopyFrom(network.model)
    if any(a.HasField("g") or a.graphs for node in model.graph.node for a in node.attribute):
        return None
    constants = Constants(network, model.graph, folder / FILE)
    channels = _Channels(model, constants)
    if any(layer.zero.any() for layer in channels.layers.values()):
        channels.ignore(in_floats())
    for layer in channels.layers.values():
        if layer.zero.any():
            layer.without_zero = channels.make_room(layer)
    for layer in channels.layers.values():
        _rewrite_layer(layer, channels, constants)
    changed = {name for space in channels.spaces if space.repeated for name in space.tensors}
    for index in reversed(range(len(model.graph.value_info))):
        if model.graph.value_info[index].name in changed:
            del model.graph.value_info[index]
    return model if constants.finish() else None


class _Channels:
    """Which tensors of a graph have the same channels."""

    def __init__(self, model: ModelProto, constants: Constants) -> None:
        self._ends = {value.name for value in model.graph.output}
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._users: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        for node in model.graph.node:
            for index, name in enumerate(node.input):
                self._users[name].append((node, index))
        self._constants = constants
        self.layers: dict[str, _Layer] = {}
        """Layers by the name of their output."""
        for node in model.graph.node:
            if node.op_type == "Conv" and (layer := self._layer(node)) is not None:
                self.layers[node.output[0]] = layer
        self._found: dict[str, _Space | None] = {}

    def ignore(self, weights: Container[str]) -> None:
        """Treat the layers of these weights as unknown operations."""
        self.layers = {
            name: layer
            for name, layer in self.layers.items()
            if layer.weights.input[0] not in weights
        }

    @property
    def spaces(self) -> list[_Space]:
        """The spaces found so far."""
        return [space for space in self._found.values() if space is not None]

    def space_of(self, name: str) -> _Space:
        """Return the space of a tensor, or one with nothing repeated if none has been found."""
        return self._found.get(name) or _Space()

    def make_room(self, layer: _Layer) -> bool:
        """Repeat the channels that large weights need; return whether that is possible."""
        excess = layer.excess
        if not excess.any():
            return True
        if layer.group != 1 or excess.min() < _LEAST or excess.max() > _MOST:
            return False
        space = self._space(layer.node.input[0])
        channels = np.flatnonzero(excess.any(axis=(0, *range(2, excess.ndim)))).tolist()
        return space is not None and space.repeat(channels, excess.shape[1])

    def _space(self, name: str) -> _Space | None:
        """Find all tensors with a tensor's channels; None: something else depends on them."""
        if name not in self._found:
            space = _Space()
            found = space if self._fill(space, name) else None
            for each in space.tensors:
                self._found[each] = found
        return self._found[name]

    def _fill(self, space: _Space, name: str) -> bool:
        """Follow the channels both ways; return whether all nodes on them can be changed."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in space.tensors:
                continue
            space.tensors.add(name)
            maker = self._makers.get(name)
            if maker is None or name in self._ends:
                return False
            touching = [(maker, -1), *self._users[name]]
            for node, index in touching:
                if node.op_type == "Conv":
                    layer = self.layers.get(node.output[0])
                    if layer is None or layer.group != 1 or index > 0:
                        return False
                elif node.op_type in _JOIN:
                    waiting += [*node.input, node.output[0]]
                elif node.op_type in _SAME_CHANNELS and index <= 0 and self._plain(node):
                    waiting += [node.input[0], node.output[0]]
                else:
                    return False
        return True

    def _plain(self, node: NodeProto) -> bool:
        """Whether an operation has the same parameters for every channel, and one output."""
        return len(node.output) == 1 and all(
            not name or (name in self._constants and self._constants.array(name).size == 1)
            for name in node.input[1:]
        )

    def _layer(self, node: NodeProto) -> _Layer | None:
        """Return a quantized convolution whose constants no other node uses, else None."""
        weights = self._own_dequantizer(node.input[1])
        if weights is None or len(weights.input) < 3:
            return None
        bias = None
        if len(node.input) > 2 and node.input[2] and node.input[2] not in self._constants:
            bias = self._own_dequantizer(node.input[2])
            if bias is None:
                return None
        if self._constants.kind(weights.input[0]) not in _EIGHT_BITS:
            return None
        steps, zero = (self._constants.array(weights.input[index]) for index in (0, 2))
        rows = next((a.i for a in weights.attribute if a.name == "axis"), 1) == 0
        sized = zero.size == self._constants.array(weights.input[1]).size
        if not sized or (zero.size > 1 and not rows):
            return None
        return _Layer(node, weights, bias, steps, zero)

    def _own_dequantizer(self, name: str) -> NodeProto | None:
        """Return the node that dequantizes a constant for only one user."""
        maker: NodeProto | None = self._makers.get(name)
        if maker is None or maker.op_type != "DequantizeLinear" or name in self._ends:
            return None
        if len(self._users[name]) > 1 or not all(each in self._constants for each in maker.input):
            return None
        return maker


def _rewrite_layer(layer: _Layer, channels: _Channels, constants: Constants) -> None:
    """Replace a layer's weights with centered ones that have the rows and columns needed."""
    made_by, taken = channels.space_of(layer.node.output[0]), channels.space_of(layer.node.input[0])
    rows = [*made_by.repeated, *[0] * made_by.idle]
    if not (rows or taken.repeated or layer.without_zero):
        return
    exact, excess = layer.exact, layer.excess
    more = np.zeros_like(exact[:, taken.repeated])
    if layer.without_zero:
        exact, more = exact - excess, excess[:, taken.repeated]
    nothing = np.zeros_like(exact[:, [0] * taken.idle])
    exact = np.concatenate([exact, more, nothing], axis=1)
    exact = np.concatenate([exact, exact[rows]])
    kind = np.dtype(np.int8) if layer.without_zero else layer.steps.dtype
    zero = _repeat_rows(np.zeros_like(layer.zero, kind) if layer.without_zero else layer.zero, rows)
    steps = exact + zero.astype(np.int16).reshape(-1, *[1] * (exact.ndim - 1))
    made = [steps.astype(kind), _repeat_rows(constants.array(layer.weights.input[1]), rows), zero]
    for index, data in enumerate(made):
        _replace_input(layer.weights, index, data, constants)
    if layer.bias is not None:
        for index, name in enumerate(layer.bias.input):
            _replace_input(layer.bias, index, _repeat_rows(constants.array(name), rows), constants)
    elif len(layer.node.input) > 2 and layer.node.input[2]:
        bias = _repeat_rows(constants.array(layer.node.input[2]), rows)
        _replace_input(layer.node, 2, bias, constants)


def _repeat_rows(array: Array, rows: list[int]) -> Array:
    """Repeat rows of an array that has one for each channel."""
    return array if array.size == 1 else np.concatenate([array, array[rows]])


def _replace_input(node: NodeProto, index: int, data: Array, constants: Constants) -> None:
    """Replace an input of a node with a new constant."""
    name = node.input[index]
    made = f"zero_point/{node.output[0]}/{index}"
    constants.replace(name, made, data)
    node.input[index] = made
