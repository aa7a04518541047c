"""Recognizes the kind of a PyTorch file, and whether PyTorch may load it, without using PyTorch.

Three things are called `.pt`: an exported program (`torch.export.save`), a TorchScript archive, and
a checkpoint, which is pickled Python. A checkpoint is recognized and refused, because unpickling it
would run its code. `torch.jit.load` only unpickles tensors. `torch.export.load` has no safe mode
(2.12): it falls back to `torch.load(weights_only=False)` for weights and example inputs, evaluates
the text of sizes, and imports the functions that nodes name. Files with any of these are refused
before PyTorch sees them, and example inputs are loaded with `weights_only=True` first. Loading runs
in a separate process; even so, untrusted files should not be converted.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ..core.containment import words
from ..core.errors import ModelError, UsageError
from .float_model import MAX_WEIGHT_BYTES

Kind = Literal["exported", "script"]
Read = Callable[[str], bytes]
"""Returns a member of an archive by name."""

MAX_TEXT_BYTES = 256 * 2**20
"""Limit for a part that is parsed here."""
MODEL = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")

EXPORT = (
    "in PyTorch, torch.export.save(torch.export.export(network.eval(), (example,)), '{stem}.pt2')"
)
"""How to make a file that can be converted."""

_NAMESPACES = frozenset({"aten", "prims", "torchvision", "quantized_decomposed", "higher_order"})
_BITWISE = frozenset({"__and__", "__or__", "__xor__", "__lshift__", "__rshift__"})
_ARITHMETIC = frozenset(
    {
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs"),
        *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_", "getitem"),
    }
)
# No other operators access files; see `torch._C._jit_get_all_schemas`.
_FILES = frozenset({"from_file", "save"})
_QUOTED = re.compile(r"'[\w.+-]*'")
_EXPRESSION = re.compile(r"[\w\s+\-*/(),.<>=!&|~%]*", re.ASCII)
_SYMBOLIC = re.compile(r"_?sym_\w+", re.ASCII)

_SCRIPT_FILES = re.compile(rf"\.\s*({'|'.join(sorted(_FILES))})\b")
_SCRIPT_OPERATORS = re.compile(r"(?<![\w.])ops\b(?!\.(?:aten|prim|torchvision)\b)[\w.]*")
_CLASSES = "torch.classes"


def recognize(path: Path) -> Kind:
    """Return the kind of a PyTorch file.

    Raises:
        UsageError: there is no such file.
        ModelError: it is neither an exported program nor TorchScript, or too large.
    """
    if not path.is_file():
        what = "is a folder; name the file in it" if path.is_dir() else "no such file"
        raise UsageError(f"{path}: {what}")
    with path.open("rb") as file:
        begin = file.read(8)
    if begin[:2] in {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"}:
        with path.open("rb") as file:
            raise _checkpoint(path, file.read(MAX_TEXT_BYTES))
    if begin[:4] != b"PK\3\4":
        raise ModelError(
            f"{path}: is no file of PyTorch, which are zip archives; expected an exported program "
            "(.pt2) or TorchScript (.pt)"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            # If the file's own list is cut off, Python may find that of an archive within it.
            if min((each.header_offset for each in archive.infolist()), default=1) > 0:
                raise zipfile.BadZipFile("its own list of members is not there")
            kind = _kind(path, archive)
            # PyTorch does not check the checksums.
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{damaged} is not what was written")
            return kind
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, RuntimeError) as problem:
        raise ModelError(
            f"{path}: is damaged or cut short: {words(problem)}; copy or export it again"
        ) from None


def _kind(path: Path, archive: zipfile.ZipFile) -> Kind:
    members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    top = {info.filename for info in archive.infolist()}
    total = sum(info.file_size for info in archive.infolist())
    if total >= MAX_WEIGHT_BYTES:
        raise ModelError(
            f"{path}: {total >> 20} MiB, expected less than {MAX_WEIGHT_BYTES >> 20}: an ONNX file "
            "holds no more"
        )
    if MODEL in members:
        return "exported"
    if "constants.pkl" in members and any(name.startswith("code/") for name in members):
        return "script"
    again = EXPORT.format(stem=path.stem)
    if "serialized_exported_program.json" in top:
        raise ModelError(
            f"{path}: an exported program as PyTorch before 2.8 wrote it; with that version: "
            f"{again} of a later one"
        )
    if any(name.startswith("data/aotinductor/") for name in members):
        raise ModelError(f"{path}: is compiled for one machine (AOTInductor); {again}")
    if any(name.startswith("models/") for name in members):
        raise ModelError(f"{path}: holds no program called model; {again}")
    if "data.pkl" in members:
        with archive.open(members["data.pkl"]) as file:
            raise _checkpoint(path, file.read(MAX_TEXT_BYTES))
    raise ModelError(f"{path}: is a zip archive, but none of PyTorch's; {again}")


def _checkpoint(path: Path, pickled: bytes) -> ModelError:
    """Return the error for a checkpoint; nothing in it is imported."""
    if any(name in pickled for name in (b"ultralytics", b"models.yolo", b"models.common")):
        return ModelError(
            f"{path}: is a checkpoint of Ultralytics: pickled Python, which is not run here; "
            f"export it: yolo export model={path.name} format=onnx"
        )
    return ModelError(
        f"{path}: is a checkpoint: pickled weights or objects, whose loading runs any code in it, "
        "so it is not loaded here; where you trust it, load it into its network, then, "
        f"{EXPORT.format(stem=path.stem)}"
    )


def check_exported(names: Collection[str], read: Read, where: str) -> None:
    """Check that loading an exported program only runs operators.

    Args:
        names: names of its members, without their common folder.
        read: the same reader that will load it, because a file might mislead two different ones.
        where: prefix of errors.
    """
    again = EXPORT.format(stem=Path(where).stem)
    for name in names:
        if name.startswith("data/aotinductor/"):
            raise ModelError(f"{where}: {name} is compiled code, which is not run here; {again}")
        if name.startswith("models/") and name != MODEL:
            raise ModelError(f"{where}: {name}: holds several programs; {again}")
        if name in {"data/weights/model.pt", "data/constants/model.pt"}:
            raise ModelError(f"{where}: {name} is pickled, as by an early PyTorch; {again}")
    for name in _CONFIGS:
        for key, meta in _table(_json(name, names, read, where), "config", where).items():
            file = str(meta.get("path_name")) if isinstance(meta, Mapping) else ""
            if not file.startswith(("weight_", "tensor_")) or meta.get("use_pickle") is not False:
                raise ModelError(
                    f"{where}: {key} is a pickled object, whose loading runs any code in it; "
                    f"export the network with plain tensors: {again}"
                )
            device = _table(_table(meta, "tensor_meta", where), "device", where).get("type")
            if device != "cpu":
                raise ModelError(
                    f"{where}: {key} lies on {device}; move the network to the processor first "
                    f"(network.cpu()), then, {again}"
                )
    for table in _tables(_json(MODEL, names, read, where)):
        _check_table(table, where)


def _check_table(table: Mapping[str, Any], where: str) -> None:
    for key in ("target", "as_operator"):
        name = table.get(key)
        if isinstance(name, str) and not _is_operator(name):
            raise ModelError(f"{where}: calls {name!r}, which is none of PyTorch's own operators")
    expression = table.get("expr_str")
    if isinstance(expression, str):
        plain = _QUOTED.sub("", expression)
        if "__" in expression or not _EXPRESSION.fullmatch(plain) or re.search(r"[\w)]\.\D", plain):
            raise ModelError(f"{where}: a size is {expression[:60]!r}, which is no arithmetic")
    for key in ("in_spec", "out_spec"):
        spec = table.get(key)
        if isinstance(spec, str) and ("__enum__" in spec or "default_factory" in spec):
            raise ModelError(f"{where}: {key} names a Python class; use tuples, lists and dicts")
    if "inputs" in table and isinstance(table["inputs"], list):
        _check_mode(table, where)


def _check_mode(node: Mapping[str, Any], where: str) -> None:
    """Check that an operator computes as in inference, not as in training."""
    given = {
        each.get("name"): each.get("arg") for each in node["inputs"] if isinstance(each, Mapping)
    }
    batch = given.get("training") == {"as_bool": True} and "as_tensor" in (
        given.get("running_mean") or {}
    )
    if batch or given.get("train") == {"as_bool": True}:
        name = str(node.get("target")).split(".")[-2:][0]
        raise ModelError(
            f"{where}: was exported in training mode ({name}): call network.eval() before "
            "torch.export.export"
        )


def _is_operator(name: str) -> bool:
    parts = name.split(".")
    match parts:
        case ["torch", "ops", namespace, *rest]:
            # aten.add.Tensor; higher-order operators: cond
            return (
                namespace in _NAMESPACES
                and 1 <= len(rest) <= 2
                and rest[0] not in _FILES
                and all(
                    part.isidentifier() and (not part.startswith("__") or part in _BITWISE)
                    for part in rest
                )
            )
        case ["torch", symbolic]:
            return _SYMBOLIC.fullmatch(symbolic) is not None
        case ["_operator", function]:
            return function in _ARITHMETIC
        case ["math", function]:
            return function.isidentifier() and not function.startswith("_")
    return False


def _tables(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every table in parsed JSON, at any depth."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _json(name: str, names: Collection[str], read: Read, where: str) -> Any:
    if name not in names:
        raise ModelError(f"{where}: holds no {name}: it is damaged or cut short")
    data = read(name)
    if len(data) > MAX_TEXT_BYTES:
        raise ModelError(f"{where}: {name}: more than {MAX_TEXT_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise ModelError(f"{where}: {name}: is damaged: {problem}") from None


def _table(value: Any, key: str, where: str) -> Mapping[str, Any]:
    inner = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping):
        raise ModelError(f"{where}: expected a table {key}: it is damaged")
    return inner


def check_script(names: Collection[str], read: Read, where: str) -> None:
    """Check that a TorchScript archive calls no operator that reaches outside the network.

    Its code is TorchScript, a language without Python's library, but some operators write files,
    and some run at load. Arguments are as for `check_exported`.
    """
    for name in names:
        is_code = name.startswith("code/") and name.endswith(".py")
        if not is_code and not name.endswith(".pkl"):
            continue
        text = read(name).decode("utf-8", "replace")
        found = None
        if is_code:
            found = _SCRIPT_FILES.search(text) or _SCRIPT_OPERATORS.search(text)
        if found is not None:
            raise ModelError(f"{where}: {name}: {found[0].strip()!r} is not run here")
        if _CLASSES in text:
            raise ModelError(
                f"{where}: {name}: holds objects of compiled classes ({_CLASSES}), as of a "
                "quantized or compiled network; export the float network"
            )
