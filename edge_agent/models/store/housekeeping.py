"""Disk space for new models, and removal of files that a crash has left behind."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ModelError
from ...core.files import (
    TEMPORARY,
    disk_errors,
    drop_lock,
    remove_tree,
    size_of,
    subfolders,
    take_lock,
)
from ...core.plain_file import read_plain_bytes
from ..packages.package import HEADER, transfer_id
from .pointers import FILE, same_version
from .store import Store

TRANSFER = re.compile(r"[0-9a-f]{32}")
PATIENCE_S = 7 * 24 * 3600.0
"""How long an interrupted transfer is kept."""
WRITING_S = 3600.0
"""A file that is to replace another, and is as old as that, was left by a crash."""


class DerivedForm(NamedTuple):
    """A prepared form, which can be made again from its model."""

    path: Path
    model: Path | None
    """Folder of its model; None: the form cannot be used."""
    useless: str | None = None
    """Why it will not be used; None: it may be."""


Derived = Callable[[Store], list[DerivedForm]]
"""Lists the forms in a store."""


class Cleaning(NamedTuple):
    """What cleaning up has come to, a line for each thing."""

    lines: tuple[str, ...] = ()
    """What was removed, or should be by its owner."""
    failed: tuple[str, ...] = ()
    """What cannot be looked at or removed, and why; it stays."""


def delete_useless(store: Store, derived: Derived) -> Cleaning:
    """Delete the forms that will not be used. The caller has the lock."""

    def delete(form: DerivedForm) -> Iterator[str]:
        store.delete_folder(form.path)
        yield f"{form.path}: {form.useless}, removed"

    def useless() -> dict[Path, Iterator[str]]:
        return {form.path: delete(form) for form in derived(store) if form.useless is not None}

    return _clean(store.root, useless)


def _clean(place: Path, things: Callable[[], Mapping[Path, Iterator[str]]]) -> Cleaning:
    """Clean each thing in a place as its iterator of lines does; one that fails costs only itself.

    So does a place that cannot be read.
    """
    lines: list[str] = []
    failed: list[str] = []

    def attempt(path: Path, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as problem:
            why = problem.strerror or problem
            failed.append(f"{problem.filename or path}: cannot be cleaned up: {why}")

    found: dict[Path, Iterator[str]] = {}
    attempt(place, lambda: found.update(things()))
    for path, cleaning in found.items():
        attempt(path, partial(lines.extend, cleaning))
    return Cleaning(tuple(lines), tuple(failed))


@dataclass(frozen=True, slots=True)
class _Idle:
    """Something that may be deleted."""

    used: float
    """Wall-clock time in seconds; if a device's clock is wrong, so may be the order."""
    size: int
    label: str
    path: Path
    version: tuple[str, str] | None
    """Name and version; None: a transfer, or a prepared form."""


def make_room(
    store: Store,
    needed: int,
    quota: int,
    *,
    derived: Derived,
    keep: Collection[tuple[str, str]] = (),
    transfer: str | None = None,
) -> tuple[str, ...]:
    """Free disk space for *needed* more bytes, deleting the items unused longest if necessary.

    Never deletes the live or previous version, or one on trial.

    Args:
        store: the store to make room in.
        needed: bytes of the new version.
        quota: bytes that the store may take.
        derived: lists the forms made from models.
        keep: (name, version) of models that pipelines have pinned.
        transfer: the new version's own transfer, which is not counted.

    Returns:
        The deleted items: name@version, the id of an interrupted transfer, or a prepared form.

    Raises:
        ModelError: the version does not fit; nothing has been deleted.
    """
    with disk_errors(f"making room for {_mb(needed)}"), store.locked():
        forms = derived(store)
        idle = _idle(store, forms, keep, transfer)
        spare = sum(each.size for each in idle)
        taken = size_of(store.models) + size_of(store.incoming)
        taken += sum(size_of(form.path) for form in forms)
        if transfer is not None:
            taken -= size_of(store.incoming / transfer)
        if taken - spare + needed > quota:
            raise ModelError(
                f"does not fit: {_mb(needed)} needed, but of the store's {_mb(quota)}"
                f" {_mb(taken - spare)} cannot be freed; raise quota_mb or delete a model"
            )
        # While it is unpacked, a package is on the disk twice.
        free = shutil.disk_usage(store.root).free
        if free + spare < 2 * needed:
            raise ModelError(
                f"does not fit: {_mb(2 * needed)} needed while it is unpacked,"
                f" but the disk has {_mb(free)} free; delete something"
            )
        gone: list[str] = []
        for each in idle:
            if taken + needed <= quota and free >= 2 * needed:
                break
            _delete(store, each, forms)
            taken, free = taken - each.size, free + each.size
            gone.append(each.label)
        return tuple(gone)


def _delete(store: Store, idle: _Idle, forms: Collection[DerivedForm]) -> None:
    if idle.version is None:
        store.delete_folder(idle.path)
        return
    store.discard(*idle.version)
    for form in forms:
        if form.model == idle.path:
            store.delete_folder(form.path)


