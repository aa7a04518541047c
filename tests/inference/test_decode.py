"""Decoding: numbers worked out by hand, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError, SampleError
from edge_agent.core.types import Anomaly, Classes, Detections, RawTensors, TensorSpec, Values
from edge_agent.inference.decode.boxes import (
    MOST_CANDIDATES,
    Hits,
    Selection,
    best_classes,
    detections,
)
from edge_agent.inference.decode.decoder import Decoder, Labels, build_decoder
from edge_agent.models.manifest import parse

Shape = tuple[int | None, ...]
SIZE = (96, 64)
LEVELS: dict[str, Shape] = {
    f"{part}_{stride}": (1, rows, width)
    for stride, rows in ((8, 96), (16, 24), (32, 6))
    for part, width in (("a", 2), ("b", 32))
}
"""NanoDet's outputs of two classes, as they were before -Plus; their names say nothing."""
LEVELS_BY_NAME: dict[str, Any] = {
    name.replace("a_", "cls_").replace("b_", "dis_"): shape for name, shape in LEVELS.items()
}
TASKS = {
    "softmax": "classification",
    "logits": "classification",
    "reconstruction": "anomaly",
    "score": "anomaly",
    "raw": "raw",
}


def build(
    decoder: str,
    outputs: Mapping[str, Any],
    *,
    task: str | None = None,
    entries: dict[str, Any] | None = None,
    fed: tuple[Shape, str] = ((1, 3, 64, 96), "float32"),
    size: tuple[int, int] | None = SIZE,
    **output: Any,
) -> Decoder:
    """Build a decoder for outputs of given shapes, or (shape, type); float32 where not said."""
    manifest = parse(
        {
            "name": "m",
            "version": "1",
            "task": task or TASKS.get(decoder, "detection"),
            "file": "m.onnx",
            "input": entries or {},
            "output": {"decoder": decoder, "threshold": 0.5, **output},
        },
        "model.toml",
    )
    labels = manifest.output.labels
    assert isinstance(labels, tuple)
    specs = tuple(
        TensorSpec(name, *(kind if isinstance(kind[-1], str) else (kind, "float32")))
        for name, kind in outputs.items()
    )
    return build_decoder(manifest, labels, (TensorSpec("x", *fed),), specs, size)


def read(
    decoder: Decoder, outputs: dict[str, Any], *, given: Any = None, threshold: float = 0.0
) -> Any:
    """Call a decoder on plain lists or arrays."""
    tensors = {
        name: value if isinstance(value, np.ndarray) else np.array(value, np.float32)
        for name, value in outputs.items()
    }
    return decoder(tensors, {} if given is None else {"x": given}, threshold)


# Classification


def test_classes_come_best_first_and_at_most_top_k() -> None:
    """Classes are sorted, cut to top_k, and none is below the threshold."""
    decoder = build("softmax", {"p": (1, 4)}, labels=("a", "b", "c", "d"), top_k=3)
    chances = [[0.1, 0.5, 0.15, 0.25]]
    assert read(decoder, {"p": chances}).labels == ("b", "d", "c")
    found = read(decoder, {"p": chances}, threshold=0.2)
    assert found == Classes(("b", "d"), (0.5, 0.25))


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1, 1, 4), (1, 4, 1), (1, 4, 1, 1), (1, 1, 1, 4)])
def test_a_vector_is_found_in_every_shape(shape: Shape) -> None:
    """Axes of one around the classes do not count."""
    decoder = build("softmax", {"p": shape}, labels=("a", "b", "c", "d"), top_k=1)
    found = read(
        decoder, {"p": np.array([0, 0, 1, 0], np.float32).reshape([n or 1 for n in shape])}
    )
    assert found == Classes(("c",), (1.0,))


def test_logits_get_their_softmax() -> None:
    """Logits ln 1, ln 2, ln 5 are chances of 1/8, 2/8 and 5/8; huge ones do not overflow."""
    decoder = build("logits", {"y": (1, 3)}, labels=("a", "b", "c"))
    found = read(decoder, {"y": np.log(np.array([[1, 2, 5]], np.float32))})
    assert found.labels == ("c", "b", "a")
    assert_allclose(found.scores, [5 / 8, 2 / 8, 1 / 8], rtol=1e-6)
    assert read(decoder, {"y": [[1e30, 0, -1e30]]}).scores[0] == 1.0


def test_one_logit_gets_its_sigmoid() -> None:
    """A single logit of ln 3 is a chance of 3/4."""
    decoder = build("logits", {"y": (1, 1)}, labels=("person",))
    found = read(decoder, {"y": np.log(np.array([[3]], np.float32))})
    assert_allclose(found.scores, [0.75], rtol=1e-6)


