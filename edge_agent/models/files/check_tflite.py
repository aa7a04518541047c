"""Checks on a TensorFlow Lite file before OpenVINO parses it, with clear errors.

Every table of the network is checked: that it lies within the file, that indices are valid, and
that constants are as long as their shapes require. Sources: schema.fbs and metadata_schema.fbs of
TensorFlow Lite, whose field numbers are used here.

Stays on the device: the public interface promises that a manifest's `file` may be a .tflite.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from ...core.errors import ModelError
from ...core.types import TensorSpec
from .facts import JOINED, NEUTRAL, NetworkFacts, maker_of
from .finite import ensure_finite
from .flatbuffer import Buffer, Table
from .protobuf import DamagedError
from .tflite_operators import NAMES, code_of, ensure_runs
from .tflite_ssd import POST_PROCESS, ROLES, check_ends, read_options

IDENTIFIER = b"TFL3"
MAX_BYTES = 2**31 - 1
"""Offsets in FlatBuffers have 32 bits, and are signed if they point back."""
MAX_NODES = 200_000
MAX_RANK = 16
MAX_ITEMS = 2**40

# By TensorType: NumPy's name and bits. Strings, resources, and variants are not numbers.
_TYPES: Mapping[int, tuple[str, int]] = {
    0: ("float32", 32),
    1: ("float16", 16),
    2: ("int32", 32),
    3: ("uint8", 8),
    4: ("int64", 64),
    6: ("bool", 8),
    7: ("int16", 16),
    8: ("complex64", 64),
    9: ("int8", 8),
    10: ("float64", 64),
    12: ("uint64", 64),
    15: ("uint32", 32),
    16: ("uint16", 16),
    17: ("int4", 4),
}
_COMPLEX = 8
_UNREAD = {5: "string", 11: "complex128", 13: "resource", 14: "variant", 18: "bfloat16"}
_FLOATS = {"float32": np.float32, "float16": np.float16, "float64": np.float64}
_FLOATS |= {"complex64": np.float32}  # as pairs
# By BuiltinOperator: the number of its options in their union, which a parser reads without a check
# that they exist. For other operators all options have a default.
# fmt: off
_OPTIONS: Mapping[int, int] = {
    0: 11, 1: 5, 2: 10, 3: 1, 4: 2, 5: 94, 9: 8, 11: 12, 12: 5, 13: 13, 16: 14, 17: 5, 18: 21,
    23: 15, 25: 9, 26: 19, 27: 6, 36: 23, 40: 27, 41: 28, 42: 29, 43: 30, 44: 71, 45: 32,
    49: 35, 56: 40, 67: 49, 74: 27, 77: 55, 79: 57, 80: 58, 81: 27, 82: 27, 83: 59, 85: 61,
    88: 64, 89: 27, 91: 27, 97: 74, 98: 75, 100: 77, 102: 79, 103: 80, 112: 87, 126: 101,
    128: 102, 132: 106, 140: 27, 141: 106, 150: 116,
}
# fmt: on
# Options with vectors, by their number in the union: the vector's field number, and its format.
_VECTORS: Mapping[int, tuple[int, str]] = {17: (0, "<i"), 30: (0, "<i")}
_WIDEST = 8
"""Most bytes of an option."""
_INTEGERS = frozenset({"int4", "int8", "uint8", "int16"})


def inspect_tflite(network: Path) -> NetworkFacts:
    """Check a .tflite and return its facts.

    Raises:
        ModelError: it is invalid.
    """
    size = network.stat().st_size
    if size > MAX_BYTES:
        raise ModelError(f"{network}: {size} bytes, expected at most {MAX_BYTES}")
    if size < 16:
        raise ModelError(f"{network}: not a TensorFlow Lite file: it is cut short or empty")
    with network.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[4:8] != IDENTIFIER:
            raise ModelError(
                f"{network}: not a TensorFlow Lite file: expected {IDENTIFIER.decode()} at byte 4"
            )
        try:
            return _inspect(Table.root(data), data, network)
        except DamagedError as damaged:
            raise ModelError(
                f"{network}: not a valid TensorFlow Lite file, cut short or damaged: {damaged}"
            ) from None


def _inspect(model: Table, data: Buffer, network: Path) -> NetworkFacts:
    # First: for nested graphs, the error about their operators is more helpful than their number.
    codes = [code_of(table, network) for table in model.tables(1)]
    graph = _graph(model, network)
    constants = [_buffer(table, network) for table in model.tables(4)]
    tables = graph.tables(0)
    tensors = [_spec(table, network) for table in tables]
    weight_bytes = 0
    known: set[int] = set()
    """Tensors that have a value: constants, inputs, and outputs of operators so far."""
    for index, (table, spec) in enumerate(zip(tables, tensors, strict=True)):
        place = table.number(2, "<I")
        if place >= max(len(constants), 1):
            raise DamagedError("a tensor names a buffer that does not exist")
        _quantization(table, spec, network)
        start, length = constants[place] if constants else (0, 0)
        if length:
            _check_constant(spec, start, length, network)
            weight_bytes += length
            known.add(index)
    inputs, outputs = _indices(graph, 1, len(tensors)), _indices(graph, 2, len(tensors))
    if not outputs:
        raise ModelError(f"{network}: has no outputs; it is cut short or something else")
    for spec in (tensors[index] for index in (*inputs, *outputs)):
        if spec.dtype == "complex64":
            raise ModelError(f"{network}: {spec}: inputs and outputs must be real numbers")
    known.update(inputs)
    operators = graph.tables(3)
    if len(operators) > MAX_NODES:
        raise ModelError(f"{network}: more than {MAX_NODES} operators")
    known |= _empty(tensors, operators)
    makers, listed = _check_operators(operators, codes, tables, known, network)
    for index in outputs:
        if index not in known:
            raise ModelError(f"{network}: output {tensors[index].name!r} is made by nothing")
    metadata = _metadata(model, data, constants)
    return NetworkFacts(
        kind="tflite",
        files=(network,),
        inputs=tuple(tensors[index] for index in inputs),
        outputs=tuple(tensors[index] for index in outputs),
        makers={tensors[index].name: maker_of(index, makers.get) for index in outputs},
        ends={tensors[index].name: maker_of(index, makers.get, JOINED) for index in outputs},
        metadata=metadata,
        nodes=len(operators),
        operators=frozenset(name for name, _ in makers.values()),
        weight_bytes=weight_bytes,
        quantized=any(spec.dtype in _INTEGERS for spec in tensors),
        steps={
            tensors[index].name: step
            for index in (*inputs, *outputs)
            if (step := _step(tables[index])) is not None
        },
        detected={
            role: tensors[index].name
            for index in outputs
            if (role := _role(index, listed, makers)) is not None
        },
    )


def _empty(tensors: Sequence[TensorSpec], operators: Sequence[Table]) -> set[int]:
    """Return the constants without numbers, such as a scalar's shape: no buffer has their bytes."""
    made = {int(index) for operator in operators for index in operator.numbers(2, "<i")}
    return {at for at, spec in enumerate(tensors) if 0 in spec.shape and at not in made}


