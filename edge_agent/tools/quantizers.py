"""Static quantization with ONNX Runtime and with NNCF, to networks in the QDQ format.

Also which eight-bit format suits the processor that a network is quantized for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ..core.errors import ModelError, UsageError
from ..core.frozen import record
from ..core.scratch import scratch_folder
from ..core.types import Tensors
from ..device.hardware import Facts
from ..device.resources import VNNI
from .float_model import quiet

TargetName = Literal["x86", "x86-vnni", "arm"]
Method = Literal["minmax", "percentile", "entropy"]
"""How ONNX Runtime derives a tensor's range from its values."""
METHODS: tuple[Method, ...] = get_args(Method)

CHUNK = 4
"""Samples whose tensors are in memory at a time: histograms keep each until it is counted."""
PERCENTILE = 99.99
"""Percentage of all numbers within the range."""


@record(kw_only=True)
class Target:
    """One kind of processor."""

    name: TargetName
    signed: bool
    """Whether activations are signed, too (S8S8); otherwise unsigned (U8S8)."""
    reduced: bool
    """Whether weights take seven bits."""
    why: str


TARGETS: Mapping[TargetName, Target] = {
    "x86": Target(
        name="x86",
        signed=False,
        reduced=True,
        why="without VNNI, products of eight bits saturate, or are computed in a slower way",
    ),
    "x86-vnni": Target(
        name="x86-vnni", signed=False, reduced=False, why="VNNI sums products in 32 bits"
    ),
    "arm": Target(name="arm", signed=True, reduced=False, why="ARM multiplies signed by signed"),
}


def own_target(facts: Facts) -> Target:
    """Return the target for a machine."""
    if facts.arch == "aarch64":
        return TARGETS["arm"]
    if facts.arch == "x86_64":
        return TARGETS["x86-vnni" if facts.flags & VNNI else "x86"]
    raise UsageError(f"--target auto: {facts.arch} is unknown; name one of {', '.join(TARGETS)}")


def target_of(name: str, facts: Facts) -> Target:
    """Return the target with a name; for "auto", this machine's."""
    return own_target(facts) if name == "auto" else TARGETS[name]  # type: ignore[index]


class _Reader:
    """Samples in the form that the calibrators take."""

    def __init__(self, samples: Sequence[Tensors]) -> None:
        self._left: Iterator[Tensors] = iter(samples)

    def get_next(self) -> Tensors | None:
        return next(self._left, None)


def calibrate(
    network: Path,
    samples: Sequence[Tensors],
    ranges: Path,
    *,
    method: Method = "minmax",
    kinds: Collection[str] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Find the range of each tensor on some inputs, and write all ranges to a file.

    If *kinds* of operators are named, only their tensors count. *advance* is called with the number
    of samples done.
    """
    from onnxruntime.quantization.calibrate import create_calibrator, save_tensors_data

    options: dict[str, Any] = {"percentile": PERCENTILE} if method == "percentile" else {}
    with scratch_folder("calibration") as place, quiet():
        calibrator = create_calibrator(
            network,
            list(kinds) or None,
            augmented_model_path=f"{place}/augmented.onnx",
            calibrate_method=_method(method),
            extra_options=options,
        )
        for start in range(0, len(samples), CHUNK):
            calibrator.collect_data(_Reader(samples[start : start + CHUNK]))
            advance(min(start + CHUNK, len(samples)))
        found = calibrator.compute_data()
    for name in found.keys():  # noqa: SIM118 - not a mapping
        for bound in found[name].range_value:
            if not np.isfinite(bound).all():
                raise ModelError(
                    f"tensor {name!r} is not finite on the calibration samples; leave out the "
                    "sample that brings it there, or mend the network"
                )
    save_tensors_data(found, ranges)


def quantize_onnx(
    network: Path,
    out: Path,
    ranges: Path,
    target: Target,
    *,
    method: Method = "minmax",
    kinds: Collection[str] = (),
    exclude: Collection[str] = (),
) -> None:
    """Write a float network in eight bits, with weights per channel, using ONNX Runtime."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    activations = QuantType.QInt8 if target.signed else QuantType.QUInt8
    with quiet():
        quantize_static(
            network,
            out,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(kinds) or None,
            per_channel=True,
            reduce_range=target.reduced,
            activation_type=activations,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=list(exclude),
            calibrate_method=_method(method),
            calibration_cache_path=ranges,
        )


def _method(name: Method) -> Any:
    from onnxruntime.quantization import CalibrationMethod

    return {
        "minmax": CalibrationMethod.MinMax,
        "percentile": CalibrationMethod.Percentile,
        "entropy": CalibrationMethod.Entropy,
    }[name]


def has_nncf() -> bool:
    """Whether NNCF is installed."""
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
    """Write a float network in eight bits with NNCF; operators named in *exclude* stay float.

    *stepwise*: correct biases one after another, each after those before it: takes longer, and
    comes closer to the float network.
    """
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
    """Make activations unsigned: the same network, with 128 more in each zero point.

    NNCF writes them signed. If zero points are not 0, OpenVINO 2026.4 then computes something else
    on x86: YOLOX-nano finds 8 % of what it finds on ONNX Runtime, and all of it if unsigned.
    """
    import onnx
    from onnx import numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    quantize = {node.output[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    unsigned: dict[str, str] = {}
    """Names of the new zero points by those of the signed ones."""
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
