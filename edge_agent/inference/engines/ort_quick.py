"""The quickest way to a right result of an ONNX file: lightly optimised, on ONNX Runtime's CPU.

A full optimisation takes longer than the first inference gains by it, and any other engine longer
to import. The file is read once: what has been checked is what is run, and what becomes of the file
while the session serves changes nothing.

It computes what the network says. Where eight-bit products would saturate, it computes in floats,
as the network is written; a network that leaves no choice is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import EngineError, ModelError
from ...device.resources import SAFE_WEIGHT, adds_bytes_exactly
from ...models.files.check_onnx import inspect
from ...models.files.external_weights import externalize_weights
from ...models.files.onnx_reader import iter_tensors
from ...models.files.onnx_schema import INT8
from .engine import EngineChoice, FixShapes, fix_inputs
from .ort import OrtEngine, session_config, specs
from .ort_options import EXACT_BYTES
from .ort_stages import open_session

MAX_BYTES = 512 * 2**20
"""Of a file; a larger one would be in memory twice."""
_NUMBER = 10
"""Bytes that one number can take that is not raw."""
_IN_BYTES = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})
"""Operators that multiply bytes, however little is optimised; beside those of other domains."""
_NO_CHOICE = "multiplies bytes that this processor may saturate"


class OrtQuickEngine(OrtEngine):
    """A session whose weights lie in a file that has been read."""

    def __init__(self, session: Any, network: Path, fix_shapes: FixShapes, data: bytes) -> None:
        """Make an engine of a session.

        Raises:
            EngineError: an input stays open.
            ModelError: the inputs are larger than this device has memory for.

        """
        inputs = fix_inputs(specs(session.get_inputs(), network), fix_shapes, network)
        super().__init__(session, inputs, specs(session.get_outputs(), network))
        self._data = data
        """Lives as long as the engine: the session, and a call that is under way, use it."""


class QuickLoad:
    """A network that has been checked and loaded, before anything else of its model is known."""

    def __init__(self, choice: EngineChoice, network: Path) -> None:
        """Read, check and load a network.

        Args:
            choice: ONNX Runtime on the CPU, with its threads.
            network: the .onnx file; all weights must be in it.

        Raises:
            ModelError: the network is not fit to run, on whatever engine.
            EngineError: it has to be loaded in another way.

        """
        self._network = network
        try:
            if network.stat().st_size > MAX_BYTES:
                raise EngineError(f"{network.name}: is larger than {MAX_BYTES >> 20} MiB")
            self._data = network.read_bytes()
        except OSError as problem:
            raise ModelError(f"{network}: cannot be read: {problem.strerror}") from None
        facts = inspect(network, self._data)
        if len(facts.files) > 1:
            raise EngineError(f"{network.name}: has weights in other files")
        words, _ = session_config(choice)
        # Which takes long to open, and is seen to in other ways here.
        entries = {key: text for key, text in words["entries"].items() if key != EXACT_BYTES}
        exact = adds_bytes_exactly() or not _is_steep(self._data)
        if not exact and any("." in name or name in _IN_BYTES for name in facts.operators):
            raise EngineError(f"{network.name}: {_NO_CHOICE}")
        name = network.name
        self._session = open_session(
            externalize_weights(self._data, name),
            {**words, "entries": entries, "level": "extended" if exact else "basic"},
            name,
            weights={name: self._data},
        )

    def engine(self, fix_shapes: FixShapes) -> OrtQuickEngine:
        """Return the engine; see `OrtQuickEngine`."""
        return OrtQuickEngine(self._session, self._network, fix_shapes, self._data)


def _is_steep(data: bytes) -> bool:
    """Whether weights of eight bits are so large that sums of their products may saturate."""
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
