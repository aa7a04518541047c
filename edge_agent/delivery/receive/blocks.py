"""Lists and blocks as they arrive, until all of a package is durable on the disk.

A message is acknowledged after what it brought is durable. Used by the thread that takes orders.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import chain

from ...core.errors import ModelError
from ...models.manifest import ModelFolder
from ...models.packages.archive import Front
from ...models.packages.package import PackageHeader
from ...models.store.catalog import Library
from ...models.store.incoming import Incoming, interrupted_transfers, other_transfers
from ...models.store.install import install_incoming
from ...models.store.local_blocks import plain_folders, stored_versions
from ...models.store.store import Store
from ...mqtt.connection import ReceivedMessage
from ..rollout.candidate import Candidate
from ..trial.early_trial import Ahead
from .admission import Admission
from .flusher import Flusher
from .handover import Handover
from .progress import Replies
from .transfer import TELL_SECONDS, WINDOW, Transfer

log = logging.getLogger(__name__)

END_BYTES = 64 * 1024
"""Of a package, which its trial will wish for: mostly the end of the network."""
PATIENCE_SECONDS = 120.0
"""After so long without a word from the sender, the transfer rests; what has arrived stays."""
MAX_TRANSFERS = 16
SAY_SECONDS = 1.0
"""Progress is said no more often."""


class Receiving:
    """The transfers that are under way."""

    def __init__(
        self,
        store: Store,
        library: Library,
        *,
        admission: Admission,
        handover: Handover,
        replies: Replies,
        on_change: Callable[[], None],
        expect: Callable[[PackageHeader], Ahead | None],
    ) -> None:
        """Prepare.

        Args:
            store: where packages go.
            library: knows all versions.
            admission: says whether a package may still come in when it is complete.
            handover: takes complete packages.
            replies: to the sender.
            on_change: called as a transfer makes progress, at most once a second.
            expect: begins the trial of a package that is about to arrive, where that is worth it.

        """
        self._store = store
        self._library = library
        self._admission = admission
        self._handover = handover
        self._replies = replies
        self._on_change = on_change
        self._expect = expect
        self._changed_at = 0.0
        self._active: dict[str, Transfer] = {}
        self._flusher = Flusher()

    def __contains__(self, transfer: str) -> bool:
        return transfer in self._active

    def progress(self) -> dict[str, tuple[str, float]]:
        """Give the version that is being received of each model, and percent."""
        return {
            transfer.header.name: (transfer.header.version, round(transfer.percent, 1))
            for transfer in list(self._active.values())
        }

    # What arrives

    def check_free(self) -> None:
        """See that one more transfer may begin.

        Raises:
            ModelError: there are too many.

        """
        if len(self._active) >= MAX_TRANSFERS:
            raise ModelError(
                f"{len(self._active)} transfers are under way already; try again later"
            )

    def begin(self, transfer: Transfer) -> None:
        """Ask for a package that may come in; what has come of it before is not asked for."""
        transfer.ahead = self._expect(transfer.header)
        self._active[transfer.id] = transfer
        self._changed_at = 0.0  # that it begins is said at once
        log.info(
            "push %s: %s is offered, %d bytes in %d blocks",
            transfer.id,
            transfer.header.id,
            transfer.header.size,
            transfer.header.blocks,
        )
        begun = interrupted_transfers(self._store).get(transfer.id)
        if begun is not None:
            self._begin_blocks(transfer, begun.block_list)
        else:
            transfer.ask(self._replies)

    def offered_again(self, transfer: str) -> None:
        """Answer: its sender has begun anew, is another one, or has not heard of us for long."""
        going_on = self._active[transfer]
        going_on.heard_at = time.monotonic()
        going_on.answer(self._replies)

    def list_part(self, transfer: str, number: int, payload: bytes) -> None:
        """Take a part of a list, if it is wanted.

        Raises:
            MalformedError: that is no part.

        """
        going_on = self._active.get(transfer)
        if going_on is None or going_on.incoming is not None or number >= going_on.list_parts:
            return
        block_list = going_on.take_part(number, payload)
        if block_list is not None:
            self._begin_blocks(going_on, block_list)
        elif not going_on.asked:
            going_on.ask(self._replies)

    def block(self, transfer: str, number: int, message: ReceivedMessage) -> bool:
        """Take a block, if it is wanted; True when it is acknowledged later."""
        going_on = self._active.get(transfer)
        if going_on is None or going_on.incoming is None:
            return False
        going_on.came()
        try:
            going_on.incoming.put(number, message.payload)
        except ModelError as problem:
            self._give_up(going_on, str(problem))
            return False
        going_on.tell_trial()
        going_on.asked.discard(number)
        self._flusher.put(going_on.incoming, message)
        if len(going_on.asked) <= WINDOW // 2:
            self._go_on(going_on)
        return True

    def abort(self, transfer: str) -> None:
        """Give a transfer up, as its sender wishes."""
        going_on = self._active.get(transfer)
        if going_on is not None:
            self._give_up(going_on, "aborted by the sender")

    # From one step to the next

    def _begin_blocks(self, transfer: Transfer, block_list: bytes) -> None:
        """Begin to receive blocks, with those that are on the device already."""
        front = Front(transfer.header_bytes, transfer.signature, block_list)
        try:
            blocks = transfer.header.block_list(block_list)
            incoming = Incoming(self._store, front, transfer.header, blocks)
            transfer.begin(incoming)
            # Its folder is made durable while the first blocks are on their way.
            self._flusher.put(incoming, None)
            folders = [
                e.path for e in self._library.versions(transfer.header.name) if e.place != "store"
            ]
            saved = incoming.fill(
                chain(
                    stored_versions(self._store),
                    other_transfers(self._store, transfer.id),
                    plain_folders(folders),
                )
            )
        except ModelError as problem:
            self._give_up(transfer, str(problem))
            return
        if transfer.ahead is not None:
            transfer.ahead.begin(incoming.data)
            incoming.request_first(transfer.header.size - END_BYTES, transfer.header.size)
        transfer.tell_trial()
        if saved:
            log.info(
                "push %s: %d of %d bytes are here already", transfer.id, saved, transfer.header.size
            )
        self._go_on(transfer)

    def _go_on(self, transfer: Transfer) -> None:
        """Ask for more, or hand the complete package over."""
        incoming = transfer.incoming
        if incoming is None or not incoming.complete:
            transfer.ask(self._replies)
            return
        self._flusher.wait()
        problem = self._flusher.failed(incoming)
        if problem is not None:
            self._give_up(transfer, problem)
            return
        del self._active[transfer.id]
        header = transfer.header
        candidate = Candidate(
            header.name,
            header.version,
            transfer.id,
            partial(self._install, transfer, incoming),
            ahead=transfer.ahead,
            began=transfer.began,
        )
        self._handover.give(transfer.id, candidate, header.blocks)

    def _install(self, transfer: Transfer, incoming: Incoming) -> ModelFolder:
        """Unpack a complete transfer; in the deployer's thread."""
        try:
            # A key that was removed meanwhile is not trusted any more.
            self._admission.judge(transfer.header_bytes, transfer.signature)
            return install_incoming(self._store, incoming)
        except ModelError:
            incoming.discard()
            raise

    def _give_up(self, transfer: Transfer, why: str) -> None:
        """End a transfer, leave nothing of it, and say why."""
        self._active.pop(transfer.id, None)
        transfer.end_trial()
        if transfer.incoming is not None:
            self._flusher.wait()
            try:
                transfer.incoming.discard()
            except ModelError as problem:
                log.error("push %s: %s", transfer.id, problem)  # noqa: TRY400 - one line, no traceback
        self._replies.reject(transfer.id, why)
        self._on_change()

    # As time goes by

    def tick(self, now: float) -> None:
        """Repeat what was asked for in vain; let go of senders that have gone."""
        if self._active and now - self._changed_at >= SAY_SECONDS:
            self._changed_at = now
            self._on_change()
        for transfer in list(self._active.values()):
            problem = self._flusher.failed(transfer.incoming) if transfer.incoming else None
            if problem is not None:
                self._give_up(transfer, problem)
            elif now - transfer.heard_at > PATIENCE_SECONDS:
                log.info("push %s: the sender has gone; what has arrived stays", transfer.id)
                del self._active[transfer.id]
                self._flusher.wait()
                _rest(transfer)
                self._on_change()
            elif transfer.waits_in_vain(now):
                transfer.ask_again(self._replies)
            elif now - transfer.told_at >= TELL_SECONDS:
                transfer.tell(self._replies)

    def close(self) -> None:
        """Let go of everything; what has arrived stays."""
        self._flusher.wait()
        for transfer in self._active.values():
            _rest(transfer)


def _rest(transfer: Transfer) -> None:
    """Let go of a transfer until it is offered again; nothing of it is being written any more."""
    transfer.end_trial()
    if transfer.incoming is not None:
        transfer.incoming.close()
