"""Masks, key points and oriented boxes of YOLOs, from a bare file to what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError
from edge_agent.core.masks import Mask
from edge_agent.core.types import Detections, Sample
from edge_agent.inference.agreement import Margin, compare_findings, compare_models
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import ModelFolder, load
from edge_agent.runtime.pipelines.draw import annotate, color_of
from tests.helpers.yolo_networks import (
    CLASSES,
    HEIGHT,
    WIDTH,
    Head,
    picture,
    save_yolo,
    unpacked,
)

ENGINES = ("onnxruntime", "openvino")
HEADS: tuple[Head, ...] = ("segment", "pose", "obb")
FRAME = (301, 157)
"""Width and height: letterboxed to 96 by 50, with 7 rows above and below."""
SCALE = np.array([96 / 301, 50 / 157], np.float32)


def loaded(folder: ModelFolder, engine: str = "onnxruntime") -> Model:
    return load_model(folder, [EngineChoice(engine)], "picture")


def seen(path: Path, engine: str, size: tuple[int, int] = FRAME, **asked: Any) -> Detections:
    """Infer a picture by a bare file or folder."""
    with import_model(path) as imported:
        model = loaded(imported.folder, engine)
        try:
            found = model.infer(Sample(picture(*size), 0, 0, 0.0), **asked).findings
        finally:
            model.close()
    assert isinstance(found, Detections)
    return found


def rows_of(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return what the network gives for the letterboxed picture, by another way than the agent."""
    import onnxruntime

    inside = cv2.resize(picture(*FRAME), (96, 50))
    boxed = cv2.copyMakeBorder(inside, 7, 7, 0, 0, cv2.BORDER_CONSTANT, value=(114,) * 3)
    fed = boxed[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255
    session = onnxruntime.InferenceSession(path)
    return dict(zip(("output0", "output1"), session.run(None, {"images": fed}), strict=False))


def match(found: Detections, boxes: NDArray[np.float32]) -> list[int]:
    """Return for each finding which of all boxes in the frame it is."""
    away = np.abs(found.boxes[:, None] - boxes).max(axis=2)
    assert (away.min(axis=1) < 0.1).all()
    return [int(row) for row in away.argmin(axis=1)]


def in_frame(points: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray((points - np.array([0, 7], np.float32)) / SCALE, np.float32)


def around(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return boxes in the frame, clipped there, of rows (n, …) that begin with middle and size."""
    half = rows[:, 2:4] / 2
    ends = [in_frame(rows[:, :2] + sign * half) for sign in (-1, 1)]
    return np.concatenate(ends, axis=1).clip(0, FRAME * 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_are_those_of_the_network_in_the_frame(tmp_path: Path, engine: str) -> None:
    """Beside weighted sums that are enlarged to the whole frame: IoU of 0.99, for every object."""
    path = save_yolo(tmp_path / "ships-seg.onnx", "segment")
    found, out = seen(path, engine), rows_of(path)
    rows, prototypes = out["output0"][0].T, out["output1"][0]
    assert len(found) > 3
    assert set(found.labels) == set(CLASSES)
    published = found.as_json()["detections"]
    for entry, row in zip(published, match(found, around(rows)), strict=True):
        sums = np.tensordot(rows[row, 6:], prototypes, 1)
        # To the input first: the frame lies between whole pixels of it.
        large = cv2.resize(sums, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR)
        wanted = cv2.resize(large[7:57], FRAME, interpolation=cv2.INTER_LINEAR) > 0
        x1, y1, x2, y2 = np.ceil(around(rows[row : row + 1])[0]).astype(int)
        box = np.zeros_like(wanted)
        box[y1:y2, x1:x2] = True
        given = unpacked(entry["mask"])
        assert given.shape == (FRAME[1], FRAME[0])
        assert (given & wanted & box).sum() >= 0.99 * (given | (wanted & box)).sum()


@pytest.mark.parametrize("engine", ENGINES)
def test_key_points_are_those_of_the_network_in_the_frame(tmp_path: Path, engine: str) -> None:
    """Within a tenth of a pixel, each with its score."""
    path = save_yolo(tmp_path / "ships-pose.onnx", "pose")
    found, rows = seen(path, engine), rows_of(path)["output0"][0].T
    assert found.points is not None
    assert len(found) > 3
    for points, row in zip(found.points, match(found, around(rows)), strict=True):
        wanted = rows[row, 6:].reshape(5, 3)
        assert_allclose(points[:, :2], in_frame(wanted[:, :2]), atol=0.1)
        assert_allclose(points[:, 2], wanted[:, 2], atol=1e-3)
    first = found.as_json()["detections"][0]["points"]
    assert [len(point) for point in first] == [3] * 5


@pytest.mark.parametrize("engine", ENGINES)
def test_corners_are_those_of_the_network_in_the_frame(tmp_path: Path, engine: str) -> None:
    """As OpenCV has the corners of a rotated rectangle; the box lies around them."""
    path = save_yolo(tmp_path / "ships-obb.onnx", "obb")
    found, rows = seen(path, engine), rows_of(path)["output0"][0].T
    assert found.corners is not None
    assert len(found) > 3
    quads = np.stack([cv2.boxPoints((row[:2], row[2:4], np.degrees(row[6]))) for row in rows])
    quads = in_frame(quads)
    boxes = np.concatenate((quads.min(axis=1), quads.max(axis=1)), axis=1).clip(0, FRAME * 2)
    for corners, row in zip(found.corners, match(found, boxes), strict=True):
        away = np.linalg.norm(corners[:, None] - quads[row], axis=2)
        assert away.min(axis=1).max() < 0.1
        assert away.min(axis=0).max() < 0.1


def test_of_oriented_boxes_those_that_cross_stay() -> None:
    """Two long boxes with the same middle suppress each other only where their angles agree."""
    from edge_agent.inference.decode.boxes import Hits, Selection, detections
    from edge_agent.inference.decode.decoder import Labels
    from edge_agent.inference.decode.tails import quads_of

    turned = np.array([[50, 50, 80, 10, angle] for angle in (0.7, 0.75, 2.3, 0.7)], np.float32)
    quads = quads_of(turned)
    boxes = np.concatenate((quads.min(axis=1), quads.max(axis=1)), axis=1)
    hits = Hits(np.arange(4), np.array([0, 0, 0, 1]), np.array([0.9, 0.8, 0.7, 0.6], np.float32))
    found = detections(
        "out",
        boxes,
        hits,
        Labels(("a", "b"), 0),
        Selection(0.7, False, 10),
        {"corners": quads},
        turned,
    )
    assert found.scores.tolist() == pytest.approx([0.9, 0.7, 0.6])
    assert found.corners is not None
    assert_allclose(found.corners[1], quads[2])


@pytest.mark.parametrize("head", HEADS)
def test_rows_with_suppression_inside_say_the_same(tmp_path: Path, head: Head) -> None:
    """An export without suppression to be done gives the very findings, as far as none was."""
    plain = seen(save_yolo(tmp_path / "a.onnx", head), "onnxruntime")
    inside = seen(save_yolo(tmp_path / "b.onnx", head, inside=True), "onnxruntime")
    last = {json_of(inside, index) for index in range(len(inside))}
    shared = [json_of(plain, index) in last for index in range(min(4, len(plain)))]
    assert all(shared)


def json_of(found: Detections, index: int) -> str:
    return str(found.select(np.array([index])).as_json(digits=0))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_a_picture_without_objects_is_a_result(tmp_path: Path, head: Head, *, inside: bool) -> None:
    """Of key points it was an error, and the frame was dropped."""
    path = save_yolo(tmp_path / "m.onnx", head, inside=inside)
    assert len(seen(path, "onnxruntime", threshold=1.0)) == 0


@pytest.mark.parametrize("head", HEADS)
def test_a_region_and_a_filter_carry_everything_along(tmp_path: Path, head: Head) -> None:
    """What is found in a region is in pixels of the whole frame, its mask too."""
    path = save_yolo(tmp_path / "m.onnx", head)
    whole = seen(path, "onnxruntime", (192, 128))
    wide = np.full((200, 300, 3), 9, np.uint8)
    wide[30:158, 50:242] = picture(192, 128)
    with import_model(path) as imported:
        model = loaded(imported.folder)
        found = model.infer(Sample(wide, 0, 0, 0.0), region=(50, 30, 242, 158)).findings
        model.close()
    assert isinstance(found, Detections)
    assert len(found) == len(whole) > 0
    assert_allclose(found.boxes, whole.boxes + np.array([50, 30] * 2), atol=1e-3)
    for one, other in ((found.corners, whole.corners), (found.points, whole.points)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert_allclose(one[..., :2], other[..., :2] + np.array([50, 30]), atol=1e-3)
    if found.masks is not None and whole.masks is not None:
        mine = unpacked(found.masks[0].as_json())
        assert mine.shape == (200, 300)
        assert (mine[30:158, 50:242] == unpacked(whole.masks[0].as_json())).all()
    assert len(found.select(np.array([0])).as_json()["detections"]) == 1


def test_a_moved_mask_or_another_point_is_another_finding(tmp_path: Path) -> None:
    """Golden outputs and other engines are held to masks, points and corners, not boxes alone."""
    for head in HEADS:
        with import_model(save_yolo(tmp_path / f"{head}.onnx", head)) as imported:
            model, other = (loaded(imported.folder, engine) for engine in ENGINES)
            sample = Sample(picture(*FRAME), 0, 0, 0.0)
            tensors = model.prepare_data(sample.data).tensors
            assert compare_models(model, other, tensors).passed
            found = model.infer(sample).findings
            assert isinstance(found, Detections)
            wrong = {
                "segment": {
                    "masks": tuple(Mask(m.left, m.top, ~m.bits, m.size) for m in found.masks or ())
                },
                "pose": {"points": None if found.points is None else found.points + 80},
                "obb": {"corners": None if found.corners is None else found.corners + 80},
            }[head]
            changed = Detections(found.boxes, found.scores, found.labels, **wrong)  # type: ignore[arg-type]
            assert compare_findings(found, found, Margin(0.05)).passed
            assert not compare_findings(found, changed, Margin(0.05)).passed
            model.close()
            other.close()


def test_masks_are_drawn_where_they_are() -> None:
    """A pixel within the mask is tinted by its label's color, one outside is not."""
    bits = np.zeros((40, 40), bool)
    bits[10:30, 10:30] = True
    corners = np.array([[[60, 10], [90, 40], [80, 50], [50, 20]]], np.float32)
    gray = np.full((100, 120, 3), 100, np.uint8)
    box, score = np.array([[20, 20, 60, 60]], np.float32), np.array([0.9], np.float32)
    tinted = annotate(gray, Detections(box, score, ("a",), masks=(Mask(20, 20, bits, (100, 120)),)))
    assert tinted[45, 45].tolist() == [50 + part // 2 for part in color_of("a")]
    assert tinted[55, 55].tolist() == [100] * 3
    turned = annotate(gray, Detections(box, score, ("a",), corners=corners))
    assert turned[40, 90].tolist() != [100] * 3
    assert turned[60, 40].tolist() == [100] * 3


RUNS: tuple[tuple[tuple[int, int, int, int], list[int]], ...] = (
    ((0, 0, 3, 4), [0, 12]),
    ((1, 1, 2, 3), [4, 1, 2, 1, 4]),
    ((0, 2, 3, 4), [6, 6]),
    ((2, 0, 3, 2), [2, 1, 2, 1, 6]),
    ((0, 0, 0, 0), [12]),
)


@pytest.mark.parametrize(("part", "runs"), RUNS)
def test_run_lengths_are_cocos(part: tuple[int, int, int, int], runs: list[int]) -> None:
    """Column after column, off first; runs to the lower edge go on in the next column."""
    top, left, bottom, right = part
    bits = np.ones((bottom - top, right - left), bool)
    mask = Mask(left, top, bits, (3, 4))
    assert mask.runs() == runs
    whole = np.zeros((3, 4), bool)
    whole[top:bottom, left:right] = True
    assert (unpacked(mask.as_json()) == whole).all()


def test_compressed_counts_are_pycocotools_own() -> None:
    """The text is what `pycocotools.mask.encode` gave for this mask: of 640 by 480, a disk."""
    down, across = np.mgrid[0:480, 0:640]
    bits = (across - 300) ** 2 + (down - 200) ** 2 < 20**2
    part = bits[181:220, 281:320]
    assert Mask(281, 181, part, (480, 640)).as_json() == {"size": [480, 640], "counts": DISK}


DISK = "RmS4=a>4L4M2M4M2N2O0O2N2O0O2O0O2O000000000000000000000001N101N101N2N101N2N3L3N3L4LPje4"


@pytest.mark.parametrize(
    ("head", "output", "words"),
    [
        (
            "segment",
            'labels = ["ship"]',
            "expected rows of 5 numbers of box and classes and 8 weights",
        ),
        ("pose", 'labels = ["a", "b"]', "output.points: is missing"),
        ("pose", 'labels = ["a", "b", "c"]\npoints = 5', "expected 10 or 15 numbers for 5 points"),
        ("pose", "points = 5", "output.labels: is missing"),
        ("pose", 'labels = ["a", "b"]\npoints = 4', "4 points of x, y or of x, y, score"),
        ("obb", 'labels = ["a"]', "expected rows of 5 numbers of box and classes and an angle"),
    ],
)
def test_a_manifest_that_does_not_fit_is_one_line(
    tmp_path: Path, head: Head, output: str, words: str
) -> None:
    """Numbers that the labels do not account for are never taken for something else."""
    task = {"segment": "instance-segmentation", "pose": "keypoints", "obb": "obb"}[head]
    text = f'name = "m"\nversion = "1"\ntask = "{task}"\nfile = "model.onnx"\n'
    text += f'[output]\ndecoder = "yolov8"\n{output}\n'
    (tmp_path / "model.toml").write_text(text)
    save_yolo(tmp_path / "model.onnx", head)
    with pytest.raises(ModelError) as caught:
        loaded(load(tmp_path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_of_open_width_have_no_points(tmp_path: Path) -> None:
    """Ultralytics' export with dynamic=True: labels were said to be missing."""
    network = onnx.load(save_yolo(tmp_path / "model.onnx", "pose"))
    (output,) = network.graph.output
    width = output.type.tensor_type.shape.dim[1].dim_value
    network.graph.initializer.append(
        onnx.numpy_helper.from_array(np.ones(width, np.float32), "all")
    )
    network.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "first"))
    network.graph.node.extend(
        [
            onnx.helper.make_node("NonZero", ["all"], ["kept"]),
            onnx.helper.make_node("Squeeze", ["kept", "first"], ["columns"]),
            onnx.helper.make_node("Gather", [output.name, "columns"], ["open"], axis=1),
        ]
    )
    output.name = "open"
    output.type.tensor_type.shape.dim[1].dim_param = "width"
    onnx.save(network, tmp_path / "model.onnx")
    (tmp_path / "model.toml").write_text(
        'name = "m"\nversion = "1"\ntask = "keypoints"\nfile = "model.onnx"\n'
        '[output]\ndecoder = "yolov8"\nlabels = ["a", "b"]\npoints = 5\n'
    )
    with pytest.raises(ModelError, match=r"a row has is open.*; export the network for one size"):
        loaded(load(tmp_path))


def test_a_file_without_metadata_has_the_draft_of_its_task(tmp_path: Path) -> None:
    """Rows with prototypes are a segmentation's; what the labels decide is asked."""
    import onnx

    from edge_agent.models.describing import describe

    for inside, decoder in ((False, "yolov8"), (True, "yolo-e2e")):
        path = save_yolo(tmp_path / "m.onnx", "segment", inside=inside)
        model = onnx.load(path)
        del model.metadata_props[:]
        onnx.save(model, path)
        draft = describe(path).draft
        assert 'task = "instance-segmentation"' in draft
        assert f'decoder = "{decoder}"' in draft
        assert "\n    'output.labels: " in draft
