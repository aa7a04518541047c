"""The artifacts in a store: of which models they are, which are useless, and room for one more.

An artifact is useless without its model, and can be made again from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from ....core.errors import ModelError
from ....core.files import disk_errors, size_of, subfolders
from ....models.store.store import Store
from ..artifact import FOLDER, ArtifactError, read

_WHILE_MADE = 3
"""What making a form takes on the disk for a while, as a multiple of the model's size."""


def folder(store: Store) -> Path:
    """Return the folder of all artifacts."""
    return store.root / FOLDER


def forms(store: Store) -> list[Path]:
    """List the folders of all artifacts."""
    return subfolders(folder(store))


def forms_of(store: Store, model: Path) -> list[Path]:
    """List the artifacts of the model in a folder."""
    return [form for form in forms(store) if model_of(form) == model]


def model_of(form: Path) -> Path | None:
    """Return the folder of an artifact's model; None where the artifact cannot be used."""
    try:
        return Path(read(str(form)).table["model"])
    except ArtifactError:
        return None


def useless(store: Store, keep: Collection[str] = ()) -> list[tuple[Path, str]]:
    """List artifacts that will not be used, and why; those in *keep*, by their keys, are used."""
    found: list[tuple[Path, str]] = []
    newest: dict[tuple[str, str, str], tuple[float, Path]] = {}
    for path in forms(store):
        if path.name in keep:
            continue
        try:
            table = read(str(path)).table
        except ArtifactError as problem:
            found.append((path, f"cannot be used: {problem}"))
            continue
        model = Path(table["model"])
        if not model.is_dir():
            # A model outside of the store may be in another place now, with the same content: who
            # knows what is in use can tell.
            if keep or model.is_relative_to(store.models):
                found.append((path, "its model is gone"))
            continue
        same = (table["model"], table["kind"], table["engine"])
        made = path.stat().st_mtime
        older = newest.get(same)
        if older is None or older[0] <= made:
            newest[same] = (made, path)
            if older is not None:
                found.append((older[1], "there is a newer one"))
        else:
            found.append((path, "there is a newer one"))
    return found


def collect_artifacts(store: Store, keep: Collection[str] = ()) -> tuple[str, ...]:
    """Remove artifacts that will not be used; return a line for each.

    Raises:
        ModelError: the disk is broken.
    """
    with disk_errors(f"{folder(store)}: cleaning up"), store.locked():
        lines = []
        for form, why in useless(store, keep):
            store.delete_folder(form)
            lines.append(f"{form}: {why}, removed")
        return tuple(lines)


def need_room(store: Store, model: Path, quota: int) -> None:
    """Check that an artifact of a model can be made and kept.

    No version is removed for an artifact: a rollback needs the version, not the speed.

    Args:
        store: where it is kept.
        model: folder of the model.
        quota: bytes that the store may take; 0: not bounded.

    Raises:
        ModelError: it cannot.
    """
    size = size_of(model)
    with disk_errors(f"{model}: preparing it"):
        taken = size_of(store.models) + size_of(store.incoming) + size_of(folder(store))
        free = shutil.disk_usage(store.root).free
    if quota and taken + size > quota:
        raise ModelError(
            f"its form does not fit: {size / 1e6:.1f} MB needed, but of {quota / 1e6:.1f} MB"
            f" {taken / 1e6:.1f} MB are taken; raise quota_mb"
        )
    if free < _WHILE_MADE * size:
        raise ModelError(
            f"its form does not fit: {_WHILE_MADE * size / 1e6:.1f} MB needed while it is made,"
            f" but the disk has {free / 1e6:.1f} MB free"
        )
