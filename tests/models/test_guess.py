"""Bare networks of which no metadata tells: taken where shapes leave no doubt, else a draft."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from edge_agent.core.errors import ModelError
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.files.facts import Draft
from edge_agent.models.files.guess import draft_of
from edge_agent.models.files.metadata import manifest_of
from edge_agent.models.importing import draft_text
from edge_agent.models.manifest import Manifest, parse
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx, to_ir

Shapes = Mapping[str, Sequence[int]]
MODELS = Path(__file__).parents[3] / "shared" / "assets" / "models"


def network(folder: Path, outputs: Shapes, picture: Sequence[int | None] = (1, 3, 64, 96)) -> Path:
    """Save a network that gives zeros of these shapes."""
    zeros = {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}
    return constant_outputs(folder / "some net.onnx", zeros, picture=picture)


def taken(path: Path) -> Manifest:
    """Read a network that is taken without a manifest; each assumption is said."""
    manifest, assumed = manifest_of(path, None, "1")
    assert assumed[0].startswith("family: ")
    assert all("\n" not in words for words in assumed)
    return manifest


def draft(path: Path) -> Draft:
    """Read a network that is refused; its draft is TOML, and the refusal names what is open."""
    made = draft_of(inspect(path))
    assert made.questions
    text = draft_text(made, "some-net", "1", path.name)
    assert tomllib.loads(text)["file"] == path.name
    for words in (*made.assumed, *made.questions):
        assert words in text
    with pytest.raises(ModelError) as caught:
        manifest_of(path, None, "1")
    assert "\n" not in str(caught.value)
    assert made.family in str(caught.value)
    assert made.questions[0].partition(":")[0] in str(caught.value)
    return made


# 64 x 96 has 8 x 12 + 4 x 6 + 2 x 3 = 126 places at strides 8, 16, 32; with 64 two more.


def test_yolox(tmp_path: Path) -> None:
    """YOLOX by its exporter's names and one row for each place."""
    manifest = taken(network(tmp_path, {"output": (1, 126, 85)}))
    assert manifest.decoder == "yolox"
    picture = manifest.input
    assert (picture.color, picture.resize, picture.anchor) == ("bgr", "letterbox", "top-left")
    assert (picture.pad, picture.per_channel("scale", 3)) == (114, (1, 1, 1))


def test_yolox_decoded_inside(tmp_path: Path) -> None:
    """With an exponential in the network its boxes are decoded already."""
    path = save_onnx(
        tmp_path / "x.onnx",
        [
            node("ReduceSum", ["images"], ["sum"], keepdims=0),
            node("Exp", ["sum"], ["exp"]),
            node("Mul", ["exp", "zeros"], ["output"]),
        ],
        [("images", "float32", (1, 3, 64, 96))],
        [("output", "float32", (1, 126, 85))],
        {"zeros": np.zeros((1, 126, 85), np.float32)},
    )
    assert taken(path).decoder == "yolov5"


@pytest.mark.parametrize(("name", "wide"), [("outputs", 85), ("output", 16)])
def test_rows_of_another_are_a_draft(name: str, wide: int, tmp_path: Path) -> None:
    """YOLOv6 has the same shape, and rows of 16 may be anything."""
    made = draft(network(tmp_path, {name: (1, 126, wide)}))
    assert any(words.startswith("output.decoder") for words in made.questions)


def test_yolov5(tmp_path: Path) -> None:
    """Three boxes for each place are YOLOv5's or v7's; of other widths only perhaps."""
    manifest = taken(network(tmp_path, {"output": (1, 378, 85)}))
    assert (manifest.decoder, manifest.input.color) == ("yolov5", "rgb")
    assert manifest.input.per_channel("scale", 3) == (255, 255, 255)
    draft(network(tmp_path, {"output": (1, 378, 16)}))


def test_yolov8(tmp_path: Path) -> None:
    """Columns of 84 are YOLOv8's; 56 may be a pose with one class."""
    assert taken(network(tmp_path, {"output0": (1, 84, 126)})).decoder == "yolov8"
    made = draft(network(tmp_path, {"output0": (1, 56, 126)}))
    assert any("52 classes" in words for words in made.questions)


