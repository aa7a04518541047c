"""The lock of a state folder's only agent. Imports little: it is taken before the first result."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...core.errors import AgentError, UsageError
from ...core.files import copy_owner, drop_lock, take_lock
from ...core.owners import foreign


@contextmanager
def hold_agent_lock(state: Path) -> Iterator[None]:
    """Hold the agent's lock on this folder.

    Raises:
        UsageError: another agent holds it; or what is live cannot be known, as the models in it are
            another user's.
        AgentError: the disk fails, which may pass: systemd starts the service again at once.
    """
    try:
        # Under the store's lock, so that a process that only tests it is not mistaken for an agent.
        guard = take_lock(state / "store.lock", wait=True, like=state)
        try:
            _check_models(state)
            mine = take_lock(state / "agent.lock", like=state)
        finally:
            drop_lock(guard)
    except BlockingIOError:
        raise UsageError(
            f"state_dir: {state}: another agent runs on it; stop that one first"
        ) from None
    except OSError as problem:
        words = [f"state_dir: {state}", problem.strerror or str(problem), foreign(state)]
        closed = isinstance(problem, PermissionError) or problem.errno == errno.EROFS
        kind = UsageError if closed else AgentError
        raise kind(": ".join(filter(None, words))) from None
    try:
        # Only the agent writes these files, so no other process is writing one now.
        with suppress(OSError):  # of a disk that has become read-only
            for path in state.glob(".*.json.*"):
                path.unlink()
        yield
    finally:
        with suppress(OSError):
            copy_owner(state, state)  # after a run as root, for the service's own user
        drop_lock(mine)


def _check_models(state: Path) -> None:
    try:
        os.scandir(state / "models").close()
    except PermissionError:
        raise
    except OSError:  # there are none yet; or the disk is broken, and the next start may do
        return
