"""Building packages from model folders, and reading them on the sender's side.

The receiver's side, which trusts nothing, is in `package` and `archive`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ...core.containment import contained
from ...core.errors import ModelError
from ...core.files import disk_errors, output_file
from ..files.check_onnx import inspect
from ..files.facts import NetworkFacts
from ..files.tensor_ranges import tensor_ranges
from ..golden import check_file as check_golden_file
from ..manifest import MANIFEST, ModelFolder, load
from .archive import Front, open_archive
from .blocks import CUT, SMALL, BlockList, cut, ranges
from .package import (
    FRONT_NAMES,
    HEADER,
    MAX_HEADER,
    SCHEMA,
    PackageHeader,
    check_target_form,
    format_time,
)
from .tar_folder import Layout, Piece, Stream
from .ustar import MAX_MEMBERS, RECORD, check_name, header, padding

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class Package:
    """A package on the sender's side: its header, and where its bytes are."""

    front: Front
    header: PackageHeader
    blocks: BlockList
    stream: Stream

    @property
    def transfer(self) -> str:
        """The name of its transfer."""
        return self.front.transfer

    def block(self, index: int, *, check: bool = True) -> bytes:
        """Read one block.

        Args:
            index: index of the block.
            check: whether to verify that it has not changed since the package was made; a sender
                need not, because every device does (it took half the time of sending a block).

        Raises:
            ModelError: the files have changed since the package was made.
        """
        with disk_errors(f"{self.header.id}: reading block {index}"):
            data = self.stream.read(self.blocks.offsets[index], self.blocks.lengths[index])
        if check:
            self.blocks.check(index, data)
        return data

    def write(self, out: Path) -> None:
        """Write the tar; a file is replaced as a whole, see `output_file`.

        Raises:
            UsageError: *out* is not something that can be written to.
            ModelError: it cannot be written.
        """
        try:
            with output_file(out) as file:
                self._write(file)
        except OSError as problem:
            raise ModelError(f"{out}: cannot be written: {problem.strerror}") from problem

    def _write(self, file: BinaryIO) -> None:
        contents = (self.front.header, self.front.signature, self.front.block_list)
        for name, content in zip(FRONT_NAMES, contents, strict=True):
            if content is not None:
                file.write(header(name, len(content)) + content + padding(len(content)))
        file.writelines(self.block(index) for index in range(len(self.blocks)))
        # An archive ends with two records of zeros.
        file.write(bytes(2 * RECORD))


def pack(
    folder: Path,
    out: Path,
    *,
    key: Ed25519PrivateKey | None = None,
    expires: datetime | None = None,
    targets: Sequence[str] = (),
    created: datetime | None = None,
) -> Package:
    """Build a package from a model folder and write it to *out*.

    Raises:
        ModelError: the folder cannot be packed, or *out* cannot be written.
    """
    # `Path.resolve` raises an error of its own for a loop of links.
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(folder)):
        raise ModelError(f"{out}: lies inside the model folder; write the package elsewhere")
    package = make(load(folder), key=key, expires=expires, targets=targets, created=created)
    package.write(out)
    return package


def make(
    model: ModelFolder,
    *,
    key: Ed25519PrivateKey | None = None,
    expires: datetime | None = None,
    targets: Sequence[str] = (),
    created: datetime | None = None,
    largest: int = CUT,
) -> Package:
    """Build a package from a model folder, whose files are read again later.

    Raises:
        ModelError: the folder cannot be packed.
    """
    for each in _variants(model):
        # Otherwise every device would refuse it, after it has been sent completely.
        if each.golden.exists():
            check_golden_file(each, _inspect(each))
    with disk_errors(f"{model.path}: reading the model"):
        layout, blocks = cut_folder(model.path, largest)
    front = describe(
        model, layout, blocks, key=key, expires=expires, targets=targets, created=created
    )
    return Package(front, PackageHeader.parse(front.header), blocks, layout.stream(model.path))


def describe(
    model: ModelFolder,
    layout: Layout,
    blocks: BlockList,
    *,
    key: Ed25519PrivateKey | None = None,
    expires: datetime | None = None,
    targets: Sequence[str] = (),
    created: datetime | None = None,
) -> Front:
    """Build the first members of a package of *blocks*; the arguments are those of `make`.

    Raises:
        ModelError: a target or a time is not valid, or a variant is incomplete.
    """
    for target in targets:
        check_target_form(target, "targets")
    created = created or datetime.now(UTC)
    if expires is not None and expires <= created:
        raise ModelError(f"expires: {format_time(expires)} is past already; choose a later time")
    block_list = blocks.to_bytes()
    says = {
        "schema": SCHEMA,
        "name": model.manifest.name,
        "version": model.manifest.version,
        "created": format_time(created),
        "expires": format_time(expires) if expires else None,
        "targets": list(targets) or None,
        "bytes": blocks.total,
        "blocks": len(blocks),
        "blocks_sha256": hashlib.sha256(block_list).hexdigest(),
        "variants": _shares(model, layout, blocks) or None,
    }
    data = json.dumps({key: value for key, value in says.items() if value is not None}).encode()
    if len(data) > MAX_HEADER:
        raise ModelError(f"{HEADER}: {len(data)} bytes, at most {MAX_HEADER}; name fewer targets")
    return Front(data, key.sign(data) if key else None, block_list)


