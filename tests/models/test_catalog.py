"""The catalog: which versions there are in all places, and which of them runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.core.errors import ModelError, OnTrialError
from edge_agent.models.manifest import load
from edge_agent.models.store.catalog import Catalog, library_trouble
from edge_agent.models.store.install import install_folder
from edge_agent.models.store.pointers import Trial
from edge_agent.models.store.store import Store
from tests.helpers.model_folders import make_model
from tests.helpers.stranger import STRANGER


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Make a library with an empty store and two empty read-only places."""
    for folder in ("models", "bundled"):
        (tmp_path / folder).mkdir()
    return Catalog(Store(tmp_path / "state"), [tmp_path / "models"], tmp_path / "bundled")


def put(catalog: Catalog, place: str, version: str) -> Path:
    """Put a version into one of the read-only places."""
    return make_model(catalog.store.root.parent / place / f"face-{version}", version=version)


def stored(catalog: Catalog, version: str) -> Path:
    """Install a version into the store without accepting it."""
    made = make_model(catalog.store.root.parent / "made" / version, version=version)
    return install_folder(catalog.store, load(made)).path


def test_highest_version_over_all_places_runs(catalog: Catalog) -> None:
    """Without a live pointer the highest number wins, wherever it lies."""
    put(catalog, "bundled", "1.10")
    put(catalog, "models", "1.9")
    assert catalog.live("face").manifest.version == "1.10"
    put(catalog, "models", "2")
    assert catalog.live("face").manifest.version == "2"
    assert [entry.version for entry in catalog.versions("face")] == ["2", "1.10", "1.9"]


def test_live_pointer_outweighs_higher_versions(catalog: Catalog) -> None:
    """What was activated runs, though a bundled version is higher."""
    put(catalog, "bundled", "9")
    stored(catalog, "2")
    catalog.store.activate("face", "2")
    assert catalog.live("face").manifest.version == "2"
    assert catalog.find("face").manifest.version == "2"
    assert catalog.find("face", "9").path.parent.name == "bundled"


def test_same_version_comes_from_the_store_first(catalog: Catalog) -> None:
    """Store, then models_dirs, then bundled; each version is listed once."""
    bundled = put(catalog, "bundled", "2")
    assert catalog.find("face", "2").path == bundled
    models = put(catalog, "models", "2.0")
    assert catalog.find("face", "2").path == models
    inside = stored(catalog, "2")
    assert catalog.find("face", "2").path == inside
    assert len(catalog.versions("face")) == 1
    assert len(catalog.entries("face")) == 3


def test_candidate_does_not_run_by_being_there(catalog: Catalog) -> None:
    """A higher version in the store that has not been live yet changes nothing."""
    put(catalog, "bundled", "1")
    stored(catalog, "2")
    assert catalog.live("face").manifest.version == "1"
    assert catalog.find("face", "2").manifest.version == "2"
    with pytest.raises(ModelError, match="face@2 has not passed its trial; push it again"):
        catalog.activate("face", "2")
    catalog.store.activate("face", "2", before="1")
    assert catalog.live("face").manifest.version == "2"


def test_a_version_on_trial_serves_nobody_who_names_it(catalog: Catalog) -> None:
    """It served after a reload, and went on when it was rejected. An accepted copy serves."""
    inside = stored(catalog, "2")
    catalog.store.set_trial("face", Trial("2", "shadow", 0.0))
    for catalogs in (catalog, catalog.now()):
        with pytest.raises(OnTrialError, match="has not passed its trial yet"):
            catalogs.find("face", "2.0")
        assert catalogs.find_unchanged("face", "2").path == inside
    library = put(catalog, "models", "2")
    assert catalog.find("face", "2").path == library
    catalog.store.activate("face", "2", before="1")
    assert catalog.find("face", "2").path == inside


def test_rollback_crosses_places(catalog: Catalog) -> None:
    """From an activated version back to the bundled one that ran before it, and no further."""
    put(catalog, "bundled", "1")
    put(catalog, "models", "2")
    catalog.activate("face", "1")
    assert catalog.store.pointers("face").history == ("2", "1")
    assert catalog.rollback("face").manifest.version == "2"
    with pytest.raises(ModelError, match="no version before 2"):
        catalog.rollback("face")


def test_rollback_to_what_is_gone_changes_nothing(catalog: Catalog) -> None:
    """If the version before cannot be loaded any more, the present one stays live."""
    folder = put(catalog, "models", "1")
    put(catalog, "models", "2")
    catalog.activate("face", "1")
    catalog.activate("face", "2")
    (folder / "model.onnx").unlink()
    with pytest.raises(ModelError, match=r"face@1: not found; there is 2"):
        catalog.rollback("face")
    assert catalog.live("face").manifest.version == "2"


