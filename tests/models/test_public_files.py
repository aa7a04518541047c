"""Kinds of public files that strangers fetched and tried bare: read rightly, or a question."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from onnx import TensorProto, helper

from edge_agent.core.areas import Areas
from edge_agent.core.errors import EngineError, ModelError, SampleError
from edge_agent.core.types import Anomaly, Classes, Detections, RawTensors, Sample, Values
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.fit import check_fit, input_size, kind_of
from edge_agent.inference.golden import check_golden
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.manifest import load
from edge_agent.tools.golden_cases import write_golden
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx
from tests.helpers.tiny_tflite import Tensor, metadata, save_constants, save_ssd, save_tflite
from tests.models.test_reported_models import ENGINES, folder, found

PAIR = np.zeros((1, 2), np.float32)


def mean_of_each(path: Path, batch: int, end: str = "Identity") -> Path:
    """Save a network of the mean color of each of several pictures, then *end*."""
    nodes = [
        node("GlobalAveragePool", ["x"], ["means"]),
        node("Flatten", ["means"], ["flat"]),
        node(end, ["flat"], ["out"]),
    ]
    return save_onnx(
        path, nodes, [("x", "float32", (batch, 3, 32, 32))], [("out", "float32", (batch, 3))]
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [2, 8])
def test_a_classifier_of_a_fixed_batch_gives_the_classes_of_its_one_picture(
    tmp_path: Path, batch: int, engine: str
) -> None:
    """Exported with `batch=8`: the picture is given eight times, and `describe` says so."""
    network = mean_of_each(tmp_path / "b.onnx", batch, end="Sigmoid")
    made = describe(network)
    assert f"takes {batch} samples at once" in made.draft
    output = 'decoder = "softmax"\nlabels = ["a", "b", "c"]'
    model = load_model(
        load(folder(network, "classification", output, "mean = [255, 0, 128]\nscale = 255")),
        [EngineChoice(engine)],
        "picture",
    )
    # What `describe` and `push` look at before anything is run.
    check_fit(model.folder, inspect(network))
    assert input_size(model.folder, inspect(network)) == (32, 32)
    outcome = model.infer(Sample(np.full((50, 40, 3), 128, np.uint8), 0, 0, 0.0))
    assert model.last is not None
    inputs, outputs = model.last, model.run(model.last)
    model.engine.close()
    assert isinstance(outcome.findings, Classes)
    assert outcome.findings.labels == ("b", "c", "a")
    each = 1 / (1 + np.exp(-np.array([128 / 255, 0, -127 / 255])))
    assert_allclose(outcome.findings.scores, each, atol=1e-3)
    # Golden outputs are those of the network as it is.
    write_golden(tmp_path, [inputs], [outputs])
    model = load_model(load(tmp_path), [EngineChoice(engine)], "picture")
    agreement = check_golden(model)
    model.engine.close()
    assert agreement is not None


def test_a_raw_network_of_a_fixed_batch_takes_pictures(tmp_path: Path) -> None:
    """It was taken for one of readings, so that nobody could ask it about a picture."""
    network = mean_of_each(tmp_path / "b.onnx", 4)
    assert kind_of(load(folder(network, "raw", "")), inspect(network)) == "picture"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_detector_of_a_fixed_batch_finds_the_boxes_of_its_one_picture(
    tmp_path: Path, engine: str
) -> None:
    """Ultralytics' `batch=4`: columns of four pictures, of which the first counts."""
    columns = np.zeros((4, 6, 189), np.float32)
    columns[:, :, 7] = np.array([(48, 48, 48, 48, 0, 0.9)] * 4) * [[1], [0.5], [0.5], [0.5]]
    network = constant_outputs(tmp_path / "m.onnx", {"out": columns}, picture=(4, 3, 96, 96))
    output = 'decoder = "yolov8"\nthreshold = 0.5\nlabels = ["cat", "dog"]'
    boxes = found(folder(network, "detection", output), engine)
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("dog",)
    assert_allclose(boxes.boxes, [[24, 24, 72, 72]], atol=0.1)