def _shares(model: ModelFolder, layout: Layout, blocks: BlockList) -> dict[str, Mapping[str, Any]]:
    """List the blocks for each variant: all except those with only other variants' files."""
    if not model.manifest.variants:
        return {}
    own = {each.variant: _named(each) for each in _variants(model)}
    shares: dict[str, Mapping[str, Any]] = {}
    for name, files in own.items():
        others = set().union(*own.values()) - files
        left = {
            index
            for file, begin, size in layout.files()
            if file in others
            for index in blocks.touched(begin, size)
            # A block that a small file shares with its neighbors is included.
            if blocks.offsets[index] >= begin
            and blocks.offsets[index] + blocks.lengths[index] <= begin + size
        }
        taken = [index for index in range(len(blocks)) if index not in left]
        size = sum(blocks.lengths[index] for index in taken)
        shares[name] = {"bytes": size, "blocks": ranges(taken)}
    return shares


def _variants(model: ModelFolder) -> list[ModelFolder]:
    """Read a model as each of its variants, and as none."""
    if not model.manifest.variants:
        return [model]
    return [load(model.path, [name]) for name in ("", *model.manifest.variants)]


def _inspect(model: ModelFolder) -> NetworkFacts:
    with contained(str(model.network), ModelError):
        return inspect(model.network)


def _named(model: ModelFolder) -> set[str]:
    """List the files that a model, read as a variant, refers to."""
    files = [*_inspect(model).files, model.golden, model.usual_file]
    if isinstance(model.manifest.output.labels, str):
        files.append(model.path / model.manifest.output.labels)
    return {file.relative_to(model.path).as_posix() for file in files}


def cut_folder(folder: Path, largest: int = CUT) -> tuple[Layout, BlockList]:
    """Lay out a model folder as the members of a tar and cut it into blocks.

    Raises:
        ModelError: it contains something that cannot be in a package.
        OSError: a file cannot be read.
    """
    files = model_files(folder)
    tensors = tensor_ranges(files)
    pieces: list[tuple[str | None, int]] = []
    frame = bytearray()
    hard: set[int] = set()
    soft: set[int] = set()
    at = 0
    for name, path in files.items():
        size = path.stat().st_size
        begin = header(name, size)
        end = padding(size)
        frame += begin + end
        pieces += [(None, len(begin)), (name, size), (None, len(end))]
        at += len(begin)
        # The whole content is a range, too, like its tensors.
        for first, last in ((0, size), *tensors[name]):
            if last - first >= SMALL:
                hard |= {at + first, at + last}
            else:
                soft.add(at + first)
        at += size + len(end)
    layout = Layout(tuple(pieces), bytes(frame))
    stream = layout.stream(folder)
    lengths = cut(stream.length, hard, soft, largest)
    digests: list[bytes] = []
    offset = 0
    for length in lengths:
        digests.append(hashlib.sha256(stream.read(offset, length)).digest())
        offset += length
    return layout, BlockList.of(lengths, digests)


def model_files(folder: Path) -> dict[str, Path]:
    """List the files of a model: all in its folder except hidden ones; the manifest first.

    Raises:
        ModelError: there is a link or a device among them, or they are too many or too deep.
    """
    found: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder, onerror=_fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in (*folders, *names):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            relative = check_name(path.relative_to(folder).as_posix(), str(folder))
            if name.startswith(".") or stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise ModelError(f"{path}: is a link or no plain file; put the file itself there")
            if relative in FRONT_NAMES:
                raise ModelError(f"{path}: this name belongs to the package itself; rename it")
            found[relative] = path
            if len(found) > MAX_MEMBERS:
                raise ModelError(f"{folder}: more than {MAX_MEMBERS} files")
    if MANIFEST not in found:
        raise ModelError(f"{folder / MANIFEST}: no such file")
    return {name: found[name] for name in sorted(found, key=lambda each: (each != MANIFEST, each))}


def _fail(problem: OSError) -> None:
    raise problem


def open_package(path: Path) -> Package | None:
    """Open a tar written by `pack`, to send it; None if it was made by hand.

    Raises:
        ModelError: it is not a package, or its front is damaged; blocks are checked when read.
    """
    archive = open_archive(path, str(path))
    if archive.front is None:
        return None
    header = PackageHeader.parse(archive.front.header)
    blocks = header.block_list(archive.front.block_list)
    with disk_errors(f"{path}: reading the package"):
        archive.members(header)
    return Package(archive.front, header, blocks, Stream([Piece(path, header.size, archive.start)]))
