"""Small networks in model folders, and pictures and clips for them, all made on the spot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from tests.helpers.tiny_networks import constant_outputs, node, save_onnx

Picture = NDArray[np.uint8]


def write_manifest(folder: Path, version: str, task: str, **tables: Any) -> Path:
    """Write model.toml; the model bears its folder's name, up to a dash."""
    entries = {"name": folder.name.split("-")[0], "version": version, "task": task}
    manifest = {**entries, "file": "model.onnx", **tables}
    (folder / "model.toml").write_text(tomli_w.dumps(manifest))
    return folder


def brightness(folder: Path, version: str = "1", *, task: str = "regression") -> Path:
    """Make a model that gives the mean of a picture, 0 to 255, as `light`."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [node("ReduceMean", ["picture"], ["light"], axes=[1, 2, 3], keepdims=0)],
        [("picture", "float32", (1, 3, 16, 16))],
        [("light", "float32", (1,))],
    )
    entries = {"interpolation": "area"}
    return write_manifest(folder, version, task, input=entries, output={"decoder": "raw"})


def color_classifier(folder: Path, version: str = "1") -> Path:
    """Make a model that tells which color a picture has most of."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [node("ReduceMean", ["picture"], ["logits"], axes=[2, 3], keepdims=0)],
        [("picture", "float32", (1, 3, 16, 16))],
        [("logits", "float32", (1, 3))],
    )
    output = {"decoder": "logits", "labels": ["red", "green", "blue"]}
    return write_manifest(folder, version, "classification", output=output)


def wrapping(folder: Path, version: str = "1") -> Path:
    """Make a model whose bytes overflow in bright pictures, which OpenVINO computes in its own way.

    100 is added to the mean: 200 gives 44, as ONNX Runtime has it; OpenVINO (2026.4) gives 255.
    """
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["mean"], axes=[1, 2, 3], keepdims=0),
            node("Cast", ["mean"], ["byte"], to=2),
            node("Add", ["byte", "hundred"], ["sum"]),
            node("Cast", ["sum"], ["light"], to=1),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("light", "float32", (1,))],
        {"hundred": np.array(100, np.uint8)},
    )
    return write_manifest(folder, version, "regression", output={"decoder": "raw"})


def detector(
    folder: Path, rows: Sequence[tuple[float, ...]], labels: Sequence[str], version: str = "1"
) -> Path:
    """Make a detector that finds the same in every picture.

    Args:
        folder: to make.
        rows: index of the label, score, x1, y1, x2, y2 from 0 to 1.
        labels: by index.
        version: of the model.

    """
    folder.mkdir(parents=True)
    table = np.array([[[(0, *row) for row in rows]]], np.float32)
    constant_outputs(folder / "model.onnx", {"detection_out": table})
    output = {"decoder": "ssd", "threshold": 0.5, "labels": list(labels)}
    return write_manifest(folder, version, "detection", output=output)


