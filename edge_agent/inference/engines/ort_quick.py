"""The fastest way to a right result of an ONNX file: lightly optimized, on ONNX Runtime's CPU.

A full optimization takes longer than the first inference gains by it, and any other engine longer
to import. The file is read once: what has been checked is what is run, and what becomes of the file
while the session serves changes nothing. What is opened so computes what the network says: where
eight-bit products would saturate, it computes in floats, as the network is written; a network that
leaves no choice is refused. Light: `check` needs no engine, and may go on while that is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import EngineError, ModelError
from ...device.resources import SAFE_WEIGHT, adds_bytes_exactly
from .engine import CheckedNetwork, EngineChoice, fix_inputs
from .ort_session import EXACT_BYTES, open_session, session_config

if TYPE_CHECKING:
    from .engine import FixShapes
    from .ort import OrtEngine

MAX_BYTES = 512 * 2**20
"""Of a file; a larger one would be in memory twice."""
_NUMBER = 10
"""Most bytes of a number that is not raw."""
_IN_BYTES = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})
"""Operators that multiply bytes, however little is optimized; beside those of other domains."""
_NO_CHOICE = "multiplies bytes that this processor may saturate"

Read = Callable[[Path], bytes | mmap]
"""Reads a file into memory that does not follow it; raises OSError."""


def check(choice: EngineChoice, network: Path, read: Read) -> CheckedNetwork:
    """Read and check a network; all weights must be in its file.

    Raises:
        ModelError: the network is not fit to run, on whatever engine.
        EngineError: it has to be loaded in another way.
    """
    # Of no use to what opens a session of a network that has been checked elsewhere.
    from ...models.files.check_onnx import inspect
    from ...models.files.external_weights import externalize_weights

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

    from ...models.files.onnx_reader import iter_tensors
    from ...models.files.onnx_schema import INT8

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


class QuickLoad:
    """A network that has been loaded, before anything else of its model is known."""

    def __init__(self, checked: CheckedNetwork) -> None:
        """Load a network that has been checked.

        Raises:
            EngineError: it has to be loaded in another way.
        """
        self._checked = checked
        words, _ = session_config(checked.choice)
        # Which takes long to open, and is seen to in other ways here.
        entries = {key: text for key, text in words["entries"].items() if key != EXACT_BYTES}
        # Takes a quarter off the opening where a processor is free, and nothing where none is.
        entries.setdefault("session.prepack.enable_parallel", "1")
        level = "extended" if checked.exact else "basic"
        name = checked.path.name
        self._session = open_session(
            checked.graph,
            {**words, "entries": entries, "level": level},
            name,
            weights={name: checked.data},
        )

    def engine(self, fix_shapes: FixShapes) -> OrtEngine:
        """Turn the session into an engine; its weights stay in the bytes read from the file.

        Raises:
            EngineError: the shape of an input is still open.
            ModelError: the inputs are larger than this device has memory for.
        """
        from .ort import OrtEngine, specs

        session, network = self._session, self._checked.path
        inputs = fix_inputs(specs(session.get_inputs(), network), fix_shapes, network)
        outputs = specs(session.get_outputs(), network)
        return OrtEngine(session, inputs, outputs, data=self._checked.data)
