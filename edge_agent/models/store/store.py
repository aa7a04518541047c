"""The store: the versions of models that this device has received, and which of them is live.

    state_dir/
      store.lock            held during every change
      agent.lock            held by the agent that runs on this store
      models/<name>/
        pointers.json       live, previous, on trial, on probation; replaced as a whole
        <version>/          a model folder; complete since it has this name, then unchanged
          .package/         how it arrived; `accepted` once it was live
      incoming/<transfer>/  packages that are arriving
      staging/<random>/     versions being built or deleted; worthless after a crash

Several processes may use one store. Independent of engines, brokers, and what makes a model good.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import ModelError, UsageError
from ...core.files import (
    copy_owner,
    disk_errors,
    drop_lock,
    fault,
    put_aside,
    same_files,
    subfolders,
    sync_folder,
    sync_tree,
    take_lock,
    write_new,
)
from ...core.names import is_name, is_version, version_key
from ...core.plain_file import read_plain_bytes
from . import pointers as pointing
from .pointers import Pointers, Trial, answer_of, same_version

log = logging.getLogger(__name__)

MODELS = "models"
NOTES = ".package"
"""Folder within a version that is not part of the model."""
LAYOUT = "layout.json"
"""File in it that lists the version's files and their sizes."""
RECEIVED = "received"
"""File in it where the version came over MQTT."""
_ACCEPTED = "accepted"
_WITHDRAWN = "withdrawn"
_HISTORY = 8


