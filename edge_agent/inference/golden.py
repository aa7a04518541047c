"""Golden inputs: what a model gives on this device, against what it gave where it was made."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.containment import contained
from ..core.errors import ModelError
from ..core.types import (
    Array,
    TensorSpec,
)
from .compare import SHARE, Agreement, compare_outputs
from .model import Model

MAX_GOLDEN_BYTES = 256 * 2**20
"""Of all its arrays, unpacked."""
MAX_ARRAYS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One golden input and what came out of it."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]


def read_golden(model: Model) -> list[Case]:
    """Read the golden cases of a model; none where it has no such file.

    Raises:
        ModelError: the file is damaged, or its arrays do not fit the network.

    """
    path = model.folder.golden
    if not path.exists():
        return []
    where = f"{model.id}: {path.name}"
    if not path.is_file():
        raise ModelError(f"{where}: is no plain file; put the file itself there")
    specs = {f"input/{spec.name}": spec for spec in model.engine.inputs}
    specs |= {f"output/{spec.name}": spec for spec in model.engine.outputs}
    arrays = _arrays(path, where)
    unknown = sorted(set(arrays) - set(specs))
    missing = sorted(name for name in specs if name.startswith("input/") and name not in arrays)
    if unknown or missing:
        raise ModelError(
            f"{where}: expected {', '.join(sorted(specs))}; "
            f"{'lacks ' + ', '.join(missing) if missing else 'unknown: ' + ', '.join(unknown)}"
        )
    if not any(name.startswith("output/") for name in arrays):
        raise ModelError(f"{where}: holds no output/<tensor>")
    stacked = {
        name: _stack(array, specs[name], f"{where}: {name}") for name, array in arrays.items()
    }
    counts = {name: len(array) for name, array in stacked.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ModelError(f"{where}: every array needs the same number of cases, found {counts}")
    return [
        Case(_part(stacked, "input/", index), _part(stacked, "output/", index))
        for index in range(next(iter(counts.values())))
    ]


def _arrays(path: Path, where: str) -> dict[str, Array]:
    """Read an archive of arrays as a stranger's file: bounded, and never pickled."""
    try:
        _check_listing(path, where)
        with zipfile.ZipFile(path) as archive:
            # What it unpacks to counts, not what it is packed to.
            total = sum(member.file_size for member in archive.infolist())
        if total > MAX_GOLDEN_BYTES:
            raise ModelError(
                f"{where}: {total >> 20} MiB of arrays, expected at most {MAX_GOLDEN_BYTES >> 20}"
            )
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (
        OSError,
        ValueError,
        EOFError,
        MemoryError,
        # Encrypted, or packed by a method that this Python has not.
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as problem:
        raise ModelError(f"{where}: cannot be read: {problem}") from None
    for name, array in arrays.items():
        # NumPy gives a member that is no array as bytes.
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise ModelError(f"{where}: {name}: is not an array of numbers")
    return arrays


def _check_listing(path: Path, where: str) -> None:
    """Check that an archive lists few members, before the listing is read.

    46 bytes list a member, and ten times as many are taken to remember it. Source: PKWARE,
    APPNOTE.TXT, 4.3.16; the end record is looked for where Python's zipfile does.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 22 - 0xFFFF))
        tail = file.read()
    plain = tail[-22:-18] == b"PK\5\6" and tail[-2:] == b"\0\0"
    at = len(tail) - 22 if plain else tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < 22:
        raise zipfile.BadZipFile("File is not a zip file")
    _, _, _, _, count, listing = struct.unpack_from("<4s4HL", tail, at)
    # What needs more room than that writes another record before this one (zip64).
    larger = tail[max(0, at - 20) : max(0, at - 16)] == b"PK\6\7"
    if larger or count > MAX_ARRAYS or listing > MAX_ARRAYS * 1024:
        raise ModelError(f"{where}: more than {MAX_ARRAYS} arrays")


def _stack(array: Array, spec: TensorSpec, where: str) -> Array:
    """Check an array against its tensor; give it its case axis where it has none."""
    rank = len(spec.shape)
    if array.ndim not in {rank, rank + 1}:
        raise ModelError(
            f"{where}: expected {rank} axes, or {rank + 1} with one of cases; found {array.ndim}"
        )
    stacked = array if array.ndim == rank + 1 else array[None]
    fits = all(
        want in {None, have} for want, have in zip(spec.shape, stacked.shape[1:], strict=True)
    )
    # What came out of another engine may be of another width.
    both_float = where.endswith(f"output/{spec.name}") and (
        stacked.dtype.kind == "f" and spec.dtype.startswith("float")
    )
    if not fits or not (both_float or stacked.dtype.name == spec.dtype):
        raise ModelError(
            f"{where}: expected {spec}, found {stacked.dtype.name}{list(stacked.shape[1:])}"
        )
    if stacked.dtype.kind == "f" and not np.isfinite(stacked).all():
        raise ModelError(f"{where}: holds NaN or infinity")
    return stacked


def _part(stacked: Mapping[str, Array], prefix: str, index: int) -> dict[str, Array]:
    return {
        name.removeprefix(prefix): np.ascontiguousarray(array[index])
        for name, array in stacked.items()
        if name.startswith(prefix)
    }


def compare_golden(model: Model) -> Agreement | None:
    """Run the golden inputs and compare; None where there are none.

    Raises:
        ModelError: the file is damaged.
        EngineError: the engine failed on it.
        SampleError: what came out is not finite.

    """
    with contained(f"{model.id}: {model.folder.golden.name}", ModelError):
        return _compare(model, read_golden(model))


def check_golden(model: Model) -> Agreement | None:
    """Check that a model gives its golden outputs; see `compare_golden`.

    Raises:
        ModelError: it does not, or they cannot be compared.
        EngineError: the engine failed.
        SampleError: what came out is not finite.

    """
    agreement = compare_golden(model)
    if agreement is not None and not agreement.passed:
        raise ModelError(f"{model.id}: golden: {agreement.why}")
    return agreement


def _compare(model: Model, cases: Sequence[Case]) -> Agreement | None:
    if not cases:
        return None
    tolerance = model.manifest.trial.tolerance
    failures = []
    for index, case in enumerate(cases):
        outputs = model.raw(case.inputs)
        agreement = compare_outputs(model, case.inputs, case.outputs, outputs, tolerance)
        if not agreement.passed:
            failures.append(f"case {index}: {agreement.why}")
    count = "1 case agrees" if len(cases) == 1 else f"{len(cases)} cases agree"
    if failures and len(failures) > (1 - SHARE) * len(cases):
        more = f" (and {len(failures) - 1} more of {len(cases)} cases)" if len(failures) > 1 else ""
        return Agreement(False, failures[0] + more)
    return Agreement(True, count)
