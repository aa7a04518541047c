"""Areas of the whole frame, and pictures that are like those of a gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.cli.terminal import summary
from edge_agent.config.settings import Pipeline
from edge_agent.core.areas import Areas
from edge_agent.core.errors import ModelError, SampleError
from edge_agent.core.types import Findings, Match, Sample
from edge_agent.inference.agreement import Margin, compare_findings, compare_models
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import load
from edge_agent.runtime.pipelines.draw import annotate, color_of
from edge_agent.runtime.pipelines.frame_path import FramePath
from tests.helpers.tiny_networks import node, save_onnx
from tests.helpers.yolo_networks import unpacked

ENGINES = ("onnxruntime", "openvino")
COLORS = ("red", "green", "blue")
SEMANTIC = {
    "version": "8.4.190",
    "task": "semantic",
    "head": "SemanticSegment",
    "stride": 8,
    "imgsz": [64, 96],
    "names": dict(enumerate(COLORS)),
}


def strongest(path: Path, **how: Any) -> Path:
    """Save a network whose class of a pixel is its strongest channel, as Ultralytics' end."""
    return save_onnx(
        path,
        [
            node("ArgMax", ["images"], ["best"], axis=1, keepdims=0),
            node("Cast", ["best"], ["output0"], to=2),
        ],
        [("images", "float32", (1, 3, 64, 96))],
        [("output0", "uint8", (1, 64, 96))],
        **how,
    )


def scores(path: Path, *, last: bool = False) -> Path:
    """Save one that gives each channel as the score of a class."""
    shape = (1, 64, 96, 3) if last else (1, 3, 64, 96)
    kind = ("Transpose", {"perm": [0, 2, 3, 1]}) if last else ("Identity", {})
    return save_onnx(
        path,
        [node(kind[0], ["images"], ["out"], **kind[1])],
        [("images", "float32", (1, 3, 64, 96))],
        [("out", "float32", shape)],
    )


def flag(width: int = 300, height: int = 300) -> NDArray[np.uint8]:
    """Draw a third of red beside blue, BGR."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:, : width // 3] = (20, 40, 200)
    picture[:, width // 3 :] = (200, 40, 20)
    return picture


def folder(network: Path, task: str, output: str) -> Path:
    """Write a manifest beside a network."""
    text = f'name = "m"\nversion = "1"\ntask = "{task}"\nfile = "{network.name}"\n'
    text += '[input]\nresize = "letterbox"\nscale = 255\n[output]\n'
    (network.parent / "model.toml").write_text(text + output + "\n")
    return network.parent


def loaded(path: Path, engine: str = "onnxruntime") -> Model:
    return load_model(load(path), [EngineChoice(engine)], "picture")


def seen(path: Path, picture: NDArray[np.uint8], **asked: Any) -> Findings:
    """Infer a picture by a folder, and see that the other engine agrees."""
    models = [loaded(path, engine) for engine in ENGINES]
    try:
        tensors = models[0].prepare_data(picture).tensors
        assert compare_models(models[0], models[1], tensors).passed
        return models[1].infer(Sample(picture, 0, 0, 0.0), **asked).findings
    finally:
        for model in models:
            model.close()


def test_a_bare_file_of_ultralytics_gives_areas(tmp_path: Path) -> None:
    """Shares are of the frame: the letterbox's border has none."""
    with import_model(strongest(tmp_path / "sem.onnx", metadata=SEMANTIC)) as imported:
        manifest = imported.folder.manifest
        assert (manifest.task, manifest.decoder) == ("segmentation", "semantic")
        found = seen(imported.folder.path, flag())
    assert isinstance(found, Areas)
    assert found.as_json() == {
        "areas": {"blue": pytest.approx(2 / 3, abs=0.02), "red": pytest.approx(1 / 3, abs=0.02)}
    }
    drawn = annotate(flag(), found)
    assert drawn[200, 50].tolist() == [
        p // 2 + c // 2 for p, c in zip((20, 40, 200), color_of("red"), strict=True)
    ]


