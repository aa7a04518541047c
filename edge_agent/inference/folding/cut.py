"""The cut at an ONNX network's input, and the graph rewritten without the part cut off.

Only the graph is rewritten; weights stay where they are.
"""

from __future__ import annotations

from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.frozen import record
from ...models.files.external_weights import parse_graph
from ...models.files.onnx_reader import map_file
from ...models.files.onnx_schema import EXTERNAL, INT8, INTS, UINT8
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
        """Return the same cut for unsigned steps, each larger by 128, or None if there is none."""
        if not self.back:
            return None
        fold = replace(self.fold, dtype="uint8", zero_point=self.fold.zero_point + 128)
        return replace(self, fold=fold, shifted=True)

    def turned(self) -> InputCut:
        """Return the same cut for steps with the colors last, where that is of any use."""
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
        # The engine works out by itself what is declared of the types in between.
        for index in reversed(range(len(graph.value_info))):
            if graph.value_info[index].name in self.retyped:
                del graph.value_info[index]
        for position, (takes, gives) in self.quantizers.items():
            # One that passes a tensor on, or puts the colors before the rows: engines leave the
            # first out; the second, too, where they compute with the colors last.
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
        """Return the changed graph, and by name the mapped files that hold its weights.

        Raises:
            ModelError: a file cannot be read, or the network is not an ONNX file anymore.
        """
        name = self.network.name
        files = {name: map_file(self.network)}
        model = parse_graph(files[name], name)
        self.change(model)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data if tensor.data_location == EXTERNAL else ():
                if entry.key == "location" and entry.value not in files:
                    files[entry.value] = map_file(self.network.parent / entry.value)
        return model.SerializeToString(), files
