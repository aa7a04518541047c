"""Models as people report them elsewhere: read rightly, or refused with the way out.

Each test is named after a public report of the same kind of file.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from edge_agent.core.areas import Areas
from edge_agent.core.errors import AgentError, EngineError, ModelError, SampleError
from edge_agent.core.types import Classes, Detections, Findings, Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.files.finite import ensure_finite
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import load
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx, to_ir
from tests.helpers.tiny_tflite import Tensor, metadata, save_teachable, save_tflite

CASES = Path(__file__).parents[3] / "shared" / "cases" / "models"
ENGINES = ("onnxruntime", "openvino")
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")


def found(path: Path, engine: str, level: int = 225, size: int = 96) -> Findings:
    """Infer a gray picture by a model folder or bare file."""
    picture = np.full((size, size, 3), level, np.uint8)
    with import_model(path) as imported:
        model = load_model(imported.folder, [EngineChoice(engine)], "picture")
        try:
            return model.infer(Sample(picture, 0, 0, 0.0)).findings
        finally:
            model.engine.close()


def folder(network: Path, task: str, output: str, given: str = "") -> Path:
    """Write a manifest beside a network."""
    text = f'name = "m"\nversion = "1"\ntask = "{task}"\nfile = "{network.name}"\n'
    (network.parent / "model.toml").write_text(f"{text}[input]\n{given}\n[output]\n{output}\n")
    return network.parent


def vector(path: Path, numbers: Sequence[float], end: str | None = None) -> Path:
    """Save a network that always gives these numbers of one picture."""
    return constant_outputs(path, {"out": np.array([numbers], np.float32)}, end=end)


@pytest.mark.parametrize("engine", ENGINES)
def test_keras_45701_one_sigmoid_is_the_chance_of_the_second_of_two_classes(
    tmp_path: Path, engine: str
) -> None:
    """A binary classifier of Keras has two labels and one output."""
    network = vector(tmp_path / "m.onnx", [0.2])
    classes = found(
        folder(network, "classification", 'decoder = "softmax"\nlabels = ["cat", "dog"]'), engine
    )
    assert isinstance(classes, Classes)
    assert classes.labels == ("cat", "dog")
    assert_allclose(classes.scores, (0.8, 0.2), atol=1e-6)


@pytest.mark.parametrize("decoder", ["softmax", "logits"])
@pytest.mark.parametrize("engine", ENGINES)
def test_torchkan_9_log_softmax_gives_chances(tmp_path: Path, engine: str, decoder: str) -> None:
    """Logarithms of chances are chances, whichever decoder the manifest names."""
    network = vector(tmp_path / "m.onnx", np.log([0.955, 0.045]).tolist())
    output = f'decoder = "{decoder}"\nlabels = ["bright", "dark"]'
    classes = found(folder(network, "classification", output), engine)
    assert isinstance(classes, Classes)
    assert classes.labels == ("bright", "dark")
    assert_allclose(classes.scores, (0.955, 0.045), atol=1e-4)


def test_torchkan_9_a_draft_of_log_softmax_is_of_logits(tmp_path: Path) -> None:
    """`describe` drafts logits for a network that ends in LogSoftmax."""
    network = save_onnx(
        tmp_path / "m.onnx",
        [
            node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0),
            node("LogSoftmax", ["mean"], ["out"]),
        ],
        [("x", "float32", (1, 3, 32, 32))],
        [("out", "float32", (1, 3))],
    )
    assert 'decoder = "logits"' in describe(network).draft


def test_frigate_8621_a_score_beyond_one_is_no_chance(tmp_path: Path) -> None:
    """Integers or logits that are called chances are an error that names the keys."""
    network = vector(tmp_path / "m.onnx", [124.0, 3.0])
    path = folder(network, "classification", 'decoder = "softmax"\nlabels = ["a", "b"]')
    with pytest.raises(SampleError, match=r"is no chance.*logits.*output\.scale"):
        found(path, "onnxruntime")


def test_d_fine_anchors_of_the_border_are_infinite_on_purpose() -> None:
    """Rows of four infinities amid numbers are anchors; a single infinity is damage."""
    anchors = np.arange(4 * 6, dtype=np.float32).reshape(1, 6, 4)
    anchors[0, [0, 5]] = np.inf
    for kind in (np.float32, np.float16):
        ensure_finite(anchors.astype(kind), "anchors")
    for damaged in ((0, 2, 1), (0, 5, 0)):
        wrong = anchors.copy()
        wrong[damaged] = np.inf if np.isfinite(wrong[damaged]) else 1.0
        with pytest.raises(ModelError, match="infinities among its numbers"):
            ensure_finite(wrong, "anchors")
    with pytest.raises(ModelError, match="infinities among its numbers"):
        ensure_finite(-anchors, "anchors")


@needs_cases
@pytest.mark.parametrize("engine", ENGINES)
def test_d_fine_at_640_is_taken(engine: str) -> None:
    """A network of that kind finds what its own code finds."""
    boxes = found(CASES / "detr-640", engine)
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("person", "car")
    assert_allclose(boxes.boxes, [[32.4, 37.2, 42, 46.8], [64.8, 36, 84, 55.2]], atol=0.1)


@needs_cases
@pytest.mark.parametrize("engine", ENGINES)
def test_transformers_a_single_number_fills_a_mask_of_an_open_batch(engine: str) -> None:
    """`fixed = { pixel_mask = 1 }` is 1 everywhere."""
    boxes = found(CASES / "pixel-mask", engine)
    assert isinstance(boxes, Detections)
    assert set(boxes.labels) == {"person", "car"}


@needs_cases
@pytest.mark.parametrize(
    "name", ["yolov8n_float32", "yolov8n_float32_old", "yolov8n_full_integer_quant"]
)
def test_ultralytics_8618_boxes_of_a_tflite_are_in_0_to_1_of_the_input(name: str) -> None:
    """Names and size are in the zip that the file ends in; eight bits have the file's own step."""
    boxes = found(CASES / "ultralytics-tflite" / f"{name}.tflite", "openvino")
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("dog",)
    assert_allclose(boxes.boxes, [[24, 24, 72, 72]], atol=0.5)
    assert_allclose(boxes.scores, [0.9], atol=0.01)