def test_nanodet(tmp_path: Path) -> None:
    """NanoDet-Plus is stretched; of NanoDet's three strides both ways were trained."""
    manifest = taken(network(tmp_path, {"output": (1, 128, 112)}))
    assert (manifest.decoder, manifest.input.resize) == ("nanodet", "stretch")
    assert manifest.input.per_channel("mean", 3) == (103.53, 116.28, 123.675)
    made = draft(network(tmp_path, {"output": (1, 126, 112)}))
    assert [words.partition(":")[0] for words in made.questions] == ["input.resize"]


def test_fastestdet(tmp_path: Path) -> None:
    """One plane for each number, a sixteenth of the picture."""
    manifest = taken(network(tmp_path, {"758": (1, 85, 4, 6)}))
    assert (manifest.decoder, manifest.output.threshold) == ("fastestdet", 0.65)


def test_open_model_zoo(tmp_path: Path) -> None:
    """An SSD as IR is the Open Model Zoo's, BGR as it comes; as ONNX its colors are open."""
    path = network(tmp_path, {"detection_out": (1, 1, 20, 7)})
    made = draft(path)
    assert any(words.startswith("input.color") for words in made.questions)
    manifest = taken(to_ir(path, tmp_path / "face.xml"))
    assert (manifest.decoder, manifest.input.color) == ("ssd", "bgr")


# As the Open Model Zoo converts UltraFace and NanoDet-Plus.
ALL_INSIDE = {
    "mean_values": "input[127.0,127.0,127.0]",
    "scale_values": "input[128.0,128.0,128.0]",
    "reverse_input_channels": "True",
}
MEAN_AND_SCALE = {**ALL_INSIDE, "reverse_input_channels": "False"}
NOTHING_INSIDE = {"mean_values": "()", "scale_values": "()", "reverse_input_channels": "False"}
FACES = {"scores": (1, 4420, 2), "boxes": (1, 4420, 4)}


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(
    ("shapes", "size", "record", "color", "mean", "scale"),
    [
        (FACES, (240, 320), ALL_INSIDE, "bgr", 0, 1),
        (FACES, (240, 320), NOTHING_INSIDE, "rgb", 127, 128),
        ({"output": (1, 128, 112)}, (64, 96), MEAN_AND_SCALE, "bgr", 0, 1),
        ({"output": (1, 378, 85)}, (64, 96), {"scale": "255.0"}, "rgb", 0, 1),
        ({"output": (1, 378, 85)}, (64, 96), {"reverse_input_channels": "True"}, "bgr", 0, 255),
        ({"output": (1, 126, 85)}, (64, 96), ALL_INSIDE, "bgr", 0, 1),
    ],
)
def test_what_a_converter_has_put_inside(  # noqa: PLR0917 - the parts of one fact
    shapes: Shapes,
    size: tuple[int, int],
    record: Mapping[str, str],
    color: str,
    mean: float,
    scale: float,
    version: int,
    tmp_path: Path,
) -> None:
    """What an IR records as done inside is not done before it as well; YOLOX is BGR either way."""
    manifest = taken(converted(tmp_path, network(tmp_path, shapes, (1, 3, *size)), record, version))
    assert manifest.input.color == color
    assert manifest.input.per_channel("mean", 3) == (mean,) * 3
    assert manifest.input.per_channel("scale", 3) == (scale,) * 3


@pytest.mark.parametrize("key", ["mean_values", "reverse_input_channels"])
def test_a_part_inside_that_does_not_fit_the_rest(key: str, tmp_path: Path) -> None:
    """A mean inside behind a scale outside, and channels turned behind a mean of each: asked."""
    path = network(tmp_path, {"output": (1, 128, 112)})
    made = draft(converted(tmp_path, path, {key: ALL_INSIDE[key]}, 11))
    assert key in made.questions[0]


def converted(folder: Path, path: Path, record: Mapping[str, str], version: int) -> Path:
    """Make an IR with its converter's record, as IR 10 and as OpenVINO 2023 have it."""
    xml = to_ir(path, folder / "net.xml")
    entries = "".join(f'<{key} value="{text}"/>' for key, text in record.items())
    content = xml.read_text()
    if version == 10:
        text = f"<meta_data><cli_parameters>{entries}</cli_parameters></meta_data>"
        content = content.replace("</net>", f"{text}</net>")
    else:
        text = f"<conversion_parameters>{entries}</conversion_parameters>"
        head, _, tail = content.rpartition("</rt_info>")
        content = f"{head}{text}</rt_info>{tail}"
    xml.write_text(content)
    return xml


