"""Whether the trial of a package begins while the package is still arriving."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ...config.settings import Trial
from ...core.errors import AgentError
from ...device.headroom import free_mb, has_room
from ...models.packages.package import PackageHeader
from ...models.store.store import Store
from ...runtime.serving.active import ActiveModels
from .early_trial import Ahead

log = logging.getLogger(__name__)

WORTH_BYTES = 2**20
"""A smaller package is there before a child could be."""


class Expecting:
    """One trial ahead at a time, and only where there is room in memory for it beside all else."""

    def __init__(
        self,
        store: Store,
        active: ActiveModels,
        trial: Callable[[], Trial],
        *,
        overlap: bool,
        budget_mb: int,
    ) -> None:
        """Prepare.

        Args:
            store: of versions.
            active: what serves.
            trial: the device's bounds, which may be reloaded.
            overlap: whether two models may be in memory at once.
            budget_mb: what models may take; 0: no bound.

        """
        self._store = store
        self._active = active
        self._trial = trial
        self._overlap = overlap
        self._budget_mb = budget_mb
        self._latest: Ahead | None = None

    def begin(self, header: PackageHeader) -> Ahead | None:
        """Begin the trial of a package that is about to arrive, where that is worth it."""
        if (
            header.size < WORTH_BYTES
            or not self._overlap
            or (self._latest is not None and not self._latest.over)
            or not has_room(header.size)
        ):
            return None
        loader = self._active.loader
        serving = next(
            (s for s in self._active.servings_of(header.name) if s.model is not None), None
        )
        try:
            self._latest = Ahead(
                [replace(choice, lanes=loader.lanes) for choice in loader.lineup.choices],
                serving,
                golden=self._trial().golden,
                memory_mb=self._budget_mb or free_mb(),
                stage=self._store.stage(),
            )
        except (AgentError, OSError) as problem:
            # It is tried when it is whole; if that cannot be either, that is said then.
            log.warning("%s: not tried while it arrives: %s", header.id, problem)
            return None
        return self._latest
