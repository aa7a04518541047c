"""TensorFlow Lite files: what they say, that they run, and that no damage reaches a parser."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError
from edge_agent.core.types import Classes
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import readers
from edge_agent.inference.model import Model, load_model
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.files.flatbuffer import Table
from edge_agent.models.files.metadata import manifest_of
from edge_agent.models.files.tensor_ranges import tensor_ranges
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import load
from tests.helpers.support import ASSETS, call_cli, needs_assets, reference

ASSET = ASSETS / "models" / "imagenet_mobilenetv2_int8.tflite"
TWIN = ASSETS / "models" / "imagenet_mobilenetv2_int8.onnx"

pytestmark = [pytest.mark.assets, needs_assets]


@pytest.fixture(scope="module")
def content() -> bytes:
    """Read a real file."""
    return ASSET.read_bytes()


def test_what_the_file_says() -> None:
    """Inputs, outputs and steps are those of its tensors; the labels lie in the zip behind it."""
    facts = inspect(ASSET)
    assert [str(spec) for spec in facts.inputs] == ["input uint8[1, 224, 224, 3]"]
    assert [spec.shape for spec in facts.outputs] == [(1, 1001)]
    assert facts.quantized
    assert facts.steps["MobilenetV2/Predictions/Softmax"] == (1 / 256, 0)
    with import_model(ASSET) as imported:
        manifest = imported.folder.manifest
        assert manifest.task == "classification"
        assert (manifest.decoder, manifest.output.scale) == ("softmax", 1 / 256)
        assert imported.folder.labels[:2] == ("background", "tench, Tinca tinca")
        assert len(imported.folder.labels) == 1001
        assert any(line.startswith("resize: stretch") for line in imported.assumptions)


def twin(folder: Path) -> Model:
    """Load the same network as ONNX, described by hand."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(TWIN.read_bytes())
    with import_model(ASSET) as imported:
        labels = "".join(f"{label}\n" for label in imported.folder.labels)
    (folder / "labels.txt").write_text(labels)
    (folder / "model.toml").write_text(
        'name = "twin"\nversion = "1"\ntask = "classification"\nfile = "model.onnx"\n'
        '[input]\nlayout = "nhwc"\n[output]\ndecoder = "softmax"\nscale = 0.00390625\n'
        'labels = "labels.txt"\n'
    )
    return load_model(load(folder), [EngineChoice("onnxruntime")], "picture")


def test_it_finds_what_its_twin_finds(tmp_path: Path) -> None:
    """On the twelve reference pictures the best class is the twin's, its chance within 0.03."""
    import cv2

    pictures = [entry["media"] for entry in reference(TWIN.name)["reference"]]
    assert len(pictures) >= 12
    other = twin(tmp_path / "twin")
    with import_model(ASSET) as imported:
        engine = EngineChoice(readers(".tflite")[0])
        model = load_model(imported.folder, [engine], "picture")
        for name in pictures:
            data = cast("NDArray[np.uint8]", cv2.imread(str(ASSETS / name)))
            found: list[Classes] = []
            for each in (model, other):
                prepared = each.prepare_data(data)
                outcome = each.decode(each.run(prepared.tensors), prepared.tensors)
                assert isinstance(outcome, Classes)
                found.append(outcome)
            assert found[0].labels[0] == found[1].labels[0], name
            assert found[0].scores[0] == pytest.approx(found[1].scores[0], abs=0.03), name
        model.close()
    other.close()


def test_its_weights_are_found_for_blocks() -> None:
    """Blocks are cut at its buffers, which are nearly all of it."""
    ranges = tensor_ranges({"model.tflite": ASSET})["model.tflite"]
    assert sum(end - start for start, end in ranges) > 0.9 * ASSET.stat().st_size


@pytest.mark.parametrize(
    ("step", "zero", "mean", "scale"),
    [
        (1 / 127.5, -1, 128, 1),  # pixels in -1..1: signed bytes but for rounding
        (1 / 64, 0, 127.5, 127.5 / 64),
        (1 / 127.5, -65, 192.5, 1),
    ],
)
def test_signed_bytes_of_another_step(
    step: float, zero: int, mean: float, scale: float, content: bytes, tmp_path: Path
) -> None:
    """What the metadata normalize is quantized by the step of the input; here it is given one."""
    graph = Table.root(content).tables(2)[0]
    tensor = graph.tables(0)[int(graph.numbers(1, "<i")[0])]
    given = tensor.table(4)
    assert given is not None
    changed = bytearray(content)
    for form, place, value in (
        ("<b", tensor.place(1, 1), 9),
        ("<f", (given.vector(2, "<f") or (None,))[0], step),
        ("<q", (given.vector(3, "<q") or (None,))[0], zero),
    ):
        assert place is not None
        struct.pack_into(form, changed, place, value)
    path = tmp_path / "signed.tflite"
    path.write_bytes(changed)
    manifest, _ = manifest_of(path, None, "1")
    assert manifest.input.per_channel("mean", 3) == pytest.approx((mean,) * 3)
    assert manifest.input.per_channel("scale", 3) == pytest.approx((scale,) * 3)


