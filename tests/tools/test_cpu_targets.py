"""What eight bits look like on a processor, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.core.errors import UsageError
from edge_agent.device.hardware import read_facts
from edge_agent.device.resources import VNNI
from edge_agent.inference.agreement import relative_distance
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import ENGINES, open_engine
from edge_agent.tools.evaluation import EXACT
from edge_agent.tools.quantizers import TARGETS, calibrate, own_target, quantize_onnx, target_of
from tests.helpers.tiny_networks import node, save_onnx

CHANNELS = 64


def test_the_target_follows_from_the_processor() -> None:
    """Without VNNI weights take seven bits, with it eight; ARM takes signed activations."""
    facts = replace(read_facts(), arch="x86_64", flags=frozenset({"avx2"}))
    assert (own_target(facts).name, own_target(facts).reduced) == ("x86", True)
    for flag in VNNI:
        vnni = own_target(replace(facts, flags=frozenset({"avx2", flag})))
        assert (vnni.name, vnni.reduced, vnni.signed) == ("x86-vnni", False, False)
    arm = target_of("auto", replace(facts, arch="aarch64"))
    assert (arm.name, arm.signed, arm.reduced) == ("arm", True, False)
    assert target_of("arm", facts) == arm
    with pytest.raises(UsageError, match="riscv64 is unknown"):
        own_target(replace(facts, arch="riscv64"))


@pytest.fixture(scope="module")
def saturating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a network whose products are all as large as eight bits can make them."""
    return save_onnx(
        tmp_path_factory.mktemp("saturating") / "net.onnx",
        [node("Conv", ["x", "weight"], ["y"])],
        [("x", "float32", (1, CHANNELS, 8, 8))],
        [("y", "float32", (1, 8, 8, 8))],
        {"weight": np.full((8, CHANNELS, 1, 1), 1.0, np.float32)},
    )


def error(network: Path, target: str, choice: EngineChoice, place: Path) -> float:
    """Return how far eight bits for a target are from the float network, on an engine."""
    sample = {"x": np.full((1, CHANNELS, 8, 8), 1.0, np.float32)}
    inputs = [{"x": np.zeros_like(sample["x"])}, sample]
    ranges, out = place / "ranges.json", place / f"{target}.onnx"
    calibrate(network, inputs, ranges)
    quantize_onnx(network, out, ranges, TARGETS[target])  # type: ignore[index]
    engine = open_engine(choice, out, lambda _: {})
    found = engine.infer(sample)["y"]
    engine.close()
    return relative_distance(np.full_like(found, CHANNELS), found)


@pytest.mark.parametrize("target", TARGETS)
def test_the_exact_computation_saturates_nowhere(
    saturating: Path, tmp_path: Path, target: str
) -> None:
    """Whatever the processor, it gives what the file says."""
    assert error(saturating, target, EXACT, tmp_path) < 0.02


BYTES = (
    EngineChoice("onnxruntime", options={"session.x64quantprecision": "0"}),
    EngineChoice("openvino", options={"LP_TRANSFORMS_MODE": True}),
)
"""The engines as they come: eight bits are computed as such, saturating or not."""


@pytest.mark.parametrize("choice", BYTES, ids=lambda choice: choice.engine)
def test_this_processor_computes_what_its_own_target_says(
    saturating: Path, tmp_path: Path, choice: EngineChoice
) -> None:
    """What `auto` chooses does not saturate on any engine here, and needs no slower way."""
    target = own_target(read_facts()).name
    assert error(saturating, target, choice, tmp_path) < 0.02


@pytest.mark.skipif(own_target(read_facts()).name != "x86", reason="this processor sums in 32 bits")
def test_full_range_saturates_without_vnni(saturating: Path, tmp_path: Path) -> None:
    """That is what the reduced range is for: with eight bits one engine at least is far off."""
    errors = [error(saturating, "x86-vnni", choice, tmp_path) for choice in BYTES]
    assert max(errors) > 0.2


@pytest.mark.parametrize("engine", ENGINES)
def test_the_agent_computes_full_range_all_the_same(
    saturating: Path, tmp_path: Path, engine: str
) -> None:
    """A network for another processor gives right numbers here, too, be it slower."""
    assert error(saturating, "x86-vnni", EngineChoice(engine), tmp_path) < 0.02
