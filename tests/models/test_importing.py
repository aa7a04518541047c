"""What a user names as a model: exporters' folders are taken, other formats refused with a hint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edge_agent.core.errors import ModelError
from edge_agent.models.importing import file_of, import_model
from tests.helpers.small_models import loudness
from tests.helpers.tiny_networks import times_two, to_ir
from tests.models.test_metadata import METADATA_YAML, ultralytics, zeros


def refused(path: Path, *words: str) -> None:
    """See that a path is refused in one line that has these words."""
    with pytest.raises(ModelError) as caught, import_model(path):
        pass
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in (path.name, *words)), message


def test_ultralytics_folder(tmp_path: Path) -> None:
    """x_openvino_model/ is the .xml in it, with the metadata.yaml beside it."""
    folder = tmp_path / "yolo11n_openvino_model"
    folder.mkdir()
    (folder / "metadata.yaml").write_text(METADATA_YAML)
    to_ir(ultralytics(tmp_path, zeros(1, 7, 42)), folder / "yolo11n.xml")
    with import_model(folder) as imported:
        manifest = imported.folder.manifest
        assert (manifest.name, manifest.file, manifest.decoder) == (
            "yolo11n",
            "yolo11n.xml",
            "yolov8",
        )
        assert (imported.folder.path / "yolo11n.bin").is_file()
    with import_model(folder, "yard", "7") as imported:
        assert imported.folder.manifest.id == "yard@7"


def test_folder_with_the_network_below(tmp_path: Path) -> None:
    """Of several precisions in onnx/, the one that is called model is taken."""
    folder = tmp_path / "someone"
    (folder / "onnx").mkdir(parents=True)
    network = ultralytics(tmp_path, zeros(1, 7, 42))
    (folder / "config.json").write_text("{}")
    for name in ("model.onnx", "model_fp16.onnx", "model_int8.onnx"):
        shutil.copy(network, folder / "onnx" / name)
    assert file_of(folder) == folder / "onnx" / "model.onnx"
    with import_model(folder) as imported:
        assert imported.folder.manifest.name == "model"


def test_folder_with_several_networks(tmp_path: Path) -> None:
    """Where it could be one or another, both are named and none is taken."""
    times_two(tmp_path / "first.onnx")
    times_two(tmp_path / "second.onnx")
    refused(tmp_path, "first.onnx, second.onnx", "model.toml")


def test_a_folder_of_model_folders_names_them(tmp_path: Path) -> None:
    """Not the networks in them, which would lose their manifests; a single one is taken."""
    for name in ("parts", "level"):
        (tmp_path / name).mkdir()
        times_two(tmp_path / name / "model.onnx")
        (tmp_path / name / "model.toml").write_text("")
        if name == "parts":
            assert file_of(tmp_path) == tmp_path / "parts"
    with pytest.raises(ModelError) as caught:
        file_of(tmp_path)
    known = f"{tmp_path / 'level'}, {tmp_path / 'parts'}"
    assert str(caught.value) == f"{tmp_path}: holds several models: name one of {known}"


def test_model_folder_stays_one(tmp_path: Path) -> None:
    """A folder with a manifest is a model folder, whatever else is in it."""
    (tmp_path / "model.toml").write_text("")
    times_two(tmp_path / "first.onnx")
    assert file_of(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("yolo11n.pt", "yolo export model=yolo11n.pt format=onnx"),
        ("net.h5", "tf2onnx"),
        ("net.bin", ".xml"),
        ("net.engine", "other hardware"),
        ("net.tar.gz", "unpack it"),
        ("net.zip", "unpack it"),
        ("net.txt", "nor .tar, .onnx, .xml or .tflite"),
    ],
)
def test_files_of_another_kind_get_a_hint(name: str, hint: str, tmp_path: Path) -> None:
    """What is not a model here is refused with what to do about it."""
    (tmp_path / name).write_bytes(b"x")
    refused(tmp_path / name, hint)


def test_folder_of_another_kind(tmp_path: Path) -> None:
    """So is a folder in which there is nothing else."""
    (tmp_path / "net.h5").write_bytes(b"x")
    refused(tmp_path, "model.toml", "net.h5", "tf2onnx")
    (tmp_path / "net.h5").unlink()
    refused(tmp_path, "neither model.toml nor an .onnx, .xml or .tflite")


def test_a_file_that_a_manifest_beside_it_describes(tmp_path: Path) -> None:
    """A bare file that does not say enough names the folder that does."""
    folder = loudness(tmp_path / "press", window=4)
    refused(folder / "model.onnx", f"the model.toml beside it does: give the folder, {folder}")
    (folder / "model.onnx").rename(folder / "other.onnx")
    with pytest.raises(ModelError) as caught, import_model(folder / "other.onnx"):
        pass
    assert "give the folder" not in str(caught.value)