@needs_cases
@pytest.mark.parametrize(("level", "label"), [(225, "bright"), (30, "dark")])
def test_edge_impulse_the_steps_of_an_integer_network_are_in_its_file(
    level: int, label: str
) -> None:
    """A manifest of floats' normalization serves an integer network by the file's own steps."""
    classes = found(CASES / "int8-classifier-tflite", "openvino", level)
    assert isinstance(classes, Classes)
    assert classes.labels[0] == label
    assert classes.scores[0] == pytest.approx(0.996, abs=0.01)


@needs_cases
@pytest.mark.parametrize(("level", "label"), [(225, "Good"), (30, "Defective")])
def test_teachable_machine_an_unpacked_zip_is_a_model(level: int, label: str) -> None:
    """A folder of a .tflite and its numbered labels is taken as it is."""
    classes = found(CASES / "tflite-folder", "openvino", level)
    assert isinstance(classes, Classes)
    assert classes.labels[0] == label


def test_teachable_machine_its_gray_pictures_for_small_boards_are_read(tmp_path: Path) -> None:
    """What is embedded takes one channel: "expected 3 channels (color 'rgb')", it was said."""
    save_teachable(tmp_path / "vww.tflite", 2, side=96, colors=1)
    (tmp_path / "labels.txt").write_text("0 5\n1 4\n")
    classes = found(tmp_path, "openvino")
    assert isinstance(classes, Classes)
    assert classes.labels == ("5", "4")


def rows_of_yolov5(tmp_path: Path, *, decoded: bool) -> Path:
    """Save rows of a 96 x 96 YOLOv5 in 0..1, with one object in the middle."""
    rows = np.zeros((567, 85), np.float32)
    start = 0
    for stride in (8, 16, 32):
        side = 96 // stride
        down, across = np.divmod(np.arange(side * side), side)
        for _ in range(3):
            middle = np.stack((across, down), axis=1) + 0.5
            part = rows[start : start + side * side]
            part[:, :2] = middle * stride / 96 if decoded else np.full_like(middle, 0.5)
            part[:, 2:4] = 0.5
            start += side * side
    center = 3 * (144 + 36) + 4
    rows[center, 4], rows[center, 5 + 16] = 0.95, 0.95
    return constant_outputs(tmp_path / "net.onnx", {"output": rows[None]}, picture=(1, 3, 96, 96))


def test_yolov5_lite_136_boxes_that_are_not_decoded_are_refused(tmp_path: Path) -> None:
    """A network with its grid outside gives numbers for each cell, which are no boxes."""
    with pytest.raises(SampleError, match="anchors and grid are outside the network"):
        found(rows_of_yolov5(tmp_path, decoded=False), "onnxruntime")


@needs_cases
def test_yolov5_lite_136_its_own_file_gives_no_box_that_is_none() -> None:
    """Bare, it is of YOLOv5's form; the first picture tells that it is not decoded."""
    with pytest.raises(SampleError, match="anchors and grid are outside the network"):
        found(CASES / "bare-yolov5-undecoded" / "v5lite.onnx", "onnxruntime")


