"""The child process of a conversion: loads a network in another format, writes it, runs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.child import answer_question
from ..core.containment import reason, words
from ..core.errors import AgentError, ModelError
from ..core.names import safe_name
from ..core.types import Array, TensorSpec
from ..models.files.check_onnx import inspect
from ..models.files.facts import NetworkFacts
from ..models.files.infer_layout import picture_input, picture_size
from ..models.files.metadata import manifest_of
from ..models.files.tflite_metadata import LABELMAP, draft_with_labels
from ..models.importing import draft_text, manifest_table, write_manifest
from ..models.manifest import MANIFEST
from .golden_cases import golden_inputs, write_golden
from .listed import without_rest
from .pytorch_file import EXPORT
from .wake_word import WakeWordModel

if TYPE_CHECKING:
    from .micro_wake_word import MicroWakeWordModel
    from .pytorch_model import PyTorchModel

LABELS = "labels.txt"
FEW_LABELS = 10
"""Most labels in the manifest; more go into a separate file."""


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    """Make a model folder: network, manifest, and golden outputs.

    Args:
        question: "path" and "kind" of the file; "inputs": shape and type of each given input;
            "folder" to write into.
    """
    path, folder = Path(question["path"]), Path(question["folder"])
    # PyTorch's compiler creates its cache when imported, by default in /tmp, where it would stay.
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
        _tidy(network, original.metadata)
    facts = inspect(network)
    if len(facts.inputs) != len(original.examples):
        raise ModelError(
            f"{path}: has {len(original.examples)} inputs, of which {len(facts.inputs)} count; "
            "export it without the others"
        )
    sizes = [
        # The agent gives one sample at a time, whatever batch it was exported with.
        [
            (1 if axis == 0 else example.shape[axis] or 1) if size is None else size
            for axis, size in enumerate(spec.shape)
        ]
        for spec, example in zip(facts.inputs, original.examples, strict=True)
    ]
    assumed, left, input_ = _write_manifest(folder, facts, safe_name(path.stem), sizes)
    cases, made = golden_inputs(facts, sizes, input_)
    names = [spec.name for spec in facts.outputs]
    outputs = []
    for case in cases:
        found = _step(
            f"{path}: cannot be run on {made}",
            lambda case=case: original.run(list(case.values())),
        )
        if len(found) != len(names):
            raise ModelError(
                f"{path}: gives {len(found)} tensors, but {len(names)} as ONNX; give each once"
            )
        given = without_rest(dict(zip(names, found, strict=True)), facts.detected)
        if not all(np.isfinite(each).all() for each in given.values()):
            raise ModelError(f"{path}: gives numbers that are not finite on {made}")
        outputs.append(given)
    write_golden(folder, cases, outputs)
    return {"assumed": assumed, "left": left, "golden": f"by {original.program}: {made}"}


def _load(
    path: Path, kind: str, inputs: list[TensorSpec]
) -> TfliteModel | WakeWordModel | MicroWakeWordModel | PyTorchModel:
    if kind == "tflite":
        return TfliteModel(path)
    if kind == "wake-word":
        return WakeWordModel(path)
    if kind == "micro-wake-word":
        from .micro_wake_word import MicroWakeWordModel

        return MicroWakeWordModel(path)
    from .pytorch_model import load_source

    return load_source(path, "script" if kind == "script" else "exported", inputs)


def _step(what: str, work: Any) -> Any:
    """Do a step whose errors are the model's fault, and report them with their first cause."""
    try:
        return work()
    except AgentError:
        raise
    except Exception as problem:
        first: BaseException = problem
        while (before := first.__cause__ or first.__context__) is not None:
            first = before
        said = words(first) if isinstance(first, Exception) else ""
        raise ModelError(f"{what}: {said or reason(problem)}") from problem


def _tidy(network: Path, metadata: Mapping[str, str]) -> None:
    """Remove the exporter's notes (paths of its author) from a network, and add ours."""
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
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)
    onnx.save(model, network)


