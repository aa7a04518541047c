"""Settings of the C library's allocator, so that freed memory goes back to the system.

With another library than the GNU one, memory is as its own allocator likes.
"""

from __future__ import annotations

from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""mallopt(3)."""
_LARGE_BYTES = 8 * 2**20
_SMALL_BYTES = 128 * 1024
"""From here on glibc, as it begins, maps a block by itself."""
_mapped_from: int | None = None
"""Bytes from which on blocks are mapped by themselves; None: as the C library likes."""


def trim_memory() -> None:
    """Return memory that this process has freed and is not using to the system."""
    if libc := _gnu_library():
        libc.malloc_trim(0)


def return_large_blocks() -> None:
    """Return blocks of 8 MiB and more to the system as soon as they are freed, from now on.

    glibc by itself learns to keep what is up to 32 MiB, for each thread apart: of eight clips of 4K
    more stayed each time that they came and went (164 MB, 0.3 and 0.4 GB, without end).
    """
    _map_from(_LARGE_BYTES)


def return_freed_memory() -> None:
    """Return freed memory of this process to the system at once, now and from now on.

    glibc keeps ever larger blocks for the next use. A network that runs in parts asks for a block
    of another size with every layer: 72 of 108 MB were kept so and not in use (ViT-B/16 FP32 in 34
    parts), and an inference took no longer without.
    """
    if libc := _map_from(_SMALL_BYTES):
        libc.mallopt(_M_TRIM_THRESHOLD, _SMALL_BYTES)
    trim_memory()


def _map_from(size: int) -> Any:
    """Map blocks of this many bytes by themselves, if not smaller ones are already.

    Returns:
        The GNU library; None: it is another one.
    """
    global _mapped_from  # noqa: PLW0603 - the C library's setting is the process's, too
    libc = _gnu_library()
    if libc is not None and (_mapped_from is None or size < _mapped_from):
        _mapped_from = size
        libc.mallopt(_M_MMAP_THRESHOLD, size)
    return libc


def _gnu_library() -> Any:
    import ctypes  # 2 ms, on the way to the first result

    libc: Any = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None
