"""Block lists and blocks as they arrive, until a whole package is durable on the disk.

A message is acknowledged once its content is durable. Used by the request thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue

from ...core.errors import MalformedError, ModelError
from ...models.manifest import ModelFolder
from ...models.packages.archive import Front
from ...models.packages.package import PackageHeader
from ...models.store.incoming import Incoming, interrupted_transfers, other_transfers
from ...models.store.install import install_incoming
from ...models.store.local_blocks import plain_folders, stored_versions
from ...mqtt.connection import ReceivedMessage
from ..rollout.ledger import Candidate, Ledger
from ..trial.early_trial import EarlyTrial
from .admission import Admission
from .transfer import STATUS_SECONDS, Drawing, Transfer

log = logging.getLogger(__name__)

END_BYTES = 64 * 1024
"""Bytes at the end of a package that its trial requests early: usually the network's end."""
SENDER_SECONDS = 120.0
"""Silence of the sender after which a transfer is suspended; received blocks stay."""
MAX_TRANSFERS = 16
CHANGE_SECONDS = 1.0
"""Least time between two publications of the progress."""
GATHER_SECONDS = 0.0015
"""How long to collect blocks for a fast disk: a write for every few of them takes more processor
time than receiving them (measured)."""
ENOUGH = 8


class BlockReceiver:
    """The transfers that are being received."""

    def __init__(
        self,
        ledger: Ledger,
        admission: Admission,
        *,
        submit: Callable[[Candidate, int], None],
        expect: Callable[[PackageHeader], EarlyTrial | None],
    ) -> None:
        """Prepare; nothing is received yet.

        *submit* takes a candidate whose package is complete, and the number of its blocks; *expect*
        starts the trial of a package that is about to arrive, if that is worthwhile.
        """
        self._ledger = ledger
        self._status = ledger.status
        self._admission = admission
        self._submit = submit
        self._expect = expect
        self._changed_at = 0.0
        self._active: dict[str, Transfer] = {}
        self._flusher = Flusher()

    def __contains__(self, transfer: str) -> bool:
        return transfer in self._active

    # What arrives

    def check_free(self) -> None:
        """Raise ModelError if there are already too many transfers."""
        if len(self._active) >= MAX_TRANSFERS:
            raise ModelError(
                f"{len(self._active)} transfers are under way already; try again later"
            )

    def begin(
        self,
        transfer_id: str,
        header_bytes: bytes,
        signature: bytes | None,
        header: PackageHeader,
        *,
        began: float,
        drawing: Drawing | None = None,
    ) -> None:
        """Request an offered package, except for blocks that have already arrived.

        *began* is the monotonic time when the offer came; *drawing* is set if it is on the broker.
        """
        candidate = Candidate(
            header.name, header.version, transfer_id, phase="receiving", percent=0.0, began=began
        )
        candidate.unsigned = signature is None
        transfer = Transfer(transfer_id, header_bytes, signature, header, candidate, began)
        transfer.drawing = drawing
        candidate.early_trial = self._expect(header)
        self._ledger.add(candidate)
        self._active[transfer_id] = transfer
        self._changed_at = 0.0  # the start is published at once
        log.info(
            "push %s: %s is offered, %d bytes in %d blocks",
            transfer_id,
            header.id,
            header.size,
            header.blocks,
        )
        begun = interrupted_transfers(self._admission.store).get(transfer_id)
        if begun is not None:
            self._begin_blocks(transfer, begun.block_list)
        else:
            transfer.request(self._status)

    def answer_offer(self, transfer: str, drawing: Drawing | None = None) -> None:
        """Answer a repeated offer: its sender was restarted, or has not heard from us for long."""
        active = self._active[transfer]
        active.heard_at = time.monotonic()
        if drawing is not None and active.drawing is None:
            # It was resumed after a start, without knowing that the package is on the broker.
            active.drawing = drawing
            active.requested.clear()
        active.answer_offer(self._status)

    def list_part(self, transfer: str, number: int, payload: bytes) -> None:
        """Store a part of a block list if it is wanted; raise MalformedError if it is not one."""
        active = self._active.get(transfer)
        if active is None or active.incoming is not None or number >= active.list_parts:
            return
        block_list = active.add_part(number, payload)
        if block_list is not None:
            self._begin_blocks(active, block_list)
        elif not active.requested:
            active.request(self._status)

    def block(self, transfer: str, number: int, message: ReceivedMessage) -> bool:
        """Store a block if it is wanted; return True if it is acknowledged later."""
        active = self._active.get(transfer)
        if active is None or active.incoming is None:
            return False
        active.arrived()
        try:
            active.incoming.put(number, message.payload)
        except ModelError as problem:
            if active.drawing is not None:
                # Otherwise anyone who may write there could make devices reject good packages.
                raise MalformedError(str(problem)) from None
            self._reject(active, str(problem))
            return False
        active.update_early_trial()
        active.came("block", number)
        active.candidate.percent = _percent(active.incoming)
        self._flusher.put(active.incoming, message)
        if len(active.requested) <= active.window // 2:
            self._continue(active)
        return True

    def abort(self, transfer: str) -> None:
        """End a transfer that its sender has aborted."""
        active = self._active.get(transfer)
        if active is not None:
            self._reject(active, "aborted by the sender")

    def suspend(self, transfer: str) -> None:
        """Stop receiving a transfer until it is offered again; received blocks stay."""
        active = self._active.pop(transfer, None)
        if active is not None:
            self._flusher.wait()
            self._suspend(active)
            self._ledger.changed()

    # From one step to the next

    def _begin_blocks(self, transfer: Transfer, block_list: bytes) -> None:
        """Start receiving blocks; those already on the device are copied."""
        front = Front(transfer.header_bytes, transfer.signature, block_list)
        try:
            blocks = transfer.header.block_list(block_list)
            here = self._admission.identity.here
            incoming = Incoming(self._admission.store, front, transfer.header, blocks, here)
            transfer.begin_blocks(incoming)
            # Its folder is made durable while the first blocks are being sent.
            self._flusher.put(incoming, None)
            folders = [
                e.path
                for e in self._admission.catalog.versions(transfer.header.name)
                if e.place != "store"
            ]
            saved = incoming.fill(
                chain(
                    stored_versions(self._admission.store),
                    other_transfers(self._admission.store, transfer.id),
                    plain_folders(folders),
                )
            )
        except ModelError as problem:
            if transfer.drawing is not None and transfer.incoming is None:
                transfer.parts.clear()
                raise MalformedError(str(problem)) from None
            self._reject(transfer, str(problem))
            return
        transfer.candidate.percent = _percent(incoming)
        if transfer.candidate.early_trial is not None:
            transfer.candidate.early_trial.begin(incoming.data)
            incoming.request_first(transfer.header.size - END_BYTES, transfer.header.size)
        transfer.update_early_trial()
        if saved:
            log.info(
                "push %s: %d of %d bytes are here already", transfer.id, saved, transfer.header.size
            )
        self._continue(transfer)

    def _continue(self, transfer: Transfer) -> None:
        """Request more, or submit the complete package."""
        incoming = transfer.incoming
        if incoming is None or not incoming.complete:
            transfer.request(self._status)
            return
        self._flusher.wait()
        problem = self._flusher.failed(incoming)
        if problem is not None:
            self._reject(transfer, problem)
            return
        del self._active[transfer.id]
        transfer.end_drawing()
        candidate = transfer.candidate
        candidate.percent, candidate.install = 100.0, partial(self._install, transfer, incoming)
        self._submit(candidate, transfer.header.blocks)

    def _install(self, transfer: Transfer, incoming: Incoming) -> ModelFolder:
        """Install a complete transfer; in the deployer's thread."""
        try:
            # A key that was removed meanwhile is no longer trusted.
            self._admission.check(transfer.header_bytes, transfer.signature)
            return install_incoming(self._admission.store, incoming)
        except ModelError:
            incoming.discard()
            raise

    def _reject(self, transfer: Transfer, why: str) -> None:
        """End a transfer, remove its received blocks, and publish the reason."""
        self._active.pop(transfer.id, None)
        transfer.end_drawing()
        transfer.candidate.close_early_trial()
        self._ledger.remove(transfer.candidate)
        if transfer.incoming is not None:
            self._flusher.wait()
            try:
                transfer.incoming.discard()
            except ModelError as problem:
                log.error("push %s: not removed: %s", transfer.id, problem)  # noqa: TRY400 - one line, no traceback
        self._status.reject(transfer.id, why)
        self._ledger.changed()

    # As time passes

    def tick(self, now: float) -> None:
        """Repeat unanswered requests; suspend transfers whose sender has gone."""
        if self._active and now - self._changed_at >= CHANGE_SECONDS:
            self._changed_at = now
            self._ledger.changed()
        for transfer in list(self._active.values()):
            problem = self._flusher.failed(transfer.incoming) if transfer.incoming else None
            if problem is not None:
                self._reject(transfer, problem)
            elif now - transfer.heard_at > SENDER_SECONDS:
                log.info("push %s: the sender has gone; what has arrived stays", transfer.id)
                self.suspend(transfer.id)
            elif transfer.request_timed_out(now):
                transfer.request_again(self._status)
            elif now - transfer.published_at >= STATUS_SECONDS:
                transfer.publish_progress(self._status)

    def close(self) -> None:
        """Suspend all transfers; received blocks stay."""
        self._flusher.wait()
        for transfer in self._active.values():
            self._suspend(transfer)

    def _suspend(self, transfer: Transfer) -> None:
        """Close a transfer until it is offered again; none of it may still be being written."""
        transfer.end_drawing()
        transfer.candidate.close_early_trial()
        self._ledger.remove(transfer.candidate)
        if transfer.incoming is not None:
            transfer.incoming.close()


