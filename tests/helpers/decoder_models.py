"""Tiny ONNX models that emit tensors computed by hand, one for each decoder family.

They prove the families for which no public model lies beside the checkout. The input is 96 wide
and 64 high, so that a mix-up of x and y shows; its cells are 12x8 of stride 8, 6x4 of 16, 3x2 of
32 and 2x1 of 64, which begin at rows 0, 96, 120 and 126.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import atanh, log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 96, 64
Box = tuple[float, float, float, float]
Found = tuple[str, float, Box]
"""Label, score, x1 y1 x2 y2 in pixels of the input."""


@dataclass(frozen=True)
class Case:
    """A detector's outputs, and what must be read out of them."""

    name: str
    decoder: str
    outputs: Mapping[str, NDArray[Any]]
    found: tuple[Found, ...]
    """Best first."""
    output: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the manifest's [output]."""
    threshold: float = 0.5
    points: tuple[tuple[float, float], ...] | None = None
    """Of the best detection."""
    by_size: bool = False
    """Only its sizes tell what an output is."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest that goes with it, as a TOML file would hold it."""
        settings = {"decoder": self.decoder, "iou": 0.45}
        return {
            "name": self.name,
            "version": "1",
            "task": "detection",
            "file": "model.onnx",
            "output": settings | dict(self.output),
        }


def write_constant_model(
    path: Path,
    outputs: Mapping[str, NDArray[Any]],
    *,
    shape: tuple[int | str, ...] = (1, 3, HEIGHT, WIDTH),
    unknown: Collection[str] = (),
) -> Path:
    """Write an ONNX model that gives *outputs* whatever picture it is fed.

    Args:
        path: where to.
        outputs: name = tensor; integers up to 2**24 pass exactly.
        shape: of the float32 input "images"; a word leaves a size open.
        unknown: outputs whose sizes, though not their rank, only a run shows.

    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    # The input takes part, times 0: a runtime may drop or refuse one that nothing reads.
    nodes = [
        helper.make_node("ReduceMax", ["images"], ["brightest"], keepdims=0),
        helper.make_node("Mul", ["brightest", "nothing"], ["zero"]),
    ]
    constants = [numpy_helper.from_array(np.zeros((), np.float32), "nothing")]
    ends = []
    for place, (name, tensor) in enumerate(outputs.items()):
        kind = helper.np_dtype_to_tensor_dtype(tensor.dtype)
        constants.append(numpy_helper.from_array(tensor.astype(np.float32), f"constant{place}"))
        sizes: list[int | str] = list(tensor.shape)
        source = f"constant{place}"
        if name in unknown:
            sizes = [f"{name}{axis}" for axis in range(tensor.ndim)]
            constants.append(
                numpy_helper.from_array(np.array(tensor.shape, np.float32), f"{name}?")
            )
            nodes += [
                helper.make_node("Add", [f"{name}?", "zero"], [f"{name}??"]),
                helper.make_node("Cast", [f"{name}??"], [f"{name}!"], to=TensorProto.INT64),
                helper.make_node("Reshape", [source, f"{name}!"], [f"{source}!"]),
            ]
            source += "!"
        nodes += [
            helper.make_node("Add", [source, "zero"], [f"sum{place}"]),
            helper.make_node("Cast", [f"sum{place}"], [name], to=kind),
        ]
        ends.append(helper.make_tensor_value_info(name, kind, sizes))
    start = helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "constant", [start], ends, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def table(rows: int, width: int, values: Mapping[int, list[float]]) -> NDArray[np.float32]:
    """Make [1, rows, width] of zeros but for some rows."""
    out = np.zeros((1, rows, width), np.float32)
    for row, numbers in values.items():
        out[0, row] = numbers
    return out


def yolox(rows: int = 126, extra: Mapping[int, list[float]] | None = None) -> NDArray[np.float32]:
    """Raw YOLOX rows of two classes."""
    return table(
        rows,
        7,
        {
            # Stride 16 begins at 96: row 1, column 4. Center (4.5, 1.25) * 16, size 2x1.5 cells.
            106: [0.5, 0.25, log(2), log(1.5), 0.9, 0.1, 0.8],
            # One cell to the left and half a cell more: nearly the same box, weaker.
            105: [1.45, 0.25, log(2), log(1.5), 0.9, 0.0, 0.7],
            # The same place again, but of the other class.
            100: [0.5, 1.25, log(2), log(1.5), 0.8, 0.75, 0.0],
            # Stride 32, row 1, column 0: good class, poor objectness.
            123: [0.5, 0.5, 0.0, 0.0, 0.5, 0.9, 0.0],
            **(extra or {}),
        },
    )


def yolov8() -> NDArray[np.float32]:
    """YOLOv8 rows [1, N, 4 + 2 classes]; the family writes them transposed."""
    return table(
        30,
        6,
        {
            3: [40, 30, 20, 10, 0.1, 0.9],
            4: [41, 30, 20, 10, 0.0, 0.8],
            5: [40, 30, 20, 10, 0.7, 0.2],
            6: [10, 10, 5, 5, 0.4, 0.4],
        },
    )


def yunet() -> dict[str, NDArray[np.float32]]:
    """YuNet's twelve outputs with two faces, and one in class scores only."""
    out: dict[str, NDArray[np.float32]] = {}
    for stride, rows in ((8, 96), (16, 24), (32, 6)):
        for part, width in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10)):
            out[f"{part}_{stride}"] = np.zeros((1, rows, width), np.float32)
    # Stride 16, row 2, column 1: index 13. sqrt(0.9 * 0.4) = 0.6.
    out["cls_16"][0, 13], out["obj_16"][0, 13] = 0.9, 0.4
    out["bbox_16"][0, 13] = [0.5, 0.25, log(2), log(3)]
    out["kps_16"][0, 13] = [0, 0, 1, 0, 0.5, 0.5, 0, 1, 1, 1]
    # Stride 8, row 0, column 11: above 1 is clamped; sqrt(1 * 0.81) = 0.9.
    out["cls_8"][0, 11], out["obj_8"][0, 11] = 1.5, 0.81
    out["kps_8"][0, 11] = [0.25] * 10
    out["cls_32"][0, 0] = 1.0
    return out


