"""OpenVINO as an engine: .onnx, .xml and .tflite files on any of its devices.

Independent of manifests and profiles.
"""

from __future__ import annotations

import logging
import platform
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import openvino as ov

from ...core.errors import AgentError, EngineError
from ...core.types import Array, Tensors, TensorSpec
from ...device.resources import adds_bytes_exactly, usable_cpus
from ...models.files.facts import OPENVINO_TYPES
from .compiled_cache import compiled_cache
from .engine import EngineChoice, FixShapes, check_inputs, fix_inputs, native_reason
from .registry import capabilities

if TYPE_CHECKING:
    from ..folding.cut import InputCut
    from ..folding.fold import Fold

log = logging.getLogger(__name__)

# One per process: each costs a device query, and plugins are not unloaded anyway.
core = ov.Core()

# OpenVINO's binding asks NumPy for its interface when the first array is exchanged. Two threads
# that do so at once deadlock (seen with 2026.4.1, when a pushed model was compiled during another
# load), so the thread that imports this module does it before any other can.
ov.Tensor(np.zeros(1, np.float32)).data  # noqa: B018 - for its side effect

NAME = "openvino"
"""Name of the engine in settings and profiles."""
VERSION = str(ov.__version__)

_KEPT = "CACHE_DIR"
_AS_BYTES = "LP_TRANSFORMS_MODE"
_ON_X86 = platform.machine() == "x86_64"


class Compiled(NamedTuple):
    """The result of compiling a network."""

    networks: list[ov.CompiledModel]
    declared: tuple[TensorSpec, ...]
    """Its inputs as declared."""
    inputs: tuple[TensorSpec, ...]
    """Its inputs with all sizes decided."""
    outputs: tuple[TensorSpec, ...]
    fold: Fold | None
    """How the compiled network differs from the original."""


class OvEngine:
    """A network, compiled once for each lane, and the requests that run it."""

    def __init__(
        self,
        compiled: list[ov.CompiledModel],
        label: str,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        fold: Fold | None = None,
    ) -> None:
        """Make an engine from a network compiled once for each lane, and take ownership of it."""
        self.label = label
        self.inputs = inputs
        self.outputs = outputs
        self.fold = fold
        self.prepared = None
        self.widened = None
        self._taken = inputs if fold is None else fold.specs(inputs)
        self._networks: list[ov.CompiledModel] | None = compiled
        self._compiled: cycle[ov.CompiledModel] | None = cycle(compiled)
        # Last in, first out: its buffers are still cached. A deque's ends are thread-safe.
        self._idle: deque[ov.InferRequest] = deque()

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network; returns copies of the request's buffers."""
        if self.fold is not None:
            tensors = self.fold.feed(tensors)
        check_inputs(self._taken, tensors)
        # Requests of these networks go back to this deque, even if it is replaced meanwhile.
        networks, idle = self._compiled, self._idle
        if networks is None:
            raise EngineError(f"{self.label}: the network has been closed")
        try:
            try:
                request = idle.pop()
            except IndexError:
                request = next(networks).create_infer_request()
            for index, spec in enumerate(self.inputs):
                request.set_input_tensor(index, _tensor(tensors[spec.name]))
            # Runs in this thread. An asynchronous request would run in another thread, whose core
            # has neither input nor result in its cache: 460 instead of 520 frames per second.
            request.infer()
            results = {
                # A copy: the next inference of this request writes to the same memory. Binding our
                # own arrays for each call was no faster (6 numbers, 106 KB and 1.2 MB).
                spec.name: np.array(request.get_output_tensor(index).data)
                for index, spec in enumerate(self.outputs)
            }
        except Exception as problem:  # mostly RuntimeError, but plugins raise others
            # The request is not used again: its state is unknown.
            raise EngineError(f"{self.label}: {native_reason(problem, Path('model'))}") from problem
        idle.append(request)
        return results

    def widen(self, network: ov.CompiledModel) -> None:
        """Add a compiled network that shares the work, from the next call on."""
        if self._networks is not None:
            self._networks = [*self._networks, network]
            # New requests, so that each network gets its share of them.
            self._idle = deque()
            self._compiled = cycle(self._networks)

    def close(self) -> None:
        """Unload the network; memory is freed when the last running call returns."""
        self._compiled = self._networks = None
        self._idle.clear()


