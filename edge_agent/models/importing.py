"""Imports models: a folder, a tar, or a bare file becomes a folder that can be loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..core.containment import contained
from ..core.errors import AgentError, ModelError, UsageError
from ..core.files import disk_errors, fault
from ..core.names import NAME_RULE, is_name, is_version, safe_name
from ..core.scratch import scratch_folder
from ..core.text import printable
from .files.check_onnx import inspect
from .files.facts import Draft
from .manifest import MANIFEST, Manifest, ModelFolder, load, parse
from .questions import as_toml

BARE = frozenset({".onnx", ".xml", ".tflite"})
MOST_NAMED = 8
"""Most models that an error lists."""
_USUAL = frozenset({"model", "openvino_model"})
"""Names that exporters give the network itself; files beside it may be precisions or parts."""

_PYTORCH = (
    "PyTorch's own format, which no engine here reads; export it: `yolo export model={name} "
    "format=onnx` if it is Ultralytics', else torch.onnx.export; `edge-agent convert` takes .pt2 "
    "and TorchScript"
)
_TENSORFLOW = (
    "TensorFlow's own format; convert it to .xml with OpenVINO's ovc or to .onnx with tf2onnx"
)
PYTORCH = (".pt", ".pth", ".pt2", ".ckpt", ".torchscript", ".safetensors")
_HINTS: Mapping[str, str] = {
    **dict.fromkeys(PYTORCH, _PYTORCH),
    **dict.fromkeys([".pb", ".h5", ".keras"], _TENSORFLOW),
    ".bin": "the weights of an IR; give the .xml beside it",
    **dict.fromkeys(
        [
            *(".engine", ".trt", ".plan", ".blob", ".hef", ".rknn", ".mlmodel", ".mlpackage"),
            *(".nb", ".kmodel", ".bmodel", ".dlc", ".om"),
        ],
        "compiled for other hardware; export the model it was made of to .onnx",
    ),
    **dict.fromkeys(
        [".gz", ".tgz", ".xz", ".zst", ".zip", ".7z"],
        "compressed; unpack it and give the .tar, folder or file that was in it",
    ),
    **dict.fromkeys([".param", ".mnn"], "another engine's format; export the model to .onnx"),
    **dict.fromkeys(
        [".caffemodel", ".prototxt", ".weights", ".cfg", ".pdmodel", ".pdiparams"],
        "another framework's format; export the model to .onnx, PaddlePaddle's with paddle2onnx",
    ),
    **dict.fromkeys(
        [".pkl", ".pickle", ".joblib", ".ubj"],
        "a program's own objects, which nothing here reads; convert a model of scikit-learn with "
        "skl2onnx, one of XGBoost or LightGBM with onnxmltools",
    ),
    ".lite": "TensorFlow Lite's format under another name; rename it to .tflite",
    ".task": "MediaPipe's, a zip of several networks; unzip it and give a .tflite that was in it",
    ".gguf": "llama.cpp's format; of language models optimum-cli's OpenVINO exports are taken",
}
"""Advice for files of another kind."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model, and the assumptions about it."""

    folder: ModelFolder
    assumptions: tuple[str, ...]


@contextmanager
def import_model(
    path: Path, name: str | None = None, version: str | None = None, here: Sequence[str] = ()
) -> Iterator[ImportedModel]:
    """Import *path* as a loadable folder, for as long as the context lasts.

    Args:
        path: a model folder, a packed .tar, a bare .onnx, .xml or .tflite whose metadata or shapes
            are enough, or an exporter's folder with such a file.
        name: replaces its own name.
        version: replaces its own version, which for a bare file is "1".
        here: variants that suit this device, the most specific first.

    Raises:
        UsageError: there is nothing at *path*, or name or version are not valid.
        ModelError: it is not a model, or its metadata is not enough.
    """
    if name is not None and not is_name(name):
        raise UsageError(f"--name: {name!r} is not a name ({NAME_RULE})")
    if version is not None and not is_version(version):
        raise UsageError(f"--version: {version!r} is not a version (dot-separated integers)")
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    path = file_of(path)
    if path.is_dir() and name is None and version is None:
        yield ImportedModel(load(path, here), ())
        return
    if path.suffix == ".tar":
        with (
            import_tar(path) as inside,
            import_model(inside.folder.path, name, version, here) as imported,
        ):
            yield imported
        return
    with scratch_folder("model") as made, _naming_origin(made, path):
        if path.is_dir():
            source = load(path)
            with disk_errors(f"{path}: copying it"):
                copy_folder(path, made)
            manifest = replace(
                source.manifest,
                name=name or source.manifest.name,
                version=version or source.manifest.version,
            )
            assumptions: tuple[str, ...] = ()
        elif path.suffix in BARE:
            from .files.metadata import manifest_of

            with _naming_folder(path), contained(str(path), ModelError):
                manifest, assumed = manifest_of(path, name, version or "1")
                assumptions = tuple(map(printable, assumed))
                parts = inspect(path).files
            with disk_errors(f"{path}: copying it"):
                for part in parts:
                    copy = made / part.relative_to(path.parent)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(part, copy)
        else:
            raise ModelError(
                f"{path}: neither a folder with {MANIFEST}, nor .tar, .onnx, .xml or .tflite"
                f"{hint_of(path)}"
            )
        write_manifest(manifest, made)
        yield ImportedModel(load(made, here), assumptions)


