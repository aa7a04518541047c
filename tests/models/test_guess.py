"""Bare networks of which no metadata tells: taken where shapes leave no doubt, else a draft."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError
from edge_agent.core.types import TensorSpec
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.files.facts import Draft, NetworkFacts
from edge_agent.models.files.guess import draft_of
from edge_agent.models.files.metadata import manifest_of
from edge_agent.models.idle_keys import doubtful_keys
from edge_agent.models.importing import draft_text
from edge_agent.models.manifest import Manifest, parse
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx, to_ir

Shapes = Mapping[str, Sequence[int]]
MODELS = Path(__file__).parents[3] / "shared" / "assets" / "models"


def network(folder: Path, outputs: Shapes, picture: Sequence[int | None] = (1, 3, 64, 96)) -> Path:
    """Save a network that gives zeros of these shapes."""
    return constant_outputs(folder / "some net.onnx", zeros(outputs), picture=picture)


def zeros(outputs: Shapes) -> dict[str, NDArray[np.float32]]:
    """Make tensors of these shapes."""
    return {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}


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
    manifest = taken(yolox(tmp_path / "x.onnx", "Sigmoid", "output"))
    assert manifest.decoder == "yolox"
    picture = manifest.input
    assert (picture.color, picture.resize, picture.anchor) == ("bgr", "letterbox", "top-left")
    assert (picture.pad, picture.per_channel("scale", 3)) == (114, (1, 1, 1))


def test_yolox_decoded_inside(tmp_path: Path) -> None:
    """With an exponential in the network its boxes are decoded already."""
    path = save_onnx(
        tmp_path / "x.onnx",
        [
            node("Conv", ["images", "kernel"], ["first"]),
            node("ReduceSum", ["first"], ["sum"], keepdims=0),
            node("Exp", ["sum"], ["exp"]),
            node("Mul", ["exp", "zeros"], ["output"]),
        ],
        [("images", "float32", (1, 3, 64, 96))],
        [("output", "float32", (1, 126, 85))],
        {
            "kernel": np.full((4, 3, 1, 1), 0.08, np.float32),
            "zeros": np.zeros((1, 126, 85), np.float32),
        },
    )
    assert taken(path).decoder == "yolov5"


@pytest.mark.parametrize("ir", [False, True])
@pytest.mark.parametrize("name", ["output", "outputs"])
def test_yolox_without_its_sigmoids(name: str, ir: bool, tmp_path: Path) -> None:
    """Scores that no sigmoid has made are logits: the guess asks for another export."""
    logits, chances = (
        yolox(tmp_path / f"{end}.onnx", end, name) for end in ("Identity", "Sigmoid")
    )
    if ir:
        logits, chances = (to_ir(path, path.with_suffix(".xml")) for path in (logits, chances))
    assert draft(logits).questions[0].startswith("export: its scores are logits")
    made = draft_of(inspect(chances))
    assert not any(words.startswith("export") for words in made.questions)
    assert bool(made.questions) == (name == "outputs")


def yolox(path: Path, end: str, name: str, weight: float = 0.08) -> Path:
    """Save heads of YOLOX at three strides, whose scores go through *end* at last.

    Their weights, all the same, are as small as those for pixels of 0 to 255.
    """
    weights: dict[str, NDArray[Any]] = {"shape": np.array([1, 85, -1])}
    nodes = []
    for s in (8, 16, 32):
        parts = []
        for part, count in (("box", 4), ("obj", 1), ("cls", 80)):
            weights[f"{part}{s}"] = np.full((count, 3, 1, 1), weight, np.float32)
            weights[f"{part}{s}.bias"] = np.zeros(count, np.float32)
            bare = [f"{part}{s}.bare"]
            taken = ["images", f"{part}{s}", f"{part}{s}.bias"]
            nodes.append(node("Conv", taken, bare, strides=[s, s]))
            parts.append(f"{part}{s}.end")
            nodes.append(node("Identity" if part == "box" else end, bare, parts[-1:]))
        nodes += [
            node("Concat", parts, [f"head{s}"], axis=1),
            node("Reshape", [f"head{s}", "shape"], [f"rows{s}"]),
        ]
    nodes += [
        node("Concat", ["rows8", "rows16", "rows32"], ["all"], axis=2),
        node("Transpose", ["all"], [name], perm=[0, 2, 1]),
    ]
    inputs = [("images", "float32", (1, 3, 64, 96))]
    return save_onnx(path, nodes, inputs, [(name, "float32", (1, 126, 85))], weights)


@pytest.mark.parametrize(("name", "wide"), [("outputs", 85), ("output", 16)])
def test_rows_of_another_are_a_draft(name: str, wide: int, tmp_path: Path) -> None:
    """YOLOv6 has the same shape, and rows of 16 may be anything."""
    made = draft(network(tmp_path, {name: (1, 126, wide)}))
    assert any(words.startswith("output.decoder") for words in made.questions)


def test_yolox_of_0_1_0_is_offered(tmp_path: Path) -> None:
    """YOLOX's first release took RGB with ImageNet's mean and scale; its shape tells no release."""
    made = draft(network(tmp_path, {"outputs": (1, 126, 85)}))
    (how,) = (words for words in made.questions if words.startswith("input: "))
    mean_and_scale = "mean = [123.675, 116.28, 103.53] and scale = [58.395, 57.12, 57.375]"
    assert f'of its 0.1.0 color = "rgb", {mean_and_scale}' in how


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
    """The zoo's IRs are known by their names, and take BGR as it comes; as ONNX it is open."""
    path = network(tmp_path, {"detection_out": (1, 1, 20, 7)})
    made = draft(path)
    assert any(words.startswith("input.color") for words in made.questions)
    manifest = taken(to_ir(path, tmp_path / "face-detection-0200.xml"))
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