def test_rows_of_all_pictures_of_a_fixed_batch_are_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    """Rows of one suppression over the whole batch do not say which picture they belong to."""
    rows = np.zeros((5, 7), np.float32)
    network = constant_outputs(tmp_path / "m.onnx", {"output": rows}, picture=(8, 3, 96, 96))
    output = 'decoder = "ssd"\nlayout = "yolov7"\nthreshold = 0.5\nlabels = ["cat"]'
    with pytest.raises(ModelError, match="export the network with a batch of 1"):
        found(folder(network, "detection", output), "onnxruntime")


@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 4, 6), (2, 24)])
def test_a_keras_network_saved_for_two_windows_takes_one(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """A fall detector whose batch of the training was left in it."""
    layout = {(2, 6, 4): "tc", (2, 4, 6): "ct", (2, 24): "flat-tc"}[shape]
    axes = list(range(1, len(shape)))
    network = save_onnx(
        tmp_path / "m.onnx",
        [node("ReduceMean", ["x"], ["score"], axes=axes, keepdims=0)],
        [("x", "float32", shape)],
        [("score", "float32", (2,))],
    )
    given = f'channels = [0, 1, 2, 3]\nwindow = 6\nlayout = "{layout}"'
    made = folder(network, "anomaly", 'decoder = "score"\nthreshold = 0.5', given)
    model = load_model(load(made), [EngineChoice("onnxruntime")], "signal")
    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    anomaly = model.infer(Sample(rows, 0, 0, 0.0, picture=False)).findings
    model.engine.close()
    assert isinstance(anomaly, Anomaly)
    assert anomaly.score == pytest.approx(rows.mean())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", [(1, 1, 24, 24), (1, 24, 24), (1, 24, 24, 1)])
def test_the_score_of_a_map_of_anomalies_is_its_highest_number(
    tmp_path: Path, shape: tuple[int, ...], engine: str
) -> None:
    """As anomalib has it, where a network has no other score; with one, that counts."""
    numbers = np.linspace(0, 0.7, 24 * 24, dtype=np.float32).reshape(shape)
    network = constant_outputs(tmp_path / "m.onnx", {"anomaly_map": numbers})
    made = describe(network)
    assert made.manifest is None
    assert 'task = "anomaly"' in made.draft
    assert 'decoder = "score"' in made.draft
    anomaly = found(folder(network, "anomaly", 'decoder = "score"\nthreshold = 0.5'), engine)
    assert isinstance(anomaly, Anomaly)
    assert anomaly.score == pytest.approx(0.7)
    assert anomaly.anomalous


@pytest.mark.parametrize("engine", ENGINES)
def test_the_score_beside_a_map_of_anomalies_counts(tmp_path: Path, engine: str) -> None:
    """Unless the manifest names the map."""
    outputs = {"map": np.full((1, 1, 9, 9), 0.7, np.float32), "pred": np.array([0.2], np.float32)}
    network = constant_outputs(tmp_path / "m.onnx", outputs)
    for names, score in (("", 0.2), ('\nnames = { score = "map" }', 0.7)):
        output = f'decoder = "score"\nthreshold = 0.5{names}'
        anomaly = found(folder(network, "anomaly", output), engine)
        assert isinstance(anomaly, Anomaly)
        assert anomaly.score == pytest.approx(score)


@pytest.mark.parametrize("end", ["Softmax", "Gemm"])
def test_a_classifier_of_seven_emotions_is_no_row_of_a_box(tmp_path: Path, end: str) -> None:
    """Seven chances, or seven logits, are no image, box, class and score."""
    nodes = [
        node("GlobalAveragePool", ["x"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gemm", ["flat", "weights"], ["made" if end == "Softmax" else "out"]),
    ]
    nodes += [node("Softmax", ["made"], ["out"])] if end == "Softmax" else []
    network = save_onnx(
        tmp_path / "emotion.onnx",
        nodes,
        [("x", "float32", (None, 3, 48, 48))],
        [("out", "float32", (None, 7))],
        {"weights": np.ones((3, 7), np.float32)},
    )
    made = describe(network)
    assert 'task = "classification"' in made.draft
    assert "a classifier of 7 classes" in made.draft


def test_a_picture_of_four_channels_is_named(tmp_path: Path) -> None:
    """Satellites' near infrared: no window of readings is asked for."""
    zeros = {"out": np.zeros((1, 1, 64, 64), np.float32)}
    for shape in ((1, 4, 64, 64), (1, 64, 64, 4)):
        made = describe(constant_outputs(tmp_path / "m.onnx", zeros, picture=shape))
        assert "a network of pictures with 4 channels" in made.draft
        assert not any("input.window" in line for line in made.missing)


def test_nanodet_in_six_outputs_is_drafted(tmp_path: Path) -> None:
    """Before -Plus its exporter left scores and distances of each level apart."""
    counts = {8: 1600, 16: 400, 32: 100}
    outputs: dict[str, Any] = {f"c{s}": np.zeros((n, 80), np.float32) for s, n in counts.items()}
    outputs |= {f"d{s}": np.zeros((n, 32), np.float32) for s, n in counts.items()}
    made = describe(constant_outputs(tmp_path / "m.onnx", outputs, picture=(1, 3, 320, 320)))
    assert 'decoder = "nanodet"' in made.draft


def test_pinto_s_rows_are_drafted_by_the_name_of_their_columns(tmp_path: Path) -> None:
    """`batchno_classid_score_x1y1x2y2` says what a row is."""
    rows = {"batchno_classid_score_x1y1x2y2": np.zeros((5, 7), np.float32)}
    made = describe(constant_outputs(tmp_path / "m.onnx", rows))
    assert 'layout = "pinto"' in made.draft


def test_a_narrow_gray_input_may_be_a_window(tmp_path: Path) -> None:
    """Convolutions over 36 rows of 6 readings: no picture is 6 pixels wide."""
    network = constant_outputs(
        tmp_path / "m.onnx", {"out": np.zeros((1, 10), np.float32)}, picture=(1, 36, 6, 1)
    )
    assert any("window of readings" in line for line in describe(network).missing)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("labels", ['["ground", "road"]', '["road"]\nfirst_label = 1'])
def test_a_single_chance_for_each_pixel_is_that_of_the_second_label(
    tmp_path: Path, labels: str, last: bool, engine: str
) -> None:
    """A U-Net that ends in one sigmoid: a quarter of the pixels is above one half."""
    chances = np.zeros((1, 1, 32, 32), np.float32)
    chances[..., :16, :16] = 0.9
    chances[..., 16:, 16:] = 0.4
    shape, given = ((1, 32, 32, 3), 'layout = "nhwc"') if last else ((1, 3, 32, 32), "")
    network = constant_outputs(
        tmp_path / "m.onnx",
        {"out": chances.reshape((1, 32, 32, 1)) if last else chances},
        picture=shape,
    )
    assert any("two labels" in line for line in describe(network).missing)
    areas = found(
        folder(network, "segmentation", f'decoder = "semantic"\nlabels = {labels}', given), engine
    )
    assert isinstance(areas, Areas)
    shares = dict(zip(areas.labels, areas.scores, strict=True))
    assert shares["road"] == pytest.approx(0.25)


def test_logits_of_a_single_class_for_each_pixel_are_an_error(tmp_path: Path) -> None:
    """Numbers beyond 0 and 1 are no chances; nothing is published of them."""
    logits = {"out": np.full((1, 1, 32, 32), 3.0, np.float32)}
    network = constant_outputs(tmp_path / "m.onnx", logits, picture=(1, 3, 32, 32))
    made = folder(network, "segmentation", 'decoder = "semantic"\nlabels = ["ground", "road"]')
    with pytest.raises(SampleError, match="with its sigmoid"):
        found(made, "onnxruntime")


def test_edge_impulse_s_flat_features_are_asked_for(tmp_path: Path) -> None:
    """11,032 numbers are mel energies of a sound rather than its samples."""
    save_constants(tmp_path / "t.tflite", (1, 11032), [Tensor("out", (1, 2), values=PAIR)])
    questions = describe(tmp_path / "t.tflite").missing
    assert any("as Edge Impulse flattens them" in line for line in questions)


@pytest.mark.parametrize(
    ("operator", "mend"),
    [
        ("FlexTensorListReserve", "TFLITE_BUILTINS alone"),
        ("Convolution2DTransposeBias", "take a network of another family"),
    ],
)
def test_a_custom_operator_of_tensorflow_or_mediapipe_is_refused_with_the_way_out(
    tmp_path: Path, operator: str, mend: str
) -> None:
    """An LSTM with SELECT_TF_OPS, and MediaPipe's own."""
    save_tflite(
        tmp_path / "m.tflite",
        [Tensor("x", (1, 4)), Tensor("y", (1, 4))],
        [(32, 0, (0,), (1,))],
        custom=operator,
    )
    with pytest.raises(ModelError, match=mend):
        describe(tmp_path / "m.tflite")


def test_states_of_a_recurrent_network_are_asked_for(tmp_path: Path) -> None:
    """Silero's network of a sequence: h and c, whose next values are hn and cn."""
    shape = (1, 1, 128)
    network = save_onnx(
        tmp_path / "m.onnx",
        [
            node("ReduceMean", ["input"], ["probs"], axes=[1], keepdims=0),
            node("Identity", ["h"], ["hn"]),
            node("Identity", ["c"], ["cn"]),
        ],
        [("input", "float32", (None, 576)), ("h", "float32", shape), ("c", "float32", shape)],
        [("probs", "float32", (None,)), ("hn", "float32", shape), ("cn", "float32", shape)],
    )
    assert any("h = 'hn', c = 'cn'" in line for line in describe(network).missing)


def test_pictures_for_a_network_of_windows_are_named(tmp_path: Path) -> None:
    """Also where the network leaves the size of its window open."""
    network = save_onnx(
        tmp_path / "m.onnx",
        [node("ReduceMean", ["x"], ["score"], axes=[1], keepdims=0)],
        [("x", "float32", (None, None))],
        [("score", "float32", (None,))],
    )
    given = 'channels = [0]\nwindow = 512\nlayout = "flat-tc"'
    with pytest.raises(ModelError, match="the source gives pictures"):
        found(folder(network, "anomaly", 'decoder = "score"\nthreshold = 1', given), "onnxruntime")


def test_pp_ocr_v6_s_detection_of_open_sizes_is_drafted(tmp_path: Path) -> None:
    """All sizes of its output are open, and the input is called x."""
    open_sizes = (None, None, None, None)
    network = save_onnx(
        tmp_path / "det.onnx",
        [node("Sigmoid", ["x"], ["fetch_name_0"])],
        [("x", "float32", (None, 3, None, None))],
        [("fetch_name_0", "float32", open_sizes)],
    )
    assert 'decoder = "db"' in describe(network).draft


def test_rapidocr_s_labels_in_the_metadata_are_used(tmp_path: Path) -> None:
    """A classifier of the way up of a page, whose angles its file has under `character`."""
    network = constant_outputs(
        tmp_path / "m.onnx",
        {"fetch": np.zeros((1, 4), np.float32)},
        metadata={"character": "0\n90\n180\n270"},
        end="Softmax",
    )
    made = describe(network)
    assert '"270"' in made.draft
    assert not any(line.startswith("output.labels") for line in made.missing)


def test_a_network_that_makes_a_picture_is_no_segmentation_without_a_question(
    tmp_path: Path,
) -> None:
    """AnimeGAN: three channels, as many pixels as it is given."""
    network = constant_outputs(tmp_path / "m.onnx", {"out": np.zeros((1, 3, 32, 32), np.float32)})
    assert any("a picture of the picture" in line for line in describe(network).missing)


@pytest.mark.parametrize(
    "given",
    ["", "mean = [0, 1]\nscale = [1, 4]", "mean = 3.136\nscale = 0.0245", "scale = 0.5"],
)
def test_a_window_for_a_tflite_of_integers_is_in_the_steps_that_the_file_states(
    tmp_path: Path, given: str
) -> None:
    """TensorFlow's hello_world_int8: mean and scale are those of floats, as in training."""
    save_tflite(
        tmp_path / "m.tflite",
        [Tensor("x", (1, 2), 9, (0.0245,), zero=-128), Tensor("y", (1, 2))],
        [(6, 0, (0,), (1,))],
    )
    window = f'channels = [0, 1]\nwindow = 1\nlayout = "flat-tc"\n{given}'
    made = folder(tmp_path / "m.tflite", "regression", 'decoder = "raw"', window)
    model = load_model(load(made), [EngineChoice("openvino")], "signal")
    rows = np.array([[1.5, 3.0]], np.float32)
    values = model.infer(Sample(rows, 0, 0, 0.0, picture=False)).findings
    model.engine.close()
    assert isinstance(values, Values)
    expected = {"mean = [0, 1]\nscale = [1, 4]": (1.5, 0.5), "scale = 0.5": (3.0, 6.0)}
    assert_allclose(list(values.values.values()), expected.get(given, (1.5, 3.0)), atol=0.013)


def test_numbers_in_steps_of_different_sizes_are_refused(tmp_path: Path) -> None:
    """Two outputs of integers, whose values would be steps without a word."""
    save_tflite(
        tmp_path / "m.tflite",
        [
            Tensor("x", (1, 4)),
            Tensor("a", (1, 4), 9, (0.1,), zero=3),
            Tensor("b", (1, 4), 9, (0.2,), zero=3),
        ],
        [(114, 0, (0,), (1,)), (114, 0, (0,), (2,))],
        outputs=2,
    )
    window = 'channels = [0, 1, 2, 3]\nwindow = 1\nlayout = "flat-tc"'
    made = folder(tmp_path / "m.tflite", "regression", 'decoder = "raw"', window)
    with pytest.raises(ModelError, match="steps of different sizes"):
        load_model(load(made), [EngineChoice("openvino")], "signal")


@pytest.mark.parametrize("engine", ENGINES)
def test_mlperf_tiny_an_int8_autoencoder_has_the_scores_of_its_floats(
    tmp_path: Path, engine: str
) -> None:
    """By the recipe of the float model a normal machine was an anomaly of 236, without a word.

    The steps stand at both ends of its graph, though an ONNX file has no field for them.
    """
    steps = [("in_by", 0.5, "f4"), ("in_at", 9, "i1"), ("by", 0.25, "f4"), ("at", 3, "i1")]
    ends = {name: np.array(number, kind) for name, number, kind in steps}
    save_onnx(
        tmp_path / "m.onnx",
        [
            node("Reshape", ["x", "rows"], ["flat"]),
            node("DequantizeLinear", ["flat", "in_by", "in_at"], ["floats"]),
            node("Add", ["floats", "one"], ["more"]),
            node("QuantizeLinear", ["more", "by", "at"], ["y"]),
        ],
        [("x", "int8", (1, 2, 2))],
        [("y", "int8", (1, 4))],
        {**ends, "rows": np.array([1, 4]), "one": np.array(1, "f4")},
    )
    window = 'window = 2\nlayout = "tc"'
    made = folder(
        tmp_path / "m.onnx", "anomaly", 'decoder = "reconstruction"\nthreshold = 2', window
    )
    read = load(made)
    rows = np.array([[1, 2], [-3, 4]], np.float32)
    for _ in range(2):  # again from what was loaded, as the agent does to compare engines
        model = load_model(read, [EngineChoice(engine)], "signal")
        found = model.infer(Sample(rows, 0, 0, 0.0, picture=False)).findings
        model.engine.close()
        assert isinstance(found, Anomaly)
        assert found.score == pytest.approx(1.0, abs=0.01)
        read = model.folder


def test_a_step_that_is_a_text_is_none(tmp_path: Path) -> None:
    """It may stand in any file, and no engine takes it; it was an error of Python's."""
    steps = [
        TensorProto(name="by", data_type=TensorProto.STRING, string_data=[b"0.5"]),
        helper.make_tensor("at", TensorProto.INT8, [], [0]),
    ]
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "by", "at"], ["y"])],
        "text",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [1])],
        steps,
    )
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    assert inspect(tmp_path / "m.onnx").steps == {}


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("size", "zero", "keys", "gives"),
    [
        (1, -128, "mean = 0\nscale = 1", 200),
        (1, -128, "", 200),
        (1, -128, "mean = 128\nscale = 1", 200),
        (1 / 127.5, 0, "mean = 127.5\nscale = 127.5", 200 / 127.5 - 1),
        (1 / 255, -128, "mean = 0\nscale = 1", 200 / 255),
    ],
)
def test_scanrpll_all_pixels_reach_an_input_of_int8(
    tmp_path: Path, engine: str, size: float, zero: int, keys: str, gives: float
) -> None:
    """Of mean 0 and scale 1 those above 127 were 127: where that is so, they are of floats."""
    steps = {"by": np.array(size, "f4"), "at": np.array(zero, "i1")}
    save_onnx(
        tmp_path / "m.onnx",
        [node("DequantizeLinear", ["x", "by", "at"], ["y"])],
        [("x", "int8", (1, 4, 4, 3))],
        [("y", "float32", (1, 4, 4, 3))],
        steps,
    )
    model = folder(tmp_path / "m.onnx", "raw", 'decoder = "raw"', f'layout = "nhwc"\n{keys}')
    results = found(model, engine, 200)
    assert isinstance(results, RawTensors)
    np.testing.assert_allclose(results.tensors["y"], gives, atol=1.1 * size)


