"""Sessions of ONNX Runtime: their options, as plain values that a form stores, and runs in stages.

On the path to the first result, so ONNX Runtime is imported when the first session is opened. A
network may run in stages: sessions one after another, with tensors passed between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.errors import EngineError
from ...device.resources import adds_bytes_exactly, usable_cpus

if TYPE_CHECKING:
    from pathlib import Path

    from ...core.types import Array, Tensors
    from .engine import EngineChoice

NAME = "onnxruntime"
"""Name of the engine in settings and profiles, and of the package that provides it."""

T = TypeVar("T")

Words = Mapping[str, Any]
"""threads, spins, level (none, basic, extended, all), entries (strings by key), switches (booleans
by key)."""

EXACT_BYTES = "session.x64quantprecision"
"""Entry: signed eight-bit weights become unsigned if they are so large that x86 without VNNI may
saturate (beyond 64). 5 to 25 % slower, but without wrong numbers."""
_AS_FLOATS = "session.disable_quant_qdq"
_NOT_FUSED = {"optimization.disable_specified_optimizers": "Pad_Fusion"}
"""Entry: ONNX Runtime (1.31) turns zeros padded before a MaxPool into padding of the MaxPool, which
counts as the lowest number (onnxruntime#24737): scores of YOLOv3-tiny are off by 0.14."""

CPU = "CPUExecutionProvider"

# ONNX Runtime accepts any key of the form "session.…" silently; these are the ones that mean
# something to 1.31 and that may matter on a small device.
_SESSION_ENTRIES = frozenset(
    {
        "session.disable_prepacking",
        "session.dynamic_block_base",
        "session.enable_gemm_fastmath_arm64_bfloat16",
        "session.force_spinning_stop",
        "session.inter_op.allow_spinning",
        "session.intra_op.allow_spinning",
        "session.intra_op_thread_affinities",
        "session.prepack.enable_parallel",
        "session.qdqisint8allowed",
        "session.set_denormal_as_zero",
        "session.use_env_allocators",
        EXACT_BYTES,
        "mlas.disable_kleidiai",
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
    }
)
_SESSION_SWITCHES = frozenset({"enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse"})
_LEVELS = ("none", "basic", "extended", "all")
_PRECISIONS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("TensorrtExecutionProvider", "f16"): {"trt_fp16_enable": "True"},
    ("TensorrtExecutionProvider", "i8"): {"trt_fp16_enable": "True", "trt_int8_enable": "True"},
}

FATAL_ONLY = 4
"""Log severity: problems come as exceptions, so on stderr they would appear twice."""


