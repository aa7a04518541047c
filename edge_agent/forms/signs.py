"""Weights of eight bits without a sign, given one: the same numbers, convolved more quickly on x86.

Some converters write uint8 weights with a zero point about 128. What ONNX Runtime has fast kernels
for on x86 is steps without a sign times weights with one (MobileNetV2 of TensorFlow Lite: 4.9
instead of 7.3 ms of a core an inference). To take 128 off the weights and off their zero point
changes no result, where the processor does not saturate in between: with VNNI.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..machine import instructions
from ..records import Array
from .optimise import Outside, whereabouts
from .skeleton import LEAST, map_file

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

FILE = "signed.bin"
_TAKES_WEIGHTS_SECOND = frozenset({"Conv", "Gemm", "MatMul"})
_INSTRUCTIONS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
_UINT8, _INT8 = 2, 3


def pays_here() -> bool:
    """Whether this processor multiplies eight bits without saturating in between."""
    return not _INSTRUCTIONS.isdisjoint(instructions().split())


def signed(outside: Outside, folder: Path) -> ModelProto | None:
    """Give a network's graph with signed weights; None: it has no others.

    Args:
        outside: the network; gets one more file, with the changed weights.
        folder: where that file is written.

    """
    from onnx import ModelProto

    model = ModelProto()
    model.CopyFrom(outside.model)
    graph = model.graph
    known = {tensor.name: tensor for tensor in graph.initializer}
    made: dict[str, str] = {}
    with (folder / FILE).open("wb") as file:
        for node, weights, zero in list(_places(graph, known)):
            for index in (weights, zero):
                name = node.input[index]
                if name not in made:
                    made[name] = f"signed/{name}"
                    data = (_array(outside, known[name]) ^ 0x80).view(np.int8)
                    _add(graph, made[name], data, file.tell())
                    if data.nbytes >= LEAST:
                        file.write(data.tobytes())
                node.input[index] = made[name]
    if not made:
        (folder / FILE).unlink()
        return None
    if (folder / FILE).stat().st_size:
        outside.files[FILE] = map_file(folder / FILE)
    _forget_unused(graph, made)
    return model


def _places(
    graph: GraphProto, known: dict[str, TensorProto]
) -> Iterator[tuple[NodeProto, int, int]]:
    """Give each node that takes such weights, and as which of its inputs weights and zero point."""
    users: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for node in graph.node:
        for index, name in enumerate(node.input):
            users[name].append((node.op_type, index))
    for value in graph.output:
        users[value.name].append(("", 0))

    def bare(name: str) -> bool:
        return name in known and known[name].data_type == _UINT8

    for node in graph.node:
        if node.op_type == "DequantizeLinear" and len(node.input) == 3:
            after = users[node.output[0]]
            fits = after and all(
                index == 1 and operator in _TAKES_WEIGHTS_SECOND for operator, index in after
            )
            if fits and bare(node.input[0]) and bare(node.input[2]):
                yield node, 0, 2
        elif node.op_type == "QLinearConv" and bare(node.input[3]) and bare(node.input[5]):
            yield node, 3, 5


def _array(outside: Outside, tensor: TensorProto) -> Array:
    location, offset, length = whereabouts(tensor)
    if not location:
        from onnx.numpy_helper import to_array

        array: Array = to_array(tensor)
        return array
    count = length or int(np.prod(tensor.dims))
    return np.frombuffer(outside.files[location], np.uint8, count, offset).reshape(tensor.dims)


def _add(graph: GraphProto, name: str, data: Array, offset: int) -> None:
    """Add a constant; a large one lies in the file."""
    tensor = graph.initializer.add()
    tensor.name, tensor.data_type = name, _INT8
    tensor.dims.extend(data.shape)
    if data.nbytes < LEAST:
        tensor.raw_data = data.tobytes()
        return
    tensor.data_location = 1  # EXTERNAL
    for key, text in (("location", FILE), ("offset", offset), ("length", data.nbytes)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(text)


def _forget_unused(graph: GraphProto, made: dict[str, str]) -> None:
    """Take out the constants that nobody takes any more."""
    taken = {name for node in graph.node for name in node.input}
    for index in reversed(range(len(graph.initializer))):
        name = graph.initializer[index].name
        if name in made and name not in taken:
            del graph.initializer[index]
