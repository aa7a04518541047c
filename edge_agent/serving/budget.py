"""The memory that all models that serve may take together: `memory_budget_mb` of the profile.

Counted are the bytes of a model's files, and of a language model also its cache. One that is larger
than all of it streams, and is not counted: the kernel takes its pages back when memory is short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import EngineError
from ..core.files import size_of
from ..core.frozen import record
from ..core.names import version_key

if TYPE_CHECKING:
    from ..models.manifest import ModelFolder

_MIB = 2**20


class NoRoomError(EngineError):
    """A model would fit by itself, but not beside the others that serve."""


@record
class Held:
    """A model in memory."""

    folder: ModelFolder
    live: bool
    """Whether it serves as the live version of its name, which another one would replace."""
    on_trial: bool = False
    """Whether it does not serve yet, and must not keep an accepted version from coming back."""


class MemoryBudget:
    """The one sum over all models; any thread may ask."""

    def __init__(self, limit_mb: int, kv_cache_mb: int = 0) -> None:
        """Set a limit, 0: none; *kv_cache_mb* is what each language model takes besides."""
        self.limit_mb = limit_mb
        self._kv_cache_mb = kv_cache_mb
        self.holders: list[Callable[[], Iterable[Held]]] = []
        """Each lists models in memory."""
        self.pins: Callable[[], Collection[tuple[str, str]]] = tuple
        """Returns name and version of the models that are pinned, and so replace none."""
        self.freed: Callable[[], object] = lambda: None
        """Called when a model that was counted has not come."""
        self._planned: list[Held] = []
        self._taking = threading.Lock()
        """Held while a model is checked and counted, so that of two only one gets the room."""

    def exceeds(self, folder: ModelFolder) -> bool:
        """Whether a model's files alone are larger."""
        return 0 < self.limit_mb * _MIB < size_of(folder.path)

    def fits_beside(self, folder: ModelFolder, old: ModelFolder | None = None) -> bool:
        """Whether a model can be in memory along with the version that it replaces.

        That is counted if it is in memory; *old* though it is not.
        """
        if not self.limit_mb or self.exceeds(folder):
            return True
        others = self._others(folder, replaced=True)
        if old is not None and not self.exceeds(old):
            others[old.manifest.id] = self._mb(old)
        return self._mb(folder) + sum(others.values()) <= self.limit_mb

    def check(self, folder: ModelFolder, *, back: bool = False) -> None:
        """Check that a model can serve along with all others; one that `exceeds` is not counted.

        *back*: it comes back, so what is on trial gives way.

        Raises:
            NoRoomError: they are larger together; it has the figures.
            EngineError: a language model and its cache are larger alone.
        """
        limit = self.limit_mb
        if not limit:
            return
        name, own = folder.manifest.id, self._mb(folder)
        if own > limit and folder.manifest.task == "generate":
            raise EngineError(
                f"{name}: its {own - self._kv_cache_mb} MB and text.kv_cache_mb = "
                f"{self._kv_cache_mb} are more than memory_budget_mb = {limit}; lower "
                "text.kv_cache_mb, or use a smaller model"
            )
        if self.exceeds(folder):
            return
        others = self._others(folder, replaced=False, back=back)
        total = own + sum(others.values())
        if total > limit:
            listed = ", ".join(f"{other} ({mb} MB)" for other, mb in others.items())
            raise NoRoomError(
                f"{name}: its {own} MB and {listed} are {total} MB together, more than "
                f"memory_budget_mb = {limit} for all that serves; use fewer or smaller models, "
                "or raise it in the profile"
            )

    def take(
        self, folder: ModelFolder, *, live: bool, on_trial: bool = False, back: bool = False
    ) -> Held:
        """Check a model, and count it from now on; for what plans and loads nothing.

        Raises:
            EngineError: as for `check`.
        """
        taken = Held(folder, live, on_trial)
        with self._taking:
            if all(planned.folder.path != folder.path for planned in self._planned):
                self.check(folder, back=back)  # else it has its room
            self._planned.append(taken)
        return taken

    @contextmanager
    def loading(
        self,
        folder: ModelFolder,
        *,
        again: bool = False,
        on_trial: bool = False,
        back: bool = False,
    ) -> Iterator[None]:
        """Check a model, and count it while it is being loaded: no holder lists it yet.

        *again*: it is in memory, and unloaded for that; its room stays its own, unchecked.
        *on_trial* and *back* are those of `Held` and `check`.

        Raises:
            EngineError: as for `check`.
        """
        if again:
            taken = Held(folder, live=True)
            with self._taking:
                self._planned.append(taken)
        else:
            taken = self.take(folder, live=True, on_trial=on_trial, back=back)
        has_come = False
        try:
            yield
            has_come = True
        finally:
            with self._taking:
                self._planned = [each for each in self._planned if each is not taken]
            if not has_come:
                self.freed()

    def _mb(self, folder: ModelFolder) -> int:
        cache = self._kv_cache_mb if folder.manifest.task == "generate" else 0
        return -(-size_of(folder.path) // _MIB) + cache

    def _others(self, folder: ModelFolder, *, replaced: bool, back: bool = False) -> dict[str, int]:
        """Return the MB of each other model in memory.

        *replaced*: also of what it replaces; *back*: not of what is on trial.
        """
        name, version = folder.manifest.name, version_key(folder.manifest.version)
        everything = [*self._planned, *(held for holder in self.holders for held in holder())]
        pins = [
            (held.folder.manifest.name, held.folder.manifest.version)
            for held in everything
            if not held.live
        ]
        pinned = any(
            (one, version_key(pin)) == (name, version) for one, pin in (*pins, *self.pins())
        )
        found: dict[str, int] = {}
        for held in everything:
            goes = held.live and held.folder.manifest.name == name and not (pinned or replaced)
            goes = goes or (back and held.on_trial)
            if held.folder.path != folder.path and not goes and not self.exceeds(held.folder):
                found[held.folder.manifest.id] = self._mb(held.folder)
        return found
