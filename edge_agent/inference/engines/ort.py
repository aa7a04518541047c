"""ONNX Runtime as an engine: .onnx files on the CPU, or on a provider that this build has.

Independent of manifests and profiles. Never registers libraries of custom operators: a model must
not contain code.
"""

from __future__ import annotations

import logging
import platform
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from ...core.errors import EngineError
from ...core.types import Array, Tensors, TensorSpec
from ...models.files.external_weights import open_graph
from ..folding.cut import InputCut
from .compiled_cache import compiled_cache
from .engine import EngineChoice, FixShapes, check_inputs, fix_inputs, native_reason
from .ort_session import (
    CPU,
    FATAL_ONLY,
    NAME,
    Words,
    open_exact,
    session_config,
    session_options,
)

if TYPE_CHECKING:
    from ..folding.fold import Fold

log = logging.getLogger(__name__)

# Problems come as exceptions; on stderr they would appear twice, and a network whose initializers
# are also inputs warns once for each of its hundreds of weights.
ort.set_default_logger_severity(FATAL_ONLY)

# Providers that run the nodes the first does not take, tried before the CPU.
_HELPERS: Mapping[str, tuple[str, ...]] = {
    "TensorrtExecutionProvider": ("CUDAExecutionProvider",),
    "NvTensorRTRTXExecutionProvider": ("CUDAExecutionProvider",),
}
_KEPT: Mapping[str, Mapping[str, str]] = {
    "TensorrtExecutionProvider": {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "{folder}",
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": "{folder}",
    },
}
"""By provider: the options that make it keep compiled code."""


def label_of(provider: str = CPU) -> str:
    """Return the label of an engine on a provider."""
    return f"{NAME}:{provider}"


