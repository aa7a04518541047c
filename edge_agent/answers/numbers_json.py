"""Untrusted JSON with numbers: large ones are parsed in a child process.

In this process 8 MB of numbers would hold the interpreter for half a second, in which no frame is
captured, prepared or published, and take 40 times the memory of the array.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO
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
ARRAY = "\0array"
"""Key of what stands for an array in the child's answer, with its name there."""


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
    import numpy as np

    head, tail = BytesIO(answer), int.from_bytes(answer[:8], "big")
    head.seek(8)
    content = json.loads(head.read(tail))
    if content is None:
        raise ValueError("not JSON")
    with np.load(head, allow_pickle=False) as arrays:
        return _unpacked(content[0], arrays)


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


def _unpacked(content: Any, arrays: Mapping[str, Array]) -> Any:
    """Undo `_packed`."""
    if isinstance(content, dict):
        if ARRAY in content:
            return arrays[content[ARRAY]]
        return {name: _unpacked(value, arrays) for name, value in content.items()}
    return [_unpacked(each, arrays) for each in content] if isinstance(content, list) else content


def _packed(content: Any, arrays: dict[str, Array]) -> Any:
    """Move long lists of numbers to *arrays*."""
    if isinstance(content, dict):
        if ARRAY in content:
            raise ValueError
        return {name: _packed(value, arrays) for name, value in content.items()}
    if not isinstance(content, list):
        return content
    array = to_numbers(content)
    if array is None:
        return [_packed(value, arrays) for value in content]
    if array.size < LONG:
        return content
    name = str(len(arrays))
    arrays[name] = array
    return {ARRAY: name}


def main() -> None:
    """Parse what is on stdin."""
    import numpy as np

    die_with_parent()
    run_in_background()
    arrays: dict[str, Array] = {}
    try:
        found: tuple[Any] | None = (_packed(read_json(sys.stdin.buffer.read()), arrays),)
    except (ValueError, RecursionError):
        found = None
    head = json.dumps(found).encode()
    data = BytesIO()
    np.savez(data, **arrays)  # type: ignore[arg-type]  # its names are no options
    sys.stdout.buffer.write(len(head).to_bytes(8, "big") + head + data.getvalue())


if __name__ == "__main__":
    main()
