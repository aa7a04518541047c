"""An engine that builds a network in stages while its weights arrive.

`infer` may be called before any stage is built: a run waits for each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...core.errors import EngineError
from ...core.types import Array, Tensors, TensorSpec
from ...inference.engines.engine import (
    EngineChoice,
    FixShapes,
    check_inputs,
    fix_inputs,
    native_reason,
)
from ...inference.engines.ort import label_of
from ...inference.engines.ort import specs as specs_of
from ...inference.engines.ort_session import Stage, open_session, run_stages, session_config
from ...inference.folding.fold import Fold
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
"""`near` is set when no more than this part of the file, one in 8, is missing."""
_KEPT_RUNS = 2


class StagedEngine:
    """ONNX Runtime on the CPU, a session for each stage."""

    fold: Fold | None = None
    prepared = None
    widened = None

    def __init__(self, data: GrowingFile, file: OnnxFile, choice: EngineChoice) -> None:
        """Wait for the graph, then start to build.

        Args:
            data: the package.
            file: the network in it, of which nothing has been read.
            choice: how to run it.

        Raises:
            UnfitError: it cannot be run in stages.
            EngineError: it cannot be run like this at all.
        """
        self.label = label_of()
        self._data = data
        self._file = file
        self._nodes = file.nodes()
        self._ends = file.ends()
        self.inputs = tuple(declared(name, value) for name, value in self._ends.inputs.items())
        self.outputs = tuple(declared(name, value) for name, value in self._ends.outputs.items())
        self._words, _ = session_config(choice)
        self._changed = threading.Condition()
        self._built: list[Stage] = []
        self._whole = False
        self._problem: BaseException | None = None
        self.near = threading.Event()
        """Set when little is missing, and when there is nothing more to wait for."""
        self.runs: list[tuple[Tensors, dict[str, Array]]] = []
        """Inputs and outputs of the first runs."""
        self._loader = threading.Thread(target=self._load, name="loader", daemon=True)
        self._loader.start()

    def fix(self, fix_shapes: FixShapes) -> None:
        """Fix the sizes that the network leaves open; to be called before the first run.

        Raises:
            EngineError: some stay open.
        """
        self.inputs = fix_inputs(self.inputs, fix_shapes, Path("model"))

    @property
    def stages(self) -> int:
        """How many stages have been built."""
        return len(self._built)

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network, stage by stage as they are built.

        Raises:
            EngineError: the engine failed, or the network cannot be run in stages.
        """
        check_inputs(self.inputs, tensors)
        names = [spec.name for spec in self.outputs]
        try:
            found = run_stages(self._as_built(), tensors, names)
        except EngineError:
            raise
        except Exception as problem:  # its exceptions have no common class but this one
            raise EngineError(f"{self.label}: {native_reason(problem, Path('model'))}") from problem
        outputs = dict(zip(names, found, strict=True))
        if len(self.runs) < _KEPT_RUNS:
            self.runs.append((dict(tensors), outputs))
        return outputs

    def _as_built(self) -> Iterator[Stage]:
        """Yield the stages in order, each as soon as it is built."""
        index = 0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda count=index: (  # type: ignore[misc]
                        count < len(self._built) or self._whole or self._problem is not None
                    )
                )
                if self._problem is not None:
                    raise EngineError(str(self._problem)) from self._problem
                if index == len(self._built):
                    return
                stage = self._built[index]
            yield stage
            index += 1

    def close(self) -> None:
        """Release all sessions."""
        self._fail(EngineError(f"{self.label}: the network has been closed"))

    def _fail(self, problem: BaseException) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._built.clear()
            self._changed.notify_all()
        self.near.set()

    # The loader

    def _load(self) -> None:
        """Build each stage as soon as its weights have arrived."""
        try:
            cutter = Cutter(self._nodes, self._ends.inputs, self._ends.outputs)
            known = dict(self._ends.inputs)
            here: dict[str, Tensor] = {}
            sizes: dict[str, int] = {}
            total = self._file.end - self._file.begin
            for tensor in self._file.tensors(self._ends):
                here[tensor.name] = tensor
                begin, end = tensor.span
                sizes[tensor.name] = end - begin
                left = self._file.end - end
                while (cut := cutter.next(sizes, left, total)) is not None:
                    self._build(cut, here, known)
                if left * NEAR <= total:
                    self.near.set()
            if not cutter.done:
                raise UnfitError("weights are missing")
            with self._changed:
                self._whole = True
                self._changed.notify_all()
        except BaseException as problem:  # noqa: BLE001 - raised in `infer`
            self._fail(problem)
        finally:
            self.near.set()

    def _build(self, cut: CutStage, here: Mapping[str, Tensor], known: dict[str, bytes]) -> None:
        """Open a stage's session; add the types of its outputs to *known*."""
        words = {**self._words, "spins": False}
        weights = {_DATA: self._data.buffer}
        graph = self._graph(cut, here, known)
        session = open_session(graph, words, self.label, weights=weights)
        stage = Stage(cut.inputs, list(cut.outputs), session)
        for spec in specs_of(session.get_outputs(), Path("model")):
            known[spec.name] = message(proto.GRAPH_INPUT, _value(spec))
        with self._changed:
            if self._problem is None:
                self._built.append(stage)
            self._changed.notify_all()

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
