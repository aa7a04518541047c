"""Back to the previous version: by command, or because the live one fails on probation."""

from __future__ import annotations

import logging

from ...core.errors import AgentError, ModelError
from ...core.files import fault
from ...models.store.catalog import Library
from ...models.store.store import Store
from .ledger import Candidate, Ledger
from .swap import Swap, close_all, exchange_details, log_live

log = logging.getLogger(__name__)


class Rollbacks:
    """Rolls back, and records the reason. Its methods need `Swap.changing`."""

    def __init__(self, store: Store, library: Library, ledger: Ledger, swap: Swap) -> None:
        self._store = store
        self._library = library
        self._ledger = ledger
        self._swap = swap

    def roll_back(self, name: str, why: str) -> str:
        """Make the previous version live.

        Returns:
            The version that is live now.

        Raises:
            AgentError: there is none, it does not load, or it is not what was accepted; nothing
                has changed then.
        """
        pointers = self._store.pointers(name)
        if pointers.live is None:
            self._library.live(name)  # of a mistyped name it tells the nearest
        if pointers.live is None or pointers.previous is None:
            raise ModelError(
                f"{name}: there is no version before {pointers.live or 'the one that runs'}"
                " to go back to"
            )
        folder, models = self._swap.reopen(name, pointers.previous)
        try:
            self._library.rollback(name)
        except ModelError:
            close_all(models)
            raise
        fault("rollback.done")
        for candidate in self._ledger.on_probation(name):
            self._ledger.remove(candidate)
        details = exchange_details(self._swap.exchange(name, models))
        self._ledger.record_last(name, pointers.live, "rolled-back", why, details)
        log.info("%s@%s: rolled back: %s", name, pointers.live, why)
        log_live(name, folder.manifest.version, pointers.live, details)
        self._ledger.changed()
        return folder.manifest.version

    def keep_live(self, candidate: Candidate, why: str, problem: AgentError) -> None:
        """Record that a version has failed and stays live, as there is no other."""
        why = f"{why}; it goes on all the same: {problem}"
        log.warning("%s: %s", candidate.id, why)
        self._ledger.record_last(candidate.name, candidate.version, "live", why)
        self._ledger.finish(candidate, "live", why)