def session_config(choice: EngineChoice, provider: str = CPU) -> tuple[Words, dict[str, str]]:
    """Convert a line of a profile to session options, as plain values, and provider options.

    Raises:
        EngineError: an option is unknown, or the precision cannot be set.
    """
    cpus = usable_cpus()
    threads = choice.threads or max(1, cpus // choice.lanes)
    level = "all"
    entries = {} if provider != CPU or adds_bytes_exactly() else {EXACT_BYTES: "1"}
    entries |= _NOT_FUSED
    switches: dict[str, bool] = {}
    given: dict[str, str] = {}
    for key, value in choice.options.items():
        if key in _SESSION_ENTRIES:
            entries[key] = _text(value)
        elif key == "graph_optimization_level" and value in _LEVELS:
            level = value
        elif key in _SESSION_SWITCHES and isinstance(value, bool):
            switches[key] = value
        elif provider != CPU and not key.startswith(("session.", "mlas.")):
            given[key] = _text(value)
        else:
            raise EngineError(f"{NAME}:{choice.device}: option {key} = {value!r} is not known")
    if choice.precision not in {None, "f32"}:
        try:
            given = {**_PRECISIONS[provider, str(choice.precision)], **given}
        except KeyError:
            raise EngineError(
                f"{NAME}:{choice.device}: precision {choice.precision!r} cannot be set here; "
                "the model runs in its own"
            ) from None
    words = {
        "threads": threads,
        # Waiting threads spin for about a millisecond, which is free only on spare cores.
        "spins": choice.lanes == 1 and threads < cpus,
        "level": level,
        "entries": entries,
        "switches": switches,
    }
    return words, given


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def open_exact(words: Words, make: Callable[[Words], T]) -> tuple[T, Words]:
    """Call *make* with session options; if the quick exact way fails, with those of another.

    ONNX Runtime (1.31) cannot make weights unsigned if others share their zero point, as in files
    from tf2onnx. Such a network is computed in floats.

    Returns:
        The result, and the options used.
    """
    try:
        return make(words), words
    except Exception:
        entries = dict(words["entries"])
        if entries.pop(EXACT_BYTES, "0") == "0":
            raise
        words = {**words, "entries": {**entries, _AS_FLOATS: "1"}}
        return make(words), words


def session_options(
    words: Words,
    *,
    weights: Mapping[str, Any] | None = None,
    ready: bool = False,
    extra: Mapping[str, str] | None = None,
) -> Any:
    """Make `onnxruntime.SessionOptions`.

    *weights* are bytes by the graph's name for a file. They are used in place, and must live as
    long as the session. A graph that is *ready* has already been optimized.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    # An explicit count: by default it pins one thread to each core, whatever else runs there.
    options.intra_op_num_threads = words["threads"]
    options.inter_op_num_threads = 1
    level = "NONE" if ready or words["level"] == "none" else words["level"].upper()
    name = "ORT_DISABLE_ALL" if level == "NONE" else f"ORT_ENABLE_{level}"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, name)
    for key, switch in words["switches"].items():
        setattr(options, key, switch)
    entries = {
        "session.intra_op.allow_spinning": "1" if words["spins"] else "0",
        **words["entries"],
        **(extra or {}),
    }
    if weights:
        entries["session.use_external_initializer_file_buffers_directly"] = "1"
        options.add_external_initializers_from_files_in_memory(
            list(weights), list(weights.values()), [len(data) for data in weights.values()]
        )
    for key, text in entries.items():
        options.add_session_config_entry(key, text)
    return options


def open_session(
    graph: str | Path | bytes,
    words: Words,
    name: str,
    error: type[EngineError] = EngineError,
    *,
    attributes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Open a session of a graph on the CPU."""
    try:
        import onnxruntime as ort

        ort.set_default_logger_severity(FATAL_ONLY)
        settings = session_options(words, **options)
        for key, value in (attributes or {}).items():
            setattr(settings, key, value)
        return ort.InferenceSession(graph, settings, providers=["CPUExecutionProvider"])
    except Exception as problem:  # its exceptions have no common class but this one
        line = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise error(f"{name}: {line}") from problem


class Stage:
    """A part of a network, and its session."""

    __slots__ = ("inputs", "outputs", "session", "spent")

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], session: Any) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.session = session
        self.spent: Sequence[str] = ()
        """Tensors released after this stage; see `release_early`."""


def run_stages(stages: Iterable[Stage], tensors: Tensors, outputs: Sequence[str]) -> list[Array]:
    """Run stages in order and return the network's outputs.

    Args:
        stages: the next one is requested after the previous one has run, so the iterator may wait
            for a stage, and release what a stage needed.
        tensors: inputs of the network.
        outputs: names of the outputs.
    """
    import onnxruntime as ort

    # Passed between stages as ONNX Runtime's own values, which are not copied.
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in tensors.items()}
    for stage in stages:
        feeds = {name: values[name] for name in stage.inputs}
        made = stage.session.run_with_ort_values(stage.outputs, feeds)
        values.update(zip(stage.outputs, made, strict=True))
        for name in stage.spent:
            del values[name]
    return [values[name].numpy() for name in outputs]


def release_early(stages: Sequence[Stage], outputs: Collection[str]) -> None:
    """Make each stage release the tensors that no later one uses, to save memory."""
    needed = set(outputs)
    for stage in reversed(stages):
        names = dict.fromkeys((*stage.inputs, *stage.outputs))
        stage.spent = [name for name in names if name not in needed]
        needed.update(stage.inputs)
