"""Cuts an optimized graph into stages, and writes the graphs and weights of an artifact.

A stage is a separate graph: some consecutive nodes, whose inputs come from the stages before it. It
is cut out of the optimized graph, so that fusions and numbers stay the same.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from ....models.files.onnx_reader import map_file
from ...dataflow import Cut, Dataflow
from ...engines.ort_session import Words, open_session
from ..artifact import GRAPH, WEIGHTS, Artifact
from .mapped_network import (
    NO_PREPACKING,
    OPTIMIZED,
    OPTIMIZED_WEIGHTS,
    MappedNetwork,
    location,
    names,
    refer,
    tensors,
)

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

WIDEST = 6
"""Most tensors alive at a cut: a graph that needs more is better left whole."""


class Written(NamedTuple):
    """The files of an artifact except its table."""

    cuts: Sequence[Cut]
    """The stages, in order."""
    layout: Layout
    weights: Any
    """The mapped file of weights."""


def write_files(model: ModelProto, words: Words, folder: Path, stages: int) -> Written:
    """Write the weights, the whole graph, and one for each stage if there are several.

    Args:
        model: the optimized network, whose files are in *folder* and are removed.
        words: session options.
        folder: where the files are written.
        stages: the most to make; a graph with too few places to cut gives fewer.

    Raises:
        EngineError: ONNX Runtime does not take a stage.
    """
    sizes = external_sizes(model)
    cuts = plan_cuts(model.graph, sizes, stages)
    places = [cut.first for cut in cuts[1:]]
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
    for number, cut in enumerate(cuts if len(cuts) > 1 else ()):
        path = folder / stage_name(number)
        path.write_bytes(stage_model(model, cut, known).SerializeToString())
        if any(name not in known for name in cut.outputs):
            known.update(_types(path, weights, words))
    return Written(cuts, layout, weights)


def external_sizes(model: ModelProto) -> dict[str, int]:
    """Return the size in bytes of each tensor stored outside the graph, by name."""
    places = {tensor.name: location(tensor) for tensor in tensors(model.graph)}
    return {name: length for name, (file, _, length) in places.items() if file}


def provisional(folder: Path, table: Mapping[str, Any]) -> Artifact:
    """Return an artifact that can be loaded although its table has not been written."""
    files = {
        name: [path.stat().st_size, xxh3_64_hexdigest(path.read_bytes())]
        for name in dict.fromkeys([GRAPH, *(stage["graph"] for stage in table["stages"])])
        if (path := folder / name)
    }
    return Artifact(str(folder), {**table, "files": files, "key": "being made"})


def stage_name(number: int) -> str:
    """Return the file name of a stage's graph."""
    return f"stage-{number}.onnx"


def stage_table(written: Written) -> list[dict[str, Any]]:
    """Describe stages: graph, tensors at the cuts, range of the weights, and its checksum."""
    cuts, layout = written.cuts, written.layout
    # Weights of several stages come before the first stage's own, and count as part of it.
    starts = [0, *(layout.starts[cut.first] for cut in cuts[1:]), layout.size]
    table = []
    for number, cut in enumerate(cuts):
        first, last = starts[number], starts[number + 1]
        with memoryview(written.weights)[first:last] as content:
            digest = xxh3_64_hexdigest(content)
        table.append(
            {
                "graph": GRAPH if len(cuts) == 1 else stage_name(number),
                "takes": list(cut.inputs),
                "gives": list(cut.outputs),
                "range": [first, last, digest],
            }
        )
    return table


def plan_cuts(graph: GraphProto, sizes: Mapping[str, int], stages: int) -> list[Cut]:
    """Cut a graph into at most *stages* stages with about the same bytes of weights each."""
    constants = {tensor.name for tensor in graph.initializer}
    flow = Dataflow(
        [value.name for value in graph.input if value.name not in constants],
        [value.name for value in graph.output],
        [list(names(node)) for node in graph.node],
        [node.output for node in graph.node],
    )
    alive = flow.alive()
    costs = [0]
    seen: set[str] = set()
    for node in graph.node:
        used = {name for name in names(node) if name in sizes} - seen
        seen |= used
        costs.append(costs[-1] + sum(sizes[name] for name in used))
    total = costs[-1]
    places = [at for at in range(1, flow.end) if len(alive[at]) <= WIDEST]
    chosen: set[int] = set()
    for step in range(1, stages):
        wanted = total * step / stages
        near = [at for at in places if abs(costs[at] - wanted) <= total / (2 * stages)]
        if near:
            # Fewest tensors passed on first, then most even sizes.
            chosen.add(min(near, key=lambda at: (len(alive[at]), abs(costs[at] - wanted))))
    return [flow.cut(*span) for span in pairwise([0, *sorted(chosen), flow.end])]


