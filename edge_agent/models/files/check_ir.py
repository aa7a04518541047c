"""Checks an OpenVINO IR: the .xml, read as a stream, and its .bin, before OpenVINO reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np

from ...core.errors import ModelError
from ...core.types import Array, TensorSpec
from .facts import CONVERSION, FRAMEWORK, JOINED, OPENVINO_TYPES, PUT_INSIDE, NetworkFacts, maker_of
from .finite import ensure_finite

LEAST_VERSION = 10
"""IR version of OpenVINO 2020; older ones are no longer read by anything."""
MAX_XML_BYTES = 64 * 1024 * 1024
MAX_LAYERS = 200_000
MAX_REMEMBERED = 500_000
"""Most edges and entries of metadata kept; an element takes 15 bytes in the file."""
_MAX_DEPTH = 200
_BEGIN = 4096
"""Bytes in which the root of an IR begins."""

# Values of a port's `precision` that are not the type's name in capitals.
_PRECISIONS = {"FP16": "f16", "FP32": "f32", "FP64": "f64", "BOOL": "boolean"}
_FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16}
_BITS = {
    **{kind: np.dtype(name).itemsize * 8 for kind, name in OPENVINO_TYPES.items()},
    "bf16": 16,
    "f8e4m3": 8,
    "f8e5m2": 8,
    "f8e8m0": 8,
    "f4e2m1": 4,
    "nf4": 4,
    "u1": 1,
    "u2": 2,
    "u4": 4,
    "i4": 4,
}

_UNCHANGED = frozenset({"Concat", "Convert", "FakeQuantize", "StridedSlice", "Slice", "Transpose"})
"""Layers that leave a picture's numbers as they are."""
_COMPUTED = {"Multiply": np.multiply, "Subtract": np.subtract}
"""What makes numbers of integers."""
_TAKES_WEIGHTS = frozenset({"Convolution", *_COMPUTED})
_DEEPEST = 8
"""Most layers between a constant and the convolution that takes it."""
MOST_NUMBERS = 2**22
"""Of weights that are read."""


@dataclass(slots=True)
class _Layer:
    """One layer of the outermost network."""

    id: str
    type: str
    name: str
    attributes: dict[str, str]
    data: dict[str, str] = field(default_factory=dict)
    port: dict[str, str] = field(default_factory=dict)
    """The last port seen: inputs have one output, results one input."""
    sizes: list[str] = field(default_factory=list)
    """Sizes of that port."""
    ports: dict[str, dict[str, str]] = field(default_factory=dict)
    """All ports by id."""


def inspect_ir(network: Path) -> NetworkFacts:
    """Read an .xml file and check its weights.

    Raises:
        ModelError: it is malformed, too large, has a DOCTYPE, lacks its .bin, has weights outside
            the .bin or that are not numbers, or operators of an extension.
    """
    size = network.stat().st_size
    if size > MAX_XML_BYTES:
        raise ModelError(f"{network}: {size} bytes, expected at most {MAX_XML_BYTES} of an IR")
    weights = network.with_suffix(".bin")
    if not weights.is_file():
        with network.open("rb") as stream:
            begins = b"<net" in stream.read(_BEGIN)
        why = f"{weights.name} is missing beside it" if begins else "not an IR: it lacks <net>"
        raise ModelError(f"{network}: {why}")
    reader = _Reader(network, weights.stat().st_size)
    reader.read()
    _check_weights(weights, reader.constants)
    if not reader.results:
        raise ModelError(f"{network}: not a valid IR: it has no results")
    inputs = tuple(_input(layer) for layer in reader.parameters)
    results = [_output(layer, reader) for layer in reader.results]
    made = partial(_made, reader=reader)
    return NetworkFacts(
        kind="ir",
        files=(network, weights),
        inputs=inputs,
        outputs=tuple(spec for spec, _ in results),
        makers={spec.name: maker_of(layer, made) for spec, layer in results},
        ends={spec.name: maker_of(layer, made, JOINED) for spec, layer in results},
        metadata=reader.metadata,
        nodes=reader.count,
        operators=frozenset(reader.operators),
        weight_bytes=weights.stat().st_size,
        quantized=reader.quantized,
    )


def first_kernel(network: Path) -> Array | None:
    """Read the weights of the first convolution of an IR that has been checked.

    Returns:
        Output channels first, as floats; None: there is none, its weights are computed otherwise
        than from integers and a scale, or something computes before it.
    """
    weights = network.with_suffix(".bin")
    reader = _Reader(network, weights.stat().st_size)
    reader.read()
    first = next((each for each in reader.layers.values() if each.type == "Convolution"), None)
    at = first
    for _ in reader.layers:
        if at is not None and at.type in _UNCHANGED | {"Convolution"}:
            at = reader.layers.get(reader.sources.get(at.id, ("", ""))[0])
    if first is None or at is None or at.type != "Parameter":
        return None
    return _numbers(reader.seconds.get(first.id, ""), reader, weights)


