"""What is changed in a network before it is optimised: each change is proved, or taken back.

The engine is asked: what it makes of the changed network has to be the network's own numbers, bit
for bit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.errors import EngineError
from ....core.types import TensorSpec
from ...engines.ort import OrtEngine
from ...engines.ort_fold import fitting
from ...engines.ort_options import Words
from ...folding.cut import InputCut
from ...folding.fold import Fold
from .optimize import MappedNetwork, optimise
from .signed import exact_here, signed
from .verify import Trial
from .zero_point import centred

if TYPE_CHECKING:
    from onnx import ModelProto

log = logging.getLogger(__name__)

_RUNS = 7
"""Of each network; the quickest counts."""
_MARGIN = 0.05
"""Share by which a change must be quicker: less is noise."""

Ends = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]
"""Inputs and outputs."""


def change(
    outside: MappedNetwork,
    folder: Path,
    words: Words,
    trial: Trial,
    ends: Ends,
) -> list[str]:
    """Change weights in each way there is, if the numbers stay as they are and come more quickly.

    Args:
        outside: the network; changed, or as it was.
        folder: for files.
        words: options of sessions.
        trial: has the network's own numbers.
        ends: inputs and outputs of the network.

    Returns:
        What has been changed.

    """
    if not exact_here():
        return []
    ways = {
        "signed": lambda: signed(outside, folder),
        "centred": lambda: centred(outside, folder, lambda: _in_floats(outside, folder, words)),
    }
    return [name for name, way in ways.items() if _kept(way, outside, folder, words, trial, ends)]


def _in_floats(outside: MappedNetwork, folder: Path, words: Words) -> set[str]:
    """Name the constants that the engine makes floats of while the network runs."""
    graph = optimise(outside, words, folder).graph
    return {node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}


def _kept(
    way: Callable[[], ModelProto | None],
    outside: MappedNetwork,
    folder: Path,
    words: Words,
    trial: Trial,
    ends: Ends,
) -> bool:
    """Make a change; take it back if numbers differ or it is no gain."""
    changed = way()
    if changed is None:
        return False
    itself = outside.model
    try:
        before = _processor_seconds(OrtEngine(outside.session(words, folder, {}), *ends), trial)
        outside.model = changed
        engine = OrtEngine(outside.session(words, folder, {}), *ends)
        if trial.distance_from(engine) == 0 and _processor_seconds(engine, trial) < before * (
            1 - _MARGIN
        ):
            return True
    except EngineError as problem:
        log.info("%s: its weights stay as they are: %s", outside.network.name, problem)
    outside.model = itself
    return False


def _processor_seconds(engine: OrtEngine, trial: Trial) -> float:
    """Measure what an inference takes of all cores together: the least of a few."""
    least = float("inf")
    for _ in range(_RUNS):
        begin = time.process_time()
        engine.infer(trial.samples[0])
        least = min(least, time.process_time() - begin)
    return least


def fold(
    outside: MappedNetwork,
    cut: InputCut | None,
    words: Words,
    trial: Trial,
    load: Callable[[], Any],
    ends: Ends,
) -> Fold | None:
    """Cut off what may be cut off the network's input, if the numbers stay as they are.

    Args:
        outside: the network; changed, or as it was.
        cut: what may be cut off.
        words: options of sessions.
        trial: has the network's own numbers.
        load: makes a session of what is in *outside*.
        ends: inputs and outputs of the network itself.

    """
    cut = None if cut is None else fitting(cut, words)
    if cut is None:
        return None
    itself, outside.model = outside.model, outside.folded(cut)
    try:
        distance = trial.distance_from(OrtEngine(load(), *ends, cut.fold))
    except EngineError:
        distance = float("inf")
    if distance == 0:
        return cut.fold
    outside.model = itself
    return None