def _check_operators(
    operators: Sequence[Table],
    codes: Sequence[int],
    tables: Sequence[Table],
    known: set[int],
    network: Path,
) -> tuple[dict[int, tuple[str, int]], dict[int, str]]:
    """Check all operators; note what they make.

    Returns:
        By tensor the operator that makes it, and the input that `maker_of` continues from; the
        roles of what a detection's post-processing makes.
    """
    makers: dict[int, tuple[str, int]] = {}
    listed: dict[int, str] = {}
    for operator in operators:
        _refuse_state(operator, codes, tables, network)
        made = _check_operator(operator, codes, known, makers, len(tables))
        _ensure_runs(operator, codes, tables, network)
        if made and makers[made[0]][0] == POST_PROCESS:
            taken = operator.numbers(1, "<i")
            check_ends(taken, made)
            read_options(operator)
            # Scores come out as they go in, only fewer.
            makers[made[2]] = makers.get(int(taken[1]), makers[made[2]])
            listed = dict(zip(made, ROLES, strict=False))
    return makers, listed


def _role(
    index: int, listed: Mapping[int, str], makers: Mapping[int, tuple[str, int]]
) -> str | None:
    """Return the role of an output that a detection's post-processing makes, also as integers."""
    while index not in listed:
        maker, index = makers.get(index, ("", -1))
        if maker not in NEUTRAL:
            return None
    return listed[index]


