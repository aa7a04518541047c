"""A network cut into stages while its weights arrive, each run as soon as it is built.

An engine fuses consecutive operations, and fused ones round differently. So cuts are only made
where nothing would be fused; this is checked when the network is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ...core.types import Array, Tensors, TensorSpec
from ...inference.dataflow import Dataflow
from ...inference.engines.engine import EngineChoice, check_inputs
from ...inference.engines.ort import specs as specs_of
from ...inference.engines.ort_session import Stage, open_session, run_stages, session_config
from ...models.files import onnx_schema as proto
from ...models.files.external_weights import externalized
from ...models.files.onnx_reader import Node, Tensor
from ...models.files.protobuf import message, numeral
from .onnx_stream import GrowingFile, OnnxFile, UnfitError, declared

WIDEST = 3
"""Most tensors that may cross a cut."""
LEAST_BYTES = 512 * 1024
"""Least bytes of a stage: a smaller one costs more to set up than it saves."""
STAGES = 8

# Nothing is fused with the output of these operators …
_CLOSED = frozenset(
    {
        *("Add", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "LayerNormalization"),
        *("LeakyRelu", "MaxPool", "Relu", "Sum"),
    }
)
# … unless it is one of these.
_JOINS = frozenset(
    {
        *("AveragePool", "BatchNormalization", "Cast", "Clip", "Div", "Elu", "Erf", "Gelu"),
        *("GlobalAveragePool", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu"),
        *("Mul", "Pow", "QuantizeLinear", "ReduceMean", "Relu", "Sigmoid", "Softmax", "Sub"),
        "Tanh",
    }
)


class CutStage(NamedTuple):
    """Nodes that run together."""

    nodes: tuple[int, ...]
    """Their indices, ascending."""
    inputs: tuple[str, ...]
    """Tensors it takes: inputs of the network, or outputs of earlier stages."""
    outputs: tuple[str, ...]
    """Tensors it passes on: outputs of the network, or inputs of later stages."""
    weights: tuple[str, ...]


class _Needs(NamedTuple):
    """What a node needs, including all nodes folded into it."""

    tensors: frozenset[str]
    """Tensors from other nodes, and from outside."""
    weights: frozenset[str]
    nodes: frozenset[int]
    """The node itself and those folded into it."""


class Cutter:
    """Cuts one network, stage by stage, as its weights arrive."""

    def __init__(
        self, nodes: Sequence[Node], inputs: Iterable[str], outputs: Iterable[str]
    ) -> None:
        """Index a graph: its *nodes* in order of execution, and names of its inputs and outputs."""
        self._nodes = nodes
        self._end = len(nodes)
        self._inputs, self._outputs = frozenset(inputs), frozenset(outputs)
        self._maker = {name: index for index, node in enumerate(nodes) for name in node.outputs}
        self._folded = self._find_folded()
        self._needs = [self._reach(index) for index in range(len(nodes))]
        self._flow = Dataflow(
            self._inputs,
            self._outputs,
            [
                () if index in self._folded else sorted(needs.tensors)
                for index, needs in enumerate(self._needs)
            ],
            [() if index in self._folded else node.outputs for index, node in enumerate(nodes)],
        )
        self._places = self._find_places()
        self._begin = 0
        self._next = 0
        """The first node that may still lack weights."""
        self._size = 0
        """Bytes of weights from `_begin` to there."""
        self._seen: set[str] = set()

    def _find_folded(self) -> set[int]:
        """Find the nodes that belong to the nodes that use them: constants, and dequantizers.

        An engine computes constants at load, and includes dequantizers in the operation itself.
        """
        varies = set(self._inputs)
        folded = set()
        for index, node in enumerate(self._nodes):
            if not varies.intersection(node.inputs):
                folded.add(index)
                continue
            varies.update(node.outputs)
            if node.operator == "DequantizeLinear" and not self._outputs.intersection(node.outputs):
                folded.add(index)
        return folded

    def _reach(self, index: int) -> _Needs:
        tensors, weights, nodes = set(), set(), {index}
        waiting = [index]
        while waiting:
            for name in self._nodes[waiting.pop()].inputs:
                maker = self._maker.get(name)
                if name in self._inputs:
                    tensors.add(name)
                elif maker is None:
                    weights.add(name)
                elif maker not in self._folded:
                    tensors.add(name)
                elif maker not in nodes:
                    nodes.add(maker)
                    waiting.append(maker)
        weights.discard("")  # an optional input that is left out
        return _Needs(frozenset(tensors), frozenset(weights), frozenset(nodes))

    def _find_places(self) -> set[int]:
        """Find the nodes before which a cut separates nothing that would be fused."""
        return {
            place
            for place, alive in enumerate(self._flow.alive()[: self._end])
            if place > 0
            and place not in self._folded
            and 0 < len(alive) <= WIDEST
            and all(self._is_open(name, place) for name in alive)
        }

    def _is_open(self, name: str, place: int) -> bool:
        """Whether the engine fuses nothing across a tensor."""
        if name in self._inputs:
            return True
        maker = self._nodes[self._maker[name]].operator
        if maker == "QuantizeLinear":
            return True
        users = [self._nodes[user] for user in self._flow.users[name] if place <= user < self._end]
        return maker in _CLOSED and not any(
            user.operator in _JOINS or self._adds_to_convolution(user) for user in users
        )

    def _adds_to_convolution(self, node: Node) -> bool:
        """Whether the engine fuses a node into a convolution if both are in one stage."""
        return node.operator in {"Add", "Sum"} and any(
            self._nodes[self._maker[name]].operator == "Conv"
            for name in node.inputs
            if name in self._maker
        )

    @property
    def done(self) -> bool:
        """Whether all nodes are in stages."""
        return self._begin == self._end

    def next(self, here: Mapping[str, int], left: int, total: int) -> CutStage | None:
        """Cut off the next stage, if enough for one has arrived.

        *here* has the sizes in bytes of weights that have arrived; *left* is how many bytes of the
        file have not, *total* how many it has.
        """
        # Smaller and smaller toward the end, so that little is left to build after the last byte.
        wanted = max(LEAST_BYTES, min(total // STAGES, left // 2))
        while self._next < self._end:
            index = self._next
            if index not in self._folded:
                if self._size >= wanted and index in self._places:
                    return self._cut(index)
                weights = self._needs[index].weights
                if any(name not in here for name in weights):
                    return None
                self._size += sum(here[name] for name in weights - self._seen)
                self._seen |= weights
            self._next += 1
        return None if self.done else self._cut(self._end)

    def _cut(self, end: int) -> CutStage:
        cut = self._flow.cut(self._begin, end)
        own = [self._needs[n] for n in range(self._begin, end) if n not in self._folded]
        nodes = sorted({index for needs in own for index in needs.nodes})
        weights = sorted({name for needs in own for name in needs.weights})
        self._begin, self._size = end, 0
        self._seen.clear()
        return CutStage(tuple(nodes), cut.inputs, cut.outputs, tuple(weights))


_DATA = "arriving"
"""The name of the arriving file in the stages' graphs."""
NEAR = 8
"""The frame is taken when at most 1 / `NEAR` of the file is missing."""

