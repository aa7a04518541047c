"""Settings of the C library's allocator, so that freed memory goes back to the system.

With a C library other than glibc, nothing is changed.
"""

from __future__ import annotations

from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""mallopt(3)."""
_LARGE_BYTES = 8 * 2**20
_KEPT_BYTES = 16 * 2**20
_SMALL_BYTES = 128 * 1024
"""Bytes from which glibc initially maps a block separately."""
_mapped_from: int | None = None
"""Bytes from which blocks are mapped separately; None: the C library's default."""


def trim_memory() -> None:
    """Return this process's freed memory to the system."""
    if libc := _gnu_library():
        libc.malloc_trim(0)


def return_large_blocks() -> None:
    """From now on, return blocks of 8 MiB and more to the system as soon as they are freed.

    By default glibc learns to keep blocks of up to 32 MiB for each thread separately: with eight
    4K clips, each cycle of opening and closing kept more memory (164 MB, 0.3, 0.4 GB …).
    """
    _map_from(_LARGE_BYTES)


def keep_freed_memory() -> None:
    """From now on, keep up to 16 MiB that each thread has freed, for what it allocates next.

    Otherwise glibc returns the memory of each picture and takes it again page by page: 0.7 of 8 ms
    of an answer (1024x717 pixels, 8 callers). Nothing changes after `return_freed_memory`.
    """
    libc = _gnu_library()
    if libc is not None and _mapped_from != _SMALL_BYTES:
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def return_freed_memory() -> None:
    """Return this process's freed memory to the system now and always at once from now on.

    glibc keeps increasingly large blocks for reuse. A network that runs in parts needs a block of
    another size for each layer: 72 of 108 MB were kept unused (ViT-B/16 FP32 in 34 parts), and
    without them inference took no longer.
    """
    if libc := _map_from(_SMALL_BYTES):
        libc.mallopt(_M_TRIM_THRESHOLD, _SMALL_BYTES)
    trim_memory()


def _map_from(size: int) -> Any:
    """Map blocks of at least *size* bytes separately, unless smaller ones already are.

    Returns:
        glibc; None: the C library is another one.
    """
    global _mapped_from  # noqa: PLW0603 - the C library's setting is the process's, too
    libc = _gnu_library()
    if libc is not None and (_mapped_from is None or size < _mapped_from):
        _mapped_from = size
        libc.mallopt(_M_MMAP_THRESHOLD, size)
    return libc


def _gnu_library() -> Any:
    import ctypes  # takes 2 ms, which delays the first result

    libc: Any = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None
