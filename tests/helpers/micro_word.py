"""A tiny network as microWakeWord's are: what came before is kept in a variable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np

from edge_agent.tools.micro_frontend import BANDS

AVERAGED = 5
SAID: dict[str, Any] = {
    "wake_word": "hey box",
    "version": 2,
    "micro": {"probability_cutoff": 0.6, "sliding_window_size": AVERAGED, "feature_step_size": 10},
}


class _Graph:
    """A graph of a model, as LiteRT's own classes have it."""

    def __init__(self, model: Any) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self._schema, self._model = schema, model
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []
        model.subgraphs.append(self.graph)

    def tensor(
        self,
        shape: Sequence[int],
        kind: str = "INT8",
        values: Any = None,
        *,
        scale: float = 0.1,
        zero: int = -128,
    ) -> int:
        """Add a tensor, a constant if it has values; return its number."""
        made = self._schema.TensorT()
        made.name, made.shape = f"t{len(self.graph.tensors)}", list(shape)
        made.type, made.buffer = getattr(self._schema.TensorType, kind), 0
        if kind in {"INT8", "UINT8"} or zero == 0:
            made.quantization = self._schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = [scale], [zero]
        if values is not None:
            made.buffer = len(self._model.buffers)
            held = self._schema.BufferT()
            held.data = np.asarray(values, kind.lower()).reshape(-1).view(np.uint8)
            self._model.buffers.append(held)
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def add(self, name: str, taken: list[int], made: list[int], told: str, **options: Any) -> None:
        """Add an operator with its options, whose class is *told*."""
        schema = self._schema
        code, done = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
        self._model.operatorCodes.append(code)
        done.opcodeIndex = len(self._model.operatorCodes) - 1
        done.inputs, done.outputs = taken, made
        if told:
            done.builtinOptionsType = getattr(schema.BuiltinOptions, f"{told}Options")
            done.builtinOptions = getattr(schema, f"{told}OptionsT")()
            for key, value in options.items():
                setattr(done.builtinOptions, key, value)
        self.graph.operators.append(done)

    def variable(self) -> int:
        """Add the handle of the only variable."""
        handle = self.tensor([], "RESOURCE")
        self.add("VAR_HANDLE", [], [handle], "VarHandle", sharedName="s")
        return handle


def save_word(path: Path, *, begin: int = -128, lost: int = 0, said: Any = SAID) -> Path:
    """Save a network of three frames and of the two before.

    Args:
        path: the .tflite file; the JSON file is written beside it.
        begin: what the variable begins with; -128 stands for 0.
        lost: how many of its weights are missing.
        said: the content of the JSON file.

    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs = 3, [], []
    model.buffers = [schema.BufferT()]
    main, first = _Graph(model), _Graph(model)
    taken = main.tensor([1, 3, BANDS])
    main.add("CALL_ONCE", [], [], "CallOnce", initSubgraphIndex=1)
    handle = main.variable()
    apart, shape = main.tensor([1, 3, 1, BANDS]), main.tensor([4], "INT32", [1, 3, 1, BANDS])
    main.add("RESHAPE", [taken, shape], [apart], "Reshape")
    before, whole = main.tensor([1, 2, 1, BANDS]), main.tensor([1, 5, 1, BANDS])
    main.add("READ_VARIABLE", [handle], [before], "ReadVariable")
    main.add("CONCATENATION", [before, apart], [whole], "Concatenation", axis=1)
    after = main.tensor([1, 2, 1, BANDS])
    bounds = [main.tensor([4], "INT32", one) for one in ([0, 3, 0, 0], [1, 5, 1, 40], [1] * 4)]
    main.add("STRIDED_SLICE", [whole, *bounds], [after], "StridedSlice")
    main.add("ASSIGN_VARIABLE", [handle, after], [], "AssignVariable")
    flat, shape = main.tensor([1, 200]), main.tensor([2], "INT32", [1, 200])
    main.add("RESHAPE", [whole, shape], [flat], "Reshape")
    factors = np.random.default_rng(4).integers(-90, 90, 200 - lost)
    weights = main.tensor([1, 200], values=factors, scale=0.001, zero=0)
    bias = main.tensor([1], "INT32", [0], scale=0.0001, zero=0)
    sums, chance = main.tensor([1, 1], zero=0), main.tensor([1, 1], scale=1 / 256)
    main.add("FULLY_CONNECTED", [flat, weights, bias], [sums], "FullyConnected")
    main.add("LOGISTIC", [sums], [chance], "")
    main.graph.inputs = [taken]
    main.graph.outputs = [main.tensor([1, 1], "UINT8", scale=1 / 256, zero=0)]
    main.add("QUANTIZE", [chance], main.graph.outputs, "Quantize")
    ends = [first.variable(), first.tensor([1, 2, 1, BANDS], values=np.full(80, begin))]
    first.add("ASSIGN_VARIABLE", ends, [], "AssignVariable")
    packed = flatbuffers.Builder(0)
    packed.Finish(model.Pack(packed), b"TFL3")
    path.write_bytes(bytes(packed.Output()))
    path.with_suffix(".json").write_text(json.dumps(said), encoding="utf-8-sig")
    return path
