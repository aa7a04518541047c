"""Checks on a network's file before an engine parses it, with clear errors.

An engine's parser is native code that reads untrusted files; a file that reaches it is bounded and
complete, refers to nothing outside its folder, and uses only known operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from glob import escape
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ModelError
from ...core.files import path_inside
from ...core.types import TensorSpec
from .facts import JOINED, NetworkFacts, maker_of
from .numeric import classes_of, only_numbers
from .onnx_schema import BFLOAT16, DOUBLE, DTYPES, EXTERNAL, FLOAT, FLOAT16, STRING, new_model
from .onnx_steps import steps_of
from .strip_weights import place_of, without_weights

if TYPE_CHECKING:
    from mmap import mmap

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

# Protobuf's own limit on one message; larger networks have external data.
MAX_ONNX_BYTES = 2 * 1024**3 - 1
MAX_NODES = 200_000

# Domains whose operators both engines include. Any other needs a library of custom operators, which
# is never loaded.
DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "org.openvinotoolkit"}
)
# In a known domain, but not for computing: a compiled network for one vendor's driver, with a path
# to load it from; and operators that call Python.
_REFUSED = frozenset({"EPContext", "PythonOp", "PythonOpGrad", "ATen"})
_QUANTIZED = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
        "QGemm",
    }
)

# How floats are read: bfloat16 as its bits.
_FLOATS: Mapping[int, str] = {
    FLOAT: "float32",
    FLOAT16: "float16",
    DOUBLE: "float64",
    BFLOAT16: "uint16",
}
_SPLITS = ("nodes_", "membership_")
"""How attributes of trees begin that hold where they split; others hold the numbers they give."""
_FEW = 2**16
"""Most numbers checked without NumPy, whose import takes longer."""

_PAGE = "a web page, not a model: download the raw file"
_DOWNLOADS: Mapping[bytes, str] = {
    b"version https://git-lfs": "a Git LFS pointer, not the model: git lfs pull",
    **dict.fromkeys([b"<!doctype html", b"<html"], _PAGE),
}
"""What hosts often return in place of a model, by its first bytes in lower case."""


def check_network(network: Path) -> None:
    """Check that a network's file may be given to an engine.

    Raises:
        ModelError: it is invalid; names the tensor, operator or file.
    """
    inspect(network)


def inspect(network: Path, data: bytes | mmap | None = None) -> NetworkFacts:
    """Check a network's file and return its facts.

    Args:
        network: the file.
        data: its content, if already read: this is checked even if the file has changed meanwhile.

    Raises:
        ModelError: as for `check_network`.
    """
    if not network.is_file():
        what = "is no plain file" if network.exists() else "no such file"
        raise ModelError(f"{network}: {what}")
    try:
        if network.suffix.lower() == ".xml":
            from .check_ir import inspect_ir

            return inspect_ir(network)
        if network.suffix.lower() == ".onnx":
            return _inspect_onnx(network, data)
        if network.suffix.lower() == ".tflite":
            from .check_tflite import inspect_tflite

            return inspect_tflite(network)
    except OSError as problem:
        raise ModelError(f"{network}: cannot be read: {problem.strerror}") from None
    except ModelError as problem:
        raise _given_instead(network) or problem from None
    raise ModelError(f"{network}: is neither .onnx nor .xml nor .tflite")


def _given_instead(network: Path) -> ModelError | None:
    """Return the error if a host returned something else than a network or its weights."""
    for path in sorted(network.parent.glob(f"{escape(network.stem)}*")):
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(1024).lstrip().lower()
            for begin, why in _DOWNLOADS.items():
                if start.startswith(begin):
                    return ModelError(f"{path}: {why}")
    return None


def _inspect_onnx(network: Path, data: bytes | mmap | None) -> NetworkFacts:
    model = parse(network, data)
    graph = model.graph
    own = {(function.domain, function.name) for function in model.functions}
    nodes = _nodes(model, network)
    for node in nodes:
        _check_operator(node, own, network)
    operators, classes = frozenset(_operator(node) for node in nodes), classes_of(nodes)
    files: dict[Path, None] = {network: None}
    weight_bytes = sum(
        _check_tensor(tensor, network, files, data, splits=splits)
        for tensor, splits in _tensors(model, nodes)
    )
    constants = {tensor.name for tensor in graph.initializer}
    quantized = any(node.op_type in _QUANTIZED for node in nodes)
    only_numbers(model)
    made_by = {
        name: (str(node.op_type), _followed(node)) for node in graph.node for name in node.output
    }
    steps, coarse = steps_of(graph) if quantized else ({}, {})
    return NetworkFacts(
        kind="onnx",
        files=tuple(files),
        inputs=_specs([v for v in graph.input if v.name not in constants], network),
        outputs=_specs(graph.output, network),
        makers={value.name: maker_of(value.name, made_by.get) for value in graph.output},
        ends={value.name: maker_of(value.name, made_by.get, JOINED) for value in graph.output},
        metadata={_text(entry.key): _text(entry.value) for entry in model.metadata_props},
        nodes=len(nodes),
        operators=operators,
        weight_bytes=weight_bytes,
        quantized=quantized,
        steps=steps,
        coarse=coarse,
        classes=classes,
    )


def _followed(node: NodeProto) -> str:
    """Return the input that `maker_of` continues from, or "" if there is none."""
    return node.input[-1 if node.op_type == "Concat" else 0] if node.input else ""


def parse(network: Path, data: bytes | mmap | None = None) -> ModelProto:
    """Parse a file without its weights, whether they are in it or beside it.

    Raises:
        ModelError: it is no ONNX file.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    size = network.stat().st_size if data is None else len(data)
    if size > MAX_ONNX_BYTES:
        raise ModelError(
            f"{network}: {size} bytes, expected at most {MAX_ONNX_BYTES}; store the weights as "
            "external data"
        )
    model = new_model()
    try:
        model.ParseFromString(without_weights(network, data))
    except DecodeError:
        raise ModelError(
            f"{network}: not a valid ONNX file: it is cut short, damaged or something else"
        ) from None
    # An empty file, and one that ends between two fields, are still valid messages.
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError(
            f"{network}: not a valid ONNX file: it has no graph with outputs; it is cut short or "
            "something else"
        )
    return model