def test_what_an_unknown_ir_has_inside_is_not_asked_for_again(tmp_path: Path) -> None:
    """Who answered as asked, with the usual mean and scale, divided twice."""
    path = converted(
        tmp_path, network(tmp_path, {"angle": (1, 1)}), {"scale_values": "[255.0]"}, 11
    )
    (asked,) = (each for each in draft(path).questions if each.startswith("input.color"))
    assert "has put scale_values inside, which is not to be done again" in asked


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


def of_levels(
    path: Path, picture: Sequence[int], parts: Mapping[int, int], last: Sequence[Any]
) -> Path:
    """Save convolutions of a picture at each stride = anchors, joined to boxes, and what follows.

    The scores are a sum of the picture, as many as there are boxes.
    """
    weights: dict[str, NDArray[Any]] = {}
    nodes, count = [], 0
    for stride, anchors in parts.items():
        weights[f"w{stride}"] = np.zeros((4 * anchors, 3, 1, 1), np.float32)
        weights[f"b{stride}"] = np.zeros(4 * anchors, np.float32)
        nodes += [
            node(
                "Conv",
                ["images", f"w{stride}", f"b{stride}"],
                [f"c{stride}"],
                strides=[stride, stride],
            ),
            node("Transpose", [f"c{stride}"], [f"t{stride}"], perm=[0, 2, 3, 1]),
            node("Reshape", [f"t{stride}", "rows"], [f"r{stride}"]),
        ]
        count += -(-picture[2] // stride) * -(-picture[3] // stride) * anchors
    nodes += [node("Concat", [f"r{stride}" for stride in parts], ["offsets"], axis=1), *last]
    nodes += [
        node("ReduceSum", ["images"], ["sum"], keepdims=0),
        node("Mul", ["sum", "zeros"], ["even"]),
        node("Softmax", ["even"], ["scores"]),
    ]
    weights |= {"rows": np.array([1, -1, 4]), "zeros": np.zeros((1, count, 2), np.float32)}
    outputs = [("scores", "float32", (1, count, 2)), ("boxes", "float32", (1, count, 4))]
    return save_onnx(path, nodes, [("images", "float32", picture)], outputs, weights)


@pytest.mark.parametrize("ir", [False, True])
def test_ultraface_without_postprocessing(ir: bool, tmp_path: Path) -> None:
    """UltraFace whose boxes are offsets as they come is refused; with its decoding it is taken."""
    picture, anchors = (1, 3, 240, 320), {8: 3, 16: 2, 32: 2, 64: 3}
    raw = [node("Identity", ["offsets"], ["boxes"])]
    decoding = [
        node("Split", ["offsets"], ["middle", "size"], axis=2),
        node("Exp", ["size"], ["wide"]),
        node("Sub", ["middle", "wide"], ["first"]),
        node("Add", ["middle", "wide"], ["second"]),
        node("Concat", ["first", "second"], ["boxes"], axis=2),
    ]
    paths = [
        of_levels(tmp_path / f"{name}.onnx", picture, anchors, last)
        for name, last in (("raw", raw), ("whole", decoding))
    ]
    offsets, whole = (to_ir(path, path.with_suffix(".xml")) if ir else path for path in paths)
    assert "offsets from anchors" in draft(offsets).questions[0]
    assert taken(whole).decoder == "ultraface"


def test_anomalib(tmp_path: Path) -> None:
    """Outputs with anomalib's names are its; pictures go in as its own inferencer gives them."""
    outputs = {"pred_score": (1,), "pred_label": (1,), "anomaly_map": (1, 1, 64, 96)}
    manifest = taken(network(tmp_path, outputs))
    assert (manifest.task, manifest.output.threshold) == ("anomaly", 0.5)
    assert manifest.input.per_channel("scale", 3) == (255, 255, 255)
    made = draft(network(tmp_path, outputs, (1, 3, None, None)))
    assert [words.partition(":")[0] for words in made.questions] == ["input.width and input.height"]


def levels(*last: int, first: bool = False, anchors: int = 3) -> dict[str, tuple[int, ...]]:
    """Shapes of heads at strides 8, 16, 32, or 16 and 32, of a picture of 64 x 96."""
    strides = (8, 16, 32)[-len(last) :]
    cells = [(64 // s, 96 // s) for s in strides]
    if first:
        return {f"o{s}": (1, n, *c) for s, n, c in zip(strides, last, cells, strict=True)}
    if anchors:
        return {f"o{s}": (1, anchors, *c, n) for s, n, c in zip(strides, last, cells, strict=True)}
    return {f"o{s}": (1, *c, n) for s, n, c in zip(strides, last, cells, strict=True)}


SCRFD = {str(w * 100 + s): (2 * 96 * 64 // s**2, w) for w in (1, 4, 10) for s in (8, 16, 32)}
WHOLE = {"detected_boxes": (1, 9, 4), "detected_classes": (1, 9), "detected_scores": (1, 9)}
NVIDIA = {"num_dets": (1, 1), "det_boxes": (1, 9, 4), "det_scores": (1, 9), "det_classes": (1, 9)}


@pytest.mark.parametrize(
    ("outputs", "decoder", "layout", "asked"),
    [
        (levels(85, 85, 85), "yolov5", "", "output.layout output.anchors output.labels"),
        (levels(255, 255, first=True), "yolov5", "", "output.layout output.anchors output.labels"),
        (levels(40, 40, anchors=0), "yolov5", "yolo-fastestv2", "output.anchors output.labels"),
        ({"rows": (5, 7)}, "ssd", "", "output.layout output.labels"),
        ({"graph2_flat_predictions": (5, 7)}, "ssd", "yolo-nas", "input"),
        (NVIDIA, "ssd", "", "input"),
        (WHOLE, "ssd", "", "input.color output.labels"),
    ],
)
def test_what_an_exporter_ends_in_is_named_and_what_it_leaves_open_is_asked(
    outputs: Shapes, decoder: str, layout: str, asked: str, tmp_path: Path
) -> None:
    """Heads, rows and finished boxes: anchors, order and labels are asked for."""
    made = draft(network(tmp_path, outputs))
    said = made.keys["output"]
    assert (said["decoder"], said.get("layout", "")) == (decoder, layout)
    questions = " ".join(question.partition(":")[0] for question in made.questions)
    assert all(key in questions for key in asked.split())


def test_what_an_exporter_ends_in_is_taken_where_nothing_is_left_open(tmp_path: Path) -> None:
    """SCRFD, YOLO-FastestV2 of 80 classes, and YOLOv7's rows behind its own suppression."""
    scrfd = taken(network(tmp_path, SCRFD))
    assert (scrfd.decoder, scrfd.input.anchor, scrfd.output.labels) == (
        "yunet",
        "top-left",
        ("face",),
    )
    fastest = taken(network(tmp_path, levels(95, 95, anchors=0)))
    assert (fastest.output.layout, fastest.output.anchors[-1]) == ("yolo-fastestv2", 258.87)
    path = save_onnx(
        tmp_path / "yolov7.onnx",
        [
            node("ReduceMean", ["images"], ["mean"], keepdims=0),
            node("Add", ["mean", "boxes"], ["moved"]),
            node("NonMaxSuppression", ["moved", "scores"], ["kept"]),
            node("Cast", ["kept"], ["floats"], to=1),
            node("Concat", ["floats", "floats", "one"], ["output"], axis=1),
        ],
        [("images", "float32", (1, 3, 64, 96))],
        [("output", "float32", (None, 7))],
        {
            "boxes": np.zeros((1, 4, 4), np.float32),
            "scores": np.zeros((1, 1, 4), np.float32),
            "one": np.zeros((0, 1), np.float32),
        },
    )
    yolov7 = taken(path)
    assert (yolov7.decoder, yolov7.output.layout) == ("ssd", "yolov7")


def test_custom_vision_says_what_pixels_are(tmp_path: Path) -> None:
    """Its metadata has the color and the range; the form of its head is asked."""
    said = {"Image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "Normalized_0_1"}
    whole = draft(constant_outputs(tmp_path / "b.onnx", zeros(WHOLE), metadata=said))
    assert (whole.keys["input"]["color"], whole.keys["input"]["scale"]) == ("bgr", 255)
    head = save_onnx(
        tmp_path / "a.onnx",
        [
            node("MaxPool", ["data"], ["small"], kernel_shape=[32, 32], strides=[32, 32]),
            node("Concat", ["small"] * 15, ["model_outputs0"], axis=1),
        ],
        [("data", "float32", (1, 3, 416, 416))],
        [("model_outputs0", "float32", (1, 45, 13, 13))],
        metadata=said,
    )
    made = draft(head)
    assert made.keys["output"]["layout"] == "custom-vision"
    assert len(made.keys["output"]["anchors"]) == 10
    assert [each.partition(":")[0] for each in made.questions] == ["output.layout", "output.labels"]


def test_cells_and_single_numbers_are_named(tmp_path: Path) -> None:
    """FOMO's grid, one number for a picture, and one of openWakeWord's three networks."""
    grid = zeros({"grid": (1, 8, 12, 3)})
    picture = (1, 64, 96, 1)
    fomo = draft(constant_outputs(tmp_path / "f.onnx", grid, picture=picture, end="Softmax"))
    assert fomo.keys["output"] == {"decoder": "semantic", "threshold": 0.5, "first_label": 1}
    assert "2 names, without the background" in fomo.questions[0]
    single = draft(network(tmp_path, {"dense": (1, 1)}))
    assert "both names, that of a 0 first" in single.questions[0]
    chain = draft(network(tmp_path, {"conv2d_19": (1, 1, 1, 96)}, (1, 76, 32, 1)))
    assert "openWakeWord" in chain.family
    word = save_onnx(
        tmp_path / "word.onnx",
        [
            node("ReduceMax", ["x"], ["y"], axes=[2], keepdims=0),
            node("ReduceMax", ["y"], ["z"], axes=[1]),
        ],
        [("x", "float32", (1, 16, 96))],
        [("z", "float32", (1, 1))],
    )
    assert "openWakeWord" in draft(word).family


def test_paddle_detection_is_given_the_size_of_its_input(tmp_path: Path) -> None:
    """With a factor of 1, boxes come in its pixels; im_shape is height and width."""
    path = save_onnx(
        tmp_path / "paddle.onnx",
        [
            node("ReduceMean", ["image"], ["mean"], keepdims=0),
            node("Add", ["im_shape", "scale_factor"], ["both"]),
            node("Add", ["both", "mean"], ["moved"]),
            node("Concat", ["moved"] * 3, ["multiclass_nms3_0.tmp_0"], axis=1),
        ],
        [
            ("image", "float32", (None, 3, 64, 96)),
            *((n, "float32", (None, 2)) for n in ("im_shape", "scale_factor")),
        ],
        [("multiclass_nms3_0.tmp_0", "float32", (None, 6))],
    )
    made = draft(path)
    assert made.keys["input"]["fixed"] == {"scale_factor": [[1, 1]], "im_shape": [[64, 96]]}
    assert made.keys["output"]["layout"] == "paddle"
    assert "input.mean and input.scale" in made.questions[0]


def test_what_no_shape_tells(tmp_path: Path) -> None:
    """A classifier's normalization, a pose, sets of boxes: a draft with the questions."""
    made = draft(network(tmp_path, {"logits": (1, 1000)}))
    assert made.keys["output"] == {"decoder": "logits"}
    assert draft(network(tmp_path, {"points": (1, 1, 17, 3)})).keys["task"] == "raw"
    sets = {"pred_boxes": (1, 100, 4), "logits": (1, 100, 91)}
    assert "output.decoder" in draft(network(tmp_path, sets)).questions[0]


def test_a_name_with_a_line_of_its_own_stays_in_its_line(tmp_path: Path) -> None:
    """The names of tensors come from outside, and the draft is there to be pasted."""
    made = draft(network(tmp_path, {'points\ntask = "raw"\x1b[31m': (1, 1, 17, 3)}))
    table = tomllib.loads(draft_text(made, "net", "1", "net.onnx"))
    assert table.keys() == {"name", "version", "file", "to_decide"} | made.keys.keys()
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


@pytest.mark.parametrize("features", [1, 4, 30])
def test_a_table(features: int, tmp_path: Path) -> None:
    """A few numbers are a row of features; a window of one channel is the other possibility."""
    path = save_onnx(
        tmp_path / "iris.onnx",
        [node("MatMul", ["x", "w"], ["y"])],
        [("x", "float32", (None, features))],
        [("y", "float32", (None, 3))],
        {"w": np.zeros((features, 3), np.float32)},
    )
    made = draft(path)
    row = {"channels": list(range(features)), "window": 1, "layout": "flat-tc"}
    assert made.keys["input"] == row
    (how,) = (words for words in made.questions if words.startswith("input.channels"))
    assert f"channels = [0], window = {features}, and input.rate_hz" in how
    assert '"flat-tc" (sample by sample' in how


def test_a_window_whose_network_ends_in_softmax_is_classified(tmp_path: Path) -> None:
    """Gestures from an IMU: the draft said raw, and asked what the network itself says."""
    path = save_onnx(
        tmp_path / "gesture.onnx",
        [
            node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=0),
            node("Softmax", ["mean"], ["y"]),
        ],
        [("x", "float32", (None, 150, 8))],
        [("y", "float32", (None, 8))],
    )
    made = draft(path)
    assert (made.keys["task"], made.keys["output"]) == ("classification", {"decoder": "softmax"})
    assert made.keys["input"]["window"] == 150
    assert made.questions[0].startswith("output.labels")


def test_a_draft_becomes_a_manifest(tmp_path: Path) -> None:
    """With its questions answered, the text is a manifest."""
    made = draft(network(tmp_path, {"output0": (1, 9, 126)}))
    table = tomllib.loads(draft_text(made, "net", "2", "some net.onnx"))
    table["output"]["labels"] = list("abcde")
    (line,) = doubtful_keys(parse(table, "model.toml"))
    assert line.startswith("to_decide: not decided yet: output.labels; input;")
    table["to_decide"].clear()
    manifest = parse(table, "model.toml")
    assert (manifest.id, doubtful_keys(manifest)) == ("net@2", [])


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


def test_no_shape_is_too_odd_for_a_draft() -> None:
    """Scalars, open sizes, no outputs, many dimensions: each network has a draft, and no error."""
    random = np.random.default_rng(8)
    sizes: list[int | None] = [
        None,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        10,
        12,
        13,
        20,
        32,
        48,
        64,
        76,
        85,
        96,
        255,
    ]

    def spec(name: str) -> TensorSpec:
        rank = int(random.integers(0, 6))
        shape = tuple(sizes[at] for at in random.integers(0, len(sizes), rank))
        return TensorSpec(name, shape, ("float32", "int64", "uint8")[random.integers(3)])

    pictures = [
        (1, 3, 64, 96),
        (1, 64, 96, 3),
        (None, 3, None, None),
        (1, 76, 32, 1),
        (1, 1, 48, 320),
    ]
    names = (
        "output",
        "boxes",
        "scores",
        "labels",
        "model_outputs0",
        "anomaly_map",
        "flat_predictions",
    )
    for turn in range(3000):
        outputs = tuple(spec(name) for name in names[: random.integers(0, len(names))])
        inputs = [spec("scale_factor"), spec("orig_target_sizes")][: random.integers(0, 3)]
        if turn % 5:
            inputs.insert(0, TensorSpec("images", pictures[turn % 5], "float32"))
        facts = NetworkFacts(
            kind="onnx",
            files=(),
            inputs=tuple(inputs),
            outputs=outputs,
            makers={one.name: "Concat" for one in outputs},
            metadata={},
            nodes=1,
            operators=frozenset({"Concat"}),
            weight_bytes=0,
            quantized=False,
        )
        assert draft_of(facts).family