def _percent(incoming: Incoming) -> float:
    return 100.0 * incoming.have / max(incoming.total, 1)


Work = tuple[Incoming, ReceivedMessage | None] | threading.Event


class Flusher:
    """Makes blocks durable in its own thread, started with the first, and acknowledges them.

    Blocks that arrive while the disk is busy are made durable together, so a slow disk makes larger
    groups, not a slower transfer.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Work] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed: dict[Incoming, str] = {}

    def put(self, incoming: Incoming, message: ReceivedMessage | None) -> None:
        """Make all bytes given to *incoming* so far durable, then acknowledge *message*."""
        if self._thread is None:
            # If it dies, the excepthook ends the agent, as for every thread.
            thread = threading.Thread(target=self._run, name="flusher", daemon=True)
            thread.start()
            self._thread = thread  # not before: without a thread, the next block tries again
        self._queue.put((incoming, message))

    def wait(self) -> None:
        """Wait until everything put is durable; call it before closing or installing anything."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            while self._thread.is_alive() and not done.wait(0.5):
                pass

    def failed(self, incoming: Incoming) -> str | None:
        """Return the disk error for a transfer, only once, or None if there was none."""
        return self._failed.pop(incoming, None)

    def _run(self) -> None:
        while True:
            group = [self._queue.get()]
            if self._queue.qsize() < ENOUGH and not isinstance(group[0], threading.Event):
                time.sleep(GATHER_SECONDS)
            try:
                while True:
                    group.append(self._queue.get_nowait())
            except Empty:
                pass
            self._flush(group)

    def _flush(self, group: list[Work]) -> None:
        """Write everything that came while the previous group was being written."""
        for incoming in {work[0] for work in group if not isinstance(work, threading.Event)}:
            try:
                incoming.flush()
            except ModelError as problem:
                self._failed[incoming] = str(problem)
        for work in group:
            if isinstance(work, threading.Event):
                work.set()
            elif work[1] is not None:
                work[1].ack()
