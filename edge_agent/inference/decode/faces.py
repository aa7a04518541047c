"""Small face detectors in wide use: UltraFace, YuNet, and SCRFD."""

from __future__ import annotations

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.types import Detections, Tensors
from .boxes import Hits, best_classes, detections, lay_grid, selection_of
from .decoder import (
    Decoder,
    Floats,
    Labels,
    Network,
    Output,
    check_rows,
    ensure_finite,
    labels_of,
)

YUNET_STRIDES = (8, 16, 32)
_ORDERED = 0.9
"""Least share of coordinates that are in the order of two corners."""


def ultraface(network: Network) -> Decoder:
    """Ultra-Light-Fast-Generic-Face-Detector (RFB, slim), and detectors that share its format.

    Roles `scores`: [1, N, classes], class 0 is background; `boxes`: [1, N, 4] corners in 0..1 of
    the input. Labels may or may not name the background.
    """
    width, height = network.picture_size()
    network.check_roles("scores", "boxes")
    boxes = network.need("boxes", [(1, None, 4)], names=("boxes",))
    scores = network.need(
        "scores", [(1, boxes.spec.shape[1], None)], names=("scores",), without=(boxes.spec,)
    )
    classes = scores.spec.shape[2]
    if classes is not None and classes < 2:
        raise ModelError(
            f"output {scores.spec}: expected background and at least 1 class, found {classes}"
        )
    labels = _foreground_labels(labels_of(network), classes, str(scores.spec))
    selection, scale = selection_of(network), np.array([width, height] * 2, np.float32)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = scores.read(outputs)[0]
        ensure_finite(scores.spec.name, table)
        found = best_classes(table[:, 1:], threshold)
        hits = Hits(found.rows, found.classes + 1, found.scores)
        corners = boxes.read(outputs)[0]
        check_rows(boxes, len(corners), scores, len(table))
        # Decoded boxes have the second corner after the first, in every row.
        if len(hits.rows) and (corners[:, 2:] >= corners[:, :2]).mean() < _ORDERED:
            raise SampleError(
                f"output {boxes.spec.name}: these are offsets from anchors, not corners; take the "
                "export with post-processing (version-slim-320.onnx, version-RFB-320.onnx)"
            )
        return detections(boxes.spec.name, corners[hits.rows] * scale, hits, labels, selection)

    return decode


def _foreground_labels(labels: Labels, classes: int | None, where: str) -> Labels:
    """Decide whether the labels begin with the background or with class 1."""
    if not labels.names or classes is None:
        return labels
    if len(labels.names) == classes - 1 and labels.first in {0, 1}:
        return Labels(labels.names, 1)
    if len(labels.names) == classes and labels.first == 0:
        return labels
    raise ModelError(
        f"output.labels: expected {classes - 1} labels, or {classes} with the background first, "
        f"for output {where}, found {len(labels.names)} (first_label {labels.first})"
    )


