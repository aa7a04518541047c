"""A system that allows no further thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_threads() -> Iterator[None]:
    """Have the system allow no further thread: it has no room for the stack of one."""
    before = threading.stack_size(2**43)
    try:
        yield
    finally:
        threading.stack_size(before)
