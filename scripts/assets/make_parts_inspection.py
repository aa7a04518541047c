"""Make `models/parts-inspection` and `models/media/conveyor.mp4` from nothing but a seed.

    python scripts/assets/make_parts_inspection.py [--quick]

A renderer draws machined parts (washers, flanges, gears, plates, nuts) lying on a moving
conveyor as a camera above it would see them, some of them with one defect. A small
convolutional detector learns them, is exported, quantised to INT8, and measured against
pictures that it has not seen. The model card is written from those measurements.

Needs: torch, numpy, onnx, onnxruntime, openvino, opencv-python-headless; the `ffmpeg`
program with libx264 for the clip. About half an hour on two idle cores with AMX,
more than an hour without.
"""

import multiprocessing as mp
import shutil
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import onnx
import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name
from make_common import (
    Floats,
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

Bytes = npt.NDArray[np.uint8]
Rng = np.random.Generator

LABELS = ("good", "crack", "chip", "missing-hole", "dent")
FRAME = (640, 384)  # width, height of what is drawn
INPUT = (320, 192)  # width, height of what the model sees
STRIDE = 8  # input pixels a cell of the model's output stands for
NAMES = ("images", "output0")

# Each split draws its own scenes and its own belts.
SEEDS = {"train": 101, "calibration": 202, "validation": 303, "test": 404, "clip": 521}


# ---------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------

SUPERSAMPLE = 3


@dataclass(frozen=True)
class Sprite:
    """One part, drawn once: premultiplied colour, coverage, and where its defect shows."""

    colour: Floats  # [height, width, 3], BGR in 0..1, times alpha
    alpha: Floats  # [height, width], 0..1
    defect: npt.NDArray[np.bool_]  # [height, width]
    label: int
    size: float  # radius in pixels of the frame


Hole = tuple[float, float, float]


def _ring(count: int, distance: float, radius: float) -> list[Hole]:
    """Place equal holes on a circle around the centre."""
    angles = np.arange(count) * 2 * np.pi / count
    return [(distance * np.cos(a), distance * np.sin(a), radius) for a in angles]


def _outline(kind: str, rng: Rng) -> tuple[Floats, list[Hole], list[int]]:
    """Describe a part of radius 1: outline, holes, and the holes that may be missing."""
    turn = np.linspace(0, 2 * np.pi, 160, endpoint=False)
    if kind == "washer":
        return _polar(turn, np.ones_like(turn)), [(0, 0, rng.uniform(0.36, 0.55))], [0]
    if kind == "flange":
        bolts = _ring(int(rng.integers(4, 7)), 0.67, rng.uniform(0.12, 0.155))
        holes = [(0.0, 0.0, rng.uniform(0.22, 0.34)), *bolts]
        return _polar(turn, np.ones_like(turn)), holes, list(range(1, len(holes)))
    if kind == "gear":
        teeth = int(rng.integers(10, 17))
        turn = np.linspace(0, 2 * np.pi, teeth * 24, endpoint=False)
        wave = np.clip(np.sin(turn * teeth) * 2.2, -1, 1)
        holes = [(0.0, 0.0, rng.uniform(0.24, 0.36))]
        if rng.random() < 0.5:
            holes += _ring(int(rng.integers(3, 6)), 0.56, rng.uniform(0.11, 0.13))
        return _polar(turn, 0.9 + 0.1 * wave), holes, list(range(len(holes)))
    if kind == "nut":
        turn = np.linspace(0, 2 * np.pi, 6, endpoint=False)
        return _polar(turn, np.full(6, 0.95)), [(0, 0, rng.uniform(0.36, 0.48))], [0]
    half_w, half_h = 0.95, rng.uniform(0.52, 0.78)  # a plate
    corner = rng.uniform(0.06, 0.2)
    points = []
    for sx, sy, start in ((1, 1, 0), (-1, 1, 90), (-1, -1, 180), (1, -1, 270)):
        arc = np.deg2rad(np.linspace(start, start + 90, 9))
        centre = (sx * (half_w - corner), sy * (half_h - corner))
        points.append(
            np.stack([centre[0] + corner * np.cos(arc), centre[1] + corner * np.sin(arc)], 1)
        )
    inset = rng.uniform(0.22, 0.27)
    radius = rng.uniform(0.115, 0.15)
    holes = [
        (sx * (half_w - inset), sy * (half_h - inset), radius) for sx in (-1, 1) for sy in (-1, 1)
    ]
    if rng.random() < 0.5:
        holes.append((0.0, 0.0, rng.uniform(0.15, 0.28)))
    return np.concatenate(points).astype(np.float32), holes, [0, 1, 2, 3]


def _polar(angle: npt.NDArray[np.float64], radius: npt.NDArray[np.float64]) -> Floats:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32)