def yunet(network: Network) -> Decoder:
    """YuNet as published in the OpenCV Zoo since 2023 (Wu et al. 2023).

    Roles, for each stride s of 8, 16, 32: `cls_s` and `obj_s` [1, N, 1], `bbox_s` [1, N, 4],
    `kps_s` [1, N, 10]. Score = sqrt(cls * obj); center = (cell + d) * s; size = exp(d) * s; the
    five points = (cell + d) * s. A network with six or nine outputs is read as SCRFD.
    """
    size, labels = network.picture_size(), labels_of(network)
    if len(labels.names) > 1 or labels.first:
        raise ModelError(
            f"output.labels: expected at most 1 label and first_label 0, decoder 'yunet' knows "
            f"one class, found {len(labels.names)} and first_label {labels.first}"
        )
    if len(network.outputs) in {6, 9}:
        return _scrfd(network, size, labels)
    parts = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
    network.check_roles(*(f"{part}_{s}" for part in parts for s in YUNET_STRIDES))
    levels = []
    for stride in YUNET_STRIDES:
        grid = lay_grid(size, (stride,))
        levels.append({
            part: network.need(
                f"{part}_{stride}", [(1, len(grid.cells), wide)], names=(f"{part}_{stride}",)
            )
            for part, wide in parts.items()
        })  # fmt: skip
    whole = lay_grid(size, YUNET_STRIDES)
    selection = selection_of(network)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        tensors = [{part: level[part].read(outputs)[0] for part in parts} for level in levels]
        for level, tensor in zip(levels, tensors, strict=True):
            ensure_finite(level["cls"].spec.name, tensor["cls"])
            ensure_finite(level["obj"].spec.name, tensor["obj"])
        read = {part: np.concatenate([tensor[part] for tensor in tensors]) for part in parts}
        certain = np.clip(read["cls"], 0, 1) * np.clip(read["obj"], 0, 1)
        scores = np.sqrt(certain[:, 0])
        rows = np.flatnonzero(scores >= threshold)
        hits = Hits(rows, np.zeros(len(rows), np.intp), scores[rows])
        cells, strides = whole.cells[rows], whole.strides[rows]
        box = read["bbox"][rows]
        with np.errstate(over="ignore"):  # an absurd size becomes infinite and is refused
            half = np.exp(box[:, 2:]) * strides * np.float32(0.5)
        center = (cells + box[:, :2]) * strides
        points = (read["kps"][rows].reshape(-1, 5, 2) + cells[:, None]) * strides[:, None]
        boxes = np.concatenate((center - half, center + half), axis=1)
        return detections("bbox_* and kps_*", boxes, hits, labels, selection, {"points": points})

    return decode


def _scrfd(network: Network, size: tuple[int, int], labels: Labels) -> Decoder:
    """SCRFD by InsightFace (Guo et al. 2021, arXiv 2105.04714), with or without its five points.

    No roles: outputs with rows of 1 (scores), 4 (distances of sides) and 10 (of points), each in
    the order of strides 8, 16, 32; two rows per cell, measured from its upper left corner in
    strides.
    """
    network.check_roles()
    floats = [one for one in network.outputs if "float" in one.dtype]
    found = {w: [one for one in floats if one.shape[-1:] == (w,)] for w in (1, 4, 10)}
    if [len(each) for each in found.values()] != [3, 3, len(network.outputs) - 6]:
        raise ModelError(
            "output.decoder: 'yunet' expects of SCRFD three outputs each of rows of 1, 4 and often "
            f"10 floats, found {', '.join(map(str, network.outputs))}"
        )
    whole, selection = lay_grid(size, YUNET_STRIDES), selection_of(network, iou=0.4)
    strides = np.repeat(whole.strides, 2, axis=0)
    starts = np.repeat(whole.cells, 2, axis=0) * strides

    def read(outputs: Tensors, width: int) -> Floats:
        tables = []
        for spec, stride in zip(found[width], YUNET_STRIDES, strict=True):
            count = 2 * len(lay_grid(size, (stride,)).cells)
            output = Output(spec, ((count, width), (1, count, width)), 1.0, 0.0)
            tables.append(output.read(outputs).reshape(count, width))
        return np.concatenate(tables)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        scores = read(outputs, 1)[:, 0]
        ensure_finite("of scores", scores)
        rows = np.flatnonzero(scores >= threshold)
        hits = Hits(rows, np.zeros(len(rows), np.intp), scores[rows])
        start, sides = starts[rows], read(outputs, 4)[rows] * strides[rows]
        boxes = np.concatenate((start - sides[:, :2], start + sides[:, 2:]), axis=1)
        columns = {}
        if found[10]:
            away = (read(outputs, 10)[rows] * strides[rows]).reshape(-1, 5, 2)
            columns["points"] = away + start[:, None]
        return detections("of boxes and points", boxes, hits, labels, selection, columns)

    return decode
