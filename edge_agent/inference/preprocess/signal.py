"""From windows of a signal, and from ready model inputs, to tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError, SampleError
from ...core.types import Array, TensorSpec
from ...models.edge_impulse import Mfe, Spectral
from ...models.manifest import SIGNAL_LAYOUTS, InputSpec
from ...models.transforms import window_rate
from .inputs import column_inputs, constants, sample_input

if TYPE_CHECKING:
    from .edge_impulse import MfeFeatures, SpectralFeatures
    from .features import Features
    from .window_stats import WindowStats

    Transform = Features | MfeFeatures | SpectralFeatures | WindowStats

DTYPES = (
    *("uint8", "int8", "uint16", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)


@dataclass(frozen=True, slots=True, eq=False)
class SignalPreprocessor:
    """Makes the network's input from a window. Thread-safe."""

    tensor: TensorSpec
    shape: tuple[int, ...]
    """Shape of the tensor, with every size known."""
    window: tuple[int, int] | None
    """Rows and channels of a window; None: the sample is one ready model input."""
    channels_first: bool
    """Whether a window is transposed to channels x time."""
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    """One number, or one for each element along the sample's last axis."""
    constants: dict[str, Array]
    features: Transform | None = None
    """The transform of a window, if any; its frames (or channels) and features (or statistics)
    then count as rows and channels."""
    columns: tuple[TensorSpec, ...] = ()
    """The inputs that take a number of the row each; empty: `tensor` takes the whole row."""
    numbers: int = field(init=False)
    """How many numbers the tensor has."""
    scaled: bool = field(init=False)
    """Whether mean and scale change anything."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", prod(self.shape))
        object.__setattr__(self, "scaled", bool(self.mean.any() or (self.scale != 1).any()))

    @property
    def size(self) -> None:
        """None: there is no picture."""
        return

    def __call__(
        self,
        data: Array,
        *,
        stream: bool = False,  # noqa: ARG002 - no effect here
    ) -> tuple[dict[str, Array], None]:
        """Scale one sample and give it the network's shape.

        Args:
            data: (window, channels), or as many numbers as the network takes.
            stream: only matters for pictures.
        """
        if self.window is not None and data.shape != self.window:
            raise SampleError(
                f"window: expected {self.window[0]} rows of {self.window[1]} channels, "
                f"found {list(data.shape)}"
            )
        if self.features is None and data.size != self.numbers:
            raise SampleError(
                f"sample: expected {self.numbers} numbers for input {self.tensor}, "
                f"found {list(data.shape)}"
            )
        values = np.asarray(data, np.float32)
        if not np.isfinite(values).all():
            raise SampleError("sample: holds values that are not finite (NaN or infinity)")
        if self.features is not None:
            values = self.features(values)
        if self.window is None and self.mean.ndim:
            values = values.reshape(self.shape)
        if self.scaled:
            values = (values - self.mean) / self.scale
        if self.channels_first:
            values = values.T
        made = {
            tensor.name: _cast(values[:, place : place + 1], tensor)
            for place, tensor in enumerate(self.columns)
        } or {self.tensor.name: _cast(values, self.tensor).reshape(self.shape)}
        return {**made, **self.constants}, None


def signal_preprocessor(spec: InputSpec, inputs: tuple[TensorSpec, ...]) -> SignalPreprocessor:
    """Check that window, manifest, and network fit each other.

    Raises:
        ModelError: they do not; says expected and found.
    """
    columns = column_inputs(spec, inputs)
    row = TensorSpec("columns", (1, len(columns)), "float32")
    tensor = row if columns else sample_input(spec, inputs)
    features = transform_of(spec, tensor)
    for each in columns or (tensor,):
        if each.dtype not in DTYPES:
            raise ModelError(
                f"input {each}: expected one of {', '.join(DTYPES)}, found {each.dtype}"
            )
    open_after_batch = [size for size in tensor.shape[1:] if size is None]
    if open_after_batch:
        raise ModelError(
            f"input {tensor}: leaves sizes open; the manifest's window and channels must give them"
        )
    shape = tuple(1 if size is None else size for size in tensor.shape)
    if spec.window is None:
        mean, scale = _ready(spec, "mean", shape), _ready(spec, "scale", shape)
        return SignalPreprocessor(tensor, shape, None, False, mean, scale, constants(spec, inputs))
    layout = spec.layout if spec.layout in SIGNAL_LAYOUTS else "ct"
    if features is None:
        window = made = (spec.window, _channels(spec, tensor, shape))
    else:
        window, made = features.window, features.shape
        if prod(made) != prod(shape):
            raise ModelError(
                f"input.transform: {spec.transform} makes {features.words} "
                f"of a window of {spec.window} samples, found input {tensor}"
            )
    _check_layout(layout, made, tensor, shape)
    mean, scale = (
        np.array(spec.per_channel(name, made[1]), np.float32) for name in ("mean", "scale")
    )
    ct, fixed = layout.endswith("ct"), constants(spec, inputs)
    return SignalPreprocessor(tensor, shape, window, ct, mean, scale, fixed, features, columns)


def transform_of(spec: InputSpec, tensor: TensorSpec) -> Transform | None:
    """Prepare the transform of a window, if the manifest asks for one.

    Raises:
        ModelError: the parameters contradict each other, or do not fit.
    """
    if spec.transform == "none":
        return None
    rate = window_rate(spec.resample_hz, spec.rate_hz, spec.every)
    if spec.transform == "stats" and spec.stats is not None and spec.window is not None:
        from .window_stats import WindowStats

        of = spec.stats.of
        channels = len(spec.channels) or max(1, prod(n or 1 for n in tensor.shape) // len(of))
        return WindowStats((spec.window, channels), of, rate)
    if spec.transform == "spectral" and spec.window is not None:
        from .edge_impulse import spectral_of

        return spectral_of(
            spec.spectral or Spectral(), (spec.window, len(spec.channels) or 1), rate or 0.0
        )
    if len(spec.channels) > 1:
        raise ModelError(
            f"input.channels: transform {spec.transform!r} takes 1 channel, "
            f"found {len(spec.channels)}"
        )
    if spec.transform == "mfe" and spec.window is not None:
        from .edge_impulse import mfe_of

        return mfe_of(spec.mfe or Mfe(), spec.window, rate or 0.0)
    from .features import features_of

    return features_of(spec)


def _cast(values: NDArray[np.float32], tensor: TensorSpec) -> Array:
    """Give numbers the type of an input."""
    kind = np.dtype(tensor.dtype)
    if kind.kind in "iu":
        # In doubles: float32 cannot represent the bounds of int32.
        bounds = np.iinfo(kind)
        rounded = np.clip(np.rint(values.astype(np.float64)), bounds.min, bounds.max)
        return np.ascontiguousarray(rounded.astype(kind))
    if kind != np.float16:
        return np.ascontiguousarray(values, kind)
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(values, kind)
    if not np.isfinite(cast).all():
        raise SampleError(f"sample: goes beyond what float16 can hold (input {tensor})")
    return cast


def _channels(spec: InputSpec, tensor: TensorSpec, shape: tuple[int, ...]) -> int:
    """Return the number of channels: those named, or as many as the network's input holds."""
    total, rows = prod(shape), spec.window or 1
    channels = len(spec.channels) or total // rows
    if channels * rows != total:
        named = f"{len(spec.channels)} channels" if spec.channels else "whole channels"
        raise ModelError(
            f"input.window: {rows} rows of {named} do not fit input {tensor}: "
            f"expected {total} numbers" + (f", found {rows * channels}" if spec.channels else "")
        )
    return channels


