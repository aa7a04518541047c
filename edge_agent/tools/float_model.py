"""A float network made ready for quantization, and the part to be quantized."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.containment import contained
from ..core.errors import ModelError
from ..core.frozen import record
from ..models.files.check_onnx import inspect

OPSET = 13
"""The first whose DequantizeLinear takes a scale for each channel."""
OLDEST = 7
"""The first that the converter of opsets starts from safely."""
MAX_WEIGHT_BYTES = 2**31 - 2**26
"""A protobuf message holds less than 2 GiB, and the quantized network is written as one."""

HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that eight bits make faster."""


@record(quick=True, eq=False)
class FloatNetwork:
    """A float network, ready."""

    path: Path
    heavy: tuple[str, ...]
    """Names of the operators that eight bits make faster, in order of execution."""
    tail: tuple[str, ...]
    """Names of the operators behind the last of those: what they make is the result, which eight
    bits only make coarse."""
    followers: Mapping[str, tuple[str, ...]]
    """By heavy operator: those that take nothing but what it makes, such as its activation. Where
    it stays float, they do: in eight bits they would lose what it was left float for."""
    opset: int
    """Of the file as it was given."""


def check_float(network: Path) -> None:
    """Check that a file holds a float network that can be quantized, as far as is quickly known."""
    facts = inspect(network)
    if facts.kind != "onnx":
        raise ModelError(f"{network}: quantize takes .onnx; export the model as ONNX")
    if facts.quantized:
        raise ModelError(f"{network}: is quantized already; give the float model that it came from")
    if facts.weight_bytes > MAX_WEIGHT_BYTES:
        raise ModelError(
            f"{network}: {facts.weight_bytes / 2**30:.1f} GiB of weights, expected less than 2; "
            "quantize it where it was trained"
        )


def make_ready(network: Path, place: Path) -> FloatNetwork:
    """Check a network and write it, ready to be quantized, into the folder *place*."""
    check_float(network)
    import onnx
    from onnx import version_converter
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(network)
    opset = max(each.version for each in model.opset_import if each.domain in {"", "ai.onnx"})
    if opset < OLDEST:
        raise ModelError(
            f"{network}: opset {opset} is too old; export it with opset {OPSET} or later"
        )
    with contained(f"{network}: opset {opset} cannot be raised to {OPSET}", ModelError):
        _drop_weights_from_inputs(model)
        if opset < OPSET:
            model = version_converter.convert_version(model, OPSET)
    plain, ready = place / "plain.onnx", place / "ready.onnx"
    onnx.save(model, plain)
    with contained(f"{network}: inferring its shapes", ModelError), quiet():
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
    model = onnx.load(ready)
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    onnx.save(model, ready)
    plain.unlink()
    heavy = tuple(node.name for node in model.graph.node if node.op_type in HEAVY)
    if not heavy:
        raise ModelError(
            f"{network}: has nothing that eight bits make faster ({', '.join(sorted(HEAVY))})"
        )
    return FloatNetwork(ready, heavy, _tail(model.graph), _followers(model.graph), opset)


def _drop_weights_from_inputs(model: Any) -> None:
    """Leave initializers out of the inputs, where exporters listed them before IR version 4."""
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 8)


def _tail(graph: Any) -> tuple[str, ...]:
    """List the operators from which none that is heavy can be reached."""
    leads: set[str] = set()
    """Tensors that a heavy operator's result is made of."""
    tail = []
    for node in reversed(graph.node):
        if node.op_type in HEAVY or any(name in leads for name in node.output):
            leads.update(node.input)
        else:
            tail.append(node.name)
    return tuple(reversed(tail))


def _followers(graph: Any) -> dict[str, tuple[str, ...]]:
    """List behind each heavy operator those that take only its outputs."""
    source: dict[str, str] = {}
    """By tensor: the heavy operator that it is all made of."""
    constants = {tensor.name for tensor in graph.initializer}
    found: dict[str, list[str]] = {}
    for node in graph.node:
        if node.op_type in HEAVY:
            source.update(dict.fromkeys(node.output, node.name))
            found[node.name] = []
            continue
        taken = {name for name in node.input if name and name not in constants}
        makers = {source.get(name) for name in taken}
        maker = makers.pop() if len(makers) == 1 else None
        if maker is not None:
            source.update(dict.fromkeys(node.output, maker))
            found[maker].append(node.name)
    return {name: tuple(nodes) for name, nodes in found.items()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the quantizers' prints out of a command's output; their problems are exceptions."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)  # its own, of what is native
    # NNCF imports PyTorch where that is installed, which warns of a missing GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        root.setLevel(before)
