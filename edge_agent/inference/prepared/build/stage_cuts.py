"""Where a graph can be cut into stages, and what a stage is.

A stage is a graph of its own: some nodes that follow each other, fed by the stages before it. It is
cut out of the optimised graph, so that fusions stay as they are and the numbers the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

WIDEST = 6
"""Tensors that may be alive at a cut: more is a graph that is better left whole."""
NODE_BYTES = 48 * 1024
"""What setting a node up costs, in bytes of weights to prepare: 45 µs at 1 GB/s (measured)."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One stage: nodes `first` to `last`, that one excluded."""

    first: int
    last: int
    takes: tuple[str, ...]
    """Tensors from the graph's inputs and from stages before."""
    gives: tuple[str, ...]
    """Tensors that later stages take, and outputs of the graph."""


def weigh(graph: GraphProto, sizes: Mapping[str, int]) -> list[int]:
    """Give each node's cost to load, in bytes; a tensor counts where it is used first."""
    seen: set[str] = set()
    weights = []
    for node in graph.node:
        used = {name for name in names(node) if name in sizes} - seen
        seen |= used
        weights.append(NODE_BYTES + sum(sizes[name] for name in used))
    return weights


def plan_cuts(graph: GraphProto, sizes: Mapping[str, int], stages: int) -> list[Cut]:
    """Cut a graph into at most so many stages of about the same cost.

    Args:
        graph: its nodes are in order of execution.
        sizes: bytes of each initializer that is outside the graph.
        stages: how many are wanted; fewer come of a graph that cannot be cut so often.

    """
    weights = weigh(graph, sizes)
    total = sum(weights)
    alive = _alive(graph)
    costs = [0]
    for weight in weights:
        costs.append(costs[-1] + weight)
    places = [at for at in range(1, len(weights)) if len(alive[at]) <= WIDEST]
    chosen: set[int] = set()
    for step in range(1, stages):
        wanted = total * step / stages
        near = [at for at in places if abs(costs[at] - wanted) <= total / (2 * stages)]
        if near:
            # First what is handed over, then how even the stages are.
            chosen.add(min(near, key=lambda at: (len(alive[at]), abs(costs[at] - wanted))))
    return _cuts(graph, sorted(chosen))


def cuts_at(graph: GraphProto, places: Sequence[int]) -> list[Cut]:
    """Cut a graph before the nodes of these numbers."""
    return _cuts(graph, sorted(places))


def _cuts(graph: GraphProto, places: list[int]) -> list[Cut]:
    bounds = [0, *places, len(graph.node)]
    outputs = {value.name for value in graph.output}
    constants = {tensor.name for tensor in graph.initializer}
    spans = list(pairwise(bounds))
    made = [{name for node in graph.node[a:b] for name in node.output} for a, b in spans]
    taken = [
        list(dict.fromkeys(n for node in graph.node[a:b] for n in names(node) if n))
        for a, b in spans
    ]
    cuts = []
    for index, (first, last) in enumerate(spans):
        later = {name for names_ in taken[index + 1 :] for name in names_} | outputs
        cuts.append(
            Cut(
                first,
                last,
                tuple(n for n in taken[index] if n not in made[index] and n not in constants),
                tuple(sorted(made[index] & later)),
            )
        )
    return cuts


def _alive(graph: GraphProto) -> list[set[str]]:
    """Give for each place between two nodes the tensors made before and used after it."""
    constants = {tensor.name for tensor in graph.initializer}
    made = {value.name: 0 for value in graph.input if value.name not in constants}
    last: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in names(node):
            if name not in constants:
                last[name] = index
        for name in node.output:
            made[name] = index + 1
    for value in graph.output:
        last[value.name] = len(graph.node)
    alive: list[set[str]] = [set() for _ in range(len(graph.node) + 1)]
    for name, start in made.items():
        for at in range(max(start, 1), last.get(name, -1) + 1):
            alive[at].add(name)
    return alive


def names(node: NodeProto) -> Iterator[str]:
    """Give what a node takes, also within its branches and loops."""
    yield from node.input
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            inner = {name for each in graph.node for name in each.output}
            inner |= {value.name for value in graph.input}
            inner |= {tensor.name for tensor in graph.initializer}
            for each in graph.node:
                yield from (name for name in names(each) if name not in inner)
            yield from (v.name for v in graph.output if v.name not in inner)


def stage_model(model: ModelProto, cut: Cut, known: Mapping[str, ValueInfoProto]) -> ModelProto:
    """Make a stage's own model of the whole one's optimised graph.

    Args:
        model: the optimised model.
        cut: which of its nodes.
        known: types of the tensors that the stage takes. Those that it gives are left to the
            engine to work out: it does not write types into an optimised graph.

    """
    from onnx import GraphProto, ModelProto, ValueInfoProto

    whole = model.graph
    results = {value.name: value for value in whole.output}
    nodes = whole.node[cut.first : cut.last]
    used = {name for node in nodes for name in names(node)}
    graph = GraphProto(name=whole.name or "stage")
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in used)
    graph.input.extend(known[name] for name in cut.takes)
    graph.output.extend(results.get(name) or ValueInfoProto(name=name) for name in cut.gives)
    stage = ModelProto(ir_version=model.ir_version, producer_name=model.producer_name, graph=graph)
    stage.opset_import.extend(model.opset_import)
    stage.functions.extend(model.functions)
    return stage