@needs_cases
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("case", "level", "best", "score"),
    [
        ("logsoftmax", 225, "bright", 0.955),
        ("logsoftmax", 30, "dark", 0.955),
        ("one-sigmoid", 225, "cat", 0.8),
    ],
)
def test_torchkan_9_and_keras_45701_the_reported_files_are_read(
    case: str, level: int, best: str, score: float, engine: str
) -> None:
    """Both classes are published, the more likely first."""
    classes = found(CASES / case, engine, level)
    assert isinstance(classes, Classes)
    assert classes.labels[0] == best
    assert_allclose(classes.scores, (score, 1 - score), atol=2e-3)


@needs_cases
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("yolov4", "output.labels"),
        ("paddledet", "input.mean and input.scale: NormalizeImage in its infer_cfg.yml"),
        ("efficientdet", "export it with separate boxes, scores and classes"),
        ("fomo", "task and output.decoder"),
        ("columns", "task and output.decoder: its outputs are probabilities"),
        ("anomap", "output.threshold"),
        ("batch8", "output.labels"),
    ],
)
def test_families_of_the_field_are_a_question_with_the_way_out(file: str, words: str) -> None:
    """None is drafted in full, and none is a classifier of the numbers of a row."""
    made = describe(CASES / "refused-families" / f"{file}.onnx")
    assert made.manifest is None
    assert any(words in line for line in made.missing)


def test_yolov5_boxes_in_0_to_1_that_lie_in_their_cells_are_decoded(tmp_path: Path) -> None:
    """What was converted from TensorFlow's export gives boxes in 0..1 of the input."""
    boxes = found(rows_of_yolov5(tmp_path, decoded=True), "onnxruntime")
    assert isinstance(boxes, Detections)
    assert_allclose(boxes.boxes, [[24, 24, 72, 72]], atol=0.5)


def test_pytorch_yolov4_boxes_and_confs_are_read(tmp_path: Path) -> None:
    """Boxes [1, N, 1, 4] in 0..1 with a confidence for each class."""
    boxes = np.array([[[[0.25, 0.25, 0.5, 0.75]], [[0, 0, 0.1, 0.1]]]], np.float32)
    confs = np.array([[[0.1, 0.9], [0.0, 0.0]]], np.float32)
    network = constant_outputs(tmp_path / "m.onnx", {"boxes": boxes, "confs": confs})
    path = folder(network, "detection", 'decoder = "ssd"\nthreshold = 0.4\nlabels = ["cat", "dog"]')
    hits = found(path, "onnxruntime")
    assert isinstance(hits, Detections)
    assert hits.labels == ("dog",)
    assert_allclose(hits.boxes, [[24, 24, 48, 72]], atol=0.1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "automl_efficientdet": ({"detections": (1, 100, 7)}, "EfficientDet: export it with separate"),
}


@pytest.mark.parametrize("report", REFUSED)
def test_families_that_no_decoder_reads_are_named_with_what_to_export(
    tmp_path: Path, report: str
) -> None:
    """A draft says what the family is, and no classifier of 7 classes."""
    shapes, mend = REFUSED[report]
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    made = describe(constant_outputs(tmp_path / "m.onnx", zeros))
    assert made.manifest is None
    assert any(mend in line for line in made.missing)
    assert 'task = "raw"' in made.draft


BOXES = [[80, 40, 160, 240], [200, 100, 300, 200]]
PADDLE = "mean = [123.675, 116.28, 103.53]\nscale = [58.395, 57.12, 57.375]\n"


@needs_cases
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("file", "given", "answers"),
    [
        ("rows-of-seven/yolov7-end2end", "scale = 255", 'layout = "yolov7"'),
        ("rows-of-seven/yolov7-one-box", "scale = 255", 'layout = "yolov7"'),
        ("rows-of-seven/yolonas-flat", 'color = "bgr"', 'layout = "yolo-nas"'),
        (
            "refused-families/paddledet",
            f'{PADDLE}tensor = "image"\nfixed = {{ scale_factor = [[1, 1]] }}',
            'layout = "paddle"',
        ),
    ],
)
def test_yolov7_1419_and_700_rows_of_boxes_are_read_as_their_layout_has_them(
    tmp_path: Path, file: str, given: str, answers: str, engine: str
) -> None:
    """YOLOv7 --end2end, YOLO-NAS flat and PaddleDetection: bare a question, described right."""
    bare = shutil.copy(CASES / f"{file}.onnx", tmp_path)
    made = describe(Path(bare))
    assert made.manifest is None
    assert "output.decoder" not in "".join(made.missing)
    assert 'decoder = "ssd"' in made.draft
    output = f'decoder = "ssd"\nthreshold = 0.5\nlabels = ["cat", "dog", "bird"]\n{answers}'
    boxes = found(folder(Path(bare), "detection", output, given), engine, size=320)
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("cat", "bird")[: len(boxes)]
    assert_allclose(boxes.boxes, BOXES[: len(boxes)], atol=0.1)
    assert_allclose(boxes.scores, [0.9, 0.8][: len(boxes)], atol=1e-3)