@pytest.mark.parametrize("last", [False, True])
def test_smp_a_pixel_of_no_class_is_none(last: bool, tmp_path: Path) -> None:
    """Skin, clothes and hair with a sigmoid each: what is nothing was the least unlikely one."""
    dark = flag()
    dark[150:] = (30, 40, 50)
    network, told = scores(tmp_path / "m.onnx", last=last), 'layout = "sigmoid"\nlabels = '
    third, sixth = (pytest.approx(share, abs=0.02) for share in (1 / 3, 1 / 6))
    path = folder(network, "segmentation", f'{told}["red", "green", "blue"]')
    assert seen(path, dark).as_json() == {"areas": {"blue": third, "red": sixth}}
    path = folder(
        network, "segmentation", f'first_label = -1\n{told}["none", "red", "green", "blue"]'
    )
    areas = {"none": pytest.approx(1 / 2, abs=0.02), "blue": third, "red": sixth}
    assert seen(path, dark).as_json() == {"areas": areas}
    with pytest.raises(ModelError, match=r"output\.layout: 'sigmoid' expects output\.labels"):
        loaded(folder(network, "segmentation", 'layout = "sigmoid"'))
    with pytest.raises(ModelError, match=r"output\.layout"):
        loaded(folder(network, "detection", 'decoder = "semantic"\nlayout = "sigmoid"'))


@pytest.mark.parametrize("kind", ["numbers", "scores", "scores last"])
def test_masks_are_of_the_whole_frame(kind: str, tmp_path: Path) -> None:
    """Where asked, one for each label; a region has no other label's pixels outside of it."""
    network = (
        strongest(tmp_path / "m.onnx")
        if kind == "numbers"
        else scores(tmp_path / "m.onnx", last="last" in kind)
    )
    path = folder(network, "segmentation", 'mask = true\nlabels = ["red", "green", "blue"]')
    made = seen(path, flag()).as_json()
    red = unpacked(made["mask"]["red"])
    assert red.shape == (300, 300)
    wanted = np.zeros((300, 300), bool)
    wanted[:, :100] = True
    assert (red & wanted).sum() >= 0.97 * (red | wanted).sum()
    assert set(made["mask"]) == {"red", "blue"}
    part = seen(path, flag(), region=(50, 100, 150, 200)).as_json()
    assert part["areas"] == {
        "red": pytest.approx(0.5, abs=0.03),
        "blue": pytest.approx(0.5, abs=0.03),
    }
    down, across = np.nonzero(unpacked(part["mask"]["red"]))
    assert (down.min(), down.max()) == (100, 199)
    assert 50 <= across.min() <= across.max() <= 103


def test_areas_are_filtered_and_compared(tmp_path: Path) -> None:
    """By label and least share; another map is another finding."""
    path = folder(
        strongest(tmp_path / "m.onnx"), "segmentation", 'labels = ["red", "green", "blue"]'
    )
    model = loaded(path)
    settings = Pipeline(name="p", source="dir:.", model="m", labels=("red",))
    outcome = FramePath(settings, None).infer(model, Sample(flag(), 0, 0, 0.0))
    assert list(outcome.findings.as_json()["areas"]) == ["red"]
    one, other = (
        model.infer(Sample(each, 0, 0, 0.0)).findings for each in (flag(), flag()[:, ::-1].copy())
    )
    model.close()
    assert compare_findings(one, one, Margin(0.05)).passed
    assert not compare_findings(one, other, Margin(0.05)).passed


def test_a_single_score_and_wrong_labels_are_refused(tmp_path: Path) -> None:
    """Nothing is guessed of classes without a name."""
    single = save_onnx(
        tmp_path / "m.onnx",
        [node("ReduceMean", ["images"], ["out"], axes=[1], keepdims=1)],
        [("images", "float32", (1, 3, 64, 96))],
        [("out", "float32", (1, 1, 64, 96))],
    )
    with pytest.raises(ModelError, match="single score for each pixel: expected 2 labels"):
        loaded(folder(single, "segmentation", 'labels = ["a"]'))
    with pytest.raises(ModelError, match="expected 3 labels for the 3 classes"):
        loaded(folder(scores(tmp_path / "m.onnx"), "segmentation", 'labels = ["a", "b"]'))
    path = folder(strongest(tmp_path / "m.onnx"), "segmentation", 'labels = ["a", "b"]')
    with pytest.raises(SampleError, match="found class 2"):
        seen(path, flag())


