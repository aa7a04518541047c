"""Pipes, devices and links in place of a model's files: refused before they are read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edge_agent.core.errors import ModelError
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import load
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from tests.helpers.model_folders import make_model

WORDS = "is no plain file"


def replace(path: Path, kind: str) -> None:
    """Put a pipe, or a link to a device that never ends, where a file was."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_manifest_that_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Neither waited for nor read without end."""
    folder = make_model(tmp_path / "face")
    replace(folder / "model.toml", kind)
    with pytest.raises(ModelError, match=rf"model\.toml: {WORDS}"):
        load(folder)


@pytest.mark.parametrize("name", ["model.onnx", "drift.json"])
def test_a_pipe_as_another_file_of_a_model_is_named(tmp_path: Path, name: str) -> None:
    """It is there, hence not missing."""
    folder = make_model(tmp_path / "face")
    network = load(folder).network.name
    path = folder / (network if name == "model.onnx" else name)
    replace(path, "pipe")
    with pytest.raises(ModelError, match=rf"{path.name}' {WORDS}"):
        load(folder)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_bare_network_that_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    """It is there, hence not "no such file"."""
    replace(tmp_path / "face.onnx", kind)
    with pytest.raises(ModelError, match=rf"face\.onnx: {WORDS}"):
        inspect(tmp_path / "face.onnx")


@pytest.mark.parametrize("kind", ["pipe", "nothing"])
def test_a_folder_with_such_a_manifest_is_reported(tmp_path: Path, kind: str) -> None:
    """A model in models_dirs does not vanish without a word."""
    folder = make_model(tmp_path / "models" / "face")
    manifest = folder / "model.toml"
    replace(manifest, "pipe")
    if kind == "nothing":
        manifest.unlink()
        manifest.symlink_to("nowhere")
    catalog = Catalog(Store(tmp_path / "state"), [tmp_path / "models"], None)
    (line,) = catalog.problems()
    assert line.startswith(str(manifest))


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_a_link_or_device_is_not_copied_under_another_version(tmp_path: Path, kind: str) -> None:
    """It is refused as `pack` refuses it, and named where the user has it."""
    folder = make_model(tmp_path / "face")
    extra = folder / "extra.bin"
    if kind == "link":
        extra.symlink_to("model.toml")
    else:
        replace(extra, kind)
    refused = pytest.raises(ModelError, match=rf"{extra}: is a link or no plain file")
    with refused as caught, import_model(folder, version="7"):
        pass
    assert "\n" not in str(caught.value)


def test_hidden_files_are_not_copied_under_another_version(tmp_path: Path) -> None:
    """As in a package; all others are, with the new version."""
    folder = make_model(tmp_path / "face")
    (folder / ".git").mkdir()
    (folder / "more").mkdir()
    shutil.copy(folder / "model.toml", folder / "more" / "notes.toml")
    with import_model(folder, version="7") as imported:
        assert imported.folder.manifest.version == "7"
        assert (imported.folder.path / "more" / "notes.toml").is_file()
        assert not (imported.folder.path / ".git").exists()