class TfliteModel:
    """A TensorFlow Lite network, run by LiteRT, its own interpreter.

    Devices run the file itself. There is no well-maintained converter to ONNX, and none is needed,
    because OpenVINO reads the format. The golden outputs show whether it computes what LiteRT does.
    """

    file = "model.tflite"
    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.program = f"LiteRT {version('ai-edge-litert')}"
        self._path = path
        self._network = Interpreter(model_path=str(path))
        self._inputs = self._network.get_input_details()
        try:
            self._network.allocate_tensors()
        except (RuntimeError, ValueError) as problem:
            sizes = " and ".join(str(list(map(int, one["shape"]))) for one in self._inputs)
            raise ModelError(
                f"{path}: LiteRT cannot prepare it for inputs of {sizes}; export it with the sizes "
                "that it is used with"
            ) from problem
        self._outputs = self._network.get_output_details()
        self.examples: Sequence[TensorSpec] = [
            TensorSpec(one["name"], tuple(map(int, one["shape"])), np.dtype(one["dtype"]).name)
            for one in self._inputs
        ]

    def save(self, folder: Path) -> None:
        shutil.copyfile(self._path, folder / self.file)
        for name in (LABELS, LABELMAP):  # which its manifest, or draft, may be written from
            with suppress(FileNotFoundError):
                shutil.copyfile(self._path.with_name(name), folder / name)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        for detail, array in zip(self._inputs, inputs, strict=True):
            self._network.set_tensor(detail["index"], array)
        self._network.invoke()
        return [self._network.get_tensor(detail["index"]) for detail in self._outputs]


def _write_manifest(
    folder: Path, facts: NetworkFacts, name: str, sizes: Sequence[Sequence[int]]
) -> tuple[Sequence[str], Sequence[str], Mapping[str, Any]]:
    """Write a network's manifest, or a draft without its questions, with the guesses of `describe`.

    *sizes* are the shapes that its inputs were exported with.

    Returns:
        The assumptions, the open questions, and its [input].
    """
    network = facts.files[0]
    try:
        manifest, assumed = manifest_of(network, name, "1")
    except ModelError:
        if network.suffix == ".onnx" and facts.metadata:
            raise  # its exporter's metadata shows that it is not supported
        draft = draft_with_labels(network, facts)
        said = dict(draft.keys)
        assumptions = list(draft.assumed)
        known = _open_size(facts, sizes)
        if known:
            said["input"] = {**said.get("input", {}), **known}
            assumptions.append("width and height: those of the example it was exported with")
        draft = replace(draft, keys=said, assumed=tuple(assumptions))
        text = draft_text(replace(draft, questions=()), name, "1", network.name)
        (folder / MANIFEST).write_text(text, encoding="utf-8")
        return draft.assumed, draft.questions, said.get("input", {})
    labels = manifest.output.labels
    for beside in (LABELS, LABELMAP):  # they are in the manifest
        (folder / beside).unlink(missing_ok=True)
    if len(labels) > FEW_LABELS and not isinstance(labels, str) and "\n" not in "".join(labels):
        (folder / LABELS).write_text("\n".join(labels) + "\n", encoding="utf-8")
        manifest = replace(manifest, output=replace(manifest.output, labels=LABELS))
    write_manifest(manifest, folder)
    return assumed, (), manifest_table(manifest).get("input", {})


def _open_size(facts: NetworkFacts, sizes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return a picture's width and height if the network leaves them open; else an empty dict."""
    try:
        spec, said = picture_input(facts, "")
    except ModelError:
        return {}
    if None not in picture_size(spec, said["layout"]):
        return {}
    index = next(n for n, one in enumerate(facts.inputs) if one.name == spec.name)
    rows, columns = (2, 3) if said["layout"] == "nchw" else (1, 2)
    return {"width": int(sizes[index][columns]), "height": int(sizes[index][rows])}


if __name__ == "__main__":
    answer_question(_answer)
