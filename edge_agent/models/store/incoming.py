"""An incoming package: the blocks that have arrived, stored so that they survive any crash.

Which blocks have arrived is not recorded: after a restart their digests are checked. So no order of
writes, and no sector lost in a power cut, can make an incomplete block count.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from ...core.containment import words
from ...core.errors import ModelError
from ...core.files import (
    copy_owner,
    disk_errors,
    drop_lock,
    fault,
    subfolders,
    sync_folder,
    sync_tree,
    take_lock,
)
from ..packages.archive import Front
from ..packages.blocks import BlockList
from ..packages.package import PackageHeader
from ..packages.tar_folder import Piece, Stream
from .local_blocks import Source, find, read_front, write_front
from .store import Store

log = logging.getLogger(__name__)

_DATA = "data"


class Incoming:
    """One transfer, open for writing by one thread."""

    def __init__(
        self,
        store: Store,
        front: Front,
        header: PackageHeader,
        blocks: BlockList,
        here: Sequence[str] = (),
    ) -> None:
        """Start a transfer, or resume one that was interrupted.

        Raises:
            ModelError: it is already open, or the disk is full or broken; nothing is left behind.
        """
        self.front, self.header, self.blocks = front, header, blocks
        self.here = here
        self._share = header.share(here)
        self._store = store
        self._folder = store.incoming / front.transfer
        self._where: dict[bytes, list[int]] = {}
        for index, digest in enumerate(blocks.digests):
            self._where.setdefault(digest, []).append(index)
        self._urgent: list[int] = []
        """Blocks to request before the others."""
        self._settled = False
        """Whether the folder and everything in it except the blocks is durable."""
        with disk_errors(f"{header.id}: preparing to receive it"):
            begun = self._is_begun()
            if not begun:
                self._create()
            self._lock, self._file = self._open()
            try:
                self._has = bytearray(len(blocks))
                self._count = 0
                self._low = 0
                if begun:
                    self.recheck()
                else:
                    self._count_zeros()
            except BaseException:
                self.close()
                raise

    def _is_begun(self) -> bool:
        """Whether the transfer can be resumed; one damaged by a power cut is removed."""
        if not self._folder.is_dir():
            return False
        try:
            front = read_front(self._folder)
            size = (self._folder / _DATA).stat().st_size
        except FileNotFoundError:
            size = -1
        else:
            same = front.header == self.front.header and front.block_list == self.front.block_list
            if same and size == self.header.size:
                return True
        with self._store.locked():
            self._store.delete_folder(self._folder)
        return False

    def _create(self) -> None:
        """Create the folder of the transfer atomically.

        This does not wait for the disk: the first `flush` makes it durable with the first blocks,
        and a power cut before that leaves nothing, or something that `_is_begun` removes.
        """
        with self._store.stage() as staged:
            write_front(staged, self.front, sync=False)
            descriptor = os.open(staged / _DATA, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                self._reserve(descriptor)
            finally:
                os.close(descriptor)
            copy_owner(staged, self._store.root)
            fault("receive.metadata")
            staged.rename(self._folder)
            fault("receive.ready")

    def _reserve(self, descriptor: int) -> None:
        """Reserve the disk space now, so that the transfer does not fail at its end."""
        os.ftruncate(descriptor, self.header.size)
        offsets = (*self.blocks.offsets, self.blocks.total)
        for first, last in self._share.blocks:
            try:
                os.posix_fallocate(descriptor, offsets[first], offsets[last + 1] - offsets[first])
            except OSError as problem:
                if problem.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
                    raise

    def _open(self) -> tuple[int, int]:
        """Lock the transfer against collectors and other receivers; open its data."""
        try:
            # Under the store's lock, so that a collector that only tests it does not look like a
            # second receiver.
            with self._store.locked():
                lock = take_lock(self._folder)
        except BlockingIOError:
            raise ModelError(f"{self.header.id}: is being received already") from None
        try:
            return lock, os.open(self._folder / _DATA, os.O_RDWR)
        except BaseException:
            drop_lock(lock)
            raise

    def recheck(self) -> None:
        """Check all blocks on the disk again.

        Raises:
            OSError: the disk is broken.
        """
        for index, (offset, length) in enumerate(
            zip(self.blocks.offsets, self.blocks.lengths, strict=True)
        ):
            data = os.pread(self._file, length, offset)
            right = hashlib.sha256(data).digest() == self.blocks.digests[index]
            self._has[index] = right or not self._share.has(index)
        self._count, self._low = sum(self._has), 0

    def _count_zeros(self) -> None:
        """Count blocks of only zeros as present, since a new file is full of them."""
        lengths = set(self.blocks.lengths)
        zeros = {length: hashlib.sha256(bytes(length)).digest() for length in lengths}
        for index, length in enumerate(self.blocks.lengths):
            zero = zeros[length] == self.blocks.digests[index]
            self._has[index] = zero or not self._share.has(index)
        self._count = sum(self._has)

    @property
    def transfer(self) -> str:
        """The id of the transfer."""
        return self.front.transfer

    @property
    def have(self) -> int:
        """Number of blocks that have arrived, or belong to other variants."""
        return self._count

    @property
    def total(self) -> int:
        """Number of blocks of the package."""
        return len(self._has)

    @property
    def complete(self) -> bool:
        """Whether all blocks have arrived."""
        return self._count == len(self._has)

    def missing(self, limit: int | None = None) -> list[int]:
        """List up to *limit* blocks to request; equal ones are listed once."""
        found: list[int] = []
        asked: set[bytes] = set()
        self._skip()
        for index in chain(self._urgent, range(self._low, len(self._has))):
            if limit is not None and len(found) >= limit:
                break
            digest = self.blocks.digests[index]
            if not self._has[index] and digest not in asked:
                asked.add(digest)
                found.append(index)
        return found

    def _skip(self) -> None:
        while self._low < len(self._has) and self._has[self._low]:
            self._low += 1

    @property
    def reach(self) -> int:
        """Number of bytes that have arrived from the beginning on without a gap."""
        self._skip()
        offsets = self.blocks.offsets
        return offsets[self._low] if self._low < len(offsets) else self.blocks.total

    def request_first(self, start: int, stop: int) -> None:
        """Request some bytes before all others."""
        self._urgent = [
            index
            for index, (offset, length) in enumerate(
                zip(self.blocks.offsets, self.blocks.lengths, strict=True)
            )
            if offset < stop and start < offset + length
        ]

    @property
    def has_requested(self) -> bool:
        """Whether all bytes from `request_first` have arrived."""
        return bool(self._urgent) and all(self._has[index] for index in self._urgent)

    @property
    def data(self) -> Path:
        """The file that the blocks are written to, which has its full length from the start."""
        return self._folder / _DATA

    def put(self, index: int, data: bytes) -> bool:
        """Write a block; it is durable after the next `flush`.

        Returns:
            Whether it was new.

        Raises:
            ModelError: it is not the block in the list, or the disk is full or broken.
        """
        self.blocks.check(index, data)
        if self._has[index]:
            return False
        self._write(self.blocks.digests[index], data)
        return True

    def flush(self) -> None:
        """Make all written blocks durable.

        Raises:
            ModelError: the disk is full or broken.
        """
        with disk_errors(f"{self.header.id}: receiving"):
            os.fdatasync(self._file)
            if not self._settled:
                sync_tree(self._folder)
                sync_folder(self._store.incoming)
                self._settled = True
            # Shows the collector that this transfer is active.
            os.utime(self._folder)
        fault("block.durable")

    def fill(self, sources: Iterable[Source]) -> int:
        """Copy the blocks that this device already has.

        Returns:
            The number of bytes that need not be sent.

        Raises:
            ModelError: the disk is full or broken.
        """
        before = self._bytes_here()
        wanted = {self.blocks.digests[index] for index in self.missing()}
        if wanted:
            for digest, data in find(wanted, sources):
                self._write(digest, data)
        # Not made durable: the blocks are already on this disk.
        return self._bytes_here() - before

    def read(self, offset: int, length: int) -> bytes:
        """Read back bytes that have arrived.

        Raises:
            OSError: the disk is broken.
        """
        return os.pread(self._file, length, offset)

    def discard(self) -> None:
        """Close the transfer and remove it completely.

        Raises:
            ModelError: the disk is broken.
        """
        self.close()
        with disk_errors(f"{self.header.id}: removing the transfer"), self._store.locked():
            if self._folder.is_dir():
                self._store.delete_folder(self._folder)

    def close(self) -> None:
        """Close the transfer; blocks that have arrived stay. May be called twice."""
        for name, close in (("_file", os.close), ("_lock", drop_lock)):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, digest: bytes, data: bytes) -> None:
        """Write a checked block to every place that it has in the package."""
        with disk_errors(f"{self.header.id}: receiving"):
            for index in self._where[digest]:
                written = os.pwrite(self._file, data, self.blocks.offsets[index])
                if written != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._count += not self._has[index]
                self._has[index] = True
        fault("block.written")

    def _bytes_here(self) -> int:
        pairs = zip(self.blocks.lengths, self._has, strict=True)
        return sum(length for length, has in pairs if has)


def interrupted_transfers(store: Store) -> dict[str, Front]:
    """Return the interrupted transfers by id; their signatures must be checked again.

    One that cannot be read is left out, or all of them, and the log says so.
    """
    found: dict[str, Front] = {}
    try:
        folders = subfolders(store.incoming)
    except OSError as problem:
        log.warning("interrupted transfers are not resumed: %s", words(problem))
        return found
    for folder in folders:
        try:
            front = read_front(folder)
        except FileNotFoundError:
            continue  # not a transfer; `clean_leftovers` reports it
        except OSError as problem:
            log.warning("transfer %s is not resumed: %s", folder.name, words(problem))
            continue
        if front.transfer == folder.name:
            found[folder.name] = front
    return found


def other_transfers(store: Store, transfer: str) -> Iterator[Source]:
    """Yield the other interrupted transfers as sources of blocks.

    Packing the same files again makes another package with the same blocks.
    """
    for other, front in interrupted_transfers(store).items():
        if other == transfer:
            continue
        try:
            blocks = BlockList.read(front.block_list)
        except ValueError as problem:
            log.warning("transfer %s: its blocks cannot be used again: %s", other, problem)
            continue
        yield Source(blocks, Stream([Piece(store.incoming / other / _DATA, blocks.total)]))
