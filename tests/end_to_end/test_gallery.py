"""A gallery made as the documentation says: who is shown again is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
import tomli_w
from numpy.typing import NDArray

from tests.helpers.small_models import Picture
from tests.helpers.support import (
    ASSETS,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
)

FOUND = 20
FEATURES = "MobilenetV2/Logits/AvgPool_prequant"
RECIPE = Path(__file__).parents[2] / "docs" / "models.md"


def features(folder: Path) -> Path:
    """Make a model of MobileNetV2's features of a picture, by which it tells 1001 classes."""
    folder.mkdir(parents=True)
    network = onnx.load(ASSETS / "models" / "imagenet_mobilenetv2_fp32.onnx")
    last = next(place for place, each in enumerate(network.graph.node) if FEATURES in each.output)
    del network.graph.node[last + 1 :]
    del network.graph.output[:]
    network.graph.node.append(onnx.helper.make_node("Flatten", [FEATURES], ["features"]))
    network.graph.output.append(onnx.helper.make_tensor_value_info("features", 1, (1, 1280)))
    onnx.save(network, folder / "model.onnx")
    table = {
        "name": "features",
        "version": "1",
        "task": "embedding",
        "file": "model.onnx",
        "input": {"color": "rgb", "mean": 128.0, "scale": 128.0},
        "output": {"threshold": 0.5},
    }
    (folder / "model.toml").write_text(tomli_w.dumps(table))
    return folder


def seen_again(picture: NDArray[Any]) -> Picture:
    """Show a picture from nearer, in the dark, with noise, and mirrored."""
    height, width = (size // 10 for size in picture.shape[:2])
    near = picture[height:-height, width:-width][:, ::-1].astype(np.float32)
    noise = np.random.default_rng(0).normal(0, 10, near.shape)
    return np.clip(near * 0.7 + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_gallery_finds_twenty_of_twenty(
    engine: str,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """One picture of each makes the gallery; another picture of each is found in it."""
    pytest.importorskip(engine)
    model = features(tmp_path / "models" / "features")
    shots = sorted(
        path for path in (ASSETS / "media").iterdir() if path.suffix in {".jpg", ".png", ".bmp"}
    )
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir()
    again.mkdir()
    for number, path in enumerate(shots[:FOUND]):
        picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
        assert picture is not None
        cv2.imwrite(str(first / f"p{number:02}-1.png"), picture)
        cv2.imwrite(str(again / f"p{number:02}-2.jpg"), seen_again(picture))

    def results(folder: Path) -> list[dict[str, Any]]:
        heard = listen(broker.port)
        pipeline = {"name": "who", "source": f"dir:{folder}", "model": "features", "qos": 1}
        running = agent(
            agent_settings(
                "box",
                broker.url,
                [pipeline],
                models_dirs=[str(tmp_path / "models")],
                engine=engine,
                state_dir=str(tmp_path / f"state-{folder.name}"),
            )
        )
        found = heard.wait_for(
            lambda _: len(found := heard.on("edge/box/result/who")) == FOUND and found, "results"
        )
        assert running.stop() == 0
        return list(found)

    (script,) = re.findall(
        r"^```python\n(# gallery\.py.*?)^```", RECIPE.read_text(), re.DOTALL | re.MULTILINE
    )
    lines = "\n".join(json.dumps(result) for result in results(first))
    subprocess.run([sys.executable, "-c", script], input=lines, text=True, cwd=model, check=True)
    matches = {
        Path(result["file"]).stem: (result["match"] or {}).get("label") for result in results(again)
    }
    assert matches == {f"p{number:02}-2": f"p{number:02}" for number in range(FOUND)}
