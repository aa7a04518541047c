"""What all builders of parity cases share: pictures, and the folder that a case is written to.

Runs in the exporters' environment, not in the agent's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import openvino

SIZES = ((640, 389), (320, 240), (500, 500), (389, 640), (1280, 720), (97, 203))
"""Width and height of the pictures: odd ones, so that every rounding shows."""


def compute_in_f32() -> None:
    """Have OpenVINO compute what a network says, whoever opens it in this process.

    Left alone it computes in bf16 where the processor can: scores are 0.05 off then, and boxes come
    and go.
    """
    compile_model = openvino.Core.compile_model

    def exactly(
        core: openvino.Core, model: Any, device_name: Any = None, config: Any = None, **more: Any
    ) -> Any:
        config = {**(config or {}), "INFERENCE_PRECISION_HINT": "f32"}
        return compile_model(core, model, device_name, config, **more)

    openvino.Core.compile_model = exactly


def keep_padding() -> None:
    """Have ONNX Runtime compute zeros before a MaxPool as such, as the agent does.

    It fuses them into the padding of the MaxPool, which is no number at all (onnxruntime#24737).
    """

    class Session(onnxruntime.InferenceSession):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **{"disabled_optimizers": ["Pad_Fusion"], **more})

    onnxruntime.InferenceSession = Session


def write_manifest(folder: Path, task: str, file: str, input_: str, output: str) -> None:
    """Write the manifest of a case, named after its folder; *input_* and *output* are TOML."""
    (folder / "model.toml").write_text(f"""\
name = "{folder.name}"
version = "1"
task = "{task}"
file = "{file}"
[input]
{input_}
[output]
{output}
""")


class Workshop:
    """One folder with the pictures and all cases."""

    def __init__(self, folder: Path) -> None:
        compute_in_f32()
        keep_padding()
        self.folder = folder
        self.pictures = draw_pictures(folder / "pictures")
        self.scrap = folder / "scrap"
        self.scrap.mkdir(exist_ok=True)
        (folder / "cases").mkdir(exist_ok=True)

    def read(self) -> dict[str, np.ndarray]:
        """Return each picture, BGR, by its file's name."""
        return {path.name: cv2.imread(str(path)) for path in self.pictures}

    def add(
        self,
        name: str,
        files: Sequence[Path],
        model: str,
        expected: Mapping[str, list[dict[str, Any]]],
        **facts: Any,
    ) -> None:
        """Write a case.

        Args:
            name: of the case.
            files: that the exporter made; folders are copied whole.
            model: which of them is given to the agent, relative to the case.
            expected: by picture, what the exporter's own code finds: label, score, and of boxes
                x1, y1, x2, y2 in pixels of the picture.
            facts: family, exporter, precision, and: threshold (least score that the exporter
                reports), iou (of its suppression; None where it has none), most (boxes at most),
                whole_pixels (its boxes are rounded), note.

        """
        place = self.folder / "cases" / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for file in files:
            if file.is_dir():
                shutil.copytree(file, place / file.name)
            else:
                shutil.copy(file, place / file.name)
        case = {"name": name, "model": model, **facts, "expected": expected}
        (place / "case.json").write_text(json.dumps(case))
        print(f"built {name}: {sum(map(len, expected.values()))} findings", flush=True)


def draw_pictures(folder: Path) -> list[Path]:
    """Draw pictures with edges, slopes and noise, the same at every run."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(17)
    made = []
    for number, (width, height) in enumerate(SIZES):
        down, across = np.mgrid[0:height, 0:width]
        picture = np.stack(
            [
                127 + 100 * np.sin(across / (7 + 11 * channel) + down / (13 + 5 * number))
                for channel in range(3)
            ],
            axis=2,
        )
        picture += random.normal(0, 12, picture.shape)
        picture = np.clip(picture, 0, 255).astype(np.uint8)
        for _ in range(25):
            x, y = random.integers(0, width), random.integers(0, height)
            wide, high = random.integers(5, width // 2), random.integers(5, height // 2)
            color = tuple(int(part) for part in random.integers(0, 256, 3))
            if random.random() < 0.5:
                corner = (int(x + wide), int(y + high))
                cv2.rectangle(picture, (int(x), int(y)), corner, color, int(random.integers(-1, 4)))
            else:
                cv2.circle(picture, (int(x), int(y)), int(min(wide, high) // 2), color, -1)
        path = folder / f"{number}_{width}x{height}.png"
        cv2.imwrite(str(path), picture)
        made.append(path)
    return made