def _idle(
    store: Store,
    forms: Collection[DerivedForm],
    keep: Collection[tuple[str, str]],
    transfer: str | None,
) -> list[_Idle]:
    """List the items that may be deleted, those unused longest first, prepared forms last."""
    found: list[_Idle] = []
    models: list[Path] = []
    for name in store.names():
        pointers = store.pointers(name)
        # Damaged pointers protect everything: it is unknown what is live.
        if pointers.damage:
            continue
        for version in store.versions(name):
            pinned = any(name == model and same_version(version, pin) for model, pin in keep)
            # Without a live pointer the highest version runs, which may be outside the store.
            if pinned or pointers.live is None or pointers.role(version) is not None:
                continue
            path = store.models / name / version
            if not _removable(path):
                continue
            used = pointers.used.get(version, path.stat().st_mtime)
            size = size_of(path) + sum(size_of(form.path) for form in forms if form.model == path)
            models.append(path)
            found.append(_Idle(used, size, f"{name}@{version}", path, (name, version)))
    for path in subfolders(store.incoming):
        if path.name != transfer and _removable(path) and _abandoned(path):
            used = path.stat().st_mtime
            found.append(_Idle(used, size_of(path), path.name, path, None))
    # What was used in the future was used before the clock was set back.
    now = time.time()
    found.sort(key=lambda each: (each.used <= now, each.used))
    for form in forms:
        if form.model not in models and _removable(form.path):
            label = f"prepared form {form.path.name}"
            found.append(_Idle(0.0, size_of(form.path), label, form.path, None))
    return found


def clean_leftovers(store: Store, *, derived: Derived, now: float | None = None) -> Cleaning:
    """Remove files left by a crash, and old interrupted transfers; say what else is found.

    Raises:
        ModelError: the store's lock cannot be taken.
    """
    now = time.time() if now is None else now

    def staged() -> dict[Path, Iterator[str]]:
        return {path: _clean_staged(path) for path in subfolders(store.staging)}

    def models() -> dict[Path, Iterator[str]]:
        return {store.models / name: _clean_model(store, name) for name in store.names()}

    def transfers() -> dict[Path, Iterator[str]]:
        came = {
            store.transfer(name, each) for name in store.names() for each in store.versions(name)
        }
        return {
            path: _clean_transfer(store, path, came, now) for path in subfolders(store.incoming)
        }

    def replacements() -> dict[Path, Iterator[str]]:
        return {
            path: _clean_file(path)
            for folder in filter(_removable, (store.root, *subfolders(store.root)))
            for path in folder.iterdir()
            if TEMPORARY.fullmatch(path.name) and _is_old(path, now)
        }

    with disk_errors(f"{store.root}: cleaning up"), store.locked():
        parts = [
            _clean(store.root, replacements),
            _clean(store.staging, staged),
            _clean(store.models, models),
            _clean(store.incoming, transfers),
            delete_useless(store, derived),
        ]
    return Cleaning(
        tuple(line for part in parts for line in part.lines),
        tuple(line for part in parts for line in part.failed),
    )


def _clean_staged(path: Path) -> Iterator[str]:
    if _abandoned(path):
        remove_tree(path)
        yield f"{path}: left by a crash, removed"


def _is_old(path: Path, now: float) -> bool:
    """Whether nothing writes a file any more; what is gone or no file is left alone."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(info.st_mode) and now - info.st_mtime > WRITING_S


def _clean_file(path: Path) -> Iterator[str]:
    path.unlink(missing_ok=True)
    yield f"{path}: left by a crash, removed"


def _clean_model(store: Store, name: str) -> Iterator[str]:
    """Clean the folder of one model."""
    folder = store.models / name
    versions = store.versions(name)
    for path in sorted(folder.iterdir()):
        if path.name.startswith(f".{FILE}."):
            path.unlink()
            yield f"{path}: left by a crash, removed"
        elif path.name != FILE and path.name not in versions:
            yield f"{path}: does not belong here; move it away"
    damage = store.pointers(name).damage
    if damage is not None:
        yield damage
    if not any(folder.iterdir()):
        folder.rmdir()


def _clean_transfer(
    store: Store, path: Path, installed: Collection[str | None], now: float
) -> Iterator[str]:
    """Remove a transfer that need not be kept."""
    if _abandoned(path) and (why := _useless(path, installed, now)):
        store.delete_folder(path)
        yield f"{path}: {why}, removed"


def _useless(path: Path, installed: Collection[str | None], now: float) -> str | None:
    """Return why a transfer need not be kept, or None if it may be resumed."""
    try:
        header = read_plain_bytes(path / HEADER)
    except OSError:
        return "not a transfer"
    if TRANSFER.fullmatch(path.name) is None or transfer_id(header) != path.name:
        return "not a transfer"
    if path.name in installed:
        return "already installed"
    # A clock that jumps ahead can at most cost a resumable transfer.
    if now - path.stat().st_mtime > PATIENCE_S:
        return "nobody went on with it for a week"
    return None


def _removable(path: Path) -> bool:
    """Whether this user may move something; what cannot be looked at is not."""
    return os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)


def _abandoned(path: Path) -> bool:
    """Whether no process is using a folder."""
    try:
        drop_lock(take_lock(path))
    except BlockingIOError:
        return False
    return True


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