@pytest.mark.parametrize("calibration", [None, 2, 3])
@pytest.mark.parametrize("kind", ["detector", "classifier", "sounds"])
def test_tflite_support_a_score_calibration_is_left_out_and_said(
    tmp_path: Path, kind: str, calibration: int | None
) -> None:
    """coco_ssd_mobilenet_v1_1.0_quant_2018_06_29_score_calibration: it was ignored without a word.

    3 is a threshold, no calibration.
    """
    path, told = tmp_path / "m.tflite", metadata("names.txt", calibration)
    if kind == "detector":
        save_ssd(path, metadata=told)
    else:
        shapes = ((1, 4, 4, 3), (1, 4, 4, 3)) if kind == "classifier" else ((1, 15600), (1, 3))
        tensors = [Tensor(name, shape) for name, shape in zip("xy", shapes, strict=True)]
        save_tflite(path, tensors, metadata=told)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("names.txt", "bolt\nnut\nwasher\n")
    said = [line for line in describe(path).guessed if line.startswith("scores")]
    left = "scores: the network's own; the score calibration in its metadata is left out"
    assert said == ([left] if calibration == 2 else [])


def test_clod_s_tflite_bmi_takes_no_two_columns(tmp_path: Path) -> None:
    """Its file leaves open how many it takes: "Argument shapes are inconsistent.", it was said."""
    network = save_onnx(
        tmp_path / "m.onnx",
        [node("MatMul", ["x", "w"], ["y"])],
        [("x", "float32", (None, None))],
        [("y", "float32", (None, 1))],
        {"w": np.ones((4, 1), np.float32)},
    )
    given = 'channels = ["h", "w"]\nwindow = 1\nlayout = "flat-tc"'
    made = folder(network, "regression", 'decoder = "raw"', given)
    with pytest.raises(
        EngineError, match=r"cannot take x float32\[1, 2\].*leaves these sizes open"
    ):
        load_model(load(made), [EngineChoice("openvino")], "signal")
