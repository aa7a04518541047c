"""TensorFlow Lite networks that OpenVINO cannot run, each refused by name with the way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_agent.core.errors import ModelError
from edge_agent.inference.engines.ov import core
from edge_agent.models.describing import describe
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.files.check_tflite import _OPTIONS
from edge_agent.models.files.tflite_operators import LACKING
from tests.helpers.tiny_tflite import Tensor, save_tflite

EMPTY = Tensor("none", (0,), 2, values=np.zeros(0, np.int32))
"""A scalar's shape, which has no numbers."""
LENGTH = Tensor("length", (2,), 2, values=np.array([1, 8], np.int32))
SHAPE = Tensor("shape", (3,), 2, values=np.array([1, 1, 5], np.int32))
SPECTRUM = [
    *(Tensor("x", (1, 1, 1, 8)), LENGTH, Tensor("c", (1, 1, 1, 5), 8)),
    *(SHAPE, Tensor("s", (1, 1, 5), 8), Tensor("y", (1, 1, 5))),
]


def spectrum(path: Path, last: int, options: int) -> Path:
    """Save a spectrum whose complex numbers an operator takes at last."""
    steps = [(131, 0, (0, 1), (2,)), (22, 17, (2, 3), (4,)), (last, options, (4,), (5,))]
    return save_tflite(path, SPECTRUM, steps)


def test_birdnet_a_constant_without_numbers_is_no_damage(tmp_path: Path) -> None:
    """A sum of one number is given the shape of a scalar: "that nothing has made", it was said."""
    tensors = [Tensor("x", (1, 1)), EMPTY, Tensor("y", ())]
    path = save_tflite(tmp_path / "m.tflite", tensors, [(22, 17, (0, 1), (2,))])
    assert inspect(path).nodes == 1
    assert core.read_model(str(path)).outputs[0].shape == []


def test_an_empty_tensor_that_an_operator_makes_is_no_constant(tmp_path: Path) -> None:
    """It is made once, by that operator; where none makes it before, the file is damaged."""
    tensors = [Tensor("x", (1, 4)), Tensor("between", (0, 4)), Tensor("y", (0, 4))]
    path = tmp_path / "m.tflite"
    assert (
        inspect(save_tflite(path, tensors, [(14, 0, (0,), (1,)), (14, 0, (1,), (2,))])).nodes == 2
    )
    save_tflite(path, tensors, [(14, 0, (1,), (2,)), (14, 0, (0,), (1,))])
    with pytest.raises(ModelError, match="nothing has made before"):
        inspect(path)


def test_birdnet_a_spectrum_of_which_more_than_sizes_is_taken_is_refused(tmp_path: Path) -> None:
    """OpenVINO has the absolute values of a spectrum, but not its real parts."""
    with pytest.raises(
        ModelError, match=r"operator RFFT2D makes complex.*operator Cast takes"
    ) as e:
        inspect(spectrum(tmp_path / "m.tflite", 53, 37))
    assert "export the network without its spectrum" in str(e.value)
    path = spectrum(tmp_path / "sizes.tflite", 135, 0)
    assert inspect(path).nodes == len(core.read_model(str(path)).outputs) + 2


def test_yolo11_weights_outside_the_flatbuffer_are_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    """As newer exporters for LiteRT write them."""
    tensors = [Tensor("x", (1, 4)), Tensor("y", (1, 4))]
    path = save_tflite(tmp_path / "m.tflite", tensors, behind=bytes(16))
    with pytest.raises(ModelError, match=r"outside its FlatBuffer.*to ONNX or OpenVINO instead"):
        describe(path)


@pytest.mark.parametrize("code", LACKING)
def test_ultralytics_nms_what_openvino_lacks_is_refused_before_it_runs(
    tmp_path: Path, code: int
) -> None:
    """A suppression inside was described in full, and failed when it was run; so did others."""
    tensors = [Tensor("x", (1, 4)), Tensor("y", (1, 4))]
    steps = [(code, _OPTIONS.get(code, 0), (0,), (1,))]
    path = save_tflite(tmp_path / "m.tflite", tensors, steps)
    with pytest.raises(RuntimeError, match=f"No translator found for {LACKING[code]} node"):
        core.read_model(str(path))
    with pytest.raises(ModelError, match=f"operator {LACKING[code]} is one that OpenVINO") as e:
        describe(path)
    mend = "without nms=True" if "SUPPRESSION" in LACKING[code] else "without it, or to ONNX"
    assert mend in str(e.value)
