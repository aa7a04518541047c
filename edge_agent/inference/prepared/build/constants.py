"""The constants of a graph whose weights lie in files: read, and replaced by others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....core.types import Array
from ....models.files.external_weights import MIN_EXTERNAL_BYTES
from ....models.files.onnx_reader import map_file
from .optimize import MappedNetwork, whereabouts

if TYPE_CHECKING:
    from onnx import GraphProto


class Constants:
    """A graph's constants; new ones come to a file of their own, if they are large."""

    def __init__(self, outside: MappedNetwork, graph: GraphProto, path: Path) -> None:
        """Begin to change a graph.

        Args:
            outside: in whose files its weights lie; gets one more when it is done.
            graph: a copy of the network's, to be changed.
            path: the new file.

        """
        self._outside = outside
        self._graph = graph
        self._path = path
        self._known = {tensor.name: tensor for tensor in graph.initializer}
        self._replaced: set[str] = set()
        self._file = path.open("wb")

    def __contains__(self, name: str) -> bool:
        """Whether a name is a constant's."""
        return name in self._known

    def kind(self, name: str) -> int | None:
        """Give the type of a constant's numbers, as ONNX counts them; None: it is none."""
        tensor = self._known.get(name)
        return None if tensor is None else int(tensor.data_type)

    def array(self, name: str) -> Array:
        """Give a constant's numbers."""
        tensor = self._known[name]
        location, offset, length = whereabouts(tensor)
        if not location:
            from onnx.numpy_helper import to_array

            array: Array = to_array(tensor)
            return array
        from onnx.helper import tensor_dtype_to_np_dtype

        kind = tensor_dtype_to_np_dtype(tensor.data_type)
        count = length // kind.itemsize if length else int(np.prod(tensor.dims))
        data = self._outside.files[location]
        return np.frombuffer(data, kind, count, offset).reshape(tensor.dims)

    def replace(self, name: str, by: str, data: Array) -> None:
        """Add a constant in the place of another, which goes when nobody takes it any more."""
        from onnx.helper import np_dtype_to_tensor_dtype

        tensor = self._graph.initializer.add()
        tensor.name, tensor.data_type = by, np_dtype_to_tensor_dtype(data.dtype)
        tensor.dims.extend(data.shape)
        self._known[by] = tensor
        self._replaced.add(name)
        if data.nbytes < MIN_EXTERNAL_BYTES:
            tensor.raw_data = data.tobytes()
            return
        tensor.data_location = 1  # EXTERNAL
        place = (("location", self._path.name), ("offset", self._file.tell()))
        for key, text in (*place, ("length", data.nbytes)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(text)
        self._file.write(data.tobytes())

    def finish(self) -> bool:
        """Close the file and take out what has been replaced; gives whether anything has."""
        self._file.close()
        if not self._path.stat().st_size:
            self._path.unlink()
        else:
            self._outside.files[self._path.name] = map_file(self._path)
        taken = {name for node in self._graph.node for name in node.input}
        for index in reversed(range(len(self._graph.initializer))):
            name = self._graph.initializer[index].name
            if name in self._replaced and name not in taken:
                del self._graph.initializer[index]
        return bool(self._replaced)
