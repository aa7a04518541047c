"""Pictures inside a terminal, for those that can: the graphics protocol of kitty, and iTerm2's.

Own code, as the libraries for it bring Pillow, and ask the terminal when they are imported.

Which of them a terminal has is told by its environment; nothing is asked of it, so that none is
waited for that does not answer. Protocols as in sw.kovidgoyal.net/kitty/graphics-protocol and
iterm2.com/documentation-images.html.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import termios
from base64 import standard_b64encode
from collections.abc import Mapping
from typing import Literal

from ..core.types import Array

Protocol = Literal["kitty", "iterm2"]

CHUNK = 4096
"""Base64 characters of one escape sequence, of kitty's protocol: no more are allowed."""
CELL = (10, 20)
"""Pixels of a cell, width and height, where the terminal does not know."""
MAX_PIXELS = 960
"""Columns of the picture that is sent: what a terminal window shows, and a slow link carries."""
_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_ITERM2_PROGRAMS = ("iTerm.app", "WezTerm", "mintty")


def protocol_of(environ: Mapping[str, str]) -> Protocol | None:
    """Return how pictures get into the terminal of an environment; None: not at all."""
    term = environ.get("TERM", "dumb")
    # A multiplexer keeps the escape sequences of others to itself, or redraws over them.
    inside = environ.get("TMUX") or environ.get("STY") or term.startswith(("screen", "tmux"))
    if term == "dumb" or inside:
        return None
    program = environ.get("TERM_PROGRAM", "")
    if program in _ITERM2_PROGRAMS or environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    if term in _KITTY_TERMS or program == "ghostty" or environ.get("KITTY_WINDOW_ID"):
        return "kitty"
    return None


def cell_pixels(descriptor: int) -> tuple[int, int]:
    """Return width and height of a cell of a terminal, in pixels."""
    try:
        told = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
    except OSError:
        return CELL
    lines, columns, width, height = struct.unpack("HHHH", told)
    if not (lines and columns and width and height):
        return CELL
    return max(1, width // columns), max(1, height // lines)


def fit(picture: Array, columns: int, lines: int, cell: tuple[int, int]) -> tuple[int, int]:
    """Return the cells, columns and lines, that a picture fills within so many, undistorted."""
    height, width = picture.shape[:2]
    scale = min(columns * cell[0] / width, lines * cell[1] / height)
    across = round(width * scale / cell[0])
    down = round(height * scale / cell[1])
    return max(1, min(columns, across)), max(1, min(lines, down))


class InlinePicture:
    """One picture in a terminal, replaced by the next."""

    def __init__(self, protocol: Protocol, cell: tuple[int, int] = CELL) -> None:
        self._protocol = protocol
        self._cell = cell
        # Numbers that no other program is likely to use: two, so that the old picture stays until
        # the new one is there.
        self._numbers = (os.getpid() * 2 + 2, os.getpid() * 2 + 3)
        self._shown = 0

    def encode(self, picture: Array, columns: int, lines: int) -> str:
        """Return what shows a picture, with its upper left corner where the cursor is.

        Args:
            picture: uint8 BGR, `(height, width, 3)`.
            columns: how wide it may be.
            lines: how high.

        """
        across, down = fit(picture, columns, lines, self._cell)
        if self._protocol == "kitty":
            return self._kitty(_file(picture, across * self._cell[0], ".png"), across, down)
        content = _file(picture, across * self._cell[0], ".jpg")
        options = f"size={len(content)};width={across};height={down};preserveAspectRatio=1;inline=1"
        return f"\x1b]1337;File={options}:{standard_b64encode(content).decode()}\x07"

    def _kitty(self, content: bytes, across: int, down: int) -> str:
        data = standard_b64encode(content).decode()
        number, before = self._numbers[self._shown % 2], self._numbers[(self._shown + 1) % 2]
        parts = []
        count = math.ceil(len(data) / CHUNK)
        for index in range(count):
            # q=2: the terminal answers nothing, which would be read as if it were typed. C=1: the
            # cursor stays where it is.
            keys = f"a=T,f=100,t=d,i={number},c={across},r={down},C=1," if index == 0 else ""
            more = int(index + 1 < count)
            part = data[index * CHUNK : (index + 1) * CHUNK]
            parts.append(f"\x1b_G{keys}q=2,m={more};{part}\x1b\\")
        if self._shown:
            parts.append(f"\x1b_Ga=d,d=I,i={before},q=2\x1b\\")
        self._shown += 1
        return "".join(parts)


def _file(picture: Array, width: int, suffix: str) -> bytes:
    """Encode a picture, made smaller to so many pixels of width."""
    from ..runtime.pipelines.draw import shrunk
    from ..sources.opencv import load

    _, content = load().imencode(suffix, shrunk(picture, min(width, MAX_PIXELS)))
    return bytes(content)
