"""The cut at an ONNX network's input, and the graph rewritten without what is cut off.

Only the graph is rewritten; weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from mmap import mmap
from pathlib import Path

from ...core.frozen import record
from ...models.files import onnx_schema as proto
from ...models.files.external_weights import externalize_weights
from ...models.files.onnx_reader import map_file, name_bytes, read_name
from ...models.files.protobuf import Field, fields, message, numeral, replace_fields
from .fold import FIRST, Fold

_ZERO_POINT = b"folded/zero_point"


@record
class InputCut:
    """The changes to a network."""

    network: Path
    fold: Fold
    quantizers: dict[int, tuple[str, str]]
    """By position of the node: its input and output. It becomes one that passes bytes on."""
    retyped: frozenset[str]
    """Tensors of another type than before, the input among them."""
    back: frozenset[int] | None
    """The nodes that turn the steps into floats again; None: others use them, too."""
    convolved: bool
    """Whether a convolution of eight bits on three channels is all that takes the steps."""
    shifted: bool = False
    """Whether steps are 128 more than in the network itself, to be without a sign."""

    def unsigned(self) -> InputCut | None:
        """Return the same cut for unsigned steps, 128 more each, or None if it cannot be done."""
        if not self.back:
            return None
        fold = replace(self.fold, dtype="uint8", zero_point=self.fold.zero_point + 128)
        return replace(self, fold=fold, shifted=True)

    def turned(self) -> InputCut:
        """Return the same cut for steps with the colors last, where that is of any use."""
        return replace(self, fold=replace(self.fold, turned=True)) if self.convolved else self

    def apply(self, model: bytes) -> bytes:
        """Change a network's graph, as `externalize_weights` returns it."""

        def in_model(field: Field) -> bytes | None:
            if field.number != proto.MODEL_GRAPH:
                return None
            return message(field.number, self._graph(model, field))

        return replace_fields(model, 0, len(model), in_model)

    def open(self) -> tuple[bytes, dict[str, mmap]]:
        """Return the changed graph, and by name the mapped files that hold its weights.

        Raises:
            ModelError: a file cannot be read, or the network is not an ONNX file any more.
        """
        files = {self.network.name: map_file(self.network)}
        others: set[str] = set()
        name = self.network.name
        graph = self.apply(externalize_weights(files[name], name, others))
        files |= {name: map_file(self.network.parent / name) for name in others - files.keys()}
        return graph, files

    def _graph(self, model: bytes, graph: Field) -> bytes:
        node = -1

        def in_graph(field: Field) -> bytes | None:
            nonlocal node
            if field.number == proto.GRAPH_NODE:
                node += 1
                if node in self.quantizers:
                    return message(field.number, _move(*self.quantizers[node], self.fold.turned))
                if self.shifted and node in (self.back or ()):
                    return message(field.number, _with_zero_point(model[field.begin : field.end]))
            elif field.number in {proto.GRAPH_INPUT, proto.GRAPH_VALUE}:
                name = read_name(model, (field.begin, field.end), proto.VALUE_NAME)
                if field.number == proto.GRAPH_VALUE:
                    # The engine works out by itself what is declared of the types in between.
                    return b"" if name in self.retyped else None
                if name == self.fold.name:
                    content = _retyped(model[field.begin : field.end], self.fold)
                    return message(field.number, content)
            return None

        changed = replace_fields(model, graph.begin, graph.end, in_graph)
        if self.shifted:
            zero_point = _zero_point(self.fold.zero_point)
            changed = message(proto.GRAPH_INITIALIZER, zero_point) + changed
        return changed


def _retyped(value: bytes, fold: Fold) -> bytes:
    """Change the type of an input's numbers, and the order of its sizes."""

    def within(data: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
        def replacement(field: Field) -> bytes | None:
            if field.number != number:
                return None
            return message(number, change(data[field.begin : field.end]))

        return replace_fields(data, 0, len(data), replacement)

    def tensor(data: bytes) -> bytes:
        element = numeral(proto.TENSOR_ELEMENT, proto.INT8 if fold.dtype == "int8" else proto.UINT8)

        def replacement(field: Field) -> bytes | None:
            if field.number == proto.TENSOR_ELEMENT:
                return element
            if field.number == proto.TENSOR_SHAPE and fold.turned:
                return _turned(data[field.begin : field.end])
            return None

        return replace_fields(data, 0, len(data), replacement)

    return within(value, proto.VALUE_TYPE, lambda data: within(data, proto.TYPE_TENSOR, tensor))


def _turned(shape: bytes) -> bytes:
    """Encode a shape of four sizes with the second of them last."""
    first, second, third, fourth = (
        shape[each.start : each.end] for each in fields(shape, 0, len(shape))
    )
    return message(proto.TENSOR_SHAPE, first + third + fourth + second)


def _zero_point(value: int) -> bytes:
    """Encode a constant of one byte."""
    element = numeral(proto.TENSOR_TYPE, proto.UINT8)
    name = message(proto.TENSOR_NAME, _ZERO_POINT)
    return element + name + message(proto.TENSOR_RAW, bytes([value]))


def _with_zero_point(node: bytes) -> bytes:
    """Return a node that takes that constant as its third tensor."""
    taken = 0

    def replacement(field: Field) -> bytes | None:
        nonlocal taken
        taken += field.number == proto.NODE_INPUT
        third = field.number == proto.NODE_INPUT and taken == 3
        return message(proto.NODE_INPUT, _ZERO_POINT) if third else None

    return replace_fields(node, 0, len(node), replacement)


def _move(takes: str, gives: str, turned: bool) -> bytes:
    """Encode the node that passes a tensor on, or puts the colors before the rows.

    Engines leave the first out; the second, too, where they compute with the colors last.
    """
    output = name_bytes(gives)
    node = b"".join(
        message(number, text)
        for number, text in (
            (proto.NODE_INPUT, name_bytes(takes)),
            (proto.NODE_OUTPUT, output),
            (proto.NODE_NAME, b"folded/" + output),
            (proto.NODE_OPERATOR, b"Transpose" if turned else b"Identity"),
        )
    )
    if not turned:
        return node
    axes = b"".join(numeral(proto.ATTRIBUTE_INTS, axis) for axis in FIRST)
    kind = numeral(proto.ATTRIBUTE_TYPE, proto.INTS)
    name = message(proto.ATTRIBUTE_NAME, b"perm")
    return node + message(proto.NODE_ATTRIBUTE, name + axes + kind)