def open_network(
    choice: EngineChoice, network: Path, fix_shapes: FixShapes, cut: InputCut | None = None
) -> OvEngine:
    """Read, fix the shapes of, and compile a network.

    Args:
        choice: `device` is OpenVINO's ("CPU", "GPU.1", "AUTO:GPU,CPU"); `options` are its
            properties by name ("CACHE_DIR", "SCHEDULING_CORE_TYPE") and override those set here.
            Without a `precision` the CPU computes in f32, so that a network gives the same numbers
            on every device: by default it uses bf16 or f16 where the processor has them.
        network: the .onnx, .xml or .tflite file.
        fix_shapes: decides the sizes that the network leaves open.
        cut: what may be cut off its input.

    Raises:
        EngineError: no such device, an unknown option, or a file that OpenVINO cannot read or run.
    """
    # Several streams of one compiled network have given wrong numbers on the CPU (2026.4.1, a
    # depthwise network in float: 4 to 12 of 100 compilations, nearly all with an open batch);
    # networks with one stream each never have.
    copies = choice.lanes if is_cpu(choice) else 1
    compiled = compile_network(choice, network, fix_shapes, copies, cut)
    return OvEngine(
        compiled.networks,
        label_of(choice, compiled.networks[0]),
        compiled.inputs,
        compiled.outputs,
        compiled.fold,
    )


def compile_network(
    choice: EngineChoice,
    network: Path,
    fix_shapes: FixShapes,
    copies: int,
    cut: InputCut | None = None,
) -> Compiled:
    """Compile a network *copies* times, folded if that is possible and the device is the CPU.

    Raises:
        EngineError: as for `open_network`.
    """
    where = f"{NAME}:{choice.device}"
    try:
        if not _joins(choice):
            return _compile(choice, network, fix_shapes, copies, cut, joined=False)
        try:
            return _compile(choice, network, fix_shapes, copies, cut, joined=True)
        except RuntimeError as problem:
            # Is the network at fault, or the operations written into it?
            compiled = _compile(choice, network, fix_shapes, copies, cut, joined=False)
            log.info("%s: compiled as it is: %s", network, native_reason(problem, network))
            return compiled
    except AgentError:
        raise
    except Exception as problem:  # mostly RuntimeError, but plugins raise others
        raise EngineError(
            f"{where}: {network.name}: {native_reason(problem, network)}"
        ) from problem


def _compile(
    choice: EngineChoice,
    network: Path,
    fix_shapes: FixShapes,
    copies: int,
    cut: InputCut | None,
    *,
    joined: bool,
) -> Compiled:
    """Read and compile a network; raises OpenVINO's exceptions."""
    model = _read(network)
    names = [_result_name(port) for port in model.outputs]
    declared = tuple(_spec(port, port.get_any_name(), network) for port in model.inputs)
    inputs = fix_inputs(declared, fix_shapes, network)
    if inputs != declared:
        _reshape(model, inputs, network)
    fold = _folded(model, cut) if is_cpu(choice) else None
    if joined:
        from .ov_graph import join

        join(model)
    wanted = properties(choice)
    if is_cpu(choice) and _AS_BYTES not in wanted and not adds_bytes_exactly():
        # Without VNNI, floats are as fast (rfb320, YOLOX-nano), and right.
        from .ov_graph import may_saturate

        wanted |= {_AS_BYTES: False} if may_saturate(model) else {}
    keeps = not is_cpu(choice) and _KEPT not in wanted
    with compiled_cache(NAME, VERSION, network) if keeps else nullcontext() as cache:
        if cache is not None:
            wanted |= {_KEPT: str(cache)}
        compiled = [core.compile_model(model, choice.device, wanted) for _ in range(copies)]
    outputs = tuple(
        _spec(port, name, network) for port, name in zip(compiled[0].outputs, names, strict=True)
    )
    return Compiled(compiled, declared, inputs, outputs, fold)


def _reshape(model: ov.Model, inputs: Sequence[TensorSpec], network: Path) -> None:
    """Fix the sizes that a network leaves open; OpenVINO's own error does not say to what."""
    try:
        model.reshape({spec.name: list(spec.shape) for spec in inputs})
    except RuntimeError as problem:
        given = ", ".join(map(str, inputs))
        raise EngineError(
            f"{network.name}: cannot take {given}, although its file leaves these sizes open; give "
            f"those that it was trained with ({native_reason(problem, network).rstrip('.')})"
        ) from problem