@contextmanager
def _naming_folder(path: Path) -> Iterator[None]:
    """Make errors about a bare file name its folder, if a manifest there describes it."""
    try:
        yield
    except ModelError:
        try:
            described = load(path.parent).manifest.file == path.name
        except AgentError:
            described = False
        if not described:
            raise
        raise ModelError(
            f"{path}: does not say by itself what it is, but the {MANIFEST} beside it does: give "
            f"the folder, {path.parent}"
        ) from None


def copy_folder(folder: Path, place: Path) -> None:
    """Copy the files of a model that belong in a package, which hidden ones do not.

    Raises:
        ModelError: there is a link or a device among them, or they are too many or too deep.
        OSError: one cannot be read or written.
    """
    from .packages.build import model_files

    for name, path in model_files(folder).items():
        copy = place / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy, follow_symlinks=False)
        fault("install.file")


def file_of(path: Path, *, describing: bool = False) -> Path:
    """Return the network's file in an exporter's folder; any other path unchanged.

    For a folder that only contains a model folder, return that. *describing*: an empty manifest
    counts as none, because a shell makes one before `describe --draft DIR > DIR/model.toml` runs.

    Raises:
        ModelError: a folder without model.toml contains no network, or several candidates.
    """
    manifest = path / MANIFEST
    several = f"{path}: several networks and no {MANIFEST}: name one of "
    empty = describing and manifest.is_file() and manifest.stat().st_size == 0
    if not path.is_dir() or (manifest.exists() and not empty):
        return path
    with disk_errors(f"{path}: reading it"):
        models = sorted(one.parent for one in path.glob(f"*/{MANIFEST}"))
        if models and not any(map(_is_network, path.glob("*.*"))):
            if len(models) == 1:
                return models[0]
            names = ", ".join(map(str, models[:MOST_NAMED])) + ", …" * (len(models) > MOST_NAMED)
            raise ModelError(f"{path}: holds several models: name one of {names}")
        for pattern in ("*.*", "*/*.*"):  # Hugging Face's are in onnx/
            found = sorted(one for one in path.glob(pattern) if _is_network(one))
            usual = [one for one in found if one.stem in _USUAL]
            if len(found) == 1 or len(usual) == 1:
                return (usual or found)[0]
            if found:
                names = ", ".join(str(one.relative_to(path)) for one in found)
                raise ModelError(several + names)
        found = sorted(path.glob("*.tflite"))
        if len(found) == 1:  # Teachable Machine's zip, unpacked
            return found[0]
        if found:
            raise ModelError(several + ", ".join(one.name for one in found))
        others = sorted(one for one in path.iterdir() if one.suffix in _HINTS)
    hint = f"; {others[0].name} is there{hint_of(others[0])}" if others else ""
    raise ModelError(f"{path}: neither {MANIFEST} nor an .onnx, .xml or .tflite in it{hint}")


def _is_network(path: Path) -> bool:
    return path.suffix == ".onnx" or (path.suffix == ".xml" and path.with_suffix(".bin").exists())


def hint_of(path: Path) -> str:
    """Return advice for a file of another kind, to be appended to an error."""
    if path.suffix not in _HINTS:
        return ""
    return f": {path.suffix} is {_HINTS[path.suffix].format(name=path.name)}"


@contextmanager
def _naming_origin(place: Path, path: Path) -> Iterator[None]:
    """Rewrite errors to name the user's path instead of the temporary folder."""
    try:
        yield
    except AgentError as problem:
        text, origin = str(problem), str(path)
        if path.suffix in BARE:
            # Its manifest comes from its own metadata; other files are beside it.
            text, origin = text.replace(f"{place}/{MANIFEST}", origin), str(path.parent)
        text = text.replace(str(place), origin)
        if text == str(problem):
            raise
        raise type(problem)(text) from None


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write `model.toml` without default values."""
    import tomli_w

    table = manifest_table(manifest)
    (folder / MANIFEST).write_text(tomli_w.dumps(table), encoding="utf-8")
    # The written file must parse to the same manifest.
    if parse(table, MANIFEST) != manifest:
        raise ModelError(f"{manifest.id}: its manifest changes when it is written and read again")


def draft_text(draft: Draft, name: str, version: str, file: str) -> str:
    """Return a draft as model.toml, with assumptions as comments; with questions it is refused."""
    import tomli_w

    table = {"name": name, "version": version, "file": file, **draft.keys}
    lines = [f"# {draft.family}, by its shapes and names."]
    lines += [f"# assumed: {assumption}" for assumption in draft.assumed]
    return "\n".join([*lines, as_toml(draft.questions), tomli_w.dumps(table)])


def draft_name(network: Path) -> str:
    """Return a drafted model's name: the file's or, where exporters give that, the folder's."""
    path = network.resolve()
    return safe_name(path.parent.name if path.stem in _USUAL else path.stem)


def manifest_table(record: Any) -> dict[str, Any]:
    """Return a manifest, or a record within it, as a TOML table without default values."""
    table: dict[str, Any] = {}
    for item in fields(record):
        value = getattr(record, item.name)
        required = item.name in {"name", "version", "task", "file"}
        if value is None or (not required and _is_default(item, value)):
            continue
        if hasattr(value, "__dataclass_fields__"):
            inner = manifest_table(value)
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
    """Unpack a tar on this disk, which is therefore trusted, for as long as the context lasts.

    Raises:
        ModelError: it is damaged or not a model.
    """
    with scratch_folder("model") as made, _naming_origin(made, path):
        try:
            _unpack(path, made)
        except ModelError as problem:
            # The error of a block only has its number.
            text = str(problem)
            raise ModelError(text if str(path) in text else f"{path}: {text}") from None
        yield ImportedModel(load(made), ())


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
    unpack(member_reader(header, blocks, archive.members(header)), place, str(path))