def _nodes(model: ModelProto, network: Path) -> list[NodeProto]:
    """List all nodes: in the graph, in functions, and in graphs inside nodes (branches, loops)."""
    waiting = [*model.graph.node, *(node for own in model.functions for node in own.node)]
    nodes: list[NodeProto] = []
    while waiting:
        if len(nodes) + len(waiting) > MAX_NODES:
            raise ModelError(f"{network}: more than {MAX_NODES} nodes")
        node = waiting.pop()
        nodes.append(node)
        for graph in _subgraphs(node):
            waiting.extend(graph.node)
    return nodes


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _tensors(model: ModelProto, nodes: list[NodeProto]) -> Iterator[tuple[TensorProto, bool]]:
    """Iterate over every constant: initializers, including sparse ones, and node attributes.

    Yields each with whether it may hold where the trees of an ensemble split.
    """
    sparse = []
    for graph in (model.graph, *(graph for node in nodes for graph in _subgraphs(node))):
        yield from ((tensor, False) for tensor in graph.initializer)
        sparse += graph.sparse_initializer
    for node in nodes:
        trees = _operator(node).startswith("ai.onnx.ml.TreeEnsemble")
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t, trees and attribute.name.startswith(_SPLITS)
            if attribute.HasField("sparse_tensor"):
                sparse.append(attribute.sparse_tensor)
            yield from ((tensor, False) for tensor in attribute.tensors)
            sparse += attribute.sparse_tensors
    for tensor in sparse:
        yield from ((tensor.values, False), (tensor.indices, False))


def _check_operator(node: NodeProto, own: set[tuple[str, str]], network: Path) -> None:
    if (node.domain, node.op_type) in own:
        return  # a function defined in the file, whose nodes are checked too
    if node.domain not in DOMAINS:
        raise ModelError(
            f"{network}: operator {node.domain}.{node.op_type} is a custom one; libraries of "
            "custom operators are not loaded; export it with ONNX's own operators only, without "
            "what comes before and after the network"
        )
    if node.op_type in _REFUSED:
        raise ModelError(f"{network}: operator {node.op_type} is refused: it is not portable")


