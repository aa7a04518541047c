"""Golden cases: how they are compared, and which files are believed."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.golden import (
    compare_golden,
    read_golden,
)
from edge_agent.inference.model import Model, load_model
from edge_agent.inference.probe import probe_inputs
from edge_agent.models.manifest import load
from tests.helpers.small_models import detector
from tests.helpers.tiny_networks import constant_outputs

PICTURE: NDArray[np.float32] = np.full((1, 3, 32, 32), 7, np.float32)
SCORES: NDArray[np.float32] = np.array([[0.1, 0.7, 0.2]], np.float32)

Opener = Callable[..., Model]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Open models that give SCORES for every picture; closed after the test."""
    made: list[Model] = []

    def make(task: str = "classification", **more: Any) -> Model:
        decoder = {"classification": "softmax", "raw": "raw"}[task]
        labels = {"labels": ["a", "b", "c"]} if task == "classification" else {}
        table = {
            "name": "level",
            "version": "1",
            "task": task,
            "file": "model.onnx",
            "output": {"decoder": decoder, **labels},
            **more,
        }
        (tmp_path / "model.toml").write_text(tomli_w.dumps(table))
        constant_outputs(tmp_path / "model.onnx", {"scores": SCORES})
        model = load_model(load(tmp_path), [EngineChoice("onnxruntime")], "picture")
        made.append(model)
        return model

    yield make
    for model in made:
        model.close()


def golden(model: Model, **arrays: Any) -> Path:
    """Write golden.npz; "__" stands for the "/" in a name."""
    path = model.folder.path / "golden.npz"
    np.savez(path, **{name.replace("__", "/"): array for name, array in arrays.items()})
    return path


def test_a_model_without_golden_cases_is_not_compared(opened: Opener) -> None:
    """No golden.npz is no error and no agreement."""
    assert compare_golden(opened()) is None


def test_a_case_that_gives_what_it_gave_agrees(opened: Opener) -> None:
    """The same best class passes, whatever the last bits of the scores; one case is no axis."""
    model = opened()
    golden(model, input__images=PICTURE, output__scores=SCORES + np.float32(0.01))
    agreement = compare_golden(model)
    assert agreement is not None
    assert agreement.passed
    assert agreement.why == "1 case agrees"


def test_several_cases_lie_along_a_leading_axis(opened: Opener) -> None:
    """Each case is run on its own; all agree."""
    model = opened()
    golden(model, input__images=np.stack([PICTURE] * 3), output__scores=np.stack([SCORES] * 3))
    assert len(read_golden(model)) == 3
    agreement = compare_golden(model)
    assert agreement is not None
    assert agreement.passed


def test_another_best_class_is_a_disagreement(opened: Opener) -> None:
    """Which class was expected and which came is said, with the number of the case."""
    model = opened()
    other = np.array([[0.8, 0.1, 0.1]], np.float32)
    golden(model, input__images=np.stack([PICTURE] * 2), output__scores=np.stack([SCORES, other]))
    agreement = compare_golden(model)
    assert agreement is not None
    assert not agreement.passed
    assert (
        agreement.why == "case 1: best class b, expected a ([trial] tolerance = 0.05 in model.toml)"
    )


@pytest.mark.parametrize(("off", "passed"), [(0.02, True), (0.8, False)])
def test_a_case_in_which_nothing_is_found_compares_outputs(
    off: float, passed: bool, tmp_path: Path
) -> None:
    """As flat squares, which `convert` writes, are nothing for a detector: no box is no proof."""
    folder = detector(tmp_path / "found", [(0, 0.1, 0.1, 0.1, 0.4, 0.9)], ["person"])
    model = load_model(load(folder), [EngineChoice("onnxruntime")], "picture")
    row = (0, 0, 0.1, 0.1 + off, 0.1, 0.4 - off, 0.9 - off)
    ((name, picture),) = probe_inputs(model.engine.inputs, seed=1).items()
    arrays = {f"input__{name}": picture, "output__detection_out": np.array([[[row]]], np.float32)}
    golden(model, **arrays)
    agreement = compare_golden(model)
    model.close()
    assert agreement is not None
    assert agreement.passed is passed, agreement.why
    assert passed or "cosine" in agreement.why


def test_raw_tensors_agree_within_the_manifests_tolerance(opened: Opener) -> None:
    """A tensor 2 % off passes at the usual 5 %, and fails where the manifest wants 1 %."""
    model = opened("raw")
    golden(model, input__images=PICTURE, output__scores=SCORES * np.float32(1.02))
    agreement = compare_golden(model)
    assert agreement is not None
    assert agreement.passed
    model = opened("raw", trial={"tolerance": 0.01})
    agreement = compare_golden(model)
    assert agreement is not None
    assert not agreement.passed
    assert agreement.why.startswith("case 0: output scores: relative distance 0.0196 ([trial] tol")


