"""The engines there are, behind one small protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ...core.codec import storable
from ...core.errors import EngineError
from ...core.frozen import record
from ...core.types import Array, Tensors, TensorSpec

if TYPE_CHECKING:
    from ..folding.cut import InputCut
    from ..folding.fold import Fold

EngineName = Literal["openvino", "onnxruntime"]

# The two there are. A third is one module and one line here.
MODULES: Mapping[str, str] = {
    "openvino": "edge_agent.inference.engines.ov",
    "onnxruntime": "edge_agent.inference.engines.ort",
}


@storable
@record
class EngineChoice:
    """One line of a device profile: an engine, where it runs, and how."""

    engine: EngineName
    device: str = "CPU"
    """OpenVINO: CPU, GPU, NPU …; ONNX Runtime: the provider's short name: CPU, CUDA, TensorRT …"""
    threads: int = 0
    """Threads of one inference; 0: as many as the lanes leave."""
    lanes: int = 1
    """How many threads will call `infer` at the same time."""
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> dict[str, Any]:
        """Give it as JSON, for another process or a key; the constructor takes it back."""
        return {**asdict(self), "options": dict(self.options)}

    @property
    def place(self) -> tuple[EngineName, str]:
        """Engine and device, the device in capitals: lines that differ in how only are alike."""
        return self.engine, self.device.upper()


class Engine(Protocol):
    """A loaded network; as many threads may be in `infer` at a time as the choice has lanes."""

    label: str
    """openvino:<DEVICE> or onnxruntime:<Provider>"""
    inputs: tuple[TensorSpec, ...]
    """What must be fed: the graph's inputs minus its initializers."""
    outputs: tuple[TensorSpec, ...]
    fold: Fold | None
    """An input that it would rather have in bytes; it takes what `inputs` says all the same."""

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network.

        Args:
            tensors: one C-contiguous array for each input, of its shape and type, or of the type
                that `fold` says.

        Returns:
            One array for each output, owned by the caller.

        Raises:
            EngineError: the engine failed, or an input is missing, too many, or of a wrong shape
                or type.

        """

    def close(self) -> None:
        """Let go of the network; may be called twice."""


# Given the inputs as the network declares them, the shape of each that it leaves open.
FixShapes = Callable[[tuple[TensorSpec, ...]], Mapping[str, tuple[int, ...]]]


def open_engine(
    choice: EngineChoice, network: Path, fix_shapes: FixShapes, cut: InputCut | None = None
) -> Engine:
    """Load *network* (.onnx or .xml) on the engine and device that *choice* names.

    Args:
        choice: engine, device and how to run there.
        network: path of the model; loading from memory would hold the GIL (measured).
        fix_shapes: decides the sizes that the network leaves open, before it is compiled.
        cut: what may be cut off the network's input; an engine that cannot leaves it.

    Raises:
        EngineError: the engine is not installed, the device is not there, or it refuses the model.

    """
    try:
        module = import_module(MODULES[choice.engine])
    except ImportError as problem:
        raise EngineError(f"engine {choice.engine} is not installed: {problem}") from problem
    engine: Engine = module.open_network(choice, network, fix_shapes, cut)
    return engine


def check_inputs(specs: tuple[TensorSpec, ...], tensors: Tensors) -> None:
    """See that *tensors* are what *specs* ask for, before native code sees them.

    Raises:
        EngineError: expected and found, by name.

    """
    if len(tensors) != len(specs) or any(spec.name not in tensors for spec in specs):
        expected, found = [spec.name for spec in specs], sorted(tensors)
        raise EngineError(f"inputs: expected {expected}, found {found}")
    for spec in specs:
        array = tensors[spec.name]
        fits = len(array.shape) == len(spec.shape) and all(
            want is None or want == have for want, have in zip(spec.shape, array.shape, strict=True)
        )
        if not fits or array.dtype.name != spec.dtype:
            raise EngineError(
                f"input {spec.name}: expected {spec}, found {array.dtype.name}{list(array.shape)}"
            )


def settle_shapes(
    specs: tuple[TensorSpec, ...], fix_shapes: FixShapes, network: Path
) -> tuple[TensorSpec, ...]:
    """Ask for the sizes that a network leaves open, and see that the answer fits what it says.

    Raises:
        EngineError: an input stays open, or is to have a shape that the network does not allow.

    """
    fixed = fix_shapes(specs)
    settled = []
    for spec in specs:
        shape = fixed.get(spec.name, spec.shape)
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
        settled.append(replace(spec, shape=tuple(shape)))
    return tuple(settled)


# Where in its sources an engine found the trouble: for its makers, not for the user.
_WHEREABOUTS = re.compile(
    r"^(Exception from |Check '.*' failed at |FrontEnd API failed with "
    r"|Model wasn't fully converted|While validating |Loading input model$|.*:$)"
)
_PREFIXES = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |Load model from .*? failed:\s*"
    r"|^(NotFound|RuntimeError): |^-- |\S*/onnxruntime/core/\S+ .*?\) "
)

_LIBRARIES = re.compile(r"[^\s\"']*/([^\s\"'/]+\.so\b)")


def native_reason(problem: BaseException, network: Path) -> str:
    """Make one line of what native code said: its first words that tell the user something."""
    text = str(problem).replace(str(network), network.name)
    text = _LIBRARIES.sub(r"\1", text)
    lines = [_PREFIXES.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    telling = [line for line in lines if not _WHEREABOUTS.match(line)]
    line = (telling or lines or [type(problem).__name__])[0]
    return line if len(line) <= 300 else line[:297] + "…"
