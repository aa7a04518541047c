"""Decides a network's inputs: the one for the sample, constants for the others, open sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.errors import ModelError
from ...core.types import Array, Kind, TensorSpec
from ...models.manifest import SIGNAL_LAYOUTS, InputSpec
from ..decode.decoder import fits
from ..engines.engine import Engine, FixShapes

Shape = tuple[int, ...]
OpenShape = tuple[int | None, ...]


def sample_input(spec: InputSpec, inputs: tuple[TensorSpec, ...]) -> TensorSpec:
    """Find the input that takes the sample: the one named, or the only one that is not constant.

    Raises:
        ModelError: none or several are left, or the manifest names one that does not exist.
    """
    known = {tensor.name: tensor for tensor in inputs}
    for name in spec.given:
        if name not in known:
            raise ModelError(
                f"{_given_by(spec, name)}: the model has no input {name!r}; "
                f"its inputs: {_listed(inputs)}"
            )
    if spec.tensor is not None:
        if spec.tensor not in known:
            raise ModelError(
                f"input.tensor: the model has no input {spec.tensor!r}; "
                f"its inputs: {_listed(inputs)}"
            )
        if spec.tensor in spec.given:
            key = _given_by(spec, spec.tensor)
            raise ModelError(f"input.tensor: {spec.tensor!r} is also given in {key}")
        chosen = known[spec.tensor]
    else:
        free = [tensor for tensor in inputs if tensor.name not in spec.given]
        pictures = [tensor for tensor in free if not _takes_a_size(tensor)]
        if len(pictures) == 1 and len(free) > 1:
            size = next(tensor for tensor in free if _takes_a_size(tensor))
            raise ModelError(_needs_a_constant(spec, size, pictures[0]))
        if len(free) != 1:
            raise ModelError(
                f"input.tensor: expected 1 input that is not in input.fixed, found {len(free)}: "
                f"{_listed(tuple(free)) or 'none'}; name the one that takes the sample"
            )
        chosen = free[0]
    for tensor in inputs:
        if tensor is not chosen and tensor.name not in spec.given:
            raise ModelError(_needs_a_constant(spec, tensor, chosen))
    return chosen


def column_inputs(spec: InputSpec, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return the inputs that take a number of a row each, in order; () if one takes the whole row.

    scikit-learn's converters make such a network of a table whose columns have names.
    """
    free = tuple(tensor for tensor in inputs if tensor.name not in spec.given)
    single = all(tensor.shape in {(None, 1), (1, 1)} for tensor in free)
    if spec.tensor is not None or len(free) < 2 or not single:
        return ()
    return free if spec.window == 1 and len(spec.channels) == len(free) else ()


def _given_by(spec: InputSpec, name: str) -> str:
    """Return the manifest key that gives an input its value."""
    return "input.fixed" if name in spec.fixed else "input.state"


def _takes_a_size(tensor: TensorSpec) -> bool:
    """Whether an input looks like that of DETR's descendants for the picture's size."""
    return (
        tensor.dtype in {"int32", "int64"}
        and len(tensor.shape) == 2
        and tensor.shape[0] in {1, None}
        and tensor.shape[1] == 2
    )


def _needs_a_constant(spec: InputSpec, tensor: TensorSpec, picture: TensorSpec) -> str:
    """Return the error for an input without a value, with the fix if that is known."""
    text = f"input.fixed: input {tensor} needs a constant value"
    if not _takes_a_size(tensor) or len(picture.shape) != 4:
        return text
    axes = picture.shape[1:3] if spec.layout == "nhwc" else picture.shape[2:4]
    height, width = axes[0] or spec.height, axes[1] or spec.width
    bare = tensor.name.replace("_", "a").replace("-", "a")  # TOML takes these without quotes
    key = tensor.name if bare.isascii() and bare.isalnum() else f'"{tensor.name}"'
    if width and height:
        return (
            f"{text}; if it is the size of the picture, write fixed = {{ {key} = [[{width}, "
            f"{height}]] }}, the network's own width and height: boxes come in its pixels"
        )
    return (
        f"{text}; if it is the size of the picture, give the network's own as input.width and "
        f"input.height, and as fixed = {{ {key} = [[width, height]] }}: boxes come in its pixels"
    )