def test_integers_are_dequantized() -> None:
    """Integers are (value - zero_point) * scale; floats are taken as they are."""
    settings: dict[str, Any] = {"labels": ("a", "b"), "scale": 1 / 256, "zero_point": -128}
    whole = build("softmax", {"p": ((1, 2), "int8")}, **settings)
    found = read(whole, {"p": np.array([[-64, 64]], np.int8)})
    assert found == Classes(("b", "a"), (0.75, 0.25))
    floats = build("softmax", {"p": (1, 2)}, **settings)
    assert read(floats, {"p": [[0.25, 0.75]]}) == Classes(("b", "a"), (0.75, 0.25))


@pytest.mark.parametrize(
    ("first_label", "labels", "expected"),
    [
        (0, ("background", "cat", "dog"), ("background", "dog", "cat")),
        (1, ("cat", "dog"), ("dog", "cat")),
        (-1, ("none", "background", "cat", "dog"), ("background", "dog", "cat")),
        (0, (), ("0", "2", "1")),
    ],
)
def test_first_label_shifts_the_labels(
    first_label: int, labels: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """Class first_label is labels[0]; classes before it have no label and are left out."""
    decoder = build("softmax", {"p": (1, 3)}, labels=labels, first_label=first_label)
    assert read(decoder, {"p": [[0.5, 0.2, 0.3]]}).labels == expected


# Anomalies, values, raw tensors


def test_a_float_autoencoder_is_compared_as_it_is() -> None:
    """Mean squared distance of what went in and what came out, in the network's own units."""
    decoder = build(
        "reconstruction",
        {"y": (1, 4)},
        fed=((1, 4), "float32"),
        size=None,
        entries={"mean": 5.0, "scale": 2.0},
    )
    given = np.array([[1, 2, 3, 4]], np.float32)
    found = read(decoder, {"y": [[1, 2, 3, 8]]}, given=given, threshold=3.0)
    assert found == Anomaly(4.0, 3.0)
    assert found.anomalous


def test_an_integer_autoencoder_is_compared_in_source_units() -> None:
    """Input q * scale + mean and output (q - zero_point) * scale, their distance over scale."""
    decoder = build(
        "reconstruction",
        {"y": ((1, 2), "int8")},
        fed=((1, 2), "int8"),
        size=None,
        entries={"mean": -10.0, "scale": 0.5},
        scale=0.25,
        zero_point=4.0,
    )
    # In: 40 * 0.5 - 10 = 10, 20 * 0.5 - 10 = 0. Out: (44 - 4) * 0.25 = 10, (8 - 4) * 0.25 = 1.
    given = np.array([[40, 20]], np.int8)
    found = read(decoder, {"y": np.array([[44, 8]], np.int8)}, given=given)
    assert found.score == pytest.approx((0 + (1 / 0.5) ** 2) / 2)


@pytest.mark.parametrize(
    ("layout", "window", "made"),
    [
        ("ct", 3, [[0, 0, 0, 10, 10, 10]]),
        ("tc", 3, [[0, 10, 0, 10, 0, 10]]),
        (None, None, [[0, 10, 0, 10, 0, 10]]),
    ],
)
def test_an_autoencoder_has_a_scale_for_each_channel(
    layout: str | None, window: int | None, made: list[list[float]]
) -> None:
    """A channel's own mean and scale apply where the layout has put that channel."""
    entries: dict[str, Any] = {"mean": [0.0, 10.0], "scale": [1.0, 4.0]}
    entries |= {"layout": layout} if layout else {}
    entries |= {"window": window} if window else {}
    decoder = build(
        "reconstruction",
        {"y": ((1, 6), "int8")},
        fed=((1, 6), "int8"),
        size=None,
        entries=entries,
    )
    # All zeros in: channel 0 reads 0, channel 1 reads 10; that is what came out as well.
    given = np.zeros((1, 6), np.int8)
    assert read(decoder, {"y": np.array(made, np.int8)}, given=given).score == 0.0
    # Off by 4 on each number of channel 1 is off by 1 of its scale: 3 of 6 numbers.
    off = np.array(made, np.int8) + np.array(made, np.int8) // 10 * 4
    assert read(decoder, {"y": off}, given=given).score == pytest.approx(0.5)


def test_a_score_is_an_anomaly_or_a_value() -> None:
    """One number is an anomaly's score, or a value by its label, else by its output's name."""
    outputs: dict[str, Any] = {"angle": (1, 1)}
    number = {"angle": [[12.5]]}
    assert read(build("score", outputs), number, threshold=20.0) == Anomaly(12.5, 20.0)
    value = build("score", outputs, task="regression")
    assert read(value, number) == Values({"angle": 12.5})
    named = build("score", outputs, task="regression", labels=("pitch",))
    assert read(named, number) == Values({"pitch": 12.5})


def test_a_class_beside_a_score_is_not_taken_for_it() -> None:
    """Detectors of scikit-learn give both; an integer can be named, and one alone is the score."""
    outputs: dict[str, Any] = {"label": ((None, 1), "int64"), "x": (None, 1)}
    both = {"label": np.array([[-1]], np.int64), "x": [[0.25]]}
    assert read(build("score", outputs), both, threshold=0.5) == Anomaly(0.25, 0.5)
    named = build("score", outputs, names={"score": "label"})
    assert read(named, both, threshold=0.5) == Anomaly(-1.0, 0.5)
    alone = build("score", {"label": ((1, 1), "int64")})
    assert read(alone, {"label": np.array([[3]], np.int64)}, threshold=0.5) == Anomaly(3.0, 0.5)


def test_raw_gives_tensors_as_they_are() -> None:
    """Task raw passes every output on, class numbers and indices neither shifted nor scaled."""
    decoder = build("raw", {"mask": ((1, 2), "int64"), "y": (1, 1)}, scale=0.5, zero_point=1.0)
    mask = np.array([[3, 4]])
    found = read(decoder, {"mask": mask, "y": [[0.5]]})
    assert isinstance(found, RawTensors)
    assert found.tensors["mask"] is mask
    assert list(found.tensors) == ["mask", "y"]


def test_regression_names_its_numbers() -> None:
    """Labels name all numbers in order; without any, outputs do, with an index where needed."""
    outputs: dict[str, Any] = {"p": (1, 1), "xy": (1, 2)}
    given = {"p": [[1.0]], "xy": [[2.0, 3.0]]}
    plain = build("raw", outputs, task="regression")
    assert read(plain, given) == Values({"p": 1.0, "xy[0]": 2.0, "xy[1]": 3.0})
    named = build("raw", outputs, task="regression", labels=("a", "b", "c"))
    assert read(named, given) == Values({"a": 1.0, "b": 2.0, "c": 3.0})


# Boxes


def test_suppression_is_by_class_and_keeps_the_best() -> None:
    """Of overlapping boxes of a class the best stays; another class is none, but if agnostic."""
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [40, 40, 50, 50]], np.float32)
    hits = Hits(np.arange(4), np.array([0, 0, 1, 0]), np.array([0.6, 0.9, 0.7, 0.8], np.float32))
    labels = Labels(("a", "b"), 0)
    found = detections("y", boxes, hits, labels, Selection(0.5, agnostic=False, most=9))
    assert found.labels == ("a", "a", "b")
    assert_allclose(found.scores, [0.9, 0.8, 0.7])
    assert_allclose(found.boxes, boxes[[1, 3, 2]])
    found = detections("y", boxes, hits, labels, Selection(0.5, agnostic=True, most=9))
    assert_allclose(found.scores, [0.9, 0.8])
    found = detections("y", boxes, hits, labels, Selection(1.0, agnostic=False, most=3))
    assert_allclose(found.scores, [0.9, 0.8, 0.7])


