"""Samples with known truth, and measures of accuracy from them: top-1, mAP, and AUC.

For classes and anomalies: one folder per label ("normal" or "good" means not anomalous), with
pictures or recordings in it. For boxes: pictures, and COCO's JSON beside them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..core.errors import UsageError
from ..core.files import subfolders
from ..core.frozen import record
from ..core.types import Anomaly, Array, Classes, Detections, Findings, Sample
from ..inference.likeness import match_boxes

Metric = Literal["top-1", "mAP", "AUC"]
NORMAL = "normal"
MAX_JSON_BYTES = 256 * 2**20
Read = Callable[[Path], Iterable[Sample]]


@record(quick=True, eq=False)
class Truth:
    """The truth about a sample."""

    label: str | None = None
    """Label of the whole sample; for anomalies "normal", or anything else."""
    boxes: Array | None = None
    """(n, 4) x1, y1, x2, y2 in pixels."""
    labels: tuple[str, ...] = ()
    """The label of each box."""


def top1(found: Sequence[Findings], truths: Sequence[Truth]) -> float:
    """Return the share of samples whose best class is the true one."""
    right = [
        isinstance(one, Classes) and one.labels[:1] == (truth.label,)
        for one, truth in zip(found, truths, strict=True)
    ]
    return sum(right) / len(right)


def auc(found: Sequence[Findings], truths: Sequence[Truth]) -> float:
    """Return the probability that an anomaly scores above a normal sample; ties count half."""
    scores = np.array([one.score for one in found if isinstance(one, Anomaly)])
    normal = np.array([truth.label == NORMAL for truth in truths])
    good, bad = scores[normal], scores[~normal]
    if not len(good) or not len(bad):
        return float("nan")
    above = (bad[:, None] > good[None]).mean() + 0.5 * (bad[:, None] == good[None]).mean()
    return float(above)


def mean_average_precision(found: Sequence[Findings], truths: Sequence[Truth]) -> float:
    """Return the mean over classes of the average precision at an IoU of 0.5, as in COCO."""
    wanted: dict[str, int] = defaultdict(int)
    hits: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for one, truth in zip(found, truths, strict=True):
        for label in truth.labels:
            wanted[label] += 1
        if not isinstance(one, Detections) or truth.boxes is None:
            continue
        order = np.argsort(-one.scores, kind="stable")
        names = [one.labels[index] for index in order]
        matches = match_boxes(one.boxes[order], names, truth.boxes, truth.labels)
        for label, score, match in zip(names, one.scores[order], matches, strict=True):
            hits[label].append((float(score), match >= 0))
    return float(np.mean([_average(hits[label], count) for label, count in wanted.items()]))


def _average(hits: list[tuple[float, bool]], wanted: int) -> float:
    """Return the average precision of one class, at 101 recalls."""
    if not hits:
        return 0.0
    right = np.array([hit for _, hit in sorted(hits, key=lambda each: -each[0])], np.float64)
    found = right.cumsum()
    precision = found / np.arange(1, len(right) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(found / wanted, np.linspace(0, 1, 101), side="left")
    padded = np.append(precision, 0.0)
    return float(padded[np.minimum(places, len(precision))].mean())


METRICS: Mapping[Metric, Callable[[Sequence[Findings], Sequence[Truth]], float]] = {
    "top-1": top1,
    "mAP": mean_average_precision,
    "AUC": auc,
}

_CHANCE: Mapping[Metric, float] = {"mAP": 0.01, "AUC": 0.5}


def chance(metric: Metric, labels: Sequence[str]) -> float:
    """Return the figure that a network may reach without knowing anything."""
    return _CHANCE.get(metric, 1 / len(labels) if len(labels) > 1 else 0.0)


def labeled(
    folder: Path, metric: Metric, labels: Sequence[str], read: Read
) -> tuple[list[Sample], list[Truth]]:
    """Read samples and their truths from a folder laid out as the module says.

    *read* returns all samples from a folder of pictures, or from a recording.
    """
    if not folder.is_dir():
        raise UsageError(f"--eval: {folder}: no such folder")
    if metric == "mAP":
        return _boxes(folder, labels, read)
    samples: list[Sample] = []
    truths: list[Truth] = []
    for place in subfolders(folder):
        label = place.name
        if metric == "AUC":
            label = NORMAL if label in {NORMAL, "good"} else label
        elif label not in labels:
            raise UsageError(f"--eval: {place}: {label!r} is none of the model's labels")
        found = list(read(place))
        samples += found
        truths += [Truth(label)] * len(found)
    kinds = {truth.label for truth in truths}
    if not samples or (metric == "AUC" and (NORMAL not in kinds or len(kinds) < 2)):
        wanted = "normal/ and others" if metric == "AUC" else "one for each label"
        raise UsageError(f"--eval: {folder}: expected folders with samples in them: {wanted}")
    return samples, truths


def _boxes(folder: Path, labels: Sequence[str], read: Read) -> tuple[list[Sample], list[Truth]]:
    files = sorted(folder.glob("*.json"))
    if len(files) != 1:
        raise UsageError(
            f"--eval: {folder}: expected one file of annotations as COCO has it (.json) beside the "
            f"pictures, found {len(files)}"
        )
    by_file = _annotations(files[0], labels)
    samples: list[Sample] = []
    truths: list[Truth] = []
    for sample in read(folder):
        if sample.file not in by_file:
            continue
        boxes = by_file[sample.file]
        samples.append(sample)
        corners = np.array([box for _, box in boxes], np.float32).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        truths.append(Truth(None, corners, tuple(label for label, _ in boxes)))
    if not any(truth.labels for truth in truths):
        raise UsageError(f"--eval: {files[0]}: has no box of any picture in {folder}")
    return samples, truths


def _annotations(path: Path, labels: Sequence[str]) -> dict[str, list[tuple[str, list[float]]]]:
    """Return labels and boxes (x, y, width, height in pixels) by picture."""
    if path.stat().st_size > MAX_JSON_BYTES:
        raise UsageError(f"--eval: {path}: larger than {MAX_JSON_BYTES >> 20} MiB")
    try:
        data: Any = json.loads(path.read_bytes())
        names = {each["id"]: str(each["name"]) for each in data["categories"]}
        pictures = {each["id"]: str(each["file_name"]) for each in data["images"]}
        found: dict[str, list[tuple[str, list[float]]]] = defaultdict(list)
        for name in pictures.values():
            found[name] = []
        for each in data["annotations"]:
            if each.get("iscrowd"):
                continue
            box = [float(value) for value in each["bbox"]]
            if len(box) != 4:
                raise ValueError
            found[pictures[each["image_id"]]].append((names[each["category_id"]], box))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"--eval: {path}: are not annotations as COCO has them") from None
    known = {label for boxes in found.values() for label, _ in boxes}
    if not known & set(labels):
        raise UsageError(f"--eval: {path}: knows none of the model's labels")
    return {
        name: [(label, box) for label, box in boxes if label in labels]
        for name, boxes in found.items()
    }
