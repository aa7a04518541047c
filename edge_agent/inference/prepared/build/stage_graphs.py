"""Writes the weights and graphs of an artifact: whole, and in stages for several ways to cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from ....models.files.onnx_reader import map_file
from ...dataflow import Cut
from ...engines.ort_options import Words
from ...engines.ort_stages import open_session
from ..artifact import GRAPH, WEIGHTS, Artifact
from .mapped_network import NO_PREPACKING, OPTIMIZED, OPTIMIZED_WEIGHTS, location, tensors
from .stage_cuts import plan_cuts, stage_model
from .weight_layout import Layout, lay_out

if TYPE_CHECKING:
    from onnx import ModelProto


class Written(NamedTuple):
    """The files of an artifact but for its table."""

    ways: Mapping[int, Sequence[Cut]]
    """Ways to cut the graph, by number of stages."""
    layout: Layout
    weights: Any
    """The mapped file of weights."""


def write_files(model: ModelProto, words: Words, folder: Path, counts: Sequence[int]) -> Written:
    """Write the weights, the whole graph, and a graph for every stage of every way to cut it.

    Args:
        model: the optimized network, whose files lie in *folder* and are removed.
        words: options of sessions.
        folder: where the files come.
        counts: of stages; fewer come of a graph that cannot be cut so often.

    Raises:
        EngineError: ONNX Runtime does not take a stage.

    """
    sizes = external_sizes(model)
    cuts = [plan_cuts(model.graph, sizes, count) for count in counts]
    ways = {len(each): each for each in cuts}
    places = sorted({cut.first for each in ways.values() for cut in each} - {0})
    if (folder / OPTIMIZED_WEIGHTS).is_file() and sizes:
        layout = lay_out(model.graph, map_file(folder / OPTIMIZED_WEIGHTS), folder, places)
    else:
        (folder / WEIGHTS).touch()
        layout = Layout(0, 0, dict.fromkeys([0, *places], 0))
    (folder / OPTIMIZED_WEIGHTS).unlink(missing_ok=True)
    (folder / OPTIMIZED).unlink()
    weights: Any = map_file(folder / WEIGHTS) if layout.size else b""
    (folder / GRAPH).write_bytes(model.SerializeToString())
    known = {value.name: value for value in model.graph.input}
    for way in sorted(ways.values(), key=len, reverse=True):
        for number, cut in enumerate(way):
            path = folder / stage_name(len(way), number)
            path.write_bytes(stage_model(model, cut, known).SerializeToString())
            if any(name not in known for name in cut.outputs):
                known.update(_types(path, weights, words))
    return Written(ways, layout, weights)


def external_sizes(model: ModelProto) -> dict[str, int]:
    """Return the bytes of each tensor that lies outside the graph, by name."""
    places = {tensor.name: location(tensor) for tensor in tensors(model.graph)}
    return {name: length for name, (file, _, length) in places.items() if file}


def provisional(folder: Path, table: Mapping[str, Any], written: Written, stages: int) -> Artifact:
    """Return an artifact of so many stages that can be loaded, though its table is not written."""
    described = _stage_table(written, stages)
    files = {
        name: [path.stat().st_size, xxh3_64_hexdigest(path.read_bytes())]
        for name in [GRAPH, *(stage["graph"] for stage in described)]
        if (path := folder / name)
    }
    more = {"stages": described, "files": files, "key": "being made"}
    return Artifact(str(folder), {**table, **more})


def stage_name(stages: int, number: int) -> str:
    """Return the name of the file of a stage's graph."""
    return f"stage-{number}-of-{stages}.onnx"


def _stage_table(written: Written, stages: int) -> list[dict[str, Any]]:
    """Describe stages: graph, tensors at the cuts, range of the weights and its checksum."""
    cuts, layout = written.ways[stages], written.layout
    # What several stages need lies before the first one's own weights, and counts as its.
    starts = [0, *(layout.starts[cut.first] for cut in cuts[1:]), layout.size]
    table = []
    for number, cut in enumerate(cuts):
        first, last = starts[number], starts[number + 1]
        with memoryview(written.weights)[first:last] as content:
            digest = xxh3_64_hexdigest(content)
        table.append(
            {
                "graph": stage_name(stages, number),
                "takes": list(cut.inputs),
                "gives": list(cut.outputs),
                "range": [first, last, digest],
            }
        )
    return table


def _types(path: Path, weights: Any, words: Words) -> dict[str, Any]:
    """Ask the engine for the types of what a stage makes: it does not write them into graphs."""
    from onnx import TensorProto, helper

    session = open_session(
        path, words, path.name, weights={WEIGHTS: weights}, ready=True, extra=NO_PREPACKING
    )
    numbers = {name.lower(): number for name, number in TensorProto.DataType.items()}
    return {
        value.name: helper.make_tensor_value_info(
            value.name, numbers[value.type.removeprefix("tensor(").removesuffix(")")], value.shape
        )
        for value in session.get_outputs()
    }