def test_a_box_without_area_is_none() -> None:
    """What a network gives as a line, a point or inside out is not published."""
    boxes = np.array([[0, 0, 9, 9], [5, 5, 5, 9], [5, 5, 9, 5], [9, 9, 5, 5]], np.float32)
    hits = Hits(np.arange(4), np.zeros(4, np.intp), np.full(4, 0.9, np.float32))
    for iou in (0.5, None):
        found = detections("y", boxes, hits, Labels((), 0), Selection(iou, agnostic=False, most=9))
        assert found.boxes.tolist() == [[0, 0, 9, 9]]


@pytest.mark.parametrize(
    ("decoder", "width", "most"),
    [("yolov8", 5, 300), ("yolov5", 6, 300), ("yolo-e2e", 6, 300), ("rtdetr", 6, 300)],
)
def test_as_many_boxes_stay_as_the_family_keeps(decoder: str, width: int, most: int) -> None:
    """Ultralytics keeps the best 300; a manifest's max_detections keeps fewer or more."""
    count = 1000
    rows = np.zeros((1, count, width), np.float32)
    rows[0, :, 4:] = np.linspace(0.5, 1, count, dtype=np.float32)[:, None]
    rows[0, :, 0], rows[0, :, 1:4] = np.arange(count) * 8, (20, 4, 4)
    if width == 6:
        rows[0, :, 5] = 0
    if decoder == "yolo-e2e":
        rows[0, :, 2:4] = rows[0, :, :2] + 4
    if decoder == "yolov5":
        rows[0, :, 5] = 1
    outputs: dict[str, Any] = {"y": (1, count, width)}
    for given, kept in ((0, most), (7, 7), (900, 900)):
        model = build(decoder, outputs, labels=("part",), max_detections=given)
        found = read(model, {"y": rows}, threshold=0.4)
        assert len(found) == kept
        assert_allclose(found.scores, np.linspace(1, 0.5, count)[:kept], atol=1e-5)