def _graph(model: Table, network: Path) -> Table:
    graphs = model.tables(2)
    if len(graphs) != 1:
        raise ModelError(
            f"{network}: expected one graph, found {len(graphs)}; export one network by itself, "
            "of one signature, without If and While"
        )
    return graphs[0]


def _buffer(table: Table, network: Path) -> tuple[int, int]:
    """Return the offset and length of a buffer."""
    if table.number(1, "<Q") > 1 or table.number(2, "<Q") > 1:
        raise ModelError(
            f"{network}: has weights outside its FlatBuffer, as newer exporters for LiteRT write "
            "them, and OpenVINO, which runs .tflite files, does not read these; export the network "
            "to ONNX or OpenVINO instead"
        )
    return table.vector(0, "<B") or (0, 0)


def _spec(table: Table, network: Path) -> TensorSpec:
    name = table.text(3)
    shape = table.numbers(0, "<i")
    signature = table.numbers(7, "<i") or shape
    kind = table.number(1, "<b")
    if kind not in _TYPES:
        said = _UNREAD.get(kind, f"number {kind}")
        raise ModelError(f"{network}: tensor {name!r} is of type {said}, which is not supported")
    if len(shape) > MAX_RANK or len(signature) != len(shape) or min(shape, default=0) < 0:
        raise DamagedError("a shape makes no sense")
    if prod(shape) > MAX_ITEMS:
        raise DamagedError("a shape makes no sense")
    if table.table(6) is not None:
        raise ModelError(
            f"{network}: tensor {name!r} is sparse, which is not supported; convert it again from "
            "the network that was trained, without sparsity"
        )
    sizes = tuple(
        None if open_ < 0 else int(size) for size, open_ in zip(shape, signature, strict=True)
    )
    return TensorSpec(name, sizes, _TYPES[kind][0])


def _quantization(table: Table, spec: TensorSpec, network: Path) -> None:
    """Check that scales and zero points are finite, and one or as many as channels."""
    given = table.table(4)
    if given is None:
        return
    scales, zeros = given.numbers(2, "<f"), given.numbers(3, "<q")
    for place in (0, 1):
        given.numbers(place, "<f")
    if given.number(4, "<B"):
        raise ModelError(
            f"{network}: tensor {spec.name!r}: its kind of quantization is not supported"
        )
    if not scales:
        return
    if not all(np.isfinite(scales)) or len(zeros) not in {0, 1, len(scales)}:
        raise DamagedError("scales and zero points make no sense")
    axis = given.number(6, "<i")
    if len(scales) > 1:
        sizes = spec.shape
        if axis >= len(sizes):
            raise ModelError(
                f"{network}: tensor {spec}: its quantization is one that the engines refuse, along "
                f"an axis {axis} that it lacks; convert it again with a newer TensorFlow"
            )
        if axis < 0 or sizes[axis] != len(scales):
            raise DamagedError("the numbers of scales and channels differ")


