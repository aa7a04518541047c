"""The files that come before the network in a package, unpacked to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ModelError
from ...models.packages.ustar import TarReader
from .growing_file import Arriving, UnfitError

if TYPE_CHECKING:
    from ...models.manifest import ModelFolder

MAX_EARLY_BYTES = 16 * 2**20
"""Of labels and golden inputs; with more there is nothing to gain."""
LEAST_NETWORK = 2**20


def unpack_early(data: Arriving, folder: Path) -> tuple[Path, int, int]:
    """Unpack what comes before the network; wait until the network begins.

    Args:
        data: the members of the package.
        folder: where to; the network is an empty file there.

    Returns:
        That file, and where its content begins and ends in *data*.

    Raises:
        UnfitError: too much comes before it, or it is not a larger ONNX file.
        ModelError: the package is not as it should be.

    """
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        found = data.read(at, at + count)
        at += len(found)
        return found

    reader = TarReader(read, data.length, "package")
    while (member := reader.next()) is not None:
        if member.kind == "folder":
            continue
        place = folder / member.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix == ".onnx":
            if member.size < LEAST_NETWORK:
                raise UnfitError(f"{member.name} has {member.size} bytes only")
            place.touch()
            return place, at, at + member.size
        if at + member.size > MAX_EARLY_BYTES:
            raise UnfitError(f"{member.name} comes before the network and is large")
        with place.open("wb") as file:
            file.writelines(reader.content())
    raise UnfitError("there is no ONNX file")


def model_of(folder: Path, network: Path) -> ModelFolder:
    """Read the model folder from what came before the network.

    Raises:
        UnfitError: that is not enough.

    """
    from ...models.manifest import MANIFEST, load

    if not (folder / MANIFEST).is_file():
        raise UnfitError(f"{MANIFEST} comes after the network")
    try:
        model = load(folder)
    except ModelError as problem:
        # What is missing may still come.
        raise UnfitError(str(problem)) from None
    if model.network != network:
        raise UnfitError(f"its network is {model.manifest.file}")
    return model
