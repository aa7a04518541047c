"""What a decoder is built from, and how it finds and reads the outputs it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from importlib import import_module
from math import isfinite, prod
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError, SampleError
from ...core.frozen import record
from ...core.text import count_trouble
from ...core.types import Anomaly, Array, Findings, Tensors, TensorSpec
from ...models.decoders import DECODERS
from ...models.files.steps import Steps
from ...models.manifest import Manifest

Floats = NDArray[np.float32]
Pattern = tuple[int | None, ...]
"""A shape; None stands for any size."""


class Decoder(Protocol):
    """Built once for a model, after checks; called for every inference, from any thread."""

    def __call__(self, outputs: Tensors, inputs: Tensors, threshold: float, /) -> Findings:
        """Decode the outputs of one inference.

        Args:
            outputs: the network's outputs, as the engine returned them.
            inputs: the network's inputs, for decoders that compare the two.
            threshold: least score of reported findings.

        Returns:
            Findings; boxes are in pixels of the network's input, and the caller maps them back.

        Raises:
            SampleError: the outputs are not finite, or not as the network declared them.
        """


@record
class Output:
    """One output that a decoder reads, as floats whatever its type."""

    spec: TensorSpec
    patterns: tuple[Pattern, ...]
    scale: float
    zero_point: float

    def read(self, outputs: Tensors) -> Floats:
        """Return the tensor as floats; integers become (value - zero_point) * scale.

        Raises:
            SampleError: the decoder cannot read its shape.
        """
        return floats_of(self.array(outputs), self.scale, self.zero_point)

    def array(self, outputs: Tensors) -> Array:
        """Return the tensor unchanged, after checking sizes that the network left open."""
        array = outputs[self.spec.name]
        if not any(fits(array.shape, pattern) for pattern in self.patterns):
            raise SampleError(
                f"output {self.spec.name}: expected {_or(self.patterns)}, found {list(array.shape)}"
            )
        return array


@record
class Network:
    """A network's inputs and outputs, and its manifest."""

    manifest: Manifest
    labels: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    size: tuple[int, int] | None
    """Width and height of the picture in the input; None if it takes no picture."""
    gallery: Path | None = None
    """File of labeled vectors, if there is one."""
    step: float = 1.0
    """An integer of the input in units of `input.scale` as the model's maker gave it; 1: it is a
    float, or `scale` is of integers."""
    steps: Steps = field(default_factory=dict)
    """Those of outputs, where they differ from each other."""

    def picture_size(self) -> tuple[int, int]:
        """Return the width and height of the picture in the input, which a detector needs.

        Raises:
            ModelError: the network takes no picture.
        """
        if self.size is None:
            found = "the input takes none"
            if not self.manifest.input.is_signal:
                found = "the source gives rows of numbers"
            raise ModelError(
                f"output.decoder: {self.manifest.decoder!r} finds boxes in pictures, but {found}"
            )
        return self.size

    def check_roles(self, *roles: str) -> None:
        """Check that `output.names` names only roles of this decoder and existing outputs.

        Raises:
            ModelError: it does not; lists the known ones.
        """
        known = [output.name for output in self.outputs]
        for role, name in self.manifest.output.names.items():
            if role not in roles:
                has = f"has the roles {', '.join(roles)}" if roles else "has no roles"
                raise ModelError(
                    f"output.names: {role!r} is not a role; decoder {self.manifest.decoder!r} {has}"
                )
            if name not in known:
                raise ModelError(
                    f"output.names.{role}: the model has no output {name!r}; "
                    f"its outputs: {', '.join(known)}"
                )

    def find(
        self,
        role: str,
        patterns: Sequence[Pattern],
        *,
        names: Sequence[str] = (),
        without: Sequence[TensorSpec] = (),
    ) -> Output | None:
        """Find the output of a role: the one named in `output.names`, else by name and shape.

        If several have the shape, the usual *names* decide (compared ignoring case and
        TensorFlow's ":0"); if those do not decide, None is returned. Outputs in *without* already
        have other roles.

        Raises:
            ModelError: the one named in `output.names` has another shape.
        """
        given = self.manifest.output.names.get(role)
        taken = {name for other, name in self.manifest.output.names.items() if other != role}
        fitting = [
            output
            for output in self.outputs
            if output.name not in taken
            and output not in without
            and any(fits(output.shape, pattern) for pattern in patterns)
        ]
        if given is not None:
            for output in fitting:
                if output.name == given:
                    return self._output(output, patterns)
            found = next(output for output in self.outputs if output.name == given)
            if not found.shape:
                return self._undeclared(found, patterns)
            raise ModelError(f"output.names.{role}: expected {_or(patterns)}, found {found}")
        if len(fitting) > 1:
            fitting = [output for output in fitting if is_called(output, names)]
        return self._output(fitting[0], patterns) if len(fitting) == 1 else None

    def need(
        self,
        role: str,
        patterns: Sequence[Pattern],
        *,
        names: Sequence[str] = (),
        without: Sequence[TensorSpec] = (),
    ) -> Output:
        """Find the output of a role that the decoder requires.

        Raises:
            ModelError: no output fits, or several do; says expected and found.
        """
        output = self.find(role, patterns, names=names, without=without)
        if output is None and len(self.outputs) == 1 and not self.outputs[0].shape:
            output = self._undeclared(self.outputs[0], patterns)
        if output is None:
            raise ModelError(
                f"output.decoder: {self.manifest.decoder!r} expects {role} of shape "
                f"{_or(patterns)}, found {', '.join(map(str, self.outputs)) or 'no outputs'}; "
                f"if it is one of these, name it: output.names.{role}"
            )
        return output

    def _undeclared(self, spec: TensorSpec, patterns: Sequence[Pattern]) -> Output:
        """Take an output that is declared as a single number for one of the first pattern.

        So paddle2onnx declares what it knows no shape of; what comes is checked as it comes.
        """
        return self._output(replace(spec, shape=patterns[0]), patterns)

    def _output(self, spec: TensorSpec, patterns: Sequence[Pattern]) -> Output:
        given = self.manifest.output
        scale, zero_point = self.steps.get(spec.name, (given.scale, given.zero_point))
        return Output(spec, tuple(patterns), scale, zero_point)


