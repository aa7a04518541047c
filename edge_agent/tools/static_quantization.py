"""ONNX Runtime's static quantization: calibrate once, then quantize as often as wanted, in QDQ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ..core.errors import ModelError
from ..core.scratch import scratch_folder
from ..core.types import Tensors
from .cpu_targets import Target
from .float_model import quiet

Method = Literal["minmax", "percentile", "entropy"]
METHODS: tuple[Method, ...] = get_args(Method)

CHUNK = 4
"""Samples whose tensors are held at a time: histograms keep each one until they are counted."""
PERCENTILE = 99.99
"""Of all numbers that are within the range."""


class _Reader:
    """Samples, as the calibrators take them."""

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
    """Find the range of each tensor and write all of them to a file.

    Args:
        network: float, .onnx.
        samples: inputs of the network.
        ranges: the file to write.
        method: how ranges follow from what was seen.
        kinds: types of operators whose tensors count; none: all.
        advance: called with the number of samples that are done.

    Raises:
        ModelError: a tensor is not finite on these samples.
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
    for name in found.keys():  # noqa: SIM118 - it is no mapping
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
    """Write a network in eight bits, in the QDQ format, weights by channel.

    Args:
        network: float, .onnx.
        out: the file to write.
        ranges: as `calibrate` wrote them.
        target: says how eight bits are used.
        method: that the ranges were made with.
        kinds: types of operators to quantize; none: all that can be.
        exclude: names of operators that stay float.
    """
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