def constants(spec: InputSpec, inputs: tuple[TensorSpec, ...]) -> dict[str, Array]:
    """Return the arrays of `input.fixed`, with the shapes and types that the network expects.

    Inputs in `input.state` are zeros, their value before the first window.

    Raises:
        ModelError: a value is not numbers, or does not fit its input.
    """
    return {
        tensor.name: _constant(tensor, spec.fixed.get(tensor.name, 0))
        for tensor in inputs
        if tensor.name in spec.given
    }


def fixed_shapes(spec: InputSpec, kind: Kind) -> FixShapes:
    """Return a function that decides the sizes a network leaves open, from the manifest alone.

    The batch becomes 1; height and width come from `input.height` and `input.width`; a window from
    `input.window` and the number of `input.channels`; other inputs from their `input.fixed` value.
    The function raises ModelError if the manifest does not give a size.
    """

    def decide(inputs: tuple[TensorSpec, ...]) -> Mapping[str, Shape]:
        if (kind == "text") != bool(spec.tokenizer):
            takes = "takes texts" if spec.tokenizer else "takes no texts"
            raise ModelError(f"input.tokenizer: the model {takes}, and is given a {kind}")
        if kind == "picture":
            refuse_windows(spec)
        if kind == "text":
            return {one.name: _open_text(spec, one) for one in inputs if None in one.shape}
        if columns := column_inputs(spec, inputs):
            return {tensor.name: (1, 1) for tensor in columns if None in tensor.shape}
        chosen = sample_input(spec, inputs)
        shapes: dict[str, Shape] = {}
        for tensor in inputs:
            if None not in tensor.shape:
                continue
            if tensor.name in spec.state:
                # An open size is the batch, on whichever axis.
                shapes[tensor.name] = tuple(size or 1 for size in tensor.shape)
            elif tensor is not chosen:
                value = _numbers(tensor, spec.fixed[tensor.name])
                # A single number fills a mask, even if its batch is open.
                single = value.ndim == 0 and len(tensor.shape) > 2 and None not in tensor.shape[1:]
                wanted = (1, *tensor.shape[1:]) if single else value.shape
                shapes[tensor.name] = _fill(tensor, wanted, "input.fixed")
            elif kind == "picture":
                shapes[tensor.name] = _open_picture(spec, tensor)
            else:
                shapes[tensor.name] = _open_signal(spec, tensor)
        return shapes

    return decide


def refuse_windows(spec: InputSpec) -> None:
    """Check that a manifest does not describe windows, where the source gives pictures.

    Raises:
        ModelError: it does.
    """
    if spec.is_signal:
        raise ModelError(
            "input: the source gives pictures, but the manifest describes windows of a signal "
            "(channels, window or layout)"
        )


def _open_text(spec: InputSpec, tensor: TensorSpec) -> Shape:
    if spec.max_tokens is None and len(tensor.shape) == 2 and tensor.shape[1] is None:
        raise ModelError(
            f"input.max_tokens: missing; input {tensor} leaves open how many tokens a text has at "
            "most (sentence-transformers: max_seq_length)"
        )
    return _fill(tensor, (1, spec.max_tokens), "input.max_tokens")


