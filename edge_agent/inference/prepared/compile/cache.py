"""The cache of artifacts: finds a model's artifact, and has it made if there is none.

Artifacts lie in the state folder, each under the digest of all its inputs: the model's
files, the engine and its version, the processor's instructions, and how the engine is to run.
Making one is work of a child process with low priority; a crash of it leaves a folder that is not
read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
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
"""In the folder of all artifacts: the key of the one whose making has begun and not ended."""


class StoppedError(ArtifactError):
    """Making an artifact was stopped because it need not go on: nothing is wrong."""


def key_of(state: Path, folder: Path, choice: EngineChoice, kind: str, budget_mb: int = 0) -> str:
    """Return the key of the artifact that fits a model here and now.

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
    timeout_s: float = 600.0,
    stopped: Callable[[], str | None] = lambda: None,
    yields: Callable[[], bool] = crowded,
) -> Artifact:
    """Make the artifact of a model and move it to its place. Takes seconds.

    It pauses for others where *yields* says so; but not where its making was cut off before: an
    agent that is stopped or killed again and again would never have one.

    Args:
        store: in whose state folder it is kept.
        model: to prepare; it has been checked before.
        choice: the engine that it is for, on the CPU.
        kind: of sample that the model will be given.
        budget_mb: memory limit of the model; 0: no bound.
        quota: bytes that the store may take, artifacts included; 0: no bound.
        timeout_s: after which making it counts as hung.
        stopped: returns why it need not go on; None: it shall.
        yields: returns whether others need the processor more.

    Raises:
        StoppedError: *stopped* gave a reason; nothing has changed.
        ArtifactError: it cannot be made; nothing has changed.
    """
    from ....core.child import ChildStoppedError, ask  # not needed to find one

    key = key_of(store.root, model.path, choice, kind, budget_mb)
    try:
        need_room(store, model.path, quota)
        with store.stage() as staged:
            made = staged / key
            made.mkdir()
            # Asked again: reading the files for the key has taken its time.
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
    """Note which artifact is being made until that ends; say whether it was cut off before."""
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
    """Make the folder of all artifacts, if it is not there."""
    folder = store.root / FOLDER
    with disk_errors(f"{folder}: making it"):
        if not folder.is_dir():
            folder.mkdir()
            copy_owner(folder, store.root)
            sync_folder(store.root)


def _commit(store: Store, made: Path, key: str) -> Path:
    """Move an artifact to its place, in one step; it replaces one of the same key."""
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