class OrtEngine:
    """A session. `infer` may be called by any number of threads at a time."""

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        fold: Fold | None = None,
        *,
        data: object = None,
    ) -> None:
        """Make an engine from a session, which it takes ownership of.

        Args:
            session: a session of the network, or of the folded one.
            inputs: the inputs of the original network.
            outputs: the outputs of the original network.
            fold: how the session's network differs.
            data: bytes that the session uses but does not keep alive itself.
        """
        self._data = data
        self.label = label_of(session.get_providers()[0])
        self.inputs = inputs
        self.outputs = outputs
        self.fold = fold
        self.prepared = None
        self._taken = inputs if fold is None else fold.specs(inputs)
        self._names = [spec.name for spec in outputs]
        self._session: ort.InferenceSession | None = session

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network; returns new arrays, made for this call.

        Nothing is copied in either direction: the session reads NumPy's memory, and hands over its
        own (9 µs per call with 1 MB in and 70 KB out; bound buffers: 7 µs bound once, 13 µs each
        time).
        """
        if self.fold is not None:
            tensors = self.fold.feed(tensors)
        check_inputs(self._taken, tensors)
        # A local name keeps the session loaded for this call if the engine is closed meanwhile.
        session = self._session
        if session is None:
            raise EngineError(f"{self.label}: the network has been closed")
        try:
            return dict(zip(self._names, session.run(self._names, dict(tensors)), strict=True))
        except Exception as problem:  # its exceptions have no common class but this one
            raise EngineError(f"{self.label}: {native_reason(problem, Path('model'))}") from problem

    def widened(self) -> OrtEngine:
        """Return the same session as an engine that takes any number of samples at a time.

        Only inputs with an open first axis change.

        Raises:
            EngineError: the network has been closed.
        """
        session = self._session
        if session is None:
            raise EngineError(f"{self.label}: the network has been closed")
        inputs = tuple(
            replace(spec, shape=(None, *spec.shape[1:]))
            if len(spec.shape) > 1 and spec.shape[0] == 1 and not isinstance(port.shape[0], int)
            else spec
            for spec, port in zip(self.inputs, session.get_inputs(), strict=True)
        )
        return OrtEngine(session, inputs, self.outputs, self.fold)

    def close(self) -> None:
        """Unload the network; memory is freed when the last running call returns."""
        self._session = None


def open_network(
    choice: EngineChoice, network: Path, fix_shapes: FixShapes, cut: InputCut | None = None
) -> OrtEngine:
    """Load an ONNX file.

    Args:
        choice: `device` is a provider's name without "ExecutionProvider", in upper or lower case.
            `options`: session entries ("session.…"), `graph_optimization_level` (none, basic,
            extended, all), `enable_cpu_mem_arena`, `enable_mem_pattern`, `enable_mem_reuse`;
            on providers other than the CPU anything else is passed to the provider.
        network: the .onnx file; its external data lies beside it.
        fix_shapes: decides the sizes that the network leaves open.
        cut: what may be cut off its input. Only on the CPU is the network known to compute in eight
            bits as before without it.

    Raises:
        EngineError: no such provider, or one that did not come up; an unknown option; a file that
            ONNX Runtime cannot read or run.
    """
    where = f"{NAME}:{choice.device}"
    if network.suffix.lower() != ".onnx":
        raise EngineError(f"{where}: reads .onnx files only, found {network.name}")
    provider = _provider(choice.device)
    words, provider_options = session_config(choice, provider)
    keeps = provider in _KEPT and not provider_options.keys() & _KEPT[provider].keys()
    available = ort.get_available_providers()
    fallbacks = [name for name in _HELPERS.get(provider, ()) if name in available]

    def opened(words: Words) -> tuple[ort.InferenceSession, Fold | None]:
        fit = None if cut is None or provider != CPU else fitting(cut, words)
        session = None if fit is None else folded_session(fit, words)
        if fit is not None and session is not None:
            return session, fit.fold
        with compiled_cache(NAME, ort.__version__, network) if keeps else nullcontext() as cache:
            options = dict(provider_options)
            if cache is not None:
                options |= {key: text.format(folder=cache) for key, text in _KEPT[provider].items()}
            providers = [(provider, options)] if provider != CPU else []
            providers += [(name, {}) for name in (*fallbacks, CPU)]
            # By path: from bytes it would hold the GIL while it parses.
            # A provider's failure belongs in the error, not in a banner on stdout.
            whole = ort.InferenceSession(
                str(network), session_options(words), providers=providers, enable_fallback=0
            )
            if not all(map(is_numbers, whole.get_outputs())):
                graph, weights = open_graph(network)
                whole = ort.InferenceSession(
                    graph, given_weights(words, weights), providers=providers, enable_fallback=0
                )
        return whole, None

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of is checked below
            (session, fold), _ = open_exact(words, opened)
    except Exception as problem:  # its exceptions have no common class but this one
        raise EngineError(
            f"{where}: {network.name}: {native_reason(problem, network)}"
        ) from problem
    # Otherwise a provider that fails is replaced silently, and the label would be wrong.
    session.disable_fallback()
    serving = session.get_providers()
    if serving[0] != provider:
        raise EngineError(
            f"{where}: {provider} did not come up (a driver or library of it is missing); "
            f"only {', '.join(serving)} did"
        )
    # get_inputs() leaves out initializers, even if the graph lists them as inputs.
    found = specs(session.get_inputs(), network)
    declared = found if fold is None else fold.declared(found)
    inputs = fix_inputs(declared, fix_shapes, network)
    return OrtEngine(session, inputs, specs(session.get_outputs(), network), fold)


def _provider(device: str) -> str:
    """Return the full name of the provider for *device*."""
    available = ort.get_available_providers()
    for name in available:
        if name.lower() in {device.lower(), f"{device}ExecutionProvider".lower()}:
            return str(name)
    short = ", ".join(name.removesuffix("ExecutionProvider") for name in available)
    raise EngineError(
        f"{NAME}:{device}: this build of onnxruntime has no such provider; it has {short}"
    )


def specs(values: Sequence[Any], network: Path) -> tuple[TensorSpec, ...]:
    """Describe the inputs or outputs of a session."""
    return tuple(
        TensorSpec(
            value.name,
            # An open size is None or the name of a symbol; some exporters write 0 or -1.
            tuple(n if isinstance(n, int) and n > 0 else None for n in value.shape),
            _dtype(value.type, f"{network.name}: {value.name}"),
        )
        for value in values
    )


def is_numbers(value: Any) -> bool:
    """Whether an output of a session is a tensor of numbers."""
    return str(value.type).startswith("tensor(") and value.type != "tensor(string)"


_TYPES: Mapping[str, str] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
}


def _dtype(native: str, where: str) -> str:
    """Return NumPy's name for ONNX Runtime's "tensor(…)"."""
    name = _TYPES.get(native, native.removeprefix("tensor(").removesuffix(")"))
    try:
        return np.dtype(name).name
    except (TypeError, ValueError):
        raise EngineError(
            f"{where}: type {native}: only tensors of numbers are read; export it without texts "
            "and maps (skl2onnx: integer labels, options={'zipmap': False})"
        ) from None


def fitting(cut: InputCut, words: Words) -> InputCut | None:
    """Return a cut adapted to ONNX Runtime on this processor, so that results stay the same.

    On x86 it has no convolution for signed steps before a node that quantizes its result: it
    converts both to unsigned, if it finds both (`QDQS8ToU8Transformer`; 1.31). With the input's
    quantization cut off it finds only one for the first convolution, so the input is converted
    here.
    """
    signed = cut.fold.dtype == "int8" and cut.back is not None
    fit = cut.unsigned() if signed and platform.machine() == "x86_64" else cut
    # With all optimizations it convolves eight bits with the colors last, so it need not transpose
    # the picture first (rfb320: 0.04 ms of 3.3).
    return fit.turned() if fit is not None and words["level"] == "all" else fit


def given_weights(words: Words, files: Mapping[str, mmap]) -> Any:
    """Make the options of a session whose weights lie in mapped files."""
    options = session_options(words)
    options.add_external_initializers_from_files_in_memory(
        list(files), list(files.values()), [len(data) for data in files.values()]
    )
    return options


def folded_session(cut: InputCut, words: Words) -> ort.InferenceSession | None:
    """Load a network on the CPU, with the quantization of its input cut off.

    Returns None if that fails: either the network itself fails, too, or it runs without the cut.
    """
    try:
        # From few bytes: the weights are read from the network's own files, without the GIL.
        graph, files = cut.open()
        return ort.InferenceSession(
            graph, given_weights(words, files), providers=["CPUExecutionProvider"]
        )
    except Exception as problem:  # noqa: BLE001 - its exceptions have no common class but this one
        log.debug("%s: not folded: %s", cut.network, native_reason(problem, cut.network))
        return None