def bins(*peaks: float) -> list[float]:
    """Logits over 8 bins for each peak: all weight on it, or on the two bins around a half."""
    out = []
    for peak in peaks:
        side = [-60.0] * 8
        side[int(peak)] = side[int(peak + 0.5)] = 3.0
        out += side
    return out


def nanodet_levels(classes: int = 2) -> dict[str, NDArray[np.float32]]:
    """NanoDet's six outputs before -Plus, under its exporter's names, with a box in two of them."""
    out: dict[str, NDArray[np.float32]] = {}
    for stride, rows in ((8, 96), (16, 24), (32, 6)):
        out[f"cls_pred_stride_{stride}"] = np.zeros((1, rows, classes), np.float32)
        out[f"dis_pred_stride_{stride}"] = np.zeros((1, rows, 32), np.float32)
    # Stride 16, row 1, column 2: the middle of the cell is (40, 24).
    out["cls_pred_stride_16"][0, 8, :2] = [0.2, 0.9]
    out["dis_pred_stride_16"][0, 8] = bins(1, 0.5, 2, 1)
    # Stride 32, row 0, column 1: the middle of the cell is (48, 16).
    out["cls_pred_stride_32"][0, 1, :2] = [0.6, 0.1]
    out["dis_pred_stride_32"][0, 1] = bins(0.5, 0, 1, 0.5)
    return out


def nanodet_numbers() -> dict[str, NDArray[np.float32]]:
    """Shuffle and rename them, without the axis of 1, so that only sizes tell what is what."""
    tensors = [tensor[0] for tensor in nanodet_levels().values()]
    names = ("792", "bbox_pred1", "dis_8", "cls_pred_stride_8", "814", "cls_score2")
    return dict(zip(names, [tensors[place] for place in (4, 1, 2, 5, 0, 3)], strict=True))


def detr_boxes() -> NDArray[np.float32]:
    """Three queries: center x, center y, width, height in 0..1."""
    return table(3, 4, {0: [0.5, 0.5, 0.5, 0.25], 1: [0.25, 0.5, 0.5, 1.0], 2: [0.5, 0.5, 1, 1]})


def rows7(*rows: list[float]) -> NDArray[np.float32]:
    """Make [1, 1, N, 7] of DetectionOutput rows."""
    return np.array([[rows]], np.float32)


