"""Which operators of a TensorFlow Lite file can be run, and what to export in place of the others.

Source: BuiltinOperator in schema.fbs of TensorFlow Lite, whose numbers are used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...core.errors import ModelError
from .flatbuffer import Table
from .protobuf import DamagedError
from .tflite_ssd import POST_PROCESS

_CUSTOM = 32
# By BuiltinOperator: its name in the other formats, if it is used anywhere.
NAMES: Mapping[int, str] = {
    0: "Add",
    1: "AveragePool",
    2: "Concat",
    3: "Conv",
    4: "Conv",
    6: "DequantizeLinear",
    9: "FullyConnected",
    14: "Sigmoid",
    16: "LSTM",
    22: "Reshape",
    25: "Softmax",
    27: "SVDF",
    32: POST_PROCESS,
    39: "Transpose",
    40: "Mean",
    42: "Div",
    43: "Squeeze",
    44: "UNIDIRECTIONAL_SEQUENCE_LSTM",
    47: "Exp",
    53: "Cast",
    70: "Unsqueeze",
    114: "QuantizeLinear",
}
# Operators that contain or call other graphs, and those that keep a state.
_REFUSED: Mapping[int, str] = {
    29: "CONCAT_EMBEDDINGS",
    31: "CALL",
    51: "DELEGATE",
    118: "IF",
    119: "WHILE",
    129: "CALL_ONCE",
    136: "HASHTABLE",
    137: "HASHTABLE_FIND",
    138: "HASHTABLE_IMPORT",
    139: "HASHTABLE_SIZE",
    142: "VAR_HANDLE",
    143: "READ_VARIABLE",
    144: "ASSIGN_VARIABLE",
    147: "BUCKETIZE",
}
LACKING: Mapping[int, str] = {
    10: "HASHTABLE_LOOKUP",
    12: "L2_POOL_2D",
    13: "LOCAL_RESPONSE_NORMALIZATION",
    15: "LSH_PROJECTION",
    16: "LSTM",
    20: "RELU_N1_TO_1",
    24: "RNN",
    27: "SVDF",
    30: "SKIP_GRAM",
    33: "EMBEDDING_LOOKUP_SPARSE",
    35: "UNIDIRECTIONAL_SEQUENCE_RNN",
    44: "UNIDIRECTIONAL_SEQUENCE_LSTM",
    46: "BIDIRECTIONAL_SEQUENCE_RNN",
    52: "BIDIRECTIONAL_SEQUENCE_LSTM",
    68: "SPARSE_TO_DENSE",
    80: "FAKE_QUANT",
    115: "MATRIX_SET_DIAG",
    120: "NON_MAX_SUPPRESSION_V4",
    121: "NON_MAX_SUPPRESSION_V5",
    133: "IMAG",
    134: "REAL",
    141: "CONV_3D_TRANSPOSE",
    146: "RANDOM_STANDARD_NORMAL",
    148: "RANDOM_UNIFORM",
    149: "MULTINOMIAL",
    151: "DYNAMIC_UPDATE_SLICE",
    153: "UNSORTED_SEGMENT_PROD",
    154: "UNSORTED_SEGMENT_MAX",
    155: "UNSORTED_SEGMENT_SUM",
    156: "ATAN2",
    157: "UNSORTED_SEGMENT_MIN",
    159: "BITCAST",
    160: "BITWISE_XOR",
    161: "RIGHT_SHIFT",
}
"""Operators that OpenVINO has no translation for, which alone runs such files."""
_OF_COMPLEX = frozenset({22, 43, 70, 135})
"""Operators that take a spectrum's complex numbers: those that reshape, and the absolute value."""
_BUILT_IN = "export it with built-in operators only"
_FLEX = (
    "it is TensorFlow's, which SELECT_TF_OPS has put in: convert it with TFLITE_BUILTINS alone, a "
    "network with an LSTM or GRU for a batch of 1"
)
_MEDIAPIPE = "only MediaPipe has it: take a network of another family (docs/known-models.md)"
_MENDS: Mapping[str, str] = {
    "Convolution2DTransposeBias": _MEDIAPIPE,
    "Landmarks2TransformMatrix": _MEDIAPIPE,
    "MaxPoolingWithArgmax2D": _MEDIAPIPE,
    "MaxUnpooling2D": _MEDIAPIPE,
    "TransformLandmarks": _MEDIAPIPE,
    "TransformTensorBilinear": _MEDIAPIPE,
    "edgetpu-custom-op": "it is compiled for the Edge TPU; take the .tflite that it was compiled "
    "from, whose name has no _edgetpu",
}
"""The fix for a custom operator."""
_WITHOUT = "export the network without it, or to ONNX"
_NO_SUPPRESSION = (
    "export the network without suppression inside (Ultralytics: without nms=True): it is done "
    "behind the network"
)
_BRANCHING = frozenset({118, 119})
_BRANCHES = (
    "export it without branches and loops, or to ONNX; openWakeWord's come as .onnx, too, which "
    "`edge-agent convert` takes with the two that lie beside it"
)
_FIRST_STABLEHLO = 162


def code_of(table: Table, network: Path) -> int:
    """Return the kind of an operator, by one of the entries that a file lists its kinds in.

    Raises:
        ModelError: it is a custom one, or needs other graphs or a state.
    """
    code = max(table.number(0, "<b"), table.number(3, "<i"))
    if code == _CUSTOM and table.text(1) == POST_PROCESS:
        return code
    if code == _CUSTOM or table.text(1):
        name = table.text(1) or "without a name"
        mend = _FLEX if name.startswith("Flex") else _MENDS.get(name, _BUILT_IN)
        raise ModelError(
            f"{network}: operator {name} is a custom one, and libraries of custom operators are "
            f"not loaded; {mend}"
        )
    if code in _REFUSED or code >= _FIRST_STABLEHLO:
        mend = (
            "export a network that streams for whole windows; of microWakeWord's, `edge-agent "
            f"convert {network} -o FOLDER` makes one whose state goes from window to window"
        )
        raise ModelError(
            f"{network}: operator {_REFUSED.get(code, f'number {code}')} is refused: graphs within "
            "a graph, and operators that keep a state between calls, are not supported; "
            f"{_BRANCHES if code in _BRANCHING else mend}"
        )
    if code < 0:
        raise DamagedError("an operator has no kind")
    return code


def ensure_runs(code: int, *, on_complex: bool, network: Path) -> None:
    """Check that the engine has a translation for an operator.

    Args:
        code: the operator's kind.
        on_complex: whether it takes complex numbers.
        network: the file.

    Raises:
        ModelError: it has none.
    """
    if code in LACKING:
        mend = _NO_SUPPRESSION if LACKING[code].startswith("NON_MAX_SUPPRESSION") else _WITHOUT
        raise ModelError(
            f"{network}: operator {LACKING[code]} is one that OpenVINO, which runs .tflite files, "
            f"does not have; {mend}"
        )
    if on_complex and code not in _OF_COMPLEX:
        raise ModelError(
            f"{network}: operator RFFT2D makes complex numbers, of which OpenVINO, which runs "
            ".tflite files, only has the absolute values (COMPLEX_ABS), and here operator "
            f"{NAMES.get(code, f'number {code}')} takes them; export the network without its "
            "spectrum, or to ONNX"
        )
