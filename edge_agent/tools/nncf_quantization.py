"""NNCF's static quantisation, where it is installed: another way to the same kind of network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.types import Tensors
from .network import quiet
from .targets import Target


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
) -> None:
    """Write a network in eight bits, in the QDQ format.

    Args:
        network: float, .onnx.
        out: the file to write.
        samples: inputs of the network.
        target: says how eight bits are used.
        exclude: names of operators that stay float.

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
            ignored_scope=scope,
            advanced_parameters=AdvancedQuantizationParameters(overflow_fix=fix),
        )
    onnx.save(made, out)
