"""Teachable Machine's networks are taken as they are; others with numbered labels are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.types import Classes, Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.importing import import_model
from tests.helpers.tiny_tflite import Tensor, save_teachable, save_tflite

NUMBERED = "0 cat\n1 dog\n2 none\n"
NAMES = ("cat", "dog", "none")


def found(path: Path, level: int) -> tuple[str, ...]:
    """Infer a gray picture by a bare file; return the classes, best first."""
    picture = np.full((96, 96, 3), level, np.uint8)
    with import_model(path) as imported:
        model = load_model(imported.folder, [EngineChoice("openvino")], "picture")
        findings = model.infer(Sample(picture, 0, 0, 0.0)).findings
        model.engine.close()
    assert isinstance(findings, Classes)
    return findings.labels


@pytest.mark.parametrize("labels", [NUMBERED, "\ufeff0 cat\r\n1 dog\r\n2 none", "cat\ndog\nnone\n"])
@pytest.mark.parametrize(
    "given",
    [{}, {"integers": True}, {"side": 96, "colors": 1}, {"bias": 0.0}],
    ids=["floats", "bytes", "gray", "zeros"],
)
def test_its_networks_are_told_by_the_layers_that_it_trains(
    tmp_path: Path, given: dict[str, Any], labels: str
) -> None:
    """A middle square in -1..1 or bytes; some converters write a bias of zeros into the last."""
    path = save_teachable(tmp_path / "model.tflite", 3, **given)
    (tmp_path / "labels.txt").write_bytes(labels.encode())
    made = describe(tmp_path)
    assert made.manifest is not None
    assert made.manifest.output.labels == NAMES
    taken = made.manifest.input
    assert (taken.resize, taken.antialias) == ("crop", True)
    assert taken.per_channel("scale", 1) == ((1,) if given.get("integers") else (127.5,))
    assert any("LANCZOS" in line for line in made.guessed)
    assert (found(path, 225), found(path, 30)) == (NAMES, NAMES[::-1])


def test_without_its_labels_they_alone_are_asked_for(tmp_path: Path) -> None:
    """The rest is known by its layers."""
    made = describe(save_teachable(tmp_path / "model_unquant.tflite", 3))
    assert made.manifest is None
    assert [line.partition(":")[0] for line in made.missing[1:]] == ["output.labels"]
    assert 'resize = "crop"' in made.draft
    assert "scale = 127.5" in made.draft


@pytest.mark.parametrize(
    "given",
    [{"side": 160}, {"colors": 1}, {"hidden": 128}, {"bias": 0.5}],
    ids=["size", "gray", "hidden", "bias"],
)
@pytest.mark.parametrize("name", ["model", "model_unquant"])
def test_numbered_labels_are_no_proof_of_the_family(
    tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    """Labels are used; how pictures are given to another's network is asked, never assumed."""
    save_teachable(tmp_path / f"{name}.tflite", 3, **given)
    (tmp_path / "labels.txt").write_text(NUMBERED)
    made = describe(tmp_path)
    assert made.manifest is None
    asked = "".join(made.missing[1:])
    assert "input.mean and input.scale" in asked
    assert "input.resize" in asked
    assert "output.labels" not in asked
    assert '"cat"' in made.draft
    assert "mean =" not in made.draft


def test_digits_of_28_pixels_with_numbered_labels_are_asked_about(tmp_path: Path) -> None:
    """They were served as the middle square in -1..1 without a word."""
    tensors = [
        Tensor("x", (1, 28, 28, 1)),
        Tensor("w", (2, 784), values=np.ones((2, 784), np.float32)),
        *(Tensor("seen", (1, 2)), Tensor("y", (1, 2))),
    ]
    steps = [(9, 8, (0, 1, -1), (2,)), (25, 9, (2,), (3,))]
    path = save_tflite(tmp_path / "model.tflite", tensors, steps)
    (tmp_path / "labels.txt").write_text("0 zero\n1 one\n")
    assert describe(path).manifest is None
    (tmp_path / "labels.txt").write_text("0 zero\n")
    assert any(line.startswith("output.labels") for line in describe(path).missing)


@pytest.mark.parametrize("side", [224, 160])
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (b"cat\ndog\n", "has 2 lines, the network has 3 classes"),
        (b"", "has 0 lines, the network has 3 classes"),
        (b"cat\n\ndog\nnone\n", "names nothing in line 2"),
        ("cat\ndog\nnone\n".encode("utf-16"), "is not UTF-8 text; save it as UTF-8"),
        (b"cat\n" * 2**19, "is larger than 1 MiB"),
    ],
    ids=["fewer", "none", "blank", "utf-16", "large"],
)
def test_mnist_model_with_flutter_labels_of_another_network_are_told(
    tmp_path: Path, labels: bytes, said: str, side: int
) -> None:
    """They were dropped without a word, and asked for as if there were none."""
    path = save_teachable(tmp_path / "model.tflite", 3, side=side)
    (tmp_path / "labels.txt").write_bytes(labels)
    asked = [line for line in describe(path).missing if line.startswith("output.labels")]
    assert len(asked) == 1
    assert asked[0].endswith(f"in the order of training; the labels.txt beside it {said}")
