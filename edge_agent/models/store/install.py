"""Installation into the store: of a package, a tar made by hand, or a folder.

All are unpacked into staging, checked, and renamed into place atomically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import ModelError
from ...core.files import disk_errors, fault
from ..importing import copy_folder
from ..manifest import ModelFolder, load
from ..packages.archive import Archive, Front, member_reader, unpack_handmade
from ..packages.blocks import BlockList
from ..packages.build import cut_folder, describe
from ..packages.package import FRONT_NAMES, PackageHeader, Share
from ..packages.tar_folder import unpack
from .incoming import Incoming
from .local_blocks import check_unchanged, write_notes
from .store import NOTES, Store


def install_package(
    store: Store,
    front: Front,
    header: PackageHeader,
    blocks: BlockList,
    read: Callable[[int, int], bytes],
    here: Sequence[str] = (),
    *,
    received: bool = False,
) -> ModelFolder:
    """Unpack a package into the store.

    Args:
        store: the store to put it in.
        front: its first members.
        header: the header in them, verified by the caller.
        blocks: the block list in them.
        read: returns bytes of the blocks, by offset and length: `Archive.members` or
            `Incoming.read`.
        here: variants that suit this device, the most specific first; files that only other
            variants use are left out.
        received: whether it came over MQTT.

    Raises:
        ModelError: it is damaged or mislabeled, or there is no room. Nothing is left behind.
    """
    share = header.share(here)
    with store.stage() as staged, _plainly(staged, header.id):
        with disk_errors("unpacking it"):
            reader = member_reader(header, blocks, read, share.has)
            layout = unpack(reader, staged, header.id, _own_names, _files_of(share, blocks))
        model = load(staged, here)
        manifest = model.manifest
        if (manifest.name, manifest.version) != (header.name, header.version):
            raise ModelError(
                f"model.toml says {manifest.id}, but the package says {header.id}; pack it again"
            )
        if header.variants and header.variants.keys() != {"", *manifest.variants}:
            raise ModelError("model.toml has other variants than the package; pack it again")
        fault("install.unpacked")
        with disk_errors("keeping its block list"):
            write_notes(staged, front, layout, _kept(model), received=received)
        place = store.commit(staged, header.name, header.version, is_damaged=_is_damaged)
    return load(place)


def install_incoming(store: Store, incoming: Incoming) -> ModelFolder:
    """Unpack a complete transfer, and remove it.

    Raises:
        ModelError: as for `install_package`; the transfer then still exists, for the caller to
            `recheck` or `discard`.
    """
    model = install_package(
        store,
        incoming.front,
        incoming.header,
        incoming.blocks,
        incoming.read,
        incoming.here,
        received=True,
    )
    incoming.discard()
    return model


def install_handmade(
    store: Store,
    archive: Archive,
    here: Sequence[str] = (),
    *,
    received: bool = False,
    check: Callable[[str, str], None] = lambda _name, _version: None,
) -> ModelFolder:
    """Unpack an unsigned tar that was made by hand; the caller has checked that this is allowed.

    Of a model's variants the first one in *here*, ordered from the most specific, is kept.
    *received* tells whether it came over MQTT; *check* gets its name and version, known only once
    it is unpacked, and raises ModelError if it is not wanted.

    Raises:
        ModelError: it is not a model, or there is no room. Nothing is left behind.
    """
    with store.stage() as staged, _plainly(staged, archive.where):
        unpack_handmade(archive, staged)
        return _adopt(store, staged, here, received=received, check=check)


def install_folder(store: Store, model: ModelFolder) -> ModelFolder:
    """Copy a model folder into the store, as the variant that it was loaded as.

    Raises:
        ModelError: it cannot be stored, or there is no room. Nothing is left behind.
    """
    with store.stage() as staged, _plainly(staged, str(model.path)):
        with disk_errors("copying it"):
            copy_folder(model.path, staged)
        return _adopt(store, staged, [model.variant])


def _adopt(
    store: Store,
    staged: Path,
    here: Sequence[str],
    *,
    received: bool = False,
    check: Callable[[str, str], None] = lambda _name, _version: None,
) -> ModelFolder:
    """Commit a staged folder, with the notes that a package would have left."""
    model = load(staged, here)
    check(model.manifest.name, model.manifest.version)
    fault("install.unpacked")
    with disk_errors("keeping its block list"):
        layout, blocks = cut_folder(staged)
        front = describe(model, layout, blocks)
        taken = _files_of(PackageHeader.parse(front.header).share(here), blocks)
        for name, begin, size in layout.files():
            if not taken(begin, size):
                (staged / name).unlink()
        write_notes(staged, front, layout, _kept(model), received=received)
    name, version = model.manifest.name, model.manifest.version
    return load(store.commit(staged, name, version, is_damaged=_is_damaged))


def _is_damaged(version: Path) -> bool:
    """Whether the files of a stored version have changed on the disk since it was installed."""
    try:
        load(version)
        check_unchanged(version, version.name)
    except ModelError:
        return True
    return False


def _files_of(share: Share, blocks: BlockList) -> Callable[[int, int], bool]:
    """Return a test whether a file, by its offset in the stream and length, is in a share."""
    return lambda offset, length: all(map(share.has, blocks.touched(offset, length)))


def _kept(model: ModelFolder) -> str | None:
    """Return the variant to note, or None if the model has none."""
    return model.variant if model.manifest.variants else None


def _own_names(name: str) -> str:
    """Return a member's name; refuse those that the store or a package uses itself."""
    top = name.partition("/")[0]
    if top == NOTES or name in FRONT_NAMES:
        raise ModelError(f"member {name!r}: this name is reserved; rename it")
    return name


@contextmanager
def _plainly(staged: Path, label: str) -> Iterator[None]:
    """Rewrite errors to name the version being installed instead of its temporary folder."""
    try:
        yield
    except ModelError as problem:
        text = str(problem).replace(f"{staged}/", "").replace(str(staged), "the model folder")
        if not text.startswith(label):
            text = f"{label}: {text}"
        raise ModelError(text) from problem
