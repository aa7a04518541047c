"""The script that anyone would write first for a sensor: NumPy, ONNX Runtime, paho.

The agent is compared with it, as with `plain` for pictures: it reads the whole recording, cuts
windows, normalizes, infers, and publishes, one after another. Features of sound are computed by the
agent's own code, because the usual libraries take longer. Run as
`python -m edge_agent.bench.pipeline.plain_signal SOURCE MODEL PORT TOPIC`; plays until terminated.
"""

from __future__ import annotations

import json
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from ...core.errors import UsageError
from ...core.types import Array
from ...inference.decode.decoder import build_decoder
from ...inference.model import default_threshold
from ...inference.preprocess.inputs import constants, sample_input
from ...inference.preprocess.signal import transform_of
from ...models.manifest import InputSpec, load
from ...sources.spec import SourceSpec, parse_source
from .plain import connect, specs


def rows_of(spec: SourceSpec, channels: tuple[int | str, ...]) -> Array:
    """Read a recording: (time, channels) in the model's order, or ready inputs."""
    path = spec.local
    names: list[str] = []
    match spec.scheme.name:
        case "csv":
            names = [cell.strip() for cell in path.open().readline().split(",")]
            with suppress(ValueError):
                list(map(float, names))
                names = []
            rows = np.loadtxt(path, delimiter=",", skiprows=int(bool(names)), ndmin=2)
        case "npy":
            rows = np.load(path)
        case "f32":
            rows = np.fromfile(path, "<f4").reshape(-1, spec.options["channels"])
        case "wav":
            with wave.open(str(path)) as file:
                if file.getsampwidth() != 2:
                    raise UsageError(f"{path}: the plain script reads WAV of 16 bits only")
                samples = np.frombuffer(file.readframes(-1), "<i2")
                rows = samples.reshape(-1, file.getnchannels()) / np.float32(32768)
        case scheme:
            raise UsageError(f"{scheme}: is not a recording that the plain script can read")
    if rows.ndim == 1:
        rows = rows[:, None]
    if channels:
        rows = rows[:, [names.index(c) if isinstance(c, str) else c for c in channels]]
    return rows.astype(np.float32)


def windows_of(rows: Array, wanted: InputSpec) -> Iterator[Array]:
    """Cut windows (window, channels) as the manifest says; without `window`, rows."""
    rows = rows[:: wanted.every]
    if wanted.window is None:
        yield from rows
        return
    if wanted.lead:
        rows = np.concatenate([np.zeros((wanted.lead, *rows.shape[1:]), np.float32), rows])
    for start in range(0, len(rows) - wanted.window + 1, wanted.hop or wanted.window):
        yield rows[start : start + wanted.window]


def main(source: str, model: str, port: str, topic: str) -> None:  # noqa: PLR0914 - a script, from top to bottom
    """Play the recording through the model and publish every result, forever."""
    folder = load(Path(model))
    spec, wanted = parse_source(source, Path.cwd()), folder.manifest.input
    ort.set_default_logger_severity(3)
    session = ort.InferenceSession(str(folder.network))
    inputs, outputs = specs(session.get_inputs()), specs(session.get_outputs())
    given = sample_input(wanted, inputs)
    shape = tuple(size or 1 for size in given.shape)
    features = transform_of(wanted, given)
    decode = build_decoder(folder.manifest, folder.labels, (given,), outputs, None)
    threshold = default_threshold(folder)
    client = connect(port)
    seq = 0
    usual: list[Array] = []
    """Mean and scale."""
    while True:
        feeds: dict[str, Any] = constants(wanted, inputs)
        for window in windows_of(rows_of(spec, wanted.channels), wanted):
            taken = time.time()
            values = window if features is None else features(window)
            if not usual:
                usual = [
                    np.array(wanted.per_channel(name, values.shape[-1]), np.float32)
                    for name in ("mean", "scale")
                ]
            values = (values - usual[0]) / usual[1]
            if wanted.window is not None and (wanted.layout or "ct").endswith("ct"):
                values = values.T
            if np.dtype(given.dtype).kind in "iu":
                bounds = np.iinfo(given.dtype)
                values = np.clip(np.rint(values), bounds.min, bounds.max)
            feeds[given.name] = np.ascontiguousarray(values, given.dtype).reshape(shape)
            results = session.run(None, feeds)
            tensors = {o.name: r for o, r in zip(outputs, results, strict=True)}
            found = decode(tensors, {given.name: feeds[given.name]}, threshold)
            feeds |= {name: tensors[left] for name, left in wanted.state.items()}
            payload = {"seq": seq, "time": taken, "model": folder.manifest.id, **found.as_json()}
            client.publish(f"{topic}0", json.dumps(payload))
            seq += 1


if __name__ == "__main__":
    main(*sys.argv[1:5])
