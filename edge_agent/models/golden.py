"""The file of golden inputs and outputs beside a model, read as untrusted: bounded, no pickles.

Whether a network gives these outputs is checked by `inference.golden`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.containment import contained
from ..core.errors import ModelError
from ..core.json_text import read_json
from ..core.types import Array, TensorSpec
from .files.facts import NetworkFacts
from .manifest import ModelFolder
from .npz import read_npz

MOST_BYTES = 2**20
"""Size limit for a file of golden answers."""
MOST_ANSWERS = 64
MOST_TOKENS = 256
"""Limit for each golden answer: they are generated at every start of the model."""


def check_file(folder: ModelFolder, facts: NetworkFacts) -> None:
    """Check that a model's golden file, if there is one, fits its network.

    Raises:
        ModelError: it is damaged, or its arrays do not fit; begins with the file's path.
    """
    path = folder.golden
    if path.exists() and folder.manifest.task == "generate":
        read_answers(path)
    elif path.exists():
        where = str(path)
        with contained(where, ModelError):
            arrays = _named(path, where, facts.inputs, facts.outputs)
            # Only inputs: files may omit shapes of outputs, or state them wrongly, and engines
            # still run them.
            inputs = [_as_given(spec, arrays[f"input/{spec.name}"]) for spec in facts.inputs]
            given = {f"input/{spec.name}" for spec in inputs}
            _stacked({name: arrays[name] for name in given}, inputs, where)


def read_answers(path: Path) -> list[tuple[dict[str, Any], str]]:
    """Read the golden answers of a language model: questions, each with the expected text.

    Raises:
        ModelError: the file is damaged, or has none.
    """
    found: Any = None
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= MOST_BYTES:
            found = read_json(path.read_bytes())
    cases = found if isinstance(found, list) else []
    if not 0 < len(cases) <= MOST_ANSWERS or not all(map(_is_answer, cases)):
        raise ModelError(
            f"{path}: expected a list of up to {MOST_ANSWERS} questions, each with its answer: "
            f'{{"messages" or "prompt", "max_tokens" (up to {MOST_TOKENS}), "text"}}'
        )
    return [({key: case[key] for key in case if key != "text"}, case["text"]) for case in cases]


def _is_answer(case: Any) -> bool:
    if not isinstance(case, dict) or not isinstance(case.get("text"), str):
        return False
    most = case.get("max_tokens")
    return type(most) is int and 0 < most <= MOST_TOKENS and "temperature" not in case


def _as_given(spec: TensorSpec, array: Array) -> TensorSpec:
    """Return an input as an engine may take it: OpenVINO takes floats for an IR of half floats."""
    both_float = spec.dtype.startswith("float") and array.dtype.kind == "f"
    return replace(spec, dtype=array.dtype.name) if both_float else spec


def read_arrays(
    path: Path, where: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> dict[str, Array]:
    """Read the arrays input/<tensor> and output/<tensor>, with the shapes that the specs give.

    Returns:
        Arrays by name, each with a leading axis of cases, of the same length in all.

    Raises:
        ModelError: the file is damaged, or its arrays do not fit the network.
    """
    return _stacked(_named(path, where, inputs, outputs), [*inputs, *outputs], where)


def _named(
    path: Path, where: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> dict[str, Array]:
    """Read the arrays and check their names."""
    if not path.is_file():
        raise ModelError(f"{where}: is no plain file; put the file itself there")
    names = [f"input/{spec.name}" for spec in inputs]
    known = {*names, *(f"output/{spec.name}" for spec in outputs)}
    arrays = read_npz(path, where)
    unknown = sorted(set(arrays) - known)
    missing = sorted(set(names) - set(arrays))
    if unknown or missing:
        raise ModelError(
            f"{where}: expected {', '.join(sorted(known))}; "
            f"{'lacks ' + ', '.join(missing) if missing else 'unknown: ' + ', '.join(unknown)}"
        )
    if not any(name.startswith("output/") for name in arrays):
        raise ModelError(f"{where}: holds no output/<tensor>")
    return arrays


def _stacked(
    arrays: Mapping[str, Array], specs: Sequence[TensorSpec], where: str
) -> dict[str, Array]:
    """Check arrays against their tensors; give each a case axis, of the same length in all."""
    by_name = {f"{part}/{spec.name}": spec for spec in specs for part in ("input", "output")}
    stacked = {
        name: _stack(array, by_name[name], f"{where}: {name}") for name, array in arrays.items()
    }
    counts = {name: len(array) for name, array in stacked.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ModelError(f"{where}: every array needs the same number of cases, found {counts}")
    return stacked


def _stack(array: Array, spec: TensorSpec, where: str) -> Array:
    """Check an array against its tensor; add a case axis if it has none."""
    rank = len(spec.shape)
    if array.ndim not in {rank, rank + 1}:
        raise ModelError(
            f"{where}: expected {rank} axes, or {rank + 1} with one of cases; found {array.ndim}"
        )
    stacked = array if array.ndim == rank + 1 else array[None]
    fits = all(
        want in {None, have} for want, have in zip(spec.shape, stacked.shape[1:], strict=True)
    )
    # Outputs from another engine may be floats of another width.
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
