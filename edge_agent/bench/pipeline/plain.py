"""The script that anyone would write first: OpenCV, ONNX Runtime, paho, one after the other.

What the agent is measured against, so it is kept plain: default threads, default session, no
thread of its own. Run as `python -m edge_agent.bench.pipeline.plain CLIP MODEL PORT TOPIC`; plays
until it is terminated.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime as ort
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from ...core.types import Detections, TensorSpec
from ...inference.decode.registry import build_decoder
from ...models.manifest import load
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


def main(clip: str, model: str, port: str, topic: str) -> None:
    """Play the clip through the model and publish every result, for ever."""
    folder = load(Path(model))
    ort.set_default_logger_severity(3)
    session = ort.InferenceSession(str(folder.network))
    (given,) = specs(session.get_inputs())
    outputs = specs(session.get_outputs())
    how = recipe(folder, given)
    size = how["width"], how["height"]
    decode = build_decoder(folder.manifest, folder.labels, (given,), outputs, size)
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", int(port))
    client.loop_start()
    capture = cv2.VideoCapture(clip)
    seq = 0
    while True:
        read, frame = capture.read()
        if not read:
            capture = cv2.VideoCapture(clip)
            continue
        taken = time.time()
        tensor, way = prepare(frame, how)
        results = session.run(None, {given.name: tensor})
        found = decode(
            {o.name: r for o, r in zip(outputs, results, strict=True)},
            {given.name: tensor},
            how["threshold"],
        )
        if isinstance(found, Detections):
            to_frame(found, way)
        payload = {"seq": seq, "time": taken, "model": folder.manifest.id, **found.as_json()}
        client.publish(topic, json.dumps(payload))
        seq += 1


if __name__ == "__main__":
    main(*sys.argv[1:5])
