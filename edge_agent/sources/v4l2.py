"""Identifies V4L2 devices: finds a camera again when it returns under another number.

The kernel numbers /dev/videoN in the order of arrival, and a number is free only when no process
has the old device open. sysfs describes each camera, and its properties are remembered from when it
ran. Independent of pictures.
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
    """The properties of a camera that do not depend on its number."""

    name: str
    """The driver's name for it, such as `HD Pro Webcam C920`."""
    index: str
    """Index of the camera's node: one delivers pictures, others metadata."""
    product: str
    """USB vendor, product and version; empty for other buses."""
    serial: str
    """USB serial number, if the manufacturer assigned one; else empty."""
    place: str
    """Bus and port as a path in sysfs; it changes when the camera is plugged in elsewhere."""

    def is_like(self, other: Device) -> bool:
        """Whether *other* may be the same camera, in any port."""
        mine = (self.name, self.index, self.product, self.serial)
        return mine == (other.name, other.index, other.product, other.serial)


class Devices:
    """The V4L2 devices of this machine, and which of them have been used."""

    def __init__(self, sysfs: Path = Path("/sys"), dev: Path = Path("/dev")) -> None:
        self._sysfs = sysfs
        self._dev = dev
        self._seen: dict[Path, Device] = {}
        """Used devices by the path in the settings."""
        self._beside: dict[Path, frozenset[Device]] = {}
        """Devices present at the same time, which are therefore other cameras, even if similar."""
        self._changing = threading.Lock()

    def locate(self, path: Path) -> Path:
        """Return the present node of the camera used as *path* before, or else *path* itself.

        Raises:
            SourceError: that camera is absent, and *path* is now another one.
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
        # Plugged into another port. With several similar ones, any would be a guess.
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
        """Record that the camera of *path* is in use as *node*."""
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
        """Return a device's number, such as `81:0`, or None if there is no device."""
        try:
            known = node.stat()
        except OSError:
            return None
        # By number, not by name: a container may use another name.
        return f"{os.major(known.st_rdev)}:{os.minor(known.st_rdev)}"

    def _look(self, number: str | None) -> Device | None:
        """Read a device's properties; return None if it is not V4L2 according to sysfs."""
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
        # A USB camera's parent is one of its interfaces; the serial number belongs to the device.
        serial = _text(parent.parent / "serial") if "PRODUCT" in words else ""
        place = os.path.relpath(parent, self._sysfs.resolve())
        return Device(name, index, words.get("PRODUCT", ""), serial, place)

    def _all(self) -> list[tuple[Path, Device]]:
        """Find all devices with a node, sorted by name."""
        found = []
        for folder in sorted((self._sysfs / "class" / "video4linux").glob("*")):
            node, number = self._dev / folder.name, _text(folder / "dev")
            device = self._look(number)
            if device is not None and self._number(node) == number:
                found.append((node, device))
        return found


DEVICES = Devices()
"""One per process, so that a pipeline replaced by a reload passes on the devices it has used."""


def _text(path: Path) -> str:
    """Read a small sysfs file; empty if it is missing or its device is being removed."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


_CAPTURE = 1
_DISCRETE = 1
_MOST = 64
"""Most entries of a list; a driver with more is broken."""
# Request number, and layout of request and answer (linux/videodev2.h).
_FORMATS = 2, "III32sII3I"
_SIZES = 74, "III6I2I"
_INTERVALS = 75, "IIIII6I2I"
RAW = frozenset({"YUYV", "UYVY", "NV12", "NV21", "YU12", "YV12", "BGR3", "RGB3"})
TAKEN = RAW | {"MJPG", "JPEG"}
"""Color formats that are chosen; others must be requested."""


@record
class Mode:
    """A format with one size."""

    format: str
    """Four letters: YUYV, MJPG …"""
    size: tuple[int, int]
    """Width and height; the largest if any size is possible."""
    rates: tuple[float, ...] = ()
    """Frames per second; empty: the driver does not report them."""
    least: tuple[int, int] | None = None
    """The smallest size if any size in between is possible."""

    def fits(self, size: tuple[int, int]) -> bool:
        """Whether it supports a size."""
        if self.least is None:
            return size == self.size
        between = zip(self.least, size, self.size, strict=True)
        return all(least <= wanted <= most for least, wanted, most in between)


def modes(node: Path) -> list[Mode]:
    """List the modes that a device offers; empty if it cannot be queried."""
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
        # Smallest, largest and step, for the width and then for the height.
        return Mode(name, (second, fifth), least=(first, fourth))
    rates = [
        rate[6] / rate[5]
        for rate in _listed(device, _INTERVALS, code, first, second)
        if rate[4] == _DISCRETE and rate[5]
    ]
    return Mode(name, (first, second), tuple(sorted(rates, reverse=True)))


def _listed(device: int, request: tuple[int, str], *asked: int) -> Iterator[tuple[int, ...]]:
    """Yield the entries of one of the driver's lists until the driver reports the end."""
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
    """Return the offered modes in one line: sizes of color formats, each at its highest rate."""
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
    """Return the cheapest format with a size and rate; None: the driver's own.

    Uncompressed formats are cheapest, but too slow over many cables.
    """
    able = [mode for mode in offered if mode.format in TAKEN]
    fit = [mode for mode in able if size is None or mode.fits(size)]
    wanted = fps or max((rate for mode in fit for rate in mode.rates), default=0.0)
    quick = [mode for mode in fit if not mode.rates or max(mode.rates) >= 0.99 * wanted]
    best = min(quick, key=lambda mode: mode.format not in RAW, default=None)
    return None if best is None else best.format
