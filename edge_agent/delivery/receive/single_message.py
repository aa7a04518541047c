"""A whole package in one message: signed and in blocks like any other, or a tar made by hand."""

from __future__ import annotations

from functools import partial

from ...core.errors import MalformedError, ModelError
from ...models.manifest import ModelFolder
from ...models.packages.archive import Archive, open_archive
from ...models.packages.package import transfer_id
from ...models.store.install import install_handmade, install_package
from ...models.store.store import Store
from ...mqtt.connection import ReceivedMessage
from ..rollout.candidate import Candidate
from .admission import Admission
from .blocks import Receiving
from .handover import Handover
from .progress import Replies

MAX_WHOLE_BYTES = 256 * 2**20


class Whole:
    """Takes what arrives on `in/model`. Used by the thread that takes orders."""

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

    def take(self, message: ReceivedMessage) -> bool:
        """Take a package; True when its message is acknowledged later: when it is in the store.

        Raises:
            MalformedError: it is not one; its sender has been told, if that could be.

        """
        payload = message.payload
        if len(payload) > MAX_WHOLE_BYTES:
            raise MalformedError(f"in/model: larger than {MAX_WHOLE_BYTES >> 20} MiB; use push")
        transfer = transfer_id(payload)
        try:
            archive = open_archive(payload, "in/model")
        except ModelError as problem:
            self._replies.reject(transfer, str(problem))
            raise MalformedError(str(problem)) from None
        if archive.front is not None:
            transfer = archive.front.transfer
            if transfer in self._handover or transfer in self._receiving:
                return False
        try:
            candidate = self._candidate(archive, transfer, len(payload))
        except ModelError as problem:
            self._replies.reject(transfer, str(problem))
            return False
        if candidate is None:
            return False
        candidate.durable = message.ack
        self._handover.give(transfer, candidate, 1)
        return True

    def _candidate(self, archive: Archive, transfer: str, size: int) -> Candidate | None:
        """Make a candidate of a package that may come in; None: the device has it.

        Raises:
            ModelError: it may not.

        """
        front = archive.front
        if front is None:
            self._admission.refuse_unsigned()
            self._admission.make_room(size)
            # What it is called is known when it is unpacked.
            return Candidate("?", "0", transfer, partial(self._install_handmade, archive))
        header = self._admission.judge(front.header, front.signature)
        if header is None:
            raise ModelError("the clock of this device is not set yet; use push, which waits")
        blocks = header.block_list(front.block_list)
        members = archive.members(header)
        if self._handover.needs_nothing(transfer, header):
            return None
        self._admission.make_room(header.size)

        def install() -> ModelFolder:
            self._admission.judge(front.header, front.signature)
            return install_package(self._store, front, header, blocks, members)

        return Candidate(header.name, header.version, transfer, install)

    def _install_handmade(self, archive: Archive) -> ModelFolder:
        """Unpack a tar without a header: what it is shows only then."""
        folder = install_handmade(self._store, archive)
        name, version = folder.manifest.name, folder.manifest.version
        try:
            self._admission.check_not_older(name, version)
            self._admission.refuse_foreign(name, version)
        except ModelError:
            with self._store.locked():
                if not self._store.accepted(name, version):
                    self._store.discard(name, version)
            raise
        return folder
