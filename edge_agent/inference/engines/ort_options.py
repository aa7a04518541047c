"""The options of an ONNX Runtime session, as plain words that a form keeps and a start reads.

Light: ONNX Runtime is imported when the first options are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.errors import EngineError
from ...device.resources import adds_bytes_exactly, usable_cpus

if TYPE_CHECKING:
    from .engine import EngineChoice

NAME = "onnxruntime"
"""Of the engine in settings and profiles, and of the package that brings it."""

T = TypeVar("T")

Words = Mapping[str, Any]
"""threads, spins, level (none, basic, extended, all), entries (texts by key), switches (truths by
key)."""

EXACT_BYTES = "session.x64quantprecision"
"""Entry: weights of eight bits with a sign lose it where they are so large that x86 without VNNI
may saturate (beyond 64). 5 to 25 % slower than wrong numbers."""
_AS_FLOATS = "session.disable_quant_qdq"
_NOT_FUSED = {"optimization.disable_specified_optimizers": "Pad_Fusion"}
"""Entry: ONNX Runtime (1.31) makes zeros before a MaxPool the padding of the MaxPool, which counts
as the least number (onnxruntime#24737): scores of YOLOv3-tiny are 0.14 off."""

CPU = "CPUExecutionProvider"

# ONNX Runtime takes any key of the form "session.…" without a word; these are the ones that mean
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
"""Problems come as exceptions; on stderr they would be said twice."""


def session_config(choice: EngineChoice, provider: str = CPU) -> tuple[Words, dict[str, str]]:
    """Turn a line of a profile into options of a session, in words, and options of the provider.

    Raises:
        EngineError: an option that is not known, or a precision that cannot be set.
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
                "the model's own is what runs"
            ) from None
    words = {
        "threads": threads,
        # Waiting threads spin for a millisecond or so; free only where cores are left over.
        "spins": choice.lanes == 1 and threads < cpus,
        "level": level,
        "entries": entries,
        "switches": switches,
    }
    return words, given


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def open_exact(words: Words, make: Callable[[Words], T]) -> tuple[T, Words]:
    """Make something of a session's options; in another exact way where the quick one fails.

    ONNX Runtime (1.31) cannot take the sign off weights whose zero point others use, too, as in
    what tf2onnx writes. Such a network computes in floats.

    Args:
        words: options of a session.
        make: opens what they are for.

    Returns:
        What was made, and its options.
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

    Args:
        words: see above.
        weights: by the name that the graph has for a file: its bytes. They are used where they
            lie, and must live as long as the session.
        ready: the graph has been optimized before: load it as it is.
        extra: more session entries.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    # An explicit count: left to itself it pins one thread to each core, whoever else is there.
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
