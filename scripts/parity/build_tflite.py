"""Parity cases of TensorFlow Lite: what LiteRT, its own runtime, finds.

    python build_tflite.py FOLDER

Runs in the exporters' environment. SSDs that end in TFLite_Detection_PostProcess; Teachable
Machine's zip, unpacked, as its own snippet for Python reads it; Edge Impulse's integer classifier
and FOMO's cells (edge-impulse-sdk/classifier/ei_fill_result_struct.h).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from ai_edge_litert.interpreter import Interpreter
from build_formulas import cells
from PIL import Image, ImageOps
from workshop import Workshop, write_manifest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers.tiny_tflite import Tensor, save_fomo, save_ssd, save_teachable, save_tflite

LABELS = ["left", "middle", "right"]
THRESHOLD = 0.3


def run(path: Path, given: Any) -> list[Any]:
    """Run a network on a picture [1, H, W, 3]; return its outputs as floats."""
    network = Interpreter(str(path))
    network.allocate_tensors()
    (taken,) = network.get_input_details()
    if taken["dtype"] != np.float32:
        scale, zero = taken["quantization"]
        bounds = np.iinfo(taken["dtype"])
        given = np.clip(np.rint(given / scale) + zero, bounds.min, bounds.max)
    network.set_tensor(taken["index"], given.astype(taken["dtype"]))
    network.invoke()
    made = []
    for output in network.get_output_details():
        found = network.get_tensor(output["index"])
        scale, zero = output["quantization"]
        made.append((found.astype(np.float32) - zero) * scale if scale else found)
    return made


def stretched(picture: Any, side: int) -> Any:
    """Return a picture in RGB as [1, side, side, 3]."""
    return cv2.resize(picture, (side, side))[None, :, :, ::-1].astype(np.float32)


def ssds(shop: Workshop) -> None:
    """Build SSDs, suppressed together and class by class, of floats and of steps."""
    for regular in (False, True):
        for integers in (False, True):
            name = f"tflite-ssd{'-regular' * regular}{'-steps' * integers}"
            folder = shop.scrap / name
            folder.mkdir(exist_ok=True)
            path = save_ssd(folder / "model.tflite", regular=regular, integers=integers, most=25)
            expected = {}
            for file, picture in shop.read().items():
                high, wide = picture.shape[:2]
                boxes, kinds, scores, count = run(path, (stretched(picture, 32) - 127.5) / 127.5)
                expected[file] = [
                    {
                        "label": LABELS[int(kind)],
                        "score": float(score),
                        "box": [x1 * wide, y1 * high, x2 * wide, y2 * high],
                    }
                    for kind, score, (y1, x1, y2, x2) in zip(
                        kinds[0], scores[0], boxes[0].tolist(), strict=True
                    )
                ][: int(count[0])]
                expected[file] = [one for one in expected[file] if one["score"] >= THRESHOLD]
            output = "TFLite_Detection_PostProcess"
            words = f"""\
