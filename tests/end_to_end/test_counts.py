"""Two real clips, counted by the agent as by somebody who watches them."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.helpers.support import (
    ASSETS,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    needs_assets,
)

pytestmark = [pytest.mark.assets, needs_assets]

YOLOX = {
    "name": "yolox",
    "version": "1",
    "task": "detection",
    "file": "model.onnx",
    "input": {"color": "bgr", "resize": "letterbox", "anchor": "top-left"},
    "output": {"decoder": "yolox", "threshold": 0.3, "iou": 0.45, "labels": "labels.txt"},
}
ROOM = """
[[zones]]
name = "room"
polygon = [[0, 0], [1, 0], [1, 1], [0, 1]]
[[lines]]
name = "door"
points = [[0.78, 0], [0.78, 1]]
anchor = "center"
[[rules]]
name = "came"
when = "enter"
zone = "room"
[[rules]]
name = "went"
when = "leave"
zone = "room"
"""
TABLE = """
[[zones]]
name = "table"
polygon = [[0, 0.72], [1, 0.72], [1, 1], [0, 1]]
[[lines]]
name = "edge"
points = [[0, 0.72], [1, 0.72]]
[[rules]]
name = "put"
when = "enter"
zone = "table"
[[rules]]
name = "taken"
when = "leave"
zone = "table"
"""


@pytest.mark.parametrize(
    ("clip", "label", "shapes", "order", "crossed"),
    [
        pytest.param(
            "one-by-one-person-detection",
            "person",
            ROOM,
            ["came", "went"] * 6,
            {"in": {}, "out": {"person": 6}},
            id="persons",
        ),
        pytest.param(
            "bottle-detection",
            "bottle",
            TABLE,
            ["put"] * 3 + ["taken", "put", "taken", "taken", "put", "put", "taken", "put"],
            {"in": {"bottle": 4}, "out": {"bottle": 4}},
            id="bottles",
        ),
    ],
)
def test_a_clip_is_counted_as_by_a_person(  # noqa: PLR0917 - the parts of one fact
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
    clip: str,
    label: str,
    shapes: str,
    order: list[str],
    crossed: dict[str, Any],
) -> None:
    """The truth was seen by eye, on one frame in ten (persons) and one in fifteen (bottles).

    Six persons come from below, one by one, stand, and go to the right (frames 70 to 200, 230 to
    450, 510 to 700, 750 to 870, 930 to 1200, 1240 to 1360). Three bottles stand on a table; one is
    taken and put back (210, 345), two are taken (525) and put back (660, 825), one is taken and put
    back (945, 1050). The numbers of bottles at every sixtieth frame in `assets.json` agree.
    """
    folder = tmp_path / "models" / "yolox"
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(tomli_w.dumps(YOLOX))
    shutil.copy(ASSETS / "models" / "coco_yolox_nano_fp32.onnx", folder / "model.onnx")
    shutil.copy(ASSETS / "media" / "coco_classes.txt", folder / "labels.txt")
    source = f"file:{ASSETS / 'media' / clip}.mp4?pace=max"
    pipeline = {"name": "clip", "source": source, "model": "yolox", "labels": [label]}
    pipeline |= tomllib.loads(shapes)
    listener = listen(shared_broker.port, f"edge/{label}/#")
    agent(
        agent_settings(label, shared_broker.url, [pipeline], models_dirs=[str(tmp_path / "models")])
    )

    listener.wait_state(f"edge/{label}/source/clip", patience=150, state="ended")
    (line,) = tomllib.loads(shapes)["lines"]

    def counted(_: object) -> bool:
        last = listener.last(f"edge/{label}/count/clip")
        totals = last["lines"][line["name"]] if last else {}
        return {way: totals.get(way) for way in ("in", "out")} == crossed

    listener.wait_for(counted, "the totals of the line")
    assert [each["rule"] for each in listener.on(f"edge/{label}/event/clip")] == order