def test_pointer_to_nothing_falls_back_and_is_said(catalog: Catalog) -> None:
    """When the live version has vanished, the one before runs, and `problems` names both."""
    for version in ("1", "2"):
        stored(catalog, version)
        catalog.store.activate("face", version)
    manifest = catalog.store.models / "face" / "2" / "model.toml"
    manifest.write_text("name =")
    assert catalog.live("face").manifest.version == "1"
    problems = catalog.problems()
    assert any("model.toml: not valid TOML" in line for line in problems)
    assert any("face@2 is live, but is not there; 1 runs in its place" in line for line in problems)
    with pytest.raises(ModelError, match=r"face@2 is broken: .*not valid TOML"):
        catalog.find("face", "2")


def test_broken_folder_does_not_hide_the_others(catalog: Catalog) -> None:
    """Broken models are listed with their error beside those that can be loaded."""
    put(catalog, "models", "1")
    broken = make_model(catalog.store.root.parent / "models" / "broken", name="other")
    (broken / "labels.txt").unlink()
    (catalog.store.root.parent / "models" / "no-model").mkdir()
    assert catalog.names() == ("face",)
    errors = [(entry.name, entry.error) for entry in catalog.entries() if entry.error]
    assert len(errors) == 1
    assert errors[0][0] == "broken"
    assert "labels.txt" in str(errors[0][1])
    assert catalog.problems() == (errors[0][1],)
    with pytest.raises(ModelError, match=r"broken: every version is broken: .*labels"):
        catalog.live("broken")


def test_stored_folder_must_be_what_it_is_called(catalog: Catalog) -> None:
    """A store folder whose manifest names another version does not run under either."""
    stored(catalog, "1")
    folder = catalog.store.models / "face" / "1"
    folder.rename(folder.with_name("7"))
    assert catalog.versions("face") == ()
    (line,) = catalog.problems()
    assert "its manifest says face@1; delete it and push it again" in line


def test_what_is_not_there_is_named_with_the_nearest(catalog: Catalog) -> None:
    """An unknown name brings the nearest known one, an unknown version those there are."""
    put(catalog, "models", "1")
    put(catalog, "models", "2")
    with pytest.raises(ModelError, match=r"fase: no model of that name; did you mean 'face'\?"):
        catalog.find("fase")
    with pytest.raises(ModelError, match=r"face@3: not found; there is 2, 1"):
        catalog.find("face", "3")


def test_a_models_dir_that_is_a_model_is_said(catalog: Catalog) -> None:
    """Nothing is found in it; the mend is the folder above."""
    folder = put(catalog, "elsewhere", "1")
    (line,) = Catalog(catalog.store, [folder], None).problems()
    words = f"{folder}: is a model itself; name the folder that it is in, {folder.parent}"
    assert line == f"models_dirs: {words}"


def test_missing_models_dir_is_said(catalog: Catalog, tmp_path: Path) -> None:
    """A folder of models_dirs that is not there is a problem, not a crash."""
    other = Catalog(catalog.store, [tmp_path / "absent"], None)
    assert other.entries() == ()
    assert other.problems() == (f"models_dirs: {tmp_path / 'absent'}: no such folder",)


def test_many_questions_are_answered_from_one_look(catalog: Catalog) -> None:
    """What is read once does not change meanwhile; which version is live does."""
    put(catalog, "bundled", "9")
    stored(catalog, "2")
    catalog.store.activate("face", "2")
    seen = catalog.now()
    put(catalog, "models", "10")
    assert [entry.version for entry in catalog.versions("face")] == ["10", "9", "2"]
    assert [entry.version for entry in seen.versions("face")] == ["9", "2"]
    assert seen.names() == ("face",)
    assert seen.live("face").manifest.version == "2"
    with pytest.raises(ModelError, match="face@10: not found; there is 9, 2"):
        seen.find("face", "10")
    catalog.store.activate("face", "9")
    assert seen.live("face").manifest.version == "9"


def test_a_folder_of_a_library_that_cannot_be_read_costs_its_own_model_only(
    catalog: Catalog, unreadable: Callable[[Path], None]
) -> None:
    """The whole library had counted as unreadable; `lost+found` of a mounted disk is none of it."""
    library = catalog.store.root.parent / "models"
    put(catalog, "models", "1")
    closed = make_model(library / "other")
    (library / "lost+found").mkdir(mode=0)
    unreadable(closed)
    assert catalog.live("face").manifest.version == "1"
    (problem,) = catalog.problems()
    assert str(closed / "model.toml") in problem
    assert "Permission denied" in problem
    with pytest.raises(ModelError, match=r"other: every version is broken: .*Permission denied"):
        catalog.live("other")


