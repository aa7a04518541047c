"""Whether an ONNX file may be opened the quick way (`ort_quick`), and with which options.

Needs no engine, so that it may go on while that is being imported.

What is opened so computes what the network says. Where eight-bit products would saturate, it
computes in floats, as the network is written; a network that leaves no choice is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from pathlib import Path

from ...core.errors import EngineError, ModelError
from ...device.resources import SAFE_WEIGHT, adds_bytes_exactly
from ...models.files.check_onnx import inspect
from ...models.files.external_weights import externalize_weights
from ...models.files.onnx_reader import iter_tensors
from ...models.files.onnx_schema import INT8
from .engine import CheckedNetwork, EngineChoice

MAX_BYTES = 512 * 2**20
"""Of a file; a larger one would be in memory twice."""
_NUMBER = 10
"""Bytes that one number can take that is not raw."""
_IN_BYTES = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})
"""Operators that multiply bytes, however little is optimized; beside those of other domains."""
_NO_CHOICE = "multiplies bytes that this processor may saturate"

Read = Callable[[Path], bytes | mmap]
"""Reads a file into memory that does not follow it; raises OSError."""


def check(choice: EngineChoice, network: Path, read: Read) -> CheckedNetwork:
    """Read and check a network.

    Raises:
        ModelError: the network is not fit to run, on whatever engine.
        EngineError: it has to be loaded in another way.
    """
    try:
        if network.stat().st_size > MAX_BYTES:
            raise EngineError(f"{network.name}: is larger than {MAX_BYTES >> 20} MiB")
        data = read(network)
    except OSError as problem:
        raise ModelError(f"{network}: cannot be read: {problem.strerror}") from None
    facts = inspect(network, data)
    if len(facts.files) > 1:
        raise EngineError(f"{network.name}: has weights in other files")
    exact = adds_bytes_exactly() or not _is_steep(data)
    if not exact and any("." in name or name in _IN_BYTES for name in facts.operators):
        raise EngineError(f"{network.name}: {_NO_CHOICE}")
    graph = externalize_weights(data, network.name)
    return CheckedNetwork(choice, network, data, graph, exact)


def _is_steep(data: bytes | mmap) -> bool:
    """Whether weights of eight bits are so large that sums of their products may saturate."""
    import numpy as np

    for tensor in iter_tensors(data, (0, len(data))):
        begin, end = tensor.data
        # A single number is no weight but a zero point, whatever way it is written.
        if tensor.dtype != INT8 or end - begin <= (_NUMBER if tensor.raw is None else 1):
            continue
        # What is not raw has seven bits of a number in each byte, and more than one for a negative.
        kind = np.uint8 if tensor.raw is None else np.int8
        values = np.frombuffer(data, kind, end - begin, begin)
        if int(values.max()) > SAFE_WEIGHT or int(values.min()) < -SAFE_WEIGHT:
            return True
    return False
