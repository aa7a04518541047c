"""openWakeWord's chain of three networks as one, whose state goes from window to window.

Its own code computes mel bands of each 80 ms of sound and of the 30 ms before, an embedding of the
last 76 of these, and the chance of the wake word from the last embeddings.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelError
from ..core.types import Array, TensorSpec
from ..models.files.check_onnx import inspect
from ..models.files.flatbuffer import Table
from ..models.files.protobuf import DamagedError

PARTS = ("melspectrogram", "embedding_model")
"""Names, without suffix, of the two networks that all wake words share."""
SAMPLES, FRAMES, BINS, STEP, WIDTH = 1760, 76, 32, 8, 96
"""Samples of a window, frames of an embedding, their mel bands, how many of them are new, numbers
of an embedding."""
_VARIABLE, _BANDS = 142, 40
"""Operator of a TensorFlow Lite network's variable; features that microWakeWord's take."""


def is_wake_word(path: Path) -> bool:
    """Whether a network is the last of a chain whose others lie beside it."""
    if not all(path.with_stem(part).is_file() for part in PARTS) or path.stem in PARTS:
        return False
    facts = inspect(path)
    return [one.shape[2:] for one in facts.inputs] == [(WIDTH,)] and len(facts.outputs) == 1


def is_micro_wake_word(path: Path) -> bool:
    """Whether a .tflite is microWakeWord's: it has variables, and takes features of a sound."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            model = Table.root(data)
            codes = {max(one.number(0, "<b"), one.number(3, "<i")) for one in model.tables(1)}
            graph = model.tables(2)[0]
            tensors = graph.tables(0)
            taken = [tensors[place].numbers(0, "<i")[2:] for place in graph.numbers(1, "<i")]
    except (DamagedError, IndexError, ValueError):
        return False
    return _VARIABLE in codes and taken == [(_BANDS,)]


class WakeWordModel:
    """The three networks, each run by itself by the library that its format is of."""

    file = "model.xml"
    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        self._paths = [*map(path.with_stem, PARTS), path]
        facts = inspect(path)
        self._count, scores = facts.inputs[0].shape[1] or 0, facts.outputs[0].shape[-1]
        if scores is not None and scores > 1:
            raise ModelError(
                f"{path}: gives {scores} scores, not one; of openWakeWord's networks, those of one "
                "wake word are converted"
            )
        self._silence, self._quiet = np.zeros((1, 1, BINS)), np.zeros((1, 1, WIDTH))
        runner = _runner if path.suffix == ".onnx" else _interpreter
        sizes = ((1, SAMPLES), (1, FRAMES, BINS, 1), (1, self._count, WIDTH))
        self._run = [runner(one, size) for one, size in zip(self._paths, sizes, strict=True)]
        self.program = "its three networks, one after the other"
        self.examples: Sequence[TensorSpec] = [
            TensorSpec("samples", (1, SAMPLES), "float32"),
            TensorSpec("mels", (1, FRAMES - STEP, BINS), "float32"),
            TensorSpec("embeddings", (1, self._count - 1, WIDTH), "float32"),
        ]
        # State is what differs from silence, since it begins with zeros.
        silence = self._mels(np.zeros((1, SAMPLES), np.float32))[:, :1]
        self._silence, self._quiet = silence, self._embedding(silence.repeat(FRAMES, axis=1))

    def _mels(self, samples: Array) -> Array:
        made: Array = self._run[0](samples).reshape(1, STEP, BINS) / np.float32(10) + np.float32(2)
        return made

    def _embedding(self, mels: Array) -> Array:
        made: Array = self._run[1](mels[..., None]).reshape(1, 1, WIDTH)
        return made

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        samples, mels, embeddings = inputs
        mels = np.concatenate((mels + self._silence, self._mels(samples)), axis=1)
        embeddings = np.concatenate((embeddings + self._quiet, self._embedding(mels)), axis=1)
        score = self._run[2](embeddings).reshape(1, 1)
        return [score, mels[:, STEP:] - self._silence, embeddings[:, 1:] - self._quiet]

    def save(self, folder: Path) -> None:
        """Write the three as one network."""
        import openvino as ov
        from openvino import opset13 as ops

        core = ov.Core()
        given = {
            one.name: ops.parameter(one.shape, ov.Type.f32, name=one.name) for one in self.examples
        }

        def through(path: Path, tensor: Any, shape: Sequence[int]) -> Any:
            network = core.read_model(_readable(path))
            (entry,), (end,) = network.get_parameters(), network.get_results()
            network.reshape({entry.output(0): list(tensor.output(0).shape)})
            entry.output(0).replace(tensor.output(0))
            return ops.reshape(end.input_value(0), list(shape), special_zero=False)

        mels = through(self._paths[0], given["samples"], (1, STEP, BINS))
        mels = ops.add(ops.divide(mels, np.float32(10)), np.float32(2))
        mels = ops.concat([ops.add(given["mels"], self._silence), mels], 1)
        embedding = ops.unsqueeze(mels, np.int64(-1))
        embedding = through(self._paths[1], embedding, (1, 1, WIDTH))
        embeddings = ops.concat([ops.add(given["embeddings"], self._quiet), embedding], 1)
        score = through(self._paths[2], embeddings, (1, 1))
        ends = {
            "score": score,
            "mels_next": ops.subtract(_without(mels, STEP), self._silence),
            "embeddings_next": ops.subtract(_without(embeddings, 1), self._quiet),
        }
        for name, node in {**given, **ends}.items():
            node.set_friendly_name(name)
            node.output(0).set_names({name})
        joined = ov.Model([ops.result(node) for node in ends.values()], list(given.values()))
        ov.save_model(joined, folder / self.file, compress_to_fp16=False)


def _readable(path: Path) -> Path | bytes:
    """Return a network in a form that OpenVINO reads: an If of ONNX may have a condition [1, 1]."""
    if path.suffix != ".onnx":
        return path
    import onnx

    model = onnx.load(path)
    nodes = list(model.graph.node)
    for place, one in reversed(list(enumerate(nodes))):
        if one.op_type == "If":
            scalar = f"{one.input[0]}/scalar"
            nodes.insert(place, onnx.helper.make_node("Squeeze", [one.input[0]], [scalar]))
            one.input[0] = scalar
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    serialized: bytes = model.SerializeToString()
    return serialized


def _without(tensor: Any, count: int) -> Any:
    """Return a tensor without the first so many along its second axis."""
    from openvino import opset13 as ops

    last = np.array([np.iinfo(np.int64).max])
    return ops.slice(tensor, np.array([count]), last, np.array([1]), np.array([1]))


def _runner(path: Path, _size: Sequence[int]) -> Any:
    """Return what runs an ONNX network of one input and output."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (entry,) = session.get_inputs()
    return lambda tensor: session.run(None, {entry.name: tensor})[0]


def _interpreter(path: Path, size: Sequence[int]) -> Any:
    """Return what runs a TensorFlow Lite network of one input and output."""
    from ai_edge_litert.interpreter import Interpreter

    network = Interpreter(model_path=str(path))
    (entry,), (end,) = network.get_input_details(), network.get_output_details()
    network.resize_tensor_input(entry["index"], list(size))
    network.allocate_tensors()
    return partial(_interpret, network, entry["index"], end["index"])


def _interpret(network: Any, entry: int, end: int, tensor: Array) -> Any:
    network.set_tensor(entry, tensor)
    network.invoke()
    return network.get_tensor(end)
