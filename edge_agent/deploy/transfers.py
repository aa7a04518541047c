"""Offers and blocks: until all of a package is durable on the disk. Section 5 of the interface.

The device asks, a window at a time; the sender never runs ahead, because a broker silently drops
what piles up behind a slow receiver (mosquitto's queue holds 1,000). A message is acknowledged
after what it brought is durable.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from .. import BUILD_DATE, wire
from ..durable import disk_errors
from ..errors import MalformedError, ModelError
from ..manifest import ModelFolder
from ..mqtt import Message
from ..names import is_name, version_key
from ..packages.archive import Archive, Front, open_archive
from ..packages.blocks import BlockList, ranges
from ..packages.keys import TrustedKeys
from ..packages.package import (
    PackageHeader,
    check_expiry,
    check_targets,
    transfer_id,
    verify_header,
)
from ..store.catalog import Library
from ..store.housekeeping import make_room
from ..store.incoming import Incoming, arriving, other_transfers
from ..store.install import install_handmade, install_incoming, install_package
from ..store.known import plain_folders, read_front, stored_versions
from ..store.pointers import same_version
from ..store.store import NOTES, Store
from .ahead import Ahead
from .candidate import Candidate
from .flusher import Flusher

log = logging.getLogger(__name__)

WINDOW = 32
"""Blocks that are asked for at a time."""
LIST_PART = 64 * 1024
END_BYTES = 64 * 1024
SILENCE_SECONDS = 2.0
PATIENCE_SECONDS = 120.0
"""After so long without a word from the sender, the transfer rests; what has arrived stays."""
MAX_OFFER_BYTES = 64 * 1024
MAX_WHOLE_BYTES = 256 * 2**20
MAX_TRANSFERS = 16


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who receives: what packages are judged by."""

    device: str
    profile: str
    groups: Callable[[], Collection[str]]
    trusted: Callable[[], TrustedKeys]
    allow_unsigned: Callable[[], bool]
    quota_bytes: Callable[[], int]
    pinned: Callable[[], Collection[tuple[str, str]]]


@dataclass(slots=True, eq=False)
class Transfer:
    """One package on its way."""

    id: str
    header_bytes: bytes
    signature: bytes | None
    header: PackageHeader
    began: float
    parts: dict[int, bytes] = field(default_factory=dict)
    incoming: Incoming | None = None
    ahead: Ahead | None = None
    """Its trial, if that has begun."""
    asked: set[int] = field(default_factory=set)
    asked_at: float = 0.0
    heard_at: float = 0.0
    hurried: bool = False
    """What the trial wished for is being asked for."""
    unsaid: bool = False
    """There was no connection to ask over."""

    def arrived(self) -> None:
        """Tell the trial what is there."""
        incoming, ahead = self.incoming, self.ahead
        if ahead is None or incoming is None:
            return
        if ahead.wish is not None and not self.hurried:
            self.hurried = True
            incoming.hurry(*ahead.wish)
        granted = self.hurried and incoming.hurried
        ahead.arrived(incoming.reach, granted=granted, whole=incoming.complete)

    def leave(self) -> None:
        """End the trial."""
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None

    @property
    def list_parts(self) -> int:
        return max(1, math.ceil(self.header.list_bytes / LIST_PART))


