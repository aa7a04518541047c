"""What a V4L2 device offers: formats, sizes and rates, as its driver tells."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

from ..core.frozen import record

_CAPTURE = 1
_DISCRETE = 1
_MOST = 64
"""Entries of a list; a driver that has more is broken."""
# Number of the request, and layout of what is asked and answered (linux/videodev2.h).
_FORMATS = 2, "III32sII3I"
_SIZES = 74, "III6I2I"
_INTERVALS = 75, "IIIII6I2I"
RAW = frozenset({"YUYV", "UYVY", "NV12", "NV21", "YU12", "YV12", "BGR3", "RGB3"})
TAKEN = RAW | {"MJPG", "JPEG"}
"""Those in color that are read; another one only where it is asked for."""


@record
class Mode:
    """A format in one size."""

    format: str
    """Four letters: YUYV, MJPG …"""
    size: tuple[int, int]
    """Width and height; the largest, where any is possible."""
    rates: tuple[float, ...] = ()
    """Frames a second; empty: the driver does not tell."""
    least: tuple[int, int] | None = None
    """The smallest size, where any between is possible."""

    def fits(self, size: tuple[int, int]) -> bool:
        """Whether it may be of a size."""
        if self.least is None:
            return size == self.size
        between = zip(self.least, size, self.size, strict=True)
        return all(least <= wanted <= most for least, wanted, most in between)


def modes(node: Path) -> list[Mode]:
    """List what a device offers; nothing where it cannot be asked."""
    found: list[Mode] = []
    with suppress(OSError):
        device = os.open(node, os.O_RDWR | os.O_NONBLOCK)
        try:
            for answer in _listed(device, _FORMATS, _CAPTURE):
                code = answer[4]
                name = struct.pack("I", code).decode("latin-1").strip()
                found += [_mode(device, name, code, size) for size in _listed(device, _SIZES, code)]
        finally:
            os.close(device)
    return found


def _mode(device: int, name: str, code: int, answer: Sequence[int]) -> Mode:
    kind, first, second, _, fourth, fifth = answer[2:8]
    if kind != _DISCRETE:
        # Smallest, largest and step, of the width and then of the height.
        return Mode(name, (second, fifth), least=(first, fourth))
    rates = [
        rate[6] / rate[5]
        for rate in _listed(device, _INTERVALS, code, first, second)
        if rate[4] == _DISCRETE and rate[5]
    ]
    return Mode(name, (first, second), tuple(sorted(rates, reverse=True)))


def _listed(device: int, request: tuple[int, str], *asked: int) -> Iterator[tuple[int, ...]]:
    """Yield the entries of one of the driver's lists, until it says that there are no more."""
    number, layout = request
    size = struct.calcsize(layout)
    code = 3 << 30 | size << 16 | ord("V") << 8 | number
    for index in range(_MOST):
        question = struct.pack("I" * (1 + len(asked)), index, *asked)
        try:
            answer = ioctl(device, code, question.ljust(size, b"\0"))
        except OSError:
            return
        yield struct.unpack(layout, answer)


def shown(offered: Sequence[Mode]) -> str:
    """Return what is offered in a line: sizes of what is in color, each at its highest rate."""
    by_format: dict[str, list[str]] = {}
    for mode in offered:
        if mode.format not in TAKEN:
            continue
        text = f"{mode.size[0]}x{mode.size[1]}"
        if mode.least is not None:
            text = f"{mode.least[0]}x{mode.least[1]} to {text}"
        if mode.rates:
            text += f" at {max(mode.rates):.4g}"
        by_format.setdefault(mode.format, []).append(text)
    others = sorted({mode.format for mode in offered}.difference(TAKEN))[:10]
    found = [f"{name} {', '.join(texts)}" for name, texts in by_format.items()]
    found += [f"also {', '.join(others)}"] if others else []
    return "; ".join(found) or "what its driver does not tell"


def choose(offered: Sequence[Mode], size: tuple[int, int] | None, fps: float | None) -> str | None:
    """Return the format that gives a size and rate at the least cost; None: the driver's own.

    What is not compressed costs least, but does not come quickly enough through many a cable.
    """
    able = [mode for mode in offered if mode.format in TAKEN]
    fit = [mode for mode in able if size is None or mode.fits(size)]
    wanted = fps or max((rate for mode in fit for rate in mode.rates), default=0.0)
    quick = [mode for mode in fit if not mode.rates or max(mode.rates) >= 0.99 * wanted]
    best = min(quick, key=lambda mode: mode.format not in RAW, default=None)
    return None if best is None else best.format
