"""The artifacts in a store: which models they belong to, which are useless, and room for more.

An artifact is useless without its model, and can be made again from it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection
from functools import partial
from operator import itemgetter
from pathlib import Path

from ....core.errors import ModelError
from ....core.files import disk_errors, is_gone, size_of, subfolders
from ....models.store.housekeeping import DerivedForm, delete_useless
from ....models.store.store import Store
from ..artifact import FOLDER, ArtifactError, read

log = logging.getLogger(__name__)

_WHILE_MADE = 3
"""Temporary disk space for making a form, as a multiple of the model's size."""


def forms(store: Store, keep: Collection[str] = ()) -> list[DerivedForm]:
    """List all artifacts; those whose keys are in *keep* always count as useful."""
    found: dict[Path, DerivedForm] = {}
    newest: dict[tuple[str, str, str], tuple[float, Path]] = {}
    for path in subfolders(store.root / FOLDER):
        try:
            table = read(str(path)).table
        except ArtifactError as problem:
            useless = None if path.name in keep else f"cannot be used: {problem}"
            found[path] = DerivedForm(path, None, useless)
            continue
        model = Path(table["model"])
        found[path] = DerivedForm(path, model)
        if path.name in keep:
            continue
        if is_gone(model):
            # A model outside the store may have moved, with the same content: only a caller that
            # knows what is in use can tell.
            if keep or model.is_relative_to(store.models):
                found[path] = DerivedForm(path, model, "its model is gone")
            continue
        same = (table["model"], table["kind"], table["engine"])
        made = path.stat().st_mtime, path
        older, newest[same] = sorted([newest.get(same, made), made], key=itemgetter(0))
        if older != newest[same]:
            found[older[1]] = DerivedForm(older[1], model, "there is a newer one")
    return list(found.values())


def collect_artifacts(store: Store, keep: Collection[str] = ()) -> tuple[str, ...]:
    """Remove artifacts that will not be used and are not in *keep*; return a line for each.

    Raises:
        ModelError: the disk is broken.
    """
    with disk_errors(f"{store.root / FOLDER}: cleaning up"), store.locked():
        done = delete_useless(store, partial(forms, keep=keep))
        return (*done.lines, *done.failed)


def need_room(store: Store, model: Path, quota: int, used: Collection[Path] | None = None) -> None:
    """Make room for a model's artifact within *quota* bytes; 0: no limit.

    Artifacts of versions without a role go, those made first, if it is known which models are
    *used*. No version does: a rollback needs the version, not the speed.

    Raises:
        ModelError: it cannot be made, or kept.
    """
    size = size_of(model)
    with disk_errors(f"{model}: preparing it"), store.locked():
        taken = size_of(store.models) + size_of(store.incoming) + size_of(store.root / FOLDER)
        if quota and taken + size > quota and used is not None:
            taken -= _remove_idle(store, {model, *used}, taken + size - quota)
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


def _remove_idle(store: Store, used: Collection[Path], needed: int) -> int:
    """Remove artifacts of versions without a role, if that gives enough; return the bytes."""
    idle = []
    for form in forms(store):
        if form.model is None or form.model in used or form.model.parent.parent != store.models:
            continue
        pointers = store.pointers(form.model.parent.name)
        # Without a live pointer the highest version runs.
        if pointers.live is not None and pointers.role(form.model.name) is None:
            idle.append((form.path.stat().st_mtime, size_of(form.path), form.path))
    freed = 0
    if sum(size for _, size, _ in idle) >= needed:
        for _, size, path in sorted(idle):
            if freed < needed:
                store.delete_folder(path)
                freed += size
                log.info("%s: removed for the form of a model that is used", path)
    return freed
