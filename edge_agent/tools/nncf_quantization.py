"""NNCF's static quantization, where it is installed: another way to the same kind of network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..core.types import Tensors
from .cpu_targets import Target
from .float_model import quiet


def is_installed() -> bool:
    """Whether it can be used."""
    return find_spec("nncf") is not None


def quantize_nncf(
    network: Path,
    out: Path,
    samples: Sequence[Tensors],
    target: Target,
    *,
    exclude: Collection[str] = (),
    stepwise: bool = False,
) -> None:
    """Write a network in eight bits, in the QDQ format.

    Args:
        network: float, .onnx.
        out: the file to write.
        samples: inputs of the network.
        target: says how eight bits are used.
        exclude: names of operators that stay float.
        stepwise: correct biases one after the other, each by what the network gives with those
            before it corrected: longer, and nearer to the float network.
    """
    import logging

    import nncf
    import onnx
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

    fix = OverflowFix.ENABLE if target.reduced else OverflowFix.DISABLE
    scope: Any = nncf.IgnoredScope(names=list(exclude), validate=False) if exclude else None
    nncf.set_log_level(logging.ERROR)
    with quiet():
        made = nncf.quantize(
            onnx.load(network),
            nncf.Dataset(list(map(dict, samples))),
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(samples),
            fast_bias_correction=not stepwise,
            ignored_scope=scope,
            advanced_parameters=AdvancedQuantizationParameters(overflow_fix=fix),
        )
    if not target.signed:
        make_unsigned(made)
    onnx.save(made, out)


def make_unsigned(model: Any) -> None:
    """Have activations in unsigned numbers: the same network, with 128 more in each zero point.

    NNCF writes them signed. Where zero points are not 0, OpenVINO 2026.4 then computes something
    else on x86: YOLOX-nano finds 8 % of what it finds on ONNX Runtime, and all of it when unsigned.

    Args:
        model: an `onnx.ModelProto` in the QDQ format, changed in place.
    """
    import onnx
    from onnx import numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    quantize = {node.output[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    unsigned: dict[str, str] = {}
    """Names of zero points by those of the signed ones."""
    for node in graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in quantize:
            continue
        for each in (quantize[node.input[0]], node):
            name = each.input[2]
            zero = constants.get(name)
            if zero is None or zero.data_type != onnx.TensorProto.INT8:
                continue
            if name not in unsigned:
                unsigned[name] = f"{name}_unsigned"
                points = numpy_helper.to_array(zero).astype(np.int16) + 128
                graph.initializer.append(
                    numpy_helper.from_array(points.astype(np.uint8), unsigned[name])
                )
            each.input[2] = unsigned[name]
    changed = {name for name, node in quantize.items() if node.input[2] in unsigned.values()}
    for value in graph.value_info:
        if value.name in changed:
            value.type.tensor_type.elem_type = onnx.TensorProto.UINT8
