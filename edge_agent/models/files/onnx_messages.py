"""The messages of ONNX's format, without the rest of its package.

The package imports its checker, its helpers and types for NumPy: 60 ms on the way to a first
result, of which the messages take 13.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

_MESSAGES = "onnx.onnx_ml_pb2"
_lock = threading.Lock()


def new_model() -> ModelProto:
    """Return an empty model."""
    model: ModelProto = _model_class()()
    return model


def _model_class() -> Any:
    with _lock:
        if "onnx" not in sys.modules and _MESSAGES not in sys.modules:
            _load_messages()
        # The classes must be one and the same: what imports the package later finds them here.
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
            return  # a version that keeps them elsewhere
        sys.modules[_MESSAGES] = module
