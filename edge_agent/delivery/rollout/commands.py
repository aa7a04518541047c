"""What operators decide about versions: rollback, activate, delete. Section 3 of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import ModelError
from ...core.names import is_name, is_version
from ...models.store.catalog import Library
from ...models.store.pointers import same_version
from ...models.store.store import Store
from ...mqtt.requests import text
from ...runtime.serving.active import ActiveModels
from .ledger import Ledger
from .probation import Probations
from .rollback import Rollback
from .swap import Swap


class Commands:
    """Carried out by the thread that takes requests; a candidate of the same model is canceled."""

    def __init__(
        self,
        store: Store,
        library: Library,
        active: ActiveModels,
        ledger: Ledger,
        *,
        swap: Swap,
        probations: Probations,
        rollback: Rollback,
    ) -> None:
        self._store = store
        self._library = library
        self._active = active
        self._ledger = ledger
        self._swap = swap
        self._probations = probations
        self._rollback = rollback

    def rollback(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Roll back to the version before."""
        name = _name(body)
        with self._swap.changing:
            self._ledger.cancel(name, "rolled back by command")
            version = self._rollback.roll_back(name, "by command")
        return {"model": name, "version": version}

    def activate(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a version live that has been accepted before."""
        name, version = _name(body), _version(body)
        with self._swap.changing:
            self._ledger.cancel(name, f"{version} was activated by command")
            folder = self._library.find(name, version)
            accepted = next(e.accepted for e in self._library.versions(name) if e.folder == folder)
            if not accepted:
                raise ModelError(f"{name}@{version} has not passed its trial; push it again")
            self._probations.end(name)
            self._swap.activate(name, folder)
            self._ledger.changed()
        return {"model": name, "version": folder.manifest.version}

    def delete(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Delete a version that nothing uses."""
        name, version = _name(body), _version(body)
        for pinned, pin in self._active.pins():
            if pinned == name and same_version(pin, version):
                raise ModelError(
                    f"{name}@{version} is named by a pipeline; change the settings first"
                )
        with self._swap.changing:
            if self._ledger.phase(name, version) is not None:
                raise ModelError(
                    f"{name}@{version} is live or on its way there; activate another one first"
                )
            self._store.delete(name, version)
        self._ledger.changed()
        return {"model": name, "version": version}


def _name(body: Mapping[str, Any]) -> str:
    name = text(body, "model")
    if not is_name(name):
        raise ModelError(f"model: {name!r} is not a name")
    return name


def _version(body: Mapping[str, Any]) -> str:
    version = text(body, "version")
    if not is_version(version):
        raise ModelError(f"version: {version!r} is not a version (dot-separated integers)")
    return version
