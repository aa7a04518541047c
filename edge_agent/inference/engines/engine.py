"""The interface between engines and the rest of the program, and the checks they share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from math import prod
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...core.codec import storable
from ...core.errors import EngineError, ModelError
from ...core.frozen import record
from ...core.text import printable
from ...core.types import Array, Tensors, TensorSpec
from ...device.resources import usable_memory

if TYPE_CHECKING:
    from ..folding.fold import Fold

INPUT_SHARE = 16
"""The inputs of one inference may take memory / `INPUT_SHARE`. They exist several times: prepared
and being inferred, in each lane, and the network's own tensors are about as large."""
UNASKED_INPUT = 16 * 2**20
"""Bytes of inputs that every device has memory for."""


# Places in an engine's source code: of use to its developers, not to the user. Compiled when first
# needed.
_LOCATIONS = (
    r"(Exception from |Check '.*' failed at |FrontEnd API failed with "
    r"|Model wasn't fully converted|While validating |Loading input model$|.*:$)"
)
_PREFIXES = (
    r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |Load model from .*? failed:\s*"
    r"|^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is false: )?"
    r"|^(NotFound|RuntimeError): |^-- |(?<!\S)\S*/onnxruntime/core/\S+ .*?\) "
)
_FAILED_NODE = r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)'"
_LIBRARIES = r"(?<![^\s\"'])[^\s\"']*/([^\s\"'/]+\.so\b)"


@storable
@record
class EngineChoice:
    """One line of a device profile: an engine, where it runs, and how."""

    engine: str
    """Its name in the registry."""
    device: str = "CPU"
    """OpenVINO: CPU, GPU, NPU …; ONNX Runtime: the provider's short name: CPU, CUDA, TensorRT …"""
    threads: int = 0
    """Threads of one inference; 0: as many as the lanes leave."""
    lanes: int = 1
    """How many threads will call `infer` at the same time."""
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> dict[str, Any]:
        """Return the fields as JSON, for another process or a key; the constructor takes them."""
        return {**asdict(self), "options": dict(self.options)}

    @property
    def place(self) -> tuple[str, str]:
        """Engine and device, in capitals; the same for lines that differ only in options."""
        return self.engine, self.device.upper()


class CheckedNetwork(NamedTuple):
    """What `check` of an engine's `quick_module` returns, and its `QuickLoad` takes."""

    choice: EngineChoice
    path: Path
    """The network's file, which is not read again."""
    data: bytes | mmap
    """The file's content; the engine uses the weights in place."""
    graph: bytes
    """The network with its weights external, in a file of the same name."""
    exact: bool
    """Whether sums of eight-bit products are exact on this device, so that it may be optimized."""


class PreparedForm(Protocol):
    """The prepared form that a network was loaded from, and its state."""

    damaged: str | None
    """The damage found in it, or None."""

    @property
    def folder(self) -> str:
        """The folder of its files."""

    @property
    def is_streaming(self) -> bool:
        """Whether its weights are read for each frame, because they do not fit in memory."""

    @property
    def accepts_batches(self) -> bool:
        """Whether the network it was made from, though used with one sample, takes several too."""

    @property
    def checksums(self) -> Mapping[str, str]:
        """SHA-256 of its files as they were written, by path."""

    def finish_load(self, threads: int | None = None) -> bool:
        """Build the permanent session, in the background; return whether it has changed.

        It runs an inference with *threads* threads if the first session had more.

        Raises:
            EngineError: it cannot be built; the first session stays.
        """

    def distrust(self, why: str) -> None:
        """Run the original network from now on, because the form's files are damaged."""


