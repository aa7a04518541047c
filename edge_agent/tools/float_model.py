"""A float network prepared for quantization, and the part to be quantized."""

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
"""The first opset whose DequantizeLinear takes a scale for each channel."""
OLDEST = 7
"""The first opset that the converter handles safely."""
MAX_WEIGHT_BYTES = 2**31 - 2**26
"""Most bytes of weights: the quantized network is one protobuf message of less than 2 GiB."""

HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that eight bits make faster."""


@record(quick=True, eq=False)
class FloatNetwork:
    """A float network, ready for quantization."""

    path: Path
    heavy: tuple[str, ...]
    """Names of the operators that eight bits make faster, in order of execution."""
    tail: tuple[str, ...]
    """Names of the operators after the last of those: they make the result, which would only become
    coarser in eight bits."""
    followers: Mapping[str, tuple[str, ...]]
    """By heavy operator: operators that only take its output, such as its activation. If it stays
    float, they do, too: in eight bits they would lose the accuracy gained."""
    opset: int
    """Opset of the original file."""


def check_float(network: Path) -> None:
    """Check that a file contains a float network that can be quantized, as far as is quick."""
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
    """Check a network and write it, ready for quantization, to the folder *place*."""
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
    """Remove initializers from the inputs, where exporters listed them before IR version 4."""
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 8)


def _tail(graph: Any) -> tuple[str, ...]:
    """List the operators from which no heavy operator can be reached."""
    leads: set[str] = set()
    """Tensors from which a heavy operator's result is computed."""
    tail = []
    for node in reversed(graph.node):
        if node.op_type in HEAVY or any(name in leads for name in node.output):
            leads.update(node.input)
        else:
            tail.append(node.name)
    return tuple(reversed(tail))


def _followers(graph: Any) -> dict[str, tuple[str, ...]]:
    """List for each heavy operator those that only take its outputs."""
    source: dict[str, str] = {}
    """By tensor: the one heavy operator that it is computed from."""
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
    """Suppress what the quantizers print; their problems are exceptions."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)  # its native logger
    # NNCF imports PyTorch if that is installed, which warns about a missing GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        root.setLevel(before)
