"""Offers of packages: taken apart, judged, and begun, answered or kept until the clock is set."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import time

from ...core.errors import MalformedError, ModelError
from ...core.files import disk_errors
from ...models.packages.package import PackageHeader, transfer_id
from ...models.store.incoming import interrupted_transfers
from ...models.store.store import Store
from .admission import Admission, clock_is_set
from .blocks import MAX_TRANSFERS, Receiving
from .handover import Handover
from .progress import Replies
from .transfer import SILENCE_SECONDS, Transfer

log = logging.getLogger(__name__)

MAX_OFFER_BYTES = 64 * 1024


class Offers:
    """Decides what becomes of each. Used by the thread that takes orders."""

    def __init__(
        self,
        store: Store,
        admission: Admission,
        receiving: Receiving,
        handover: Handover,
        replies: Replies,
    ) -> None:
        self._store = store
        self._admission = admission
        self._receiving = receiving
        self._handover = handover
        self._replies = replies
        self._waiting: dict[str, tuple[bytes, bytes | None]] = {}
        """Header and signature of those that wait for a credible clock."""
        self._clock_checked = 0.0

    def take(self, transfer: str, payload: bytes) -> None:
        """Take an offer as it arrives.

        Raises:
            MalformedError: it is not one; its sender has been told.

        """
        try:
            header, signature = _read(transfer, payload)
        except ModelError as problem:
            self._replies.reject(transfer, str(problem))
            raise MalformedError(str(problem)) from None
        self._consider(transfer, header, signature)

    def forget(self, transfer: str) -> None:
        """Do not wait for the clock with this one."""
        self._waiting.pop(transfer, None)

    def _consider(self, transfer: str, header_bytes: bytes, signature: bytes | None) -> None:
        """Take an offer, go on with it, or say why not."""
        began = time.monotonic()
        if transfer in self._receiving:
            self._receiving.offered_again(transfer)
            return
        if transfer in self._handover:
            self._handover.repeat(transfer, PackageHeader.parse(header_bytes))
            return
        self.forget(transfer)
        try:
            header = self._admission.judge(header_bytes, signature)
            if header is None:
                self._wait(transfer, header_bytes, signature)
                return
            if self._handover.needs_nothing(transfer, header):
                return
            self._receiving.check_free()
            self._admission.make_room(header.size, transfer)
        except ModelError as problem:
            self._replies.reject(transfer, str(problem))
            return
        self._receiving.begin(
            Transfer(transfer, header_bytes, signature, header, began, heard_at=began)
        )

    def _wait(self, transfer: str, header_bytes: bytes, signature: bytes | None) -> None:
        """Keep an offer until it can be told whether it has expired.

        Raises:
            ModelError: there are too many.

        """
        if len(self._waiting) >= MAX_TRANSFERS:
            raise ModelError(f"{len(self._waiting)} pushes wait for the clock already")
        self._waiting[transfer] = (header_bytes, signature)
        why = "the clock of this device is not set yet; waits until it is"
        self._replies.say(transfer, "need", why=why)

    def tick(self, now: float) -> None:
        """Look again at those that wait, once the clock is set."""
        if self._waiting and now - self._clock_checked > SILENCE_SECONDS:
            self._clock_checked = now
            if clock_is_set():
                for transfer, (header, signature) in list(self._waiting.items()):
                    self._consider(transfer, header, signature)

    def resume(self) -> None:
        """After a start: go on with the transfers that were interrupted."""
        for transfer, front in interrupted_transfers(self._store).items():
            log.info("push %s: was interrupted, goes on", transfer)
            self._consider(transfer, front.header, front.signature)
            wanted = transfer in self._receiving or transfer in self._waiting
            if not (wanted or transfer in self._handover):
                self._drop(transfer)

    def _drop(self, transfer: str) -> None:
        """Remove what has arrived of a package that may not come in any more, or is here."""
        try:
            with disk_errors(f"push {transfer}: removing it"), self._store.locked():
                folder = self._store.incoming / transfer
                if folder.is_dir():
                    self._store.delete_folder(folder)
        except ModelError as problem:
            log.error("%s", problem)  # noqa: TRY400 - one line, no traceback


def _read(transfer: str, payload: bytes) -> tuple[bytes, bytes | None]:
    """Take an offer apart; nothing in it is believed yet.

    Raises:
        ModelError: it is not an offer.

    """
    if len(payload) > MAX_OFFER_BYTES:
        raise ModelError(f"offer: {len(payload)} bytes, at most {MAX_OFFER_BYTES}")
    try:
        body = json.loads(payload)
        header = base64.b64decode(body["package"], validate=True)
        signature = (
            base64.b64decode(body["signature"], validate=True) if body.get("signature") else None
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise ModelError(
            'offer: expected {"schema": 1, "package": base64, "signature"?: base64}'
        ) from None
    if transfer_id(header) != transfer:
        raise ModelError("offer: the transfer is not named after its package")
    return header, signature
