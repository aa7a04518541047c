"""A picture of the last result, kept up to date in the working directory."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .terminal import say

MARK = b"edge-agent try\n"
"""Appended to our pictures, where viewers ignore it, to distinguish them from the user's files."""
MOST_NAMES = 100
"""Most names tried if files of the user have the picture's name."""
PICTURE_SECONDS = 0.5


def _is_ours(path: Path) -> bool:
    """Whether a picture may be written to a path: it is free, or has one from an earlier run."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with path.open("rb") as file:
            file.seek(-len(MARK), os.SEEK_END)
            return file.read() == MARK
    except FileNotFoundError:
        return True
    except OSError:
        return False


class PictureFile:
    """Keeps a picture up to date; replaced atomically, for viewers that watch the file."""

    def __init__(self, path: Path, what: str, encode: Callable[[Any], bytes]) -> None:
        self.path = path
        self.trouble = ""
        """Why it cannot be written, which does not end the command."""
        self.written = False
        self._usual = path
        self._what = what
        self._encode = encode
        self._drawn = 0.0
        self._draw: Callable[[], Any] | None = None
        names = [path, *(path.with_stem(f"{path.stem}-{n}") for n in range(2, MOST_NAMES))]
        free = [name for name in names if _is_ours(name)]
        if not free:
            self.trouble = f"it and {names[1]} to {names[-1]} are files of your own"
        else:
            self.path = free[0]
        self._part = Path(f".{self.path}.part")
        try:
            self._part.write_bytes(b"")
            self._part.unlink()
        except OSError as problem:
            self.trouble = problem.strerror or str(problem)

    def note(self) -> str:
        """Return where it is, or why it was not written."""
        if self.trouble:
            return f"no {self._what}: {self.path} cannot be written here: {self.trouble}"
        own = f"; {self._usual} is a file of your own, and stays" * (self.path != self._usual)
        return f"{self._what}: {self.path}, kept fresh{own}"

    def take(self, draw: Callable[[], Any]) -> None:
        """Set the function that draws the latest result."""
        self._draw = draw

    def refresh(self) -> None:
        """Draw the last result into the file if it is time."""
        if time.monotonic() - self._drawn >= PICTURE_SECONDS:
            self._drawn = time.monotonic()
            self.write()

    def write(self) -> None:
        """Draw the last result into the file, if there is one."""
        if self._draw is None or self.trouble:
            return
        try:
            self._part.write_bytes(self._encode(self._draw()) + MARK)
            self._part.replace(self.path)
            self.written = True
        except OSError as problem:
            self.trouble = problem.strerror or str(problem)
            say(f"no further pictures: {self.path}: {self.trouble}")
