"""Writes the graphs of a form: the whole one, and those of its stages for several ways to cut."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_hexdigest

from ...engines.ort_options import Words, session_options
from ..artifact import GRAPH, WEIGHTS
from .stage_cuts import Cut, stage_model
from .weight_layout import Laid

if TYPE_CHECKING:
    from onnx import ModelProto

_BARE = {"session.disable_prepacking": "1"}


def write_graphs(
    model: ModelProto,
    ways: Mapping[int, Sequence[Cut]],
    weights: mmap.mmap,
    words: Words,
    folder: Path,
) -> None:
    """Write the whole graph, and a graph for every stage of every way to cut it.

    Raises:
        EngineError: ONNX Runtime does not take a stage.

    """
    (folder / GRAPH).write_bytes(model.SerializeToString())
    known = {value.name: value for value in model.graph.input}
    for cuts in sorted(ways.values(), key=len, reverse=True):
        for number, cut in enumerate(cuts):
            path = folder / stage_name(len(cuts), number)
            path.write_bytes(stage_model(model, cut, known).SerializeToString())
            if any(name not in known for name in cut.gives):
                known.update(_types(path, weights, words))


def stage_name(stages: int, number: int) -> str:
    """Name the file of a stage's graph."""
    return f"stage-{number}-of-{stages}.onnx"


def stage_table(
    cuts: Sequence[Cut], laid: Laid, weights: mmap.mmap | bytes
) -> list[dict[str, Any]]:
    """Describe stages: graph, tensors at the cuts, range of the weights and its checksum."""
    # What several stages need lies before the first one's own weights, and counts as its.
    starts = [0, *(laid.starts[cut.first] for cut in cuts[1:]), laid.size]
    table = []
    for number, cut in enumerate(cuts):
        first, last = starts[number], starts[number + 1]
        with memoryview(weights)[first:last] as content:
            digest = xxh3_64_hexdigest(content)
        table.append(
            {
                "graph": stage_name(len(cuts), number),
                "takes": list(cut.takes),
                "gives": list(cut.gives),
                "range": [first, last, digest],
            }
        )
    return table


def _types(path: Path, weights: mmap.mmap, words: Words) -> dict[str, Any]:
    """Ask the engine for the types of what a stage gives: it does not write them into graphs."""
    import onnxruntime as ort
    from onnx import TensorProto, helper

    options = session_options(words, weights={WEIGHTS: weights}, ready=True, extra=_BARE)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    numbers = {name.lower(): number for name, number in TensorProto.DataType.items()}
    return {
        value.name: helper.make_tensor_value_info(
            value.name, numbers[value.type.removeprefix("tensor(").removesuffix(")")], value.shape
        )
        for value in session.get_outputs()
    }
