"""The script that anyone would write first: OpenCV, ONNX Runtime, paho, one after the other.

What the agent is measured against, so it is kept plain: default threads, default session, no
thread of its own. Run as `python -m edge_agent.bench.plain CLIP MODEL PORT TOPIC`; plays until it
is terminated.
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

from ..decode import build_decoder
from ..manifest import ModelFolder, load
from ..model import default_threshold
from ..records import Array, Detections, TensorSpec
from ..wire import findings

INTERPOLATION = {
    "linear": cv2.INTER_LINEAR,
    "area": cv2.INTER_AREA,
    "cubic": cv2.INTER_CUBIC,
    "nearest": cv2.INTER_NEAREST,
}
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


def prepare(frame: Array, folder: ModelFolder, spec: TensorSpec) -> Array:
    """Resize, convert, normalise, transpose: the usual lines."""
    wanted = folder.manifest.input
    channels_first = wanted.layout != "nhwc"
    width, height = picture_size(folder, spec)
    picture: Array
    tensor: Array
    if wanted.resize == "letterbox":
        scale = min(width / frame.shape[1], height / frame.shape[0])
        small = cv2.resize(frame, (int(frame.shape[1] * scale), int(frame.shape[0] * scale)))
        picture = np.full((height, width, 3), wanted.pad, np.uint8)
        picture[: small.shape[0], : small.shape[1]] = small
    else:
        picture = cv2.resize(
            frame, (width, height), interpolation=INTERPOLATION[wanted.interpolation]
        )
    if wanted.color == "rgb":
        picture = cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    if spec.dtype == "uint8":
        tensor = picture
    else:
        mean = np.array(wanted.per_channel("mean", 3), np.float32)
        divisor = np.array(wanted.per_channel("scale", 3), np.float32)
        tensor = ((picture.astype(np.float32) - mean) / divisor).astype(spec.dtype)
    if channels_first:
        tensor = tensor.transpose(2, 0, 1)
    return np.ascontiguousarray(tensor[None])


def picture_size(folder: ModelFolder, given: TensorSpec) -> tuple[int, int]:
    """Give the width and height that a network takes."""
    first = 2 if folder.manifest.input.layout != "nhwc" else 1
    height, width = given.shape[first : first + 2]
    assert height is not None  # noqa: S101 - sizes are settled by `specs`
    assert width is not None  # noqa: S101
    return width, height


def main(clip: str, model: str, port: str, topic: str) -> None:
    """Play the clip through the model and publish every result, for ever."""
    folder = load(Path(model))
    ort.set_default_logger_severity(3)
    session = ort.InferenceSession(str(folder.network))
    (given,) = specs(session.get_inputs())
    outputs = specs(session.get_outputs())
    size = picture_size(folder, given)
    decode = build_decoder(folder.manifest, folder.labels, (given,), outputs, size)
    threshold = default_threshold(folder)
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
        tensor = prepare(frame, folder, given)
        results = session.run(None, {given.name: tensor})
        found = decode(
            {o.name: r for o, r in zip(outputs, results, strict=True)},
            {given.name: tensor},
            threshold,
        )
        if isinstance(found, Detections):
            found.boxes[:, 0::2] *= frame.shape[1] / size[0]
            found.boxes[:, 1::2] *= frame.shape[0] / size[1]
        payload = {"seq": seq, "time": taken, "model": folder.manifest.id, **findings(found)}
        client.publish(topic, json.dumps(payload))
        seq += 1


if __name__ == "__main__":
    main(*sys.argv[1:5])