@needs_cases
def test_skl2onnx_8007_maps_are_read() -> None:
    """The chances that are in an output of maps, with the manifest's names of the classes."""
    described = load(CASES / "zipmap-int-labels")
    model = load_model(described, [EngineChoice("onnxruntime")], "signal")
    row = np.array([[0.126, -0.132, 0.640, 0.105]], np.float32)
    classes = model.infer(Sample(row, 0, 0, 0.0)).findings
    model.engine.close()
    assert isinstance(classes, Classes)
    assert classes.labels == ("worn", "ok")
    assert_allclose(classes.scores, (0.57, 0.43), atol=0.01)


@needs_cases
def test_onnxruntime_22505_a_bare_classifier_with_maps_is_drafted(tmp_path: Path) -> None:
    """All but the order of the columns stands in the file."""
    bare = Path(shutil.copy(CASES / "zipmap-int-labels" / "model.onnx", tmp_path))
    drafted = describe(bare).draft
    assert 'decoder = "softmax"' in drafted
    assert 'scores = "output_probability"' in drafted


@needs_cases
def test_frigate_8621_an_ssd_with_its_post_processing_is_refused_with_the_way_out() -> None:
    """A custom operator is named, and what to export instead."""
    with pytest.raises(AgentError, match="raw boxes and scores"):
        describe(CASES / "tflite-ssd" / "detect.tflite")


def test_silero_vad_a_network_is_warmed_up_with_its_fixed_inputs(tmp_path: Path) -> None:
    """A rate of 0 would take a way that fails; what fails is said without the engine's own text."""
    network = save_onnx(
        tmp_path / "m.onnx",
        [
            node("Sub", ["n", "three"], ["i"]),
            node("Gather", ["x", "i"], ["y"], axis=1, name="Pick"),
        ],
        [("x", "float32", (1, 3, 8, 8)), ("n", "int64", (1,))],
        [("y", "float32", (1, 1, 8, 8))],
        {"three": np.array([3], np.int64)},
    )
    chosen = [EngineChoice("onnxruntime")]
    described = load(folder(network, "raw", 'decoder = "raw"', "fixed = { n = 4 }"))
    load_model(described, chosen, "picture").close()
    described = load(folder(network, "raw", 'decoder = "raw"', "fixed = { n = 40 }"))
    with pytest.raises(EngineError) as raised:
        load_model(described, chosen, "picture")
    why = "onnxruntime:CPU: operator Gather (Pick) fails on the values that it is given"
    assert str(raised.value) == f"m@1: no engine can run it: {why}"


@pytest.mark.parametrize("rank", [1, 2])
def test_ultralytics_long_integers_may_lie_at_any_fourth_byte(tmp_path: Path, rank: int) -> None:
    """Zero points that are not aligned to eight bytes, as in one of the two, are no damage."""
    tensors = [Tensor("x", (1, 2), 9, (0.5,)), Tensor("y", (1,) * rank)]
    assert inspect(save_tflite(tmp_path / "m.tflite", tensors)).steps == {"x": (0.5, 0)}


def test_yamnet_complex_numbers_may_lie_inside_a_tflite(tmp_path: Path) -> None:
    """A spectrum is taken amid a network, but neither as its output nor of twice the bits."""
    path = tmp_path / "m.tflite"
    spectrum, size = ((131, 0, (0,), (1,)), (135, 0, (1,), (2,)))
    tensors = [Tensor("x", (1, 4)), Tensor("c", (1, 3), 8), Tensor("y", (1, 3))]
    assert inspect(save_tflite(path, tensors, [spectrum, size])).nodes == 2
    save_tflite(path, tensors[:2], [spectrum])
    with pytest.raises(ModelError, match=r"c complex64\[1, 3\]: inputs and outputs must be real"):
        inspect(path)
    save_tflite(path, [tensors[0], Tensor("c", (1, 3), 11)], [spectrum])
    with pytest.raises(ModelError, match="tensor 'c' is of type complex128, which is not"):
        inspect(path)


def test_dtln_a_tflite_that_keeps_its_state_is_no_damage(tmp_path: Path) -> None:
    """Tensors that keep their values are named with the operator, and what to export."""
    tensors = [Tensor("x", (1, 4)), Tensor("state", (1, 4), variable=True), Tensor("y", (1, 4))]
    path = save_tflite(tmp_path / "m.tflite", tensors, [(44, 71, (0, 1), (2,))])
    why = r"keeps its state inside \(operator UNIDIRECTIONAL_SEQUENCE_LSTM\).* input and output"
    with pytest.raises(ModelError, match=why):
        inspect(path)


