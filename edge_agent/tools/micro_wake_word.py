"""microWakeWord's networks, with their features and with states in place of their variables.

Such a network of eight-bit integers takes the features of a few frames, and keeps in variables what
came before. A JSON file beside it says how many of its probabilities are averaged, and from what
mean on its word is heard. All of that becomes one network of samples.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import openvino as ov
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from openvino import opset15 as ops

from ..core.errors import ModelError
from ..core.types import Array, TensorSpec
from .micro_frontend import BANDS, FRAME, RATE, UNIT, features

_MOST_AVERAGED = 1000
_AGAIN = "take what microWakeWord's training calls stream_state_internal_quant"
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, struct.error)
"""Errors of LiteRT's classes, which do not check a file."""


class MicroWakeWordModel:
    """The network, run by LiteRT, and what is around it."""

    file = "model.xml"
    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        self._said = _read(path)
        try:
            self._content = _with_states(path)
            self._network = Interpreter(model_content=self._content)
            self._network.allocate_tensors()
        except _DAMAGE as problem:
            raise ModelError(f"{path}: LiteRT cannot load it, it is damaged; {_AGAIN}") from problem
        self._taken = self._network.get_input_details()
        self._made = self._network.get_output_details()
        kinds = [one["dtype"] for one in (*self._taken, *self._made[1:])]
        if {*kinds} != {np.int8} or self._made[0]["dtype"] not in {np.int8, np.uint8}:
            raise ModelError(f"{path}: expected a network of eight-bit integers; {_AGAIN}")
        self._frames = int(self._taken[0]["shape"][1])
        self._said["hop"] = self._frames * self._said["step"]
        length = FRAME + self._said["hop"] - self._said["step"]
        self.examples: Sequence[TensorSpec] = [
            TensorSpec("samples", (1, length), "int32"),
            TensorSpec("noise", (1, BANDS), "float32"),
            TensorSpec("chances", (1, self._said["averaged"]), "float32"),
            *(
                TensorSpec(f"state{number}", tuple(map(int, one["shape"])), "uint8")
                for number, one in enumerate(self._taken[1:])
            ),
        ]
        given, heard, noise = self._front()
        front = ov.Model([ops.result(heard), ops.result(noise)], given)
        self._heard = ov.Core().compile_model(front, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        self.program = f"LiteRT {version('ai-edge-litert')} on features computed here"

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        samples, noise, chances, *states = inputs
        heard, noise = self._heard([samples, noise]).values()
        self._network.set_tensor(self._taken[0]["index"], heard)
        for one, state in zip(self._taken[1:], states, strict=True):
            before = state.astype(np.int32) + one["quantization"][1]
            self._network.set_tensor(one["index"], before.astype(np.int8))
        self._network.invoke()
        made, *after = (self._network.get_tensor(one["index"]) for one in self._made)
        step, zero = self._made[0]["quantization"]
        chance = (made.reshape(1, 1).astype(np.float32) - zero) * np.float32(step)
        chances = np.concatenate((chances[:, 1:], chance), axis=1)
        states = [
            (state.astype(np.int32) - one["quantization"][1]).astype(np.uint8)
            for one, state in zip(self._made[1:], after, strict=True)
        ]
        return [chances.mean(axis=1, keepdims=True), noise, chances, *states]

    def save(self, folder: Path) -> None:
        """Write it as one network."""
        given, heard, noise = self._front()
        chances, *states = (_parameter(one) for one in self.examples[2:])
        bare = folder / "network.tflite"
        bare.write_bytes(self._content)
        network = ov.Core().read_model(bare)
        taken = [one.get_node().output(0) for one in network.inputs]
        made = [one.get_node().input_value(0) for one in network.outputs]
        taken[0].replace(heard.output(0))
        after = []
        for place, state in enumerate(states, 1):
            # A state is above its 0, as states begin with zeros.
            least = np.full(1, self._taken[place]["quantization"][1], np.int32)
            before = ops.convert(ops.convert(state, "i32") + least, "i8")
            taken[place].replace(before.output(0))
            after.append(ops.convert(ops.convert(made[place], "i32") - least, "u8"))
        step, zero = (np.full(1, one, np.float32) for one in self._made[0]["quantization"])
        chance = (ops.reshape(ops.convert(made[0], "f32"), [1, 1], False) - zero) * step
        kept = ops.concat([chances, chance], 1)
        kept = ops.gather(kept, np.arange(1, self._said["averaged"] + 1), 1)
        ends = [ops.reduce_mean(kept, [1], True), noise, kept, *after]
        names = ["score", *(f"{one.name}_next" for one in self.examples[1:])]
        for name, node in zip(names, ends, strict=True):
            node.output(0).set_names({name})
        joined = ov.Model([ops.result(node) for node in ends], [*given, chances, *states])
        for key, value in self._said.items():
            joined.set_rt_info(str(value), ["micro_wake_word", key])
        ov.save_model(joined, folder / self.file, compress_to_fp16=False)
        bare.unlink()

    def _front(self) -> tuple[list[Any], Any, Any]:
        """Build the network's input: parameters, input, and the new estimate of noise."""
        given = [_parameter(one) for one in self.examples[:2]]
        flat = ops.reshape(given[0], [-1], False)
        found, noise = features(flat, given[1], self._frames, self._said["step"])
        step, zero = self._taken[0]["quantization"]
        heard = found * np.full(1, UNIT / step, np.float32) + np.full(1, zero, np.float32)
        heard = ops.convert(ops.clamp(ops.round(heard, "half_to_even"), -128.0, 127.0), "i8")
        return given, ops.reshape(heard, [1, self._frames, BANDS], False), noise


def _parameter(spec: TensorSpec) -> Any:
    made = ops.parameter(spec.shape, np.dtype(spec.dtype), name=spec.name)
    made.output(0).set_names({spec.name})
    return made


def _read(path: Path) -> dict[str, Any]:
    """Read from the JSON file beside a network: word, cutoff, averaged, and a frame's step.

    Raises:
        ModelError: it is missing, or does not say so.
    """
    beside = path.with_suffix(".json")
    if not beside.is_file():
        raise ModelError(
            f"{path}: {beside.name} is missing, which says from what probability on its word is "
            "heard; put it beside it, as microWakeWord's networks come"
        )
    try:
        given = json.loads(beside.read_text(encoding="utf-8-sig"))
        micro, first = given["micro"], given.get("version") == 1
        said: dict[str, Any] = {
            "word": str(given["wake_word"]),
            "cutoff": float(micro["probability_cutoff"]),
            "averaged": int(micro[f"sliding_window_{'average_' if first else ''}size"]),
            "step": int(micro.get("feature_step_size", 20 if first else 10)) * RATE // 1000,
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
        raise ModelError(
            f"{beside}: expected wake_word, and in micro probability_cutoff and "
            "sliding_window_size, as microWakeWord's have them"
        ) from problem
    averaged = 1 <= said["averaged"] <= _MOST_AVERAGED
    if not (0 < said["cutoff"] <= 1 and averaged and 0 < said["step"] <= FRAME and said["word"]):
        raise ModelError(
            f"{beside}: expected a wake_word, probability_cutoff in 0..1, sliding_window_size in "
            f"1..{_MOST_AVERAGED} and feature_step_size in 1..30"
        )
    return said


def _with_states(path: Path) -> bytes:
    """Return a network whose variables are inputs and outputs, in the order of their names.

    Raises:
        ModelError: its variables cannot become that.
    """
    kinds, kept = schema.BuiltinOperator, []
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    codes = [max(one.builtinCode, one.deprecatedBuiltinCode) for one in model.operatorCodes]
    graph, *others = model.subgraphs
    names: dict[int, bytes] = {}
    taken: dict[bytes, int] = {}
    left: dict[bytes, int] = {}
    for operator in graph.operators:
        match codes[operator.opcodeIndex]:
            case kinds.VAR_HANDLE:
                names[operator.outputs[0]] = operator.builtinOptions.sharedName
            case kinds.READ_VARIABLE:
                name = names.get(operator.inputs[0], b"")
                if name in taken or name in left:
                    raise ModelError(f"{path}: reads a variable twice, or once written; {_AGAIN}")
                taken[name] = operator.outputs[0]
            case kinds.ASSIGN_VARIABLE:
                left[names.get(operator.inputs[0], b"")] = operator.inputs[1]
            case kinds.CALL_ONCE:
                pass  # sets variables to 0
            case _:
                kept.append(operator)
    began = [one for other in others for one in other.tensors if one.quantization is not None]
    values = [(one, model.buffers[one.buffer].data) for one in began]
    if taken.keys() != left.keys() or any(
        data is not None and (data.view(np.int8) != one.quantization.zeroPoint[0]).any()
        for one, data in values
    ):
        raise ModelError(f"{path}: a variable is not kept, or does not begin with 0; {_AGAIN}")
    graph.operators, model.subgraphs, model.signatureDefs = kept, [graph], None
    graph.inputs = [*graph.inputs, *(taken[name] for name in sorted(taken))]
    graph.outputs = [*graph.outputs, *(left[name] for name in sorted(left))]
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
