"""Make `models/parts-inspection` and `models/media/conveyor.mp4` from nothing but a seed.

    python scripts/assets/make_parts_inspection.py [--quick]

A renderer draws machined parts (washers, flanges, gears, plates, nuts) lying on a moving
conveyor as a camera above it would see them, some of them with one defect. A small
convolutional detector learns them, is exported, quantized to INT8, and measured against
pictures that it has not seen. The model card is written from those measurements.

Needs: torch, numpy, onnx, onnxruntime, openvino, opencv-python-headless; the `ffmpeg`
program with libx264 for the clip. About an hour on two idle cores without AMX.
"""

import multiprocessing as mp
import shutil
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import onnx
import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name
from draw_conveyor import (
    CLIP_FPS,
    CLIP_SECONDS,
    COVERED,
    FRAME,
    INPUT,
    LABELS,
    VISIBLE,
    VISIBLE_DEFECT,
    Bytes,
    Floats,
    Rng,
    Scene,
    Truth,
    clip,
    fill,
    random_look,
)
from make_common import (
    Runner,
    arguments,
    downstream,
    export,
    in_onnxruntime,
    in_openvino,
    milliseconds,
    seed_everything,
    table,
    to_int8,
    trains_in_bf16,
    vnni,
    workers,
    write_golden,
)
from torch import Tensor, nn

BATCH = 24
LINE_EPOCHS = 6
STRIDE = 8  # input pixels a cell of the model's output stands for
NAMES = ("images", "output0")

# Each split draws its own scenes and its own belts.
SEEDS = {"train": 101, "calibration": 202, "validation": 303, "test": 404, "line": 505}


BELT_PICTURES = 64  # so many in turn are of one belt


def example(seed: int, index: int, *, plain: bool) -> tuple[Bytes, Floats, npt.NDArray[np.int64]]:
    """Draw one picture with its truth, at the size that the model sees.

    Args:
        seed: of its split.
        index: in it.
        plain: of a line that is set up well, as the clip's.

    """
    cv2.setNumThreads(1)
    rng = np.random.default_rng([seed, index])
    light = rng.uniform(0, 2 * np.pi)
    start = rng.uniform(0, 1600)
    ends = start - 40, start + FRAME[0] + 40
    parts = fill(rng, light, *ends, rng.uniform(0.3, 1.5), 0.42, plain=plain)
    rail = rng.uniform(0.3, 0.7) if rng.random() < 0.6 else 0.0
    scene = Scene(seed * 1000 + index // BELT_PICTURES, light, parts, rail, clean=plain)
    frame, truth = scene.frame(start, random_look(rng), rng)
    boxes, labels = truth.arrays()
    return cv2.resize(frame, INPUT, interpolation=cv2.INTER_LINEAR), boxes, labels


@dataclass(frozen=True)
class Pictures:
    """A set of pictures (BGR) with boxes (input pixels) and labels."""

    images: Bytes
    boxes: list[Floats]
    labels: list[npt.NDArray[np.int64]]

    def __len__(self) -> int:
        """Count the pictures."""
        return len(self.images)

    def with_first(self, count: int, other: "Pictures") -> "Pictures":
        """Give these and the first ones of another set."""
        return Pictures(
            np.concatenate([self.images, other.images[:count]]),
            self.boxes + other.boxes[:count],
            self.labels + other.labels[:count],
        )


def pictures(split: str, count: int) -> Pictures:
    """Draw a split; the same split is the same pictures, however many CPUs drew it."""
    with mp.get_context("spawn").Pool(workers()) as pool:
        work = partial(example, SEEDS[split], plain=split == "line")
        rows = pool.map(work, range(count), chunksize=BELT_PICTURES)
    images = np.stack([row[0] for row in rows])
    return Pictures(images, [row[1] for row in rows], [row[2] for row in rows])


def model_ready(image: Bytes) -> Floats:
    """Do to a picture of the model's size what the manifest says."""
    rgb = image[..., ::-1].astype(np.float32) / 255
    return np.ascontiguousarray(rgb.transpose(2, 0, 1)[None])


# ---------------------------------------------------------------------------
# The detector
# ---------------------------------------------------------------------------


def _conv(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _conv(width, width)
        self.second = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.first(x)))