def _blob(rng: Rng, centre: Floats, radius: float) -> Floats:
    """Give an irregular closed outline, as broken material has."""
    angle = np.sort(rng.uniform(0, 2 * np.pi, 11))
    return _polar(angle, radius * rng.uniform(0.65, 1.2, 11)) + centre


def _walk(rng: Rng, start: Floats, heading: float, length: float) -> Floats:
    """Give a jagged line, as a crack runs."""
    points = [start]
    steps = int(rng.integers(5, 9))
    for _ in range(steps):
        bend = heading + rng.normal(0, 0.45)
        points.append(points[-1] + np.float32([np.cos(bend), np.sin(bend)]) * length / steps)
    return np.stack(points).astype(np.float32)


METALS: tuple[tuple[float, float, float], ...] = (  # blue, green, red
    (0.66, 0.66, 0.66),
    (0.76, 0.75, 0.73),
    (0.52, 0.54, 0.56),
    (0.36, 0.62, 0.74),
    (0.32, 0.33, 0.34),
    (0.36, 0.48, 0.68),
)


def draw_part(rng: Rng, light: float, label: int) -> Sprite:
    """Draw one part, lit from the angle `light`."""
    kind = str(rng.choice(["washer", "flange", "gear", "plate", "nut"]))
    size = rng.uniform(36, 58) * (0.85 if kind == "nut" else 1.0)
    scale = size * SUPERSAMPLE
    side = int(np.ceil(size * 1.16)) * 2 * SUPERSAMPLE
    centre = side / 2
    outline, holes, optional = _outline(kind, rng)
    spin = rng.uniform(0, 2 * np.pi)
    rotate = np.float32([[np.cos(spin), np.sin(spin)], [-np.sin(spin), np.cos(spin)]])

    def place(points: Floats) -> Floats:
        return np.asarray(points, np.float32) @ rotate * scale + centre

    def fixed(points: Floats) -> npt.NDArray[np.int32]:
        return np.round(points * 16).astype(np.int32)

    mask = np.zeros((side, side), np.uint8)
    cv2.fillPoly(mask, [fixed(place(outline))], 255, cv2.LINE_AA, 4)
    defect = np.zeros_like(mask)
    missing = int(rng.choice(optional)) if LABELS[label] == "missing-hole" else -1
    for index, (x, y, radius) in enumerate(holes):
        at = fixed(place(np.float32([[x, y]])))[0]
        target, value = (defect, 255) if index == missing else (mask, 0)
        cv2.circle(target, at.tolist(), round(radius * scale * 16), value, -1, cv2.LINE_AA, 4)

    if LABELS[label] == "chip":
        whole = mask
        for _ in range(12):  # between two teeth or beside a hole a bite may take next to nothing
            pick = int(rng.integers(len(outline)))
            reach = rng.uniform(0.24, 0.38)
            bite = np.zeros_like(mask)
            broken = _blob(rng, outline[pick] * 0.96, reach)
            cv2.fillPoly(bite, [fixed(place(broken))], 255, cv2.LINE_AA, 4)
            defect = cv2.min(bite, whole)
            mask = cv2.subtract(whole, bite)
            if defect.sum() / 255 > 0.08 * scale**2:
                break

    depth = cv2.distanceTransform((mask > 127).astype(np.uint8), cv2.DIST_L2, 3)
    bevel = rng.uniform(0.035, 0.075) * scale
    height = np.minimum(depth / bevel, 1.0) * bevel * 0.55
    dark = np.ones((side, side), np.float32)
    inside = place(np.zeros((1, 2), np.float32))[0]

    if LABELS[label] == "crack":
        crack = np.zeros_like(mask)
        x, y, radius = holes[0] if rng.random() < 0.4 else (0, 0, 0)
        heading = rng.uniform(0, 2 * np.pi)
        if radius:  # from the bore outwards
            start = np.float32([x + radius * np.cos(heading), y + radius * np.sin(heading)])
        else:  # from the rim inwards
            start = outline[int(rng.integers(len(outline)))]
            heading = float(np.arctan2(-start[1], -start[0])) + rng.normal(0, 0.3)
        line = _walk(rng, start, heading, rng.uniform(0.42, 0.75))
        width = max(4, round(rng.uniform(0.05, 0.08) * scale))
        cv2.polylines(crack, [fixed(place(line))], False, 255, width, cv2.LINE_AA, 4)
        if rng.random() < 0.5:
            branch = _walk(rng, line[3], heading + rng.choice([-0.9, 0.9]), 0.25)
            cv2.polylines(crack, [fixed(place(branch))], False, 255, width - 2, cv2.LINE_AA, 4)
        defect = cv2.min(crack, mask)
        soft = cv2.GaussianBlur(defect.astype(np.float32) / 255, (0, 0), 1.2)
        dark *= 1 - rng.uniform(0.65, 0.9) * soft
        height -= soft * bevel * 0.4
    elif LABELS[label] == "dent":
        radius = rng.uniform(0.15, 0.24) * scale
        room = np.argwhere(depth > min(radius * 0.6, depth.max() * 0.8))
        cy, cx = room[int(rng.integers(len(room)))]
        ys, xs = np.ogrid[:side, :side]
        squash = rng.uniform(0.75, 1.3)
        away = ((xs - cx) / squash) ** 2 + ((ys - cy) * squash) ** 2
        bowl = np.exp(-away / (2 * (radius * 0.5) ** 2)).astype(np.float32)
        height -= bowl * radius * rng.uniform(0.65, 1.0)
        dark *= 1 - rng.uniform(0.05, 0.3) * bowl
        defect = ((away < radius**2) & (mask > 127)).astype(np.uint8) * 255

    height = cv2.GaussianBlur(height, (0, 0), 1.5)
    slope_x = cv2.Sobel(height, cv2.CV_32F, 1, 0, ksize=3, scale=1 / 8)
    slope_y = cv2.Sobel(height, cv2.CV_32F, 0, 1, ksize=3, scale=1 / 8)
    shade = 1 + rng.uniform(0.8, 1.3) * (slope_x * np.cos(light) + slope_y * np.sin(light))
    shade *= _finish(rng, kind, side, inside, spin) * dark
    # Handling marks that are no defects: pale hairlines and faint stains.
    for _ in range(int(rng.integers(0, 3))):
        hair = place(_walk(rng, np.float32(rng.uniform(-0.6, 0.6, 2)), rng.uniform(0, 6.3), 0.35))
        cv2.polylines(shade, [fixed(hair)], False, rng.uniform(1.1, 1.25), 2, cv2.LINE_AA, 4)
    metal = np.float32(METALS[int(rng.integers(len(METALS)))]) * rng.uniform(0.85, 1.1)
    metal += rng.normal(0, 0.015, 3).astype(np.float32)
    alpha = mask.astype(np.float32) / 255
    colour = np.clip(shade[..., None] * metal, 0.02, 1.15) * alpha[..., None]

    small = (side // SUPERSAMPLE, side // SUPERSAMPLE)
    return Sprite(
        cv2.resize(colour.astype(np.float32), small, interpolation=cv2.INTER_AREA),
        cv2.resize(alpha, small, interpolation=cv2.INTER_AREA),
        cv2.resize(defect, small, interpolation=cv2.INTER_AREA) > 100,
        label,
        size,
    )


def _finish(rng: Rng, kind: str, side: int, centre: Floats, spin: float) -> Floats:
    """Give the surface's texture: turned rings on round parts, brushing on flat ones."""
    ys, xs = np.mgrid[:side, :side].astype(np.float32)
    dx, dy = xs - centre[0], ys - centre[1]
    grain = cv2.GaussianBlur(rng.normal(0, 1, (1, side * 2)).astype(np.float32), (0, 0), 2)[0]
    grain *= rng.uniform(0.04, 0.12) / max(float(grain.std()), 1e-6)
    if kind == "plate" or (kind == "nut" and rng.random() < 0.5):
        across = dx * np.sin(spin) - dy * np.cos(spin) + side
        return 1 + grain[np.clip(across.astype(np.int32), 0, side * 2 - 1)] * 0.7
    rings = grain[np.clip(np.hypot(dx, dy).astype(np.int32), 0, side * 2 - 1)]
    glint = np.cos(2 * (np.arctan2(dy, dx) - rng.uniform(0, np.pi)))  # a turned face's bow tie
    return (1 + rings + rng.uniform(0.03, 0.2) * glint).astype(np.float32)


# ---------------------------------------------------------------------------
# Scenes
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """A part on the belt; x counts along the belt, y across it."""

    sprite: Sprite
    x: float
    y: float


@dataclass(frozen=True)
class Look:
    """How the camera sees one frame."""

    gain: float = 1.0
    tilt: tuple[float, float] = (0.0, 0.0)
    vignette: float = 0.15
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    shadow: tuple[float, float, float, float] | None = None  # centre x, half width, slant, depth
    blur: float = 0.0  # motion blur in pixels
    focus: float = 0.5
    noise: float = 0.012
    gamma: float = 1.0
    quality: int = 0  # JPEG; 0: none


@dataclass
class Truth:
    """What is in one frame; boxes in pixels of the frame."""

    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)  # -1: neither right nor wrong to find

    def arrays(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Give the boxes in pixels of the model's input, and the labels."""
        boxes = np.array(self.boxes, np.float32).reshape(-1, 4) * (INPUT[0] / FRAME[0])
        return boxes, np.array(self.labels, np.int64)


@cache
def _belt(seed: int) -> Floats:
    """Draw 1600 pixels of belt that join end to start."""
    rng = np.random.default_rng(seed)
    width, height = 1600, FRAME[1]

    def noise(sx: float, sy: float) -> Floats:
        wide = rng.normal(0, 1, (height, width)).astype(np.float32)
        wide = cv2.GaussianBlur(np.tile(wide, (1, 3)), (0, 0), sigmaX=sx, sigmaY=sy)
        wide = wide[:, width : 2 * width]
        return wide / wide.std()

    base = rng.uniform(0.1, 0.32)
    belt = base * (
        1 + 0.1 * noise(1.2, 1.2) + 0.12 * noise(40, 30) + rng.uniform(0, 0.12) * noise(60, 0.8)
    )
    ys, xs = np.mgrid[:height, :width]
    pitch = int(rng.choice([8, 10, 16, 20]))
    pattern = str(rng.choice(["plain", "weave", "ribs", "dots"]))
    if pattern == "weave":
        belt *= 1 + 0.1 * np.sign(np.sin(xs * 2 * np.pi / pitch) * np.sin(ys * 2 * np.pi / pitch))
    elif pattern == "ribs":
        belt *= 1 + 0.14 * np.cos(xs * 2 * np.pi / pitch)
    elif pattern == "dots":
        dots = np.cos(xs * 2 * np.pi / pitch) + np.cos(ys * 2 * np.pi / pitch)
        belt *= 1 + 0.2 * (dots > 1.3)
    seam = int(rng.integers(width))
    belt[:, seam : seam + 5] *= rng.uniform(0.5, 1.6)
    tint = np.float32([1, 1, 1]) + rng.normal(0, 0.05, 3).astype(np.float32)
    if rng.random() < 0.35:  # a green or blue belt
        tint *= np.float32([[1.1, 1.25, 0.75], [1.4, 0.95, 0.7]][int(rng.integers(2))])
    out = np.asarray(belt[..., None] * tint, np.float32)
    for _ in range(int(rng.integers(5, 14))):
        _litter(out, rng)
    return np.clip(out, 0.02, 1)


def _litter(belt: Floats, rng: Rng) -> None:
    """Leave something on the belt that is no part: swarf, oil, paper, a screw, tape."""
    height, width = belt.shape[:2]
    x, y = rng.uniform(60, width - 60), rng.uniform(30, height - 30)
    kind = str(rng.choice(["swarf", "oil", "paper", "screw", "tape", "crumbs"]))
    here = np.float32([x, y])
    if kind == "swarf":
        turn = np.linspace(0, rng.uniform(2, 9), 40)
        curl = _polar(turn, rng.uniform(4, 12) * (1 + turn * 0.1)) + here
        curl[:, 0] += turn * rng.uniform(-3, 3)
        cv2.polylines(belt, [np.int32(curl * 16)], False, (0.7, 0.72, 0.75), 1, cv2.LINE_AA, 4)
    elif kind == "oil":
        spot = np.zeros(belt.shape[:2], np.float32)
        cv2.fillPoly(spot, [np.int32(_blob(rng, here, rng.uniform(10, 50)))], 1.0)
        belt *= 1 - rng.uniform(0.2, 0.5) * cv2.GaussianBlur(spot, (0, 0), 4)[..., None]
    elif kind == "paper":
        shade = rng.uniform(0.5, 0.95)
        scrap = _blob(rng, here, rng.uniform(6, 24))
        cv2.fillPoly(belt, [np.int32(scrap * 16)], (shade, shade, shade * 0.95), cv2.LINE_AA, 4)
    elif kind == "screw":
        angle = rng.uniform(0, 6.3)
        along = np.float32([np.cos(angle), np.sin(angle)]) * rng.uniform(14, 26)
        ends = (np.int32(here).tolist(), np.int32(here + along).tolist())
        cv2.line(belt, *ends, (0.5, 0.5, 0.5), 4, cv2.LINE_AA)
        cv2.circle(belt, ends[0], 6, (0.62, 0.62, 0.62), -1, cv2.LINE_AA)
        cv2.circle(belt, ends[0], 2, (0.3, 0.3, 0.3), -1, cv2.LINE_AA)
    elif kind == "tape":
        colour = rng.uniform(0.3, 0.8, 3).tolist()
        cv2.line(
            belt,
            (int(x), 0),
            (int(x + rng.uniform(-40, 40)), height),
            colour,
            int(rng.integers(4, 9)),
        )
    else:
        for _ in range(12):
            at = np.int32(here + rng.normal(0, 14, 2)).tolist()
            cv2.circle(belt, at, int(rng.integers(1, 3)), rng.uniform(0.05, 0.7, 3).tolist(), -1)


@dataclass
class Scene:
    """A stretch of conveyor with parts on it, seen through a window that moves along."""

    belt: int  # seed of its belt
    light: float
    parts: list[Placed]
    rail: float = 0.55  # brightness of the rails at both sides; 0: none

    def frame(self, offset: float, look: Look, rng: Rng) -> tuple[Bytes, Truth]:
        """Draw what the camera sees with the belt moved on by `offset`."""
        width, height = FRAME
        belt = _belt(self.belt)
        start = offset % belt.shape[1]
        whole = int(start)
        columns = (np.arange(width + 1) + whole) % belt.shape[1]
        strip = belt[:, columns]
        part = np.float32(start - whole)
        image = np.ascontiguousarray(strip[:, :-1] * (1 - part) + strip[:, 1:] * part)
        owner = np.zeros((height, width), np.int32)
        seen = [p for p in self.parts if -90 < p.x - offset < width + 90]
        for number, placed in enumerate(seen, 1):
            self._paste(image, owner, placed, offset, number)
        truth = self._truth(seen, owner, offset)
        if look.blur > 1:
            length = int(look.blur) // 2 * 2 + 3
            kernel = np.clip(look.blur / 2 + 0.5 - np.abs(np.arange(length) - length // 2), 0, 1)
            kernel = (kernel / kernel.sum()).astype(np.float32)[None]
            image = cv2.filter2D(image, -1, kernel, borderType=cv2.BORDER_REPLICATE)
        self._rails(image)
        return _develop(image, look, rng), truth

    def _where(self, placed: Placed, offset: float) -> tuple[int, int, float, float]:
        side = placed.sprite.alpha.shape[0]
        x, y = placed.x - offset - side / 2, placed.y - side / 2
        return int(np.floor(x)), int(np.floor(y)), x - np.floor(x), y - np.floor(y)

    def _paste(
        self,
        image: Floats,
        owner: npt.NDArray[np.int32],
        placed: Placed,
        offset: float,
        number: int,
    ) -> None:
        height, width = owner.shape
        sprite = placed.sprite
        left, top, fx, fy = self._where(placed, offset)
        side = sprite.alpha.shape[0]
        pad = 14  # room for the shadow
        shift = np.float32([[1, 0, fx + pad], [0, 1, fy + pad]])
        full = (side + 2 * pad, side + 2 * pad)
        alpha = cv2.warpAffine(sprite.alpha, shift, full, flags=cv2.INTER_LINEAR)
        colour = cv2.warpAffine(sprite.colour, shift, full, flags=cv2.INTER_LINEAR)
        throw = np.float32([[1, 0, 5 * np.cos(self.light)], [0, 1, 5 * np.sin(self.light)]])
        shadow = cv2.GaussianBlur(cv2.warpAffine(alpha, throw, full), (0, 0), 2.5)
        left, top = left - pad, top - pad
        x0, y0, x1, y1 = (
            max(left, 0),
            max(top, 0),
            min(left + full[0], width),
            min(top + full[1], height),
        )
        if x0 >= x1 or y0 >= y1:
            return
        cut = (slice(y0 - top, y1 - top), slice(x0 - left, x1 - left))
        view = image[y0:y1, x0:x1]
        view *= (1 - 0.55 * shadow[cut])[..., None]
        view *= (1 - alpha[cut])[..., None]
        view += colour[cut]
        owner[y0:y1, x0:x1][alpha[cut] > 0.5] = number

    def _truth(self, seen: list[Placed], owner: npt.NDArray[np.int32], offset: float) -> Truth:
        """Say what can be seen of each part: a hidden defect is not there to be found."""
        truth = Truth()
        height, width = owner.shape
        for number, placed in enumerate(seen, 1):
            sprite = placed.sprite
            left, top, _, _ = self._where(placed, offset)
            solid = sprite.alpha > 0.5
            mine = _window(owner, left, top, solid.shape) == number
            ys, xs = np.nonzero(solid)
            fx, fy = placed.x - offset - solid.shape[1] / 2, placed.y - solid.shape[0] / 2
            box = (
                max(xs.min() + fx, 0.0),
                max(ys.min() + fy, 0.0),
                min(xs.max() + 1 + fx, float(width)),
                min(ys.max() + 1 + fy, float(height)),
            )
            if box[2] - box[0] < 4 or box[3] - box[1] < 4:
                continue
            label = sprite.label
            if np.count_nonzero(mine & solid) / np.count_nonzero(solid) < 0.6:
                label = -1
            elif label:
                # A chip is where there is no part: it is seen where no other part lies on it.
                there = _window(owner, left, top, solid.shape)
                clear = (there == number) | (there == 0)
                share = np.count_nonzero(clear & sprite.defect) / max(
                    np.count_nonzero(sprite.defect), 1
                )
                label = label if share > 0.6 else (0 if share < 0.15 else -1)
            truth.boxes.append(box)
            truth.labels.append(label)
        return truth

    def _rails(self, image: Floats) -> None:
        if not self.rail:
            return
        for top, bottom in ((0, 22), (FRAME[1] - 22, FRAME[1])):
            ramp = np.sin(np.linspace(0.3, 2.9, bottom - top)).astype(np.float32)
            image[top:bottom] = (self.rail * ramp)[:, None, None]
            for x in range(40, FRAME[0], 110):
                cv2.circle(image, (x, (top + bottom) // 2), 5, (0.2, 0.2, 0.2), -1, cv2.LINE_AA)


def _window(
    owner: npt.NDArray[np.int32], left: int, top: int, shape: tuple[int, ...]
) -> npt.NDArray[np.int32]:
    """Cut a window that may reach beyond the picture, where it is -1."""
    out = np.full(shape, -1, np.int32)
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + shape[1], owner.shape[1]), min(top + shape[0], owner.shape[0])
    if x0 < x1 and y0 < y1:
        out[y0 - top : y1 - top, x0 - left : x1 - left] = owner[y0:y1, x0:x1]
    return out


def _develop(image: Floats, look: Look, rng: Rng) -> Bytes:
    """Turn light into a picture: lamp, lens, sensor, compression."""
    height, width = image.shape[:2]
    ys = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    xs = np.linspace(-1, 1, width, dtype=np.float32)[None]
    lamp = look.gain * (1 + look.tilt[0] * xs + look.tilt[1] * ys)
    lamp = lamp * (1 - look.vignette * (xs**2 + ys**2))
    if look.shadow is not None:
        centre, half, slant, deep = look.shadow
        away = np.abs(xs + slant * ys - centre) / half
        lamp = lamp * (1 - deep / (1 + np.exp(np.clip((away - 1) * 10, -20, 20))))
    image = image * lamp[..., None].astype(np.float32) * np.float32(look.tint)
    if look.focus > 0.25:
        image = cv2.GaussianBlur(image, (0, 0), look.focus)
    image = np.clip(image, 0, 1)
    grain = np.empty_like(image)
    cv2.setRNGSeed(int(rng.integers(1, 2**31 - 1)))
    cv2.randn(grain, 0.0, 1.0)
    image += grain * (look.noise * np.sqrt(0.15 + image))
    image = np.clip(image, 0, 1) ** np.float32(look.gamma)
    picture = np.round(image * 255).astype(np.uint8)
    if look.quality:
        _, packed = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, look.quality])
        picture = cv2.imdecode(packed, cv2.IMREAD_COLOR)
    return picture


def random_look(rng: Rng) -> Look:
    """Draw how a frame is seen: from a well-lit line to a dim, blurred and noisy one."""
    shadow = None
    if rng.random() < 0.3:
        shadow = (
            rng.uniform(-1, 1),
            rng.uniform(0.15, 0.6),
            rng.uniform(-0.6, 0.6),
            rng.uniform(0.2, 0.65),
        )
    return Look(
        gain=float(np.exp(rng.normal(0, 0.28))),
        tilt=(rng.uniform(-0.3, 0.3), rng.uniform(-0.3, 0.3)),
        vignette=rng.uniform(0, 0.25),
        tint=(rng.uniform(0.9, 1.1), 1.0, rng.uniform(0.9, 1.1)),
        shadow=shadow,
        blur=float(rng.choice([0, rng.uniform(0, 3), rng.uniform(3, 7)])),
        focus=rng.uniform(0.2, 1.1),
        noise=float(np.exp(rng.uniform(np.log(0.005), np.log(0.05)))),
        gamma=rng.uniform(0.8, 1.2),
        quality=int(rng.integers(45, 96)) if rng.random() < 0.6 else 0,
    )


def fill(
    rng: Rng, light: float, start: float, end: float, per_100: float, good: float
) -> list[Placed]:
    """Lay parts on a stretch of belt, a few of them over another one."""
    parts: list[Placed] = []
    for _ in range(int(rng.poisson((end - start) / 100 * per_100))):
        label = 0 if rng.random() < good else int(rng.integers(1, len(LABELS)))
        sprite = draw_part(rng, light, label)
        touching = rng.random() < 0.05
        for _attempt in range(25):
            x, y = (
                rng.uniform(start, end),
                rng.uniform(20 + sprite.size, FRAME[1] - 20 - sprite.size),
            )
            gap = 0.62 if touching else 1.03
            if all(np.hypot(x - p.x, y - p.y) > gap * (sprite.size + p.sprite.size) for p in parts):
                parts.append(Placed(sprite, x, y))
                break
    return parts


def example(seed: int, index: int) -> tuple[Bytes, Floats, npt.NDArray[np.int64]]:
    """Draw one picture with its truth, at the size that the model sees."""
    cv2.setNumThreads(1)
    rng = np.random.default_rng([seed, index])
    light = rng.uniform(0, 2 * np.pi)
    start = rng.uniform(0, 1600)
    parts = fill(rng, light, start - 40, start + FRAME[0] + 40, rng.uniform(0.3, 1.5), 0.42)
    rail = rng.uniform(0.3, 0.7) if rng.random() < 0.6 else 0.0
    scene = Scene(seed * 1000 + int(rng.integers(24)), light, parts, rail)
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


def pictures(split: str, count: int) -> Pictures:
    """Draw a split; the same split is the same pictures, however many CPUs drew it."""
    with mp.get_context("spawn").Pool(workers()) as pool:
        rows = pool.map(partial(example, SEEDS[split]), range(count), chunksize=16)
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
    context. Each cell says whether a part's centre lies in it, how far the part's edges are,
    and what the part is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(
            _conv(3, 24, 2), _conv(24, 32, 2), _Residual(32), _conv(32, 64, 2),
            _Residual(64), _Residual(64),
        )  # fmt: skip
        self.coarse = nn.Sequential(_conv(64, 96, 2), _Residual(96), _conv(96, 64, size=1))
        self.head = _conv(64, 64)
        self.out = nn.Conv2d(64, 1 + 4 + len(LABELS), 1)
        bias = torch.zeros(1 + 4 + len(LABELS))
        bias[0], bias[1:5] = -4.0, 3.0  # at first: no part anywhere, edges 24 pixels away
        self.out.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Give the raw grid: centre logit, four distances, label logits."""
        fine = self.fine(x)
        context = F.interpolate(self.coarse(fine), scale_factor=2.0, mode="nearest")
        return self.out(self.head(fine + context))


def corners(raw: Tensor) -> Tensor:
    """Turn raw distances [B, 4, H, W] into corners x1, y1, x2, y2 in input pixels."""
    height, width = raw.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centre = (torch.stack([xs, ys]).float() + 0.5) * STRIDE
    reach = F.softplus(raw) * STRIDE
    return torch.cat([centre - reach[:, :2], centre + reach[:, 2:]], 1)


class Exported(nn.Module):
    """The detector with the output of the YOLOv8 family: [1, 4 + labels, cells]."""

    def __init__(self, net: Detector) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Give cx, cy, w, h in input pixels and a score for each label.

        A cell whose neighbour is surer is silenced here: two cells of one part that disagree
        on its label would both survive a suppression that works label by label.
        """
        raw = self.net(x)
        centre = torch.sigmoid(raw[:, :1])
        peak = (centre >= F.max_pool2d(centre, 3, 1, 1)).float()
        scores = centre * peak * torch.softmax(raw[:, 5:], 1)
        box = corners(raw[:, 1:5])
        low, high = box[:, :2], box[:, 2:]
        out = torch.cat([(low + high) * 0.5, high - low, scores], 1)
        return out.reshape(1, 4 + len(LABELS), -1)


@dataclass(frozen=True)
class Targets:
    """What the grid should say for one picture."""

    heat: Floats  # how near each cell is to a part's centre, 1 in the cell that holds it
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
    """Give the generalised intersection over union of boxes [4, N]."""
    inter = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0).prod(0)
    union = (a[2:] - a[:2]).prod(0) + (b[2:] - b[:2]).prod(0) - inter
    hull = (torch.maximum(a[2:], b[2:]) - torch.minimum(a[:2], b[:2])).prod(0)
    return inter / union.clamp(min=1e-6) - (hull - union) / hull.clamp(min=1e-6)


def loss_of(raw: Tensor, batch: Sequence[Targets]) -> Tensor:
    """Sum the three losses: centre (penalty-reduced focal), box (GIoU), label."""
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
    return found.sum() / hit.sum().clamp(min=1) + 2 * boxes + named


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


def train(data: Pictures, epochs: int, report: Callable[[Detector, int], None]) -> Detector:
    """Train from scratch; the weights returned are a running mean of the last steps' weights."""
    seed_everything(7)
    net = Detector().to(memory_format=torch.channels_last)
    batch = 24
    steps = epochs * (len(data) // batch)
    keep = torch.optim.swa_utils.AveragedModel(
        net,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.998 if steps > 2000 else 0.98),
        use_buffers=True,
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, total_steps=steps, pct_start=0.15
    )
    samples = _Samples(data, 7)
    half = trains_in_bf16()
    for epoch in range(epochs):
        samples.epoch = epoch
        net.train()
        order = torch.randperm(len(data))
        total = 0.0
        for first in range(0, len(order) - batch + 1, batch):
            rows = [samples[int(i)] for i in order[first : first + batch]]
            x = torch.from_numpy(np.stack([row[0] for row in rows]))
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                raw = net(x.to(memory_format=torch.channels_last))
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
    centre, size = rows[keep, :2], rows[keep, 2:4]
    boxes, scores, labels = np.hstack([centre - size / 2, size]), scores[keep], labels[keep]
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

CLIP_FPS, CLIP_SECONDS = 25, 20


def _bump(t: float, start: float, end: float, ramp: float = 0.6) -> float:
    """Rise from 0 to 1 at `start` and fall back at `end`, both within `ramp` seconds."""
    return float(np.clip((t - start) / ramp, 0, 1) * np.clip((end - t) / ramp, 0, 1))


def clip(fps: int = CLIP_FPS, seconds: float = CLIP_SECONDS) -> Iterator[tuple[Bytes, Truth]]:
    """Draw a run of the line: the lamp dims, a shadow passes, it flickers, the belt speeds up."""
    rng = np.random.default_rng(SEEDS["clip"])
    light = rng.uniform(0, 2 * np.pi)
    parts = fill(rng, light, -20, 2500, 1.2, 0.5)
    scene = Scene(SEEDS["clip"] * 1000, light, parts)
    offset = 0.0
    for index in range(round(fps * seconds)):
        t = index / fps
        speed = 75 * (1 + 0.9 * _bump(t, 15.5, 18.5)) / fps
        dim = _bump(t, 4, 7)
        flicker = 0.14 * _bump(t, 11.5, 14) * np.sin(2 * np.pi * 6.3 * t)
        warm = 0.08 * _bump(t, 14, 18)
        look = Look(
            gain=1.1 * (1 - 0.55 * dim) * (1 + flicker),
            tilt=(0.12, -0.08),
            tint=(1 - warm, 1, 1 + warm),
            shadow=(-2.2 + 4.4 * (t - 7.5) / 3.5, 0.4, 0.35, 0.5) if 7.5 < t < 11 else None,
            blur=speed * 0.7,
            focus=0.55,
            noise=0.008 + 0.014 * dim,
        )
        yield scene.frame(offset, look, rng)
        offset += speed


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
name    = "parts-inspection"
version = "1"
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

Training: {train} rendered pictures, {epochs} epochs, mirrored and with changed exposure.
Calibration: {calibration}. The threshold ({threshold}) is the one with the best F1 on {validation}
validation pictures. Figures below: {test} test pictures. The four sets share neither parts nor
belts. {share}
Lamps, blur and noise in them are harsher than in most plants; the defects are large (a chip takes
at least a fortieth of a round part). A part of which less than 60 % can be seen counts neither
way; a defect counts when 60 % of it can be seen.

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


def write_files(net: Detector, sets: dict[str, Pictures], options: Namespace, epochs: int) -> None:
    """Export, quantise, measure, and write the folder and the clip."""
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
    (folder / "model.toml").write_text(MANIFEST.format(threshold=threshold))
    times = ",\n".join(f"{milliseconds(r, cases[0]):.1f} ms ({n})" for n, r in runners.items())
    card = CARD.format(
        rows=4 + len(LABELS),
        cells=INPUT[0] // STRIDE * (INPUT[1] // STRIDE),
        labels=", ".join(f"`{label}`" for label in LABELS),
        parameters=sum(p.numel() for p in net.parameters()),
        train=len(sets["train"]),
        epochs=epochs,
        calibration=len(sets["calibration"]),
        validation=len(sets["validation"]),
        test=len(test),
        threshold=threshold,
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
    sizes = {"train": 6000, "calibration": 200, "validation": 300, "test": 600}
    epochs = 20
    if options.quick:
        sizes, epochs = {"train": 240, "calibration": 20, "validation": 20, "test": 40}, 2
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

    net = train(sets["train"], epochs, report)
    write_files(net, sets, options, epochs)


if __name__ == "__main__":
    main()