def test_tflite_micro_scales_along_an_axis_that_is_not_there_are_no_damage(tmp_path: Path) -> None:
    """Person detection's biases have their scales along a fourth axis: no engine takes it."""
    tensors = [Tensor("x", (2,), 2, (0.5, 0.5), axis=3), Tensor("y", (2,))]
    path = save_tflite(tmp_path / "m.tflite", tensors)
    with pytest.raises(ModelError, match=r"x int32\[2\]: its quantization is one that the engines"):
        inspect(path)


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (129, "CALL_ONCE is refused.* between calls.*microWakeWord's, `edge-agent convert"),
        (25, "found 2; export one"),
    ],
)
def test_microwakeword_graphs_beside_the_first_are_refused_with_the_way_out(
    tmp_path: Path, operator: int, why: str
) -> None:
    """What has several graphs is told what to export; what keeps a state, that it does."""
    tensors = [Tensor("x", (1, 4)), Tensor("y", (1, 4))]
    path = save_tflite(tmp_path / "m.tflite", tensors, [(operator, 9, (0,), (1,))], graphs=2)
    with pytest.raises(ModelError, match=why):
        inspect(path)


SOFTMAX = [Tensor("x", (1, 4, 4, 3)), Tensor("y", (1, 4, 4, 3))]


def test_deeplabv3_labels_in_the_metadata_make_a_segmentation(tmp_path: Path) -> None:
    """As many labels as each pixel has numbers are its classes, and normalization is known."""
    path = save_tflite(tmp_path / "m.tflite", SOFTMAX, metadata=metadata("names.txt"))
    bare = path.read_bytes()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("names.txt", "red\ngreen\nblue\n")
    made = describe(path).manifest
    assert made is not None
    assert (made.task, made.decoder, made.input.mean) == ("segmentation", "semantic", (127.5,))
    findings = found(path, "openvino", size=4)
    assert isinstance(findings, Areas)
    path.write_bytes(bare)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("names.txt", "red\ngreen\n")
    with pytest.raises(ModelError, match="not as many as the classes of its output y"):
        bring_in(path)


