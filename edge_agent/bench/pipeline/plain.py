"""The script that anyone would write first: OpenCV, ONNX Runtime, paho, one after the other.

What the agent is measured against, so it is kept plain: default threads, default session, no
thread of its own. Run as `python -m edge_agent.bench.pipeline.plain CLIP MODEL PORT TOPIC`; plays
until it is terminated.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime as ort
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from ...core.types import Array, Detections, TensorSpec
from ...inference.decode.decoder import build_decoder
from ...models.manifest import ModelFolder, load
from ..common.recipe import recipe
from ..common.start_script import Way, prepare

TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int64)": "int64",
}


def specs(values: Any) -> tuple[TensorSpec, ...]:
    """Describe a session's inputs or outputs, open sizes as 1."""
    return tuple(
        TensorSpec(
            value.name,
            tuple(size if isinstance(size, int) else 1 for size in value.shape),
            TYPES[value.type],
        )
        for value in values
    )


def to_frame(found: Detections, way: Way) -> None:
    """Carry boxes from the network's pixels to the frame's."""
    found.boxes[...] -= np.array(way[2:] * 2, np.float32)
    found.boxes[...] /= np.array(way[:2] * 2, np.float32)


def publisher(
    folder: ModelFolder,
    tensors: tuple[TensorSpec, tuple[TensorSpec, ...]],
    how: dict[str, Any],
    port: int,
    topic: str,
) -> Callable[[float, Array, Way, Sequence[Array]], None]:
    """Connect to the broker on loopback; return what decodes and publishes a frame's outputs.

    *tensors* are the model's input and its outputs, *how* is the recipe of its pictures.
    """
    given, outputs = tensors
    size = how["width"], how["height"]
    decode = build_decoder(folder.manifest, folder.labels, (given,), outputs, size)
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    numbers = itertools.count()

    def publish(taken: float, tensor: Array, way: Way, results: Sequence[Array]) -> None:
        named = {o.name: r for o, r in zip(outputs, results, strict=True)}
        found = decode(named, {given.name: tensor}, how["threshold"])
        if isinstance(found, Detections):
            to_frame(found, way)
        payload = {"seq": next(numbers), "time": taken, "model": folder.manifest.id}
        client.publish(topic, json.dumps(payload | found.as_json()))

    return publish


def main(clip: str, model: str, port: str, topic: str) -> None:
    """Play the clip through the model and publish every result, for ever."""
    folder = load(Path(model))
    ort.set_default_logger_severity(3)
    session = ort.InferenceSession(str(folder.network))
    (given,) = specs(session.get_inputs())
    outputs = specs(session.get_outputs())
    how = recipe(folder, given)
    publish = publisher(folder, (given, outputs), how, int(port), topic)
    capture = cv2.VideoCapture(clip)
    while True:
        read, frame = capture.read()
        if not read:
            capture = cv2.VideoCapture(clip)
            continue
        taken = time.time()
        tensor, way = prepare(frame, how)
        publish(taken, tensor, way, session.run(None, {given.name: tensor}))


if __name__ == "__main__":
    main(*sys.argv[1:5])