def _check_tensor(
    tensor: TensorProto,
    network: Path,
    files: dict[Path, None],
    data: bytes | mmap | None,
    *,
    splits: bool,
) -> int:
    """Check one constant; add the file with its data to *files*; return its size in bytes.

    With *splits* its numbers may be anything: trees that send all, or what is missing, one way
    split at infinity.
    """
    where = f"{network}: tensor {tensor.name!r}"
    if tensor.data_type == STRING:
        return 0
    if tensor.data_type not in DTYPES or any(size < 0 for size in tensor.dims):
        raise ModelError(f"{where}: its type or shape is not valid; the file is damaged")
    name, bits = DTYPES[tensor.data_type]
    count = prod(int(size) for size in tensor.dims)
    size = -(-count * bits // 8)
    kind = None if splits else _FLOATS.get(tensor.data_type)
    if tensor.data_location == EXTERNAL:
        path, offset = external_place(tensor, size, network, where)
        files[path] = None
        if kind is not None and count:
            _check_numbers(path, kind, count, offset, where)
    elif place := place_of(tensor.doc_string):
        offset, length = place
        if length != size:
            raise ModelError(
                f"{where}: expected {size} bytes for {name}{list(tensor.dims)}, found {length}"
            )
        if kind is not None and count:
            _check_numbers(network if data is None else data, kind, count, offset, where)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
        if len(raw) != size:
            raise ModelError(
                f"{where}: expected {size} bytes for {name}{list(tensor.dims)}, found {len(raw)}"
            )
        if kind is not None and count:
            _check_numbers(raw, kind, count, 0, where)
    elif kind is not None:
        _check_listed(tensor, kind, count, where)
    return size


def _check_numbers(
    content: Path | bytes | mmap, kind: str, count: int, offset: int, where: str
) -> None:
    """Check that numbers in a file or in memory are finite, from *offset* bytes on."""
    if kind == "float32" and count <= _FEW and not isinstance(content, Path):
        with memoryview(content) as whole, whole[offset : offset + 4 * count].cast("f") as few:
            if isfinite(sum(few)):
                return  # then every one is
    import numpy as np

    from .finite import ensure_finite

    if isinstance(content, Path):
        ensure_finite(np.memmap(content, kind, "r", offset, (count,)), where)
    else:
        ensure_finite(np.frombuffer(content, kind, count, offset), where)


def _check_listed(tensor: TensorProto, kind: str, count: int, where: str) -> None:
    """Check numbers that are not stored as bytes."""
    whole = tensor.data_type in {FLOAT, DOUBLE}
    numbers = (tensor.float_data or tensor.double_data) if whole else tensor.int32_data
    if whole and len(numbers) != count:
        name, _ = DTYPES[tensor.data_type]
        raise ModelError(
            f"{where}: expected {count} numbers for {name}{list(tensor.dims)}, found {len(numbers)}"
        )
    if whole and count <= _FEW and isfinite(sum(numbers)):
        return
    import numpy as np

    from .finite import ensure_finite

    # Each int32 holds the 16 bits of one float16 or bfloat16.
    values = np.array(numbers, kind) if whole else np.array(numbers, np.uint16).view(kind)
    ensure_finite(values, where)


def external_place(tensor: TensorProto, size: int, network: Path, where: str) -> tuple[Path, int]:
    """Return file and offset of a tensor's external data: in the network's folder, long enough.

    Raises:
        ModelError: it is elsewhere, or not of that *size*; begins with *where*.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    path = path_inside(network.parent, location, f"{where}: external data")
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", size))
    except ValueError:
        raise ModelError(f"{where}: offset and length must be whole numbers") from None
    if offset < 0 or length != size:
        raise ModelError(
            f"{where}: expected {size} bytes of external data, found {length} at {offset}"
        )
    found = path.stat().st_size
    if offset + length > found:
        raise ModelError(
            f"{where}: reaches to byte {offset + length} of {location}, which has {found}; it is "
            "cut short or belongs to another model"
        )
    return path, offset


def _operator(node: NodeProto) -> str:
    return str(node.op_type) if node.domain in {"", "ai.onnx"} else f"{node.domain}.{node.op_type}"


def _text(value: str | bytes) -> str:
    """Return a field as text; protobuf returns bytes if it is not UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _specs(values: Sequence[Any], network: Path) -> tuple[TensorSpec, ...]:
    specs = []
    for value in values:
        if isinstance(value.name, bytes):
            raise ModelError(f"{network}: the name of an input or output is not UTF-8")
        tensor = value.type.tensor_type
        shape = tuple(
            size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else None
            for size in tensor.shape.dim
        )
        dtype, _ = DTYPES.get(tensor.elem_type, ("unknown", 0))
        specs.append(TensorSpec(value.name, shape, dtype))
    return tuple(specs)
