"""The scripts that the agent is compared with: OpenCV, an engine, paho, and nothing else.

One is what anyone would write first: ONNX Runtime with its default session, one step after another.
The other is what a good engineer would write by hand: one thread decodes and prepares while another
infers, on the engine and number of threads that `bench pipeline` has found to be the fastest.
Neither has health, reconnecting, a second camera, or another model. Run as
`python -m edge_agent.bench.pipeline.plain CLIP MODEL ENGINE THREADS AHEAD PORT TOPIC`, where AHEAD
is the number of frames decoded ahead, 0 for one after another; plays until terminated.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Queue
from types import MappingProxyType
from typing import Any

import cv2
import numpy as np
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from ...core.types import Array, Detections, Findings, TensorSpec
from ...inference.decode.decoder import build_decoder
from ...models.manifest import ModelFolder, load
from ..common.recipe import recipe
from ..common.start_script import Way, prepare

Sizes = Mapping[int, int | None]
"""Sizes by axis; None: not known."""
Infer = Callable[[Array], Sequence[Array]]
Loaded = tuple[TensorSpec, tuple[TensorSpec, ...], Infer]
"""A network's input, its outputs, and the function that runs it."""


def specs(values: Any, sizes: Sizes = MappingProxyType({})) -> tuple[TensorSpec, ...]:
    """Return the specs of a session's inputs or outputs, with open *sizes*, else 1."""
    found = []
    for value in values:
        shape = tuple(
            size if isinstance(size, int) else sizes.get(axis) or 1
            for axis, size in enumerate(value.shape)
        )
        dtype = value.type.removeprefix("tensor(").removesuffix(")")
        found.append(TensorSpec(value.name, shape, "float32" if dtype == "float" else dtype))
    return tuple(found)


def on_onnxruntime(network: Path, threads: int, sizes: Sizes) -> Loaded:
    """Load a network; 0 threads: the session's default. *sizes*: of its input where it is open."""
    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(network), options)
    (given,) = specs(session.get_inputs(), sizes)
    outputs = specs(session.get_outputs())
    return given, outputs, lambda tensor: session.run(None, {given.name: tensor})


def on_openvino(network: Path, threads: int, sizes: Sizes) -> Loaded:
    """Load a network; *sizes*: of its input where it is open."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(str(network))
    model.reshape(
        [
            sizes.get(axis) or 1 if size.is_dynamic else size.get_length()
            for axis, size in enumerate(model.input(0).partial_shape)
        ]
    )
    compiled = core.compile_model(
        model,
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"},
    )
    request = compiled.create_infer_request()

    def spec(port: Any) -> TensorSpec:
        dtype = port.get_element_type().to_dtype().name
        return TensorSpec(port.any_name, tuple(port.shape), dtype)

    def infer(tensor: Array) -> list[Array]:
        request.set_input_tensor(ov.Tensor(tensor, shared_memory=True))
        request.infer()
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return spec(compiled.input(0)), tuple(spec(port) for port in compiled.outputs), infer


_ENGINES = {"onnxruntime": on_onnxruntime, "openvino": on_openvino}


def load_on(engine: str, folder: ModelFolder, threads: int) -> Loaded:
    """Load a model of pictures; where its size is open it is the manifest's."""
    wanted = folder.manifest.input
    first = 1 if wanted.layout == "nhwc" else 2
    sizes = {first: wanted.height, first + 1: wanted.width}
    return _ENGINES[engine](folder.network, threads, sizes)


class Script:
    """A model in a plain script: loaded, with the usual lines before and after it."""

    def __init__(self, model: str, engine: str = "onnxruntime", threads: int = 0) -> None:
        self.folder: ModelFolder = load(Path(model))
        self._given, self._outputs, self.infer = load_on(engine, self.folder, threads)
        self.how = recipe(self.folder, self._given)
        size = self.how["width"], self.how["height"]
        self._decode = build_decoder(
            self.folder.manifest, self.folder.labels, (self._given,), self._outputs, size
        )

    def find(self, tensor: Array, way: Way, results: Sequence[Array]) -> Findings:
        """Decode the network's outputs for a prepared picture; boxes are in pixels of the frame."""
        named = {o.name: r for o, r in zip(self._outputs, results, strict=True)}
        found = self._decode(named, {self._given.name: tensor}, self.how["threshold"])
        if isinstance(found, Detections):
            to_frame(found, way)
        return found

    def payload(self, seq: int, taken: float, found: Findings) -> str:
        """Return the payload for a frame that was captured at *taken*."""
        age = {"age_ms": (time.time() - taken) * 1e3}
        head = {"seq": seq, "time": taken, "model": self.folder.manifest.id, "timing": age}
        return json.dumps(head | found.as_json())


def to_frame(found: Detections, way: Way) -> None:
    """Map boxes from the network's pixels to the frame's."""
    found.boxes[...] -= np.array(way[2:] * 2, np.float32)
    found.boxes[...] /= np.array(way[:2] * 2, np.float32)


def connect(port: str) -> mqtt.Client:
    """Connect to the broker on loopback."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", int(port))
    client.loop_start()
    return client


def _frames(clip: str, how: dict[str, Any]) -> Iterator[tuple[float, Array, Way]]:
    """Yield each frame of an endlessly repeated clip: when it was captured, and prepared input."""
    while True:
        capture = cv2.VideoCapture(clip)
        while True:
            read, frame = capture.read()
            if not read:
                break
            yield time.time(), *prepare(frame, how)


def _beside(frames: Iterator[Any], room: int) -> Iterator[Any]:
    """Yield frames that another thread reads, up to *room* ahead."""
    ahead: Queue[Any] = Queue(room)

    def take() -> None:
        for frame in frames:
            ahead.put(frame)

    threading.Thread(target=take, daemon=True).start()
    while True:
        yield ahead.get()


def main(clip: str, model: str, engine: str, threads: str, *rest: str) -> None:
    """Play the clip through the model and publish every result, forever."""
    ahead, port, topic = rest
    script = Script(model, engine, int(threads))
    client = connect(port)
    frames = _frames(clip, script.how)
    for seq, (taken, tensor, way) in enumerate(
        _beside(frames, int(ahead)) if int(ahead) else frames
    ):
        found = script.find(tensor, way, script.infer(tensor))
        client.publish(f"{topic}0", script.payload(seq, taken, found))


if __name__ == "__main__":
    main(*sys.argv[1:])