def test_yamnet_labels_in_the_metadata_are_in_the_draft(tmp_path: Path) -> None:
    """A network of sounds is a classifier by its labels; its channels and rate stay questions."""
    tensors = [Tensor("x", (1, 15600)), Tensor("y", (1, 3))]
    path = save_tflite(tmp_path / "m.tflite", tensors, metadata=metadata("names.txt"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("names.txt", "speech\nbark\nsiren\n")
    told = describe(path)
    assert told.manifest is None
    assert 'task = "classification"' in told.draft
    assert '"bark"' in told.draft
    assert any(line.startswith("input.channels") for line in told.missing)
    assert not any(line.startswith("task") for line in told.missing)


def bring_in(path: Path) -> None:
    """Import a bare file."""
    with import_model(path):
        pass


@pytest.mark.parametrize(
    ("tensors", "said", "why"),
    [
        (SOFTMAX, None, "has no metadata .* it is what each pixel is: segmentation, which leaves"),
        (SOFTMAX, metadata(None), r"say nothing of its outputs \(no subgraph_metadata\)"),
        ([Tensor("x", (1, 64), 2), Tensor("y", (1, 2))], None, "takes the numbers of tokens"),
        ([Tensor("x", (1, 33), 9), Tensor("y", (1, 2))], None, "a classifier of 2 classes of win"),
    ],
)
def test_task_library_a_bare_tflite_is_told_its_family_and_where_a_draft_is(
    tmp_path: Path, tensors: list[Tensor], said: bytes | None, why: str
) -> None:
    """What is missing is named, and the draft that `describe` prints."""
    path = save_tflite(tmp_path / "m.tflite", tensors, metadata=said)
    with pytest.raises(ModelError, match=f"{why}.*; describe it in a model.toml .* prints a draft"):
        bring_in(path)


@pytest.mark.parametrize("decoder", ["yolov8", "yolov5"])
@pytest.mark.parametrize("size", [1, 96], ids=["shares", "pixels"])
def test_ultralytics_bare_tflites_of_coco_s_shape_are_taken_as_in_onnx(
    tmp_path: Path, decoder: str, size: int
) -> None:
    """Nothing was left to decide in the draft, and yet a model.toml was demanded."""
    rows = np.zeros((189, 84) if decoder == "yolov8" else (567, 85), np.float32)
    rows[7, :4] = np.array([0.5, 0.5, 0.5, 0.25]) * size
    rows[7, 4:][16 + (decoder == "yolov5")] = 0.9
    if decoder == "yolov5":
        rows[7, 4] = 1
    held = rows.T[None] if decoder == "yolov8" else rows[None]
    shape = held.shape
    tensors = [
        Tensor("x", (1, 96, 96, 3)),
        Tensor("held", shape, values=np.ascontiguousarray(held)),
    ]
    path = save_tflite(
        tmp_path / "m.tflite", [*tensors, Tensor("y", shape)], [(55, 0, (1, 1), (2,))]
    )
    assert not any(line.startswith("has no metadata") for line in describe(path).missing)
    boxes = found(path, "openvino")
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("16",)
    assert_allclose(boxes.boxes, [[24, 36, 72, 60]], atol=0.01)


def test_task_library_metadata_that_say_nothing_are_named_where_the_shape_is_enough(
    tmp_path: Path,
) -> None:
    """Labels that its metadata name and that are not there are no reason to ask, but are said."""
    shape = (1, 84, 189)
    held = Tensor("held", shape, values=np.zeros(shape, np.float32))
    tensors = [Tensor("x", (1, 96, 96, 3)), held, Tensor("y", shape)]
    steps = [(55, 0, (1, 1), (2,))]
    path = save_tflite(tmp_path / "m.tflite", tensors, steps, metadata=metadata("names.txt"))
    told = describe(path)
    assert told.manifest is not None
    assert any(line.startswith("metadata: left out, names.txt: its m") for line in told.guessed)


def test_yamnet_a_draft_has_the_window_of_an_input_of_one_dimension(tmp_path: Path) -> None:
    """Samples without an axis for the batch are a window of one channel."""
    path = save_tflite(tmp_path / "m.tflite", [Tensor("x", (15600,)), Tensor("y", (1, 521))])
    assert "window = 15600" in describe(path).draft


def test_openmv_a_head_without_chances_is_not_taken_for_cells_with_a_class(tmp_path: Path) -> None:
    """A YOLO's 5 anchors of 6 numbers have the shape of FOMO's cells, but end in no softmax."""
    tensors = [Tensor("x", (1, 192, 192, 3)), Tensor("y", (1, 12, 12, 30))]
    assert "first_label = 1" in describe(save_tflite(tmp_path / "cells.tflite", tensors)).draft
    path = save_tflite(tmp_path / "m.tflite", tensors, [(14, 0, (0,), (1,))])
    assert any("5 of 1 classes or 3 of 5 classes" in line for line in describe(path).missing)
    save_tflite(path, [tensors[0], Tensor("y", (1, 12, 12, 31))], [(14, 0, (0,), (1,))])
    assert 'decoder = "raw"' in describe(path).draft


def test_lpyolo_an_only_head_of_three_anchors_is_drafted(tmp_path: Path) -> None:
    """It was of no known family; what else has as many numbers stays a question."""
    path = tmp_path / "m.onnx"
    constant_outputs(
        path, {"output": np.zeros((1, 75, 4, 4), np.float32)}, picture=(1, 3, 128, 128)
    )
    missing = "\n".join(describe(path).missing)
    assert "5 of 10 classes or 3 of 20 classes; if these are no boxes, task is raw" in missing


@pytest.mark.parametrize("last", [True, False])
def test_openmv_a_yolov2_head_is_read_with_its_numbers_first_or_last(
    tmp_path: Path, *, last: bool
) -> None:
    """A cell's five anchors: middle in the cell, size e**t anchors, softmax of the classes."""
    head = np.zeros((3, 3, 5, 7), np.float32)
    head[0, 0, :, :2], head[..., 4] = -1, -9
    head[1, 1, 2] = (0, 0, 0, 0, 9, 0, 9)
    numbers = head.reshape(1, 3, 3, 35)
    if not last:
        numbers = np.ascontiguousarray(numbers.transpose(0, 3, 1, 2))
    path = constant_outputs(tmp_path / "m.onnx", {"y": numbers}, picture=(1, 3, 96, 96))
    anchors = [1, 1, 1, 1, 1.5, 1.5, 1, 1, 1, 1]
    output = f'decoder = "yolov5"\nlayout = "yolov2"\nanchors = {anchors}\nlabels = ["a", "b"]'
    boxes = found(folder(path, "detection", output), "onnxruntime")
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("b",)
    assert_allclose(boxes.boxes, [[24, 24, 72, 72]], atol=0.1)


def test_ultraface_offsets_with_a_manifest_written_by_hand_are_refused(tmp_path: Path) -> None:
    """An export without post-processing has the shapes of one with it, and no corners."""
    offsets = np.random.default_rng(1).normal(size=(1, 50, 4)).astype(np.float32)
    scores = np.tile(np.array([0.1, 0.9], np.float32), (1, 50, 1))
    network = constant_outputs(tmp_path / "m.onnx", {"scores": scores, "boxes": offsets})
    made = folder(network, "detection", 'decoder = "ultraface"\nlabels = ["face"]')
    with pytest.raises(SampleError, match=r"offsets from anchors.*version-slim-320"):
        found(made, "onnxruntime")


def test_silero_vad_its_own_export_is_read_bare(tmp_path: Path) -> None:
    """Its state, its rate, and the 64 samples before a window follow from its inputs' names."""
    network = save_onnx(
        tmp_path / "m.onnx",
        [
            node("ReduceMean", ["input"], ["output"], axes=[1], keepdims=1),
            node("Identity", ["state"], ["stateN"]),
        ],
        [
            ("input", "float32", (None, None)),
            ("state", "float32", (2, None, 128)),
            ("sr", "int64", ()),
        ],
        [("output", "float32", (None, 1)), ("stateN", "float32", (None, None, None))],
    )
    made = describe(network).manifest
    assert made is not None
    assert (made.task, made.decoder, made.input.lead) == ("anomaly", "score", 64)
    assert made.input.fixed == {"sr": 16000}
    assert made.output.label_above == "speech"  # and no anomaly, which a person would be called


def test_coral_an_extractor_of_embeddings_may_keep_its_rows_and_columns(tmp_path: Path) -> None:
    """A vector whose numbers come last, behind rows and columns of 1, goes with a gallery."""
    path = constant_outputs(tmp_path / "m.onnx", {"out": np.array([[[[3, 4]]]], np.float32)})
    made = folder(path, "embedding", 'decoder = "pooled"\nthreshold = 0.9')
    np.savez(made / "gallery.npz", cup=np.array([[0.6, 0.8]], np.float32))
    assert "cup" in str(found(made, "onnxruntime"))


def test_movenet_maps_of_points_may_be_no_classes(tmp_path: Path) -> None:
    """A quarter of the pixels with a number for each of 17: points as well as classes."""
    tensors = [Tensor("x", (1, 192, 192, 3)), Tensor("y", (1, 48, 48, 17))]
    told = describe(save_tflite(tmp_path / "m.tflite", tensors))
    assert any("map of a point rather than a class" in line for line in told.missing)


def test_openwakeword_a_tflite_of_its_chain_is_refused_as_describe_says(tmp_path: Path) -> None:
    """No manifest would help, so no draft is promised; `convert` makes one network of the chain."""
    path = save_tflite(tmp_path / "m.tflite", [Tensor("x", (1, 16, 96)), Tensor("y", (1, 1))])
    with pytest.raises(ModelError, match=r"openWakeWord's chain .* `edge-agent convert") as why:
        bring_in(path)
    assert "draft" not in str(why.value)


@pytest.mark.parametrize("suffix", [".onnx", ".tflite", ".xml"])
@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer"),
        ("\n\n<!DOCTYPE html>\n<html><body>x</body></html>\n", "a web page, not a model: download"),
    ],
)
def test_opencv_zoo_a_pointer_or_a_web_page_is_no_damaged_model(
    tmp_path: Path, suffix: str, start: str, why: str
) -> None:
    """What hosts give in place of a model is named, with how to get the model."""
    path = tmp_path / f"m{suffix}"
    path.write_text(start)
    with pytest.raises(ModelError, match=f"m{suffix}: {why}"):
        inspect(path)


