"""Prepared forms in the store: counted, and collected with their model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.core.errors import ModelError
from edge_agent.core.files import FAULT_VARIABLE, size_of
from edge_agent.inference.prepared.artifact import FILE, FOLDER, encode, read
from edge_agent.inference.prepared.compile import collect
from edge_agent.inference.prepared.compile.collect import collect_artifacts, need_room
from edge_agent.inference.prepared.digests import digests
from edge_agent.models.manifest import load
from edge_agent.models.store.housekeeping import Cleaning, clean_leftovers, make_room
from edge_agent.models.store.install import install_folder
from edge_agent.models.store.store import Store
from tests.helpers.model_folders import make_model, weights
from tests.helpers.prepared_models import damage

BIG = 1 << 40
FORM_BYTES = 300_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Open an empty store."""
    return Store(tmp_path / "state")


def put_in(store: Store, version: str) -> Path:
    """Install a version; give its folder in the store."""
    folder = make_model(
        store.root.parent / f"face-{version}", version=version, network=weights(int(version))
    )
    return install_folder(store, load(folder)).path


def form_of(store: Store, model: Path, key: str, engine: str = "onnxruntime") -> Path:
    """Put a form in its place, of which only the table matters here."""
    from edge_agent.inference.prepared.artifact import FORMAT, processor

    place = store.root / FOLDER / key
    place.mkdir(parents=True)
    (place / "weights.bin").write_bytes(bytes(FORM_BYTES))
    table = {
        "format": FORMAT,
        "key": key,
        "cpu": processor(),
        "model": str(model),
        "kind": "picture",
        "engine": engine,
        "version": "1",
        "files": {"weights.bin": [FORM_BYTES, ""]},
    }
    (place / FILE).write_bytes(encode(table))
    return place


def test_form_goes_with_its_model(store: Store) -> None:
    """Where the model is gone, its form is removed, and that is said; others stay."""
    gone, stays = put_in(store, "1"), put_in(store, "2")
    orphan, kept = form_of(store, gone, "a1"), form_of(store, stays, "a2")
    store.activate("face", "2")
    store.delete("face", "1")
    (line,) = clean_leftovers(store, derived=collect.forms).lines
    assert line == f"{orphan}: its model is gone, removed"
    assert [form.path for form in collect.forms(store)] == [kept]
    assert clean_leftovers(store, derived=collect.forms) == Cleaning()


def test_form_of_a_model_that_was_moved_waits(store: Store, tmp_path: Path) -> None:
    """A model of another folder may be under another path now: only who knows it removes forms."""
    form = form_of(store, tmp_path / "library" / "face", "a1")
    assert clean_leftovers(store, derived=collect.forms) == Cleaning()
    assert collect_artifacts(store, keep=["a1"]) == ()
    assert collect_artifacts(store, keep=["a2"]) == (f"{form}: its model is gone, removed",)


def test_form_that_cannot_be_used_goes(store: Store) -> None:
    """A damaged form, and one of another processor, is removed."""
    model = put_in(store, "1")
    damaged, foreign = form_of(store, model, "a1"), form_of(store, model, "a2", "openvino")
    damage(damaged / FILE, 80)
    form = read(str(foreign))
    (foreign / FILE).write_bytes(encode({**form.table, "cpu": "another"}))
    lines = clean_leftovers(store, derived=collect.forms).lines
    assert len(lines) == 2
    assert "damaged" in lines[0]
    assert "other instructions" in lines[1]
    assert collect.forms(store) == []


def test_older_form_of_the_same_goes(store: Store) -> None:
    """Of two forms of a model for one engine the newer stays, unless the other is in use."""
    model = put_in(store, "1")
    old, new = form_of(store, model, "b"), form_of(store, model, "a")
    other = form_of(store, model, "c", "openvino")
    os.utime(old, (1, 1))
    assert collect_artifacts(store, keep=["b"]) == ()
    assert collect_artifacts(store) == (f"{old}: there is a newer one, removed",)
    assert [form.path for form in collect.forms(store)] == [new, other]


def test_forms_count_against_the_quota(store: Store) -> None:
    """What forms take is not free for versions; they give way before a version is refused."""
    model = put_in(store, "1")
    store.activate("face", "1")
    form = form_of(store, model, "a1")
    taken = size_of(store.models) + size_of(form)
    assert make_room(store, 1000, taken + 1000, derived=collect.forms) == ()
    assert make_room(store, 1000, taken + 999, derived=collect.forms) == ("prepared form a1",)
    assert not form.exists()
    assert model.is_dir()


def test_version_goes_together_with_its_form(store: Store) -> None:
    """A version that makes room takes its form along; the live one's stays while it can."""
    old, live = put_in(store, "1"), put_in(store, "2")
    store.activate("face", "2")
    form_of(store, old, "a1")
    kept = form_of(store, live, "a2")
    taken = size_of(store.models) + size_of(store.root / FOLDER)
    assert make_room(store, 1000, taken, derived=collect.forms) == ("face@1",)
    assert [form.path for form in collect.forms(store)] == [kept]
    assert live.is_dir()


