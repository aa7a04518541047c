"""SSDs that end in TensorFlow Lite's post-processing, as in Frigate's default model."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from flatbuffers import flexbuffers
from numpy.testing import assert_allclose

from edge_agent.core.errors import ModelError
from edge_agent.core.types import Detections
from edge_agent.inference.agreement import Answer, compare_answers
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import load
from tests.helpers.drafts import decided
from tests.helpers.tiny_tflite import Tensor, save_ssd, save_tflite, table, vector
from tests.models.test_reported_models import folder, found


def described(path: Path) -> Path:
    """Write the manifest that `describe` drafts, with the scaling that it asks for."""
    given = decided(describe(path).draft)
    given = given.replace("[input]", "[input]\nmean = 127.5\nscale = 127.5")
    (path.parent / "model.toml").write_text(given)
    return path.parent


def assert_found(model: Path, atol: float) -> None:
    """Assert that the sure anchor's box is found, within so many pixels.

    Anchor 14 of 6 x 6 lies at 2.5 of 6 both ways down and across, 0.3 wide; class 1 of three.
    """
    boxes = found(model, "openvino")
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("1",)
    middle = 96 * 2.5 / 6
    sides = [middle - 14.4, middle - 14.4, middle + 14.4, middle + 14.4]
    assert_allclose(boxes.boxes, [sides], atol=atol)
    assert_allclose(boxes.scores, [1], atol=0.01)


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("integers", [False, True])
def test_frigate_8621_the_box_of_the_sure_anchor_is_found(
    tmp_path: Path, *, regular: bool, integers: bool
) -> None:
    """Frigate's default model: with and without steps, suppressed by class or together."""
    path = save_ssd(tmp_path / "m.tflite", regular=regular, integers=integers, sharp=True)
    # Its scores are chances, as those before it.
    assert inspect(path).makers["TFLite_Detection_PostProcess:2"] == "Sigmoid"
    assert_found(described(path), atol=0.3)


def labeled(names: str) -> bytes:
    """Make metadata that normalize pixels, and name the classes of the second output."""
    builder = flatbuffers.Builder(512)
    file = table(builder, {0: ("offset", builder.CreateString(names)), 2: ("Int8", 3)})
    files = vector(builder, "UOffsetTRelative", [file])
    outputs = [table(builder, {}), table(builder, {6: ("offset", files)})]
    numbers = vector(builder, "Float32", [127.5])
    options = table(builder, {0: ("offset", numbers), 1: ("offset", numbers)})
    unit = table(builder, {0: ("Uint8", 1), 1: ("offset", options)})
    units = vector(builder, "UOffsetTRelative", [unit])
    given = vector(builder, "UOffsetTRelative", [table(builder, {4: ("offset", units)})])
    made: dict[int, tuple[str, Any]] = {2: ("offset", given)}
    made[3] = ("offset", vector(builder, "UOffsetTRelative", outputs))
    graphs = vector(builder, "UOffsetTRelative", [table(builder, made)])
    builder.Finish(table(builder, {3: ("offset", graphs)}), file_identifier=b"M001")
    return bytes(builder.Output())


def test_efficientdet_lite_with_metadata_is_read_bare(tmp_path: Path) -> None:
    """Labels with gaps, as COCO's 90, and the normalization stand in the file."""
    path = tmp_path / "m.tflite"
    save_ssd(path, sharp=True, metadata=labeled("labelmap.txt"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labelmap.txt", "???\nnut\n???\n")
    with import_model(path) as imported:
        manifest = imported.folder.manifest
    assert (manifest.input.mean, manifest.input.scale) == ((127.5,), (127.5,))
    boxes = found(path, "openvino")
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("nut",)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "lacks its options"),
        (b"\0", "options that cannot be read"),
        (b"\xff" * 64, "options that cannot be read"),
        (bytes(flexbuffers.Dumps({"num_classes": 0, "max_detections": 3})), "make no sense"),
        (bytes(flexbuffers.Dumps({"num_classes": 3, "max_detections": 10**9})), "make no sense"),
    ],
)
def test_a_post_processing_that_is_damaged_is_refused(
    tmp_path: Path, told: bytes | None, words: str
) -> None:
    """Options are read before any engine does so."""
    tensors = [Tensor("x", (1, 8, 8, 3)), Tensor("a", (2, 4), values=np.ones((2, 4), np.float32))]
    tensors += [
        Tensor("b", (1, 2, 4)),
        Tensor("c", (1, 2, 4)),
        *(Tensor(n, (1, 2)) for n in "defg"),
    ]
    operators = [(32, 0, (0, 0, 1), (4, 5, 6, 7)), (14, 0, (0,), (2,)), (14, 0, (0,), (3,))]
    name = "TFLite_Detection_PostProcess"
    path = save_tflite(tmp_path / "m.tflite", tensors, operators, outputs=4, custom=name, told=told)
    with pytest.raises(ModelError, match=words) as caught:
        describe(path)
    assert "\n" not in str(caught.value)


