"""Exported programs and TorchScript, loaded, exported to ONNX, and run by PyTorch.

Runs in a separate process: files loaded here have been checked (`pytorch_file`), but PyTorch is not
designed for malicious files.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import ModelError, UsageError
from ..core.types import Array, TensorSpec
from .pytorch_file import SAMPLES, Kind, check_exported, check_script

ONNX = "model.onnx"


def load_source(path: Path, kind: Kind, inputs: Sequence[TensorSpec]) -> PyTorchModel:
    """Load a PyTorch file; *inputs* are for TorchScript, which does not contain them.

    Raises:
        ModelError: it would run its own code, is damaged, or takes numbers of a type that is not
            served.
        Exception: PyTorch cannot load it.
    """
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    made = _Exported(path) if kind == "exported" else _Script(path, inputs)
    for example in made.examples:
        is_picture = len(example.shape) == 4  # samples of sensors may be doubles
        if example.dtype == "bfloat16" or (example.dtype == "float64" and is_picture):
            why = f"takes {example.dtype}, which is not served; export it with .float()"
            raise ModelError(f"{path}: {why}")
    return made


class _Exported:
    file = ONNX
    program = f"PyTorch {torch.__version__}"
    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        # Called by `torch.export.load`, which would fall back to an older, pickled format if this
        # fails.
        from torch.export.pt2_archive._package import load_pt2

        reader = torch._C.PyTorchFileReader(str(path))  # noqa: SLF001 - the reader that loads it
        names = frozenset(reader.get_all_records())
        check_exported(names, reader.get_record, str(path))
        _load_plain(reader.get_record(SAMPLES) if SAMPLES in names else b"", str(path))
        program = load_pt2(str(path)).exported_programs["model"]
        # Text that would be executed as Python when the program runs; it only checks inputs.
        program._guards_code = []  # noqa: SLF001
        if program.example_inputs is None:
            raise ModelError(f"{path}: holds no example inputs; export it again with some")
        self._program: Any = program
        self._arguments, self._keywords = program.example_inputs
        leaves = torch.utils._pytree.tree_leaves((self._arguments, self._keywords))  # noqa: SLF001
        self.examples: Sequence[TensorSpec] = [
            _spec(one) for one in leaves if isinstance(one, torch.Tensor)
        ]

    def save(self, folder: Path) -> None:
        made = torch.onnx.export(self._program, verbose=False)
        assert made is not None  # noqa: S101 - only its older exporter returns None
        made.save(folder / ONNX, external_data=False)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        waiting = [torch.from_numpy(each) for each in inputs]
        arguments, keywords = torch.utils._pytree.tree_map(  # noqa: SLF001
            lambda one: waiting.pop(0) if isinstance(one, torch.Tensor) else one,
            (self._arguments, self._keywords),
        )
        with torch.no_grad():
            return _arrays(self._program.module(check_guards=False)(*arguments, **keywords))


def _load_plain(data: bytes, where: str) -> None:
    """Check that example inputs are tensors: PyTorch would unpickle anything else."""
    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as problem:
        raise ModelError(
            f"{where}: {SAMPLES} is pickled Python, which is not run here: export the network with "
            "tensors as example inputs"
        ) from problem


class _Script:
    file = ONNX
    program = f"PyTorch {torch.__version__}"

    def __init__(self, path: Path, inputs: Sequence[TensorSpec]) -> None:
        self._path = path
        reader = torch._C.PyTorchFileReader(str(path))  # noqa: SLF001
        names = reader.get_all_records()
        check_script(names, reader.get_record, str(path))
        self._module = torch.jit.load(str(path), map_location="cpu").eval()
        self.metadata: Mapping[str, str] = _said(
            reader.get_record(_SAID) if _SAID in names else b""
        )
        self.examples: Sequence[TensorSpec] = list(inputs) or _example(self.metadata, path)
        self._names = [each.name for each in self._module.forward.schema.arguments[1:]]
        if len(self.examples) > len(self._names):
            raise UsageError(
                f"--input: given {len(inputs)} times, but {path} takes {len(self._names)} "
                f"({', '.join(self._names)})"
            )

    def save(self, folder: Path) -> None:
        examples = [np.zeros(_sizes(spec), spec.dtype) for spec in self.examples]
        count = len(self.run(examples))
        # The newer exporter traces Python, and so does not work for TorchScript.
        torch.onnx.export(
            self._module,
            tuple(map(torch.from_numpy, examples)),
            str(folder / ONNX),
            dynamo=False,
            input_names=self._names[: len(examples)],
            output_names=["output"] if count == 1 else [f"output{n}" for n in range(count)],
        )

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        try:
            with torch.no_grad():
                return _arrays(self._module(*map(torch.from_numpy, inputs)))
        except (RuntimeError, torch.jit.Error) as problem:
            # The reason comes after the locations in its code.
            why = str(problem).strip().splitlines()[-1]
            given = ", ".join(f"{spec.dtype}{_sizes(spec)}" for spec in self.examples)
            raise ModelError(
                f"{self._path}: does not run on the --input given ({given}): {why}"
            ) from problem


PyTorchModel = _Exported | _Script

_SAID = "extra/config.txt"
"""Entry that Ultralytics' exporter adds to an archive: JSON with the metadata of its ONNX files."""


def _said(data: bytes) -> dict[str, str]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {str(key): str(_numbered(value)) for key, value in said.items()}


def _numbered(value: Any) -> Any:
    """Return a table of names with numbers as keys, which JSON does not support."""
    if isinstance(value, dict) and all(key.isdecimal() for key in value):
        return {int(key): inner for key, inner in value.items()}
    return value


def _example(said: Mapping[str, str], path: Path) -> list[TensorSpec]:
    """Return the input noted by Ultralytics' exporter."""
    try:
        height, width = json.loads(said["imgsz"])
        return [TensorSpec("", (1, 3, int(height), int(width)), "float32")]
    except (KeyError, ValueError, TypeError):
        raise UsageError(
            f"--input: is missing: {path} is TorchScript, which does not say what shape it takes; "
            "e.g. --input 1,3,224,224, once for each input"
        ) from None


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec("", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _sizes(spec: TensorSpec) -> list[int]:
    return [size or 1 for size in spec.shape]


def _arrays(outputs: Any) -> list[Array]:
    return [
        one.detach().numpy()
        for one in torch.utils._pytree.tree_leaves(outputs)  # noqa: SLF001
        if isinstance(one, torch.Tensor)
    ]
