"""Tiny networks for tests: ONNX built node by node, IR saved by OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = Sequence[int | str | None]
Value = tuple[str, str, Shape]
"""Name, NumPy's type, sizes: None or a symbol where open."""


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """Make one node; `domain` is an attribute like any other."""
    from onnx import helper

    return helper.make_node(kind, inputs, outputs, **attributes)


def save_onnx(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    weights: Mapping[str, NDArray[Any]] | None = None,
    *,
    metadata: Mapping[str, object] | None = None,
    external: str | None = None,
    weights_are_inputs: bool = False,
    domains: Sequence[str] = (),
) -> Path:
    """Save a network.

    Args:
        path: the .onnx file.
        nodes: in order of execution.
        inputs: without weights.
        outputs: of the graph.
        weights: initializers by name.
        metadata: `metadata_props`, as their text.
        external: name of a file beside it for the weights.
        weights_are_inputs: list them among the inputs too, as exporters did before IR version 4.
        domains: of operators besides ONNX's own.

    """
    import onnx
    from onnx import helper, numpy_helper

    arrays = dict(weights or {})
    listed = [_value(*value) for value in inputs]
    if weights_are_inputs:
        listed += [_value(name, array.dtype.name, array.shape) for name, array in arrays.items()]
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        listed,
        [_value(*value) for value in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(name, 1) for name in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, {key: str(text) for key, text in (metadata or {}).items()})
    if external is None:
        onnx.save(model, path)
    else:
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=0)
    return path


def _value(name: str, dtype: str, shape: Shape) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape)
    )


def times_two(path: Path, dtype: str = "float32", shape: Shape = (1, 3), **how: Any) -> Path:
    """Save y = 2 x, computed in float32 whatever the type of x and y."""
    from onnx import helper

    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("Cast", ["x"], ["wide"], to=1),
        node("Mul", ["wide", "two"], ["doubled"]),
        node("Cast", ["doubled"], ["y"], to=code),
    ]
    weights = {"two": np.full(3, 2, np.float32)}
    return save_onnx(path, nodes, [("x", dtype, shape)], [("y", dtype, shape)], weights, **how)


def convolution(path: Path, **how: Any) -> tuple[Path, NDArray[np.float32], NDArray[np.float32]]:
    """Save a 1x1 convolution of [1, 3, 8, 8] to [1, 4, 8, 8]; give its weight and bias too."""
    random = np.random.default_rng(7)
    weight = random.standard_normal((4, 3, 1, 1), np.float32)
    bias = random.standard_normal(4, np.float32)
    save_onnx(
        path,
        [node("Conv", ["x", "weight", "bias"], ["y"])],
        [("x", "float32", (1, 3, 8, 8))],
        [("y", "float32", (1, 4, 8, 8))],
        {"weight": weight, "bias": bias},
        **how,
    )
    return path, weight, bias


def constant_outputs(
    path: Path,
    outputs: Mapping[str, NDArray[np.float32]],
    *,
    picture: Shape = (1, 3, 32, 32),
    metadata: Mapping[str, object] | None = None,
    end: str | None = None,
) -> Path:
    """Save a network that takes a picture and always gives the same arrays.

    Args:
        path: the .onnx file.
        outputs: by name.
        picture: the input's shape.
        metadata: as for `save_onnx`.
        end: an operator that every output goes through at last, such as Softmax.

    """
    nodes = [
        node("ReduceSum", ["images"], ["sum"], keepdims=0),
        node("Mul", ["sum", "nought"], ["zero"]),
    ]
    for name in outputs:
        last = f"{name}.before" if end else name
        nodes.append(node("Add", [f"{name}.value", "zero"], [last]))
        if end:
            nodes.append(node(end, [last], [name]))
    weights: dict[str, NDArray[Any]] = {"nought": np.zeros((), np.float32)}
    weights |= {f"{name}.value": array for name, array in outputs.items()}
    return save_onnx(
        path,
        nodes,
        [("images", "float32", picture)],
        [(name, "float32", array.shape) for name, array in outputs.items()],
        weights,
        metadata=metadata,
    )


def to_ir(
    onnx_file: Path, xml: Path, info: Mapping[str, Any] | None = None, *, half: bool = False
) -> Path:
    """Convert an ONNX file to IR as OpenVINO's own tools do, with `model_info` in its rt_info."""
    import openvino as ov

    model = ov.Core().read_model(str(onnx_file))
    for key, value in (info or {}).items():
        model.set_rt_info(value, ["model_info", key])
    ov.save_model(model, str(xml), compress_to_fp16=half)
    return xml
