"""Classifiers of scikit-learn and its like, whose exports end in texts and maps, as tensors.

Their converters end a network in a ZipMap, which makes a map of each row's classes and chances, and
in the best class, which may be a text. An engine here gives tensors of numbers: the ZipMap passes
on the chances that it is given, and texts are left out. The classes' names stand in the nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .onnx_schema import FLOAT, STRING

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_CLASSES = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
"""Attributes of ai.onnx.ml's operators that name the classes."""
_ML = "ai.onnx.ml"


def only_numbers(model: ModelProto) -> None:
    """Change a graph in place so that its outputs are tensors of numbers, where that can be."""
    graph = model.graph
    if not any(_is_map(value) or _is_text(value) for value in graph.output):
        return
    for node in graph.node:
        if (node.domain, node.op_type) == (_ML, "ZipMap") and len(node.output) == 1:
            _pass_on(node, graph)
    kept = [value for value in graph.output if not _is_text(value)]
    if kept and len(kept) < len(graph.output):
        del graph.output[:]
        graph.output.extend(kept)


def classes_of(nodes: list[NodeProto]) -> tuple[str, ...]:
    """Return the names of the classes that a classifier's nodes state; () if they state none."""
    for node in nodes:
        for attribute in node.attribute if node.domain == _ML else ():
            if attribute.name in _CLASSES:
                texts = tuple(text.decode("utf-8", "replace") for text in attribute.strings)
                if found := texts or tuple(map(str, attribute.ints)):
                    return found
    return ()


def _pass_on(node: NodeProto, graph: GraphProto) -> None:
    """Make an Identity of a ZipMap."""
    count = len(classes_of([node]))
    taken, name = node.input[0], node.output[0]
    for value in graph.output:
        if value.name == name:
            value.type.Clear()
            value.type.tensor_type.elem_type = FLOAT
            value.type.tensor_type.shape.dim.add()
            value.type.tensor_type.shape.dim.add(dim_value=count)
    node.Clear()
    node.op_type = "Identity"
    node.input.append(taken)
    node.output.append(name)


def _is_map(value: object) -> bool:
    return bool(value.type.WhichOneof("value") in {"sequence_type", "map_type"})  # type: ignore[attr-defined]


def _is_text(value: object) -> bool:
    return bool(value.type.tensor_type.elem_type == STRING)  # type: ignore[attr-defined]
