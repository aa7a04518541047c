"""Where an optimized graph is cut into stages, and the model of a stage.

A stage is a graph of its own: some nodes that follow each other, fed by the stages before it. It is
cut out of the optimized graph, so that fusions stay as they are and the numbers the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from ...dataflow import Cut, Dataflow

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

WIDEST = 6
"""Tensors that may be alive at a cut: more is a graph that is better left whole."""
NODE_BYTES = 48 * 1024
"""What setting a node up costs, in bytes of weights to prepare: 45 µs at 1 GB/s (measured)."""


def weigh(graph: GraphProto, sizes: Mapping[str, int]) -> list[int]:
    """Return each node's cost to load, in bytes; a tensor counts where it is used first."""
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
    constants = {tensor.name for tensor in graph.initializer}
    flow = Dataflow(
        [value.name for value in graph.input if value.name not in constants],
        [value.name for value in graph.output],
        [list(names(node)) for node in graph.node],
        [node.output for node in graph.node],
    )
    alive = flow.alive()
    costs = [0]
    for weight in weigh(graph, sizes):
        costs.append(costs[-1] + weight)
    total = costs[-1]
    places = [at for at in range(1, flow.end) if len(alive[at]) <= WIDEST]
    chosen: set[int] = set()
    for step in range(1, stages):
        wanted = total * step / stages
        near = [at for at in places if abs(costs[at] - wanted) <= total / (2 * stages)]
        if near:
            # First what is handed over, then how even the stages are.
            chosen.add(min(near, key=lambda at: (len(alive[at]), abs(costs[at] - wanted))))
    return [flow.cut(*span) for span in pairwise([0, *sorted(chosen), flow.end])]


def names(node: NodeProto) -> Iterator[str]:
    """Yield what a node takes, also within its branches and loops."""
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
    """Make a stage's own model of the whole one's optimized graph.

    Args:
        model: the optimized model.
        cut: which of its nodes.
        known: types of the tensors that the stage takes. Those that it makes are left to the
            engine to work out: it does not write types into an optimized graph.

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