def _numbers(layer_id: str, reader: _Reader, weights: Path, depth: int = 0) -> Array | None:
    """Return what constants make of themselves up to a layer."""
    layer = reader.layers.get(layer_id)
    if layer is None or depth > _DEEPEST:
        return None
    if layer.type not in {"Const", "Convert", "Reshape", *_COMPUTED}:
        return None
    if layer.type == "Const":
        kind = OPENVINO_TYPES.get(layer.data["element_type"])
        shape = [int(part) for part in layer.data.get("shape", "").split(",") if part.strip()]
        offset = int(layer.data["offset"])
        if kind is None or prod(shape) > MOST_NUMBERS:
            return None
        return np.fromfile(weights, kind, prod(shape), offset=offset).reshape(shape)
    left = _numbers(reader.sources.get(layer_id, ("", ""))[0], reader, weights, depth + 1)
    if left is None or layer.type not in _COMPUTED:
        return left
    right = _numbers(reader.seconds.get(layer_id, ""), reader, weights, depth + 1)
    if right is None or right.size not in {1, *left.shape[:1]}:
        return None
    right = right.reshape(-1, *[1] * (left.ndim - 1))
    return _COMPUTED[layer.type](left.astype(np.float32), right)


class _Reader:
    """Reads one .xml file, keeping only the parts that are needed."""

    def __init__(self, network: Path, weight_bytes: int) -> None:
        self.parameters: list[_Layer] = []
        self.results: list[_Layer] = []
        self.constants: dict[tuple[int, int, str], str] = {}
        """Name of a layer by the offset, size, and type of its constant."""
        self.metadata: dict[str, str] = {}
        self.layers: dict[str, _Layer] = {}
        self.sources: dict[str, tuple[str, str]] = {}
        """By id of a layer: layer and port of its first input, or for a Concat its last."""
        self.seconds: dict[str, str] = {}
        """By id of a convolution, or of what computes its weights: layer of its second input."""
        self.count = 0
        self.operators: set[str] = set()
        self.quantized = False
        self._network = network
        self._weight_bytes = weight_bytes
        self._path: list[str] = []
        self._open: list[_Layer] = []
        """The layers being read: within a loop's body, also the loop."""

    def read(self) -> None:
        parser = expat.ParserCreate()
        # Entities can only be defined in a DOCTYPE, and no IR has one.
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.buffer_text = True
        try:
            with self._network.open("rb") as stream:
                parser.ParseFile(stream)
        except expat.ExpatError as problem:
            raise ModelError(f"{self._network}: not well-formed XML: {problem}") from None
        except UnicodeError:
            raise ModelError(f"{self._network}: not well-formed XML: wrong encoding") from None

    def _refuse_doctype(self, *_: object) -> None:
        raise ModelError(f"{self._network}: has a DOCTYPE, which no IR has; it is refused")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) == 1 and tag != "net":
            raise ModelError(f"{self._network}: not an IR: its root is <{tag}>, expected <net>")
        if len(self._path) == 1:
            self._need_version(attributes.get("version", ""))
        if len(self._path) > _MAX_DEPTH:
            raise ModelError(f"{self._network}: not a valid IR: nested {_MAX_DEPTH} levels deep")
        if len(self.sources) + len(self.seconds) + len(self.metadata) > MAX_REMEMBERED:
            raise ModelError(f"{self._network}: more than {MAX_REMEMBERED} edges and entries")
        if tag == "layer":
            self._start_layer(attributes)
        elif self._path[:2] == ["net", "rt_info"] and len(self._path) > 2:
            if "value" in attributes:
                self.metadata[" ".join(self._path[2:])] = attributes["value"]
        elif self._path[:3] == ["net", "meta_data", "cli_parameters"] and len(self._path) == 4:
            # IR before OpenVINO 2023 lists every option, most without a value.
            key = f"{CONVERSION} {tag}"
            if (tag in PUT_INSIDE or key == FRAMEWORK) and "value" in attributes:
                self.metadata[key] = attributes["value"]
        elif tag == "edge" and len(self._path) == 3:
            self._take_edge(attributes)
        elif self._open:
            self._start_part(self._open[-1], tag, attributes)

    def _take_edge(self, attributes: dict[str, str]) -> None:
        to = attributes.get("to-layer", "")
        joins = to in self.layers and self.layers[to].type == "Concat"
        if joins or attributes.get("to-port", "0") == "0":
            self.sources[to] = attributes.get("from-layer", ""), attributes.get("from-port", "")
        elif to in self.layers and self.layers[to].type in _TAKES_WEIGHTS:
            self.seconds[to] = attributes.get("from-layer", "")

    def _need_version(self, version: str) -> None:
        if version.isdecimal() and int(version) < LEAST_VERSION:
            raise ModelError(
                f"{self._network}: IR of version {version}, OpenVINO reads {LEAST_VERSION} and "
                "later; convert the original model again"
            )

    def _start_layer(self, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_LAYERS:
            raise ModelError(f"{self._network}: more than {MAX_LAYERS} layers")
        layer = _Layer(
            attributes.get("id", ""),
            attributes.get("type", ""),
            attributes.get("name", ""),
            attributes,
        )
        if attributes.get("version") == "extension":
            raise ModelError(
                f"{self._network}: layer {layer.name!r}: operator {layer.type} belongs to an "
                "extension; extensions are not loaded"
            )
        self.operators.add(layer.type)
        self.quantized = self.quantized or layer.type == "FakeQuantize"
        self._open.append(layer)
        if len(self._path) == 3:
            self.layers[layer.id] = layer
            if layer.type == "Parameter":
                self.parameters.append(layer)
            elif layer.type == "Result":
                self.results.append(layer)

    def _start_part(self, layer: _Layer, tag: str, attributes: dict[str, str]) -> None:
        if tag == "data":
            layer.data = attributes
            if layer.type == "Const":
                self._constant(layer)
        elif tag == "port":
            layer.port = attributes
            layer.sizes = []
            layer.ports[attributes.get("id", "")] = attributes
        elif tag == "dim":
            layer.sizes.append("")

    def _text(self, text: str) -> None:
        if self._open and self._path[-1] == "dim" and self._open[-1].sizes:
            self._open[-1].sizes[-1] += text.strip()

    def _end(self, tag: str) -> None:
        self._path.pop()
        if tag == "layer":
            self._open.pop()

    def _constant(self, layer: _Layer) -> None:
        """Check that a constant's size fits its shape, and that it is inside the .bin."""
        where = f"{self._network}: constant {layer.name!r}"
        kind = layer.data.get("element_type", "")
        try:
            offset, size = int(layer.data["offset"]), int(layer.data["size"])
            shape = [int(part) for part in layer.data.get("shape", "").split(",") if part.strip()]
        except (KeyError, ValueError):
            raise ModelError(f"{where}: offset, size and shape must be whole numbers") from None
        if min([offset, size, *shape]) < 0:
            raise ModelError(f"{where}: offset, size and shape must not be negative")
        if kind in _BITS and size != (expected := -(-prod(shape) * _BITS[kind] // 8)):
            raise ModelError(f"{where}: expected {expected} bytes for {kind}{shape}, found {size}")
        if offset + size > self._weight_bytes:
            raise ModelError(
                f"{where}: reaches to byte {offset + size} of {self._network.stem}.bin, which has "
                f"{self._weight_bytes}; it is cut short or belongs to another model"
            )
        self.constants.setdefault((offset, size, kind), layer.name)


def _check_weights(weights: Path, constants: dict[tuple[int, int, str], str]) -> None:
    floats = {key: name for key, name in constants.items() if key[2] in _FLOATS and key[1]}
    if not floats:
        return
    # Mapped, not read: OpenVINO maps the same pages right afterwards.
    data = np.memmap(weights, mode="r")
    for (offset, size, kind), name in floats.items():
        values: Any = np.frombuffer(data, _FLOATS[kind], size * 8 // _BITS[kind], offset)
        ensure_finite(values, f"{weights}: constant {name!r}")


def _input(layer: _Layer) -> TensorSpec:
    shape = [part.strip() for part in layer.data.get("shape", "").split(",")]
    kind = layer.data.get("element_type", "")
    names = layer.port.get("names", "").split(",")
    return TensorSpec(
        names[0] or layer.name,
        # "?", "-1" or a range "1..8" leave the size open.
        tuple(int(part) if part.isdigit() else None for part in shape if part),
        OPENVINO_TYPES.get(kind, kind),
    )


def _output(layer: _Layer, reader: _Reader) -> tuple[TensorSpec, str]:
    """Describe a result and return the id of the layer whose numbers it returns."""
    layer_id, port_id = reader.sources.get(layer.id, ("", ""))
    source = reader.layers.get(layer_id)
    port = source.ports.get(port_id, {}) if source else {}
    # IR before version 11 only states the type where a tensor is made.
    precision = layer.port.get("precision") or port.get("precision", "")
    kind = _PRECISIONS.get(precision, precision.lower())
    names = port.get("names", "").split(",")
    declared = layer.attributes.get("output_names") or layer.name.removesuffix("/sink_port_0")
    name = declared if declared in names or not names[0] else names[0]
    sizes = tuple(int(size) if size.isdigit() else None for size in layer.sizes)
    return TensorSpec(name, sizes, OPENVINO_TYPES.get(kind, kind)), layer_id


def _made(layer_id: str, reader: _Reader) -> tuple[str, str] | None:
    layer = reader.layers.get(layer_id)
    return None if layer is None else (layer.type, reader.sources.get(layer_id, ("", ""))[0])