@pytest.mark.parametrize("weights", ["m.bin", "m.onnx_data"])
def test_open_model_zoo_weights_that_are_a_pointer_are_no_cut_ones(
    tmp_path: Path, weights: str
) -> None:
    """The network is there, its weights beside it are not: a checkout without Git LFS."""
    add = node("Add", ["x", "w"], ["y"])
    values = {"w": np.ones((1, 256), np.float32)}
    value = ("float32", [1, 256])
    external = None if weights == "m.bin" else weights
    path = save_onnx(
        tmp_path / "m.onnx", [add], [("x", *value)], [("y", *value)], values, external=external
    )
    if external is None:
        path = to_ir(path, tmp_path / "m.xml")
    (tmp_path / weights).write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n")
    with pytest.raises(ModelError, match=f"{weights}: a Git LFS pointer, .*: git lfs pull"):
        inspect(path)


@pytest.mark.parametrize(
    ("shape", "asked"),
    [
        ((1, 49, 10, 1), True),
        ((1, 30, 1, 40), True),
        ((1, 28, 28, 1), False),
        ((1, 9, 3), False),
        ((1, 3, 32, 32), False),
    ],
)
def test_mlperf_tiny_features_of_a_sound_are_asked_about(
    tmp_path: Path, shape: tuple[int, ...], asked: bool
) -> None:
    """Its keyword spotter was drafted as a classifier of gray pictures of 10 by 49 pixels."""
    path = save_tflite(
        tmp_path / "m.tflite", [Tensor("x", shape, 9, (0.1,)), Tensor("y", (1, 12), 9, (0.1,))]
    )
    drafted = "\n".join(describe(path).missing)
    assert ("features of a sound" in drafted) == asked


