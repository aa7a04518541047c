"""The cache of artifacts: finds a model's artifact, or has one made.

Artifacts are in the state folder, each named by the digest of all its inputs: the model's files,
the engine and its version, the processor's instructions, and the engine's options. They are made
in a child process with low priority; if it crashes, it leaves a folder that is not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ....core.errors import AgentError
from ....core.files import copy_owner, disk_errors, sync_folder, sync_tree
from ....core.state_file import StateFile
from ....device.resources import crowded, usable_cpus
from ....models.manifest import ModelFolder
from ....models.store.store import Store
from ...engines.engine import EngineChoice
from ...engines.registry import installed
from ..artifact import FOLDER, FORMAT, Artifact, ArtifactError, processor, read
from ..digests import digests
from .collect import need_room

UNFINISHED = "unfinished.json"
"""File in the folder of all artifacts with the key of the one that is being made."""


class StoppedError(ArtifactError):
    """Making an artifact was stopped because it is not needed now: nothing is wrong."""


def key_of(state: Path, folder: Path, choice: EngineChoice, kind: str, budget_mb: int = 0) -> str:
    """Return the key of the artifact that fits a model on this device now.

    Raises:
        ModelError: a file of the model cannot be read.
    """
    parts = {
        "format": FORMAT,
        "files": digests(state, folder),
        "engine": choice.engine,
        "version": installed().get(choice.engine),
        "cpu": processor(),
        "choice": choice.words(),
        "kind": kind,
        "budget_mb": budget_mb,
        "cpus": usable_cpus(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def find(
    state: Path, folder: Path, choice: EngineChoice, kind: str, budget_mb: int = 0
) -> Artifact | None:
    """Find a usable artifact of a model; returns None if there is none.

    Raises:
        ModelError: a file of the model cannot be read.
    """
    try:
        return read(str(state / FOLDER / key_of(state, folder, choice, kind, budget_mb)))
    except ArtifactError:
        return None


def prepare(
    store: Store,
    model: ModelFolder,
    choice: EngineChoice,
    kind: str,
    *,
    budget_mb: int = 0,
    quota: int = 0,
    used: Collection[Path] | None = None,
    timeout_s: float = 600.0,
    stopped: Callable[[], str | None] = lambda: None,
    yields: Callable[[], bool] = crowded,
) -> Artifact:
    """Make the artifact of a model and move it to its place; takes seconds.

    It pauses for others while *yields* returns true, unless an earlier attempt was interrupted: an
    agent that is stopped or killed again and again would never have one.

    Args:
        store: the store whose state folder keeps it.
        model: the model to prepare, which has been checked.
        choice: the engine it is for, on the CPU.
        kind: the kind of sample that the model will get.
        budget_mb: memory limit of the model; 0: no limit.
        quota: bytes that the store may take, artifacts included; 0: no limit.
        used: folders of the models whose artifacts stay; None: all do.
        timeout_s: seconds after which the child counts as hung.
        stopped: returns why to stop; None: go on.
        yields: returns whether others need the processor more.

    Raises:
        StoppedError: *stopped* gave a reason; nothing has changed.
        ArtifactError: it cannot be made; nothing has changed.
    """
    from ....core.child import ChildStoppedError, ask  # not needed to find an artifact

    key = key_of(store.root, model.path, choice, kind, budget_mb)
    try:
        need_room(store, model.path, quota, used)
        with store.stage() as staged:
            made = staged / key
            made.mkdir()
            # Asked again, because reading the files for the key took a while.
            why = stopped()
            if why is not None:
                raise StoppedError(f"{model.manifest.id}: cannot be prepared: {why}")
            with _noted(store, key) as again:
                question = {
                    "key": key,
                    "model": str(model.path),
                    "choice": choice.words(),
                    "kind": kind,
                    "folder": str(made),
                    "budget_mb": budget_mb,
                    "urgent": again,
                }
                ask(
                    f"{__package__}.worker",
                    question,
                    "its preparation",
                    timeout_s=timeout_s,
                    stopped=stopped,
                    yields=(lambda: False) if again else yields,
                )
                place = _commit(store, made, key)
            return read(str(place))
    except ArtifactError:
        raise
    except ChildStoppedError as problem:
        raise StoppedError(f"{model.manifest.id}: cannot be prepared: {problem}") from None
    except AgentError as problem:
        raise ArtifactError(f"{model.manifest.id}: cannot be prepared: {problem}") from problem


def discard(artifact: str, store: Store) -> None:
    """Remove an artifact that turned out to be damaged, if it is still there.

    Raises:
        ModelError: the disk is broken.
    """
    folder = Path(artifact)
    with disk_errors(f"{folder}: removing it"), store.locked():
        if folder.is_dir():
            store.delete_folder(folder)


@contextmanager
def _noted(store: Store, key: str) -> Iterator[bool]:
    """Note which artifact is being made; yield whether making it was interrupted before."""
    from ....core.child import ChildStoppedError

    _make_folder(store)
    file = StateFile(store.root / FOLDER / UNFINISHED)
    again = file.read(lambda content: content["key"]) == key
    if not again:
        file.save({"key": key})
    ended = True
    try:
        yield again
    except ChildStoppedError:
        ended = False
        raise
    finally:
        if ended:
            file.path.unlink(missing_ok=True)


def _make_folder(store: Store) -> None:
    """Create the folder of all artifacts if it is missing."""
    folder = store.root / FOLDER
    with disk_errors(f"{folder}: making it"):
        if not folder.is_dir():
            folder.mkdir()
            copy_owner(folder, store.root)
            sync_folder(store.root)


def _commit(store: Store, made: Path, key: str) -> Path:
    """Move an artifact to its place atomically, replacing one with the same key."""
    place = store.root / FOLDER / key
    with disk_errors(f"{place}: storing it"):
        sync_tree(made)
        copy_owner(made, store.root)
        with store.locked():
            if place.exists():
                store.delete_folder(place)
            made.rename(place)
            sync_folder(place.parent)
    return place