def test_a_detector_that_ends_in_boxes_is_suppressed_where_asked() -> None:
    """Of an SSD's finished boxes an `iou` in the manifest leaves one of two that overlap."""
    rows = [[0, 0, 0.9, 0.1, 0.1, 0.5, 0.5], [0, 0, 0.8, 0.1, 0.1, 0.5, 0.52]]
    table = np.array(rows, np.float32)[None, None]
    outputs: dict[str, Any] = {"y": (1, 1, 2, 7)}
    for iou, kept in ((None, 2), (0.5, 1), (1.0, 2)):
        assert len(read(build("ssd", outputs, iou=iou), {"y": table}, threshold=0.4)) == kept


def test_a_threshold_of_zero_does_not_flood() -> None:
    """However many boxes pass, only the best few thousand are compared with each other."""
    count = 20_000
    scores = np.linspace(0, 1, count, dtype=np.float32)
    boxes = np.arange(count, dtype=np.float32)[:, None] * 20 + np.array([0, 0, 9, 9], np.float32)
    hits = Hits(np.arange(count), np.zeros(count, np.intp), scores)
    selection = Selection(0.5, agnostic=False, most=MOST_CANDIDATES)
    found = detections("y", boxes, hits, Labels((), 0), selection)
    assert len(found) == MOST_CANDIDATES
    assert_allclose(found.scores, scores[::-1][:MOST_CANDIDATES])


def test_best_classes_agree_with_a_plain_search() -> None:
    """The quick search finds what looking at every row finds, first of equals included."""
    scores = np.random.default_rng(1).random((500, 7)).astype(np.float32).round(1)
    found = best_classes(scores, 0.9)
    expected = [row for row in range(500) if max(scores[row]) >= np.float32(0.9)]
    assert found.rows.tolist() == expected
    assert found.classes.tolist() == [int(np.argmax(scores[row])) for row in expected]
    assert found.scores.tolist() == [float(max(scores[row])) for row in expected]


def test_boxes_of_the_background_are_left_out() -> None:
    """With first_label 1 a detection of class 0 has no label and is none."""
    decoder = build("yolov5", {"y": (1, 2, 7)}, labels=("cat",), first_label=1)
    rows = [[[10, 10, 4, 4, 1, 0.9, 0], [30, 10, 4, 4, 1, 0, 0.8]]]
    found = read(decoder, {"y": rows}, threshold=0.5)
    assert found.labels == ("cat",)
    assert_allclose(found.scores, [0.8])


def test_a_query_has_each_class_that_reaches_the_threshold() -> None:
    """With sigmoid a box may have several labels, with softmax one; the threshold itself counts."""
    boxes = [[[0.5, 0.5, 0.5, 0.5]]]
    outputs: dict[str, Any] = {"pred_boxes": (1, 1, 4), "logits": (1, 1, 3)}
    sigmoid = build("detr", outputs, labels=("a", "b", "c"))
    found = read(sigmoid, {"pred_boxes": boxes, "logits": [[[0.0, 2.0, -0.1]]]}, threshold=0.5)
    assert found.labels == ("b", "a")
    assert_allclose(found.boxes, [[24, 16, 72, 48]] * 2)
    softmax = build("detr", outputs, labels=("a", "b"))
    found = read(softmax, {"pred_boxes": boxes, "logits": [[[2.0, 2.1, 0.0]]]}, threshold=0.1)
    assert found.labels == ("b",)


def test_logits_of_rf_detr_are_sigmoids() -> None:
    """Its first class of as many as labels and one has no label; no class of it is "no object"."""
    outputs: dict[str, Any] = {"dets": (1, 1, 4), "labels": (1, 1, 3)}
    decoder = build("detr", outputs, labels=("a", "b"), first_label=1)
    logits = [[[-3.0, 0.0, 2.0]]]
    found = read(decoder, {"dets": [[[0.5] * 4]], "labels": logits}, threshold=0.5)
    assert found.labels == ("b", "a")


def test_the_best_of_all_queries_and_classes_are_kept() -> None:
    """A threshold of 0 gives the best 300 labels of all, as the published post-processing does."""
    logits = np.random.default_rng(2).normal(size=(1, 200, 7)).astype(np.float32)
    outputs: dict[str, Any] = {"pred_boxes": (1, 200, 4), "logits": (1, 200, 7)}
    decoder = build("detr", outputs, labels=tuple("abcdefg"))
    found = read(decoder, {"pred_boxes": np.ones((1, 200, 4), np.float32), "logits": logits})
    best = np.argsort(-logits.reshape(-1), kind="stable")[:300]
    assert found.labels == tuple("abcdefg"[place % 7] for place in best)
    assert_allclose(found.scores, 1 / (1 + np.exp(-logits.reshape(-1)[best])), rtol=1e-5)


