"""The script that a good engineer would write by hand: decoding and inference overlap.

One thread decodes and prepares, another infers, decodes the outputs and publishes; engine and
number of threads are what runs quickest on the device, as `bench pipeline` finds out first. Like
the plain one it has no health, no reconnecting, no second camera and no other model; it is what
the agent's frame path must not be slower than. Run as
`python -m edge_agent.bench.pipeline.handmade CLIP MODEL ENGINE THREADS PORT TOPIC`; plays until it
is terminated.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import cv2

from ...core.types import Array, TensorSpec
from ...models.manifest import load
from ..common.recipe import recipe
from ..common.start_script import Way, prepare
from .plain import publisher, specs

ROOM = 4
"""Frames decoded ahead."""

Infer = Callable[[Array], list[Array]]


def on_onnxruntime(network: Path, threads: int) -> tuple[TensorSpec, tuple[TensorSpec, ...], Infer]:
    """Load a network; return its input, its outputs, and what runs it."""
    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(network), options)
    (given,) = specs(session.get_inputs())
    outputs = specs(session.get_outputs())
    return given, outputs, lambda tensor: session.run(None, {given.name: tensor})


def on_openvino(network: Path, threads: int) -> tuple[TensorSpec, tuple[TensorSpec, ...], Infer]:
    """Load a network; return its input, its outputs, and what runs it."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(str(network))
    model.reshape(
        [1 if size.is_dynamic else size.get_length() for size in model.input(0).partial_shape]
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


ENGINES = {"onnxruntime": on_onnxruntime, "openvino": on_openvino}


def main(clip: str, model: str, engine: str, threads: str, port: str, topic: str) -> None:
    """Play the clip through the model and publish every result, for ever."""
    folder = load(Path(model))
    given, outputs, infer = ENGINES[engine](folder.network, int(threads))
    how = recipe(folder, given)
    publish = publisher(folder, (given, outputs), how, int(port), topic)
    ahead: Queue[tuple[float, Array, Way]] = Queue(ROOM)
    threading.Thread(target=_decode, args=(clip, how, ahead), daemon=True).start()
    while True:
        taken, tensor, way = ahead.get()
        publish(taken, tensor, way, infer(tensor))


def _decode(clip: str, how: dict[str, Any], ahead: Queue[tuple[float, Array, Way]]) -> None:
    while True:
        capture = cv2.VideoCapture(clip)
        while True:
            read, frame = capture.read()
            if not read:
                break
            ahead.put((time.time(), *prepare(frame, how)))


if __name__ == "__main__":
    main(*sys.argv[1:7])
