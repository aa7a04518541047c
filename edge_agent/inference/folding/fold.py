"""The quantization at a network's input, computed before the network instead of in it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np

from ...core.frozen import record
from ...core.types import Array, Tensors, TensorSpec

Axes = tuple[int, int, int, int]
LAST: Axes = (0, 2, 3, 1)
FIRST: Axes = (0, 3, 1, 2)


@record
class Fold:
    """The quantization of one input: q = saturate(round(x / scale) + zero_point).

    The formula is that of the ONNX operator QuantizeLinear; halves are rounded to even.
    """

    name: str
    """Name of the input, which does not change."""
    dtype: Literal["uint8", "int8"]
    """Its type now; it was float32."""
    scale: float
    """Exactly representable as float32."""
    zero_point: int
    turned: bool = False
    """Whether it takes colors last, (n, h, w, c), where the network has them before the rows."""

    def quantize(self, values: Array) -> Array:
        """Return the steps of float32 numbers, as the operation that was cut off would.

        Args:
            values: finite float32 numbers, of any shape.
        """
        limits = np.iinfo(self.dtype)
        with np.errstate(over="ignore"):  # float overflow is beyond the last step, too
            steps = values / np.float32(self.scale)
        np.rint(steps, out=steps)
        # Before the zero point is added: the sum might not be representable.
        np.clip(steps, limits.min - self.zero_point, limits.max - self.zero_point, out=steps)
        steps += np.float32(self.zero_point)
        return steps.astype(self.dtype)

    def restore(self, steps: Array) -> Array:
        """Return float32 numbers, of the same shape, that are quantized to these steps."""
        return (steps.astype(np.float32) - np.float32(self.zero_point)) * np.float32(self.scale)

    def specs(self, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Return the inputs of the folded network, given those of the original."""
        return tuple(
            replace(spec, dtype=self.dtype, shape=self._turn(spec.shape, LAST))
            if spec.name == self.name
            else spec
            for spec in inputs
        )

    def declared(self, taken: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Return the inputs of the original network, given those of the folded one."""
        return tuple(
            replace(spec, dtype="float32", shape=self._turn(spec.shape, FIRST))
            if spec.name == self.name
            else spec
            for spec in taken
        )

    def _turn(self, shape: tuple[int | None, ...], axes: Axes) -> tuple[int | None, ...]:
        return tuple(shape[axis] for axis in axes) if self.turned else shape

    def feed(self, tensors: Tensors) -> Tensors:
        """Return tensors for the folded network: those for the original are quantized."""
        given = tensors.get(self.name)
        if given is None or given.dtype != np.float32:
            return tensors
        steps = self.quantize(given)
        if self.turned and steps.ndim == 4:  # otherwise it does not fit, which the engine reports
            steps = np.ascontiguousarray(steps.transpose(LAST))
        return {**tensors, self.name: steps}

    def unfold(self, tensors: Tensors) -> Tensors:
        """Return new tensors for the original network, from those for the folded one."""
        given = tensors.get(self.name)
        if given is None or given.dtype != self.dtype:
            return tensors
        floats = self.restore(given)
        if self.turned:
            floats = np.ascontiguousarray(floats.transpose(FIRST))
        return {**tensors, self.name: floats}


def note(fold: Fold | None) -> dict[str, Any] | None:
    """Return a fold as an entry in the table of a prepared form."""
    return None if fold is None else asdict(fold)
