"""The commands about versions: rollback, activate, delete. Section 3 of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import ModelError
from ...core.frozen import record
from ...core.parameters import Name, Version
from ...models.store.pointers import same_version
from ...mqtt.requests import Command
from .swap import Swap, exchange_details, log_live


@record
class Rollback:
    """Go back to the previous version."""

    model: Name


@record
class Activate:
    """Make a version live that has been accepted before."""

    model: Name
    version: Version


@record
class Delete:
    """Delete a version that nothing uses."""

    model: Name
    version: Version


class VersionCommands:
    """Commands about versions, run by the request thread; they cancel the model's candidate."""

    def __init__(self, swap: Swap) -> None:
        self._swap = swap
        self.commands: tuple[Command[Any], ...] = (
            Command("rollback", Rollback, self.rollback),
            Command("activate", Activate, self.activate),
            Command("delete", Delete, self.delete),
        )

    def rollback(self, request: Rollback) -> Mapping[str, Any]:
        """Go back to the previous version."""
        name = request.model
        with self._swap.changing:
            version = self._swap.roll_back(name, "by command", told="rolled back by command")
            # Not earlier: a command that fails changes nothing.
            self._swap.ledger.cancel(name, "rolled back by command")
        return {"model": name, "version": version}

    def activate(self, request: Activate) -> Mapping[str, Any]:
        """Make a version live that has been accepted before."""
        name, version = request.model, request.version
        with self._swap.changing:
            folder = self._swap.catalog.find(name, version)
            accepted = next(
                e.accepted for e in self._swap.catalog.versions(name) if e.folder == folder
            )
            if not accepted:
                raise ModelError(f"{name}@{version} has not passed its trial; push it again")
            folder, models = self._swap.reopen(name, version)
            self._swap.ledger.cancel(name, f"{version} was activated by command")
            before = self._swap.running(name, version)
            self._swap.end_probation(name)
            details = exchange_details(self._swap.activate(folder, models))
            log_live(name, folder.manifest.version, before, details)
            self._swap.ledger.changed()
        return {"model": name, "version": folder.manifest.version}

    def delete(self, request: Delete) -> Mapping[str, Any]:
        """Delete a version that nothing uses."""
        name, version = request.model, request.version
        for pinned, pin in self._swap.active.pins():
            if pinned == name and same_version(pin, version):
                raise ModelError(
                    f"{name}@{version} is named by a pipeline or in infer.models; change the "
                    "settings first"
                )
        if not self._swap.store.versions(name):
            self._swap.catalog.find(name, version)  # for a mistyped name it suggests the nearest
        with self._swap.changing:
            if self._swap.ledger.phase(name, version) is not None:
                raise ModelError(
                    f"{name}@{version} is live or on its way there; activate another one first"
                )
            self._swap.store.delete(name, version)
        self._swap.ledger.changed()
        return {"model": name, "version": version}