class Store:  # noqa: PLR0904 - one for each change of a version
    """The versions in one state_dir. Any number of threads and processes may open it."""

    def __init__(self, state_dir: Path, *, make: bool = True) -> None:
        """Open the store, creating its folders if they are missing and *make* is true.

        Raises:
            UsageError: they cannot be created.
        """
        self.root = state_dir
        self.models = state_dir / MODELS
        self.incoming = state_dir / "incoming"
        self.staging = state_dir / "staging"
        if not make:
            return
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            for folder in (self.models, self.incoming, self.staging):
                if not folder.is_dir():
                    if folder == self.models and folder.is_symlink():
                        words = "is a link to no folder; mount what it leads to, or remove it"
                        raise UsageError(f"{folder}: {words}")
                    if os.path.lexists(folder):
                        log.warning("%s: is no folder%s", folder, put_aside(folder))
                    folder.mkdir(exist_ok=True)
                    copy_owner(folder, state_dir)
        except OSError as problem:
            raise UsageError(
                f"state_dir: {state_dir} cannot be used: {problem.strerror};"
                " choose a folder that this user can write to"
            ) from None

    # --- reading

    def names(self) -> tuple[str, ...]:
        """List the models that have a folder."""
        return tuple(path.name for path in subfolders(self.models) if is_name(path.name))

    def versions(self, name: str) -> tuple[str, ...]:
        """List the stored versions of a model, lowest first; none if its folder is unreadable."""
        try:
            found = [path.name for path in subfolders(self.models / name) if is_version(path.name)]
        except OSError:
            return ()  # the pointers in it cannot be read either, which is reported
        return tuple(sorted(found, key=version_key))

    def path(self, name: str, version: str) -> Path | None:
        """Find the folder of a version, "2" being "2.0"; returns None if there is none."""
        for found in self.versions(name):
            if same_version(found, version):
                return self.models / name / found
        return None

    def accepted(self, name: str, version: str) -> bool:
        """Whether a version is stored and has been live once; one that is unreadable has not."""
        return self._has_note(name, version, _ACCEPTED, unreadable=False)

    def withdrawn(self, name: str, version: str) -> bool:
        """Whether a stored version was rolled back, and not activated since."""
        return self._has_note(name, version, _WITHDRAWN, unreadable=True)

    def received(self, name: str, version: str) -> bool:
        """Whether a stored version came over MQTT; an unreadable one counts as if it had."""
        return self._has_note(name, version, RECEIVED, unreadable=True)

    def _has_note(self, name: str, version: str, note: str, *, unreadable: bool) -> bool:
        path = self.path(name, version)
        try:
            return path is not None and (path / NOTES / note).is_file()
        except OSError:
            return unreadable

    def pointers(self, name: str) -> Pointers:
        """Read which versions are live, previous, and on trial.

        If the file is damaged, `damage` says so, and `highest` is restored from the accepted
        versions that exist.
        """
        found = pointing.read(self.models / name)
        if found.damage:
            for version in self.versions(name):
                if self.accepted(name, version):
                    found = found.raised(version)
        return found

    def check_not_older(self, name: str, version: str) -> None:
        """Check that a version is not below the highest ever accepted.

        Raises:
            ModelError: it is.
        """
        highest = self.pointers(name).highest
        if highest is not None and version_key(version) < version_key(highest):
            raise ModelError(
                f"{name}@{version} is older than {highest}, which was accepted before;"
                " give it a higher version, or use rollback or activate"
            )

    def transfer(self, name: str, version: str) -> str | None:
        """Return the transfer that a version came in, or would have; None: it cannot be told."""
        from ..packages.package import HEADER, transfer_id  # not needed for the first result

        path = self.path(name, version)
        try:
            return transfer_id(read_plain_bytes(path / NOTES / HEADER)) if path else None
        except OSError:  # gone, or damaged; what serves is checked elsewhere
            return None

    # --- putting versions in and taking them out

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """Create an empty folder on the store's own file system; files left in it are removed.

        Raises:
            ModelError: the disk is full or broken.
        """
        path = self.staging / uuid.uuid4().hex
        with disk_errors(f"{path}: preparing a model"), self.locked():
            path.mkdir()
            # Shows a process that cleans up meanwhile that this folder is in use.
            guard = take_lock(path)
        try:
            yield path
        finally:
            # It may be gone because it was committed. `clean_leftovers` removes what a broken disk
            # does not delete now; the error already being raised is more helpful.
            shutil.rmtree(path, ignore_errors=True)
            drop_lock(guard)

    def commit(
        self,
        staged: Path,
        name: str,
        version: str,
        *,
        is_damaged: Callable[[Path], bool] = lambda _version: False,
    ) -> Path:
        """Rename a staged folder atomically into place as *version* of *name*.

        If the same version with the same files exists already, it is kept instead. One that
        *is_damaged*, not being as it was installed, is replaced; it stays if that fails.

        Raises:
            ModelError: it exists with other files, or the disk is full or broken.
        """
        place = self.models / name / version
        with disk_errors(f"{name}@{version}: storing it"):
            sync_tree(staged)
            copy_owner(staged, self.root)
            with self.locked():
                there = self.path(name, version)
                if there is not None and not is_damaged(there):
                    if same_files(staged, there, NOTES):
                        return there
                    raise ModelError(
                        f"{name}@{there.name} is in the store already, with other files;"
                        " give the new one a higher version"
                    )
                if not place.parent.is_dir():
                    place.parent.mkdir()
                    copy_owner(place.parent, self.root)
                    sync_folder(self.models)
                fault("commit.before")
                trash = self.staging / uuid.uuid4().hex
                if there is not None:
                    there.rename(trash)
                try:
                    staged.rename(place)
                    fault("commit.renamed")
                    sync_folder(place.parent)
                except OSError:
                    if there is not None:  # it may be good, on a disk that cannot be read now
                        with suppress(OSError):
                            place.rename(staged)
                        trash.rename(there)
                    raise
                fault("commit.done")
                shutil.rmtree(trash, ignore_errors=True)
        return place

    def delete(self, name: str, version: str, *, reply_to: Mapping[str, Any] | None = None) -> None:
        """Delete a version; for *reply_to* see `answer_of`.

        Raises:
            ModelError: it does not exist, or is live, previous, or on trial.
        """
        with disk_errors(f"{name}@{version}: deleting it"), self.locked():
            path = self.path(name, version)
            if path is None:
                raise ModelError(f"{name}@{version} is not in the store; it has {self._list(name)}")
            role = self.pointers(name).role(version)
            if role is not None:
                raise ModelError(f"{name}@{version} is {role}; activate another version first")
            answer = answer_of(reply_to, name, version, deletes=True)
            if answer is not None:
                self._change(name, lambda old: replace(old, answer=answer))
            self.discard(name, version)

    def discard(self, name: str, version: str) -> None:
        """Delete a version whatever its role; the caller has the lock and has checked the role.

        Raises:
            ModelError: its role is not known.
        """
        path = self.path(name, version)
        if path is None:
            return
        old = self.pointers(name)
        if old.unread:
            raise ModelError(f"{name}@{version}: {old.damage}")
        if any(same_version(version, known) for known in (*old.history, *old.used)):
            # First, so that nothing points to a deleted version.
            pointing.write(self.models / name, old.without(version))
        self.delete_folder(path)

    def delete_folder(self, folder: Path) -> None:
        """Rename, then delete a folder: no partial one has its name. The caller has the lock."""
        trash = self.staging / uuid.uuid4().hex
        folder.rename(trash)
        sync_folder(folder.parent)
        fault("delete.renamed")
        first = next((path for path in trash.rglob("*") if not path.is_dir()), None)
        if first is not None:
            first.unlink()
            fault("delete.partly")
        shutil.rmtree(trash)

    # --- pointers

    def activate(
        self,
        name: str,
        version: str,
        *,
        before: str | None = None,
        watched: Trial | None = None,
        cancels: str | None = None,
    ) -> Pointers:
        """Make a version live and the live one previous; end its trial, or start its probation.

        Args:
            name: the model's name.
            version: in the store, or, as the caller knows, in a read-only library.
            before: the version that ran until now, if no pointer names it (a bundled model).
            watched: its probation, recorded atomically, so that no crash leaves it live without.
            cancels: why the candidate on trial is canceled by that, if it is.
        """

        def change(old: Pointers) -> Pointers:
            history = old.history or ((before,) if before is not None else ())
            earlier = [known for known in history if not same_version(known, version)]
            # Nothing goes back to what has not outlived its probation, unless there is no other.
            proven = [known for known in earlier if known != old.on_probation]
            on_trial = old.trial is not None and same_version(old.trial.version, version)
            return replace(
                old,
                history=(*(proven or earlier), version)[-_HISTORY:],
                trial=None if on_trial else pointing.canceled(old.trial, cancels),
                watched=watched,
                used={**old.used, version: time.time()},
            ).raised(version)

        with disk_errors(f"{name}@{version}: activating it"), self.locked():
            replaced, known = self.pointers(name).on_probation, self.accepted(name, version)
            self._note(name, version, _ACCEPTED)
            try:
                changed = self._change(name, change)
            except OSError:
                if not known:  # else it would be the highest accepted one
                    self._remove_note(name, version, _ACCEPTED)
                raise
            if replaced is not None and replaced not in changed.history:
                with suppress(OSError):  # it only matters where the pointers are damaged
                    self._note(name, replaced, _WITHDRAWN)
            self._remove_note(name, version, _WITHDRAWN)
            return changed

    def rollback(
        self,
        name: str,
        why: str | None = None,
        *,
        to: str | None = None,
        reply_to: Mapping[str, Any] | None = None,
        cancels: str | None = None,
    ) -> str:
        """Make the previous version live, or *to*; remove what came after it from the history.

        If *why* is given, it is marked as rolled back, for the caller to clear once recorded; for
        *reply_to* see `answer_of`. *cancels* is why the candidate on trial is canceled, if it is.

        Returns:
            The version that is live now.

        Raises:
            ModelError: there is no previous version.
        """

        def change(old: Pointers) -> Pointers:
            if old.live is None or old.previous is None:
                raise ModelError(
                    f"{name}: there is no version before {old.live or 'the one'} to go back to"
                )
            at = len(old.history) - 2 if to is None else old.history.index(to)
            push = None if old.watched is None else old.watched.push
            mark = why and Trial(old.live, pointing.ROLLED_BACK, time.time(), why=why, push=push)
            return replace(
                old,
                history=old.history[: at + 1],
                trial=pointing.canceled(old.trial, cancels),
                watched=mark or None,
                used={**old.used, old.history[at]: time.time()},
                answer=answer_of(reply_to, name, old.history[at]) or old.answer,
            )

        with disk_errors(f"{name}: rolling back"), self.locked():
            before = self.pointers(name).live or ""
            live = self._change(name, change).history[-1]
            with suppress(OSError):  # it only matters where the pointers are damaged
                self._note(name, before, _WITHDRAWN)
            return live

    def retract(self, name: str, version: str) -> None:
        """Take back that a version on trial was accepted: a kill came before it went live."""
        with suppress(OSError), self.locked():
            if version not in self.pointers(name).history and not self.withdrawn(name, version):
                self._remove_note(name, version, _ACCEPTED)

    def withdraw(self, name: str, version: str) -> bool:
        """Take a version that is not live out of the history; return whether it was there."""

        def change(old: Pointers) -> Pointers:
            kept = [each for each in old.history[:-1] if not same_version(each, version)]
            return replace(old, history=(*kept, *old.history[-1:]))

        with disk_errors(f"{name}@{version}: withdrawing it"), self.locked():
            before = self.pointers(name).history
            there = len(self._change(name, change).history) < len(before)
            if there:
                with suppress(OSError):  # it only matters where the pointers are damaged
                    self._note(name, version, _WITHDRAWN)
            return there

    def set_trial(self, name: str, trial: Trial | None) -> Pointers:
        """Record which version is on trial, and its phase; None: no version is."""
        with disk_errors(f"{name}: noting the trial"), self.locked():
            return self._change(name, lambda old: replace(old, trial=trial))

    def set_watched(self, name: str, mark: Trial | None) -> Pointers:
        """Record which version is on probation, or was rolled back; None: neither."""
        with disk_errors(f"{name}: noting the probation"), self.locked():
            return self._change(name, lambda old: replace(old, watched=mark))

    def clear_marks(self, name: str, version: str) -> None:
        """Record that a version is neither on trial nor on probation."""
        with disk_errors(f"{name}: noting the end of a trial"), self.locked():
            if any(same_version(each.version, version) for each in self.pointers(name).marks):
                self._change(name, lambda old: old.cleared(version))

    def unanswered(self, name: str) -> Mapping[str, Any] | None:
        """Return the note of the last command if it was done, see `answer_of`; None: there is none.

        A deletion is noted before it is done.
        """
        answer = self.pointers(name).answer
        if answer and answer["deletes"] and self.path(name, answer["result"]["version"]):
            return None
        return answer

    def answered(self, name: str) -> None:
        """Forget the note of the last command."""
        if self.pointers(name).answer is not None:
            with disk_errors(f"{name}: forgetting a command"), self.locked():
                self._change(name, lambda old: replace(old, answer=None))

    def _change(self, name: str, change: Callable[[Pointers], Pointers]) -> Pointers:
        """Read, change, and write the pointers of a model; the caller has the lock."""
        folder = self.models / name
        old = self.pointers(name)
        if old.unread:
            raise OSError(errno.EIO, old.damage)
        new = replace(change(old), damage=None)
        if not folder.is_dir():
            folder.mkdir()
            copy_owner(folder, self.root)
            sync_folder(self.models)
        pointing.write(folder, new)
        return new

    def _remove_note(self, name: str, version: str, note: str) -> None:
        if (path := self.path(name, version)) is not None:
            with suppress(OSError):
                (path / NOTES / note).unlink(missing_ok=True)

    def _note(self, name: str, version: str, note: str) -> None:
        """Mark a version of the store as accepted, or as withdrawn.

        The mark is beside the files, not in the pointers: if those are damaged, it still
        distinguishes versions that have served from those never tried, or rolled back.
        """
        path = self.path(name, version)
        if path is None or self._has_note(name, version, note, unreadable=False):
            return
        write_new(path / NOTES / note, b"")
        copy_owner(path / NOTES / note, self.root)
        sync_folder(path / NOTES)
        fault("accept.marked")

    def _list(self, name: str) -> str:
        return ", ".join(self.versions(name)) or "none of that name"

    # --- several processes

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store's lock against all other threads and processes. Not reentrant."""
        guard = take_lock(self.root / "store.lock", wait=True, like=self.root)
        try:
            yield
        finally:
            drop_lock(guard)

    def has_agent(self) -> bool:
        """Whether an agent runs on this store."""
        path = self.root / "agent.lock"
        with disk_errors(f"{self.root}: asking for an agent"), self.locked():
            if not path.exists():
                return False
            try:
                drop_lock(take_lock(path))
            except BlockingIOError:
                return True
            return False
