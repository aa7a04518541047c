"""Every detector family, on models that emit tensors computed by hand, through both runtimes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from edge_agent.core.types import Detections, Tensors, TensorSpec
from edge_agent.inference.decode.decoder import build_decoder
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import EngineName, open_engine
from edge_agent.inference.preprocess.inputs import fixed_shapes
from edge_agent.models.decoders import decoders_of
from edge_agent.models.manifest import parse
from tests.helpers.decoder_models import CASES, HEIGHT, WIDTH, Case, write_constant_model

IMAGE = TensorSpec("images", (1, 3, HEIGHT, WIDTH), "float32")
FED = {"images": np.ones((1, 3, HEIGHT, WIDTH), np.float32)}


def run_onnxruntime(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Run a model once with ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, FED), strict=True))


def run_openvino(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Run a model once with OpenVINO."""
    import openvino

    results = openvino.Core().compile_model(path, "CPU")(FED)
    return {output.get_any_name(): results[output] for output in results}


RUNTIMES = {"onnxruntime": run_onnxruntime, "openvino": run_openvino}


def decode(case: Case, outputs: Tensors, *, open_sizes: bool = False) -> Detections:
    """Build the case's decoder for *outputs* and call it."""
    specs = tuple(
        TensorSpec(
            name,
            tuple(
                None if open_sizes and axis != tensor.ndim - 1 else size
                for axis, size in enumerate(tensor.shape)
            ),
            tensor.dtype.name,
        )
        for name, tensor in outputs.items()
    )
    manifest = parse(case.manifest, case.name)
    labels = manifest.output.labels
    assert isinstance(labels, tuple)
    decoder = build_decoder(manifest, labels, (IMAGE,), specs, (WIDTH, HEIGHT))
    found = decoder(outputs, FED, case.threshold)
    assert isinstance(found, Detections)
    return found


def check(found: Detections, case: Case) -> None:
    """Compare with what was computed by hand."""
    assert found.labels == tuple(label for label, _, _ in case.found)
    assert_allclose(found.scores, [score for _, score, _ in case.found], rtol=1e-5)
    assert_allclose(found.boxes, [box for _, _, box in case.found], rtol=1e-5, atol=1e-3)
    assert found.boxes.dtype == found.scores.dtype == np.float32


@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_family_is_read_as_computed_by_hand(case: Case, runtime: str, tmp_path: Path) -> None:
    """A model that emits a family's format gives the boxes that were worked out on paper."""
    path = write_constant_model(tmp_path / "model.onnx", case.outputs)
    found = decode(case, RUNTIMES[runtime](path))
    check(found, case)
    if case.points is not None:
        assert found.points is not None
        assert_allclose(found.points[0], case.points, rtol=1e-5)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "labels" in case.output and not case.by_size],
    ids=lambda case: case.name,
)
def test_family_is_read_where_sizes_are_open(case: Case) -> None:
    """A network that leaves batch and count open is decoded alike, where it has labels."""
    check(decode(case, case.outputs, open_sizes=True), case)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", ["ssd-three-tensors-pixels", "ssd-model-api"])
def test_boxes_whose_sizes_only_a_run_shows_are_read(
    name: str, engine: EngineName, tmp_path: Path
) -> None:
    """Boxes that an engine declares as float32[?, ?] are read by their name, on each engine."""
    case = next(case for case in CASES if case.name == name)
    path = write_constant_model(tmp_path / "model.onnx", case.outputs, unknown=case.outputs)
    manifest = parse(case.manifest, case.name)
    assert isinstance(manifest.output.labels, tuple)
    opened = open_engine(
        EngineChoice(engine, threads=1), path, fixed_shapes(manifest.input, "picture")
    )
    shapes = {output.name: output.shape for output in opened.outputs}
    assert shapes["boxes"] == (None, None)
    decoder = build_decoder(
        manifest, manifest.output.labels, opened.inputs, opened.outputs, (WIDTH, HEIGHT)
    )
    found = decoder(opened.infer(FED), FED, case.threshold)
    assert isinstance(found, Detections)
    check(found, case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_reaches_an_impossible_threshold(case: Case) -> None:
    """Without candidates there are no detections, and no error."""
    strict = Case(case.name, case.decoder, case.outputs, (), case.output, threshold=1.5)
    found = decode(strict, case.outputs)
    assert len(found) == 0
    assert found.boxes.shape == (0, 4)
    assert found.labels == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_half_floats_are_read(case: Case) -> None:
    """Outputs of float16 give the same boxes, within their precision."""
    halves = {
        name: tensor.astype(np.float16) if tensor.dtype == np.float32 else tensor
        for name, tensor in case.outputs.items()
    }
    found = decode(case, halves)
    assert found.labels == tuple(label for label, _, _ in case.found)
    assert_allclose(found.boxes, [box for _, _, box in case.found], atol=0.2)


def test_no_detector_is_left_out() -> None:
    """Each decoder of the task detection has a case; lines of text are in test_text."""
    assert {case.decoder for case in CASES} == set(decoders_of("detection")) - {"db"}
