"""A block of CSV lines read at once, where there can be no doubt what they say.

Whatever is unusual makes it leave the block to `csv_file`, which reads line by line and knows what
to say of each: a block has the rows that its lines have one by one, or it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.types import Array

CHARACTERS = 64 * 1024
"""Of a block, but for the rest of its last line: enough that what a block costs is spread thin."""
# Beside separators and ends of lines all may stand in a cell but quotes, comments, digits parted by
# "_", and control characters, of which loadtxt takes more for spaces than Python does.
_USUAL = {*b"\t", *range(ord(" "), 127)} - {*b'"#_'}
_LARGEST = float(np.finfo(np.float32).max)


def parse_block(text: str, separator: str, numeric: Sequence[bool]) -> Array | None:
    """Return the rows of whole lines, float32 (lines, columns); None: they need a closer look.

    Args:
        text: the lines; the last one may lack its end.
        separator: of cells; one character, no space.
        numeric: which columns are numbers; the others are text and become NaN.

    """
    # csv refuses cells of this length; here none can be so long.
    if not text.isascii() or len(text) > 2 * CHARACTERS:
        return None
    lines = (text.replace("\r\n", "\n") if "\r" in text else text).removesuffix("\n")
    count = lines.count("\n") + 1
    in_cells = bytes(_USUAL - {*separator.encode()})
    pattern = separator * (len(numeric) - 1) + "\n"
    if lines.encode().translate(None, in_cells) != (pattern * count).encode()[:-1]:
        return None
    if not lines.strip():
        return None
    try:
        if all(numeric):
            # As one long line: half the time of many.
            cells = [lines.replace("\n", separator)]
            values = np.loadtxt(cells, delimiter=separator, comments=None, ndmin=1)
        else:
            wanted = [column for column, is_number in enumerate(numeric) if is_number]
            values = np.loadtxt(
                lines.split("\n"), delimiter=separator, comments=None, usecols=wanted, ndmin=2
            )
    except ValueError:
        return None
    if not (np.abs(values) <= _LARGEST).all():  # also false for NaN
        return None
    values = values.reshape(count, -1)
    if all(numeric):
        return values.astype(np.float32)
    rows = np.full((count, len(numeric)), np.nan, np.float32)
    rows[:, numeric] = values
    return rows