def floats_of(array: Array, scale: float, zero_point: float) -> Floats:
    """Return a tensor as floats; integers become (value - zero_point) * scale."""
    if array.dtype == np.float32:
        return array
    if array.dtype.kind in "iub":
        return (array.astype(np.float32) - np.float32(zero_point)) * np.float32(scale)
    return array.astype(np.float32)


def is_called(output: TensorSpec, names: Sequence[str]) -> bool:
    """Whether an output has one of these names, ignoring case and TensorFlow's ":0"."""
    return output.name.lower().removesuffix(":0") in {name.lower() for name in names}


def fits(shape: tuple[int | None, ...], pattern: Pattern) -> bool:
    """Whether a shape matches a pattern; a size that is open in either matches any."""
    if len(shape) != len(pattern):
        return False
    return all(
        want is None or have is None or have == want
        for have, want in zip(shape, pattern, strict=True)
    )


def count_of(spec: TensorSpec) -> int | None:
    """Count a tensor's elements, with 1 for an open batch; None if another size is open."""
    sizes = (spec.shape[0] or 1, *spec.shape[1:]) if len(spec.shape) > 1 else spec.shape
    known = [size for size in sizes if size is not None]
    return prod(known) if len(known) == len(sizes) else None


def check_rows(output: Output, found: int, other: Output, count: int) -> None:
    """Check that two outputs that belong together have the same number of rows.

    Raises:
        SampleError: sizes that the network left open differ.
    """
    if found != count:
        raise SampleError(
            f"output {output.spec.name}: expected {count} rows as output {other.spec.name} has, "
            f"found {found}"
        )


def judged(score: float, threshold: float, label: str = "") -> Anomaly:
    """Judge a score by a threshold; infinity means that it is still to be learned."""
    return Anomaly(score, threshold if isfinite(threshold) else None, label=label)


