"""The prepared forms in a store: whose they are, which are worth nothing, and room for one more.

A form is worth nothing without its model, and can be made again from it. What is in a form is the
business of `forms`.
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
    """Give the folder of all forms."""
    return store.root / FOLDER


def forms(store: Store) -> list[Path]:
    """List the folders of all forms."""
    return subfolders(folder(store))


def forms_of(store: Store, model: Path) -> list[Path]:
    """List the forms of the model in a folder."""
    return [form for form in forms(store) if model_of(form) == model]


def model_of(form: Path) -> Path | None:
    """Give the folder of the model that a form is of; None where the form cannot be used."""
    try:
        return Path(read(str(form)).table["model"])
    except ArtifactError:
        return None


def useless(store: Store, keep: Collection[str] = ()) -> list[tuple[Path, str]]:
    """List forms that nobody will use, and why; those in *keep*, by their keys, are used."""
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
        if not Path(table["model"]).is_dir():
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
    """Remove forms that nobody will use; gives a line for each.

    Args:
        store: where they are.
        keep: keys of those that are in use, whatever else is true of them.

    Raises:
        ModelError: the disk is broken.

    """
    with disk_errors(f"{folder(store)}: cleaning up"), store.locked():
        lines = []
        for form, why in useless(store, keep):
            store.take_apart(form)
            lines.append(f"{form}: {why}, removed")
        return tuple(lines)


def need_room(store: Store, model: Path, quota: int) -> None:
    """See that a form of a model can be made and kept.

    No version gives way to a form: whoever rolls back wants the version, not the speed.

    Args:
        store: where it comes.
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
