"""The cut at a network's input as ONNX Runtime needs it, and the session of what is left.

By the network's own files: only the graph, some hundred kilobytes at most, is rewritten.
"""

from __future__ import annotations

import logging
import platform

import onnxruntime as ort

from ..folding.cut import InputCut
from .native_error import native_reason
from .ort_options import Words, session_options

log = logging.getLogger(__name__)


def fitting(cut: InputCut, words: Words) -> InputCut | None:
    """Return a cut as ONNX Runtime needs it on this processor, to compute as without.

    On x86 it has no convolution for signed steps in front of what quantizes its result: it takes
    the sign off both, if it finds both (`QDQS8ToU8Transformer`; 1.31). Of the first it finds only
    one when the input's quantization is cut off, so the sign is taken off here.
    """
    signed = cut.fold.dtype == "int8" and cut.back is not None
    fit = cut.unsigned() if signed and platform.machine() == "x86_64" else cut
    # With all its optimizations it convolves eight bits with the colors last, and so need not turn
    # the picture around first (rfb320: 0.04 ms of 3.3).
    return fit.turned() if fit is not None and words["level"] == "all" else fit


def folded_session(cut: InputCut, words: Words) -> ort.InferenceSession | None:
    """Load a network on the CPU, with the quantization of its input cut off.

    None where that fails: either the network itself fails, too, or it runs as it is.
    """
    try:
        # From bytes, but few: the weights are read from the network's own files, without the GIL.
        graph, files = cut.open()
        options = session_options(words)
        options.add_external_initializers_from_files_in_memory(
            list(files), list(files.values()), [len(data) for data in files.values()]
        )
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # noqa: BLE001 - its exceptions have no common class but this one
        log.debug("%s: not folded: %s", cut.network, native_reason(problem, cut.network))
        return None