def test_faces(tmp_path: Path) -> None:
    """UltraFace by the count of its boxes, YuNet by its names."""
    outputs = {"scores": (1, 4420, 2), "boxes": (1, 4420, 4)}
    manifest = taken(network(tmp_path, outputs, (1, 3, 240, 320)))
    assert (manifest.decoder, manifest.output.labels) == ("ultraface", ("face",))
    draft(network(tmp_path, outputs))
    wide = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
    outputs = {
        f"{part}_{s}": (1, 64 // s * (96 // s), count)
        for part, count in wide.items()
        for s in (8, 16, 32)
    }
    assert taken(network(tmp_path, outputs)).decoder == "yunet"


def test_anomalib(tmp_path: Path) -> None:
    """Outputs with anomalib's names are its; pictures go in as its own inferencer gives them."""
    outputs = {"pred_score": (1,), "pred_label": (1,), "anomaly_map": (1, 1, 64, 96)}
    manifest = taken(network(tmp_path, outputs))
    assert (manifest.task, manifest.output.threshold) == ("anomaly", 0.5)
    assert manifest.input.per_channel("scale", 3) == (255, 255, 255)
    made = draft(network(tmp_path, outputs, (1, 3, None, None)))
    assert [words.partition(":")[0] for words in made.questions] == ["input.width and input.height"]


def test_what_no_shape_tells(tmp_path: Path) -> None:
    """A classifier's normalization, a pose, sets of boxes: a draft with the questions."""
    made = draft(network(tmp_path, {"logits": (1, 1000)}))
    assert made.keys["output"] == {"decoder": "logits"}
    assert draft(network(tmp_path, {"points": (1, 1, 17, 3)})).keys["task"] == "raw"
    sets = {"pred_boxes": (1, 100, 4), "logits": (1, 100, 91)}
    assert "output.decoder" in draft(network(tmp_path, sets)).questions[0]


def test_a_name_with_a_line_of_its_own_stays_a_comment(tmp_path: Path) -> None:
    """The names of tensors come from outside, and the draft is there to be pasted."""
    made = draft(network(tmp_path, {'points\ntask = "raw"\x1b[31m': (1, 1, 17, 3)}))
    table = tomllib.loads(draft_text(made, "net", "1", "net.onnx"))
    assert table.keys() == {"name", "version", "file", "task"} | made.keys.keys()
    assert r'points\ntask = "raw"\x1b[31m' in draft_text(made, "net", "1", "net.onnx")


def test_a_signal(tmp_path: Path) -> None:
    """What comes out as it goes in is an autoencoder, of which the threshold is not known."""
    path = save_onnx(
        tmp_path / "auto.onnx",
        [node("Relu", ["x"], ["y"])],
        [("x", "float32", (1, 640))],
        [("y", "float32", (1, 640))],
    )
    assert draft(path).keys["output"] == {"decoder": "reconstruction"}


def test_a_draft_becomes_a_manifest(tmp_path: Path) -> None:
    """With its questions answered, the text is a manifest."""
    made = draft(network(tmp_path, {"output0": (1, 9, 126)}))
    table = tomllib.loads(draft_text(made, "net", "2", "some net.onnx"))
    table["output"]["labels"] = list("abcde")
    assert parse(table, "model.toml").id == "net@2"


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared models are not here")
@pytest.mark.parametrize(
    ("file", "decoder"),
    [
        ("coco_yolox_nano_fp32.onnx", "yolox"),
        ("coco_yolox_nano_int8_degraded.onnx", "yolox"),
        ("face_rfb320_int8.onnx", "ultraface"),
        ("ir/face-detection-adas-0001.xml", "ssd"),
    ],
)
def test_real_networks(file: str, decoder: str) -> None:
    """Public networks, as they were downloaded, are what they are."""
    assert taken(MODELS / file).decoder == decoder
