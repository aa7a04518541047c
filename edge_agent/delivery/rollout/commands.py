"""The commands about versions: rollback, activate, delete. Section 3 of the interface.

Going back twice or deleting twice is not the same as once, so these two are noted in the model's
pointers until their reply is remembered; after a kill the next run answers them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ...core.errors import ModelError
from ...core.frozen import record
from ...core.parameters import Name, Version
from ...models.store.pointers import same_version
from ...mqtt.requests import Command, Later, Requests
from .swap import Swap, exchange_details, log_live

log = logging.getLogger(__name__)

ReplyTo = Mapping[str, Any] | None
"""Of `Later`."""


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
            Command("rollback", Rollback, lambda asked: self._noted(asked, self.rollback)),
            Command("activate", Activate, self.activate),
            Command("delete", Delete, lambda asked: self._noted(asked, self.delete)),
        )

    def _noted(self, asked: Any, work: Callable[[Any, ReplyTo], Mapping[str, Any]]) -> Later:
        """Have *work* done, and noted with its effect until its reply is remembered."""

        def begin() -> None:
            # Others are carried out at every arrival.
            once = later.reply_to is not None and "digest" in later.reply_to
            later.tell(work(asked, later.reply_to if once else None))

        later = Later("", begin, lambda: self._answered(asked.model))
        return later

    def _answered(self, name: str) -> None:
        try:
            self._swap.store.answered(name)
        except ModelError as problem:
            log.warning("%s; the next start answers it again", problem)

    def answer_interrupted(self, requests: Requests) -> None:
        """Answer the commands that the last run carried out but had no time to answer."""
        for name in self._swap.store.names():
            answer = self._swap.store.unanswered(name)
            if answer is not None:
                log.info("model %s: answering a command of the last run", name)
                requests.answer_unfinished(answer["reply_to"], answer["result"])
            self._answered(name)

    def rollback(self, request: Rollback, reply_to: ReplyTo = None) -> Mapping[str, Any]:
        """Go back to the previous version."""
        name = request.model
        with self._swap.changing:
            version = self._swap.roll_back(
                name, "by command", told="rolled back by command", reply_to=reply_to
            )
            # Not earlier: a command that fails changes nothing.
            self._swap.ledger.cancel(name, "rolled back by command")
        return {"model": name, "version": version}

    def undo(self, name: str, version: str, why: str) -> None:
        """Go back from a version: now, or if another serves, not to it later."""
        with self._swap.changing:
            live = self._swap.store.pointers(name).live
            if live is not None and same_version(live, version):
                self._swap.roll_back(name, why)
            elif self._swap.store.withdraw(name, version):
                log.warning("%s@%s: nothing goes back to it: %s", name, version, why)
                self._swap.ledger.changed()

    def stop(self, transfer: str, why: str) -> bool:
        """Stop the candidate that came in a transfer; return whether it serves already."""
        with self._swap.changing:  # it does, or never will
            return self._swap.ledger.cancel_transfer(transfer, why)

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
            with self._swap.reopen(name, version) as (folder, models):
                why = f"{version} was activated by command"
                self._swap.ledger.cancel(name, why)
                before = self._swap.running(name, version)
                details = exchange_details(self._swap.activate(folder, models, cancels=why))
                self._swap.end_probation(name, version)
            log_live(name, folder.manifest.version, before, details)
            self._swap.ledger.changed()
        return {"model": name, "version": folder.manifest.version}

    def delete(self, request: Delete, reply_to: ReplyTo = None) -> Mapping[str, Any]:
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
            self._swap.store.delete(name, version, reply_to=reply_to)
        self._swap.ledger.changed()
        return {"model": name, "version": version}