Frame = Callable[[tuple[TensorSpec, ...]], Tensors | None]
"""Returns the newest frame of a pipeline that uses the model, as its inputs."""


class StagedNetwork:
    """ONNX Runtime on the CPU, with a session for each stage.

    UnfitError is raised if the network cannot be run in stages, EngineError if the engine fails.
    """

    def __init__(self, data: GrowingFile, file: OnnxFile, choice: EngineChoice) -> None:
        """Read the graph of *file* as it arrives; none of it may have been read before."""
        self._data = data
        self._file = file
        self._nodes = file.nodes()
        self._ends = file.ends()
        self.inputs = tuple(declared(name, value) for name, value in self._ends.inputs.items())
        self.outputs = tuple(declared(name, value) for name, value in self._ends.outputs.items())
        self._words, _ = session_config(choice)
        self._left = self._total = file.end - file.begin
        """Bytes of the file that are missing, and in total."""
        self.built = 0
        """Number of stages built so far."""

    def infer(self, frame: Frame) -> tuple[Tensors, dict[str, Array]]:
        """Run a frame through the stages as they are built; return the inputs and outputs."""
        stages = self._build()
        before = []
        for each in stages:
            before.append(each)
            if self._left * NEAR <= self._total:
                break
        tensors = frame(self.inputs)
        if tensors is None:
            raise UnfitError("there was no live frame")
        check_inputs(self.inputs, tensors)
        names = [spec.name for spec in self.outputs]
        found = run_stages(chain(before, stages), tensors, names)
        return tensors, dict(zip(names, found, strict=True))

    def _build(self) -> Iterator[Stage]:
        """Yield each stage as soon as its weights have arrived."""
        cutter = Cutter(self._nodes, self._ends.inputs, self._ends.outputs)
        known = dict(self._ends.inputs)
        here: dict[str, Tensor] = {}
        sizes: dict[str, int] = {}
        for tensor in self._file.tensors(self._ends):
            here[tensor.name] = tensor
            begin, end = tensor.span
            sizes[tensor.name] = end - begin
            self._left = self._file.end - end
            while (cut := cutter.next(sizes, self._left, self._total)) is not None:
                self.built += 1
                yield self._open(cut, here, known)
        if not cutter.done:
            raise UnfitError("weights are missing")

    def _open(self, cut: CutStage, here: Mapping[str, Tensor], known: dict[str, bytes]) -> Stage:
        """Open a stage's session; add the types of its outputs to *known*."""
        words = {**self._words, "spins": False}
        graph = self._graph(cut, here, known)
        session = open_session(graph, words, "stage", weights={_DATA: self._data.buffer})
        for spec in specs_of(session.get_outputs(), Path("model")):
            known[spec.name] = message(proto.GRAPH_INPUT, _value(spec))
        return Stage(cut.inputs, list(cut.outputs), session)

    def _graph(
        self, cut: CutStage, here: Mapping[str, Tensor], known: Mapping[str, bytes]
    ) -> bytes:
        """Return a stage as a separate model, whose larger weights stay where they are."""
        nodes = (self._nodes[index].field for index in cut.nodes)
        parts = [self._data.read(field.start, field.end) for field in nodes]
        parts.append(message(proto.GRAPH_NAME, b"stage"))
        for tensor in (here[name] for name in cut.weights):
            outside = externalized(self._data, tensor, _DATA)
            data = self._data.read(*tensor.span) if outside is None else outside
            parts.append(message(proto.GRAPH_INITIALIZER, data))
        parts += [known[name] for name in cut.inputs]
        for name in cut.outputs:
            # The engine infers the types of tensors for other stages.
            whole = self._ends.outputs.get(name)
            named = message(proto.VALUE_NAME, name.encode())
            parts.append(whole or message(proto.GRAPH_OUTPUT, named))
        graph = message(proto.MODEL_GRAPH, b"".join(parts))
        return self._file.front + graph + self._ends.opsets


def _value(spec: TensorSpec) -> bytes:
    """Encode a tensor as an input of a graph."""
    sizes = b"".join(
        message(proto.SHAPE_SIZE, b"" if size is None else numeral(proto.SIZE_NUMBER, size))
        for size in spec.shape
    )
    element = numeral(proto.TENSOR_ELEMENT, proto.NUMBERS[spec.dtype])
    kind = message(proto.TYPE_TENSOR, element + message(proto.TENSOR_SHAPE, sizes))
    name = message(proto.VALUE_NAME, spec.name.encode())
    return name + message(proto.VALUE_TYPE, kind)
