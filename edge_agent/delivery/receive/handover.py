"""Complete packages: to the deployer, and back into nobody's hands when it has done with them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ...models.packages.package import PackageHeader
from ...models.store.catalog import Library
from ..rollout.candidate import Candidate, Outcome
from .admission import Admission
from .progress import Replies

log = logging.getLogger(__name__)


class Handover:
    """Remembers what the deployer has, by its transfer."""

    def __init__(
        self,
        library: Library,
        admission: Admission,
        replies: Replies,
        submit: Callable[[Candidate], None],
        standing: Callable[[str, str], str | None],
    ) -> None:
        """Prepare.

        Args:
            library: knows all versions.
            admission: says which of them are the same.
            replies: to the sender.
            submit: takes a candidate whose package has arrived.
            standing: how far a version is that is here already: a state of section 5, or None.

        """
        self._library = library
        self._admission = admission
        self._replies = replies
        self._submit = submit
        self._standing = standing
        self._handed: set[str] = set()

    def __contains__(self, transfer: str) -> bool:
        return transfer in self._handed

    def give(self, transfer: str, candidate: Candidate, blocks: int) -> None:
        """Have a candidate verified and tried; all its *blocks* are here."""
        self._handed.add(transfer)
        self._replies.say(transfer, "verifying", have=blocks, total=blocks)

        def finished(_outcome: Outcome, _why: str | None) -> None:
            self._handed.discard(transfer)

        candidate.finished = finished
        self._submit(candidate)

    def repeat(self, transfer: str, header: PackageHeader) -> None:
        """Say how far one is that has been given."""
        state = self._standing(header.name, header.version) or "verifying"
        self._replies.say(transfer, state, have=1, total=1)

    def needs_nothing(self, transfer: str, header: PackageHeader) -> bool:
        """Deal with a version that is in the store; True when nothing needs to be sent.

        Raises:
            ModelError: its version is on this device with other content.

        """
        name, version = header.name, header.version
        standing = self._standing(name, version)
        if not self._admission.is_here(transfer, header, standing=standing):
            return False
        if standing is not None:
            self._replies.say(transfer, standing, have=header.blocks, total=header.blocks)
            return True
        log.info("push %s: %s is here already", transfer, header.id)
        found = partial(self._library.find, name, version)
        self.give(transfer, Candidate(name, version, transfer, found), header.blocks)
        return True
