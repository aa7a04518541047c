"""A network whose weights stay in files: its graph, its constants, and its optimized graph.

The weights are never all in memory: the engine gets the network's own file as mapped bytes, and
writes the weights it has changed beside the graph.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....core.types import Array
from ....models.files.external_weights import MIN_EXTERNAL_BYTES, parse_graph
from ....models.files.onnx_reader import map_file
from ...engines.ort_session import Words, open_session

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from ...folding.cut import InputCut

OPTIMIZED = "optimized.onnx"
OPTIMIZED_WEIGHTS = "optimized.bin"
NO_PREPACKING: Mapping[str, str] = {"session.disable_prepacking": "1"}
"""Session entries: weights are not rearranged for computing."""
_EXTERNAL = 1


class MappedNetwork:
    """A network's graph, and the mapped files that it refers to."""

    def __init__(self, network: Path) -> None:
        """Open a network.

        Raises:
            ModelError: it is not an ONNX file, or its external data is missing.
        """
        self.network = network
        self.files: dict[str, mmap.mmap] = {network.name: map_file(network)}
        self.model: ModelProto = parse_graph(self.files[network.name], network.name)
        for tensor in tensors(self.model.graph):
            file, _, _ = location(tensor)
            if file and file not in self.files:
                self.files[file] = map_file(network.parent / file)

    def fix(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Set the sizes that inputs will have, so that more can be computed in advance."""
        for value in self.model.graph.input:
            if value.name in shapes:
                for size, wanted in zip(
                    value.type.tensor_type.shape.dim, shapes[value.name], strict=True
                ):
                    size.dim_value = wanted

    def folded(self, cut: InputCut) -> ModelProto:
        """Return the graph with the quantization of its input cut off."""
        from onnx import ModelProto

        folded = ModelProto()
        folded.CopyFrom(self.model)
        cut.change(folded)
        return folded

    def session(
        self, words: Words, folder: Path, extra: Mapping[str, str], **attributes: Any
    ) -> Any:
        """Open a session of the network.

        Raises:
            EngineError: ONNX Runtime cannot read or run it.
        """
        path = folder / "skeleton.onnx"
        path.write_bytes(self.model.SerializeToString())
        try:
            return open_session(
                path,
                words,
                self.network.name,
                attributes=attributes,
                weights=self.files,
                extra=extra,
            )
        finally:
            path.unlink()

    def optimize(self, words: Words, folder: Path) -> ModelProto:
        """Write the optimized graph and its weights to a folder; return the graph without weights.

        Raises:
            EngineError: ONNX Runtime cannot read or run the network.
        """
        from onnx import ModelProto

        extra = {
            "session.optimized_model_external_initializers_file_name": OPTIMIZED_WEIGHTS,
            "session.optimized_model_external_initializers_min_size_in_bytes": str(
                MIN_EXTERNAL_BYTES
            ),
            **NO_PREPACKING,  # only the graph is needed
        }
        self.session(words, folder, extra, optimized_model_filepath=str(folder / OPTIMIZED))
        model = ModelProto()
        model.ParseFromString((folder / OPTIMIZED).read_bytes())
        return model


class Constants:
    """The constants of a graph, read and replaced; large new ones go to a separate file."""

    def __init__(self, network: MappedNetwork, graph: GraphProto, path: Path) -> None:
        """Index a graph's constants."""
        self._network = network
        self._graph = graph
        self._path = path
        self._known = {tensor.name: tensor for tensor in graph.initializer}
        self._replaced: set[str] = set()
        self._file = path.open("wb")

    def __contains__(self, name: str) -> bool:
        """Whether a constant has this name."""
        return name in self._known

    def kind(self, name: str) -> int | None:
        """Return a constant's type as a TensorProto.DataType; None for other tensors."""
        tensor = self._known.get(name)
        return None if tensor is None else int(tensor.data_type)

    def array(self, name: str) -> Array:
        """Return a constant's values, in its shape."""
        tensor = self._known[name]
        file, offset, length = location(tensor)
        if not file:
            from onnx.numpy_helper import to_array

            array: Array = to_array(tensor)
            return array
        from onnx.helper import tensor_dtype_to_np_dtype

        kind = tensor_dtype_to_np_dtype(tensor.data_type)
        count = length // kind.itemsize if length else int(np.prod(tensor.dims))
        data = self._network.files[file]
        return np.frombuffer(data, kind, count, offset).reshape(tensor.dims)

    def replace(self, name: str, by: str, data: Array) -> None:
        """Replace a constant; the old one is removed when no node uses it anymore."""
        from onnx.helper import np_dtype_to_tensor_dtype

        tensor = self._graph.initializer.add()
        tensor.name, tensor.data_type = by, np_dtype_to_tensor_dtype(data.dtype)
        tensor.dims.extend(data.shape)
        self._known[by] = tensor
        self._replaced.add(name)
        if data.nbytes < MIN_EXTERNAL_BYTES:
            tensor.raw_data = data.tobytes()
            return
        tensor.data_location = _EXTERNAL
        refer(tensor, self._path.name, self._file.tell(), data.nbytes)
        self._file.write(data.tobytes())

    def finish(self) -> bool:
        """Close the file and remove replaced constants; return whether there were any."""
        self._file.close()
        if not self._path.stat().st_size:
            self._path.unlink()
        else:
            self._network.files[self._path.name] = map_file(self._path)
        taken = {name for node in self._graph.node for name in node.input}
        for index in reversed(range(len(self._graph.initializer))):
            name = self._graph.initializer[index].name
            if name in self._replaced and name not in taken:
                del self._graph.initializer[index]
        return bool(self._replaced)


def tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield all initializers of a graph, and of the graphs within its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else []
            for each in (*inner, *attribute.graphs):
                yield from tensors(each)


def location(tensor: TensorProto) -> tuple[str, int, int]:
    """Return the file, offset, and length of a tensor's bytes; no file: they are in the graph."""
    if tensor.data_location != _EXTERNAL:
        return "", 0, 0
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries["location"], int(entries.get("offset", 0)), int(entries.get("length", 0))


def refer(tensor: TensorProto, file: str, offset: int, length: int) -> None:
    """Make a tensor refer only to bytes of a file."""
    del tensor.external_data[:]
    for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def names(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that a node uses, including those in its branches and loops."""
    yield from node.input
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            inner = {name for each in graph.node for name in each.output}
            inner |= {value.name for value in graph.input}
            inner |= {tensor.name for tensor in graph.initializer}
            for each in graph.node:
                yield from (name for name in names(each) if name not in inner)
            yield from (v.name for v in graph.output if v.name not in inner)
