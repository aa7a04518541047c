"""The part of onnx.proto that this package uses: numbers of fields and types, and messages.

Source: onnx.proto of ONNX 1.19.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSET, MODEL_FUNCTION = 1, 7, 8, 25

GRAPH_NODE, GRAPH_NAME, GRAPH_INITIALIZER = 1, 2, 5
GRAPH_INPUT, GRAPH_OUTPUT = 11, 12
GRAPH_AFTER_WEIGHTS = frozenset({10, GRAPH_INPUT, GRAPH_OUTPUT, 13, 14, 16})
"""Fields after the initializers, if fields are in the order of their numbers."""

NODE_INPUT, NODE_OUTPUT, NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 4, 5, 7

ATTRIBUTE_NAME, ATTRIBUTE_TENSOR = 1, 5
ATTRIBUTE_GRAPHS = frozenset({6, 11})
"""Fields of an attribute with one graph, and with several."""
INTS = 7
"""AttributeProto.AttributeType of a list of integers."""

TENSOR_TYPE, TENSOR_NAME = 2, 8
TENSOR_RAW, TENSOR_DOC, TENSOR_EXTERNAL_DATA, TENSOR_DATA_LOCATION = 9, 12, 13, 14
TENSOR_DATA = frozenset({4, 5, 7, TENSOR_RAW, 10, 11})
"""Fields with float, int32, int64, raw, double, and uint64 data."""
EXTERNAL = 1
"""TensorProto.DataLocation for data in another file."""
ENTRY_KEY, ENTRY_VALUE = 1, 2

VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE = 1, 2, 1, 1, 2
SHAPE_SIZE, SIZE_NUMBER = 1, 1

TENSOR = "tensor"
TENSORS_WITHIN: Mapping[str, Mapping[int, str]] = {
    "model": {MODEL_GRAPH: "graph", MODEL_FUNCTION: "function"},
    "graph": {GRAPH_NODE: "node", GRAPH_INITIALIZER: TENSOR, 15: "sparse"},
    "function": {7: "node"},
    "node": {NODE_ATTRIBUTE: "attribute"},
    "attribute": {
        ATTRIBUTE_TENSOR: TENSOR,
        10: TENSOR,
        22: "sparse",
        23: "sparse",
        **dict.fromkeys(ATTRIBUTE_GRAPHS, "graph"),
    },
    "sparse": {1: TENSOR, 2: TENSOR},
}
"""By message: the fields that lead to tensors, and the message in each."""

# TensorProto.DataType
FLOAT, UINT8, INT8, STRING, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 3, 8, 10, 11, 16

DTYPES: Mapping[int, tuple[str, int]] = {
    FLOAT: ("float32", 32),
    UINT8: ("uint8", 8),
    INT8: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    9: ("bool", 8),
    FLOAT16: ("float16", 16),
    DOUBLE: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    BFLOAT16: ("bfloat16", 16),
    17: ("float8e4m3fn", 8),
    18: ("float8e4m3fnuz", 8),
    19: ("float8e5m2", 8),
    20: ("float8e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4e2m1", 4),
    24: ("float8e8m0", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
}
"""By TensorProto.DataType: name, NumPy's if it has one, and bits per element."""
NUMBERS: Mapping[str, int] = {name: number for number, (name, _) in DTYPES.items() if number < 14}
"""TensorProto.DataType by name, for NumPy's types of real numbers."""

_MESSAGES = "onnx.onnx_ml_pb2"
_lock = threading.Lock()


def new_model() -> ModelProto:
    """Return an empty model, using only the message classes of the ONNX package.

    The package also imports its checker, helpers, and types for NumPy: 60 ms before a first result,
    of which the messages take 13.
    """
    model: ModelProto = _model_class()()
    return model


def _model_class() -> Any:
    with _lock:
        if "onnx" not in sys.modules and _MESSAGES not in sys.modules:
            _load_messages()
        # The classes must be the same: later imports of the package find them here.
        return (sys.modules.get(_MESSAGES) or import_module("onnx")).ModelProto


def _load_messages() -> None:
    package = find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        spec = spec_from_file_location(_MESSAGES, f"{folder}/onnx_ml_pb2.py")
        if spec is None or spec.loader is None:
            return
        module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (ImportError, OSError):
            return  # another version, with the classes elsewhere
        sys.modules[_MESSAGES] = module
