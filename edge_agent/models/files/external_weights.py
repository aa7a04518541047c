"""An ONNX file without its weights: a graph of a few kilobytes that says where each tensor is.

The file is never read as a whole. Its tensors are not moved; the engine gets them as ranges of the
mapped file, so that a network larger than the memory can be processed.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.containment import contained
from ...core.errors import ModelError
from . import onnx_schema as proto
from .numeric import only_numbers
from .onnx_reader import Tensor, map_file, read_tensor
from .onnx_schema import new_model
from .protobuf import DamagedError, Field, Sliceable, message, numeral, replace_fields

if TYPE_CHECKING:
    from onnx import ModelProto

Data = mmap | bytes

MIN_EXTERNAL_BYTES = 1024
"""Smaller tensors stay in the graph; engines read shapes and scales while they load it."""

_REPLACED = frozenset({proto.TENSOR_RAW, proto.TENSOR_EXTERNAL_DATA, proto.TENSOR_DATA_LOCATION})


def externalize_weights(data: Data, location: str) -> bytes:
    """Return the ONNX model in *data*, a whole file, with every large initializer external.

    The graph refers to the file as *location*.

    Raises:
        ModelError: the file is not an ONNX model.
    """

    def in_model(field: Field) -> bytes | None:
        if field.number != proto.MODEL_GRAPH:
            return None
        return message(field.number, replace_fields(data, field.begin, field.end, in_graph))

    def in_graph(field: Field) -> bytes | None:
        if field.number != proto.GRAPH_INITIALIZER:
            return None
        tensor = read_tensor(data, (field.begin, field.end))
        outside = externalized(data, tensor, location)
        return None if outside is None else message(field.number, outside)

    try:
        return replace_fields(data, 0, len(data), in_model)
    except DamagedError:
        raise ModelError(f"{location}: not a valid ONNX file") from None


def parse_graph(data: Data, location: str) -> ModelProto:
    """Parse a graph that `externalize_weights` returned; its outputs are tensors of numbers.

    Raises:
        ModelError: the file is not an ONNX model.
    """
    model = new_model()
    with contained(location, ModelError):
        model.ParseFromString(externalize_weights(data, location))
    only_numbers(model)
    return model


def open_graph(
    network: Path, change: Callable[[ModelProto], None] | None = None
) -> tuple[bytes, dict[str, mmap]]:
    """Return a network's graph, changed if so, and the mapped files of its weights by name.

    Raises:
        ModelError: a file cannot be read, or the network is not an ONNX file.
    """
    files = {network.name: map_file(network)}
    model = parse_graph(files[network.name], network.name)
    if change is not None:
        change(model)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data if tensor.data_location == proto.EXTERNAL else ():
            if entry.key == "location" and entry.value not in files:
                files[entry.value] = map_file(network.parent / entry.value)
    return model.SerializeToString(), files


def externalized(data: Sliceable, tensor: Tensor, location: str) -> bytes | None:
    """Encode a tensor with a reference instead of its raw numbers; None: leave it unchanged.

    Quantizers write a location even for numbers inside the file: the last entry counts.
    """
    if tensor.is_external or tensor.raw is None:
        return None
    begin, end = tensor.raw.begin, tensor.raw.end
    if end - begin < MIN_EXTERNAL_BYTES:
        return None
    entries = (("location", location), ("offset", str(begin)), ("length", str(end - begin)))
    parts = [
        replace_fields(data, *tensor.span, lambda field: b"" if field.number in _REPLACED else None)
    ]
    for key, value in entries:
        entry = message(proto.ENTRY_KEY, key.encode()) + message(proto.ENTRY_VALUE, value.encode())
        parts.append(message(proto.TENSOR_EXTERNAL_DATA, entry))
    parts.append(numeral(proto.TENSOR_DATA_LOCATION, proto.EXTERNAL))
    return b"".join(parts)
