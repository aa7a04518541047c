"""Golden inputs: a model's outputs on this device, compared with those where it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.containment import contained
from ..core.errors import ModelError
from ..core.types import Array, TensorSpec
from ..models.golden import read_arrays
from .agreement import SHARE, Agreement, compare_outputs
from .model import Model


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One golden input and its outputs."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]


def read_golden(model: Model) -> list[Case]:
    """Read the golden cases of a model; an empty list if it has no golden file.

    Raises:
        ModelError: the file is damaged, or its arrays do not fit the network.
    """
    path = model.folder.golden
    if not path.exists():
        return []
    engine = model.engine
    return read_cases(path, f"{model.id}: {path.name}", engine.inputs, engine.outputs)


def read_cases(
    path: Path, where: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> list[Case]:
    """Read the cases of a golden file; the arguments are those of `read_arrays`."""
    stacked = read_arrays(path, where, inputs, outputs)
    return [
        Case(_part(stacked, "input/", index), _part(stacked, "output/", index))
        for index in range(len(next(iter(stacked.values()))))
    ]


def _part(stacked: Mapping[str, Array], prefix: str, index: int) -> dict[str, Array]:
    return {
        name.removeprefix(prefix): np.asarray(array[index], order="C")
        for name, array in stacked.items()
        if name.startswith(prefix)
    }


def compare_golden(model: Model) -> Agreement | None:
    """Run the golden inputs and compare; returns None if there are none.

    Raises:
        ModelError: the file is damaged.
        EngineError: the engine failed on it.
        SampleError: the outputs are not finite.
    """
    with contained(f"{model.id}: {model.folder.golden.name}", ModelError):
        return _compare(model, read_golden(model))


def check_golden(model: Model) -> Agreement | None:
    """Check that a model gives its golden outputs; see `compare_golden`.

    Raises:
        ModelError: it does not, or they cannot be compared.
        EngineError: the engine failed.
        SampleError: the outputs are not finite.
    """
    agreement = compare_golden(model)
    if agreement is not None and not agreement.passed:
        raise ModelError(f"{model.id}: golden: {agreement.why}")
    return agreement


def _compare(model: Model, cases: Sequence[Case]) -> Agreement | None:
    if not cases:
        return None
    failures = []
    for index, case in enumerate(cases):
        outputs = model.run(case.inputs)
        agreement = compare_outputs(model, case.inputs, case.outputs, outputs)
        if not agreement.passed:
            failures.append(f"case {index}: {agreement.why}")
    count = "1 case agrees" if len(cases) == 1 else f"{len(cases)} cases agree"
    if failures and len(failures) > (1 - SHARE) * len(cases):
        more = f" (and {len(failures) - 1} more of {len(cases)} cases)" if len(failures) > 1 else ""
        return Agreement(False, failures[0] + more, 0.0)
    return Agreement(True, count)