class Detector(nn.Module):
    """A convolutional detector without anchors, on one grid of 8-pixel cells.

    Parts on a line are of one scale, so one grid is enough; the coarser level only gives it
    context. Each cell says whether a part's center lies in it, how far the part's edges are,
    and what the part is.
    """

    def __init__(self, labels: int = len(LABELS), width: float = 1.0) -> None:
        """Have no training yet.

        Args:
            labels: how many there are.
            width: channels of each layer, as a factor of those of the bundled model.

        """
        super().__init__()
        self.labels = labels
        a, b, c, d = (round(width * channels) for channels in (24, 32, 64, 96))
        self.fine = nn.Sequential(
            _conv(3, a, 2), _conv(a, b, 2), _Residual(b), _conv(b, c, 2),
            _Residual(c), _Residual(c),
        )  # fmt: skip
        self.coarse = nn.Sequential(_conv(c, d, 2), _Residual(d), _conv(d, c, size=1))
        self.head = _conv(c, c)
        self.out = nn.Conv2d(c, 1 + 4 + labels, 1)
        bias = torch.zeros(1 + 4 + labels)
        bias[0], bias[1:5] = -4.0, 3.0  # at first: no part anywhere, edges 24 pixels away
        self.out.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Give the raw grid: center logit, four distances, label logits."""
        fine = self.fine(x)
        context = F.interpolate(self.coarse(fine), scale_factor=2.0, mode="nearest")
        return self.out(self.head(fine + context))


def corners(raw: Tensor) -> Tensor:
    """Turn raw distances [B, 4, H, W] into corners x1, y1, x2, y2 in input pixels."""
    height, width = raw.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    center = (torch.stack([xs, ys]).float() + 0.5) * STRIDE
    reach = F.softplus(raw) * STRIDE
    return torch.cat([center - reach[:, :2], center + reach[:, 2:]], 1)


class Exported(nn.Module):
    """The detector with the output of the YOLOv8 family: [1, 4 + labels, cells]."""

    def __init__(self, net: Detector) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Give cx, cy, w, h in input pixels and a score for each label.

        A cell whose neighbor is surer is silenced here: two cells of one part that disagree
        on its label would both survive a suppression that works label by label.
        """
        raw = self.net(x)
        center = torch.sigmoid(raw[:, :1])
        peak = (center >= F.max_pool2d(center, 3, 1, 1)).float()
        scores = center * peak * torch.softmax(raw[:, 5:], 1)
        box = corners(raw[:, 1:5])
        low, high = box[:, :2], box[:, 2:]
        out = torch.cat([(low + high) * 0.5, high - low, scores], 1)
        return out.reshape(1, 4 + self.net.labels, -1)


@dataclass(frozen=True)
class Targets:
    """What the grid should say for one picture."""

    heat: Floats  # how near each cell is to a part's center, 1 in the cell that holds it
    mute: Floats  # 0 where finding something is neither right nor wrong
    weight: Floats  # of box and label
    box: Floats
    label: npt.NDArray[np.int64]