def _read(network: Path) -> ov.Model:
    """Read a network; by path: IR weights are then mapped, not copied, and the GIL is not held."""
    if network.suffix == ".tflite":
        from ...models.files.tflite_ssd import post_process_of

        if (said := post_process_of(network)) is not None:
            from .ov_ssd import read_with

            return read_with(said, network)
    return core.read_model(str(network))


def _joins(choice: EngineChoice) -> bool:
    """Whether convolutions absorb operations written into them, as seen on x86, in f32."""
    precision = properties(choice)["INFERENCE_PRECISION_HINT"] if is_cpu(choice) else None
    return precision == "f32" and _ON_X86


def _folded(model: ov.Model, cut: InputCut | None) -> Fold | None:
    """Cut off the quantization of the input if possible; return its fold, or None."""
    if cut is None:
        return None
    from .ov_graph import cut_quantizer

    # Signed steps are convolved as floats; other processors have not been tested.
    last = cut.turned() if _ON_X86 and cut.fold.dtype == "uint8" else cut
    for fold in dict.fromkeys((last.fold, cut.fold)):
        if cut_quantizer(model, fold):
            return fold
    log.debug("%s: not folded: OpenVINO has made another graph of it", cut.network)
    return None


def properties(choice: EngineChoice) -> dict[str, Any]:
    """Convert a line of a profile to OpenVINO's properties."""
    cpu = is_cpu(choice)
    found: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY" if cpu or choice.lanes == 1 else "THROUGHPUT"
    }
    if cpu:
        found |= {
            "INFERENCE_NUM_THREADS": choice.threads or max(1, usable_cpus() // choice.lanes),
            "NUM_STREAMS": 1,
            # Two networks of one agent would both pin their threads to the same first cores.
            "ENABLE_CPU_PINNING": False,
            "INFERENCE_PRECISION_HINT": "f32",
        }
    elif choice.lanes > 1:
        found["PERFORMANCE_HINT_NUM_REQUESTS"] = choice.lanes
    if choice.precision is not None:
        found["INFERENCE_PRECISION_HINT"] = choice.precision
    return found | dict(choice.options)


def is_cpu(choice: EngineChoice) -> bool:
    """Whether a choice is OpenVINO's CPU itself, not a device that chooses among others."""
    return choice.device.partition(".")[0].upper() == "CPU"


def label_of(choice: EngineChoice, compiled: ov.CompiledModel) -> str:
    """Return the engine's name and the device that really serves."""
    # For a device that only chooses others, the compiled network knows which one serves.
    if not choice.device.upper().startswith(tuple(capabilities(NAME).virtual_devices)):
        return f"{NAME}:{choice.device}"
    serving: list[str] = compiled.get_property("EXECUTION_DEVICES")
    return f"{NAME}:" + ",".join(name.strip("()") for name in serving)


def _tensor(array: Array) -> ov.Tensor:
    """Share *array* with OpenVINO; an array that cannot be shared is copied."""
    flags = array.flags
    return ov.Tensor(array, shared_memory=bool(flags.c_contiguous and flags.writeable))


def _result_name(port: Any) -> str:
    """Return the name that the model's author gave to an output.

    If transformations have merged several tensors, it has all their names; the result node still
    has the declared one, as "<name>/sink_port_0".
    """
    names: Mapping[str, Any] | set[str] = port.get_names()
    declared = str(port.get_node().friendly_name).removesuffix("/sink_port_0")
    if declared in names or not names:
        return declared
    return str(port.get_any_name())


def _spec(port: Any, name: str, network: Path) -> TensorSpec:
    """Describe an input or output of a network."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        raise EngineError(f"{network.name}: {name}: the number of its dimensions is open")
    native = port.get_element_type().get_type_name()
    # Not `to_dtype`: it maps bf16 and the 4-bit types to another type's bits.
    if native not in OPENVINO_TYPES:
        raise EngineError(f"{network.name}: {name}: type {native} has no counterpart in NumPy")
    return TensorSpec(
        name,
        tuple(None if size.is_dynamic else size.get_length() for size in shape),
        OPENVINO_TYPES[native],
    )
