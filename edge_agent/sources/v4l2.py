"""Which V4L2 device is which: a camera is found again after it came back under another number.

The kernel numbers /dev/videoN as devices come, and a number is only free again when no process
holds the old device open anymore. What a camera is stands in sysfs, and is remembered from when it
ran. Knows nothing of pictures.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

from ..core.errors import SourceError
from ..core.frozen import record

log = logging.getLogger(__name__)


@record
class Device:
    """The properties of a camera that stay the same whatever its number."""

    name: str
    """The driver's name for it, e.g. `HD Pro Webcam C920`."""
    index: str
    """Which of the camera's nodes: one gives pictures, others metadata."""
    product: str
    """Of USB: vendor, product and version; else empty."""
    serial: str
    """Of USB, where the maker gave it one; else empty."""
    place: str
    """Bus and port, as a path in sysfs; another one where it is plugged in elsewhere."""

    def is_like(self, other: Device) -> bool:
        """Whether the other may be this very camera, in whatever port."""
        mine = (self.name, self.index, self.product, self.serial)
        return mine == (other.name, other.index, other.product, other.serial)


class Devices:
    """The V4L2 devices of this machine, and which of them were seen at work."""

    def __init__(self, sysfs: Path = Path("/sys"), dev: Path = Path("/dev")) -> None:
        self._sysfs = sysfs
        self._dev = dev
        self._seen: dict[Path, Device] = {}
        """By the path in the settings."""
        self._beside: dict[Path, frozenset[Device]] = {}
        """Devices that were present beside it, and so are other ones, however alike they look."""
        self._changing = threading.Lock()

    def locate(self, path: Path) -> Path:
        """Return the node of the camera that was at work as *path*; else *path* itself.

        Raises:
            SourceError: that camera is not there, and *path* is another one now.
        """
        with self._changing:
            known = self._seen.get(path)
            others = {device for key, device in self._seen.items() if key != path}
            others |= self._beside.get(path, frozenset())
        if known is None:
            return path
        here = self._look(self._number(path))
        if here == known:
            return path
        there = self._all()
        for node, found in there:
            if found == known:
                return node
        # Plugged into another port. Of several that look the same, any would be a guess.
        alike = [node for node, found in there if known.is_like(found) and found not in others]
        if len(alike) == 1:
            return alike[0]
        if here is None:
            return path
        raise SourceError(
            f"v4l2:{path}: is another camera now ({here.name} at {here.place}), and {known.name} "
            f"is not to be found; plug it into {known.place}, or restart the agent to take the "
            "other one"
        )

    def remember(self, path: Path, node: Path) -> None:
        """Record that the camera meant by *path* is at work as *node*."""
        device = self._look(self._number(node))
        if device is None:
            return
        with self._changing:
            before = self._seen.get(path)
            self._seen[path] = device
            self._beside[path] = frozenset(found for _, found in self._all()) - {device}
        if before is not None and node != path:
            log.info("v4l2:%s: %s is now %s", path, device.name, node)

    @staticmethod
    def _number(node: Path) -> str | None:
        """Return a device's number, e.g. `81:0`, or None if there is no device."""
        try:
            known = node.stat()
        except OSError:
            return None
        # By number, not by name: containers may call a device differently.
        return f"{os.major(known.st_rdev)}:{os.minor(known.st_rdev)}"

    def _look(self, number: str | None) -> Device | None:
        """Read a device's properties, or return None if sysfs does not know it as V4L2."""
        if number is None:
            return None
        folder = self._sysfs / "dev" / "char" / number
        name, index = _text(folder / "name"), _text(folder / "index")
        if not name:
            return None
        parent = (folder / "device").resolve()
        words = dict(
            line.split("=", 1) for line in _text(parent / "uevent").splitlines() if "=" in line
        )
        # A USB camera's parent is one of its interfaces; the serial number is the whole device's.
        serial = _text(parent.parent / "serial") if "PRODUCT" in words else ""
        place = os.path.relpath(parent, self._sysfs.resolve())
        return Device(name, index, words.get("PRODUCT", ""), serial, place)

    def _all(self) -> list[tuple[Path, Device]]:
        """Find every device that has a node, in the order of their names."""
        found = []
        for folder in sorted((self._sysfs / "class" / "video4linux").glob("*")):
            node, number = self._dev / folder.name, _text(folder / "dev")
            device = self._look(number)
            if device is not None and self._number(node) == number:
                found.append((node, device))
        return found


DEVICES = Devices()
"""One for the process: a pipeline that a reload replaces passes on the devices it has seen."""


def _text(path: Path) -> str:
    """Read one of sysfs' small files; empty where it is not there, or its device is just going."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


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
    """List the modes that a device offers; empty if it cannot be asked."""
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
    """Return the offered modes in a line: sizes of color formats, each at its highest rate."""
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
