"""Installation into the store: of a package, a tar made by hand, a folder.

All end alike: unpacked into staging, checked, and renamed into place in one step.
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
from .local_blocks import write_notes
from .store import NOTES, Store


def install_package(
    store: Store,
    front: Front,
    header: PackageHeader,
    blocks: BlockList,
    read: Callable[[int, int], bytes],
    here: Sequence[str] = (),
) -> ModelFolder:
    """Unpack a package into the store.

    Args:
        store: to put it in.
        front: its first members.
        header: their content; the caller has verified it.
        blocks: the list in them.
        read: returns the bytes of the blocks, by offset and length: `Archive.members` or
            `Incoming.read`.
        here: variants that suit this device, the most specific first; files that only others name
            are left out.

    Raises:
        ModelError: it is damaged or mislabeled, or there is no room. Nothing is left.
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
            write_notes(staged, front, layout, _kept(model))
        place = store.commit(staged, header.name, header.version)
    return load(place)


def install_incoming(store: Store, incoming: Incoming) -> ModelFolder:
    """Unpack a transfer that is complete, and remove it.

    Raises:
        ModelError: as `install_package`; the transfer is still there then, for the caller to
            `recheck` or `discard`.
    """
    model = install_package(
        store, incoming.front, incoming.header, incoming.blocks, incoming.read, incoming.here
    )
    incoming.discard()
    return model


def install_handmade(store: Store, archive: Archive, here: Sequence[str] = ()) -> ModelFolder:
    """Unpack a tar that was made by hand, hence unsigned; the caller has checked that it may.

    Of a model with variants the one is kept that suits *here*, the most specific first.

    Raises:
        ModelError: it is not a model, or there is no room. Nothing is left.
    """
    with store.stage() as staged, _plainly(staged, archive.where):
        unpack_handmade(archive, staged)
        return _adopt(store, staged, here)


def install_folder(store: Store, model: ModelFolder) -> ModelFolder:
    """Copy a model folder into the store; of one with variants, that which it was loaded as.

    Raises:
        ModelError: it is not fit for the store, or there is no room. Nothing is left.
    """
    with store.stage() as staged, _plainly(staged, str(model.path)):
        with disk_errors("copying it"):
            copy_folder(model.path, staged)
        return _adopt(store, staged, [model.variant])


def _adopt(store: Store, staged: Path, here: Sequence[str]) -> ModelFolder:
    """Commit a staged folder, with the notes that a package would have left."""
    model = load(staged, here)
    fault("install.unpacked")
    with disk_errors("keeping its block list"):
        layout, blocks = cut_folder(staged)
        front = describe(model, layout, blocks)
        taken = _files_of(PackageHeader.parse(front.header).share(here), blocks)
        for name, begin, size in layout.files():
            if not taken(begin, size):
                (staged / name).unlink()
        write_notes(staged, front, layout, _kept(model))
    return load(store.commit(staged, model.manifest.name, model.manifest.version))


def _files_of(share: Share, blocks: BlockList) -> Callable[[int, int], bool]:
    """Return whether a file is in a share: takes where it begins in the stream, and its length."""
    return lambda offset, length: all(map(share.has, blocks.touched(offset, length)))


def _kept(model: ModelFolder) -> str | None:
    """Return the variant that is to be noted, or None if it has none."""
    return model.variant if model.manifest.variants else None


def _own_names(name: str) -> str:
    """Refuse members with names that the store or a package uses itself."""
    top = name.partition("/")[0]
    if top == NOTES or name in FRONT_NAMES:
        raise ModelError(f"member {name!r}: this name is not the model's to use; rename it")
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