TWO = {"labels": ("cat", "dog")}
UNIT_BOXES = np.array([[[0, 0, 0.5, 0.5], [0.25, 0.5, 0.5, 1], [0, 0, 0.5, 0.5]]], np.float32)
PIXEL_BOXES = (UNIT_BOXES * [WIDTH, HEIGHT, WIDTH, HEIGHT]).astype(np.float32)
UPPER_LEFT, LOWER = (0.0, 0.0, 48.0, 32.0), (24.0, 32.0, 48.0, 64.0)
BACKGROUND_FIRST = np.array([[[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]], np.float32)
THREE_CLASSES = np.array([[[0.05, 0.9, 0], [0.9, 0, 0.1], [0.3, 0.6, 0.7]]], np.float32)
DOG_CAT = (
    ("dog", 0.9, UPPER_LEFT),
    ("cat", 0.6, LOWER),
)
SCORES, CLASSES = np.array([[0.9, 0.6, 0.4]], np.float32), np.array([[1, 0, 1]])
YOLOX_FOUND = (
    ("dog", 0.72, (56.0, 8.0, 88.0, 32.0)),
    ("cat", 0.6, (56.0, 8.0, 88.0, 32.0)),
)
NANODET_FOUND = (
    ("dog", 0.9, (24.0, 16.0, 72.0, 40.0)),
    ("cat", 0.6, (32.0, 16.0, 80.0, 32.0)),
)
YOLOV8_FOUND = (
    ("dog", 0.9, (30.0, 25.0, 50.0, 35.0)),
    ("cat", 0.7, (30.0, 25.0, 50.0, 35.0)),
)


def fastestdet() -> NDArray[np.float32]:
    """FastestDet's planes [1, 5 + 2 classes, 4 rows, 6 columns]: cells of 16 pixels."""
    out = np.zeros((1, 7, 4, 6), np.float32)
    # Row 1, column 4: center (4.5, 1) cells, half as wide and a quarter as high as the picture.
    out[0, :, 1, 4] = [0.9, atanh(0.5), 0, 0, log(1 / 3), 0.2, 0.8]
    # Nearly the same box, weaker.
    out[0, :, 1, 3] = [0.8, atanh(0.9), 0, 0, log(1 / 3), 0.2, 0.8]
    # Row 3, column 0, of the other class.
    out[0, :, 3, 0] = [0.6, atanh(0.5), atanh(-0.5), log(1 / 5), 0, 0.7, 0.3]
    # Good class, hardly an object.
    out[0, :, 0, 0] = [0.1, 0, 0, 0, 0, 1, 0]
    return out


def fomo() -> NDArray[np.float32]:
    """FOMO's chances [1, 8 rows, 12 columns, background and 2 classes]."""
    out = np.zeros((1, 8, 12, 3), np.float32)
    for row, column, chances in (
        (0, 0, [0.25, 0.75, 0]),
        # Two cells that touch at a corner are one object.
        (2, 5, [0.4, 0, 0.6]),
        (3, 6, [0.1, 0, 0.9]),
        (7, 11, [0.6, 0.4, 0]),
    ):
        out[0, row, column] = chances
    return out


CASES = (
    Case(
        "ultraface",
        "ultraface",
        {"scores": BACKGROUND_FIRST, "boxes": UNIT_BOXES},
        (("face", 0.9, UPPER_LEFT),),
        {"labels": ("face",)},
    ),
    Case(
        "ultraface-background-named",
        "ultraface",
        {"boxes": UNIT_BOXES, "scores": THREE_CLASSES},
        (("face", 0.9, UPPER_LEFT), ("hand", 0.7, UPPER_LEFT)),
        {"labels": ("BACKGROUND", "face", "hand")},
    ),
    Case(
        "yunet",
        "yunet",
        yunet(),
        (("face", 0.9, (84.0, -4.0, 92.0, 4.0)), ("face", 0.6, (8.0, 12.0, 40.0, 60.0))),
        {"labels": ("face",)},
        points=((90.0, 2.0),) * 5,
    ),
    Case("yolox", "yolox", {"output": yolox()}, YOLOX_FOUND, TWO),
    Case(
        "yolox-p6",
        "yolox",
        # Stride 64 begins at 126: column 1. Center (1.25, 0.5) * 64, size 0.5 cells.
        {"output": yolox(128, {100: [0.0] * 7, 127: [0.25, 0.5, log(0.5), log(0.5), 1, 1, 0]})},
        (("cat", 1.0, (64.0, 16.0, 96.0, 48.0)), YOLOX_FOUND[0]),
        TWO,
    ),
    Case("yolov8", "yolov8", {"output0": yolov8().transpose(0, 2, 1).copy()}, YOLOV8_FOUND, TWO),
    Case("yolov8-rows", "yolov8", {"output0": yolov8()}, YOLOV8_FOUND, TWO),
    Case(
        "yolov8-without-labels",
        "yolov8",
        {"output0": yolov8().transpose(0, 2, 1).copy()},
        tuple((str(("cat", "dog").index(label)), score, box) for label, score, box in YOLOV8_FOUND),
    ),
    Case(
        "yolo-e2e",
        "yolo-e2e",
        {
            "output0": table(
                5,
                6,
                {0: [1, 2, 30, 40, 0.6, 1], 1: [2, 2, 30, 40, 0.8, 1], 3: [5, 5, 9, 9, 0.4, 0]},
            )
        },
        # Two of a class that overlap: suppression has been done by the network, so both stay.
        (("dog", 0.8, (2.0, 2.0, 30.0, 40.0)), ("dog", 0.6, (1.0, 2.0, 30.0, 40.0))),
        TWO,
    ),
    Case(
        "yolov5",
        "yolov5",
        {
            "output0": table(
                20,
                7,
                {
                    2: [40, 30, 20, 10, 0.9, 0.1, 0.8],
                    3: [41, 30, 20, 10, 0.9, 0.1, 0.7],
                    4: [40, 30, 20, 10, 0.6, 0.9, 0.1],
                    5: [9, 9, 9, 9, 0.7, 0.7, 0.0],
                },
            )
        },
        (("dog", 0.72, (30.0, 25.0, 50.0, 35.0)), ("cat", 0.54, (30.0, 25.0, 50.0, 35.0))),
        TWO,
    ),
    Case(
        "nanodet",
        "nanodet",
        # Stride 16, row 1, column 2: the middle of the cell is (40, 24).
        {"output": table(126, 34, {104: [0.2, 0.9, *bins(1, 0.5, 2, 1)]})},
        (("dog", 0.9, (24.0, 16.0, 72.0, 40.0)),),
        TWO,
    ),
    Case(
        "nanodet-plus",
        "nanodet",
        # The same cell: measured from its corner (32, 16).
        {"output": table(128, 34, {104: [0.2, 0.9, *bins(1, 0.5, 2, 1)]})},
        (("dog", 0.9, (16.0, 8.0, 64.0, 32.0)),),
        TWO,
    ),
    Case("nanodet-levels", "nanodet", nanodet_levels(), NANODET_FOUND, TWO),
    Case("nanodet-levels-numbers", "nanodet", nanodet_numbers(), NANODET_FOUND, TWO, by_size=True),
    Case(
        "nanodet-levels-roles",
        "nanodet",
        # As many classes as 4 * bins, and another tensor beside them.
        dict(zip("abcdef", nanodet_levels(32).values(), strict=True))
        | {"more": np.zeros((1, 96, 32), np.float32)},
        NANODET_FOUND,
        {
            "labels": ("cat", "dog", *map(str, range(2, 32))),
            "names": dict(
                zip(
                    ("cls_8", "dis_8", "cls_16", "dis_16", "cls_32", "dis_32"),
                    "abcdef",
                    strict=True,
                )
            ),
        },
    ),
    Case(
        "ssd-detection-output",
        "ssd",
        {
            "detection_out": rows7(
                [0, 1, 0.7, 0.25, 0.5, 0.5, 1],
                [0, 2, 0.9, 0, 0, 0.5, 0.5],
                [0, 1, 0.3, 0, 0, 1, 1],
                [-1, 0, 0, 0, 0, 0, 0],
                [0, 1, 0.99, 0, 0, 1, 1],
            )
        },
        (("dog", 0.9, UPPER_LEFT), ("cat", 0.7, LOWER)),
        TWO | {"first_label": 1},
    ),
    Case(
        "ssd-model-api",
        "ssd",
        {
            "boxes": np.array([[0, 0, 48, 32, 0.9], [24, 32, 48, 64, 0.6]], np.float32),
            "labels": np.array([1, 0]),
        },
        DOG_CAT,
        TWO,
    ),
    Case(
        "ssd-model-api-one-class",
        "ssd",
        {"boxes": np.array([[[0, 0, 48, 32, 0.9], [24, 32, 48, 64, 0.4]]], np.float32)},
        (("part", 0.9, UPPER_LEFT),),
        {"labels": ("part",)},
    ),
    Case(
        "ssd-three-tensors",
        "ssd",
        {"bboxes": UNIT_BOXES, "labels": CLASSES, "scores": SCORES},
        DOG_CAT,
        TWO,
    ),
    Case(
        "ssd-three-tensors-pixels",
        "ssd",
        {"boxes": PIXEL_BOXES[0], "labels": CLASSES[0], "scores": SCORES[0]},
        DOG_CAT,
        TWO,
    ),
    Case(
        "ssd-two-tensors",
        "ssd",
        {"boxes": UNIT_BOXES, "scores": THREE_CLASSES},
        (("cat", 0.9, UPPER_LEFT), ("dog", 0.7, UPPER_LEFT)),
        TWO | {"first_label": 1},
    ),
    Case(
        "ssd-two-tensors-one-class",
        "ssd",
        {"boxes": UNIT_BOXES, "scores": np.array([[0.9, 0.6, 0.7]], np.float32)},
        (("part", 0.9, UPPER_LEFT), ("part", 0.6, LOWER)),
        {"labels": ("part",)},
    ),
    Case(
        "ssd-tensorflow",
        "ssd",
        {
            "detection_boxes": UNIT_BOXES[..., [1, 0, 3, 2]],
            "detection_classes": np.array([[2, 1, 2]], np.float32),
            "detection_scores": SCORES,
            "num_detections": np.array([3], np.float32),
        },
        DOG_CAT,
        TWO | {"first_label": 1, "names": {"boxes_yxyx": "detection_boxes"}},
    ),
    Case(
        "detr-softmax",
        "detr",
        {
            "pred_logits": np.log(
                np.array([[[0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.05, 0.05, 0.9]]], np.float32)
            ),
            "pred_boxes": detr_boxes(),
        },
        (("dog", 0.7, (24.0, 24.0, 72.0, 40.0)), ("cat", 0.6, (0.0, 0.0, 48.0, 64.0))),
        TWO,
    ),
    Case(
        "detr-sigmoid",
        "detr",
        {
            # The second query is both: its two labels have the same box.
            "logits": np.array([[[-9, log(4)], [log(1.5), log(2.4)], [-9, log(0.6)]]], np.float32),
            "pred_boxes": detr_boxes(),
        },
        (
            ("dog", 0.8, (24.0, 24.0, 72.0, 40.0)),
            ("dog", 2.4 / 3.4, (0.0, 0.0, 48.0, 64.0)),
            ("cat", 0.6, (0.0, 0.0, 48.0, 64.0)),
        ),
        TWO,
    ),
    Case(
        "rtdetr",
        "rtdetr",
        {
            "output0": table(
                30,
                6,
                {
                    0: [0.5, 0.5, 0.5, 0.25, 0.9, 1],
                    1: [0.25, 0.5, 0.5, 1, 0.8, 1],
                    # As the head gives them: a query may come with both of its classes.
                    2: [0.25, 0.5, 0.5, 1, 0.6, 0],
                    3: [0.5, 0.5, 1, 1, 0.4, 0],
                },
            )
        },
        (
            ("dog", 0.9, (24.0, 24.0, 72.0, 40.0)),
            ("dog", 0.8, (0.0, 0.0, 48.0, 64.0)),
            ("cat", 0.6, (0.0, 0.0, 48.0, 64.0)),
        ),
        TWO,
    ),
    Case(
        "rtdetr-before-8.4",
        "rtdetr",
        {
            "output0": table(
                30,
                6,
                {0: [0.5, 0.5, 0.5, 0.25, 0.3, 0.9], 4: [0.25, 0.5, 0.5, 1, 0.6, 0.55]},
            )
        },
        (("dog", 0.9, (24.0, 24.0, 72.0, 40.0)), ("cat", 0.6, (0.0, 0.0, 48.0, 64.0))),
        TWO,
    ),
    Case(
        "fastestdet",
        "fastestdet",
        {"output": fastestdet()},
        (
            ("dog", 0.9**0.6 * 0.8**0.4, (48.0, 8.0, 96.0, 24.0)),
            ("cat", 0.6**0.6 * 0.7**0.4, (0.0, 24.0, 16.0, 56.0)),
        ),
        TWO,
    ),
    Case(
        "fastestdet-rows",
        "fastestdet",
        {"output": np.ascontiguousarray(fastestdet().reshape(7, -1).T)},
        (
            ("dog", 0.9**0.6 * 0.8**0.4, (48.0, 8.0, 96.0, 24.0)),
            ("cat", 0.6**0.6 * 0.7**0.4, (0.0, 24.0, 16.0, 56.0)),
        ),
        TWO,
    ),
    Case(
        "fomo",
        "semantic",
        {"map": fomo()},
        (("dog", 0.9, (40.0, 16.0, 56.0, 32.0)), ("cat", 0.75, (0.0, 0.0, 8.0, 8.0))),
        TWO | {"first_label": 1},
    ),
)
