"""A disk of its own for a test: small, to be filled up or made read-only; or an image of one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of *size*, say `1m`, or `1m,nr_inodes=50`.

    Skip the test where that is not allowed.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    with _mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield folder


@contextmanager
def compressed_image(content: Path, place: Path) -> Iterator[Path]:
    """Mount a compressed image of a folder's content; skip the test where that is not allowed.

    The image is the file beside *place* with the suffix `.squashfs`.
    """
    if os.geteuid() != 0 or shutil.which("mksquashfs") is None:
        pytest.skip("only root may mount an image, and mksquashfs makes it")
    image = place.with_suffix(".squashfs")
    made = ["mksquashfs", str(content), str(image), "-comp", "zstd", "-quiet", "-no-progress"]
    subprocess.run(made, check=True, capture_output=True)
    with _mounted(place, "-t", "squashfs", "-o", "loop,ro", str(image)):
        yield place


@contextmanager
def durable_disk(image: Path, place: Path) -> Iterator[Path]:
    """Mount an ext4 file system, whose disk is the file *image*; skip where that is not allowed."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root may mount a disk, and mkfs.ext4 formats it")
    if not image.exists():
        with image.open("wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
    with _mounted(place, "-o", "loop", str(image)):
        yield place


@contextmanager
def _mounted(place: Path, *arguments: str) -> Iterator[None]:
    """Make a folder and mount something there; skip the test where that is not allowed."""
    place.mkdir()
    mount = ["mount", *arguments, str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{arguments[-1]} cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: Path) -> Path:
    """Leave no room on a disk; gives the file that takes it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        file.writelines(repeat(bytes(4096)))
    return filler