def _check_constant(spec: TensorSpec, start: int, length: int, network: Path) -> None:
    where = f"{network}: tensor {spec.name!r}"
    bits = next(bits for name, bits in _TYPES.values() if name == spec.dtype)
    sizes = [0 if size is None else size for size in spec.shape]
    expected = -(-prod(sizes) * bits // 8)
    if length != expected:
        raise ModelError(f"{where}: expected {expected} bytes for {spec}, found {length}")
    if spec.dtype in _FLOATS:
        kind = _FLOATS[spec.dtype]
        count = length // np.dtype(kind).itemsize
        ensure_finite(np.memmap(network, kind, "r", start, (count,)), where)


def _indices(table: Table, field: int, count: int) -> list[int]:
    found = [int(index) for index in table.numbers(field, "<i")]
    if any(not 0 <= index < count for index in found):
        raise DamagedError("an operator names a tensor that does not exist")
    return found


def _refuse_state(
    operator: Table, codes: Sequence[int], tables: Sequence[Table], network: Path
) -> None:
    """Check that no input of an operator keeps its value from one run to the next."""
    taken = [int(index) for index in operator.numbers(1, "<i")]
    if any(0 <= index < len(tables) and tables[index].number(5, "<B") for index in taken):
        place = operator.number(0, "<I")
        code = codes[place] if place < len(codes) else -1
        raise ModelError(
            f"{network}: keeps its state inside (operator {NAMES.get(code, f'number {code}')}), "
            "which OpenVINO does not run; export it with the state as input and output, or, where "
            "each run begins anew, unrolled (Keras: LSTM(…, unroll=True))"
        )


def _ensure_runs(
    operator: Table, codes: Sequence[int], tables: Sequence[Table], network: Path
) -> None:
    kinds = {tables[at].number(1, "<b") for at in operator.numbers(1, "<i") if at != -1}
    ensure_runs(codes[operator.number(0, "<I")], on_complex=_COMPLEX in kinds, network=network)


def _check_operator(
    operator: Table,
    codes: Sequence[int],
    known: set[int],
    makers: dict[int, tuple[str, int]],
    count: int,
) -> list[int]:
    """Check that an operator's inputs exist before it; note and return its outputs."""
    code = operator.number(0, "<I")
    if code >= len(codes):
        raise DamagedError("an operator has no kind")
    # -1 is an input that is left out.
    taken = [int(index) for index in operator.numbers(1, "<i") if index != -1]
    if any(index not in known for index in taken):
        raise DamagedError("an operator takes a tensor that nothing has made before")
    made = _indices(operator, 2, count)
    # Outputs must be new: inputs and constants must not be written to.
    if any(index in known for index in made) or len(set(made)) != len(made):
        raise DamagedError("an operator makes a tensor that already exists")
    kind = operator.number(3, "<B")
    options = operator.table(4)
    if (kind == 0) != (options is None) or kind != _OPTIONS.get(codes[code], kind):
        raise DamagedError("an operator lacks its options, or has those of another one")
    if options is not None:
        _check_options(options, kind)
    for field, form in ((5, "<B"), (7, "<?"), (8, "<i")):
        operator.vector(field, form)
    if operator.table(12) is not None or operator.number(11, "<B"):
        raise DamagedError("an operator has options of a kind that is not supported")
    known.update(made)
    name = NAMES.get(codes[code], f"builtin {codes[code]}")
    followed = taken[-1 if name == "Concat" else 0] if taken else -1
    makers.update(dict.fromkeys(made, (name, followed)))
    return made


def _check_options(options: Table, kind: int) -> None:
    """Check that options lie within their table, and their vector within the file."""
    if kind in _VECTORS:
        options.vector(*_VECTORS[kind])
        return
    for field in range(options.fields):
        # Only a parser knows how wide each is; only those above contain offsets.
        at = options.place(field, 1)
        if at is not None and at + _WIDEST > len(options.data):
            raise DamagedError("an operator's options reach beyond the file")


def _step(table: Table) -> tuple[float, int] | None:
    """Return the scale and zero point of a tensor if it has one of each."""
    given = table.table(4)
    if given is None:
        return None
    scales, zeros = given.numbers(2, "<f"), given.numbers(3, "<q")
    if len(scales) != 1 or not scales[0] > 0:
        return None
    return float(scales[0]), int(zeros[0]) if zeros else 0


def _metadata(model: Table, data: Buffer, constants: Sequence[tuple[int, int]]) -> dict[str, str]:
    """Return the file's texts; "TFLITE_METADATA" has the place of its own metadata."""
    said = {"description": model.text(3)} if model.text(3) else {}
    for entry in model.tables(6):
        place = entry.number(1, "<I")
        if place >= len(constants):
            raise DamagedError("its metadata is missing")
        start, length = constants[place]
        name = entry.text(0)
        if name == "TFLITE_METADATA":
            said[name] = f"{start} {length}"
        elif length <= 256:
            text = bytes(data[start : start + length]).rstrip(b"\0").decode("utf-8", "replace")
            if text.isprintable():  # the converter's own entry is binary
                said[name] = text
    return said
