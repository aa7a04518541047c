"""Which outputs of a network are a result, and which a state that the next window takes up."""

from __future__ import annotations

import numpy as np

from ..core.errors import ModelError
from ..core.types import TensorSpec
from ..models.manifest import InputSpec
from .decode.decoder import fits
from .engines.engine import Engine


def result_outputs(spec: InputSpec, engine: Engine) -> tuple[TensorSpec, ...]:
    """Return the outputs that are a result: those that no `input.state` takes up.

    Raises:
        ModelError: an output that it names is not there, or does not fit its input; or a state is
            given as a constant.
    """
    outputs = {output.name: output for output in engine.outputs}
    inputs = {one.name: one for one in engine.inputs}
    for name, left in spec.state.items():
        if left not in outputs:
            raise ModelError(
                f"input.state.{name}: the model has no output {left!r}; its outputs: "
                f"{', '.join(map(str, engine.outputs))}"
            )
        takes, gives = inputs[name], outputs[left]
        if takes.dtype != gives.dtype or not fits(gives.shape, takes.shape):
            raise ModelError(f"input.state.{name}: output {gives} does not fit input {takes}")
    _refuse_forgotten_state(spec, engine)
    return tuple(one for one in engine.outputs if one.name not in spec.state.values())


def _refuse_forgotten_state(spec: InputSpec, engine: Engine) -> None:
    """Check that no constant is a state: all zeros, and made anew by an output beside the result.

    With it only the first window of a recording would be right, and nothing would show it.
    """
    if not spec.is_signal or len(engine.outputs) < 2:
        return
    for takes in engine.inputs:
        value = np.asarray(spec.fixed.get(takes.name, 1))
        if len(takes.shape) < 2 or value.any():
            continue
        for gives in engine.outputs:
            if takes.dtype == gives.dtype and fits(gives.shape, takes.shape):
                raise ModelError(
                    f"input.fixed: {takes.name}: zeros for input {takes}, whose next value output "
                    f"{gives} gives: a state; write [input.state] {takes.name} = {gives.name!r}"
                )