def stage_model(model: ModelProto, cut: Cut, known: Mapping[str, ValueInfoProto]) -> ModelProto:
    """Make the model of one stage from the whole optimized graph.

    Args:
        model: the optimized model.
        cut: which of its nodes belong to the stage.
        known: types of the tensors that the stage takes. The engine infers those that it makes: it
            does not write types into an optimized graph.
    """
    from onnx import GraphProto, ModelProto, ValueInfoProto

    whole = model.graph
    results = {value.name: value for value in whole.output}
    nodes = whole.node[cut.first : cut.last]
    used = {name for node in nodes for name in names(node)}
    graph = GraphProto(name=whole.name or "stage")
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in used)
    graph.input.extend(known[name] for name in cut.inputs)
    graph.output.extend(results.get(name) or ValueInfoProto(name=name) for name in cut.outputs)
    stage = ModelProto(ir_version=model.ir_version, producer_name=model.producer_name, graph=graph)
    stage.opset_import.extend(model.opset_import)
    stage.functions.extend(model.functions)
    return stage


def _types(path: Path, weights: Any, words: Words) -> dict[str, Any]:
    """Ask the engine for the types of a stage's outputs: it does not write them into graphs."""
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


PAGE = 4096
ALIGNED = "aligned.bin"
_LINE = 64
"""Alignment in bytes of tensors smaller than a page: a cache line."""
_PIECE = 8 * 1024 * 1024


class Layout(NamedTuple):
    """A file of weights that has been written."""

    size: int
    shared: int
    """Bytes at its start that more than one stage needs."""
    starts: dict[int, int]
    """Where a stage's own weights begin, page-aligned, by the index of its first node."""


def lay_out(graph: GraphProto, source: mmap.mmap, folder: Path, places: Sequence[int]) -> Layout:
    """Write the weights of a graph in order of execution, and make the graph refer to them.

    Args:
        graph: a graph whose large tensors are all in *source*; changed in place.
        source: the weights as the engine has written them.
        folder: where to write the file.
        places: indices of the nodes before which it may be cut.
    """
    external = {tensor.name: tensor for tensor in tensors(graph) if location(tensor)[0]}
    bounds = [0, *sorted(places), len(graph.node)]
    users: dict[str, list[int]] = {}
    for stage, (first, last) in enumerate(pairwise(bounds)):
        for node in graph.node[first:last]:
            # A tensor in a branch belongs to the node with the branch.
            inner = [t.name for a in node.attribute if a.HasField("g") for t in tensors(a.g)]
            for name in (*names(node), *inner):
                if name in external and stage not in users.setdefault(name, []):
                    users[name].append(stage)
    shared = [name for name, stages in users.items() if len(stages) > 1]
    starts: dict[int, int] = {}
    with (folder / WEIGHTS).open("wb") as file:
        at = _append(file, 0, [external[name] for name in shared], source)
        end = at
        for stage, first in enumerate(bounds[:-1]):
            at = _pad(file, at, PAGE)
            starts[first] = at
            own = [external[name] for name, stages in users.items() if stages == [stage]]
            at = _append(file, at, own, source)
        at = _pad(file, at, PAGE)
    return Layout(at, end + -end % PAGE, starts)


def align(network: MappedNetwork, folder: Path) -> None:
    """Copy a network's weights to one file, so that an engine can use them in place.

    In an ONNX file, tensors may begin anywhere; the engine copies those that are not aligned to the
    size of their numbers, which is too much if the network does not fit in memory.
    """
    found = [tensor for tensor in tensors(network.model.graph) if location(tensor)[0]]
    at = 0
    with (folder / ALIGNED).open("wb") as file:
        for tensor in found:
            at = _append(file, at, [tensor], network.files[location(tensor)[0]], ALIGNED)
    if found:
        network.files = {ALIGNED: map_file(folder / ALIGNED)}


def _append(
    file: IO[bytes], at: int, wanted: Sequence[TensorProto], source: mmap.mmap, name: str = WEIGHTS
) -> int:
    """Append tensors one after another, in pieces; return the offset after the last."""
    for tensor in wanted:
        _, offset, length = location(tensor)
        at = _pad(file, at, PAGE if length >= PAGE else _LINE)
        refer(tensor, name, at, length)
        for first in range(offset, offset + length, _PIECE):
            file.write(source[first : min(first + _PIECE, offset + length)])
        at += length
    return at


def _pad(file: IO[bytes], at: int, size: int) -> int:
    """Pad with zeros to the next multiple of *size*."""
    file.write(bytes(-at % size))
    return at + -at % size
