"""Making a model folder: beside its place first, then moved there as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..core.errors import UsageError
from ..models.files.check_onnx import inspect
from ..models.importing import write_manifest
from ..models.manifest import GOLDEN, MANIFEST, ModelFolder, load


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Make a temporary folder beside *place* to work in; only files moved to *place* are kept."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"-o: {place} is there already and not empty; name a new folder")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work:
            yield Path(work)
    except OSError as problem:
        raise UsageError(f"-o: {place}: {problem.strerror}; name a new folder") from None


def copy_rest(source: ModelFolder, folder: Path) -> None:
    """Copy a model's files except its network, its golden outputs, and its descriptions."""
    left = {path.resolve() for path in inspect(source.network).files}
    for path in source.path.rglob("*"):
        name = path.relative_to(source.path)
        if not path.is_file() or path.resolve() in left:
            continue
        if path.name in {GOLDEN, MANIFEST} or path.suffix == ".md":
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    manifest = source.manifest
    about = f"eight bits, from {manifest.id}"
    write_manifest(
        replace(
            manifest,
            version=f"{manifest.version}.1",
            file="model.onnx",
            description=f"{manifest.description} ({about})" if manifest.description else about,
        ),
        folder,
    )


def stand_in(network: Path, source: ModelFolder, place: Path) -> ModelFolder:
    """Make a folder with another .onnx, whose tensors are the same, and the rest of *source*."""
    copy_rest(source, place)
    for part in inspect(network).files:
        copy = place / ("model.onnx" if part == network else part.relative_to(network.parent))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(part, copy)
    return load(place)


def move_to(folder: Path, place: Path) -> None:
    """Move a complete folder to its place, as a whole."""
    if place.exists():
        place.rmdir()
    shutil.move(folder, place)