@pytest.mark.parametrize(
    ("names", "classes"), [({}, "labels"), ({"boxes": "b", "classes": "c"}, "c")]
)
@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_boxes_of_open_rows_are_settled_by_what_lies_beside_them(
    names: dict[str, str], classes: str, kind: str
) -> None:
    """Named boxes float32[?, ?] are of 4 where there are scores beside them, else of 5."""
    boxes = names.get("boxes", "boxes")
    open_rows: dict[str, Any] = {boxes: (None, None), classes: ((None,), kind)}
    settings: dict[str, Any] = {"labels": ("a", "b"), "names": names}
    indices = np.array([1, 0], kind)
    found = [[0, 0, 48, 32, 0.9], [24, 32, 48, 64, 0.6]]
    of_five = build("ssd", open_rows, **settings)
    five = read(of_five, {boxes: found, classes: indices}, threshold=0.5)
    of_four = build("ssd", open_rows | {"scores": (None,)}, **settings)
    corners, scores = [row[:4] for row in found], [row[4] for row in found]
    four = read(of_four, {boxes: corners, classes: indices, "scores": scores}, threshold=0.5)
    for detections_ in (five, four):
        assert detections_.labels == ("b", "a")
        assert_allclose(detections_.boxes, corners)
    with pytest.raises(SampleError, match=rf"output {boxes}: expected .*\[\?, 4\], found \[2, 5\]"):
        read(of_four, {boxes: found, classes: indices, "scores": scores})
    with pytest.raises(SampleError, match=rf"output {boxes}: expected .*\[\?, 5\], found \[2, 4\]"):
        read(of_five, {boxes: corners, classes: indices})


def test_levels_are_found_without_labels() -> None:
    """Without labels, 8 bins tell distances from class scores, and classes are numbers."""
    tensors = {
        name: np.zeros([n or 1 for n in shape], np.float32) for name, shape in LEVELS.items()
    }
    tensors["a_32"][0, 5, 1] = 0.75
    found = read(build("nanodet", LEVELS), tensors, threshold=0.5)
    assert found.labels == ("1",)
    # Bins of equal weight have a mean of 3.5 strides; row 1, column 2 has its middle at (80, 48).
    assert_allclose(found.boxes, [[80 - 112, 48 - 112, 80 + 112, 48 + 112]])


NAN, INF = float("nan"), float("inf")


def spoilt(shape: tuple[int, ...], at: tuple[int, ...], value: float) -> NDArray[np.float32]:
    """Make zeros with one value in them."""
    out = np.zeros(shape, np.float32)
    out[at] = value
    return out


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("decoder", "outputs", "bad", "at"),
    [
        ("yolox", {"y": (1, 126, 7)}, "y", (0, 5, 6)),
        ("yolov5", {"y": (1, 9, 7)}, "y", (0, 5, 4)),
        ("yolov8", {"y": (1, 6, 9)}, "y", (0, 5, 4)),
        ("yolov8", {"y": (1, 9, 6)}, "y", (0, 5, 4)),
        ("yolo-e2e", {"y": (1, 9, 6)}, "y", (0, 5, 4)),
        ("yolo-e2e", {"y": (9, 6)}, "y", (5, 4)),
        ("nanodet", {"y": (1, 126, 34)}, "y", (0, 5, 1)),
        ("nanodet", LEVELS, "a_16", (0, 5, 1)),
        ("ssd", {"y": (1, 1, 9, 7)}, "y", (0, 0, 5, 2)),
        ("ssd", {"boxes": (1, 9, 5)}, "boxes", (0, 5, 4)),
        ("ssd", {"boxes": (1, 9, 4), "scores": (1, 9, 2)}, "scores", (0, 5, 1)),
        ("detr", {"pred_boxes": (1, 9, 4), "logits": (1, 9, 2)}, "logits", (0, 5, 1)),
        ("softmax", {"y": (1, 2)}, "y", (0, 1)),
        ("logits", {"y": (1, 2)}, "y", (0, 1)),
        ("raw", {"y": (1, 2)}, "y", (0, 1)),
    ],
)
def test_scores_that_are_not_finite_are_an_error(
    decoder: str, outputs: dict[str, Any], bad: str, at: tuple[int, ...], value: float
) -> None:
    """A NaN or infinity among the scores names its output; it never passes as "nothing found"."""
    labels = () if decoder == "raw" else ("a", "b")
    built = build(decoder, outputs, labels=labels)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}
    tensors[bad] = spoilt(outputs[bad], at, value)
    with pytest.raises(SampleError, match=rf"output {bad}: .* not finite"):
        read(built, tensors, threshold=0.5)