def _open_picture(spec: InputSpec, tensor: TensorSpec) -> Shape:
    rank = len(tensor.shape)
    if rank not in {3, 4}:
        raise ModelError(f"input {tensor}: expected a picture of 3 or 4 dimensions, found {rank}")
    height, width = ("input.height", spec.height), ("input.width", spec.width)
    channels = ("", 1 if spec.color == "gray" else 3)
    picture = (height, width, channels) if spec.layout == "nhwc" else (channels, height, width)
    axes = [*[("", 1)] * (rank - 3), *picture]
    missing = [
        key
        for have, (key, want) in zip(tensor.shape, axes, strict=True)
        if have is None and want is None
    ]
    if missing:
        raise ModelError(
            f"{' and '.join(missing)}: missing; input {tensor} leaves its size open, "
            "the manifest must give it"
        )
    return _fill(tensor, tuple(want for _, want in axes), "input")


def _open_signal(spec: InputSpec, tensor: TensorSpec) -> Shape:
    rank = len(tensor.shape)
    time, channels = spec.window, len(spec.channels) or None
    layout = spec.layout if spec.layout in SIGNAL_LAYOUTS else "ct"
    wanted: OpenShape
    if tensor.shape[0] is None and None not in tensor.shape[1:]:
        wanted = (1, *tensor.shape[1:])
    elif layout.startswith("flat"):
        total = None if time is None or channels is None else time * channels
        wanted = (1,) * (rank - 1) + (total,)
    elif rank >= 2:
        window = (channels, time) if layout == "ct" else (time, channels)
        wanted = (1,) * (rank - 2) + window
    else:
        wanted = (time,)
    if any(have is None and want is None for have, want in zip(tensor.shape, wanted, strict=True)):
        raise ModelError(
            f"input.window and input.channels: missing; input {tensor} leaves sizes open, "
            "the manifest must give them"
        )
    return _fill(tensor, wanted, f"input.layout {layout!r}")


def _fill(tensor: TensorSpec, wanted: OpenShape, key: str) -> Shape:
    """Return a shape with each size from the network, or from *wanted* if it is open."""
    if len(wanted) != len(tensor.shape):
        found = f"one of {len(wanted)}" if wanted else "a single number, which fills only a mask "
        found += "" if wanted else "of known sizes: export it with these, or write out the array"
        raise ModelError(
            f"{key}: input {tensor} takes an array of {len(tensor.shape)} dimensions, found {found}"
        )
    sizes = [
        want if have is None else have for have, want in zip(tensor.shape, wanted, strict=True)
    ]
    return tuple(size for size in sizes if size is not None)


def _constant(tensor: TensorSpec, given: Any) -> Array:
    value = _numbers(tensor, given)
    sizes = [1 if size is None else size for size in tensor.shape]
    wanted = np.dtype(tensor.dtype)
    with np.errstate(all="ignore"):
        cast = value.astype(wanted)
    if not np.issubdtype(wanted, np.floating) and not np.array_equal(cast, value):
        raise ModelError(f"input.fixed: {tensor.name}: {given!r} does not fit {tensor.dtype}")
    if value.ndim == 0:
        return np.full(sizes, cast)
    if value.size != int(np.prod(sizes)):
        raise ModelError(
            f"input.fixed: {tensor.name}: expected {tensor}, found an array {list(value.shape)}"
        )
    return np.asarray(cast.reshape(sizes), order="C")


def _numbers(tensor: TensorSpec, given: Any) -> Array:
    try:
        value = np.asarray(given)
        np.dtype(tensor.dtype)
    except (ValueError, TypeError):
        raise ModelError(
            f"input.fixed: {tensor.name}: expected a number or nested lists of equal length "
            f"for {tensor}"
        ) from None
    if value.dtype.kind not in "biuf":
        raise ModelError(f"input.fixed: {tensor.name}: expected numbers, found {given!r}")
    return value


def _listed(inputs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(str(tensor) for tensor in inputs)


def result_outputs(spec: InputSpec, engine: Engine) -> tuple[TensorSpec, ...]:
    """Return the outputs that are results: those that `input.state` does not use.

    Raises:
        ModelError: an output that it names does not exist, or does not fit its input; or a state
            is given as a constant.
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
    """Check that no constant is really a state: all zeros, with a next value among the outputs.

    Otherwise only the first window of a recording would be right, and nothing would show it.
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
