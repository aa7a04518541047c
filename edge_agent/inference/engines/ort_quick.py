"""The fastest way to a right result from an ONNX file: light optimization, on ONNX Runtime's CPU.

Full optimization takes longer than it saves in the first inference, and other engines take longer
to import. The file is read once: the bytes that were checked are those that run, and later changes
to the file have no effect. Results are those the network specifies: where eight-bit products would
saturate, it is computed in floats, as it is written; a network that does not allow this is refused.
`check` needs no engine, so it can run while one is imported.
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
"""Most bytes of a file; a larger one would be in memory twice."""
_NUMBER = 10
"""Most bytes of a number that is not raw."""
_SAFE = bytes(range(SAFE_WEIGHT + 1))
_SAFE_SIGNED = _SAFE + bytes(range(256 - SAFE_WEIGHT, 256))
_IN_BYTES = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})
"""Operators that multiply bytes at any level of optimization; so do those of other domains."""
_NO_CHOICE = "multiplies bytes that this processor may saturate"

Read = Callable[[Path], bytes | mmap]
"""Reads a file into memory that later changes to it do not reach; raises OSError."""


def check(choice: EngineChoice, network: Path, read: Read) -> CheckedNetwork:
    """Read and check a network; all weights must be in its file.

    Raises:
        ModelError: the network cannot run on any engine.
        EngineError: it has to be loaded in another way.
    """
    # Not needed to open a session of a network that has been checked elsewhere.
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
    """Whether eight-bit weights are so large that sums of their products may saturate."""
    from ...models.files.onnx_reader import iter_tensors
    from ...models.files.onnx_schema import INT8

    for tensor in iter_tensors(data, (0, len(data))):
        begin, end = tensor.data
        # A single number is a zero point rather than a weight, however it is stored.
        if tensor.dtype != INT8 or end - begin <= (_NUMBER if tensor.raw is None else 1):
            continue
        # Numbers not stored raw have seven bits in each byte; negative ones take several bytes.
        # Not by NumPy, whose import takes longer than all else here.
        if data[begin:end].translate(None, _SAFE if tensor.raw is None else _SAFE_SIGNED):
            return True
    return False


class QuickLoad:
    """A network that is loaded before anything else about its model is known."""

    def __init__(self, checked: CheckedNetwork) -> None:
        """Load a network that has been checked.

        Raises:
            EngineError: it has to be loaded in another way.
        """
        self._checked = checked
        words, _ = session_config(checked.choice)
        # This takes long to open, and saturation is avoided in another way here.
        entries = {key: text for key, text in words["entries"].items() if key != EXACT_BYTES}
        # Opens a quarter faster if a processor is free, and no slower if none is.
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