class Engine(Protocol):
    """A loaded network; as many threads may call `infer` at a time as the choice has lanes."""

    label: str
    """openvino:<DEVICE> or onnxruntime:<Provider>"""
    inputs: tuple[TensorSpec, ...]
    """The inputs to feed: the graph's inputs minus its initializers."""
    outputs: tuple[TensorSpec, ...]
    fold: Fold | None
    """An input that it prefers as bytes; it still takes the type that `inputs` says."""

    @property
    def prepared(self) -> PreparedForm | None:
        """The prepared form that it runs; None: it runs none."""

    @property
    def widened(self) -> Callable[[], Engine] | None:
        """Makes an engine of this network that takes any number of samples; None: impossible."""

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network.

        Args:
            tensors: one C-contiguous array for each input, of its shape and of its type or the
                type that `fold` says.

        Returns:
            One array for each output, owned by the caller.

        Raises:
            EngineError: the engine failed, or an input is missing, unknown, or of a wrong shape
                or type.
        """

    def close(self) -> None:
        """Unload the network; may be called twice."""


# Maps the inputs as the network declares them to the shape of each that it leaves open.
FixShapes = Callable[[tuple[TensorSpec, ...]], Mapping[str, tuple[int, ...]]]


def check_inputs(specs: tuple[TensorSpec, ...], tensors: Tensors) -> None:
    """Check that *tensors* match *specs*, before native code reads them.

    Raises:
        EngineError: they do not; says expected and found, by name.
    """
    if len(tensors) != len(specs) or any(spec.name not in tensors for spec in specs):
        expected, found = [spec.name for spec in specs], sorted(tensors)
        raise EngineError(f"inputs: expected {expected}, found {found}")
    for spec in specs:
        array = tensors[spec.name]
        fits = len(array.shape) == len(spec.shape) and all(
            want is None or want == have for want, have in zip(spec.shape, array.shape, strict=True)
        )
        # Not compared by the type's name, which NumPy takes 2 µs to make.
        if not fits or array.dtype != spec.dtype:
            raise EngineError(
                f"input {spec.name}: expected {spec}, found {array.dtype.name}{list(array.shape)}"
            )


def fix_inputs(
    specs: tuple[TensorSpec, ...], fix_shapes: FixShapes, network: Path
) -> tuple[TensorSpec, ...]:
    """Return the inputs of a network with the sizes that it leaves open filled in.

    Raises:
        EngineError: an input stays open, or would get a shape that the network does not allow.
        ModelError: they are larger than this device has memory for.
    """
    given = fix_shapes(specs)
    fixed_specs = []
    for spec in specs:
        shape = given.get(spec.name, spec.shape)
        fits = len(shape) == len(spec.shape) and all(
            want is None or want == have for want, have in zip(spec.shape, shape, strict=True)
        )
        if not fits:
            raise EngineError(
                f"{network.name}: input {spec} cannot be given the shape {list(shape)}"
            )
        if None in shape:
            raise EngineError(
                f"{network.name}: input {spec} leaves sizes open; name them under [input] "
                "(width, height or window) in the manifest"
            )
        fixed_specs.append(replace(spec, shape=tuple(shape)))
    _check_room(fixed_specs, network)
    return tuple(fixed_specs)


def _check_room(specs: Sequence[TensorSpec], network: Path) -> None:
    """Check that there is enough memory for the inputs, before any is allocated."""
    import numpy as np  # not needed to choose a model

    sizes = [
        prod(size or 1 for size in spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs
    ]
    needed = sum(sizes)
    if needed <= UNASKED_INPUT:
        return
    memory = usable_memory()
    if memory and needed > memory // INPUT_SHARE:
        largest = specs[sizes.index(max(sizes))]
        raise ModelError(
            f"{network.name}: input {largest} is too large: one inference takes "
            f"{needed / 2**20:,.0f} MiB of inputs, and this device, which has "
            f"{memory / 2**20:,.0f} MiB of memory, has {memory / INPUT_SHARE / 2**20:,.0f} MiB "
            "for them; export the network with a smaller input"
        )


def native_reason(problem: BaseException, network: Path) -> str:
    """Return the first line of a native error that is useful to users, at most 300 characters."""
    text = str(problem).replace(str(network), network.name)
    if nodes := re.findall(_FAILED_NODE, text):  # the last is the innermost
        kind, name = nodes[-1]
        return f"operator {kind} ({printable(name)}) fails on the values that it is given"
    text = re.sub(_LIBRARIES, r"\1", text)
    lines = [re.sub(_PREFIXES, "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    useful = [line for line in lines if not re.match(_LOCATIONS, line)]
    # The last of them is the innermost.
    line = (useful or lines[-1:] or ["it gives no reason"])[0].rstrip(" :")
    return line if len(line) <= 300 else line[:297] + "…"