def test_describe(tmp_path: Path) -> None:
    """The command knows it; a cut one ends with 1 and one line."""
    said = json.loads(call_cli("describe", "--json", str(ASSET)).out)
    assert (said["format"], said["labels"]) == ("tflite", 1001)
    (tmp_path / "cut.tflite").write_bytes(ASSET.read_bytes()[:5000])
    called = call_cli("describe", str(tmp_path / "cut.tflite"))
    assert called.code == 1
    assert "cut short or damaged" in called.error


def refuse(path: Path, data: bytes, why: str) -> None:
    """See that a file is refused for a reason."""
    path.write_bytes(data)
    with pytest.raises(ModelError, match=why):
        inspect(path)


def test_what_is_cut_short(tmp_path: Path, content: bytes) -> None:
    """A file that ends anywhere before its last table is refused, in one line each time."""
    for size in (0, 3, 8, 20, 64, 500, len(content) // 2, 3_000_000):
        refuse(tmp_path / "cut.tflite", content[:size], "TensorFlow Lite file")


def test_something_else(tmp_path: Path) -> None:
    """What is no such file is named so."""
    refuse(tmp_path / "other.tflite", b"\x08\x07" * 100, "expected TFL3 at byte 4")


def structure(data: bytes) -> list[int]:
    """List the places of all bytes that are not in a large buffer or in the zip behind."""
    weights = bytearray(len(data))
    for buffer in Table.root(data).tables(4):
        start, length = buffer.vector(0, "<B") or (0, 0)
        if length > 64:
            weights[start : start + length] = b"\1" * length
    end = data.find(b"PK\3\4")
    return [place for place in range(end) if not weights[place]]


def test_damage_anywhere(tmp_path: Path, content: bytes) -> None:
    """Whatever bytes of its structure are changed, it is described or refused, and nothing else."""
    places = structure(content)
    chance = random.Random(7)  # noqa: S311 - not a secret
    path = tmp_path / "damaged.tflite"
    refused = 0
    for _ in range(150):
        data = bytearray(content)
        for _ in range(chance.choice((1, 2, 5))):
            place = chance.choice(places) & ~3
            data[place : place + 4] = chance.choice(
                (b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f", chance.randbytes(4))
            )
        path.write_bytes(data)
        try:
            inspect(path)
        except ModelError:
            refused += 1
    assert refused > 50


def vector_of_tables(count: int) -> bytes:
    """Make a file whose one vector leads to the same table over and over."""
    vtable = struct.pack("<HHHHH", 10, 8, 0, 0, 4) + b"\0\0"  # field 2 at byte 4 of the table
    root = 8 + len(vtable)
    body = struct.pack("<i", root - 8) + struct.pack("<I", 4)
    places = root + len(body) + 4
    table = places + 4 * count
    offsets = b"".join(struct.pack("<I", table - place) for place in range(places, table, 4))
    end = struct.pack("<i", table - 8)
    return (
        b"".join(
            (struct.pack("<I", root), b"TFL3", vtable, body, struct.pack("<I", count), offsets, end)
        )
        + b"\0" * 8
    )


def test_the_same_table_over_and_over(tmp_path: Path) -> None:
    """What would be read for ever, or fill the memory, is refused after a few times its size."""
    path = tmp_path / "deep.tflite"
    data = vector_of_tables(1000)
    path.write_bytes(data)
    with pytest.raises(ModelError, match="expected one graph, found 1000"):
        inspect(path)
    refuse(path, vector_of_tables(400_000), "over and over")


def test_a_custom_operator(tmp_path: Path, content: bytes) -> None:
    """Libraries of custom operators are not loaded."""
    data = bytearray(content)
    code: Any = Table.root(content).tables(1)[0]
    place = code.place(0, 1)
    assert place is not None
    data[place] = 32
    refuse(tmp_path / "custom.tflite", bytes(data), "is a custom one")
