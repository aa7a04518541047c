"""Which V4L2 device is which: a camera is found again after it came back under another number.

The kernel numbers /dev/videoN as devices come, and a number is only free again when no process
holds the old device open any more. What a camera is stands in sysfs, and is remembered from when it
ran. Knows nothing of pictures.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from ..core.errors import SourceError
from ..core.frozen import record

log = logging.getLogger(__name__)


@record
class Device:
    """What stays the same of a camera whatever its number."""

    name: str
    """As the driver calls it, e.g. `HD Pro Webcam C920`."""
    index: str
    """Which of the camera's nodes: one gives pictures, others what is said about them."""
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
        """What was there beside it, and so is another one however much it looks the same."""
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
        """Return a device's number, e.g. `81:0`; None where there is no device."""
        try:
            known = node.stat()
        except OSError:
            return None
        # By number, not by name: containers may call a device differently.
        return f"{os.major(known.st_rdev)}:{os.minor(known.st_rdev)}"

    def _look(self, number: str | None) -> Device | None:
        """Read what a device is; None where sysfs does not know it as one of V4L2."""
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
"""Of this process: what a pipeline has seen helps the one that a reload puts in its place."""


def _text(path: Path) -> str:
    """Read one of sysfs' small files; empty where it is not there, or its device is just going."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
