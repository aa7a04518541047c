"""Packages as they come in: offered, to be sent in blocks, or as a whole in one message.

An offer is parsed and checked, then begun, answered, or kept until the clock is set. What comes as
a whole is signed and in blocks like any other package, or a tar made by hand.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable
from functools import partial

from ...core.errors import MalformedError, ModelError
from ...core.files import disk_errors
from ...models.manifest import ModelFolder
from ...models.packages.archive import Archive, open_archive
from ...models.packages.package import PackageHeader, transfer_id
from ...models.store.catalog import Library
from ...models.store.incoming import interrupted_transfers
from ...models.store.install import install_handmade, install_package
from ...models.store.store import Store
from ...mqtt.connection import ReceivedMessage
from ...mqtt.payloads import seconds_of
from ..protocol import MAX_OFFER_BYTES, MAX_SINGLE_MESSAGE_BYTES, MOST_OFFER_SECONDS
from ..rollout.ledger import Candidate, Ledger
from .admission import Admission
from .blocks import MAX_TRANSFERS, BlockReceiver
from .drawing import Drawing

log = logging.getLogger(__name__)

CLOCK_SECONDS = 2.0
"""Between two looks at the clock, while offers wait for it."""


class Offers:
    """Used by the thread that takes requests."""

    def __init__(
        self,
        store: Store,
        library: Library,
        ledger: Ledger,
        *,
        admission: Admission,
        blocks: BlockReceiver,
        drawing: Drawing,
        submit: Callable[[Candidate, int], None],
    ) -> None:
        """Start without offers.

        *submit* takes a candidate that is on the device, and the number of its blocks.
        """
        self._drawing = drawing
        self._store = store
        self._library = library
        self._ledger = ledger
        self._status = ledger.status
        self._admission = admission
        self._blocks = blocks
        self._submit = submit
        self._waiting: dict[str, tuple[bytes, bytes | None, Drawing | None]] = {}
        """Header and signature of those that wait for a credible clock; what draws them."""
        self._clock_checked = 0.0

    def offer(self, transfer: str, payload: bytes) -> None:
        """Handle an offer as it arrives.

        Raises:
            MalformedError: it is not one; that has been published to its sender.
        """
        try:
            header, signature, sent, lies_retained = _parse(transfer, payload)
            if sent is not None and self._admission.clock_is_set():
                _check_age(sent, time.time())
        except ModelError as problem:
            self._status.reject(transfer, str(problem))
            raise MalformedError(str(problem)) from None
        self._consider(transfer, header, signature, self._drawing if lies_retained else None)

    def drawn(self, transfer: str, payload: bytes) -> None:
        """Handle the offer of a package that lies on the broker, which this device has asked for.

        Raises:
            MalformedError: it is not one; nothing follows from what anybody may have put there.
        """
        try:
            header, signature, _, _ = _parse(transfer, payload)
        except ModelError as problem:
            raise MalformedError(str(problem)) from None
        self._consider(transfer, header, signature, self._drawing)

    def go_on(self, transfer: str) -> None:
        """Draw a package that is being received."""
        self._blocks.answer_offer(transfer, self._drawing)

    def forget(self, transfer: str) -> None:
        """Forget an offer that waits for the clock."""
        self._waiting.pop(transfer, None)

    def _answer_present(self, transfer: str, header: PackageHeader) -> bool:
        """Answer the offer of a package that is on the device; return False if it is not.

        Raises:
            ModelError: its version is on this device with other content.
        """
        name, version = header.name, header.version
        phase = self._ledger.phase(name, version)
        if not self._admission.is_here(transfer, header, phase=phase):
            return False
        if phase is not None:
            figures = self._ledger.figures(name, version)
            self._status.publish(
                transfer, phase, have=header.blocks, total=header.blocks, **figures
            )
            return True
        log.info("push %s: %s is here already", transfer, header.id)
        found = partial(self._library.find_unchanged, name, version)
        self._submit(Candidate(name, version, transfer, found), header.blocks)
        return True

    def _consider(
        self,
        transfer: str,
        header_bytes: bytes,
        signature: bytes | None,
        drawing: Drawing | None = None,
    ) -> None:
        """Start receiving a package, continue, or publish why not."""
        began = time.monotonic()
        if transfer in self._blocks:
            self._blocks.answer_offer(transfer, drawing)
            return
        candidate = self._ledger.by_transfer(transfer)
        if candidate is not None:
            self._ledger.answer(candidate)
            return
        self.forget(transfer)
        try:
            header = self._admission.check(header_bytes, signature)
            if header is None:
                self._wait(transfer, (header_bytes, signature, drawing))
                return
            if self._answer_present(transfer, header):
                return
            self._blocks.check_free()
            self._admission.make_room(header.share(self._admission.here).bytes, transfer)
        except ModelError as problem:
            self._status.reject(transfer, str(problem))
            return
        self._blocks.begin(transfer, header_bytes, signature, header, began=began, drawing=drawing)

    def _wait(self, transfer: str, offer: tuple[bytes, bytes | None, Drawing | None]) -> None:
        """Keep an offer until the clock says whether it has expired.

        Raises:
            ModelError: there are too many.
        """
        if len(self._waiting) >= MAX_TRANSFERS:
            raise ModelError(f"{len(self._waiting)} pushes wait for the clock already")
        self._waiting[transfer] = offer
        why = "the clock of this device is not set yet; waits until it is"
        self._status.publish(transfer, "need", why=why)

    def tick(self, now: float) -> None:
        """Consider again the offers that wait, once the clock is set."""
        if self._waiting and now - self._clock_checked > CLOCK_SECONDS:
            self._clock_checked = now
            if self._admission.clock_is_set():
                for transfer, offer in list(self._waiting.items()):
                    self._consider(transfer, *offer)

    def resume(self) -> None:
        """Resume, after a start, the transfers that were interrupted."""
        for transfer, front in interrupted_transfers(self._store).items():
            log.info("push %s: was interrupted, is resumed", transfer)
            self._consider(transfer, front.header, front.signature)
            if self._ledger.by_transfer(transfer) is None and transfer not in self._waiting:
                self._remove(transfer)

    def _remove(self, transfer: str) -> None:
        """Remove what has arrived of a package that may not come in any more, or is here."""
        try:
            with disk_errors(f"push {transfer}: removing it"), self._store.locked():
                folder = self._store.incoming / transfer
                if folder.is_dir():
                    self._store.delete_folder(folder)
        except ModelError as problem:
            log.error("push %s: not removed: %s", transfer, problem)  # noqa: TRY400 - one line, no traceback

    # Packages in one message

    def whole(self, message: ReceivedMessage) -> bool:
        """Submit a package; return True: its message is acknowledged when it is in the store.

        Raises:
            MalformedError: it is not one; that has been published, if it could be.
        """
        payload = message.payload
        if len(payload) > MAX_SINGLE_MESSAGE_BYTES:
            raise MalformedError(
                f"in/model: larger than {MAX_SINGLE_MESSAGE_BYTES >> 20} MiB; use push"
            )
        transfer = transfer_id(payload)
        try:
            archive = open_archive(payload, "in/model")
        except ModelError as problem:
            self._status.reject(transfer, str(problem))
            raise MalformedError(str(problem)) from None
        if archive.front is not None:
            transfer = archive.front.transfer
            if self._ledger.by_transfer(transfer) is not None:
                return False
        try:
            candidate = self._candidate(archive, transfer, len(payload))
        except ModelError as problem:
            self._status.reject(transfer, str(problem))
            return False
        if candidate is None:
            return False
        candidate.on_installed = message.ack
        self._submit(candidate, 1)
        return True

    def _candidate(self, archive: Archive, transfer: str, size: int) -> Candidate | None:
        """Make a candidate of a package that may come in; None: the device has it.

        Raises:
            ModelError: it may not.
        """
        front = archive.front
        if front is None:
            self._admission.check_unsigned()
            self._admission.make_room(size)
            # What it is called is known when it is unpacked.
            return Candidate("?", "0", transfer, partial(self._install_handmade, archive))
        header = self._admission.check(front.header, front.signature)
        if header is None:
            raise ModelError("the clock of this device is not set yet; use push, which waits")
        blocks = header.block_list(front.block_list)
        members = archive.members(header)
        if self._answer_present(transfer, header):
            return None
        self._admission.make_room(header.share(self._admission.here).bytes)

        def install() -> ModelFolder:
            self._admission.check(front.header, front.signature)
            return install_package(
                self._store, front, header, blocks, members, self._admission.here
            )

        return Candidate(header.name, header.version, transfer, install)

    def _install_handmade(self, archive: Archive) -> ModelFolder:
        """Install a tar without a header; its name and version are known only then."""
        folder = install_handmade(self._store, archive, self._admission.here)
        name, version = folder.manifest.name, folder.manifest.version
        try:
            self._admission.check_not_older(name, version)
            self._admission.check_not_elsewhere(name, version)
        except ModelError:
            with self._store.locked():
                if not self._store.accepted(name, version):
                    self._store.discard(name, version)
            raise
        return folder


def _check_age(sent: float, now: float) -> None:
    """Raise ModelError if an offer was kept by a broker while this device was away.

    Nobody sends its blocks any more, and it may be withdrawn.
    """
    if now - sent > MOST_OFFER_SECONDS:
        raise ModelError(
            f"offer: is {now - sent:.0f} s old, and at most {MOST_OFFER_SECONDS} s are accepted; "
            "push it again, and where that is refused, too, compare the clocks of both machines"
        )


def _parse(transfer: str, payload: bytes) -> tuple[bytes, bytes | None, float | None, bool]:
    """Return header, signature and time of an offer, and whether its blocks lie on the broker.

    Nothing in it is trusted yet.

    Raises:
        ModelError: it is not an offer.
    """
    if len(payload) > MAX_OFFER_BYTES:
        raise ModelError(f"offer: {len(payload)} bytes, at most {MAX_OFFER_BYTES}")
    try:
        body = json.loads(payload)
        header = base64.b64decode(body["package"], validate=True)
        signature = body.get("signature") or None
        if signature is not None:
            signature = base64.b64decode(signature, validate=True)
        sent = None if body.get("time") is None else seconds_of(body["time"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise ModelError(
            'offer: expected {"schema": 1, "package": base64, "signature"?: base64, "time"}'
        ) from None
    if transfer_id(header) != transfer:
        raise ModelError("offer: the transfer is not named after its package")
    return header, signature, sent, body.get("drawn") is True