class Transfers:
    """All transfers of this device; used by one thread."""

    def __init__(
        self,
        store: Store,
        library: Library,
        receiver: Receiver,
        publish: Callable[[str, Mapping[str, Any]], bool],
        submit: Callable[[Candidate], None],
        standing: Callable[[str, str], str | None],
        on_change: Callable[[], None] = lambda: None,
        expect: Callable[[PackageHeader], Ahead | None] = lambda _header: None,
    ) -> None:
        """Prepare.

        Args:
            store: where packages go.
            library: knows all versions.
            receiver: who we are.
            publish: says something on the topic of a transfer; False without a connection.
            submit: takes a candidate whose package has arrived.
            standing: how far a version is that is here already: a state of section 5, or None.
            on_change: called as a transfer makes progress, at most once a second.
            expect: begins the trial of a package that is about to arrive, where that is worth it.

        """
        self._store = store
        self._library = library
        self._receiver = receiver
        self._publish = publish
        self._submit = submit
        self._standing = standing
        self._on_change = on_change
        self._expect = expect
        self._changed_at = 0.0
        self._active: dict[str, Transfer] = {}
        self._waiting: dict[str, tuple[bytes, bytes | None]] = {}
        """Offers that wait for a credible clock."""
        self._handed: set[str] = set()
        """Complete, in the deployer's hands."""
        self._flusher = Flusher()
        self._clock_checked = 0.0

    # What arrives

    def message(self, levels: tuple[str, ...], message: Message) -> bool:
        """Take a message under `in/`; True when it is acknowledged later.

        Raises:
            MalformedError: it is nothing that is expected here.

        """
        match levels:
            case ("model",) | ("push", _, "offer") if not message.payload:
                return False  # how a retained message is cleared; nothing is sent like this
            case ("model",):
                return self._whole(message)
            case ("push", transfer, "offer") if is_name(transfer):
                self._offer(transfer, message.payload)
                return False
            case ("push", transfer, "abort") if is_name(transfer):
                self._abort(transfer)
                return False
            case ("push", transfer, "list", number) if number.isdecimal() and len(number) < 9:
                self._list(transfer, int(number), message.payload)
                return False
            case ("push", transfer, "block", number) if number.isdecimal() and len(number) < 9:
                return self._block(transfer, int(number), message)
            case _:
                raise MalformedError("nothing is expected here")

    def _offer(self, transfer: str, payload: bytes) -> None:
        try:
            header, signature = _read_offer(transfer, payload)
        except ModelError as problem:
            self._reject(transfer, str(problem))
            raise MalformedError(str(problem)) from None
        self._consider(transfer, header, signature)

    def _consider(self, transfer: str, header_bytes: bytes, signature: bytes | None) -> None:
        """Take an offer, go on with it, or say why not."""
        began = time.monotonic()
        going_on = self._active.get(transfer)
        if going_on is not None:
            going_on.heard_at = time.monotonic()
            going_on.asked.clear()
            self._ask(going_on)
            return
        if transfer in self._handed:
            known = PackageHeader.parse(header_bytes)
            state = self._standing(known.name, known.version) or "verifying"
            self._say(transfer, state, have=1, total=1)
            return
        try:
            header = self._judge(header_bytes, signature)
            if header is None:
                if len(self._waiting) >= MAX_TRANSFERS:
                    raise ModelError(f"{len(self._waiting)} pushes wait for the clock already")
                self._waiting[transfer] = (header_bytes, signature)
                self._say(
                    transfer,
                    "need",
                    why="the clock of this device is not set yet; waits until it is",
                )
                return
            self._waiting.pop(transfer, None)
            if self._is_here(transfer, header):
                return
            make_room(
                self._store,
                header.size,
                self._receiver.quota_bytes(),
                keep=self._receiver.pinned(),
                transfer=transfer,
            )
            if len(self._active) >= MAX_TRANSFERS:
                raise ModelError(
                    f"{len(self._active)} transfers are under way already; try again later"
                )
        except ModelError as problem:
            self._reject(transfer, str(problem))
            return
        made = Transfer(transfer, header_bytes, signature, header, began, heard_at=began)
        made.ahead = self._expect(header)
        self._active[transfer] = made
        self._changed_at = 0.0  # that it begins is said at once
        log.info(
            "push %s: %s is offered, %d bytes in %d blocks",
            transfer,
            header.id,
            header.size,
            header.blocks,
        )
        begun = arriving(self._store).get(transfer)
        if begun is not None:
            self._begin(made, begun.block_list)
        else:
            self._ask(made)

    def _judge(self, header_bytes: bytes, signature: bytes | None) -> PackageHeader | None:
        """Decide whether a package may come in; None: not before the clock is set.

        Raises:
            ModelError: it may not.

        """
        verify_header(
            header_bytes,
            signature,
            self._receiver.trusted(),
            allow_unsigned=self._receiver.allow_unsigned(),
        )
        header = PackageHeader.parse(header_bytes)
        check_targets(
            header,
            device=self._receiver.device,
            profile=self._receiver.profile,
            groups=self._receiver.groups(),
        )
        if check_expiry(header, now=datetime.now(UTC), build_date=BUILD_DATE) == "wait":
            return None
        self._refuse_older(header.name, header.version)
        return header

    def _refuse_older(self, name: str, version: str) -> None:
        self._store.refuse_older(name, version)
        for entry in self._library.versions(name):
            if (
                entry.accepted
                and entry.version
                and version_key(version) < version_key(entry.version)
            ):
                raise ModelError(
                    f"{name}@{version} is older than {entry.version}, which this device has; "
                    "give it a higher version, or use rollback or activate"
                )

    def _is_same(self, header: PackageHeader) -> bool:
        """Whether the store has this very content: the same folder packed again at another time."""
        path = self._store.path(header.name, header.version)
        if path is None:
            return False
        try:
            known = PackageHeader.parse(read_front(path / NOTES).header)
        except (ModelError, OSError):
            return False
        return known.blocks_sha256 == header.blocks_sha256

    def _is_here(self, transfer: str, header: PackageHeader) -> bool:
        """Deal with a version that is in the store; True when nothing needs to be sent."""
        name, version = header.name, header.version
        standing = self._standing(name, version)
        if self._store.path(name, version) is None:
            self._refuse_foreign(name, version)
            return False
        if self._store.transfer(name, version) != transfer and not self._is_same(header):
            if standing is not None or self._store.accepted(name, version):
                raise ModelError(
                    f"{header.id} is on this device already, with other content;"
                    " give it a higher version"
                )
            with self._store.locked():
                self._store.discard(name, version)
            return False
        if standing is not None:
            self._say(transfer, standing, have=header.blocks, total=header.blocks)
            return True
        log.info("push %s: %s is here already", transfer, header.id)
        self._hand_over(
            transfer, header, lambda: self._library.find(name, version), time.monotonic()
        )
        return True

    def _refuse_foreign(self, name: str, version: str) -> None:
        """See that no other place has this version: two models of one name would be mixed up."""
        for entry in self._library.entries(name):
            if (
                entry.place != "store"
                and entry.version is not None
                and same_version(entry.version, version)
            ):
                raise ModelError(
                    f"{name}@{version} comes with this device already; give it a higher version"
                )

    def _list(self, transfer: str, number: int, payload: bytes) -> None:
        going_on = self._active.get(transfer)
        if going_on is None or going_on.incoming is not None or number >= going_on.list_parts:
            return
        if len(payload) > LIST_PART:
            raise MalformedError(f"larger than the {LIST_PART} bytes of a part")
        going_on.heard_at = time.monotonic()
        going_on.parts[number] = payload
        going_on.asked.discard(number)
        if len(going_on.parts) == going_on.list_parts:
            self._begin(going_on, b"".join(going_on.parts[n] for n in range(going_on.list_parts)))
        elif not going_on.asked:
            self._ask(going_on)

    def _begin(self, transfer: Transfer, block_list: bytes) -> None:
        """Begin to receive blocks, with those that are on the device already."""
        front = Front(transfer.header_bytes, transfer.signature, block_list)
        try:
            blocks: BlockList = transfer.header.block_list(block_list)
            transfer.incoming = Incoming(self._store, front, transfer.header, blocks)
            # Its folder is made durable while the first blocks are on their way.
            self._flusher.put(transfer.incoming, None)
            folders = [
                e.path for e in self._library.versions(transfer.header.name) if e.place != "store"
            ]
            saved = transfer.incoming.fill(
                chain(
                    stored_versions(self._store),
                    other_transfers(self._store, transfer.id),
                    plain_folders(folders),
                )
            )
        except ModelError as problem:
            self._end(transfer, str(problem))
            return
        transfer.parts.clear()
        transfer.asked.clear()
        if transfer.ahead is not None:
            transfer.ahead.begin(transfer.incoming.data)
            # It will wish for the end of the network, which is mostly the end of the package.
            transfer.incoming.hurry(transfer.header.size - END_BYTES, transfer.header.size)
        transfer.arrived()
        if saved:
            log.info(
                "push %s: %d of %d bytes are here already", transfer.id, saved, transfer.header.size
            )
        self._go_on(transfer)

    def _block(self, transfer: str, number: int, message: Message) -> bool:
        going_on = self._active.get(transfer)
        if going_on is None or going_on.incoming is None:
            return False
        going_on.heard_at = time.monotonic()
        try:
            going_on.incoming.put(number, message.payload)
        except ModelError as problem:
            self._end(going_on, str(problem))
            return False
        going_on.arrived()
        going_on.asked.discard(number)
        self._flusher.put(going_on.incoming, message)
        if len(going_on.asked) <= WINDOW // 2:
            self._go_on(going_on)
        return True

    def _go_on(self, transfer: Transfer) -> None:
        """Ask for more, or hand the complete package over."""
        incoming = transfer.incoming
        if incoming is None or not incoming.complete:
            self._ask(transfer)
            return
        self._flusher.wait()
        problem = self._flusher.failed(incoming)
        if problem is not None:
            self._end(transfer, problem)
            return
        del self._active[transfer.id]
        self._hand_over(
            transfer.id,
            transfer.header,
            lambda: self._install(transfer, incoming),
            transfer.began,
            transfer.ahead,
        )

    def _install(self, transfer: Transfer, incoming: Incoming) -> ModelFolder:
        """Unpack a complete transfer; in the deployer's thread."""
        try:
            # A key that was removed meanwhile is not trusted any more.
            self._judge(transfer.header_bytes, transfer.signature)
            return install_incoming(self._store, incoming)
        except ModelError:
            incoming.discard()
            raise

    def _hand_over(
        self,
        transfer: str,
        header: PackageHeader,
        install: Callable[[], ModelFolder],
        began: float,
        ahead: Ahead | None = None,
    ) -> None:
        self._handed.add(transfer)
        self._say(transfer, "verifying", have=header.blocks, total=header.blocks)

        def finished(_outcome: str, _why: str | None) -> None:
            self._handed.discard(transfer)

        self._submit(
            Candidate(
                header.name,
                header.version,
                transfer,
                install,
                finished=finished,
                ahead=ahead,
                began=began,
            )
        )

    def _abort(self, transfer: str) -> None:
        self._waiting.pop(transfer, None)
        going_on = self._active.get(transfer)
        if going_on is not None:
            self._end(going_on, "aborted by the sender")

    def _end(self, transfer: Transfer, why: str) -> None:
        """Give a transfer up and leave nothing of it."""
        self._active.pop(transfer.id, None)
        transfer.leave()
        if transfer.incoming is not None:
            self._flusher.wait()
            try:
                transfer.incoming.discard()
            except ModelError as problem:
                log.error("push %s: %s", transfer.id, problem)  # noqa: TRY400 - one line, no traceback
        self._reject(transfer.id, why)
        self._on_change()

    # A whole package in one message

    def _whole(self, message: Message) -> bool:
        payload = message.payload
        if len(payload) > MAX_WHOLE_BYTES:
            raise MalformedError(f"in/model: larger than {MAX_WHOLE_BYTES >> 20} MiB; use push")
        transfer = transfer_id(payload)
        try:
            archive = open_archive(payload, "in/model")
        except ModelError as problem:
            self._reject(transfer, str(problem))
            raise MalformedError(str(problem)) from None
        try:
            if archive.front is None:
                if not self._receiver.allow_unsigned():
                    verify_header(b"", None, self._receiver.trusted(), allow_unsigned=False)
                make_room(
                    self._store,
                    len(payload),
                    self._receiver.quota_bytes(),
                    keep=self._receiver.pinned(),
                )
                self._submit_whole(
                    transfer, "?", "0", lambda: self._install_handmade(archive), message
                )
                return True
            transfer = archive.front.transfer
            if transfer in self._handed or transfer in self._active:
                return False
            header = self._judge(archive.front.header, archive.front.signature)
            if header is None:
                raise ModelError("the clock of this device is not set yet; use push, which waits")
            blocks = header.block_list(archive.front.block_list)
            members = archive.members(header)
            if self._is_here(transfer, header):
                return False
            make_room(
                self._store, header.size, self._receiver.quota_bytes(), keep=self._receiver.pinned()
            )
        except ModelError as problem:
            self._reject(transfer, str(problem))
            return False
        front = archive.front

        def install() -> ModelFolder:
            self._judge(front.header, front.signature)
            return install_package(self._store, front, header, blocks, members)

        self._submit_whole(transfer, header.name, header.version, install, message)
        return True

    def _install_handmade(self, archive: Archive) -> ModelFolder:
        """Unpack a tar without a header: what it is shows only then."""
        folder = install_handmade(self._store, archive)
        name, version = folder.manifest.name, folder.manifest.version
        try:
            self._refuse_older(name, version)
            self._refuse_foreign(name, version)
        except ModelError:
            with self._store.locked():
                if not self._store.accepted(name, version):
                    self._store.discard(name, version)
            raise
        return folder

    def _submit_whole(
        self,
        transfer: str,
        name: str,
        version: str,
        install: Callable[[], ModelFolder],
        message: Message,
    ) -> None:
        self._handed.add(transfer)
        self._say(transfer, "verifying", have=1, total=1)
        self._submit(
            Candidate(
                name,
                version,
                transfer,
                install,
                durable=message.ack,
                finished=lambda _outcome, _why: self._handed.discard(transfer),
            )
        )

    # As time goes by

    def resume(self) -> None:
        """After a start: go on with the transfers that were interrupted."""
        for transfer, front in arriving(self._store).items():
            log.info("push %s: was interrupted, goes on", transfer)
            self._consider(transfer, front.header, front.signature)
            if not {transfer} & (self._active.keys() | self._waiting.keys() | self._handed):
                self._drop(transfer)

    def _drop(self, transfer: str) -> None:
        """Remove what has arrived of a package that may not come in any more, or is here."""
        try:
            with disk_errors(f"push {transfer}: removing it"), self._store.locked():
                folder = self._store.incoming / transfer
                if folder.is_dir():
                    self._store.take_apart(folder)
        except ModelError as problem:
            log.error("%s", problem)  # noqa: TRY400 - one line, no traceback

    def tick(self, now: float) -> None:
        """Repeat what was asked for in vain; let go of senders that have gone."""
        if self._active and now - self._changed_at >= 1.0:
            self._changed_at = now
            self._on_change()
        for transfer in list(self._active.values()):
            problem = self._flusher.failed(transfer.incoming) if transfer.incoming else None
            if problem is not None:
                self._end(transfer, problem)
            elif now - transfer.heard_at > PATIENCE_SECONDS:
                log.info("push %s: the sender has gone; what has arrived stays", transfer.id)
                transfer.leave()
                del self._active[transfer.id]
                if transfer.incoming is not None:
                    self._flusher.wait()
                    transfer.incoming.close()
                self._on_change()
            elif transfer.unsaid or (
                now - transfer.asked_at >= SILENCE_SECONDS
                and now - transfer.heard_at >= SILENCE_SECONDS
            ):
                transfer.asked.clear()
                self._ask(transfer)
        if self._waiting and now - self._clock_checked > SILENCE_SECONDS:
            self._clock_checked = now
            for transfer_name, (header, signature) in list(self._waiting.items()):
                if datetime.now(UTC) >= BUILD_DATE:
                    self._consider(transfer_name, header, signature)

    def close(self) -> None:
        """Let go of everything; what has arrived stays."""
        self._flusher.wait()
        for transfer in self._active.values():
            transfer.leave()
            if transfer.incoming is not None:
                transfer.incoming.close()

    # What the device says

    def _ask(self, transfer: Transfer) -> None:
        """Ask for what is missing and not asked for yet, up to a window."""
        transfer.asked_at = time.monotonic()
        if transfer.incoming is None:
            missing = [n for n in range(transfer.list_parts) if n not in transfer.parts][:WINDOW]
            transfer.asked = set(missing)
            transfer.unsaid = not self._say(
                transfer.id, "need", have=0, total=transfer.header.blocks, list=_pairs(missing)
            )
            return
        incoming = transfer.incoming
        transfer.arrived()  # what its trial wishes for is asked for now
        room = WINDOW - len(transfer.asked)
        wanted = [
            n for n in incoming.missing(WINDOW + len(transfer.asked)) if n not in transfer.asked
        ][:room]
        if not wanted:
            return
        transfer.asked.update(wanted)
        transfer.unsaid = not self._say(
            transfer.id, "need", have=incoming.have, total=incoming.total, need=_pairs(wanted)
        )

    def _reject(self, transfer: str, why: str) -> None:
        log.warning("push %s: rejected: %s", transfer, why)
        self._say(transfer, "rejected", why=why)

    def _say(
        self, transfer: str, state: str, *, have: int = 0, total: int = 0, **more: Any
    ) -> bool:
        percent = 100.0 * have / total if total else 0.0
        return self._publish(
            transfer,
            {
                "schema": wire.SCHEMA,
                "device": self._receiver.device,
                "transfer": transfer,
                "state": state,
                "have": have,
                "total": total,
                "percent": round(percent, 1),
                **more,
            },
        )

    def progress(self) -> dict[str, tuple[str, float]]:
        """Give the version that is being received of each model, and percent."""
        found = {}
        for transfer in list(self._active.values()):
            incoming = transfer.incoming
            done = 100.0 * incoming.have / max(incoming.total, 1) if incoming is not None else 0.0
            found[transfer.header.name] = (transfer.header.version, round(done, 1))
        return found


def _pairs(numbers: list[int]) -> list[list[int]]:
    return [[first, last] for first, last in ranges(numbers)]


def _read_offer(transfer: str, payload: bytes) -> tuple[bytes, bytes | None]:
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
