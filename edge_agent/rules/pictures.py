"""Pictures of events: made, and kept on disk up to a limit."""

from __future__ import annotations

import logging
from pathlib import Path

from ..core.logs import Latch
from ..core.names import is_name
from ..core.types import Array
from ..runtime.pipelines.draw import jpeg
from .event import Event

log = logging.getLogger(__name__)

AROUND = 0.5
"""Of a box's larger side, what a crop shows around it, at most."""
QUALITY = 85
PART = ".part"
"""Ending of what is half written."""


def render(event: Event) -> bytes:
    """Return the JPEG of an event: the frame, or its box with what is around.

    The box is in the middle: at the edge of the frame there is less around it.

    Raises:
        SampleError: it cannot be encoded.
    """
    assert event.picture is not None  # noqa: S101 - the caller's business
    picture = event.picture
    box = event.facts.get("box")
    if event.crop and box is not None:
        picture = crop(picture, box)
    return jpeg(picture, QUALITY)


def crop(picture: Array, box: tuple[float, float, float, float]) -> Array:
    """Return what is around a box in a picture (height, width, 3), with the box in the middle."""
    height, width = picture.shape[:2]
    x1, y1 = min(max(0, round(box[0])), width - 1), min(max(0, round(box[1])), height - 1)
    x2, y2 = max(min(width, round(box[2])), x1 + 1), max(min(height, round(box[3])), y1 + 1)
    around = round(AROUND * max(x2 - x1, y2 - y1))
    left = min(around, x1, width - x2)
    top = min(around, y1, height - y2)
    return picture[y1 - top : y2 + top, x1 - left : x2 + left]


class Evidence:
    """Pictures of events in a folder. Kept by one thread; any may call `find`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failing = Latch()
        self._keep_mb: int | None = None

    def keep(self, pipeline: str, event: str, data: bytes, keep_mb: int) -> None:
        """Keep a picture; the oldest go first."""
        folder = self._folder / pipeline
        try:
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f".{event}{PART}"
            part.write_bytes(data)
            part.replace(folder / f"{event}.jpg")
            self._failing.begins(False)
        except OSError as problem:
            self._report("written", problem)
        self.prune(keep_mb)

    def limit(self, keep_mb: int) -> None:
        """Remove the pictures that the settings allow no more, at the start and after a reload."""
        if keep_mb != self._keep_mb:
            self._keep_mb = keep_mb
            self.prune(keep_mb)

    def prune(self, keep_mb: int) -> None:
        """Remove half-written pictures, and the oldest until no more than so much is left."""
        found = []
        try:
            for path in self._folder.glob("*/*"):
                if path.suffix == PART:
                    path.unlink(missing_ok=True)
                elif path.suffix == ".jpg":
                    state = path.stat()
                    found.append((state.st_mtime_ns, state.st_size, path))
            left = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if left <= keep_mb * 2**20:
                    return
                path.unlink(missing_ok=True)
                left -= size
        except OSError as problem:
            self._report("cleared", problem)

    def _report(self, what: str, problem: OSError) -> None:
        """Log the first failure of a row."""
        if self._failing.begins(True):
            why = problem.strerror or problem
            log.warning("%s: cannot be %s: %s; pictures are not kept", self._folder, what, why)

    def find(self, event: str) -> tuple[str, bytes] | None:
        """Return the pipeline and the picture of an event, or None."""
        if not is_name(event):
            return None
        for path in self._folder.glob(f"*/{event}.jpg"):
            try:
                return path.parent.name, path.read_bytes()
            except FileNotFoundError:
                continue
        return None