def test_outputs_of_another_float_width_are_compared(opened: Opener) -> None:
    """A float16 output of one engine is held against a float32 one of another."""
    model = opened()
    golden(model, input__images=PICTURE, output__scores=SCORES.astype(np.float16))
    agreement = compare_golden(model)
    assert agreement is not None
    assert agreement.passed


def pickled(path: Path) -> None:
    """Write an array of Python objects."""
    np.savez(path, **{"input/images": np.array([{"a": 1}], object)}, allow_pickle=True)


def renamed(path: Path) -> None:
    """Write members that are arrays by their names alone."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("input/images.npy", b"not an array")
        archive.writestr("output/scores.npy", b"not an array")


def deflated(path: Path) -> None:
    """Write an archive whose one member is damaged inside its compressed data."""
    arrays: dict[str, Any] = {"input/images": np.zeros((1, 3, 32, 32), np.float32)}
    np.savez_compressed(path, **arrays)
    data = bytearray(path.read_bytes())
    begin = data.index(b".npy") + 40
    data[begin : begin + 30] = b"\xff" * 30
    path.write_bytes(bytes(data))


def bomb(path: Path) -> None:
    """Write 300 MiB of zeros in a few hundred kilobytes."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("input/images.npy", "w") as member,
    ):
        for _ in range(300):
            member.write(bytes(2**20))


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "cut short": (lambda path: path.write_bytes(b"PK\3\4" + bytes(60)), "cannot be read"),
    "an array instead of an archive": (
        lambda path: np.save(path.open("wb"), PICTURE),
        "cannot be read",
    ),
    "pickled": (pickled, "cannot be read: it holds Python objects"),
    "no arrays inside": (renamed, "input/images: is not an array of numbers"),
    "damaged inside": (deflated, "cannot be read"),
    "a bomb": (bomb, "300 MiB of arrays, expected at most 256"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_is_no_archive_of_arrays_is_refused(kind: str, opened: Opener) -> None:
    """Damaged, pickled and exploding files are one line, and nothing in them is run."""
    write, line = DAMAGED[kind]
    model = opened()
    write(model.folder.path / "golden.npz")
    with pytest.raises(ModelError) as caught:
        read_golden(model)
    assert line in str(caught.value)
    assert str(caught.value).startswith("level@1: golden.npz: ")


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown array": ({"image": PICTURE}, "lacks input/images"),
    "one array more": (
        {"input__images": PICTURE, "output__scores": SCORES, "output__x": SCORES},
        "expected input/images, output/scores; unknown: output/x",
    ),
    "no input": ({"output__scores": SCORES}, "lacks input/images"),
    "no output": ({"input__images": PICTURE}, "holds no output/<tensor>"),
    "another shape": (
        {"input__images": PICTURE[:, :, :9], "output__scores": SCORES},
        "input/images: expected images float32[1, 3, 32, 32], found float32[1, 3, 9, 32]",
    ),
    "another rank": (
        {"input__images": PICTURE[0, 0], "output__scores": SCORES},
        "input/images: expected 4 axes, or 5 with one of cases; found 2",
    ),
    "another type": (
        {"input__images": PICTURE.astype(np.uint8), "output__scores": SCORES},
        "input/images: expected images float32[1, 3, 32, 32], found uint8[1, 3, 32, 32]",
    ),
    "another output": (
        {"input__images": PICTURE, "output__scores": SCORES[:, :2]},
        "output/scores: expected scores float32[1, 3], found float32[1, 2]",
    ),
    "NaN": (
        {"input__images": PICTURE, "output__scores": SCORES * np.float32("nan")},
        "output/scores: holds NaN or infinity",
    ),
    "text": (
        {"input__images": np.array([["a"]]), "output__scores": SCORES},
        "input/images: is not an array of numbers",
    ),
    "other counts": (
        {"input__images": np.stack([PICTURE] * 2), "output__scores": SCORES},
        "every array needs the same number of cases",
    ),
    "no cases": (
        {"input__images": PICTURE[None][:0], "output__scores": SCORES[None][:0]},
        "every array needs the same number of cases",
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_cases_that_do_not_fit_the_network_are_refused(kind: str, opened: Opener) -> None:
    """Expected and found, by name of the tensor, before any engine sees the arrays."""
    arrays, line = MISFITS[kind]
    model = opened()
    golden(model, **arrays)
    with pytest.raises(ModelError) as caught:
        compare_golden(model)
    assert line in str(caught.value)