def ensure_finite(name: str, *parts: Array) -> None:
    """Check that the numbers read from an output are finite.

    Each part is summed: a NaN or infinity anywhere makes the sum non-finite, whereas comparing
    with a threshold would drop it silently.

    Raises:
        SampleError: they are not; names the output.
    """
    for part in parts:
        with np.errstate(all="ignore"):
            total = part.sum(dtype=np.float32)
        if not np.isfinite(total) and not np.isfinite(part).all():
            raise SampleError(f"output {name}: holds values that are not finite (NaN or infinity)")


def ensure_finite_columns(name: str, table: Floats, columns: slice) -> None:
    """Check that some columns of a table (n, width) are finite.

    One pass over the whole table is several times faster than over a part of each row, so the
    part is only checked if the whole is not finite.

    Raises:
        SampleError: they are not; names the output.
    """
    with np.errstate(all="ignore"):
        total = table.sum()
    if not np.isfinite(total):
        ensure_finite(name, table[:, columns])


def _or(patterns: Sequence[Pattern]) -> str:
    return " or ".join(
        "[" + ", ".join("?" if size is None else str(size) for size in pattern) + "]"
        for pattern in patterns
    )


def sigmoid(logits: Floats) -> Floats:
    """Return the probability of each logit independently; any shape."""
    # Computed with tanh, which does not overflow as exp does.
    half = np.float32(0.5)
    chances: Floats = half + half * np.tanh(logits * half)
    return chances


def softmax(logits: Floats) -> Floats:
    """Return probabilities (…, classes) that sum to 1 along the last axis."""
    weights: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


@record
class Labels:
    """Names of the network's classes: class *first* is names[0].

    Without names a class is named by its number. Classes before *first*, background, have no name.
    """

    names: tuple[str, ...]
    first: int

    @property
    def classes(self) -> int | None:
        """The number of classes that the network must have; None if no names were given."""
        return len(self.names) + self.first if self.names else None

    def is_named(self, indices: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return for each class (n,) whether it has a label; only those are reported."""
        if not self.names:
            return np.ones(indices.shape, np.bool_)
        return indices >= max(self.first, 0)

    def of(self, indices: NDArray[np.intp]) -> tuple[str, ...]:
        """Return the labels of class indices (n,), each of which must have one.

        Raises:
            SampleError: the network found a class beyond the last label.
        """
        if not self.names:
            return tuple(str(int(index)) for index in indices)
        places = [int(index) - self.first for index in indices]
        beyond = max(places, default=0)
        if beyond >= len(self.names):
            raise SampleError(
                f"output.labels: the model found class {beyond + self.first}, but the last of "
                f"{len(self.names)} labels is that of class {len(self.names) - 1 + self.first}"
            )
        return tuple(self.names[place] for place in places)


def labels_of(network: Network) -> Labels:
    """Read labels and `first_label` from the manifest."""
    return Labels(network.labels, network.manifest.output.first_label)


def check_classes(labels: Labels, found: int | None, where: str) -> None:
    """Check that there are as many labels as the network has classes.

    Raises:
        ModelError: there are not; says expected and found.
    """
    if labels.classes is None or found is None:
        return
    if (trouble := count_trouble(len(labels.names), labels.first, found, where)) is not None:
        raise ModelError(trouble)


def build_decoder(
    manifest: Manifest,
    labels: tuple[str, ...],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    size: tuple[int, int] | None,
    gallery: Path | None = None,
    *,
    step: float = 1.0,
    steps: Steps | None = None,
) -> Decoder:
    """Build the decoder that a manifest names, after checking that it fits the network.

    Args:
        manifest: decides the format and its settings.
        labels: names of the classes, already read from where the manifest says.
        inputs: the network's inputs, with all sizes decided.
        outputs: the network's outputs; sizes may still be open.
        size: width and height of the picture in the input; None if it takes no picture.
        gallery: file of labeled vectors, if there is one.
        step: see `Network`.
        steps: see `Network`.

    Raises:
        ModelError: manifest and network do not fit each other; says expected and found.
    """
    network = Network(manifest, labels, inputs, outputs, size, gallery, step, steps or {})
    module, _, function = DECODERS[manifest.decoder].function.rpartition(".")
    decoder: Decoder = getattr(import_module(module, __package__), function)(network)
    return decoder
