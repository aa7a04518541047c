"""Import of models: a folder, a tar, or a bare .onnx or .xml, as a folder that can be loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..core.containment import contained
from ..core.errors import AgentError, ModelError, UsageError
from ..core.files import disk_errors
from ..core.names import NAME_RULE, is_name, is_version
from ..core.text import printable
from .files.check_onnx import inspect
from .manifest import MANIFEST, Manifest, ModelFolder, load, parse

BARE = frozenset({".onnx", ".xml"})


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model, and what had to be assumed about it."""

    folder: ModelFolder
    assumptions: tuple[str, ...]


@contextmanager
def import_model(
    path: Path, name: str | None = None, version: str | None = None
) -> Iterator[ImportedModel]:
    """Import *path* as a loadable folder, for as long as the context lasts.

    Args:
        path: a model folder, a packed .tar, or a bare .onnx or .xml whose metadata says what it
            is.
        name: instead of its own.
        version: instead of its own; of a bare file "1" otherwise.

    Raises:
        UsageError: there is nothing at *path*, or name or version are not valid.
        ModelError: it is not a model, or its metadata does not say enough.

    """
    if name is not None and not is_name(name):
        raise UsageError(f"--name: {name!r} is not a name ({NAME_RULE})")
    if version is not None and not is_version(version):
        raise UsageError(f"--version: {version!r} is not a version (dot-separated integers)")
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    if path.is_dir() and name is None and version is None:
        yield ImportedModel(load(path), ())
        return
    if path.suffix == ".tar":
        with (
            import_tar(path) as inside,
            import_model(inside.folder.path, name, version) as imported,
        ):
            yield imported
        return
    with TemporaryDirectory(prefix="edge-agent-model-") as place, _naming_origin(Path(place), path):
        made = Path(place)
        if path.is_dir():
            source = load(path)
            with disk_errors(f"{path}: copying it"):
                shutil.copytree(path, made, dirs_exist_ok=True)
            manifest = replace(
                source.manifest,
                name=name or source.manifest.name,
                version=version or source.manifest.version,
            )
            assumptions: tuple[str, ...] = ()
        elif path.suffix in BARE:
            from .files.metadata import manifest_of

            with contained(str(path), ModelError):
                manifest, assumed = manifest_of(path, name, version or "1")
                assumptions = tuple(map(printable, assumed))
                parts = inspect(path).files
            with disk_errors(f"{path}: copying it"):
                for part in parts:
                    copy = made / part.relative_to(path.parent)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(part, copy)
        else:
            raise ModelError(f"{path}: neither a folder with {MANIFEST}, nor .tar, .onnx or .xml")
        write_manifest(manifest, made)
        yield ImportedModel(load(made), assumptions)


@contextmanager
def _naming_origin(place: Path, path: Path) -> Iterator[None]:
    """Rewrite errors to name the user's path instead of the temporary folder."""
    try:
        yield
    except AgentError as problem:
        text, origin = str(problem), str(path)
        if path.suffix in BARE:
            # Its manifest is made of its own metadata; other files lie beside it.
            text, origin = text.replace(f"{place}/{MANIFEST}", origin), str(path.parent)
        text = text.replace(str(place), origin)
        if text == str(problem):
            raise
        raise type(problem)(text) from None


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write `model.toml` without what is the default."""
    import tomli_w

    table = _table(manifest)
    (folder / MANIFEST).write_text(tomli_w.dumps(table), encoding="utf-8")
    # What is written must read back as what was meant.
    if parse(table, MANIFEST) != manifest:
        raise ModelError(f"{manifest.id}: its manifest does not survive being written")


def _table(record: Any) -> dict[str, Any]:
    """Return a record as a TOML table."""
    table: dict[str, Any] = {}
    for item in fields(record):
        value = getattr(record, item.name)
        required = item.name in {"name", "version", "task", "file"}
        if value is None or (not required and _is_default(item, value)):
            continue
        if hasattr(value, "__dataclass_fields__"):
            inner = _table(value)
            if inner:
                table[item.name] = inner
        elif isinstance(value, tuple):
            table[item.name] = list(value)
        else:
            table[item.name] = value
    return table


def _is_default(item: Any, value: Any) -> bool:
    if item.default is not MISSING:
        return bool(item.default == value)
    if item.default_factory is not MISSING:
        return bool(item.default_factory() == value)
    return False


@contextmanager
def import_tar(path: Path) -> Iterator[ImportedModel]:
    """Unpack a tar that lies on this disk, hence trusted, for as long as the context lasts.

    Raises:
        ModelError: it is damaged or no model.

    """
    with TemporaryDirectory(prefix="edge-agent-model-") as place, _naming_origin(Path(place), path):
        try:
            _unpack(path, Path(place))
        except ModelError as problem:
            # A block knows its number alone.
            text = str(problem)
            raise ModelError(text if str(path) in text else f"{path}: {text}") from None
        yield ImportedModel(load(Path(place)), ())


def _unpack(path: Path, place: Path) -> None:
    from .packages.archive import member_reader, open_archive, unpack_handmade
    from .packages.package import PackageHeader
    from .packages.tar_folder import unpack

    archive = open_archive(path, str(path))
    if archive.front is None:
        unpack_handmade(archive, place)
        return
    header = PackageHeader.parse(archive.front.header)
    blocks = header.block_list(archive.front.block_list)
    unpack(member_reader(header, blocks, archive.members(header)), place, str(path), _as_it_is)


def _as_it_is(name: str) -> str:
    return name
