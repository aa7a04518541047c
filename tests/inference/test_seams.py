"""A new engine or decoder is one module and one line in its registry."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edge_agent.core.errors import EngineError
from edge_agent.core.types import Array, Sample, Tensors, TensorSpec, Values
from edge_agent.inference.batching import load_batch
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import (
    ENGINES,
    Capabilities,
    engine_order,
    exclusive_formats,
    prepared_kind,
    readers,
    runs_arriving,
)
from edge_agent.inference.model import load_model
from edge_agent.models.decoders import DECODERS, DecoderSpec
from edge_agent.models.manifest import load
from tests.helpers.small_models import brightness


class MeanEngine:
    """The smallest engine there can be: it knows one network."""

    label = "mean:CPU"
    inputs = (TensorSpec("picture", (1, 3, 16, 16), "float32"),)
    outputs = (TensorSpec("light", (1,), "float32"),)
    fold = prepared = widened = None

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        return {"light": tensors["picture"].mean(axis=(1, 2, 3))}

    def close(self) -> None: ...


def open_network(*_: Any) -> MeanEngine:
    """Load any network."""
    return MeanEngine()


CAPABILITIES = Capabilities(
    title="Mean",
    module=__name__,
    package="math",
    distributions=(),
    formats={".onnx": "ONNX", ".mean": "a mean"},
    survey=lambda: ("1", {"CPU": "any"}),
)


def doubled(_network: object) -> Any:
    """Build the smallest decoder there can be."""
    return lambda outputs, _inputs, _least: Values({"twice": float(2 * outputs["light"][0])})


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the one line that each registry needs."""
    monkeypatch.setitem(cast("MutableMapping[str, Capabilities]", ENGINES), "mean", CAPABILITIES)
    decoders = cast("MutableMapping[str, DecoderSpec]", DECODERS)
    entry = DecoderSpec(f"{__name__}.doubled", ("regression",))
    monkeypatch.setitem(decoders, "doubled", entry)


def test_a_new_engine_runs_a_model_and_a_new_decoder_reads_it(tmp_path: Path) -> None:
    """Loaded, warmed up, fed with a prepared picture and decoded like with any other."""
    folder = load(brightness(tmp_path / "light"))
    output = replace(folder.manifest.output, decoder=cast("Any", "doubled"))
    folder = replace(folder, manifest=replace(folder.manifest, output=output))
    model = load_model(folder, [EngineChoice("mean")], "picture")
    gray = np.full((32, 32, 3), 60, np.uint8)
    outcome = model.infer(Sample(gray, 0, 0, 0.0))
    assert outcome.engine == "mean:CPU"
    assert outcome.findings == Values({"twice": 120.0})
    with pytest.raises(EngineError, match="the network's batch is fixed"):
        load_batch(model, "picture", 4)
    model.close()


def test_what_a_new_engine_states_is_what_is_asked() -> None:
    """Formats decide who may read a file; what is not stated is not done."""
    choice = EngineChoice("mean")
    assert "mean" in readers(".onnx")
    assert (".mean", "mean") in exclusive_formats()
    assert engine_order([EngineChoice("openvino"), choice], "auto", Path("x.mean")) == [choice]
    with pytest.raises(EngineError, match=r"a mean runs on mean only, but engine = .openvino. is"):
        engine_order([choice], "openvino", Path("x.mean"))
    assert prepared_kind(choice) is None
    assert not runs_arriving(choice)