@pytest.mark.parametrize("decoder", ["ultraface", "yunet", "reconstruction", "score"])
def test_nan_is_an_error_in_the_other_decoders_too(decoder: str) -> None:
    """Also face scores, reconstructions and single scores must be finite."""
    fed = np.zeros((1, 3, 64, 96), np.float32)
    families: dict[str, dict[str, tuple[int, ...]]] = {
        "ultraface": {"scores": (1, 9, 2), "boxes": (1, 9, 4)},
        "yunet": {
            f"{part}_{stride}": (1, rows, width)
            for stride, rows in ((8, 96), (16, 24), (32, 6))
            for part, width in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10))
        },
        "reconstruction": {"scores": (1, 3, 64, 96)},
        "score": {"scores": (1, 1)},
    }
    outputs = families[decoder]
    tensors = {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}
    bad = "obj_16" if decoder == "yunet" else "scores"
    tensors[bad][...] = NAN
    with pytest.raises(SampleError, match=rf"output {bad}: .* not finite"):
        read(build(decoder, outputs), tensors, given=fed, threshold=0.5)


def test_a_kept_box_must_be_finite() -> None:
    """A confident box with an infinite corner is an error; one that is not kept is ignored."""
    decoder = build("yolov5", {"y": (1, 2, 6)})
    good, bad = [10, 10, 4, 4, 0.9, 0.9], [INF, 10, 4, 4, 0.9, 0.9]
    with pytest.raises(SampleError, match=r"output y: .* not finite"):
        read(decoder, {"y": [[good, bad]]}, threshold=0.5)
    bad[4] = 0.1
    assert len(read(decoder, {"y": [[good, bad]]}, threshold=0.5)) == 1


def test_an_absurd_yolox_size_is_an_error_and_no_warning() -> None:
    """A log-size whose exponential overflows is named instead of becoming an endless box."""
    decoder = build("yolox", {"y": (1, 126, 6)})
    rows = spoilt((1, 126, 6), (0, 0, 2), 1000)
    rows[0, 0, 4:] = 1
    with pytest.raises(SampleError, match=r"output y: .* not finite"):
        read(decoder, {"y": rows}, threshold=0.5)


# What is refused at load


