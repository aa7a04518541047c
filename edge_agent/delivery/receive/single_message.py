"""A whole package in one message: signed and in blocks like any other, or a tar made by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...core.errors import MalformedError, ModelError
from ...models.manifest import ModelFolder
from ...models.packages.archive import Archive, open_archive
from ...models.packages.package import transfer_id
from ...models.store.install import install_handmade, install_package
from ...models.store.store import Store
from ...mqtt.connection import ReceivedMessage
from ..protocol import MAX_SINGLE_MESSAGE_BYTES
from ..rollout.ledger import Candidate, Ledger
from .admission import Admission
from .offers import Offers


class SingleMessages:
    """Takes what arrives on `in/model`. Used by the thread that takes requests."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        *,
        admission: Admission,
        offers: Offers,
        submit: Callable[[Candidate, int], None],
    ) -> None:
        self._store = store
        self._status = ledger.status
        self._admission = admission
        self._offers = offers
        self._submit = submit

    def message(self, message: ReceivedMessage) -> bool:
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
            if self._offers.is_known(transfer):
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
        if self._offers.answer_present(transfer, header):
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
