"""Passes: rewrites of a network's graph before it is optimized, each verified or undone.

The engine's outputs with the rewritten network must equal the original's, bit for bit.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....core.errors import EngineError
from ....core.types import TensorSpec
from ....device.resources import adds_bytes_exactly
from ...engines.ort import OrtEngine, fitting
from ...engines.ort_session import Words
from ...folding.cut import InputCut
from ...folding.fold import Fold
from . import zero_point
from .mapped_network import Constants, MappedNetwork
from .reference import Reference

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

log = logging.getLogger(__name__)

SIGNED_FILE = "signed.bin"
FILES = (SIGNED_FILE, zero_point.FILE)
"""Weights that passes write; not needed once the network has been optimized."""
_TAKES_WEIGHTS_SECOND = frozenset({"Conv", "Gemm", "MatMul"})
_UINT8 = 2
_RUNS = 7
"""Runs of each network; the fastest counts."""
_MARGIN = 0.05
"""Share by which a rewritten network must be faster: less is noise."""

Ends = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]
"""Inputs and outputs."""


class Rewriter:
    """Applies passes to a network."""

    def __init__(
        self,
        network: MappedNetwork,
        folder: Path,
        words: Words,
        reference: Reference,
        ends: Ends,
        entries: Mapping[str, str],
    ) -> None:
        """Prepare to rewrite a network; *ends* are its inputs and outputs."""
        self._network = network
        self._folder = folder
        self._words = words
        self._reference = reference
        self._ends = ends
        self._entries = entries

    def rewrite_weights(self) -> list[str]:
        """Apply every pass over eight-bit weights; return the names of those that are kept."""
        if not adds_bytes_exactly():
            return []
        network, folder, floats = self._network, self._folder, self._computed_in_floats
        passes: dict[str, Callable[[], ModelProto | None]] = {
            "signed": lambda: give_sign(network, folder),
            "zero_point": lambda: zero_point.rewrite(network, folder, floats),
        }
        return [name for name, rewrite in passes.items() if self._apply(name, rewrite())]

    def fold_input(self, cut: InputCut | None) -> Fold | None:
        """Apply *cut* to the network's input; returns None if the input stays unchanged."""
        cut = None if cut is None else fitting(cut, self._words)
        if cut is None:
            return None
        folded = self._network.folded(cut)
        return cut.fold if self._apply("fold", folded, must_gain=False, fold=cut.fold) else None

    def _apply(
        self,
        name: str,
        rewritten: ModelProto | None,
        *,
        must_gain: bool = True,
        fold: Fold | None = None,
    ) -> bool:
        """Rewrite the network; undo that if numbers differ, or if a required speedup is missing."""
        if rewritten is None:
            return False
        network = self._network
        itself = network.model
        try:
            limit = float("inf")
            if must_gain:
                limit = self._processor_seconds(self._engine(None)) * (1 - _MARGIN)
            network.model = rewritten
            engine = self._engine(fold)
            if self._reference.distance_from(engine) == 0 and (
                not must_gain or self._processor_seconds(engine) < limit
            ):
                return True
        except EngineError as problem:
            log.info("%s: pass %s is not applied: %s", network.network.name, name, problem)
        network.model = itself
        return False

    def _engine(self, fold: Fold | None) -> OrtEngine:
        session = self._network.session(self._words, self._folder, self._entries)
        return OrtEngine(session, *self._ends, fold)

    def _computed_in_floats(self) -> set[str]:
        """Return the constants that the engine converts to floats while the network runs."""
        graph = self._network.optimize(self._words, self._folder).graph
        return {node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}

    def _processor_seconds(self, engine: OrtEngine) -> float:
        """Return the CPU seconds of an inference, summed over all cores: the least of a few."""
        least = float("inf")
        for _ in range(_RUNS):
            start = time.process_time()
            engine.infer(self._reference.samples[0])
            least = min(least, time.process_time() - start)
        return least


def give_sign(network: MappedNetwork, folder: Path) -> ModelProto | None:
    """Pass: make unsigned eight-bit weights signed: the same numbers, faster on x86.

    Some converters write uint8 weights with a zero point near 128. On x86, ONNX Runtime has fast
    kernels for unsigned steps times signed weights (TensorFlow Lite's MobileNetV2: 4.9 instead of
    7.3 ms of one core per inference). Subtracting 128 from the weights and their zero point changes
    no result if the processor does not saturate in between, which needs VNNI.

    Returns None if there are no such weights.
    """
    from onnx import ModelProto

    model = ModelProto()
    model.CopyFrom(network.model)
    constants = Constants(network, model.graph, folder / SIGNED_FILE)
    for node, weights, zero in list(_places(model.graph, constants)):
        for index in (weights, zero):
            name = node.input[index]
            made = f"signed/{name}"
            if made not in constants:
                constants.replace(name, made, (constants.array(name) ^ 0x80).view(np.int8))
            node.input[index] = made
    return model if constants.finish() else None


def _places(graph: GraphProto, constants: Constants) -> Iterator[tuple[NodeProto, int, int]]:
    """Yield each node that takes such weights, and the input indices of weights and zero point."""
    users: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for node in graph.node:
        for index, name in enumerate(node.input):
            users[name].append((node.op_type, index))
    for value in graph.output:
        users[value.name].append(("", 0))

    def bare(name: str) -> bool:
        return constants.kind(name) == _UINT8

    for node in graph.node:
        if node.op_type == "DequantizeLinear" and len(node.input) == 3:
            after = users[node.output[0]]
            fits = after and all(
                index == 1 and operator in _TAKES_WEIGHTS_SECOND for operator, index in after
            )
            if fits and bare(node.input[0]) and bare(node.input[2]):
                yield node, 0, 2
        elif node.op_type == "QLinearConv" and bare(node.input[3]) and bare(node.input[5]):
            yield node, 3, 5
