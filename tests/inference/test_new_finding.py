"""A new kind of finding is one class; a new column of detections one field and one entry."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edge_agent.config.settings import Pipeline
from edge_agent.core import types
from edge_agent.core.columns import COLUMNS, Column
from edge_agent.core.frozen import record
from edge_agent.core.types import Detections, Findings, Sample, Tensors
from edge_agent.inference.agreement import Margin, compare_findings
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.decoders import DECODERS, DecoderSpec
from edge_agent.models.manifest import load
from edge_agent.mqtt import payloads
from edge_agent.runtime.pipelines.draw import annotate
from edge_agent.runtime.pipelines.frame_path import FramePath
from tests.helpers.small_models import brightness


@record(quick=True)
class Light(Findings):
    """The smallest finding there can be."""

    level: float

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        return {"light": round(self.level, digits)}

    def words(self) -> list[str]:
        return [f"light {self.level:.0f}"]

    def numbers(self) -> Tensors:
        return {"light": np.array([self.level])}


def light(_network: object) -> Any:
    """Build its decoder."""
    return lambda outputs, _inputs, _least: Light(float(outputs["light"][0]))


def test_a_new_kind_of_finding_goes_all_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded, filtered, decided, published, drawn and compared; nothing else has to know it."""
    decoders = cast("MutableMapping[str, DecoderSpec]", DECODERS)
    monkeypatch.setitem(decoders, "light", DecoderSpec(f"{__name__}.light", ("regression",)))
    folder = load(brightness(tmp_path / "light"))
    output = replace(folder.manifest.output, decoder=cast("Any", "light"))
    folder = replace(folder, manifest=replace(folder.manifest, output=output))
    model = load_model(folder, [EngineChoice("onnxruntime")], "picture")
    picture = np.full((48, 64, 3), 60, np.uint8)
    sample = Sample(picture, 0, 0, 0.0)
    pipeline = Pipeline(name="p", source="dir:.", model="light", labels=("cat",), threshold=0.5)
    outcome = FramePath(pipeline, None).infer(model, sample)
    model.close()
    assert payloads.result("d", "s", "p", sample, outcome, 0.0)["light"] == 60.0
    assert (annotate(picture, outcome.findings) != picture).any()
    margin = Margin(0.05)
    assert compare_findings(outcome.findings, Light(61.0), margin).passed
    assert not compare_findings(outcome.findings, Light(90.0), margin).passed


@record(quick=True, eq=False)
class Read(Detections):
    """Detections with one more optional column."""

    text: tuple[str, ...] | None = None


class Doubled:
    """A frame of twice the size of the network's input, of which the left half was looked at."""

    def back(self, boxes: types.Array) -> types.Array:
        return np.asarray(np.clip(boxes * 2, 0, 100), np.float32)

    frame = (100, 100)

    def back_points(self, points: types.Array) -> types.Array:
        return np.asarray(points * 2, np.float32)


def test_a_new_column_goes_along_with_the_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is selected, carried back and published with them."""
    columns = cast("MutableMapping[str, Column]", COLUMNS)
    monkeypatch.setitem(columns, "text", Column("text", lambda text, _: text))
    found = Read(
        np.array([[0, 0, 10, 10], [60, 0, 90, 40], [5, 5, 25, 45]], np.float32),
        np.array([0.9, 0.8, 0.3], np.float32),
        ("plate", "plate", "sign"),
        np.array([[[1, 2]], [[3, 4]], [[5, 6]]], np.float32),
        np.array([7, 8, 0]),
        (("yard",), (), ("yard", "gate")),
        text=("B 1", "B 2", ""),
    )
    moved = found.moved(Doubled())
    assert moved.as_json() == {
        "detections": [
            {
                "label": "plate",
                "score": 0.9,
                "box": [0.0, 0.0, 20.0, 20.0],
                "points": [[2.0, 4.0]],
                "track": 7,
                "zones": ["yard"],
                "text": "B 1",
            },
            {
                "label": "sign",
                "score": 0.3,
                "box": [10.0, 10.0, 50.0, 90.0],
                "points": [[10.0, 12.0]],
                "zones": ["yard", "gate"],
            },
        ]
    }
    assert isinstance(moved, Read)
    chosen = moved.select(np.array([1, 0]))
    assert chosen.labels == ("sign", "plate")
    assert chosen.tracks is not None
    assert chosen.tracks.tolist() == [0, 7]
    assert cast("Read", chosen).text == ("", "B 1")
    assert cast("Read", found.above(0.5)).text == ("B 1", "B 2")
