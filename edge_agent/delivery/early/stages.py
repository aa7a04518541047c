"""A network that is built in stages while its weights arrive, and run as they are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from ...core.types import Array, Tensors, TensorSpec
from ...inference.engines.engine import EngineChoice, check_inputs
from ...inference.engines.ort import specs as specs_of
from ...inference.engines.ort_session import Stage, open_session, run_stages, session_config
from ...models.files import onnx_schema as proto
from ...models.files.external_weights import externalized
from ...models.files.onnx_reader import Tensor
from ...models.files.protobuf import message, numeral
from .cuts import CutStage, Cutter
from .growing_file import GrowingFile, UnfitError
from .onnx_stream import OnnxFile, declared

_DATA = "arriving"
"""The name of the arriving file in the graphs."""
NEAR = 8
"""The frame is taken when no more than this part of the file, one in 8, is missing."""

Frame = Callable[[tuple[TensorSpec, ...]], Tensors | None]
"""Returns the newest frame of a pipeline that uses the model, as its inputs."""


class StagedNetwork:
    """ONNX Runtime on the CPU, a session for each stage."""

    def __init__(self, data: GrowingFile, file: OnnxFile, choice: EngineChoice) -> None:
        """Wait for the graph of *file*, of which nothing has been read.

        Raises:
            UnfitError: it cannot be run in stages.
            EngineError: it cannot be run like this at all.
        """
        self._data = data
        self._file = file
        self._nodes = file.nodes()
        self._ends = file.ends()
        self.inputs = tuple(declared(name, value) for name, value in self._ends.inputs.items())
        self.outputs = tuple(declared(name, value) for name, value in self._ends.outputs.items())
        self._words, _ = session_config(choice)
        self._left = self._total = file.end - file.begin
        """Bytes of the file that are missing, and all."""
        self.built = 0
        """Stages that have been built."""

    def infer(self, frame: Frame) -> tuple[Tensors, dict[str, Array]]:
        """Run a frame through the stages as they are built; return its inputs and outputs.

        Raises:
            UnfitError: the network cannot be run in stages, or there is no frame.
            EngineError: the engine failed.
        """
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
        """Write a stage as a model of its own, its larger weights left where they are."""
        nodes = (self._nodes[index].field for index in cut.nodes)
        parts = [self._data.read(field.start, field.end) for field in nodes]
        parts.append(message(proto.GRAPH_NAME, b"stage"))
        weights = (self._tensor(here[name]) for name in cut.weights)
        parts += [message(proto.GRAPH_INITIALIZER, tensor) for tensor in weights]
        parts += [known[name] for name in cut.inputs]
        for name in cut.outputs:
            # Of what goes on to other stages the engine works the type out by itself.
            whole = self._ends.outputs.get(name)
            named = message(proto.VALUE_NAME, name.encode())
            parts.append(whole or message(proto.GRAPH_OUTPUT, named))
        graph = message(proto.MODEL_GRAPH, b"".join(parts))
        return self._file.front + graph + self._ends.opsets

    def _tensor(self, tensor: Tensor) -> bytes:
        outside = externalized(self._data, tensor, _DATA)
        return self._data.read(*tensor.span) if outside is None else outside


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
