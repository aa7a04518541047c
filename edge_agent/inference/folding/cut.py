"""The cut at an ONNX network's input, and rewriting the graph without the part cut off.

Only the graph is rewritten; the weights are not moved.
"""

from __future__ import annotations

from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.frozen import record
from ...models.files.external_weights import open_graph
from ...models.files.onnx_schema import INT8, INTS, UINT8
from .fold import FIRST, LAST, Fold

if TYPE_CHECKING:
    from onnx import ModelProto

_ZERO_POINT = "folded/zero_point"


@record
class InputCut:
    """The changes to a network."""

    network: Path
    fold: Fold
    quantizers: dict[int, tuple[str, str]]
    """Input and output of each quantizer, by node index. It becomes a node that passes bytes on."""
    retyped: frozenset[str]
    """Tensors whose type changes, the input among them."""
    back: frozenset[int] | None
    """The nodes that convert the steps back to floats; None: other nodes use the steps, too."""
    convolved: bool
    """Whether only an eight-bit convolution on three channels uses the steps."""
    shifted: bool = False
    """Whether steps are 128 more than in the original network, to be unsigned."""

    def unsigned(self) -> InputCut | None:
        """Return the same cut for unsigned steps, each 128 larger, or None if impossible."""
        if not self.back:
            return None
        fold = replace(self.fold, dtype="uint8", zero_point=self.fold.zero_point + 128)
        return replace(self, fold=fold, shifted=True)

    def turned(self) -> InputCut:
        """Return the same cut for steps with the colors last, if that saves anything."""
        return replace(self, fold=replace(self.fold, turned=True)) if self.convolved else self

    def change(self, model: ModelProto) -> None:
        """Change a network's graph in place."""
        graph, fold = model.graph, self.fold
        for value in graph.input:
            if value.name == fold.name:
                kind = value.type.tensor_type
                kind.elem_type = INT8 if fold.dtype == "int8" else UINT8
                if fold.turned:
                    sizes = type(kind.shape)()
                    sizes.CopyFrom(kind.shape)
                    del kind.shape.dim[:]
                    kind.shape.dim.extend(sizes.dim[axis] for axis in LAST)
        # The engine infers the types of tensors in between.
        for index in reversed(range(len(graph.value_info))):
            if graph.value_info[index].name in self.retyped:
                del graph.value_info[index]
        for position, (takes, gives) in self.quantizers.items():
            # Replaced by a node that passes the tensor on, or one that moves the colors before the
            # rows: engines remove the first, and the second if they compute with the colors last.
            node = graph.node[position]
            node.Clear()
            node.input.append(takes)
            node.output.append(gives)
            node.name = f"folded/{gives}"
            node.op_type = "Transpose" if fold.turned else "Identity"
            if fold.turned:
                node.attribute.add(name="perm", type=INTS, ints=FIRST)
        if self.shifted:
            for position in self.back or ():
                graph.node[position].input[2] = _ZERO_POINT
            raw = bytes([fold.zero_point])
            graph.initializer.add(name=_ZERO_POINT, data_type=UINT8, raw_data=raw)

    def open(self) -> tuple[bytes, dict[str, mmap]]:
        """Return the changed graph, and the mapped files of its weights by name.

        Raises:
            ModelError: a file cannot be read, or the network is no longer an ONNX file.
        """
        return open_graph(self.network, self.change)
