"""Draw the conveyor that `parts-inspection` is trained on, and say what is in each picture.

Machined parts (washers, flanges, gears, plates, nuts), some of them with one defect, lie on a belt
that moves below a camera. Needs: numpy, opencv-python-headless.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Rng = np.random.Generator

LABELS = ("good", "crack", "chip", "missing-hole", "dent")
FRAME = (640, 384)  # width, height of what is drawn
RAIL = 24  # pixels at both sides where no part lies
INPUT = (320, 192)  # width, height of what the model sees
CLIP_SEED = 521  # no split of the training has it

# ---------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------

SUPERSAMPLE = 3

# What must be seen of a part, and of its defect, for it to count; and what others may cover of a
# good one, which looks broken otherwise.
VISIBLE = 0.6
VISIBLE_DEFECT = 0.75
COVERED = 0.1


@dataclass(frozen=True)
class Sprite:
    """One part, drawn once: premultiplied color, coverage, and where its defect shows."""

    color: Floats  # [height, width, 3], BGR in 0..1, times alpha
    alpha: Floats  # [height, width], 0..1
    defect: npt.NDArray[np.bool_]  # [height, width]
    label: int
    size: float  # radius in pixels of the frame


Hole = tuple[float, float, float]


def _ring(count: int, distance: float, radius: float) -> list[Hole]:
    """Place equal holes on a circle around the center."""
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
        center = (sx * (half_w - corner), sy * (half_h - corner))
        points.append(
            np.stack([center[0] + corner * np.cos(arc), center[1] + corner * np.sin(arc)], 1)
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


def _blob(rng: Rng, center: Floats, radius: float) -> Floats:
    """Give an irregular closed outline, as broken material has."""
    # Nearly even angles: with a wide gap between two of them it would be cut to a sliver.
    angle = (np.arange(11) + rng.uniform(-0.3, 0.3, 11)) * (2 * np.pi / 11)
    return _polar(angle, radius * rng.uniform(0.65, 1.2, 11)) + center


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


# One drawing from top to bottom; the order of its random numbers is part of the assets.
def draw_part(  # noqa: C901, PLR0912, PLR0914, PLR0915 - the order of its random numbers is part of the assets
    rng: Rng, light: float, label: int, *, plain: bool = False
) -> Sprite:
    """Draw one part, lit from the angle `light`.

    Args:
        rng: draws everything about it.
        light: angle.
        label: of LABELS.
        plain: its defect is plain to see, and not just there.

    """
    kind = str(rng.choice(["washer", "flange", "gear", "plate", "nut"]))
    size = rng.uniform(36, 58) * (0.85 if kind == "nut" else 1.0)
    scale = size * SUPERSAMPLE
    side = int(np.ceil(size * 1.16)) * 2 * SUPERSAMPLE
    center = side / 2
    outline, holes, optional = _outline(kind, rng)
    spin = rng.uniform(0, 2 * np.pi)
    rotate = np.float32([[np.cos(spin), np.sin(spin)], [-np.sin(spin), np.cos(spin)]])

    def place(points: Floats) -> Floats:
        return np.asarray(points, np.float32) @ rotate * scale + center

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
        wide = cv2.getStructuringElement(
            cv2.MORPH_ELLIPSE, (round((0.26 if plain else 0.2) * scale),) * 2
        )
        least = (0.14 if plain else 0.08) * scale**2
        for _ in range(24):  # between two teeth or beside a hole a bite may take next to nothing
            pick = int(rng.integers(len(outline)))
            reach = rng.uniform(0.24, 0.38)
            bite = np.zeros_like(mask)
            broken = _blob(rng, outline[pick] * 0.96, reach)
            cv2.fillPoly(bite, [fixed(place(broken))], 255, cv2.LINE_AA, 4)
            defect = cv2.min(bite, whole)
            mask = cv2.subtract(whole, bite)
            # So much of it is wider than a crack.
            if cv2.morphologyEx(defect, cv2.MORPH_OPEN, wide).sum() / 255 > least:
                break
        else:
            if plain:
                return draw_part(rng, light, label, plain=True)

    depth = cv2.distanceTransform((mask > 127).astype(np.uint8), cv2.DIST_L2, 3)
    bevel = rng.uniform(0.035, 0.075) * scale
    height = np.minimum(depth / bevel, 1.0) * bevel * 0.55
    dark = np.ones((side, side), np.float32)
    inside = place(np.zeros((1, 2), np.float32))[0]

    if LABELS[label] == "crack":
        # From the rim a gear breaks between two teeth: that is where it is thinnest.
        reach = np.hypot(*outline.T)
        rim = outline[reach < reach.min() + 0.02] if kind == "gear" else outline
        width = max(4, round(rng.uniform(0.065 if plain else 0.05, 0.08) * scale))
        least = (0.45 if plain else 0.3) * scale * width
        for _ in range(24):  # along a rim or into a hole hardly any of it may be on the part
            crack = np.zeros_like(mask)
            x, y, radius = holes[0] if rng.random() < 0.4 else (0, 0, 0)
            heading = rng.uniform(0, 2 * np.pi)
            if radius:  # from the bore outwards
                start = np.float32([x + radius * np.cos(heading), y + radius * np.sin(heading)])
            else:  # from the rim inwards
                start = rim[int(rng.integers(len(rim)))]
                heading = float(np.arctan2(-start[1], -start[0])) + rng.normal(0, 0.3)
            line = _walk(rng, start, heading, rng.uniform(0.42, 0.75))
            cv2.polylines(crack, [fixed(place(line))], False, 255, width, cv2.LINE_AA, 4)
            if rng.random() < 0.5:
                branch = _walk(rng, line[3], heading + rng.choice([-0.9, 0.9]), 0.25)
                cv2.polylines(crack, [fixed(place(branch))], False, 255, width - 2, cv2.LINE_AA, 4)
            defect = cv2.min(crack, mask)
            inwards = depth[defect > 127].max(initial=0) > (0.15 * scale if plain else 0)
            if defect.sum() / 255 > least and inwards:
                break
        else:
            if plain:
                return draw_part(rng, light, label, plain=True)
        soft = cv2.GaussianBlur(defect.astype(np.float32) / 255, (0, 0), 1.2)
        dark *= 1 - rng.uniform(0.65, 0.9) * soft
        height -= soft * bevel * 0.4
    elif LABELS[label] == "dent":
        radius = rng.uniform(0.18 if plain else 0.15, 0.24) * scale
        if plain and depth.max() < 1.2 * radius:
            return draw_part(rng, light, label, plain=True)  # from hole to rim it would be a crack
        # On the face, as wide as the part has one: cut by a rim or a hole it is taken for a chip.
        room = np.argwhere(depth > min(radius * (1.15 if plain else 1.0), depth.max() * 0.85))
        cy, cx = room[int(rng.integers(len(room)))]
        ys, xs = np.ogrid[:side, :side]
        squash = rng.uniform(0.75, 1.3)
        away = ((xs - cx) / squash) ** 2 + ((ys - cy) * squash) ** 2
        bowl = np.exp(-away / (2 * (radius * 0.5) ** 2)).astype(np.float32)
        height -= bowl * radius * rng.uniform(0.8, 1.1)
        dark *= 1 - rng.uniform(0.12, 0.3) * bowl
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
    color = np.clip(shade[..., None] * metal, 0.02, 1.15) * alpha[..., None]

    small = (side // SUPERSAMPLE, side // SUPERSAMPLE)
    return Sprite(
        cv2.resize(color.astype(np.float32), small, interpolation=cv2.INTER_AREA),
        cv2.resize(alpha, small, interpolation=cv2.INTER_AREA),
        cv2.resize(defect, small, interpolation=cv2.INTER_AREA) > 100,
        label,
        size,
    )


def _finish(rng: Rng, kind: str, side: int, center: Floats, spin: float) -> Floats:
    """Give the surface's texture: turned rings on round parts, brushing on flat ones."""
    ys, xs = np.mgrid[:side, :side].astype(np.float32)
    dx, dy = xs - center[0], ys - center[1]
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
    shadow: tuple[float, float, float, float] | None = None  # center x, half width, slant, depth
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
    parts: list[int] = field(default_factory=list)  # their places among the scene's parts
    offset: float = 0.0  # how far the belt has moved on

    def arrays(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Give the boxes in pixels of the model's input, and the labels."""
        boxes = np.array(self.boxes, np.float32).reshape(-1, 4) * (INPUT[0] / FRAME[0])
        return boxes, np.array(self.labels, np.int64)


@lru_cache(maxsize=32)
def _belt(seed: int, *, clean: bool) -> Floats:
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
    for _ in range(int(rng.integers(10, 28))):
        _litter(out, rng, STAINS if clean else LITTER)
    return np.clip(out, 0.02, 1)


STAINS = ("oil", "crumbs")
LITTER = ("swarf", "oil", "paper", "screw", "tape", "crumbs")


def _litter(belt: Floats, rng: Rng, kinds: Sequence[str]) -> None:
    """Leave something on the belt that is no part."""
    height, width = belt.shape[:2]
    x, y = rng.uniform(60, width - 60), rng.uniform(30, height - 30)
    kind = str(rng.choice(kinds))
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
        color = rng.uniform(0.3, 0.8, 3).tolist()
        cv2.line(
            belt,
            (int(x), 0),
            (int(x + rng.uniform(-40, 40)), height),
            color,
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
    clean: bool = False  # nothing on the belt that could be seen through a hole as part of a part

    def frame(self, offset: float, look: Look, rng: Rng) -> tuple[Bytes, Truth]:
        """Draw what the camera sees with the belt moved on by `offset`."""
        width, height = FRAME
        belt = _belt(self.belt, clean=self.clean)
        start = offset % belt.shape[1]
        whole = int(start)
        columns = (np.arange(width + 1) + whole) % belt.shape[1]
        strip = belt[:, columns]
        part = np.float32(start - whole)
        image = np.ascontiguousarray(strip[:, :-1] * (1 - part) + strip[:, 1:] * part)
        owner = np.zeros((height, width), np.int32)
        seen = {
            index: part
            for index, part in enumerate(self.parts)
            if -90 < part.x - offset < width + 90
        }
        for number, placed in enumerate(seen.values(), 1):
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

    def _paste(  # noqa: PLR0914 - the order of its random numbers is part of the assets
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
        color = cv2.warpAffine(sprite.color, shift, full, flags=cv2.INTER_LINEAR)
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
        view += color[cut]
        owner[y0:y1, x0:x1][alpha[cut] > 0.5] = number

    def _truth(self, seen: dict[int, Placed], owner: npt.NDArray[np.int32], offset: float) -> Truth:  # noqa: PLR0914 - the order of its random numbers is part of the assets
        """Say what can be seen of each part: a hidden defect is not there to be found."""
        truth = Truth(offset=offset)
        height, width = owner.shape
        for number, (index, placed) in enumerate(seen.items(), 1):
            sprite = placed.sprite
            left, top, _, _ = self._where(placed, offset)
            solid = sprite.alpha > 0.5
            there = _window(owner, left, top, solid.shape)
            mine = there == number
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
            whole = np.count_nonzero(solid)
            hidden = np.count_nonzero(mine & solid) < VISIBLE * whole
            covered = np.count_nonzero(solid & (there >= 0) & ~mine) > COVERED * whole
            if hidden or (covered and not label):
                label = -1
            elif label:
                # A chip is where there is no part: it is seen where no other part lies on it.
                clear = (there == number) | (there == 0)
                share = np.count_nonzero(clear & sprite.defect) / max(
                    np.count_nonzero(sprite.defect), 1
                )
                label = label if share > VISIBLE_DEFECT else -1
            truth.boxes.append(box)
            truth.labels.append(label)
            truth.parts.append(index)
        return truth

    def _rails(self, image: Floats) -> None:
        if not self.rail:
            return
        for top, bottom in ((0, RAIL - 2), (FRAME[1] - RAIL + 2, FRAME[1])):
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
        center, half, slant, deep = look.shadow
        away = np.abs(xs + slant * ys - center) / half
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
    rng: Rng,
    light: float,
    start: float,
    end: float,
    per_100: float,
    good: float,
    *,
    plain: bool = False,
) -> list[Placed]:
    """Lay parts on a stretch of belt, a few of them over another one.

    Args:
        rng: draws the parts and their places.
        light: angle.
        start: pixels along the belt.
        end: pixels along the belt.
        per_100: parts to 100 pixels.
        good: share of good ones.
        plain: as on a line that is set up well: defects are plain to see, and no part covers much
            of another.

    """
    parts: list[Placed] = []
    for _ in range(int(rng.poisson((end - start) / 100 * per_100))):
        label = 0 if rng.random() < good else int(rng.integers(1, len(LABELS)))
        sprite = draw_part(rng, light, label, plain=plain)
        touching = rng.random() < 0.05
        for _attempt in range(25):
            x, y = (
                rng.uniform(start, end),
                rng.uniform(RAIL + sprite.size, FRAME[1] - RAIL - sprite.size),
            )
            gap = (0.92 if plain else 0.62) if touching else 1.03
            if all(np.hypot(x - p.x, y - p.y) > gap * (sprite.size + p.sprite.size) for p in parts):
                parts.append(Placed(sprite, x, y))
                break
    return parts


# ---------------------------------------------------------------------------
# The clip
# ---------------------------------------------------------------------------

CLIP_FPS, CLIP_SECONDS = 25, 20


def _bump(t: float, start: float, end: float, ramp: float = 0.6) -> float:
    """Rise from 0 to 1 at `start` and fall back at `end`, both within `ramp` seconds."""
    return float(np.clip((t - start) / ramp, 0, 1) * np.clip((end - t) / ramp, 0, 1))


def laid_out(seconds: float = CLIP_SECONDS) -> tuple[Scene, Rng]:
    """Lay the parts of the clip, or of a longer run of the same line, on its belt."""
    rng = np.random.default_rng(CLIP_SEED)
    light = rng.uniform(0, 2 * np.pi)
    parts = fill(rng, light, -20, 125 * seconds, 1.2, 0.5, plain=True)
    return Scene(CLIP_SEED * 1000, light, parts, clean=True), rng


def clip(fps: int = CLIP_FPS, seconds: float = CLIP_SECONDS) -> Iterator[tuple[Bytes, Truth]]:
    """Draw a run of the line: the lamp dims, a shadow passes, it flickers, the belt speeds up.

    That happens anew every CLIP_SECONDS.
    """
    scene, rng = laid_out(seconds)
    offset = 0.0
    for index in range(round(fps * seconds)):
        t = index / fps % CLIP_SECONDS
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
