"""A model folder in the making: made beside its place, and moved there as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..core.errors import UsageError
from ..core.types import Tensors
from ..models.manifest import GOLDEN


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Make a folder beside *place* to work in; what is moved to *place* stays.

    Raises:
        UsageError: there is something at *place* already, or it cannot be made.

    """
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"-o: {place} is there already and not empty; name a new folder")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work:
            yield Path(work)
    except OSError as problem:
        raise UsageError(f"-o: {place}: {problem.strerror}; name a new folder") from None


def write_golden(folder: Path, inputs: Sequence[Tensors], outputs: Sequence[Tensors]) -> None:
    """Write golden inputs and what they give, one case each, into a model folder."""
    arrays = {
        f"{part}/{name}": np.stack([each[name] for each in tensors])
        for part, tensors in (("input", inputs), ("output", outputs))
        for name in tensors[0]
    }
    np.savez_compressed(folder / GOLDEN, **arrays)  # type: ignore[arg-type]


def move_to(folder: Path, place: Path) -> None:
    """Move a complete folder to its place, as a whole."""
    if place.exists():
        place.rmdir()
    shutil.move(folder, place)
