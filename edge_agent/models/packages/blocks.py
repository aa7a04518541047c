"""The blocks that a package is sent in, and the list with the digest of each.

They begin at the start and end of every larger tensor and file, so that equal parts of two versions
give equal blocks wherever they are. Independent of archives and transfers.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from ...core.errors import ModelError

MAX_BLOCK = 64 * 1024
"""Most bytes of any block."""
CUT = MAX_BLOCK - 1024
"""Most bytes of our blocks: with its topic, one then fits in a packet limited to 64 KiB."""
SMALL = 4 * 1024
"""Neighbors below this share a block: separate ones would cost more in entries and messages."""
MAX_BLOCKS = 1_000_000
ENTRY = struct.Struct(">I32s")

Points = Iterable[int]


def cut(length: int, hard: Points, soft: Points, largest: int = CUT) -> list[int]:
    """Cut a stream into blocks.

    What is between two hard points does not depend on anything outside, so it is cut the same way
    in every version. Small parts are combined until they reach `SMALL`; such a group can only end
    early at one of their starts, the soft points.

    Args:
        length: length of the stream, bytes.
        hard: where a block must begin: the starts and ends of large tensors and files.
        soft: where a block may begin: the starts of small ones.
        largest: most bytes of a block.

    Returns:
        The length of each block, in order.
    """
    fixed = sorted({point for point in hard if 0 < point < length} | {length})
    loose = sorted({point for point in soft if 0 < point < length} - set(fixed))
    lengths: list[int] = []
    at = index = 0
    for end in fixed:
        while at < end:
            while index < len(loose) and loose[index] < at + SMALL:
                index += 1
            stop = min(end, at + largest)
            if index < len(loose):
                stop = min(stop, loose[index])
            lengths.append(stop - at)
            at = stop
    return lengths


@dataclass(frozen=True, slots=True)
class BlockList:
    """The blocks of one package, in order."""

    lengths: tuple[int, ...]
    digests: tuple[bytes, ...]
    """SHA-256, 32 bytes each."""
    offsets: tuple[int, ...]
    """Offset of each in the stream."""

    @classmethod
    def of(cls, lengths: Iterable[int], digests: Iterable[bytes]) -> Self:
        """Build the list of a stream's blocks."""
        sizes = tuple(lengths)
        return cls(sizes, tuple(digests), tuple(accumulate(sizes, initial=0))[:-1])

    @classmethod
    def parse(cls, data: bytes, *, count: int, total: int, sha256: str) -> Self:
        """Check and read `package.blocks`.

        Args:
            data: 36 bytes per block: length (u32, big-endian) and SHA-256.
            count: number of blocks, from `package.json`.
            total: bytes of all blocks, from `package.json`.
            sha256: SHA-256 of *data*, from `package.json`, in hex.

        Raises:
            ModelError: it is not the list that the package was made with.
        """
        if len(data) != count * ENTRY.size:
            raise ModelError(
                f"package.blocks: expected {count * ENTRY.size} bytes for {count} blocks,"
                f" found {len(data)}"
            )
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise ModelError(
                f"package.blocks: its SHA-256 is {found[:16]}…, but package.json says"
                f" {sha256[:16]}…; pack and send the model again"
            )
        blocks = cls.read(data)
        for index, length in enumerate(blocks.lengths):
            if not 1 <= length <= MAX_BLOCK:
                raise ModelError(
                    f"package.blocks: block {index} has {length} bytes, expected 1 to {MAX_BLOCK}"
                )
        if blocks.total != total:
            raise ModelError(
                f"package.blocks: the blocks have {blocks.total} bytes,"
                f" but package.json says {total}"
            )
        return blocks

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Read a list without checking it, for use where a wrong digest does no harm.

        Raises:
            ValueError: it is not a sequence of entries.
        """
        try:
            entries = list(ENTRY.iter_unpack(data))
        except struct.error as problem:
            raise ValueError("not a row of entries of 36 bytes") from problem
        return cls.of((length for length, _ in entries), (digest for _, digest in entries))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def total(self) -> int:
        """Bytes of all blocks."""
        return sum(self.lengths)

    def touched(self, offset: int, length: int) -> range:
        """Return the indices of the blocks that overlap a part of the stream."""
        if length <= 0:
            return range(0)
        first = bisect_right(self.offsets, offset) - 1
        return range(first, bisect_right(self.offsets, offset + length - 1))

    def to_bytes(self) -> bytes:
        """Return the content of `package.blocks`."""
        return b"".join(map(ENTRY.pack, self.lengths, self.digests))

    def check(self, index: int, data: bytes) -> None:
        """Check that *data* is the block *index*.

        Raises:
            ModelError: it is not, or there is no such block.
        """
        if not 0 <= index < len(self.lengths):
            raise ModelError(f"block {index}: there are only {len(self.lengths)}")
        if len(data) != self.lengths[index]:
            raise ModelError(
                f"block {index}: expected {self.lengths[index]} bytes, found {len(data)}"
            )
        if hashlib.sha256(data).digest() != self.digests[index]:
            raise ModelError(f"block {index}: is not what the package was made with (SHA-256)")


def verified(
    blocks: BlockList,
    read: Callable[[int, int], bytes],
    taken: Callable[[int], bool] = lambda _index: True,
) -> Iterator[bytes]:
    """Iterate over the blocks, each only after its digest has been checked.

    Args:
        blocks: the signed list of the stream's blocks.
        read: returns bytes, given an offset and a length.
        taken: whether a block was sent; one that was not is replaced with zeros.

    Raises:
        ModelError: a block differs from the list.
    """
    for index, (offset, length) in enumerate(zip(blocks.offsets, blocks.lengths, strict=True)):
        if not taken(index):
            yield bytes(length)
            continue
        data = read(offset, length)
        blocks.check(index, data)
        yield data


def reader_of(parts: Iterator[bytes]) -> Callable[[int], bytes]:
    """Return a function that reads parts like a file: at most *n* bytes, b"" at the end."""
    rest = memoryview(b"")

    def read(count: int) -> bytes:
        nonlocal rest
        if not rest:
            rest = memoryview(next(parts, b""))
        data, rest = bytes(rest[:count]), rest[count:]
        return data

    return read


def ranges(indices: Iterable[int]) -> list[tuple[int, int]]:
    """Group ascending numbers into ranges, first and last included."""
    found: list[tuple[int, int]] = []
    for index in indices:
        if found and found[-1][1] == index - 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return found