def targets(boxes: Floats, labels: npt.NDArray[np.int64]) -> Targets:
    """Lay a picture's truth out on the grid."""
    width, height = INPUT[0] // STRIDE, INPUT[1] // STRIDE
    ys, xs = np.mgrid[:height, :width]
    heat = np.zeros((height, width), np.float32)
    mute = np.ones_like(heat)
    weight = np.zeros_like(heat)
    box = np.zeros((4, height, width), np.float32)
    label = np.zeros((height, width), np.int64)
    for (x1, y1, x2, y2), kind in zip(boxes, labels, strict=True):
        cx, cy = (x1 + x2) / 2 / STRIDE, (y1 + y2) / 2 / STRIDE
        if kind < 0:
            inside = (np.abs(xs + 0.5 - cx) < (x2 - x1) / 2 / STRIDE) & (
                np.abs(ys + 0.5 - cy) < (y2 - y1) / 2 / STRIDE
            )
            mute[inside] = 0
            continue
        ix, iy = min(int(cx), width - 1), min(int(cy), height - 1)
        spread = max((x2 - x1 + y2 - y1) / 2 / STRIDE / 7, 0.5)
        bump = np.exp(-((xs - ix) ** 2 + (ys - iy) ** 2) / (2 * spread**2)).astype(np.float32)
        heat = np.maximum(heat, bump)
        near = (np.maximum(np.abs(xs - ix), np.abs(ys - iy)) <= 1) & (bump > weight)
        weight[near] = bump[near]
        box[:, near] = np.float32([x1, y1, x2, y2])[:, None]
        label[near] = kind
    return Targets(heat, mute, weight, box, label)


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Give the generalized intersection over union of boxes [4, N]."""
    inter = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0).prod(0)
    union = (a[2:] - a[:2]).prod(0) + (b[2:] - b[:2]).prod(0) - inter
    hull = (torch.maximum(a[2:], b[2:]) - torch.minimum(a[:2], b[:2])).prod(0)
    return inter / union.clamp(min=1e-6) - (hull - union) / hull.clamp(min=1e-6)


def loss_of(raw: Tensor, batch: Sequence[Targets]) -> Tensor:
    """Sum the three losses: center (penalty-reduced focal), box (GIoU), label."""
    heat = torch.from_numpy(np.stack([t.heat for t in batch]))
    mute = torch.from_numpy(np.stack([t.mute for t in batch]))
    weight = torch.from_numpy(np.stack([t.weight for t in batch]))
    sure = raw[:, 0].sigmoid().clamp(1e-5, 1 - 1e-5)
    hit = heat == 1
    found = torch.where(
        hit,
        -sure.log() * (1 - sure) ** 2,
        -(1 - sure).log() * sure**2 * (1 - heat) ** 4 * mute,
    )
    here = weight > 0
    want = torch.from_numpy(np.stack([t.box for t in batch])).permute(1, 0, 2, 3)[:, here]
    kinds = torch.from_numpy(np.stack([t.label for t in batch]))[here]
    share = weight[here] / weight.sum().clamp(min=1)
    boxes = ((1 - giou(corners(raw[:, 1:5]).permute(1, 0, 2, 3)[:, here], want)) * share).sum()
    named = (
        F.cross_entropy(raw[:, 5:].permute(0, 2, 3, 1)[here], kinds, reduction="none") * share
    ).sum()
    return found.sum() / hit.sum().clamp(min=1) + 2 * boxes + 2 * named


def _augmented(
    image: Bytes, boxes: Floats, labels: npt.NDArray[np.int64], rng: Rng
) -> tuple[Floats, Targets]:
    """Mirror a picture and change its exposure; both leave its truth alone."""
    boxes = boxes.copy()
    if rng.random() < 0.5:
        image = image[:, ::-1]
        boxes[:, [0, 2]] = INPUT[0] - boxes[:, [2, 0]]
    if rng.random() < 0.5:
        image = image[::-1]
        boxes[:, [1, 3]] = INPUT[1] - boxes[:, [3, 1]]
    x = model_ready(image)[0]
    x = x * np.float32(np.exp(rng.normal(0, 0.12))) + np.float32(rng.normal(0, 0.02))
    x *= rng.normal(1, 0.03, (3, 1, 1)).astype(np.float32)
    return np.clip(x, 0, 1), targets(boxes, labels)


class _Samples(torch.utils.data.Dataset[tuple[Floats, Targets]]):
    """The training pictures, augmented anew at each epoch."""

    def __init__(self, data: Pictures, seed: int) -> None:
        self.data, self.seed, self.epoch = data, seed, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Floats, Targets]:
        rng = np.random.default_rng([self.seed, self.epoch, index])
        d = self.data
        return _augmented(d.images[index], d.boxes[index], d.labels[index], rng)


def new_detector(labels: int = len(LABELS), width: float = 1.0) -> Detector:
    """Make a detector of seeded random weights."""
    seed_everything(7)
    return Detector(labels, width)


def train(
    net: Detector,
    data: Pictures,
    epochs: int,
    report: Callable[[Detector, int], None],
    *,
    rate: float = 3e-3,
) -> Detector:
    """Train; the weights returned are a running mean of the last steps' weights."""
    net = net.to(memory_format=torch.channels_last)
    batch = BATCH
    steps = epochs * (len(data) // batch)
    keep = torch.optim.swa_utils.AveragedModel(
        net,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.998 if steps > 2000 else 0.98),
        use_buffers=True,
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.15
    )
    samples = _Samples(data, 7)
    half = trains_in_bf16()
    compiled = torch.compile(net) if shutil.which("g++") else net
    for epoch in range(epochs):
        samples.epoch = epoch
        net.train()
        order = torch.randperm(len(data))
        total = 0.0
        for first in range(0, len(order) - batch + 1, batch):
            rows = [samples[int(i)] for i in order[first : first + batch]]
            x = torch.from_numpy(np.stack([row[0] for row in rows]))
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                raw = compiled(x.to(memory_format=torch.channels_last))
            loss = loss_of(raw.float(), [row[1] for row in rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            optimizer.step()
            schedule.step()
            keep.update_parameters(net)
            total += loss.item()
        print(f"epoch {epoch + 1}/{epochs}: loss {total / (len(order) // batch):.3f}", flush=True)
        report(keep.module, epoch)
    return keep.module.eval()


# ---------------------------------------------------------------------------
# Measuring
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a model finds in one picture: boxes as corners in input pixels."""

    boxes: Floats
    scores: Floats
    labels: npt.NDArray[np.int64]


def decode(output: Floats, threshold: float, iou: float = 0.5) -> Found:
    """Read an output as any decoder of the family does: best label, threshold, suppression."""
    rows = output[0].T
    scores = rows[:, 4:].max(1)
    labels = rows[:, 4:].argmax(1)
    keep = scores > threshold
    center, size = rows[keep, :2], rows[keep, 2:4]
    boxes, scores, labels = np.hstack([center - size / 2, size]), scores[keep], labels[keep]
    if len(boxes):
        kept = cv2.dnn.NMSBoxesBatched(
            boxes.tolist(), scores.tolist(), labels.tolist(), threshold, iou
        )
        order = np.asarray(kept, np.int64).ravel()
        boxes, scores, labels = boxes[order], scores[order], labels[order]
    return Found(np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]]), scores, labels)


def overlaps(a: Floats, b: Floats) -> Floats:
    """Give the intersection over union of each box with each."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = np.clip(high - low, 0, None).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (a, b)]
    return np.asarray(
        inter / np.maximum(areas[0][:, None] + areas[1][None] - inter, 1e-9), np.float32
    )


def average_precision(results: Sequence[Found], data: Pictures, label: int, at: float) -> float:
    """Give one label's average precision: area under the interpolated curve, 101 points."""
    marks: list[tuple[float, bool]] = []
    wanted = 0
    for found, boxes, labels in zip(results, data.boxes, data.labels, strict=True):
        wanted += int(np.count_nonzero(labels == label))
        mine = found.labels == label
        order = np.argsort(-found.scores[mine])
        iou = overlaps(found.boxes[mine][order], boxes)
        taken = np.zeros(len(boxes), bool)
        for row, score in zip(iou, found.scores[mine][order], strict=True):
            right = np.where((labels == label) & ~taken, row, 0.0)
            best = int(right.argmax()) if len(right) else -1
            if best >= 0 and right[best] >= at:
                taken[best] = True
                marks.append((float(score), True))
            elif not np.any((labels < 0) & (row > 0.3)):  # else on a part that does not count
                marks.append((float(score), False))
    if not wanted:
        return float("nan")
    marks.sort(key=lambda mark: -mark[0])
    right = np.cumsum([mark[1] for mark in marks])
    precision = right / np.arange(1, len(marks) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    recall = right / wanted
    at_least = [precision[recall >= r].max(initial=0.0) for r in np.linspace(0, 1, 101)]
    return float(np.mean(at_least))


@dataclass(frozen=True)
class Scores:
    """A model's figures on a set of pictures."""

    map50: float
    map5095: float
    by_label: tuple[float, ...]  # average precision at IoU 0.5


def measure(results: Sequence[Found], data: Pictures) -> Scores:
    """Give mAP at IoU 0.5, over 0.5 to 0.95, and by label."""
    grid = np.array(
        [
            [average_precision(results, data, label, at) for label in range(len(LABELS))]
            for at in np.linspace(0.5, 0.95, 10)
        ]
    )
    return Scores(float(grid[0].mean()), float(grid.mean()), tuple(float(v) for v in grid[0]))


def run_all(runner: Runner, data: Pictures) -> list[Floats]:
    """Run every picture through a model."""
    return [runner(model_ready(image)) for image in data.images]


# ---------------------------------------------------------------------------
# The clip
# ---------------------------------------------------------------------------


def write_clip(path: Path, frames: Iterator[tuple[Bytes, Truth]]) -> None:
    """Encode the clip as H.264, which OpenCV's wheels decode."""
    encoder = subprocess.Popen(
        [
            "ffmpeg", "-loglevel", "error", "-y",
            "-f", "rawvideo", "-pix_fmt", "bgr24",
            "-s", f"{FRAME[0]}x{FRAME[1]}", "-r", str(CLIP_FPS), "-i", "-",
            "-c:v", "libx264", "-preset", "slow", "-crf", "23", "-g", "50",
            "-pix_fmt", "yuv420p", "-fflags", "+bitexact", "-flags:v", "+bitexact",
            "-movflags", "+faststart", str(path),
        ],
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert encoder.stdin is not None
    for frame, _ in frames:
        encoder.stdin.write(frame.tobytes())
    encoder.stdin.close()
    if encoder.wait():
        raise SystemExit("ffmpeg could not encode the clip: is it built with libx264?")


def read_clip(path: Path, every: int) -> Pictures:
    """Read the encoded clip back, with the truth that it was drawn from."""
    video = cv2.VideoCapture(str(path))
    images, boxes, labels = [], [], []
    for index, (_, truth) in enumerate(clip()):
        good, frame = video.read()
        if not good:
            break
        if index % every == 0:
            images.append(cv2.resize(frame, INPUT, interpolation=cv2.INTER_LINEAR))
            there = truth.arrays()
            boxes.append(there[0])
            labels.append(there[1])
    video.release()
    return Pictures(np.stack(images), boxes, labels)


# ---------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------

MANIFEST = """\
name    = "{name}"
version = "3"
task    = "detection"
file    = "model.onnx"

[input]
color  = "rgb"
layout = "nchw"
resize = "letterbox"
interpolation = "linear"
anchor = "center"
pad    = 114
mean   = [0, 0, 0]
scale  = [255, 255, 255]

[output]
decoder   = "yolov8"
threshold = {threshold}
iou       = 0.5
labels    = "labels.txt"
"""

CARD = """\
# parts-inspection

Finds machined parts (washers, flanges, gears, plates, nuts) on a conveyor seen from above and
says of each whether it is good or what is wrong with it. Bundled for demonstration and tests.

**It has never seen a photograph.** All its pictures are rendered by
`scripts/assets/make_parts_inspection.py`: shapes with bevelled edges, turned or brushed metal, a
belt with litter on it, changing lamps, shadows, motion blur, noise and JPEG. Do not expect it to
work on a real line; it shows what such a model is, costs and publishes.

## Model

* Input `images` [1, 3, 192, 320], RGB / 255. Output `output0` [1, {rows}, {cells}] in the YOLOv8
  family's form: cx, cy, w, h in input pixels, then a score for each label
  ({labels}).
* A convolutional detector without anchors on one grid of 8-pixel cells, {parameters} weights.
  A cell beside a surer one is silenced inside the graph, so suppression finds little to do.
* INT8: QDQ, unsigned 8-bit activations, signed 8-bit weights per channel in 7 bits
  (`reduce_range`), so that CPUs without VNNI give the same results. The last convolution
  and the arithmetic of the boxes are float32.

## Data

Training: {train} rendered pictures, {epochs} epochs, mirrored and with changed exposure; then
{line_epochs} epochs of {line} of a line that is set up well, like the demonstration clip's (a clean
belt, defects that are plain to see, no part that covers much of another), and a third as many of
the former. Calibration: {calibration}. The threshold ({threshold}) is the one with the best F1 on
{validation} validation pictures. Figures below: {test} test pictures. The sets share neither parts
nor belts. {share}
Lamps, blur and noise in them are harsher than in most plants; the defects are large (a chip takes
at least a fortieth of a round part, a dent lies on the face and not on a rim). A part counts when
{visible:.0%} of it can be seen; one with a defect when {visible_defect:.0%} of that can be seen
too, a good one when others cover no more than {covered:.0%} of it. The rest counts neither way.

## Figures

Mean average precision on the test pictures, best label per cell, suppression at IoU 0.5:

{engines}

`openvino (default)` computes the float part in bfloat16 where the CPU has it; `f32` asks for
float32 (`INFERENCE_PRECISION_HINT`). Of the boxes that INT8 in ONNX Runtime finds above the
threshold, this share is found in OpenVINO with the same label at IoU 0.5:
{agree}.

At the threshold, INT8 in ONNX Runtime; each row is what the part is, each column what it was
taken for:

{confusion}

Boxes on no part at all: {spurious} ({per_picture:.3f} a picture).

Time for one picture on one thread of the machine that made this file ({vnni}):
{times}.

## Not for

Photographs; parts of other kinds or sizes (it knows parts of 30 to 60 pixels at its own input);
perspective; several defects on one part (it names one); deciding about real parts.

## Demonstration clip

`media/conveyor.mp4`: {seconds} s of the line at {fps} frames a second, drawn from a seed and a
belt that no other set uses: at 4 s the lamp dims, from 7.5 s a shadow passes, from 11.5 s it
flickers, from 15.5 s the belt runs faster. INT8 in ONNX Runtime has a mAP@0.5 of {clip_map:.3f} on
every tenth frame of it.
"""


def confusion(results: Sequence[Found], data: Pictures) -> tuple[npt.NDArray[np.int64], int]:
    """Count what each part was taken for (last column: missed), and boxes on no part."""
    counts = np.zeros((len(LABELS), len(LABELS) + 1), np.int64)
    spurious = 0
    for found, boxes, labels in zip(results, data.boxes, data.labels, strict=True):
        iou = overlaps(found.boxes, boxes)
        used: set[int] = set()
        for index in np.argsort(-found.scores):
            row = np.where([j in used for j in range(len(boxes))], 0, iou[index])
            best = int(row.argmax()) if len(row) else -1
            if best < 0 or row[best] < 0.5:
                spurious += int(not len(row) or iou[index].max() < 0.3)
                continue
            used.add(best)
            if labels[best] >= 0:
                counts[labels[best], found.labels[index]] += 1
        for j, label in enumerate(labels):
            if label >= 0 and j not in used:
                counts[label, -1] += 1
    return counts, spurious


def best_threshold(outputs: Sequence[Floats], data: Pictures) -> float:
    """Give the threshold with the best F1."""
    wanted = sum(int(np.count_nonzero(labels >= 0)) for labels in data.labels)
    best = (0.0, 0.5)
    for threshold in np.arange(0.3, 0.66, 0.05):
        found = [decode(out, float(threshold)) for out in outputs]
        counts, spurious = confusion(found, data)
        right, all_found = int(np.trace(counts)), int(counts[:, :-1].sum()) + spurious
        best = max(best, (2 * right / (wanted + all_found), round(float(threshold), 2)))
    return best[1]


def agreement(a: Sequence[Found], b: Sequence[Found]) -> float:
    """Give the share of a's boxes that b has too."""
    same = total = 0
    for one, other in zip(a, b, strict=True):
        iou = overlaps(one.boxes, other.boxes) * (one.labels[:, None] == other.labels[None])
        total += len(one.boxes)
        same += int(np.count_nonzero(iou.max(1, initial=0) >= 0.5))
    return same / max(total, 1)


def keep_float(model: onnx.ModelProto) -> list[str]:
    """Name the last convolution and what follows it."""
    return downstream(model, ["net.out."])


def write_files(net: Detector, sets: dict[str, Pictures], options: Namespace, epochs: int) -> None:  # noqa: PLR0914 - one after the other, each from what is there
    """Export, quantize, measure, and write the folder and the clip."""
    folder = options.out / "parts-inspection"
    media = options.out / "media"
    folder.mkdir(parents=True, exist_ok=True)
    media.mkdir(parents=True, exist_ok=True)
    int8 = folder / "model.onnx"
    with tempfile.TemporaryDirectory() as scratch:
        fp32 = Path(scratch) / "fp32.onnx"
        export(Exported(net), (1, 3, INPUT[1], INPUT[0]), fp32, NAMES)
        samples = (model_ready(image) for image in sets["calibration"].images)
        to_int8(fp32, int8, samples, keep_float=keep_float)
        runners = {
            "FP32, onnxruntime": in_onnxruntime(fp32),
            "FP32, openvino (f32)": in_openvino(fp32, precision="f32"),
            "INT8, onnxruntime": in_onnxruntime(int8),
            "INT8, openvino (f32)": in_openvino(int8, precision="f32"),
            "INT8, openvino (default)": in_openvino(int8),
        }
    shipped = "INT8, onnxruntime"
    threshold = best_threshold(run_all(runners[shipped], sets["validation"]), sets["validation"])

    test = sets["test"]
    outputs = {name: run_all(runner, test) for name, runner in runners.items()}
    rows = []
    for name, outs in outputs.items():
        got = measure([decode(out, 0.01) for out in outs], test)
        rows.append(
            [name, f"{got.map50:.3f}", f"{got.map5095:.3f}", *(f"{v:.3f}" for v in got.by_label)]
        )
    at = {name: [decode(out, threshold) for out in outs] for name, outs in outputs.items()}
    agree = ", ".join(
        f"{agreement(at[shipped], found):.1%} ({name.split(', ')[1]})"
        for name, found in at.items()
        if name.startswith("INT8, openvino")
    )
    counts, spurious = confusion(at[shipped], test)
    total = np.bincount(np.concatenate(test.labels) + 1, minlength=len(LABELS) + 1)[1:]

    write_clip(media / "conveyor.mp4", clip())
    shown = read_clip(media / "conveyor.mp4", 10)
    clip_scores = measure([decode(out, 0.01) for out in run_all(runners[shipped], shown)], shown)

    busy = [i for i, found in enumerate(at[shipped]) if len(found.boxes) >= 4][:2] or [0, 1]
    cases = np.stack([model_ready(test.images[i]) for i in busy])
    write_golden(folder, cases, np.stack([runners[shipped](case) for case in cases]), NAMES)
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")
    (folder / "model.toml").write_text(MANIFEST.format(name=folder.name, threshold=threshold))
    times = ",\n".join(f"{milliseconds(r, cases[0]):.1f} ms ({n})" for n, r in runners.items())
    card = CARD.format(
        rows=4 + len(LABELS),
        cells=INPUT[0] // STRIDE * (INPUT[1] // STRIDE),
        labels=", ".join(f"`{label}`" for label in LABELS),
        parameters=sum(p.numel() for p in net.parameters()),
        train=len(sets["train"]),
        epochs=epochs,
        line=len(sets["line"]),
        line_epochs=LINE_EPOCHS,
        calibration=len(sets["calibration"]),
        validation=len(sets["validation"]),
        test=len(test),
        threshold=threshold,
        visible=VISIBLE,
        visible_defect=VISIBLE_DEFECT,
        covered=COVERED,
        share="In the test pictures are "
        + ", ".join(f"{n} {label}" for n, label in zip(total, LABELS, strict=True))
        + ".",
        engines=table(["", "mAP@0.5", "mAP@0.5:0.95", *(f"AP {x}" for x in LABELS)], rows),
        agree=agree,
        confusion=table(
            ["", *LABELS, "missed"],
            [[label, *map(str, row)] for label, row in zip(LABELS, counts.tolist(), strict=True)],
        ),
        spurious=spurious,
        per_picture=spurious / len(test),
        vnni=vnni(),
        times=times,
        seconds=CLIP_SECONDS,
        fps=CLIP_FPS,
        clip_map=clip_scores.map50,
    )
    (folder / "README.md").write_text(card)
    print(card)


def main() -> None:
    """Make the model folder and the clip."""
    options = arguments(__doc__ or "")
    if shutil.which("ffmpeg") is None:
        raise SystemExit("ffmpeg is needed for the clip: apt-get install ffmpeg")
    sizes = {"train": 9000, "calibration": 200, "validation": 300, "test": 600, "line": 4500}
    epochs = 32
    if options.quick:
        sizes, epochs = dict.fromkeys(sizes, 40) | {"train": 240}, 2
    sets = {split: pictures(split, count) for split, count in sizes.items()}

    def report(net: Detector, epoch: int) -> None:
        if epoch % 4 == 3 or epoch == epochs - 1:
            whole = Exported(net.eval())
            with torch.no_grad():
                outs = [
                    whole(torch.from_numpy(model_ready(i))).numpy()
                    for i in sets["validation"].images
                ]
            got = measure([decode(out, 0.01) for out in outs], sets["validation"])
            print(f"  validation mAP@0.5 {got.map50:.3f}, @0.5:0.95 {got.map5095:.3f}", flush=True)

    net = train(new_detector(), sets["train"], epochs, report)
    # What it is for comes last, at a rate at which it forgets nothing of what may happen.
    mixed = sets["line"].with_first(len(sets["line"]) // 3, sets["train"])
    net = train(net, mixed, LINE_EPOCHS, report, rate=3e-4)
    write_files(net, sets, options, epochs)


if __name__ == "__main__":
    main()