@pytest.mark.parametrize(
    ("decoder", "outputs", "settings", "message"),
    [
        (
            "yolox",
            {"y": (1, 125, 7)},
            {},
            "expected 126 .strides 8, 16, 32. or 128 .* an input of 96x64, found 125",
        ),
        ("yolox", {"y": (1, 126, 5)}, {}, "at least 1 class, found 5"),
        (
            "yolox",
            {"y": (1, 6, 126)},
            {"labels": ("a", "b")},
            r"'yolox' expects .* of shape \[1, N, 7\], a row for each box, .*'yolov8' takes",
        ),
        ("yolox", {"y": (1, 6, 960)}, {}, r"of shape \[1, N, 5 \+ classes\], .*found y float32"),
        ("yolov5", {"y": (1, 6, 960)}, {"labels": ("a", "b")}, "decoder 'yolov8' takes such"),
        (
            "yolov8",
            {"y": (1, 8400, 85)},
            {"labels": tuple(map(str, range(80)))},
            r"decoder 'yolov8' \(81 labels\), or .* 80 classes .* \(80 labels\); found 80 labels",
        ),
        (
            # One label short, boxes as columns: no decoder with an objectness takes these.
            "yolov8",
            {"y": (1, 9, 960)},
            {"labels": ("a", "b", "c", "d")},
            r"output.labels: expected 5 labels for the 5 classes of output y .*, found 4$",
        ),
        (
            "yolov5",
            {"y": (1, 960, 9)},
            {"labels": ("a", "b", "c", "d", "e")},
            r"5 classes by decoder 'yolov8' \(5 labels\), .* 4 classes .* found 5 labels",
        ),
        (
            "yolox",
            {"y": (126, 7)},
            {},
            r"expects predictions of shape \[1, \?, \?\], found y float32",
        ),
        (
            "yolox",
            {"y": (1, 126, 7)},
            {"labels": ("a",)},
            r"output.labels: expected 2 labels for the 2 classes of output y .*, found 1",
        ),
        (
            "yolov5",
            {"y": (1, 9, 7)},
            {"labels": ("a", "b", "c"), "first_label": 1},
            r"expected 1 labels for the 2 classes of .* \(first_label 1\), found 3",
        ),
        (
            "yolov8",
            {"y": (1, 84, 8400)},
            {"labels": ("a",)},
            "expected 80 labels for the 80 classes of .*, found 1",
        ),
        ("yolov8", {"y": (1, 9, 9)}, {}, "output.labels must say how many classes"),
        ("yolov8", {"y": (1, 4, 900)}, {}, "at least 1 class"),
        ("yolo-e2e", {"y": (1, 300, 7)}, {}, r"expects predictions of shape \[1, \?, 6\]"),
        ("nanodet", {"y": (1, 126, 33)}, {"labels": ("a", "b")}, "has rows of 33, expected"),
        ("nanodet", {"y": (1, 100, 34)}, {}, "expected 126 .* or 128 .* found 100"),
        (
            "nanodet",
            LEVELS,
            {"labels": ("a", "b", "c")},
            "output.labels: 3 labels, .* expect class scores in rows of 3, found a_8 ",
        ),
        (
            "nanodet",
            {name: (1, shape[1], 32) for name, shape in LEVELS.items()},
            {"labels": tuple(map(str, range(32)))},
            r"expects cls_8 of shape \[1, 96, 32\] or \[96, 32\], .*; .*output.names.cls_8",
        ),
        (
            "nanodet",
            {name: (1, shape[1], 2 if shape[2] == 2 else 30) for name, shape in LEVELS.items()},
            {"labels": ("a", "b")},
            r"output b_8: expected rows of 4 \* \(at least 2\) numbers, .*, found 30",
        ),
        (
            "nanodet",
            LEVELS | {"a_16": (1, 24, 3)},
            {},
            r"expects class scores of one width, found a_8 float32\[1, 96, 2\], a_16 .*3\]",
        ),
        (
            "nanodet",
            LEVELS | {"a_64": (1, 2, 2), "b_64": (1, 2, 32)},
            {"labels": ("a", "b")},
            "strides 8, 16 and 32, found also a_64 .*, b_64 .*; .* output.names.cls_8",
        ),
        (
            "nanodet",
            {name: (1, None, shape[2]) for name, shape in LEVELS.items()},
            {"labels": ("a", "b")},
            "if it is one of these, name it: output.names.cls_8",
        ),
        (
            "ultraface",
            {"scores": (1, 9, 3), "boxes": (1, 9, 4)},
            {"labels": ("a",)},
            "expected 2 labels, or 3 with the background first, .* found 1",
        ),
        (
            "ultraface",
            {"scores": (1, 8, 2), "boxes": (1, 9, 4)},
            {},
            r"expects scores .*\[1, 9, \?\]",
        ),
        ("ultraface", {"scores": (1, 9, 1), "boxes": (1, 9, 4)}, {}, "background and at least 1"),
        ("yunet", {"cls_8": (1, 95, 1)}, {}, r"expects cls_8 of shape \[1, 96, 1\], found cls_8"),
        (
            "ssd",
            {"boxes": (1, 9, 4), "scores": (1, 9, 3)},
            {"labels": ("a",)},
            "expected 3 labels for the 3 classes",
        ),
        ("ssd", {"boxes": (1, 9, 4)}, {}, "expects scores of shape"),
        ("ssd", {"y": (1, 9, 8)}, {}, "expects boxes of shape"),
        (
            "ssd",
            {"y": (None, None), "scores": (None,)},
            {},
            "rows of 4 or 5 numbers, found an open size; .* name them: output.names.boxes",
        ),
        (
            "ssd",
            {"boxes": (None, None), "p": (None,), "q": (None,)},
            {},
            r"expects scores of shape \[\?\] .*; .*these, name it: output.names.scores",
        ),
        (
            "ssd",
            {"detection_boxes": (1, 9, 4), "detection_scores": (1, 9)},
            {},
            "TensorFlow's name .* output.names.boxes_yxyx or output.names.boxes",
        ),
        (
            "ssd",
            {"detection_boxes": (1, 9, 4), "detection_scores": (1, 9)},
            {"names": {"scores": "detection_scores"}},
            "TensorFlow's name",
        ),
        (
            "detr",
            {"boxes": (1, 9, 4), "logits": (1, 9, 92)},
            {"labels": ("a", "b")},
            r"2 labels .* expect logits of 2 classes \(sigmoid\) or 3 .*, found .*92",
        ),
        ("detr", {"boxes": (1, 9, 4), "logits": (1, 9, 92)}, {}, "output.labels: missing; .* 92"),
        (
            "detr",
            {"dets": (1, 9, 4), "labels": (1, 9, 3)},
            {"labels": ("a", "b")},
            r"RF-DETR's, 3 classes .* found 2 labels; .* first_label = 1",
        ),
        (
            "softmax",
            {"y": (1, 3)},
            {"labels": ("a", "b")},
            "expected 3 labels for the 3 .* found 2",
        ),
        ("softmax", {"y": (2, 3)}, {}, "expects scores of shape .* found y float32"),
        ("score", {"y": (1, 2)}, {}, "expects score of shape"),
        (
            "raw",
            {"y": (1, 3)},
            {"labels": ("a", "b"), "task": "regression"},
            "output.labels: expected 3 labels, one for each number of y .* found 2",
        ),
        ("reconstruction", {"y": (1, 7)}, {}, "expects an output of 18432 numbers as input x"),
        (
            "yolov5",
            {"y": (1, 9, 7)},
            {"size": None},
            "finds boxes in pictures, but the source gives rows of numbers",
        ),
        (
            "yolov5",
            {"y": (1, 9, 7)},
            {"names": {"predictions": "z"}},
            "output.names.predictions: the model has no output 'z'; its outputs: y",
        ),
        (
            "yolov5",
            {"y": (1, 9, 7)},
            {"names": {"boxes": "y"}},
            "'boxes' is not a role; decoder 'yolov5' has the roles predictions",
        ),
        (
            "raw",
            {"y": (1, 9)},
            {"names": {"a": "y"}},
            "'a' is not a role; decoder 'raw' has no roles",
        ),
        (
            "yolov5",
            {"y": (1, 9, 7), "f": (1, 2)},
            {"names": {"predictions": "f"}},
            r"output.names.predictions: expected \[1, \?, \?\], found f float32\[1, 2\]",
        ),
        (
            "yolov5",
            {"a": (1, 9, 7), "b": (1, 9, 7)},
            {},
            "found a .*, b .*; if it is one of these, name it: output.names.predictions",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    decoder: str, outputs: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    """Wrong shapes, counts, labels and names are one line at load, with expected and found."""
    with pytest.raises(ModelError, match=message) as caught:
        build(decoder, outputs, **settings)
    assert "\n" not in str(caught.value)


def test_names_choose_between_outputs_of_one_shape() -> None:
    """`output.names` settles what shape and usual names cannot."""
    decoder = build("yolov5", {"a": (1, 1, 6), "b": (1, 1, 6)}, names={"predictions": "b"})
    found = read(
        decoder,
        {"a": [[[0] * 6]], "b": [[[10, 10, 4, 4, 0.9, 1.0]]]},
        threshold=0.5,
    )
    assert isinstance(found, Detections)
    assert_allclose(found.boxes, [[8, 8, 12, 12]])


# What only an inference shows


@pytest.mark.parametrize(
    ("decoder", "outputs", "tensors", "message"),
    [
        ("yolox", {"y": (1, None, 7)}, {"y": np.zeros((1, 5, 7))}, "expected 126 .*, found 5"),
        (
            "yolov5",
            {"y": (1, None, None)},
            {"y": np.zeros((1, 5, 6))},
            r"\[1, \?, 7\], found \[1, 5, 6\]",
        ),
        (
            "yolov8",
            {"y": (1, None, 9)},
            {"y": np.zeros((1, 9, 9))},
            r"\[1, 6, \?\], found \[1, 9, 9\]",
        ),
        (
            "ultraface",
            {"scores": (1, None, 3), "boxes": (1, None, 4)},
            {"scores": np.zeros((1, 5, 3)), "boxes": np.zeros((1, 4, 4))},
            "output boxes: expected 5 rows as output scores has, found 4",
        ),
        (
            "nanodet",
            LEVELS_BY_NAME | {"dis_16": (1, 24, None)},
            {name: np.zeros((1, *shape[1:])) for name, shape in LEVELS_BY_NAME.items()}
            | {"dis_16": np.zeros((1, 24, 30))},
            r"output dis_16: expected rows of 4 \* \(at least 2\) numbers, .*, found 30",
        ),
        ("softmax", {"y": (1, None)}, {"y": np.zeros((1, 3))}, "expected 2 classes .*, found 3"),
        (
            "yolo-e2e",
            {"y": (1, None, 6)},
            {"y": np.array([[[0, 0, 9, 9, 0.9, 2.0]]])},
            "the model found class 2, but the last of 2 labels is that of class 1",
        ),
    ],
)
def test_open_sizes_that_turn_out_wrong_are_named(
    decoder: str, outputs: dict[str, Any], tensors: dict[str, Any], message: str
) -> None:
    """A size left open at load is checked at each call: expected and found, never garbage."""
    built = build(decoder, outputs, labels=("a", "b"))
    with pytest.raises(SampleError, match=message):
        read(built, {name: t.astype(np.float32) for name, t in tensors.items()}, threshold=0.5)