def test_a_manifest_by_hand_names_the_outputs(tmp_path: Path) -> None:
    """TensorFlow's order of a box is never taken for another one."""
    path = save_ssd(tmp_path / "m.tflite", sharp=True)
    with pytest.raises(ModelError, match=r"output\.names"):
        found(folder(path, "detection", 'decoder = "ssd"', 'layout = "nhwc"'), "openvino")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("???\nbolt\nnut\nwasher", "the first, '???', is the background: give first_label = -1"),
        ("background\nbolt\nnut\nwasher", "first_label = -1"),
        ("bolt\nnut", "expected 3 labels for the 3 classes of TFLite_Detection_PostProcess"),
    ],
)
def test_the_labelmap_of_google_coco_ssd_mobilenet_v1(
    tmp_path: Path, labels: str, said: str
) -> None:
    """Labels that are shifted, or another network's, are refused wherever a folder is read."""
    model = described(save_ssd(tmp_path / "m.tflite", sharp=True))
    model.joinpath("labels.txt").write_text(labels)
    manifest = model / "model.toml"
    manifest.write_text(manifest.read_text().replace("[output]", '[output]\nlabels = "labels.txt"'))
    for read in (describe, lambda path: found(path, "openvino")):
        with pytest.raises(ModelError) as caught:
            read(model)
        assert said in str(caught.value)
        assert str(manifest) in str(caught.value)
    if "-1" in said:
        manifest.write_text(manifest.read_text().replace("[output]", "[output]\nfirst_label = -1"))
        assert describe(model).missing[:-1] == ()
        boxes = found(model, "openvino")
        assert isinstance(boxes, Detections)
        assert boxes.labels == ("nut",)


@pytest.mark.parametrize(
    ("name", "lines"),
    [("labelmap.txt", "???\nbolt\nnut\nwasher"), ("labels.txt", "0 bolt\n1 nut\n2 x")],
)
def test_the_labels_beside_a_detector_are_read(tmp_path: Path, name: str, lines: str) -> None:
    """As they lie in Google's zip; another number of them is a question."""
    path = save_ssd(tmp_path / "m.tflite", sharp=True)
    path.with_name(name).write_text(lines)
    boxes = found(described(path), "openvino")
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("nut",)
    (tmp_path / "model.toml").unlink()
    path.with_name(name).write_text("bolt\nnut")
    (asked,) = (line for line in describe(path).missing if line.startswith("output.labels"))
    assert asked.endswith(f"the {name} beside it has 2 lines, the network has 3 classes")


def test_thesis_mobnetssd_outputs_are_int8_in_steps_of_their_own(tmp_path: Path) -> None:
    """Scores of 126 and classes of -26 were taken as they are: nothing was ever found."""
    model = described(save_ssd(tmp_path / "m.tflite", sharp=True, quantized=True))
    assert_found(model, atol=1)


def test_cat_feeder_one_class_number_below_the_threshold_is_no_difference(tmp_path: Path) -> None:
    """All classes 0 beside a single 1 have no cosine; health was degraded for good."""
    made = described(save_ssd(tmp_path / "m.tflite", sharp=True))
    model = load_model(load(made), [EngineChoice("openvino")], "picture")
    name = model.manifest.output.names["classes"]
    none = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), ())
    alike = {each.name: np.zeros((1, 10), np.float32) for each in model.engine.outputs}
    one = Answer(alike, none)
    other = Answer(alike | {name: np.eye(1, 10, dtype=np.float32)}, none)
    model.close()
    assert compare_answers(model, one, other).passed
    assert compare_answers(model, other, one).passed