def test_tflite_micro_hello_world_one_number_in_and_out_is_no_autoencoder(tmp_path: Path) -> None:
    """A sine's network predicts; nothing that is one number is reconstructed."""
    path = save_tflite(tmp_path / "m.tflite", [Tensor("x", (1, 1)), Tensor("y", (1, 1))])
    assert "autoencoder" not in "\n".join(describe(path).missing)


def test_mlperf_tiny_an_integer_autoencoder_has_a_window(tmp_path: Path) -> None:
    """Quantized samples are numbers, not the indices of words."""
    tensors = [Tensor("x", (1, 640), 9, (0.1,)), Tensor("y", (1, 640), 9, (0.1,))]
    path = save_tflite(tmp_path / "m.tflite", tensors, [(114, 0, (0,), (1,))])
    drafted = "\n".join(describe(path).missing)
    assert "autoencoder" in drafted
    assert "input.window" not in drafted


def test_gtcrn_states_of_several_dimensions_are_no_pictures(tmp_path: Path) -> None:
    """A state that begins with a 2 was called two pictures at once."""
    sizes = {"mix": (1, 257, 1, 2), "cache": (2, 1, 33, 16)}
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("Identity", [name], [f"{name}_out"]) for name in sizes],
        [(name, "float32", size) for name, size in sizes.items()],
        [(f"{name}_out", "float32", size) for name, size in sizes.items()],
    )
    assert "pictures at once" not in "\n".join(describe(path).missing)


def open_network(path: Path, name: str, kind: str, sizes: Sequence[Any]) -> Path:
    """Save a network of open pictures whose output has these sizes, by a Softmax or Sigmoid."""
    nodes = [node("ReduceMean", [name], ["mean"], axes=[1], keepdims=1)]
    if len(sizes) == 2:
        nodes = [node("ReduceMean", [name], ["mean"], axes=[2, 3], keepdims=0)]
    return save_onnx(
        path,
        [*nodes, node(kind, ["mean"], ["out"])],
        [(name, "float32", (None, 3, None, None))],
        [("out", "float32", sizes)],
    )


def test_paddle2onnx_open_sizes_are_asked_for_and_lines_of_text_recognized(tmp_path: Path) -> None:
    """PP-OCR's detection was of no known family; its classifier of angles had no size."""
    path = open_network(tmp_path / "m.onnx", "x", "Sigmoid", (None, 1, None, None))
    told = describe(path)
    assert 'decoder = "db"' in told.draft
    assert any(line.startswith("input.width and input.height") for line in told.missing)
    told = describe(open_network(tmp_path / "m.onnx", "x", "Softmax", (None, 3)))
    assert "input.width and input.height: the network leaves them open" in told.missing
    # InsightFace's mobilefacenet by another exporter: the length of its vector is open.
    told = describe(open_network(tmp_path / "m.onnx", "input", "Softmax", (None, None)))
    assert any("embedding with pooled, if it is a vector" in line for line in told.missing)


def test_yolo_fastestv2_parts_of_heads_are_told_what_to_export(tmp_path: Path) -> None:
    """Six outputs, as they are before its own exporter joins them."""
    shapes = [(1, count, side, side) for side in (22, 11) for count in (12, 3, 80)]
    arrays = {f"o{place}": np.zeros(shape, np.float32) for place, shape in enumerate(shapes)}
    path = constant_outputs(tmp_path / "m.onnx", arrays, picture=(1, 3, 352, 352))
    assert any("export_onnx" in line for line in describe(path).missing)


@pytest.mark.parametrize(("label", "score"), [(-1, -0.16), (1, 0.05)])
def test_skl2onnx_scores_of_outliers_are_never_taken_the_wrong_way_round(
    tmp_path: Path, label: int, score: float
) -> None:
    """IsolationForest's fall where a row is anomalous: no outlier would ever be one."""
    network = save_onnx(
        tmp_path / "m.onnx",
        [
            node("ReduceSum", ["X"], ["sum"], keepdims=0),
            node("Mul", ["sum", "nought"], ["zero"]),
            node("Add", ["score", "zero"], ["scores"]),
            node("Identity", ["class"], ["label"]),
        ],
        [("X", "float32", (1, 4))],
        [("label", "int64", (1, 1)), ("scores", "float32", (1, 1))],
        {
            "nought": np.zeros((), np.float32),
            "score": np.array([[score]], np.float32),
            "class": np.array([[label]]),
        },
    )
    made = folder(
        network,
        "anomaly",
        'decoder = "score"\nthreshold = 0.1',
        'channels = [0, 1, 2, 3]\nwindow = 1\nlayout = "flat-tc"',
    )
    model = load_model(load(made), [EngineChoice("onnxruntime")], "signal")
    with pytest.raises(SampleError, match=r"falls where a row is anomalous.*Neg behind"):
        model.infer(Sample(np.ones((1, 4), np.float32), 0, 0, 0.0))
    model.close()
