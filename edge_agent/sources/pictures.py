"""A folder of pictures in name order, or a single picture."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

import numpy as np

from ..core.errors import SampleError, SourceError
from ..core.text import naming
from ..core.types import Reading
from .opencv import decode, load
from .schemes import PICTURES, UNREAD
from .source import Metronome, SourceContext
from .spec import SourceSpec

log = logging.getLogger(__name__)

# A larger file is not a usable picture.
MAX_BYTES = 256 * 1024 * 1024
SKIPPED = UNREAD | {".avif", ".gif", ".mpo"}
"""Suffixes of pictures in a folder that are skipped, which is logged."""


class PictureFolder:
    """The pictures of a folder and its subfolders, once or in a loop."""

    trouble = None

    def __init__(self, spec: SourceSpec, closing: threading.Event) -> None:
        """List the folder."""
        self._spec = spec
        self._beat = Metronome(spec.options["rate"], closing)
        load()  # not later, while the first picture waits
        self._folder = spec.local if spec.local.is_dir() else spec.local.parent
        self._names = _list(spec, told=True)
        self._next = 0

    def grab(self) -> bool:
        if self._next == len(self._names):
            if not self._spec.options["loop"]:
                return False
            # Listed again, to find new pictures in a folder that is being filled.
            self._names, self._next = _list(self._spec), 0
        if not self._beat.wait():
            return False
        self._next += 1
        self._time_ns, self._since = time.time_ns(), time.monotonic()
        return True

    def retrieve(self) -> Reading:
        name = self._names[self._next - 1]
        data = _read(self._folder / name)
        try:
            picture = decode(data)
        except SampleError as problem:
            raise SampleError(f"{self._folder / name}: {problem}") from None
        # A name that is not UTF-8 must not prevent its result.
        shown = os.fsencode(name).decode("utf-8", "replace")
        return Reading(picture, self._time_ns, self._since, file=shown)

    def close(self) -> None:
        """Do nothing: no file is open between pictures."""


def open_source(spec: SourceSpec, context: SourceContext) -> PictureFolder:
    """Open a folder of pictures, or one picture."""
    return PictureFolder(spec, context.closing)


def _list(spec: SourceSpec, *, told: bool = False) -> list[str]:
    """List the pictures' names relative to the folder, in order; *told*: log skipped files."""
    path = spec.local
    if path.is_file():
        return [path.name]
    if not path.exists():
        raise SourceError(f"{naming(spec.redacted, path)}: No such file or directory")
    names = []
    unread: list[str] = []
    try:
        for folder, _, files in os.walk(path, onerror=_refuse):
            for file in files:
                entry = Path(folder, file)
                if entry.suffix.lower() in SKIPPED:
                    unread.append(entry.suffix.lower())
                # Dot files are remnants of other systems. A link to a picture counts as one: the
                # author of the settings decides what is read.
                if entry.suffix.lower() not in PICTURES or file.startswith("."):
                    continue
                if entry.is_file():
                    names.append(entry.relative_to(path).as_posix())
    except OSError as problem:
        raise SourceError(
            f"{naming(spec.redacted, problem.filename)}: {problem.strerror}"
        ) from None
    if unread and told:
        log.warning(
            "%s: passes over %d picture%s of a kind that it cannot read (%s)",
            *(spec.redacted, len(unread), "" if len(unread) == 1 else "s"),
            ", ".join(sorted(set(unread))),
        )
    if not names:
        known = ", ".join(sorted(PICTURES))
        raise SourceError(f"{spec.redacted}: {path} holds no pictures ({known})")
    return sorted(names)


def _refuse(problem: OSError) -> None:
    # os.walk would silently skip a folder that cannot be listed.
    raise problem


def _read(path: Path) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise SampleError(f"{path}: {problem.strerror}") from None
    if not data:
        raise SampleError(f"{path}: is empty")
    if len(data) > MAX_BYTES:
        raise SampleError(f"{path}: is larger than {MAX_BYTES // 1024**2} MiB, not a picture")
    return np.frombuffer(data, np.uint8)
