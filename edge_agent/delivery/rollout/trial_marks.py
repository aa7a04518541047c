"""What the store holds of a version on trial: the mark that tells the next start who was at it.

A trial or a probation that the agent did not outlive is known by its mark. Where the disk is full,
a mark stays until the next change of the model's pointers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from ...config.settings import Trial
from ...core.errors import ModelError
from ...core.files import disk_errors, fault
from ...models.store.pointers import Trial as Mark
from ...models.store.pointers import same_version
from ...models.store.store import Store
from .candidate import Candidate

__all__ = ["Mark", "begin", "clear", "discard_rejected", "of_probation", "suspend"]

log = logging.getLogger(__name__)


def begin(store: Store, candidate: Candidate) -> None:
    """Note that a candidate's trial begins.

    Raises:
        ModelError: the disk is full or broken.

    """
    mark = Mark(candidate.version, candidate.phase, time.time(), candidate.starts)
    store.set_trial(candidate.name, mark)
    fault("trial.marked")


def of_probation(version: str, bounds: Trial) -> Mark | None:
    """Make the mark of a probation, where there is to be one."""
    return Mark(version, "probation", time.time()) if bounds.probation_s > 0 else None


def clear(store: Store, name: str, version: str) -> None:
    """Note that a version is not on trial any more; where the disk is full, that waits."""
    mark = store.pointers(name).trial
    if mark is None or not same_version(mark.version, version):
        return
    try:
        store.set_trial(name, None)
    except ModelError as problem:
        log.error("%s", problem)  # noqa: TRY400 - one line, no traceback


def suspend(store: Store, names: Iterable[str]) -> None:
    """Note, at an orderly end, that those under way are not to blame for it."""
    for name in names:
        mark = store.pointers(name).trial
        if mark is None:
            continue
        try:
            starts = -1 if mark.phase == "probation" else mark.starts - 1
            store.set_trial(name, replace(mark, starts=starts))
        except ModelError as problem:
            log.error("%s: %s", name, problem)  # noqa: TRY400 - one line, no traceback
        fault("probation.suspended")


def discard_rejected(store: Store, name: str, version: str, why: str) -> None:
    """Remove what was rejected, and its mark, unless it had been accepted before."""
    log.warning("%s@%s: rejected: %s", name, version, why)
    clear(store, name, version)
    try:
        with disk_errors(f"{name}@{version}: removing it"), store.locked():
            if not store.accepted(name, version):
                store.discard(name, version)
    except ModelError as problem:
        log.error("%s", problem)  # noqa: TRY400 - one line, no traceback
