"""The child process of a conversion: loads a network of another format, writes it, runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..core.child import answer_question
from ..core.containment import reason
from ..core.errors import AgentError, ModelError
from ..core.names import safe_name
from ..core.types import TensorSpec
from ..models.files.check_onnx import inspect
from .golden_cases import golden_inputs, write_golden
from .manifest_draft import draft_manifest
from .pytorch_file import EXPORT
from .source_model import SourceModel


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    """Make a model folder: network, manifest and golden outputs.

    Args:
        question: "path" of the file, "kind" of it, "inputs": shape and type of each that was
            given; "folder" to write into.

    Raises:
        AgentError: it cannot be loaded, converted or run.
    """
    path, folder = Path(question["path"]), Path(question["folder"])
    # PyTorch's compiler makes its cache when it is imported, else in /tmp, where it stays.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.parent / "cache")
    inputs = [TensorSpec("", tuple(shape), dtype) for shape, dtype in question["inputs"]]
    original = _step(f"{path}: cannot be loaded", lambda: _load(path, question["kind"], inputs))
    try:
        _step(f"{path}: cannot be converted", lambda: original.save(folder))
    except ModelError as problem:
        if question["kind"] != "script":
            raise
        again = EXPORT.format(stem=path.stem)
        raise ModelError(f"{problem}; an exported program may do: {again}") from problem
    network = folder / original.file
    if network.suffix == ".onnx":
        _tidy(network, original)
    facts = inspect(network)
    if len(facts.inputs) != len(original.examples):
        raise ModelError(
            f"{path}: has {len(original.examples)} inputs, of which {len(facts.inputs)} count; "
            "export it without the others"
        )
    sizes = [
        # The agent gives one sample at a time, whatever the exporter was given.
        [
            (1 if axis == 0 else example.shape[axis] or 1) if size is None else size
            for axis, size in enumerate(spec.shape)
        ]
        for spec, example in zip(facts.inputs, original.examples, strict=True)
    ]
    drafted = draft_manifest(folder, facts, safe_name(path.stem), sizes)
    cases, words = golden_inputs(facts, sizes, drafted.input)
    names = [spec.name for spec in facts.outputs]
    outputs = []
    for case in cases:
        found = _step(f"{path}: cannot be run", lambda case=case: original.run(list(case.values())))
        if len(found) != len(names):
            raise ModelError(
                f"{path}: gives {len(found)} tensors, but {len(names)} as ONNX; give each once"
            )
        if not all(np.isfinite(each).all() for each in found):
            raise ModelError(f"{path}: gives numbers that are not finite on {words}")
        outputs.append(dict(zip(names, found, strict=True)))
    write_golden(folder, cases, outputs)
    return {
        "assumed": drafted.assumed,
        "left": drafted.left,
        "golden": f"by {original.program}: {words}",
    }


def _load(path: Path, kind: str, inputs: list[TensorSpec]) -> SourceModel:
    if kind == "tflite":
        from .source_model import TfliteModel

        return TfliteModel(path)
    from .pytorch_model import load_source

    return load_source(path, "script" if kind == "script" else "exported", inputs)


def _step(what: str, work: Any) -> Any:
    """Do something whose errors are the model's; they are told by what began them."""
    try:
        return work()
    except AgentError:
        raise
    except Exception as problem:
        first: BaseException = problem
        while (before := first.__cause__ or first.__context__) is not None:
            first = before
        raise ModelError(
            f"{what}: {reason(first if isinstance(first, Exception) else problem)}"
        ) from problem


def _tidy(network: Path, original: SourceModel) -> None:
    """Take the exporter's notes out of a network (places in its author's files), and add ours."""
    import onnx

    model = onnx.load(network)
    for part in (
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
        *model.graph.initializer,
        model.graph,
    ):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for function in model.functions:
        for node in function.node:
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
    for key, text in original.metadata.items():
        model.metadata_props.add(key=key, value=text)
    onnx.save(model, network)


if __name__ == "__main__":
    answer_question(_answer)
