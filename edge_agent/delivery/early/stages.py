"""A network as stages that are built while its weights arrive; to its callers, an engine.

`infer` may be called before anything is built: a run waits at each stage until it is there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from ...core.errors import EngineError
from ...core.types import Array, Tensors, TensorSpec
from ...inference.engines.native_error import native_reason
from ...inference.engines.ort import label_of, settle
from ...inference.engines.ort import specs as specs_of
from ...inference.engines.ort_options import session_options
from ...inference.engines.protocol import EngineChoice, FixShapes, check_inputs, fix_inputs
from ...inference.folding.fold import Fold
from ...models.files import onnx_schema as proto
from ...models.files.external_weights import externalized
from ...models.files.onnx_reader import Tensor
from ...models.files.protobuf import message, numeral
from .cuts import Cutter, Stage
from .growing_file import Arriving, UnfitError
from .onnx_stream import OnnxFile, declared

_DATA = "arriving"
"""By which name the graphs call the file that arrives."""
NEAR = 8
"""It is nearly there when no more than this part of it is missing."""
_KEPT_RUNS = 2


class StagedEngine:
    """ONNX Runtime on the CPU, a session a stage."""

    def __init__(self, data: Arriving, file: OnnxFile, choice: EngineChoice) -> None:
        """Wait for the graph, then begin to build.

        Args:
            data: the package.
            file: the network in it, of which nothing has been read.
            choice: how to run it.

        Raises:
            UnfitError: it cannot be run in stages.
            EngineError: it cannot be run like this at all.

        """
        self.label = label_of()
        self.fold: Fold | None = None
        self.prepared = None
        self.widened = None
        self._data = data
        self._file = file
        self._nodes = file.nodes()
        self._ends = file.ends()
        self.inputs = tuple(declared(name, value) for name, value in self._ends.inputs.items())
        self.outputs = tuple(declared(name, value) for name, value in self._ends.outputs.items())
        self._words, _ = settle(choice)
        self._changed = threading.Condition()
        self._built: list[tuple[Stage, Any]] = []
        self._whole = False
        self._problem: BaseException | None = None
        self.near = threading.Event()
        """Set when little is missing, and when there is no more to wait for."""
        self.runs: list[tuple[Tensors, dict[str, Array]]] = []
        """What went in and what came out of the first runs."""
        self._loader = threading.Thread(target=self._load, name="loader", daemon=True)
        self._loader.start()

    def fix(self, fix_shapes: FixShapes) -> None:
        """Settle the sizes that the network leaves open; to be called before the first run.

        Raises:
            EngineError: some stay open.

        """
        self.inputs = fix_inputs(self.inputs, fix_shapes, Path("model"))

    @property
    def stages(self) -> int:
        """How many have been built."""
        return len(self._built)

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network, stage by stage as they are built.

        Raises:
            EngineError: the engine failed, or the network cannot be run in stages.

        """
        check_inputs(self.inputs, tensors)
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in tensors.items()}
        index = 0
        while (part := self._stage(index)) is not None:
            stage, session = part
            feeds = {name: values[name] for name in stage.takes}
            try:
                results = session.run_with_ort_values(list(stage.gives), feeds)
            except Exception as problem:  # its exceptions have no common class but this one
                reason = native_reason(problem, Path("model"))
                raise EngineError(f"{self.label}: {reason}") from problem
            values.update(zip(stage.gives, results, strict=True))
            index += 1
        outputs = {spec.name: values[spec.name].numpy() for spec in self.outputs}
        if len(self.runs) < _KEPT_RUNS:
            self.runs.append((dict(tensors), outputs))
        return outputs

    def _stage(self, index: int) -> tuple[Stage, Any] | None:
        """Wait for a stage; None when there are no more."""
        with self._changed:
            self._changed.wait_for(
                lambda: index < len(self._built) or self._whole or self._problem is not None
            )
            if self._problem is not None:
                raise EngineError(str(self._problem)) from self._problem
            return self._built[index] if index < len(self._built) else None

    def close(self) -> None:
        """Let go of all sessions."""
        self._fail(EngineError(f"{self.label}: the network has been closed"))

    def _fail(self, problem: BaseException) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._built.clear()
            self._changed.notify_all()
        self.near.set()

    # The loader

    def _load(self) -> None:
        """Build each stage as soon as its weights are here."""
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
                while (stage := cutter.next(sizes, left, total)) is not None:
                    self._build(stage, here, known)
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

    def _build(self, stage: Stage, here: Mapping[str, Tensor], known: dict[str, bytes]) -> None:
        """Make a stage's session; note the types of what it gives."""
        words = {**self._words, "spins": False}
        options = session_options(words, weights={_DATA: self._data.buffer})
        session = ort.InferenceSession(
            self._graph(stage, here, known), options, providers=["CPUExecutionProvider"]
        )
        for spec in specs_of(session.get_outputs(), Path("model")):
            known[spec.name] = message(proto.GRAPH_INPUT, _value(spec))
        with self._changed:
            if self._problem is None:
                self._built.append((stage, session))
            self._changed.notify_all()

    def _graph(self, stage: Stage, here: Mapping[str, Tensor], known: Mapping[str, bytes]) -> bytes:
        """Write a stage as a model of its own, its larger weights left where they are."""
        nodes = (self._nodes[index].field for index in stage.nodes)
        parts = [self._data.read(field.start, field.end) for field in nodes]
        parts.append(message(proto.GRAPH_NAME, b"stage"))
        weights = (self._tensor(here[name]) for name in stage.weights)
        parts += [message(proto.GRAPH_INITIALIZER, tensor) for tensor in weights]
        parts += [known[name] for name in stage.takes]
        for name in stage.gives:
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
    """Describe a tensor as a graph's input."""
    sizes = b"".join(
        message(proto.SHAPE_SIZE, b"" if size is None else numeral(proto.SIZE_NUMBER, size))
        for size in spec.shape
    )
    element = numeral(proto.TENSOR_ELEMENT, proto.NUMBERS[spec.dtype])
    kind = message(proto.TYPE_TENSOR, element + message(proto.TENSOR_SHAPE, sizes))
    name = message(proto.VALUE_NAME, spec.name.encode())
    return name + message(proto.VALUE_TYPE, kind)
