"""Every model that this device can run: pushed to it, put there by its owner, or bundled.

Models are in three places: the store, the folders of `models_dirs`, and those bundled with this
program. For the same name and version the first place counts. Only the store has live versions.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ...core.containment import contained
from ...core.errors import ModelError, OnTrialError
from ...core.files import is_gone, subfolders
from ...core.frozen import record
from ...core.names import is_name, version_key
from ...core.plain_file import read_plain_bytes
from ...core.schema import nearest
from ...core.state_file import DAMAGED
from ..manifest import KEPT, MANIFEST, ModelFolder, load
from .changed import PUSH_AGAIN, changed_words
from .pointers import same_version
from .store import LAYOUT, NOTES, Store

log = logging.getLogger(__name__)

Place = Literal["store", "models_dirs", "bundled"]


@record
class Entry:
    """A version of a model in one of the places."""

    name: str
    version: str | None
    """None if the manifest cannot be read and nothing else shows it."""
    place: Place
    path: Path
    folder: ModelFolder | None
    """None: it is broken."""
    error: str | None = None
    """One line that says how it is broken."""
    accepted: bool = True
    """Whether it may run without a trial; in the store, only if it has been live before."""


@record
class Catalog:
    """All models. Reads the folders at every call, as they may change; for many calls use `now`."""

    store: Store
    models_dirs: Sequence[Path] = ()
    bundled_dir: Path | None = None

    def now(self) -> Catalog:
        """Return the models as of this moment, read once for any number of calls."""
        return _Snapshot(self.store, self.models_dirs, self.bundled_dir, tuple(self._all()))

    def entries(self, name: str | None = None) -> tuple[Entry, ...]:
        """List all versions, including broken ones and those hidden by another place."""
        return tuple(entry for entry in self._all() if name is None or entry.name == name)

    def names(self) -> tuple[str, ...]:
        """List the names of models with a version that can be loaded."""
        return tuple(sorted({entry.name for entry in self._all() if entry.folder}))

    def versions(self, name: str) -> tuple[Entry, ...]:
        """List the versions of a model that can be loaded, highest first; each once."""
        found: dict[tuple[int, ...], Entry] = {}
        for entry in self.entries(name):
            if entry.folder is not None and entry.version is not None:
                found.setdefault(version_key(entry.version), entry)
        return tuple(found[key] for key in sorted(found, reverse=True))

    def accepts(self, name: str, version: str | None) -> bool:
        """Whether an accepted version is installed; else one may still be pushed."""
        meant = None if version is None else version_key(version)
        return any(
            entry.accepted
            and (meant is None or entry.version is None or version_key(entry.version) == meant)
            for entry in self.entries(name)
        )

    def find(self, name: str, version: str | None = None, *, on_trial: bool = False) -> ModelFolder:
        """Find a version of a model; None: the live one.

        *on_trial*: also one whose trial is not over, which must not serve. Of the same version in
        another place, that one is found instead.

        Raises:
            OnTrialError: its trial is not over.
            ModelError: it is missing or broken; suggests known names or versions.
        """
        if version is None:
            return self.live(name)
        tried = None if on_trial else self.store.pointers(name).on_trial
        waits = tried is not None and same_version(tried, version)
        for entry in self.entries(name) if waits else self.versions(name):
            same = entry.folder and entry.version and same_version(entry.version, version)
            if same and entry.folder is not None and (entry.accepted or not waits):
                return entry.folder
        if waits:
            raise OnTrialError(f"{name}@{version}: has not passed its trial yet")
        for entry in self.entries(name):
            if entry.error and entry.version and same_version(entry.version, version):
                raise ModelError(f"{name}@{version} is broken: {entry.error}")
        raise ModelError(f"{name}@{version}: not found; {self._known(name)}")

    def find_unchanged(self, name: str, version: str) -> ModelFolder:
        """Find a version that will go live again, after checking its files by their digests.

        Raises:
            ModelError: as for `find`, or it has changed on disk since it was installed.
        """
        return self.unchanged(self.find(name, version, on_trial=True))

    def unchanged(self, folder: ModelFolder) -> ModelFolder:
        """Return *folder* after checking its files by their digests.

        Raises:
            ModelError: it has changed on disk since it was installed.
        """
        if folder.path.is_relative_to(self.store.models):
            from .local_blocks import check_unchanged  # rarely needed

            check_unchanged(folder.path, folder.manifest.id)
        return folder

    def stands_in(self, folder: ModelFolder, broken: ModelError | None = None) -> str | None:
        """Return which live version *folder* runs in place of, and why; None: it is live itself.

        *broken* is why the live version could not be loaded, if that was tried.
        """
        name, runs = folder.manifest.name, folder.manifest.version
        pointers = self.store.pointers(name)
        live = pointers.live
        if live is None:
            if broken is None:
                return pointers.damage if pointers.unread else None
            live = next(self.runnable(name)).manifest.version
        there = [e for e in self.entries(name) if e.version and same_version(e.version, live)]
        wrong = str(broken) if broken else next((e.error for e in there if e.error), None)
        if same_version(live, runs):
            if wrong is None or folder.path.is_relative_to(self.store.models):
                return None
            runs = f"the one in {folder.path.parent}"
        if wrong is None and there:
            wait = "has yet to pass its trial again"
            return f"{name}@{live} is live, but {wait}; {runs} runs until then"
        why = f"is broken ({wrong})" if wrong else "is not there"
        again = PUSH_AGAIN
        if there and all(entry.place != "store" for entry in there):
            again = "put it there again, or push a higher version"
        mend = "" if wrong and again in wrong else f": {again}"
        return f"{name}@{live} is live, but {why}; {runs} runs in its place{mend}"

    def live(self, name: str) -> ModelFolder:
        """Find the version that runs: the one the store's pointer names, else the highest one.

        If the version it names is missing or broken, the previous one is used instead, then the
        highest; `problems` reports it.

        Raises:
            OnTrialError: the trial of the only one is not over.
            ModelError: there is no version that can be loaded and has been accepted.
        """
        folder = next(self.runnable(name), None)
        if folder is not None:
            return folder
        if any(entry.folder and not entry.accepted for entry in self.entries(name)):
            words = "no version has passed its trial yet; the agent tries it while it runs"
            raise OnTrialError(f"{name}: {words}")
        raise ModelError(f"{name}: {self._none(name)}")

    def runnable(self, name: str) -> Iterator[ModelFolder]:
        """Yield the versions that may run in the order in which they are chosen.

        One that is in several places is yielded for each of them, if the first may run.
        """
        entries = [e for e in self.entries(name) if e.folder and e.version]
        untried = {version_key(e.version) for e in entries if e.version and not e.accepted}
        found: dict[tuple[int, ...], list[ModelFolder]] = {}
        for entry in entries:
            if entry.folder and entry.version and version_key(entry.version) not in untried:
                found.setdefault(version_key(entry.version), []).append(entry.folder)
        recent = [version_key(version) for version in reversed(self.store.pointers(name).history)]
        for key in dict.fromkeys(recent):
            yield from found.pop(key, ())
        # What was rolled back comes last; its pointers may be damaged.
        store, order = self.store, sorted(found, reverse=True)
        order.sort(key=lambda key: store.withdrawn(name, found[key][0].manifest.version))
        for key in order:
            yield from found[key]

    def activate(self, name: str, version: str, *, cancels: str | None = None) -> ModelFolder:
        """Make an accepted version live, wherever it is; the live one becomes the previous one.

        For *cancels* see `Store.activate`.

        Raises:
            ModelError: there is no such version, or it was never accepted.
        """
        folder = self.find(name, version)
        entry = next(entry for entry in self.versions(name) if entry.folder == folder)
        if not entry.accepted:
            raise ModelError(f"{name}@{version} has not passed its trial; push it again")
        running = self._running(name)
        self.store.activate(name, folder.manifest.version, before=running, cancels=cancels)
        return folder

    def rollback(
        self,
        name: str,
        why: str | None = None,
        *,
        to: str | None = None,
        reply_to: Mapping[str, Any] | None = None,
        cancels: str | None = None,
    ) -> ModelFolder:
        """Make the previous version live; for the parameters see `Store.rollback`.

        Raises:
            ModelError: there is none, or it no longer loads; nothing has changed then.
        """
        previous = to or self.store.pointers(name).previous
        if previous is not None:
            self.find(name, previous)
        done = self.store.rollback(name, why, to=to, reply_to=reply_to, cancels=cancels)
        return self.find(name, done)

    def problems(self) -> tuple[str, ...]:
        """List the problems in all places, one line each."""
        lines = [entry.error for entry in self._all() if entry.error]
        troubles = map(library_trouble, self.models_dirs)
        lines += [f"models_dirs: {each}" for each in troubles if each and each not in lines]
        for name in self.store.names():
            pointers = self.store.pointers(name)
            if pointers.damage:
                lines.append(pointers.damage)
            live, there = pointers.live, [e.version for e in self.versions(name) if e.version]
            if live and not any(same_version(each, live) for each in there):
                running = self._running(name)
                falls = f"{running} runs" if running else "nothing can run"
                lines.append(f"{name}@{live} is live, but is not there; {falls} in its place")
        return tuple(lines)

    def _all(self) -> Iterator[Entry]:
        for name in self.store.names():
            for version in self.store.versions(name):
                yield _stored(self.store, name, version)
        for folder in self.models_dirs:
            yield from _plain(folder, "models_dirs")
        if self.bundled_dir is not None:
            yield from _plain(self.bundled_dir, "bundled")

    def _running(self, name: str) -> str | None:
        """Return the version that runs now, if no pointer names one."""
        try:
            return self.live(name).manifest.version
        except ModelError:
            return None  # nothing runs, so there is nothing to go back to

    def _known(self, name: str) -> str:
        """Return the known versions, as the end of an error."""
        versions = [entry.version for entry in self.versions(name) if entry.version]
        if versions:
            return f"there is {', '.join(versions)}"
        return self._none(name)

    def _none(self, name: str) -> str:
        """Return why no version of a name can run."""
        broken = [entry.error for entry in self.entries(name) if entry.error]
        if broken:
            return f"every version is broken: {broken[0]}"
        places = {*self.models_dirs, self.bundled_dir}
        closed = [entry.error for entry in self._all() if entry.error and entry.path in places]
        if closed:
            return f"no model of that name, but {closed[0]}"
        return f"no model of that name{nearest(name, self.names())}"


@record
class _Snapshot(Catalog):
    """The models as read once; which version is live is still read from the store."""

    found: tuple[Entry, ...] = ()

    def _all(self) -> Iterator[Entry]:
        return iter(self.found)


def _stored(store: Store, name: str, version: str) -> Entry:
    """Read one version of the store."""
    path = store.models / name / version
    folder, error = None, None
    try:
        with contained(str(path), ModelError):
            folder = load(path)
            resized = _resized(path)
            if resized is not None:
                raise ModelError(changed_words(folder.manifest.id, resized))
    except ModelError as problem:
        folder, error = None, str(problem)
    if folder and (folder.manifest.name, folder.manifest.version) != (name, version):
        error = f"{path}: its manifest says {folder.manifest.id}; delete it and push it again"
        folder = None
    return Entry(name, version, "store", path, folder, error, store.accepted(name, version))


def _resized(path: Path) -> str | None:
    """Name a file of a stored version that is gone or has another size than when installed."""
    try:
        pieces = json.loads(read_plain_bytes(path / NOTES / LAYOUT))
        sizes = {str(name): int(size) for name, size in pieces if name is not None}
    except (FileNotFoundError, *DAMAGED):
        return None  # put there by hand, or its notes are damaged: nothing is known of it
    except OSError as problem:
        raise ModelError(f"{path / NOTES}: cannot be read: {problem.strerror}") from None
    for name, size in sizes.items():
        try:
            found = (path / name).stat().st_size
        except (OSError, ValueError):  # of a name that no file can have
            if (path / KEPT).exists():
                continue  # a file of another variant, which was left out
            return name
        if found != size:
            return name
    return None


def _plain(parent: Path, place: Place) -> Iterator[Entry]:
    """Read the models in the direct subfolders of a read-only folder."""
    try:
        folders = [path for path in subfolders(parent) if _has_manifest(path)]
    except OSError as problem:
        yield Entry("?", None, place, parent, None, f"{parent}: cannot be read: {problem.strerror}")
        return
    for path in folders:
        try:
            with contained(str(path), ModelError):  # a problem with it only affects this version
                folder = load(path)
        except ModelError as problem:
            name = path.name if is_name(path.name) else "?"
            yield Entry(name, None, place, path, None, str(problem))
        else:
            yield Entry(folder.manifest.name, folder.manifest.version, place, path, folder)


def library_trouble(folder: Path) -> str | None:
    """Return why no models can be in a folder of `models_dirs`; None: there may be some."""
    try:
        os.scandir(folder).close()
    except (FileNotFoundError, NotADirectoryError):
        return f"{folder}: no such folder"
    except OSError as problem:
        return f"{folder}: cannot be read: {problem.strerror}"
    if _has_manifest(folder):
        return f"{folder}: is a model itself; name the folder that it is in, {folder.parent}"
    return None


def _has_manifest(path: Path) -> bool:
    """Whether a folder is meant as a model, even if its manifest is a pipe or a dangling link.

    Where that cannot be looked at, it is: reading it says what is wrong.
    """
    manifest = path / MANIFEST
    return not is_gone(manifest) or manifest.is_symlink()


def untried(store: Store, name: str) -> str | None:
    """Return the version that the next start tries: the highest that has not been accepted."""
    versions = reversed(store.versions(name))
    return next((each for each in versions if not store.accepted(name, each)), None)
