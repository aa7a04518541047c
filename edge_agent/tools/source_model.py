"""A network in another format, as conversion sees it: it can be written down and run.

A .tflite is run by LiteRT, its own interpreter; the file itself is what a device runs. There is no
well-kept converter of it to ONNX, and none is needed: OpenVINO reads it. Whether that computes what
LiteRT does is what the golden outputs tell.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import numpy as np

from ..core.types import Array, TensorSpec


class SourceModel(Protocol):
    """A loaded network that is to be converted."""

    file: str
    """Name of the network's file in the folder that is made."""
    program: str
    """What runs it, with its version."""
    examples: Sequence[TensorSpec]
    """Its inputs, in order, with the sizes that it was exported with; names do not count."""
    metadata: Mapping[str, str]
    """What its exporter says of it, as an ONNX file has it."""

    def save(self, folder: Path) -> None:
        """Write the network's file into a folder.

        Raises:
            Exception: it cannot be converted.
        """

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run it; arrays in the order of its own inputs and outputs."""


class TfliteModel:
    """A network of TensorFlow Lite."""

    file = "model.tflite"
    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.program = f"LiteRT {version('ai-edge-litert')}"
        self._path = path
        self._network = Interpreter(model_path=str(path))
        self._network.allocate_tensors()
        self._inputs = self._network.get_input_details()
        self._outputs = self._network.get_output_details()
        self.examples: Sequence[TensorSpec] = [
            TensorSpec(one["name"], tuple(map(int, one["shape"])), np.dtype(one["dtype"]).name)
            for one in self._inputs
        ]

    def save(self, folder: Path) -> None:
        shutil.copyfile(self._path, folder / self.file)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        for detail, array in zip(self._inputs, inputs, strict=True):
            self._network.set_tensor(detail["index"], array)
        self._network.invoke()
        return [self._network.get_tensor(detail["index"]) for detail in self._outputs]