def means(path: Path) -> Path:
    """Save a network whose vector of a picture is its mean color, less gray."""
    return save_onnx(
        path,
        [
            node("ReduceMean", ["images"], ["mean"], axes=[2, 3], keepdims=0),
            node("Sub", ["mean", "gray"], ["embedding"]),
        ],
        [("images", "float32", (1, 3, 64, 96))],
        [("embedding", "float32", (1, 3))],
        {"gray": np.array([0.3, 0.3, 0.3], np.float32)},
    )


def plain(*color: int) -> NDArray[np.uint8]:
    return np.full((64, 96, 3), color, np.uint8)


def test_a_picture_matches_the_label_that_is_most_like_it(tmp_path: Path) -> None:
    """By cosine with all vectors of the gallery; nobody where none is like it enough."""
    path = folder(means(tmp_path / "m.onnx"), "embedding", "threshold = 0.8")
    np.savez(path / "gallery.npz", red=[[5, -1, -1], [9, 0, -2]], blue=np.array([-1.0, -1, 5]))
    found = seen(path, plain(10, 30, 240))
    assert isinstance(found, Match)
    (match,) = found.as_json().values()
    assert match["label"] == "red"
    assert match["similarity"] == pytest.approx(0.99, abs=0.02)
    assert seen(path, plain(10, 240, 10)).as_json() == {"match": None}
    assert seen(path, plain(10, 240, 10)).words() == ["no match"]
    assert seen(path, plain(10, 30, 240), threshold=0.9999).as_json() == {"match": None}


def test_a_vector_is_published_where_asked_or_nothing_else_is_there(tmp_path: Path) -> None:
    """Of length 1, so that vectors of results make a gallery."""
    path = folder(means(tmp_path / "m.onnx"), "embedding", "")
    found = seen(path, plain(10, 30, 240))
    first = found.as_json()
    assert first["match"] is None
    assert found.words() == [summary(first)] == ["vector of 3 numbers"]
    assert np.linalg.norm(first["vector"]) == pytest.approx(1)
    np.savez(path / "gallery.npz", red=np.array(first["vector"]))
    folder(path / "m.onnx", "embedding", "threshold = 0.5\nvector = true")
    again = seen(path, plain(10, 30, 240)).as_json()
    assert again["match"] == {"label": "red", "similarity": 1.0}
    assert again["vector"] == pytest.approx(first["vector"], abs=1e-5)


@pytest.mark.parametrize(
    ("arrays", "output", "words"),
    [
        ({"a": np.ones(4)}, "threshold = 0.5", "a: expected vectors of 3 numbers, found"),
        ({"a": np.zeros((2, 3))}, "threshold = 0.5", "a: a vector is all zeros"),
        ({"a": np.array([1, np.nan, 0])}, "threshold = 0.5", "not finite"),
        ({"a": np.array(["x"], object)}, "threshold = 0.5", "cannot be read"),
        ({"a": np.ones((1, 1, 3))}, "threshold = 0.5", "expected vectors"),
        ({}, "threshold = 0.5", "holds no vectors"),
        ({"a": np.ones(3)}, "", "output.threshold: is missing"),
    ],
)
def test_a_gallery_that_cannot_be_meant_is_refused(
    tmp_path: Path, arrays: dict[str, Any], output: str, words: str
) -> None:
    """One line that names the file and the label."""
    path = folder(means(tmp_path / "m.onnx"), "embedding", output)
    np.savez(path / "gallery.npz", **arrays)
    with pytest.raises(ModelError, match=words) as caught:
        loaded(path)
    assert "\n" not in str(caught.value)
