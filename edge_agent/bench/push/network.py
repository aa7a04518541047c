"""A picture network of any size, of random weights: cheap to run, as large as wanted to send."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SIDE = 64
"""Pixels of its input."""


def write_network(path: Path, *, rows: int, classes: int) -> None:
    """Write an ONNX network of a picture [1, 3, 64, 64] to logits [1, classes].

    Args:
        path: of the file.
        rows: of its table of weights, float32 [rows, classes]; one of them is read at each
            inference, chosen by the picture, so that no engine can fold the table away.
        classes: of its output.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    chance = np.random.default_rng(rows)
    weights = {
        "table": chance.standard_normal((rows, classes), np.float32),
        "head": chance.standard_normal((3, classes), np.float32),
    }
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["colors"]),
        helper.make_node("ArgMax", ["colors"], ["index"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "index"], ["row"], axis=0),
        helper.make_node("MatMul", ["colors", "head"], ["seen"]),
        helper.make_node("Add", ["row", "seen"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, classes])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