def lamp_finder(folder: Path) -> Path:
    """Make a detector that finds a lamp in the upper left, surer the brighter the picture is."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["mean"], axes=[1, 2, 3], keepdims=1),
            node("Mul", ["mean", "share"], ["score"]),
            node("Add", ["score", "box"], ["detection_out"]),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("detection_out", "float32", (1, 1, 1, 7))],
        {
            "share": np.array([[[[0, 0, 1 / 255, 0, 0, 0, 0]]]], np.float32),
            "box": np.array([[[[0, 0, 0, 0.1, 0.1, 0.4, 0.5]]]], np.float32),
        },
    )
    output = {"decoder": "ssd", "threshold": 0.5, "labels": ["lamp"]}
    return write_manifest(folder, "1", "detection", output=output)


def loudness(folder: Path, window: int, version: str = "1", **more: Any) -> Path:
    """Make a model that gives the mean of a window of one channel; above 100 it is anomalous.

    *more* is of its output.
    """
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [node("ReduceMean", ["signal"], ["mean"], axes=[1, 2], keepdims=0)],
        [("signal", "float32", (1, 1, window))],
        [("mean", "float32", (1,))],
    )
    entries = {"window": window, "layout": "ct"}
    output = {"decoder": "score", "threshold": 100.0, **more}
    return write_manifest(folder, version, "anomaly", input=entries, output=output)


def heavy(folder: Path, rounds: int, version: str = "1") -> Path:
    """Make a model as `brightness` that takes its time: *rounds* products of 512 by 512."""
    folder.mkdir(parents=True)
    steps = [node("ReduceMean", ["picture"], ["light"], axes=[1, 2, 3], keepdims=0)]
    steps.append(node("Mul", ["light", "nought"], ["zero"]))
    steps.append(node("Add", ["matrix", "zero"], ["m0"]))
    steps += [node("MatMul", [f"m{i}", "matrix"], [f"m{i + 1}"]) for i in range(rounds)]
    steps.append(node("ReduceSum", [f"m{rounds}"], ["sum"], keepdims=0))
    save_onnx(
        folder / "model.onnx",
        steps,
        [("picture", "float32", (1, 3, 16, 16))],
        [("light", "float32", (1,)), ("sum", "float32", ())],
        {"nought": np.zeros(1, np.float32), "matrix": np.eye(512, dtype=np.float32)},
    )
    return write_manifest(folder, version, "regression", output={"decoder": "raw"})


def picky(folder: Path) -> Path:
    """Make a model that ONNX Runtime refuses to run on bright pictures, and OpenVINO does not.

    It looks its answer up in a list of two, at an index that a bright picture drives out of it.
    """
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["mean"], axes=[1, 2, 3], keepdims=0),
            node("Mul", ["mean", "hundredth"], ["share"]),
            node("Cast", ["share"], ["index"], to=7),
            node("Gather", ["answers", "index"], ["light"]),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("light", "float32", (1,))],
        {
            "hundredth": np.array(0.01, np.float32),
            "answers": np.array([1.0, 2.0], np.float32),
        },
    )
    return write_manifest(folder, "1", "regression", output={"decoder": "raw"})


def plain(value: int, width: int = 64, height: int = 48) -> Picture:
    """Make a picture of one gray."""
    return np.full((height, width, 3), value, np.uint8)


def blocks(count: int, low: int, high: int) -> list[Picture]:
    """Make pictures of 64 blocks of any colors between two levels, all unlike each other."""
    random = np.random.default_rng(0)
    colors = random.integers(low, high, (count, 8, 8, 3), np.uint8)
    return [color.repeat(8, axis=0).repeat(8, axis=1) for color in colors]


def write_pictures(folder: Path, pictures: Iterable[Picture]) -> str:
    """Write a folder of pictures 000.png, 001.png …; gives it as a source."""
    from edge_agent.sources.opencv import load

    cv2 = load()
    folder.mkdir(parents=True)
    for number, picture in enumerate(pictures):
        assert cv2.imwrite(str(folder / f"{number:03}.png"), picture)
    return f"dir:{folder}"


def write_clip(path: Path, pictures: Iterable[Picture], rate: float = 25.0) -> Path:
    """Write a clip of pictures of one size."""
    from edge_agent.sources.opencv import load

    cv2 = load()
    frames = list(pictures)
    height, width = frames[0].shape[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), rate, (width, height))
    assert writer.isOpened()
    for picture in frames:
        writer.write(picture)
    writer.release()
    return path


def encode_jpeg(picture: Picture) -> bytes:
    """Encode a picture as a camera does."""
    from edge_agent.sources.opencv import load

    data: bytes = load().imencode(".jpg", picture)[1].tobytes()
    return data


def decode_picture(data: bytes) -> Picture:
    """Decode a JPEG; fails the test where it is none."""
    from edge_agent.sources.opencv import load

    cv2 = load()
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None, "not a picture"
    decoded: Picture = picture
    return decoded