decoder = "ssd"
threshold = {THRESHOLD}
labels = {LABELS}
names = {{ boxes_yxyx = "{output}", classes = "{output}:1", scores = "{output}:2" }}"""
            given = "mean = 127.5\nscale = 127.5"
            build(shop, name, "detection", given, words, expected, iou=0.5, most=25)


def classifier(path: Path, side: int) -> Path:
    """Save a classifier of three classes, of steps: numbers of all pixels, then a softmax."""
    random = np.random.default_rng(3)
    weight = random.normal(0, 1, (3, side * side * 3)).astype(np.float32) / side / 8
    tensors = [
        Tensor("x", (1, side, side, 3), 9, (1 / 127.5,), zero=0),
        Tensor("x.f", (1, side, side, 3)),
        Tensor("w", weight.shape, values=weight),
        Tensor("b", (3,), values=np.zeros(3, np.float32)),
        Tensor("seen", (1, 3)),
        Tensor("chances", (1, 3)),
        Tensor("y", (1, 3), 9, (1 / 256,), zero=-128),
    ]
    steps = [
        *((6, 0, (0,), (1,)), (9, 8, (1, 2, 3), (4,))),
        *((25, 9, (4,), (5,)), (114, 0, (5,), (6,))),
    ]
    return save_tflite(path, tensors, steps)


def ranked(chances: Any, labels: Sequence[str] = LABELS) -> list[dict[str, Any]]:
    """Return classes, best first."""
    found = [
        {"label": label, "score": float(score)}
        for label, score in zip(labels, chances, strict=True)
    ]
    return sorted(found, key=lambda one: -one["score"])


def teachable(shop: Workshop) -> None:
    """Build what a Teachable Machine zip unpacks to, floats; it is taken as it is."""
    name = "teachable-machine"
    folder = shop.scrap / name
    folder.mkdir(exist_ok=True)
    path = save_teachable(folder / "model_unquant.tflite", len(LABELS))
    lines = [f"{number} {label}" for number, label in enumerate(LABELS)]
    (folder / "labels.txt").write_text("\n".join(lines))
    expected = {}
    for picture in shop.pictures:
        fitted = ImageOps.fit(Image.open(picture).convert("RGB"), (224, 224), Image.LANCZOS)
        given = np.asarray(fitted).astype(np.float32)[None] / 127.5 - 1
        expected[picture.name] = ranked(run(path, given)[0][0])
    shop.add(name, [folder], name, expected, **facts(name, None, 5))


def edge_impulse(shop: Workshop) -> None:
    """Build its integer classifier, and FOMO's cells of floats and of steps."""
    name = "edge-impulse-int8"
    folder = shop.scrap / name
    folder.mkdir(exist_ok=True)
    path = classifier(folder / "model.tflite", 96)
    expected = {
        file: ranked(run(path, (stretched(picture, 96) - 127.5) / 127.5)[0][0])
        for file, picture in shop.read().items()
    }
    output = f'decoder = "softmax"\nlabels = {LABELS}'
    build(shop, name, "classification", "mean = 127.5\nscale = 127.5", output, expected)
    for integers in (False, True):
        name = f"edge-impulse-fomo{'-int8' * integers}"
        (shop.scrap / name).mkdir(exist_ok=True)
        path = save_fomo(shop.scrap / name / "model.tflite", 96, integers=integers)
        expected = {}
        for file, picture in shop.read().items():
            high, wide = picture.shape[:2]
            expected[file] = [
                {
                    "label": LABELS[kind],
                    "score": score,
                    "box": [x1 * wide / 96, y1 * high / 96, x2 * wide / 96, y2 * high / 96],
                }
                for kind, score, (x1, y1, x2, y2) in cells(run(path, stretched(picture, 96) / 255))
            ]
        output = f"""\
decoder = "semantic"
threshold = {THRESHOLD}
labels = {LABELS[:2]}
first_label = 1"""
        build(shop, name, "detection", "scale = 255", output, expected)


def build(
    shop: Workshop,
    name: str,
    task: str,
    input_: str,
    output: str,
    expected: dict[str, list[dict[str, Any]]],
    *,
    iou: float | None = None,
    most: int = 3000,
) -> None:
    """Write a case with its manifest."""
    folder = shop.scrap / name
    write_manifest(folder, task, "model.tflite", f'layout = "nhwc"\n{input_}', output)
    least = THRESHOLD if task == "detection" else 0.0
    shop.add(name, [folder], name, expected, **facts(name, iou, most, least))


def facts(name: str, iou: float | None, most: int, least: float = 0.0) -> dict[str, Any]:
    """Return what is said of every case."""
    precision = "INT8" if name.endswith(("steps", "int8")) else "FP32"
    return {
        "family": name,
        "exporter": f"LiteRT {version('ai-edge-litert')}",
        "precision": precision,
        "note": "",
        "threshold": least,
        "iou": iou,
        "most": most,
    }


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))
    builders: list[Callable[[Workshop], None]] = [ssds, teachable, edge_impulse]
    for each in builders:
        each(shop)


if __name__ == "__main__":
    main()