@pytest.mark.parametrize("closed", ["models", "models/.."])
def test_a_library_that_cannot_be_read_is_said_once(
    catalog: Catalog, unreadable: Callable[[Path], None], closed: str
) -> None:
    """It is there, or may be: it was said to be missing, or ended `check`."""
    root = catalog.store.root.parent
    library = make_model(root / "away" / "models" / "face").parent
    shutil.copytree(library, root / "models", dirs_exist_ok=True)
    both = Catalog(catalog.store, [library, root / "models"], None)
    unreadable(root / "away" / closed)
    assert both.live("face").path == root / "models" / "face"
    words = f"{library}: cannot be read: Permission denied"
    assert both.problems() == (words,)
    assert library_trouble(library) == words


@pytest.mark.parametrize("part", [".", ".package", "model.toml"])
def test_a_version_that_cannot_be_read_gives_way(
    catalog: Catalog, unreadable: Callable[[Path], None], part: str
) -> None:
    """As on a broken disk: the version before runs, and it is said what cannot be read."""
    for version in ("1", "2"):
        stored(catalog, version)
        catalog.store.activate("face", version)
    path = catalog.store.models / "face" / "2"
    unreadable(path / part)
    live = catalog.live("face")
    assert live.manifest.version == "1"
    told = catalog.stands_in(live)
    assert told is not None
    assert told.startswith(f"face@2 is live, but is broken ({path}")
    assert "cannot be read: Permission denied); 1 runs in its place" in told


def test_a_model_whose_folder_cannot_be_read_runs_from_elsewhere(
    catalog: Catalog, unreadable: Callable[[Path], None]
) -> None:
    """The other places count; the folder is named among the problems."""
    put(catalog, "bundled", "1")
    stored(catalog, "2")
    catalog.store.activate("face", "2")
    unreadable(catalog.store.models / "face")
    assert catalog.live("face").manifest.version == "1"
    assert any("cannot be read: Permission denied" in line for line in catalog.problems())


def test_no_version_is_deleted_while_it_is_not_known_which_is_live(
    catalog: Catalog, unreadable: Callable[[Path], None]
) -> None:
    """`delete` removed the live version while its pointers could not be read."""
    for version in ("1", "2"):
        stored(catalog, version)
        catalog.store.activate("face", version)
    catalog.store.rollback("face")
    if os.geteuid() == 0:
        for path in (catalog.store.root, *catalog.store.root.rglob("*")):
            os.chown(path, STRANGER, STRANGER)
    unreadable(catalog.store.models / "face" / "pointers.json")
    with pytest.raises(ModelError, match=r"^face@1: .*pointers\.json: cannot be read"):
        catalog.store.delete("face", "1")
    assert catalog.store.path("face", "1") is not None


def test_the_same_version_from_another_place_stands_in(catalog: Catalog) -> None:
    """A stored version that is too short gives way to the bundled one; that is said."""
    bundled = catalog.store.root.parent / "bundled"
    stored(catalog, "2")
    catalog.store.activate("face", "2")
    shutil.copytree(catalog.store.models / "face" / "2", bundled / "face-2")
    labels = next((catalog.store.models / "face" / "2").glob("*.onnx"))
    labels.write_bytes(labels.read_bytes()[:-1])
    live = catalog.live("face")
    assert live.path.is_relative_to(bundled)
    told = catalog.stands_in(live)
    assert told is not None
    assert f"; the one in {bundled} runs in its place" in told
    labels.unlink()
    assert catalog.live("face").path.is_relative_to(bundled)


def test_a_live_version_that_was_repaired_is_tried_again_first(catalog: Catalog) -> None:
    """Until then the one before runs; it is not said to be missing."""
    for version in ("1", "2"):
        stored(catalog, version)
        catalog.store.activate("face", version)
    network = next((catalog.store.models / "face" / "2").glob("*.onnx"))
    content = bytearray(network.read_bytes())
    content[-1] ^= 1
    network.write_bytes(content)
    install_folder(catalog.store, load(catalog.store.root.parent / "made" / "2"))
    live = catalog.live("face")
    assert live.manifest.version == "1"
    assert catalog.stands_in(live) == (
        "face@2 is live, but has yet to pass its trial again; 1 runs until then"
    )
    catalog.store.activate("face", "2")
    assert catalog.stands_in(catalog.live("face")) is None


def test_what_is_broken_outside_the_store_is_not_to_be_pushed(catalog: Catalog) -> None:
    """A push of a version that comes with the device is refused: it is put there again."""
    put(catalog, "bundled", "1")
    put(catalog, "models", "2")
    told = catalog.stands_in(catalog.find("face", "1"), ModelError("not a valid ONNX file"))
    assert told == (
        "face@2 is live, but is broken (not a valid ONNX file); 1 runs in its place: "
        "put it there again, or push a higher version"
    )
