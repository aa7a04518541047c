"""The library: which versions there are in all places, and which of them runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.core.errors import ModelError
from edge_agent.models.manifest import load
from edge_agent.models.store.catalog import Library
from edge_agent.models.store.install import install_folder
from edge_agent.models.store.store import Store
from tests.helpers.model_folders import make_model


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Make a library with an empty store and two empty read-only places."""
    for folder in ("models", "bundled"):
        (tmp_path / folder).mkdir()
    return Library(Store(tmp_path / "state"), [tmp_path / "models"], tmp_path / "bundled")


def put(library: Library, place: str, version: str) -> Path:
    """Put a version into one of the read-only places."""
    return make_model(library.store.root.parent / place / f"face-{version}", version=version)


def stored(library: Library, version: str) -> Path:
    """Install a version into the store without accepting it."""
    made = make_model(library.store.root.parent / "made" / version, version=version)
    return install_folder(library.store, load(made)).path


def test_highest_version_over_all_places_runs(library: Library) -> None:
    """Without a live pointer the highest number wins, wherever it lies."""
    put(library, "bundled", "1.10")
    put(library, "models", "1.9")
    assert library.live("face").manifest.version == "1.10"
    put(library, "models", "2")
    assert library.live("face").manifest.version == "2"
    assert [entry.version for entry in library.versions("face")] == ["2", "1.10", "1.9"]


def test_live_pointer_outweighs_higher_versions(library: Library) -> None:
    """What was activated runs, though a bundled version is higher."""
    put(library, "bundled", "9")
    stored(library, "2")
    library.store.activate("face", "2")
    assert library.live("face").manifest.version == "2"
    assert library.find("face").manifest.version == "2"
    assert library.find("face", "9").path.parent.name == "bundled"


def test_same_version_comes_from_the_store_first(library: Library) -> None:
    """Store, then models_dirs, then bundled; each version is listed once."""
    bundled = put(library, "bundled", "2")
    assert library.find("face", "2").path == bundled
    models = put(library, "models", "2.0")
    assert library.find("face", "2").path == models
    inside = stored(library, "2")
    assert library.find("face", "2").path == inside
    assert len(library.versions("face")) == 1
    assert len(library.entries("face")) == 3


def test_candidate_does_not_run_by_being_there(library: Library) -> None:
    """A higher version in the store that has not been live yet changes nothing."""
    put(library, "bundled", "1")
    stored(library, "2")
    assert library.live("face").manifest.version == "1"
    assert library.find("face", "2").manifest.version == "2"
    with pytest.raises(ModelError, match="face@2 has not passed its trial; push it again"):
        library.activate("face", "2")
    library.store.activate("face", "2", before="1")
    assert library.live("face").manifest.version == "2"


def test_rollback_crosses_places(library: Library) -> None:
    """From an activated version back to the bundled one that ran before it, and no further."""
    put(library, "bundled", "1")
    put(library, "models", "2")
    library.activate("face", "1")
    assert library.store.pointers("face").history == ("2", "1")
    assert library.rollback("face").manifest.version == "2"
    with pytest.raises(ModelError, match="no version before 2"):
        library.rollback("face")


def test_rollback_to_what_is_gone_changes_nothing(library: Library) -> None:
    """If the version before cannot be loaded any more, the present one stays live."""
    folder = put(library, "models", "1")
    put(library, "models", "2")
    library.activate("face", "1")
    library.activate("face", "2")
    (folder / "model.onnx").unlink()
    with pytest.raises(ModelError, match=r"face@1: not found; there is 2"):
        library.rollback("face")
    assert library.live("face").manifest.version == "2"


def test_pointer_to_nothing_falls_back_and_is_said(library: Library) -> None:
    """When the live version has vanished, the one before runs, and `problems` names both."""
    for version in ("1", "2"):
        stored(library, version)
        library.store.activate("face", version)
    manifest = library.store.models / "face" / "2" / "model.toml"
    manifest.write_text("name =")
    assert library.live("face").manifest.version == "1"
    problems = library.problems()
    assert any("model.toml: not valid TOML" in line for line in problems)
    assert any("face@2 is live, but is not there; 1 runs in its place" in line for line in problems)
    with pytest.raises(ModelError, match=r"face@2 is broken: .*not valid TOML"):
        library.find("face", "2")


def test_broken_folder_does_not_hide_the_others(library: Library) -> None:
    """Broken models are listed with their error beside those that can be loaded."""
    put(library, "models", "1")
    broken = make_model(library.store.root.parent / "models" / "broken", name="other")
    (broken / "labels.txt").unlink()
    (library.store.root.parent / "models" / "no-model").mkdir()
    assert library.names() == ("face",)
    errors = [(entry.name, entry.error) for entry in library.entries() if entry.error]
    assert len(errors) == 1
    assert errors[0][0] == "broken"
    assert "labels.txt" in str(errors[0][1])
    assert library.problems() == (errors[0][1],)
    with pytest.raises(ModelError, match=r"broken: every version is broken: .*labels"):
        library.live("broken")


def test_stored_folder_must_be_what_it_is_called(library: Library) -> None:
    """A store folder whose manifest names another version does not run under either."""
    stored(library, "1")
    folder = library.store.models / "face" / "1"
    folder.rename(folder.with_name("7"))
    assert library.versions("face") == ()
    (line,) = library.problems()
    assert "its manifest says face@1; delete it and push it again" in line


def test_what_is_not_there_is_named_with_the_nearest(library: Library) -> None:
    """An unknown name brings the nearest known one, an unknown version those there are."""
    put(library, "models", "1")
    put(library, "models", "2")
    with pytest.raises(ModelError, match=r"fase: no model of that name; did you mean 'face'\?"):
        library.find("fase")
    with pytest.raises(ModelError, match=r"face@3: not found; there is 2, 1"):
        library.find("face", "3")


def test_a_models_dir_that_is_a_model_is_said(library: Library) -> None:
    """Nothing is found in it; the mend is the folder above."""
    folder = put(library, "elsewhere", "1")
    (line,) = Library(library.store, [folder], None).problems()
    words = f"{folder}: is a model itself; name the folder that it is in, {folder.parent}"
    assert line == f"models_dirs: {words}"


def test_missing_models_dir_is_said(library: Library, tmp_path: Path) -> None:
    """A folder of models_dirs that is not there is a problem, not a crash."""
    other = Library(library.store, [tmp_path / "absent"], None)
    assert other.entries() == ()
    assert other.problems() == (f"models_dirs: {tmp_path / 'absent'}: no such folder",)


def test_many_questions_are_answered_from_one_look(library: Library) -> None:
    """What is read once does not change meanwhile; which version is live does."""
    put(library, "bundled", "9")
    stored(library, "2")
    library.store.activate("face", "2")
    seen = library.now()
    put(library, "models", "10")
    assert [entry.version for entry in library.versions("face")] == ["10", "9", "2"]
    assert [entry.version for entry in seen.versions("face")] == ["9", "2"]
    assert seen.names() == ("face",)
    assert seen.live("face").manifest.version == "2"
    with pytest.raises(ModelError, match="face@10: not found; there is 9, 2"):
        seen.find("face", "10")
    library.store.activate("face", "9")
    assert seen.live("face").manifest.version == "9"
