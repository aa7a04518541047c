"""Untrusted JSON with numbers: large ones are parsed in a child process.

In this process 8 MB of numbers would hold the interpreter for half a second, in which no frame is
captured, prepared or published, and take 40 times the memory of the array.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

from ..core.child import ChildError, die_with_parent, kill_group, run_in_background, start_child
from ..core.errors import SampleError
from ..core.json_text import read_json
from ..core.types import Array

LARGE = 2**20
"""Bytes; to parse less takes less than a child takes to start."""
TIMEOUT_SECONDS = 30.0
LONG = 256
"""Numbers; shorter lists are returned as lists."""


def read_large(text: bytes) -> Any:
    """Parse JSON like `read_json`; if *text* is large, long lists of numbers are arrays.

    Raises:
        SampleError: a child could not parse it with the memory and time that there is.
    """
    if len(text) < LARGE:
        return read_json(text)
    with open(os.memfd_create("question"), "w+b") as stdin:  # noqa: PTH123 - a descriptor
        stdin.write(text)
        stdin.seek(0)
        try:
            child = start_child(__name__, "the parser", stdin.fileno(), subprocess.DEVNULL)
        except ChildError as problem:
            raise SampleError(f"{len(text) // 2**20} MB of JSON: {problem}") from None
    with child:
        try:
            answer, _ = child.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            answer = b""
        finally:
            kill_group(child.pid)
    if not answer:
        raise SampleError(
            f"{len(text) // 2**20} MB of JSON could not be parsed; send the tensors in binary form"
        )
    found = pickle.loads(answer)  # noqa: S301 - it comes from this module
    if not found:
        raise ValueError("not JSON")
    return found[0]


def to_numbers(content: Any) -> Array | None:
    """Convert nested lists of equal lengths to an array; None if not all items are numbers.

    NumPy by itself would make room for the longest text at each place.
    """
    import numpy as np

    if isinstance(content, np.ndarray):
        return content
    try:
        items = np.asarray(content, object)
        found = items if {*map(type, items.flat)} - {bool, int, float} else np.asarray(content)
    except (ValueError, OverflowError):
        return None
    return found if found.dtype.kind in "biuf" else None


def _packed(content: Any) -> Any:
    """Replace long lists of numbers by arrays."""
    if isinstance(content, dict):
        return {name: _packed(value) for name, value in content.items()}
    if not isinstance(content, list):
        return content
    array = to_numbers(content)
    if array is not None:
        return array if array.size >= LONG else content
    return [_packed(value) for value in content]


def main() -> None:
    """Parse what is on stdin."""
    die_with_parent()
    run_in_background()
    try:
        found: tuple[Any, ...] = (_packed(read_json(sys.stdin.buffer.read())),)
    except (ValueError, RecursionError):
        found = ()
    pickle.dump(found, sys.stdout.buffer, protocol=5)


if __name__ == "__main__":
    main()