def test_no_version_gives_way_to_a_form(store: Store) -> None:
    """A form is made only where there is room without deleting anything."""
    model = put_in(store, "1")
    taken = size_of(store.models)
    need_room(store, model, 2 * taken)
    need_room(store, model, 0)
    with pytest.raises(ModelError, match=r"does not fit.*raise quota_mb"):
        need_room(store, model, 2 * taken - 1)
    assert model.is_dir()


def test_forms_of_old_versions_give_way_to_a_form(store: Store) -> None:
    """Once the store was full no new version got its form: those of 40 old ones kept the room."""
    versions = [put_in(store, version) for version in "1234"]
    for version in "1234":
        store.activate("face", version)
    one, two, three, _ = [
        form_of(store, model, f"a{number}") for number, model in enumerate(versions)
    ]
    for number, form in enumerate((two, one)):
        os.utime(form, (number, number))
    quota = size_of(store.models) + size_of(store.root / FOLDER) + size_of(versions[3])
    with pytest.raises(ModelError, match="does not fit"):
        need_room(store, versions[3], quota - 1, [versions[0], versions[1]])
    need_room(store, versions[3], quota - 1, [])
    assert not two.exists(), "made first"
    assert one.exists()
    need_room(store, versions[3], quota - 1 - 2 * FORM_BYTES, [])
    assert not one.exists()
    assert three.exists(), "the one before"
    with pytest.raises(ModelError, match="does not fit"):
        need_room(store, versions[3], quota - 1 - 2 * FORM_BYTES - 2000, [])
    assert three.exists()


def test_digests_are_no_form(store: Store) -> None:
    """What is remembered beside the forms is none of them, and stays."""
    (store.root / FOLDER).mkdir()
    (store.root / FOLDER / "digests.json").write_text("{}")
    assert collect.forms(store) == []
    assert clean_leftovers(store, derived=collect.forms) == Cleaning()
    assert (store.root / FOLDER / "digests.json").is_file()


def test_what_is_remembered_of_a_model_that_cannot_be_looked_at_stays(
    store: Store, tmp_path: Path, unreadable: Callable[[Path], None]
) -> None:
    """It may be back tomorrow; the others are looked at, loaded and received as ever."""
    away = make_model(tmp_path / "library" / "away")
    form = form_of(store, away, "a1")
    known = digests(store.root, away)
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(0o777)
    unreadable(away.parent)
    face = make_model(store.root / "face")
    assert set(digests(store.root, face)) == {"labels.txt", "model.onnx", "model.toml"}
    memo = json.loads((store.root / FOLDER / "digests.json").read_text())
    assert {str(folder / name) for folder in (away, face) for name in known} == memo.keys()
    assert collect_artifacts(store, keep=["a2"]) == ()
    assert make_room(store, 1000, BIG, derived=collect.forms) == ()
    assert form.is_dir()


def test_what_cannot_be_cleaned_up_is_said_and_the_rest_is_cleaned(
    store: Store, unreadable: Callable[[Path], None]
) -> None:
    """Root had made one folder: nothing that came after it was looked at."""
    places = (store.staging, store.models, store.incoming, store.root / FOLDER)
    for place in places:
        for name in ("a", "b"):
            (place / name).mkdir(parents=True)
    for path in (store.root, *places, *store.root.glob("*/*")):
        path.chmod(0o777)
    closed = [place / "a" for place in places]
    for path in closed:
        path.chmod(0)
    unreadable(closed[0])
    done = clean_leftovers(store, derived=collect.forms)
    assert [str(path) for path in closed] == [line.partition(": ")[0] for line in done.failed]
    assert {line.partition(": ")[2] for line in done.failed} == {
        "cannot be cleaned up: Permission denied"
    }
    assert not any((place / "b").exists() for place in places)
    assert make_room(store, 1000, 1000, derived=collect.forms) == ()


def test_a_file_that_a_power_cut_left_half_replaced_is_removed(store: Store) -> None:
    """Each cut in the middle of such a write left one more, for the years of a device."""
    write = (
        "from pathlib import Path; from edge_agent.core.files import replace_file;"
        f"replace_file(Path({str(store.root)!r}) / 'commands.jsonl', b'new')"
    )
    environ = {**os.environ, FAULT_VARIABLE: "pointers.written"}
    store.root.mkdir(exist_ok=True)
    ended = subprocess.run([sys.executable, "-c", write], env=environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = store.root.glob(".commands.jsonl.*")
    # An agent may be about to replace the file with it.
    assert clean_leftovers(store, derived=collect.forms) == Cleaning()
    lines = clean_leftovers(store, derived=collect.forms, now=time.time() + 7200).lines
    assert lines == (f"{left}: left by a crash, removed",)
    assert not left.exists()