def _check_layout(
    layout: str, window: tuple[int, int], tensor: TensorSpec, shape: tuple[int, ...]
) -> None:
    """Check that the network's axes are in the layout's order; axes of size 1 do not count."""
    time, channels = window
    wanted = {
        "ct": (channels, time),
        "tc": (time, channels),
        "flat-ct": (time * channels,),
        "flat-tc": (time * channels,),
    }
    found = _beyond_one(shape)
    if _beyond_one(wanted[layout]) == found:
        return
    fitting = [name for name in SIGNAL_LAYOUTS if _beyond_one(wanted[name]) == found]
    hint = f"; layout {' or '.join(map(repr, fitting))} would fit" if fitting else ""
    raise ModelError(
        f"input.layout: {layout!r} makes {list(wanted[layout])} of a window of {time} rows and "
        f"{channels} channels, found input {tensor}{hint}"
    )


def _beyond_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _ready(
    spec: InputSpec, name: Literal["mean", "scale"], shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return mean or scale of ready inputs: one number, or one along the last axis."""
    given = getattr(spec, name)
    several = not isinstance(given, int | float) and len(given) > 1
    if several and not spec.is_signal and len(shape) > 2 and len(given) != shape[-1]:
        raise ModelError(
            "input: the source gives rows of numbers, but the manifest describes pictures "
            f"({name} of {len(given)} colors)"
        )
    values = np.array(spec.per_channel(name, shape[-1] if several and shape else 1), np.float32)
    return values if several else values[0].reshape(())
