"""A network's graph, optimised offline by ONNX Runtime, its weights left in files.

The weights are never all in memory: the engine is given the network's own file as mapped bytes, and
writes what it has changed beside the graph.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.errors import EngineError
from ....models.files.external_weights import MIN_EXTERNAL_BYTES, externalize_weights
from ....models.files.onnx_reader import map_file
from ...engines.ort_options import Words, session_options

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

    from ...folding.cut import InputCut

OPTIMISED = "optimised.onnx"
OPTIMISED_WEIGHTS = "optimised.bin"
_EXTERNAL = 1


class MappedNetwork:
    """A network whose weights stay outside: the graph, and the files that it refers to."""

    def __init__(self, network: Path) -> None:
        """Open a network.

        Raises:
            ModelError: it is not an ONNX file, or its external data is not there.

        """
        from onnx import ModelProto

        self.network = network
        self.files: dict[str, mmap.mmap] = {network.name: map_file(network)}
        self.model: ModelProto = ModelProto()
        self.model.ParseFromString(externalize_weights(self.files[network.name], network.name))
        for tensor in tensors(self.model.graph):
            location, _, _ = whereabouts(tensor)
            if location and location not in self.files:
                self.files[location] = map_file(network.parent / location)

    def fix(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give inputs the sizes that they will have, so that more can be worked out beforehand."""
        for value in self.model.graph.input:
            if value.name in shapes:
                for size, wanted in zip(
                    value.type.tensor_type.shape.dim, shapes[value.name], strict=True
                ):
                    size.dim_value = wanted

    def folded(self, cut: InputCut) -> ModelProto:
        """Give the graph with the quantisation of its input cut off."""
        from onnx import ModelProto

        folded = ModelProto()
        folded.ParseFromString(cut.apply(self.model.SerializeToString()))
        return folded

    def session(self, words: Words, folder: Path, extra: Mapping[str, str], **more: Any) -> Any:
        """Load the network.

        Args:
            words: options of the session.
            folder: for the graph's file; nothing stays in it.
            extra: more session entries.
            more: attributes of the session's options.

        Raises:
            EngineError: ONNX Runtime cannot read or run it.

        """
        import onnxruntime as ort

        path = folder / "skeleton.onnx"
        path.write_bytes(self.model.SerializeToString())
        options = session_options(words, weights=self.files, extra=extra)
        for name, value in more.items():
            setattr(options, name, value)
        try:
            return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as problem:  # its exceptions have no common class but this one
            line = next(iter(str(problem).splitlines()), type(problem).__name__)
            raise EngineError(f"{self.network.name}: {line}") from problem
        finally:
            path.unlink()


def optimise(outside: MappedNetwork, words: Words, folder: Path) -> ModelProto:
    """Write the optimised graph and its weights to a folder; give the graph, without weights.

    Raises:
        EngineError: ONNX Runtime cannot read or run the network.

    """
    from onnx import ModelProto

    extra = {
        "session.optimized_model_external_initializers_file_name": OPTIMISED_WEIGHTS,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(MIN_EXTERNAL_BYTES),
        # Only the graph is wanted: no weights are laid out for computing.
        "session.disable_prepacking": "1",
    }
    outside.session(words, folder, extra, optimized_model_filepath=str(folder / OPTIMISED))
    model = ModelProto()
    model.ParseFromString((folder / OPTIMISED).read_bytes())
    return model


def tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Give all initializers of a graph, and of the graphs within its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else []
            for each in (*inner, *attribute.graphs):
                yield from tensors(each)


def whereabouts(tensor: TensorProto) -> tuple[str, int, int]:
    """Give the file, first byte and length of a tensor; no file: it is in the graph itself."""
    if tensor.data_location != _EXTERNAL:
        return "", 0, 0
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries["location"], int(entries.get("offset", 0)), int(entries.get("length", 0))
