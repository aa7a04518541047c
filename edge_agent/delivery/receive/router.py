"""Receives packages: offered and then sent in blocks, or whole in one message.

Handles messages for models under `in/` (section 5 of the interface). An offer is parsed and
checked, then begun, answered, or kept until the clock is set; lists and blocks go to `blocks`. A
whole package is signed and in blocks like any other, or a tar made by hand. Complete packages go to
the deployer.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ...core.errors import MalformedError, ModelError
from ...core.files import disk_errors
from ...core.names import is_name
from ...models.manifest import ModelFolder
from ...models.packages.archive import Archive, open_archive
from ...models.packages.package import PackageHeader, transfer_id
from ...models.store.catalog import Catalog
from ...models.store.incoming import interrupted_transfers
from ...models.store.install import install_handmade, install_package
from ...models.store.store import Store
from ...mqtt.connection import ReceivedMessage
from ...mqtt.payloads import seconds_of
from ..protocol import MAX_OFFER_BYTES, MAX_SINGLE_MESSAGE_BYTES, MOST_OFFER_SECONDS
from ..rollout.ledger import Candidate, Ledger
from ..trial.early_trial import EarlyTrial
from .admission import Admission, DeviceIdentity
from .blocks import MAX_TRANSFERS, BlockReceiver
from .transfer import Drawing

log = logging.getLogger(__name__)

CLOCK_SECONDS = 2.0
"""Interval for checking the clock while offers wait for it."""


class Router:
    """The receiving side of this device; used by one thread."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        identity: DeviceIdentity,
        ledger: Ledger,
        drawing: Drawing,
        *,
        submit: Callable[[Candidate], None],
        expect: Callable[[PackageHeader], EarlyTrial | None] = lambda _header: None,
    ) -> None:
        """Make the parts; nothing is received yet.

        *submit* takes a candidate whose package is complete; *expect* starts the trial of a package
        that is about to arrive, if that is worthwhile.
        """
        self._ledger = ledger
        self._status = ledger.status
        self._drawing = drawing
        self._deploy = submit
        self.admission = Admission(store, catalog, identity)
        self._blocks = BlockReceiver(ledger, self.admission, submit=self._submit, expect=expect)
        self._waiting: dict[str, tuple[Callable[[], object], ReceivedMessage | None]] = {}
        """The pushes that wait for a credible clock: what considers each again, and its message, if
        that is the whole package."""
        self._clock_checked = 0.0
        self._promised: dict[str, str] = {}
        """By transfer: what a roll-out says that its package is."""
        self.on_push: Callable[[str, str], object] = lambda _name, _version: None
        """Called when somebody offers a model's version, and not a roll-out."""

    def message(self, levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        """Handle a message under `in/`; return True if it is acknowledged later.

        Raises:
            MalformedError: it is not expected here.
        """
        match levels:
            case ("model",) | ("push", _, "offer") if not message.payload:
                return False  # clears a retained message; nothing else is sent like this
            case ("model",):
                return self._whole(message)
            case ("push", transfer, "offer") if is_name(transfer):
                self._offer(transfer, message.payload)
                return False
            case ("push", transfer, "abort") if is_name(transfer):
                self._forget_waiting(transfer)
                self._blocks.abort(transfer)
                return False
            case ("push", transfer, "list" | "block" as kind, number) if _is_number(number):
                return self._part(transfer, kind, int(number), message)
            case _:
                raise MalformedError(
                    "nothing is expected here; below in/ there are command/<verb>, "
                    "set/<pipeline>/<key>, infer/<model>, model and push/<transfer>/…"
                )

    def _part(self, transfer: str, kind: str, number: int, message: ReceivedMessage) -> bool:
        if kind == "block":
            return self._blocks.block(transfer, number, message)
        self._blocks.list_part(transfer, number, message.payload)
        return False

    # For a roll-out

    def draw(self, transfer: str, model: str) -> bool:
        """Draw a package from the broker unless it is here; return whether it has yet to begin.

        It is rejected unless it is *model*, name@version, as its roll-out says.
        """
        if transfer in self._blocks:
            self._blocks.answer_offer(transfer, self._drawing)
        elif self._ledger.by_transfer(transfer) is None:
            self._promised[transfer] = model
            self._drawing.ask_offer(transfer)
            return True
        return False

    def lack(self, transfer: str, now: float) -> str | None:
        """Return the words for a package that is drawn and of which nothing comes, or None."""
        return self._drawing.lack(transfer, now)

    def _check_promise(self, transfer: str, header: PackageHeader) -> None:
        promised = self._promised.pop(transfer, header.id)
        if promised != header.id:
            raise ModelError(
                f"the roll-out is of {promised}, but its package is {header.id}; start a new one"
            )

    def suspend(self, transfer: str) -> None:
        """Stop drawing a package for now; received blocks stay, and one that has come whole."""
        self._drawing.end(transfer)
        self._promised.pop(transfer, None)
        if self._waiting.get(transfer, (None, None))[1] is None:
            self._forget_waiting(transfer)
        self._blocks.suspend(transfer)

    def abort(self, transfer: str) -> bool:
        """Stop drawing a package, remove its blocks; return whether it is being deployed."""
        self._drawing.end(transfer)
        self._promised.pop(transfer, None)
        self._forget_waiting(transfer)
        self._blocks.abort(transfer)
        return self._ledger.by_transfer(transfer) is not None

    def drawn(self, levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        """Handle a drawn part of a package; return True if it is acknowledged later.

        Raises:
            MalformedError: it is not what it should be; another may come. It has no other effect,
                as anybody may have put it there.
        """
        match levels:
            case _ if not message.payload:
                return False  # the package has been removed from the broker
            case (transfer, "offer") if self._drawing.wants(*levels):
                try:
                    header, signature, *_ = _parse(transfer, message.payload)
                except ModelError as problem:
                    raise MalformedError(str(problem)) from None
                self._consider(transfer, header, signature, self._drawing)
                self._drawing.came(*levels)
                return False
            case (transfer, "list" | "block" as kind, number) if _is_number(number):
                return self._part(transfer, kind, int(number), message)
            case _:
                return False

    # Offers

    def _offer(self, transfer: str, payload: bytes) -> None:
        """Handle an offer as it arrives.

        Raises:
            MalformedError: it is not one; that has been published to its sender.
        """
        try:
            header, signature, sent, push, lies_retained = _parse(transfer, payload)
            self._status.offered(transfer, sent, push)
            age = 0.0 if sent is None else time.time() - seconds_of(sent)
            if age > MOST_OFFER_SECONDS and self.admission.identity.credible():
                # The broker kept it while this device was offline: nobody sends its blocks anymore,
                # and it may have been withdrawn.
                raise ModelError(
                    f"offer: is {age:.0f} s old, and at most {MOST_OFFER_SECONDS} s are accepted; "
                    "push it again, and where that is refused, too, compare the clocks of both "
                    "machines"
                )
        except ModelError as problem:
            self._refuse(transfer, str(problem))
            raise MalformedError(str(problem)) from None
        drawing = self._drawing if lies_retained else None
        self._consider(transfer, header, signature, drawing, push)

    def _refuse(self, transfer: str, why: str) -> None:
        """Reject an offer, which ends nothing that is under way already."""
        if transfer in self._blocks:
            self._blocks.answer_offer(transfer)
        elif (candidate := self._ledger.by_transfer(transfer)) is not None:
            self._ledger.answer(candidate)
        else:
            self._status.reject(transfer, why)

    def _consider(
        self,
        transfer: str,
        header_bytes: bytes,
        signature: bytes | None,
        drawing: Drawing | None = None,
        push: str | None = None,
    ) -> None:
        """Start receiving a package, continue, or publish why not.

        What has failed in the same *push* is not tried again: its sender has missed the outcome.
        """
        began = time.monotonic()
        if transfer in self._blocks:
            self._blocks.answer_offer(transfer, drawing)
            return
        candidate = self._ledger.by_transfer(transfer)
        if candidate is not None:
            self._ledger.answer(candidate)
            if drawing is None:
                with suppress(ModelError):  # an offer ends nothing that is under way
                    self.admission.check(header_bytes, signature)
                    self.on_push(candidate.name, candidate.version)
            return
        self._forget_waiting(transfer)
        try:
            header = self.admission.check(header_bytes, signature)
            if header is None:
                self._wait(
                    transfer, partial(self._consider, transfer, header_bytes, signature, drawing)
                )
                return
            if drawing is not None:
                self._check_promise(transfer, header)
            why = self._ledger.refusal(header.name, header.version, push)
            if why is not None:
                self._status.publish(transfer, "rejected", why=why)
                return
            if drawing is None:
                self.on_push(header.name, header.version)
            if self._answer_present(transfer, header):
                return
            self._blocks.check_free()
            self.admission.make_room(header.share(self.admission.identity.here).bytes, transfer)
        except ModelError as problem:
            self._status.reject(transfer, str(problem))
            return
        self._blocks.begin(transfer, header_bytes, signature, header, began=began, drawing=drawing)

    def _forget_waiting(self, transfer: str) -> None:
        _, message = self._waiting.pop(transfer, (None, None))
        if message is not None:
            message.ack()

    def _wait(
        self,
        transfer: str,
        consider: Callable[[], object],
        message: ReceivedMessage | None = None,
    ) -> None:
        """Keep a push until the clock shows whether it has expired; of whole packages only one."""
        self._forget_waiting(transfer)
        if message is not None and any(whole for _, whole in self._waiting.values()):
            raise ModelError("another package waits for the clock of this device; use push")
        if len(self._waiting) >= MAX_TRANSFERS:
            raise ModelError(f"{len(self._waiting)} pushes wait for the clock already")
        self._waiting[transfer] = consider, message
        why = "the clock of this device is not set yet; waits until it is"
        self._status.publish(transfer, "need", why=why)

    def _answer_present(self, transfer: str, header: PackageHeader) -> bool:
        """Answer the offer of a package already on the device; return False if it is not."""
        name, version = header.name, header.version
        phase = self._ledger.phase(name, version)
        if not self.admission.is_here(transfer, header, phase=phase):
            return False
        if phase is not None:
            figures = self._ledger.figures(name, version)
            figures["why"] = self._ledger.idle(name, version)
            self._status.publish(
                transfer, phase, have=header.blocks, total=header.blocks, **figures
            )
            return True
        log.info("push %s: %s is here already", transfer, header.id)
        found = partial(self.admission.catalog.find_unchanged, name, version)
        self._submit(Candidate(name, version, transfer, found), header.blocks)
        return True

    # Packages in one message

    def _whole(self, message: ReceivedMessage) -> bool:
        """Submit a whole package; return True if it is acknowledged later.

        Once it is in the store, or the clock shows that it has expired: until then the broker has
        it, so that it outlives this run.

        Raises:
            MalformedError: it is not one; that has been published, if possible.
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
            if (same := self._ledger.by_transfer(transfer)) is not None:
                log.info("push %s: comes again while it is looked at; not taken twice", transfer)
                self._ledger.answer(same)
                return False
        try:
            candidate = self._candidate(archive, transfer, message)
        except ModelError as problem:
            self._status.reject(transfer, str(problem))
            return False
        if candidate is None:
            return transfer in self._waiting
        candidate.on_installed = message.ack
        self._submit(candidate, 1)
        return True

    def _candidate(
        self, archive: Archive, transfer: str, message: ReceivedMessage
    ) -> Candidate | None:
        """Make a candidate from an admitted package; None: the device has it, or it waits."""
        front = archive.front
        if front is None:
            self.admission.check_unsigned()
            self.admission.make_room(len(message.payload))
            # Its name is only known when it is unpacked.
            install_it = partial(self._install_handmade, archive)
            return Candidate("?", "0", transfer, install_it, unsigned=True)
        header = self.admission.check(front.header, front.signature)
        if header is None:
            self._wait(transfer, partial(self._whole_again, transfer, message), message)
            return None
        blocks = header.block_list(front.block_list)
        members = archive.members(header)
        if self._answer_present(transfer, header):
            return None
        self.admission.make_room(header.share(self.admission.identity.here).bytes)

        def install() -> ModelFolder:
            self.admission.check(front.header, front.signature)
            here = self.admission.identity.here
            return install_package(
                self.admission.store, front, header, blocks, members, here, received=True
            )

        unsigned = front.signature is None
        return Candidate(header.name, header.version, transfer, install, unsigned=unsigned)

    def _whole_again(self, transfer: str, message: ReceivedMessage) -> None:
        """Submit a whole package that has waited for the clock."""
        del self._waiting[transfer]
        if not self._whole(message):
            message.ack()

    def _install_handmade(self, archive: Archive) -> ModelFolder:
        """Install a tar without a header, whose name and version are only known then."""

        def check(name: str, version: str) -> None:
            self.admission.check_not_older(name, version)
            self.admission.check_not_elsewhere(name, version)

        here = self.admission.identity.here
        return install_handmade(self.admission.store, archive, here, received=True, check=check)

    def _submit(self, candidate: Candidate, blocks: int) -> None:
        """Submit a candidate to the deployer; all of its *blocks* blocks are on the device."""
        self._ledger.add(candidate)
        if candidate.phase == "receiving":
            self._ledger.advance(candidate, "verifying")
        if candidate.transfer is not None:
            self._status.publish(candidate.transfer, "verifying", have=blocks, total=blocks)
        self._deploy(candidate)

    # As time passes

    def resume(self) -> None:
        """Resume interrupted transfers after a start."""
        for transfer, front in interrupted_transfers(self.admission.store).items():
            log.info("push %s: was interrupted, is resumed", transfer)
            self._consider(transfer, front.header, front.signature)
            if self._ledger.by_transfer(transfer) is None and transfer not in self._waiting:
                self._remove(transfer)

    def _remove(self, transfer: str) -> None:
        """Remove the blocks of a package that is no longer allowed in, or is installed."""
        try:
            with disk_errors(f"push {transfer}: removing it"), self.admission.store.locked():
                folder = self.admission.store.incoming / transfer
                if folder.is_dir():
                    self.admission.store.delete_folder(folder)
        except ModelError as problem:
            log.error("push %s: not removed: %s", transfer, problem)  # noqa: TRY400 - one line, no traceback

    def tick(self, now: float) -> None:
        """Do the work due at *now*, monotonic time; offers wait until the wall clock is set."""
        self._blocks.tick(now)
        if self._waiting and now - self._clock_checked > CLOCK_SECONDS:
            self._clock_checked = now
            identity = self.admission.identity
            if identity.credible() and not identity.may_be_behind():
                for consider, _ in list(self._waiting.values()):
                    consider()

    def close(self) -> None:
        """Suspend all transfers; received blocks stay."""
        self._blocks.close()


def _is_number(level: str) -> bool:
    return level.isdecimal() and len(level) < 9


def _parse(
    transfer: str, payload: bytes
) -> tuple[bytes, bytes | None, str | None, str | None, bool]:
    """Return an offer's header, signature, time and push, and whether its blocks are on the broker.

    None of it is trusted yet.
    """
    if len(payload) > MAX_OFFER_BYTES:
        raise ModelError(f"offer: {len(payload)} bytes, at most {MAX_OFFER_BYTES}")
    try:
        body = json.loads(payload)
        header = base64.b64decode(body["package"], validate=True)
        signature = body.get("signature") or None
        if signature is not None:
            signature = base64.b64decode(signature, validate=True)
        sent, push = body.get("time"), body.get("began")
        for moment in (sent, push):
            if moment is not None:
                seconds_of(moment)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise ModelError(
            'offer: expected {"schema": 1, "package": base64, "signature"?: base64, "time"}'
        ) from None
    if transfer_id(header) != transfer:
        raise ModelError("offer: the transfer is not named after its package")
    return header, signature, sent, push, body.get("drawn") is True
