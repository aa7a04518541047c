"""The blocks that this device already has, in any version of any model.

Each stored version keeps notes on how it arrived: its block list, and the headers of its files in
the tar. With these any part of the tar can be rebuilt, so a block is found by its digest wherever
it is. This is only a hint: the block is checked again when it is copied.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...core.containment import words
from ...core.errors import ModelError
from ...core.files import write_new
from ...core.plain_file import read_plain_bytes
from ...core.state_file import DAMAGED
from ..manifest import KEPT
from ..packages.archive import Front
from ..packages.blocks import BlockList
from ..packages.build import cut_folder
from ..packages.package import BLOCKS, HEADER, SIGNATURE, PackageHeader
from ..packages.tar_folder import Layout, Stream
from .changed import changed_words
from .store import LAYOUT, NOTES, RECEIVED, Store

log = logging.getLogger(__name__)

FRAME = "frame"


@dataclass(frozen=True, slots=True)
class Source:
    """A stream and its blocks."""

    blocks: BlockList
    stream: Stream


def write_notes(
    folder: Path, front: Front, layout: Layout, variant: str | None, *, received: bool
) -> None:
    """Write notes on how a version arrived beside its files: front, frame, and layout.

    *received* tells whether it came over MQTT, so that its trust is judged again after a restart.

    Raises:
        OSError: the disk is full or broken.
    """
    notes = folder / NOTES
    notes.mkdir()
    write_front(notes, front)
    write_new(notes / FRAME, layout.frame)
    write_new(notes / LAYOUT, json.dumps(layout.pieces).encode())
    if received:
        write_new(notes / RECEIVED, b"")
    if variant is not None:
        write_new(folder / KEPT, variant.encode())


def write_front(folder: Path, front: Front, *, sync: bool = True) -> None:
    """Write the first members of a package into *folder*; durable unless the caller syncs it."""
    write_new(folder / HEADER, front.header, sync=sync)
    if front.signature is not None:
        write_new(folder / SIGNATURE, front.signature, sync=sync)
    write_new(folder / BLOCKS, front.block_list, sync=sync)


def read_front(folder: Path) -> Front:
    """Read the front, which is as unverified as when it arrived.

    Raises:
        OSError: it is missing.
    """
    signature = folder / SIGNATURE
    return Front(
        read_plain_bytes(folder / HEADER),
        read_plain_bytes(signature) if signature.exists() else None,
        read_plain_bytes(folder / BLOCKS),
    )


def stored_versions(store: Store) -> Iterator[Source]:
    """Iterate over every version of the store; one with damaged notes is skipped and logged."""
    for name in store.names():
        for version in store.versions(name):
            folder = store.models / name / version
            try:
                yield _stored(folder)
            except FileNotFoundError:
                # Deleted meanwhile, or put there by hand: then its blocks are sent again.
                continue
            except (OSError, *DAMAGED) as problem:
                log.warning(
                    "%s@%s: its blocks cannot be used again: %s", name, version, words(problem)
                )


def _stored(folder: Path) -> Source:
    notes = folder / NOTES
    blocks = BlockList.read(read_plain_bytes(notes / BLOCKS))
    return Source(blocks, _layout(notes).stream(folder))


def _layout(notes: Path) -> Layout:
    pieces = json.loads(read_plain_bytes(notes / LAYOUT))
    return Layout(
        tuple((None if name is None else str(name), int(length)) for name, length in pieces),
        read_plain_bytes(notes / FRAME),
    )


def plain_folders(folders: Iterable[Path]) -> Iterator[Source]:
    """Iterate over model folders outside the store, cut as `pack` would cut them.

    They are read completely, so pass only those that are likely to help: versions of the arriving
    model.
    """
    for folder in folders:
        try:
            layout, blocks = cut_folder(folder)
        except (ModelError, OSError) as problem:
            log.warning("%s: its blocks cannot be used again: %s", folder, words(problem))
            continue
        yield Source(blocks, layout.stream(folder))


def check_unchanged(folder: Path, label: str) -> None:
    """Check that a stored version has not changed, by the digests of its blocks.

    All of it is read. One that was put there by hand has no block list and cannot be checked.

    Raises:
        ModelError: a file has changed since it was installed, or cannot be read.
    """
    notes = folder / NOTES
    if not (notes / HEADER).exists():
        return
    trouble = f"{NOTES}, where it is kept how it was installed"
    try:
        front = read_front(notes)
        header = PackageHeader.parse(front.header)
        blocks = header.block_list(front.block_list)
        kept = (folder / KEPT).read_text() if header.variants else ""
        share = header.share([kept])
        layout = _layout(notes)
        stream = layout.stream(folder)
        for index, offset in enumerate(blocks.offsets):
            if not share.has(index):
                continue
            length = blocks.lengths[index]
            trouble = " or ".join(layout.files_in(offset, length)) or trouble
            blocks.check(index, stream.read(offset, length))
    except (ModelError, OSError, *DAMAGED) as problem:
        log.debug("%s", folder, exc_info=problem)
        raise ModelError(changed_words(label, trouble)) from problem


def find(wanted: Collection[bytes], sources: Iterable[Source]) -> Iterator[tuple[bytes, bytes]]:
    """Find blocks by their digests.

    Yields:
        Digest and matching content, each wanted block at most once.
    """
    missing = set(wanted)
    for source in sources:
        for digest, offset, length in zip(
            source.blocks.digests, source.blocks.offsets, source.blocks.lengths, strict=True
        ):
            if digest not in missing:
                continue
            try:
                data = source.stream.read(offset, length)
            except (ModelError, OSError):
                # Deleted or changed meanwhile: another source may have it, else it is sent.
                continue
            if hashlib.sha256(data).digest() == digest:
                missing.discard(digest)
                yield digest, data
        if not missing:
            return
