"""What is cut off an ONNX network's input, and how the rest of the file is written without it.

Only the graph is written anew; weights stay where they are.
"""

from __future__ import annotations

from dataclasses import replace
from mmap import mmap
from pathlib import Path

from ...core.frozen import record
from ...models.files.protobuf import fields, message, numeral
from ...models.files.skeleton import map_file, skeleton
from .fold import FIRST, Fold
from .graph import (
    ATTRIBUTE_INTS,
    ATTRIBUTE_NAME,
    ATTRIBUTE_TYPE,
    GRAPH_INITIALIZER,
    GRAPH_INPUT,
    GRAPH_NODE,
    GRAPH_VALUE,
    INT8,
    MODEL_GRAPH,
    NODE_ATTRIBUTE,
    NODE_INPUT,
    NODE_NAME,
    NODE_OP,
    NODE_OUTPUT,
    OF_INTS,
    TENSOR_ELEMENT,
    TENSOR_NAME,
    TENSOR_RAW,
    TENSOR_SHAPE,
    TENSOR_TYPE,
    TYPE_TENSOR,
    UINT8,
    VALUE_NAME,
    VALUE_TYPE,
)

_ZERO_POINT = b"folded/zero_point"


@record
class InputCut:
    """What is to be changed in a network."""

    network: Path
    fold: Fold
    quantisers: dict[int, tuple[bytes, bytes]]
    """By number of the node: what it takes and gives. It becomes one that passes bytes on."""
    retyped: frozenset[bytes]
    """Tensors of another type than before, the input among them."""
    back: frozenset[int] | None
    """The nodes that turn the steps into floats again; None: others use them, too."""
    convolved: bool
    """Whether a convolution of eight bits on three channels is all that takes the steps."""
    shifted: bool = False
    """Whether steps are 128 more than in the network itself, to be without a sign."""

    def unsigned(self) -> InputCut | None:
        """Give the same cut for steps without a sign, 128 more each; None: it cannot be done."""
        if not self.back:
            return None
        fold = replace(self.fold, dtype="uint8", zero_point=self.fold.zero_point + 128)
        return replace(self, fold=fold, shifted=True)

    def turned(self) -> InputCut:
        """Give the same cut for steps with the colours last, where that is of any use."""
        return replace(self, fold=replace(self.fold, turned=True)) if self.convolved else self

    def apply(self, graph: bytes) -> bytes:
        """Change a network's graph, as `skeleton` gives it."""
        return b"".join(
            message(number, self._graph(graph, begin, end))
            if number == MODEL_GRAPH
            else graph[start:end]
            for number, start, end, begin, _ in fields(graph, 0, len(graph))
        )

    def open(self) -> tuple[bytes, dict[str, mmap]]:
        """Give the changed graph, and by name the files in which its weights stayed.

        Raises:
            ModelError: a file cannot be read, or the network is not an ONNX file any more.

        """
        files = {self.network.name: map_file(self.network)}
        elsewhere: set[str] = set()
        graph = self.apply(skeleton(files[self.network.name], self.network.name, elsewhere))
        files |= {name: map_file(self.network.parent / name) for name in elsewhere - files.keys()}
        return graph, files

    def _graph(self, data: bytes, at: int, last: int) -> bytes:
        parts, node = [], -1
        if self.shifted:
            parts.append(message(GRAPH_INITIALIZER, _zero_point(self.fold.zero_point)))
        for number, start, end, begin, _ in fields(data, at, last):
            node += number == GRAPH_NODE
            if number == GRAPH_NODE and node in self.quantisers:
                parts.append(message(number, _moves(*self.quantisers[node], self.fold.turned)))
            elif number == GRAPH_NODE and self.shifted and node in (self.back or ()):
                parts.append(message(number, _with_zero_point(data[begin:end])))
            elif number == GRAPH_INPUT and _named(data, begin, end) == self.fold.name.encode():
                parts.append(message(number, _retyped(data[begin:end], self.fold)))
            elif number != GRAPH_VALUE or _named(data, begin, end) not in self.retyped:
                # What is noted of the types in between is worked out anew by who loads it.
                parts.append(data[start:end])
        return b"".join(parts)


def _named(data: bytes, at: int, last: int) -> bytes:
    """Give the name of an input, output or tensor in between."""
    for number, _, end, begin, _ in fields(data, at, last):
        if number == VALUE_NAME:
            return data[begin:end]
    return b""


def _retyped(value: bytes, fold: Fold) -> bytes:
    """Change the type of an input's numbers."""
    element = numeral(TENSOR_ELEMENT, INT8 if fold.dtype == "int8" else UINT8)

    def changed(data: bytes, path: tuple[int, ...]) -> bytes:
        parts: dict[int, list[bytes]] = {}
        for number, start, end, begin, _ in fields(data, 0, len(data)):
            inner = path and number == path[0]
            part = message(number, changed(data[begin:end], path[1:])) if inner else data[start:end]
            parts.setdefault(number, []).append(part)
        if not path:
            parts[TENSOR_ELEMENT] = [element]
            if fold.turned:
                parts[TENSOR_SHAPE] = [_turned(data, TENSOR_SHAPE)]
        return b"".join(part for each in parts.values() for part in each)

    return changed(value, (VALUE_TYPE, TYPE_TENSOR))


def _turned(tensor: bytes, shape: int) -> bytes:
    """Put the second of four sizes last."""
    sizes: list[bytes] = []
    for number, _, end, begin, _ in fields(tensor, 0, len(tensor)):
        if number == shape:
            sizes = [tensor[a:b] for _, a, b, _, _ in fields(tensor, begin, end)]
    first, second, third, fourth = sizes
    return message(shape, first + third + fourth + second)


def _zero_point(value: int) -> bytes:
    """Write a constant of one byte."""
    element = numeral(TENSOR_TYPE, UINT8)
    return element + message(TENSOR_NAME, _ZERO_POINT) + message(TENSOR_RAW, bytes([value]))


def _with_zero_point(node: bytes) -> bytes:
    """Have an operation take that constant as its third tensor."""
    parts, taken = [], 0
    for number, start, end, _, _ in fields(node, 0, len(node)):
        taken += number == NODE_INPUT
        third = number == NODE_INPUT and taken == 3
        parts.append(message(NODE_INPUT, _ZERO_POINT) if third else node[start:end])
    return b"".join(parts)


def _moves(takes: bytes, gives: bytes, turned: bool) -> bytes:
    """Write the operation that gives what it takes, or puts the colours before the rows.

    Engines leave the first out; the second, too, where they compute with the colours last.
    """
    node = b"".join(
        message(number, text)
        for number, text in (
            (NODE_INPUT, takes),
            (NODE_OUTPUT, gives),
            (NODE_NAME, b"folded/" + gives),
            (NODE_OP, b"Transpose" if turned else b"Identity"),
        )
    )
    if not turned:
        return node
    axes = b"".join(numeral(ATTRIBUTE_INTS, axis) for axis in FIRST)
    kind = numeral(ATTRIBUTE_TYPE, OF_INTS)
    return node + message(NODE_ATTRIBUTE, message(ATTRIBUTE_NAME, b"perm") + axes + kind)
