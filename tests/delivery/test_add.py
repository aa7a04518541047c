"""`edge-agent add`: every form a model comes in, which version it gets, and who uses it then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from edge_agent.core.bundled import bundled
from edge_agent.models.packages.build import pack
from edge_agent.models.store.store import Store
from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.stranger import open_to_strangers, stranger
from tests.helpers.support import (
    AgentProcess,
    Called,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
)
from tests.helpers.tiny_networks import constant_outputs, to_ir

ULTRALYTICS = {"task": "classify", "names": "{0: 'good', 1: 'bad'}", "imgsz": "[32, 32]"}
SCORES = np.array([[0.1, 0.9]], np.float32)


def bare(path: Path, metadata: dict[str, str] | None = None) -> Path:
    """Write a classifier that says of itself what it is."""
    return constant_outputs(path, {"out": SCORES}, metadata=metadata or ULTRALYTICS)


class Box:
    """A device's settings and store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.settle()

    @property
    def store(self) -> Store:
        return Store(self.folder / "state")

    def settle(self, **more: Any) -> None:
        """Write the settings."""
        table = {"state_dir": "state", "engine": "onnxruntime", **more}
        self.config.write_text(tomli_w.dumps(table))

    def add(self, path: Path, *options: str) -> Called:
        return call_cli("add", str(path), *options, "--config", str(self.config))


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Give a device without any models of its own."""
    return Box(tmp_path)


def test_a_folder_is_installed(box: Box) -> None:
    """The files lie in the store as they were, for the agent to try at its next start."""
    folder = brightness(box.folder / "light", "3")
    added = box.add(folder)
    assert (added.code, added.err) == (0, "")
    said = added.out.splitlines()
    assert "light@3 runs on onnxruntime:CPU" in said
    assert said[-1] == "light@3 is installed; the agent tries it at its next start"
    place = box.store.path("light", "3")
    assert place is not None
    for name in ("model.toml", "model.onnx"):
        assert (place / name).read_bytes() == (folder / name).read_bytes()
    assert not box.store.accepted("light", "3")


def test_it_is_said_where_a_model_goes(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the state folder of the settings; where there are none, into the default one."""
    folder = brightness(box.folder / "light", "3")
    into = box.add(folder).out.splitlines()[-2]
    assert into == f"into {box.store.root}, the state folder of {box.config}"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "default"))
    into = call_cli("add", str(folder)).out.splitlines()[-2]
    assert into == f"into {tmp_path / 'default'}, the default; --config FILE names settings"


def test_a_package_is_installed(box: Box) -> None:
    """What `pack` writes is what `add` takes."""
    pack(brightness(box.folder / "light", "2"), box.folder / "light.tar")
    assert box.add(box.folder / "light.tar").code == 0
    assert box.store.versions("light") == ("2",)


@pytest.mark.parametrize("leading", [".", "light"])
def test_a_tar_made_by_hand_is_installed(leading: str, box: Box) -> None:
    """A plain tar of the folder's files, or of the folder, is a package too."""
    folder = brightness(box.folder / "light", "2")
    with tarfile.open(box.folder / "x.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.add(folder, leading)
    assert box.add(box.folder / "x.tar").code == 0
    assert box.store.versions("light") == ("2",)


def test_a_bare_file_is_named_after_its_stem_and_numbered(box: Box) -> None:
    """An ONNX whose metadata says what it is needs no manifest; again, it is the next version."""
    path = bare(box.folder / "Schrauben (neu).onnx")
    first = box.add(path)
    assert (first.code, first.err) == (0, "")
    assert any(line.startswith("assumed  ") for line in first.out.splitlines())
    assert box.add(path).code == 0
    assert box.store.versions("Schrauben-neu") == ("1", "2")
    place = box.store.path("Schrauben-neu", "2")
    assert place is not None
    assert 'labels = [\n    "good",\n    "bad",\n]' in (place / "model.toml").read_text()


def test_a_bare_ir_is_installed_with_its_weights(box: Box) -> None:
    """An IR whose rt_info says what it is brings its .bin along."""
    box.settle(engine="openvino")
    source = bare(box.folder / "screws.onnx")
    info = {"model_type": "Classification", "labels": "good bad", "resize_type": "standard"}
    added = box.add(to_ir(source, box.folder / "screws.xml", info))
    assert (added.code, added.err) == (0, "")
    place = box.store.path("screws", "1")
    assert place is not None
    assert (place / "screws.bin").is_file()


def test_the_next_version_is_above_all_known(box: Box) -> None:
    """A bare file's version counts on from the highest there is, wherever that is."""
    brightness(box.folder / "library" / "screws", "41.5")
    box.settle(models_dirs=["library"])
    assert box.add(bare(box.folder / "screws.onnx")).code == 0
    assert box.store.versions("screws") == ("42",)


@pytest.mark.parametrize("form", ["folder", "tar", "bare"])
def test_name_and_version_can_be_given(form: str, box: Box) -> None:
    """--name and --version replace what the model says of itself, in every form it comes in."""
    folder = brightness(box.folder / "light", "3")
    pack(folder, box.folder / "light.tar")
    path = {
        "folder": folder,
        "tar": box.folder / "light.tar",
        "bare": bare(box.folder / "screws.onnx"),
    }[form]
    added = box.add(path, "--name", "other", "--version", "1.7")
    assert (added.code, added.err) == (0, "")
    assert box.store.names() == ("other",)
    assert box.store.versions("other") == ("1.7",)


@pytest.mark.parametrize(
    "options",
    [("--name", "../x"), ("--name", "a b"), ("--version", "v3"), ("--version", "1.a")],
)
def test_a_name_or_version_that_is_none_is_wrong_usage(options: tuple[str, str], box: Box) -> None:
    """What can be no name or version ends with 2 and the rule, and installs nothing."""
    added = box.add(brightness(box.folder / "light"), *options)
    assert added.code == 2
    assert added.error.startswith(f"edge-agent: {options[0]}: {options[1]!r} is not a ")
    assert box.store.names() == ()


def test_a_path_that_is_not_there_is_wrong_usage(box: Box) -> None:
    """Nothing at PATH ends with 2."""
    added = box.add(box.folder / "nope")
    assert added.code == 2
    assert added.error.endswith("nope': no such file or folder")


@pytest.mark.parametrize("name", ["config.toml", "empty"])
def test_a_path_that_is_no_model_is_rejected(name: str, box: Box) -> None:
    """A file of another kind, or a folder without manifest, ends with 1 and names it."""
    (box.folder / "empty").mkdir()
    added = box.add(box.folder / name)
    assert added.code == 1
    assert str(box.folder / name) in added.error


@pytest.mark.parametrize("task", ["depth", "track"])
def test_a_task_that_is_not_supported_is_refused_by_name(task: str, box: Box) -> None:
    """A model of depths is not taken for a detector."""
    added = box.add(bare(box.folder / "x.onnx", {**ULTRALYTICS, "task": task}))
    assert added.code == 1
    assert f"task '{task}' is not supported" in added.error
    assert box.store.names() == ()


def test_a_bare_file_that_does_not_say_enough_says_what_is_missing(box: Box) -> None:
    """A network without metadata is refused with the way to describe it."""
    path = constant_outputs(box.folder / "x.onnx", {"out": SCORES})
    added = box.add(path)
    assert added.code == 1
    assert "model.toml" in added.error


def test_an_older_version_is_refused_unless_allowed(box: Box) -> None:
    """Below the highest ever accepted, only --allow-older installs."""
    assert box.add(brightness(box.folder / "light-3", "3")).code == 0
    box.store.activate("light", "3")
    older = brightness(box.folder / "light-2", "2")
    refused = box.add(older)
    assert refused.code == 1
    assert "light@2 is older than 3" in refused.error
    assert "--allow-older" in refused.error
    assert box.store.versions("light") == ("3",)
    assert box.add(older, "--allow-older").code == 0
    assert box.store.versions("light") == ("2", "3")


def test_the_same_again_is_as_good(box: Box) -> None:
    """Adding what is there already succeeds; the same version with other files is refused."""
    folder = brightness(box.folder / "light")
    assert box.add(folder).code == 0
    assert box.add(folder).code == 0
    (folder / "README.md").write_text("changed")
    refused = box.add(folder)
    assert refused.code == 1
    assert "with other files; give the new one a higher version" in refused.error


def test_a_damaged_package_is_rejected_and_leaves_nothing(box: Box) -> None:
    """Of a tar cut short, or with a flipped bit, nothing gets into the store."""
    pack(brightness(box.folder / "light"), box.folder / "light.tar")
    data = bytearray((box.folder / "light.tar").read_bytes())
    (box.folder / "short.tar").write_bytes(data[:-3000])
    data[data.index(b"name = ")] ^= 1
    (box.folder / "flipped.tar").write_bytes(data)
    for name in ("short.tar", "flipped.tar"):
        added = box.add(box.folder / name)
        assert added.code == 1
        assert name in added.error
    assert box.store.names() == ()
    assert not list(box.store.staging.iterdir())


@pytest.mark.parametrize("model", ["parts-inspection", "bearing-vibration"])
def test_a_bundled_model_passes_its_golden_cases(model: str, box: Box) -> None:
    """The models that come with the program give on this machine what they gave at home."""
    added = box.add(bundled("models") / model)
    assert (added.code, added.err) == (0, "")
    assert "cases agree" in added.out


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_files_are_owned_as_the_store_is(tmp_path: Path) -> None:
    """What root adds to the store of a service belongs to the service, which has to delete it."""
    box = Box(tmp_path)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 12345, 23456)
    open_to_strangers(tmp_path)
    assert box.add(brightness(tmp_path / "light")).code == 0
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in state.rglob("*")}
    assert owners == {(12345, 23456)}


@pytest.mark.skipif(os.getuid() != 0, reason="only root follows what another user plants")
@pytest.mark.parametrize("planted", ["models", "added"])
def test_root_follows_no_link_that_the_services_user_planted(tmp_path: Path, planted: str) -> None:
    """A link in the state folder to one that only root may enter gets nothing made in it."""
    box = Box(tmp_path)
    state, private = tmp_path / "state", tmp_path / "private"
    private.mkdir(mode=0o700)
    state.mkdir()
    (state / planted).symlink_to(private)
    os.chown(state, 12345, 23456)
    os.chown(state / planted, 12345, 23456, follow_symlinks=False)
    open_to_strangers(tmp_path)
    added = box.add(brightness(tmp_path / "light"))
    assert list(private.iterdir()) == []
    assert private.stat().st_uid == 0
    if planted == "models":
        assert added.code in {1, 2}
        assert added.err.count("\n") == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_store_that_may_not_be_written_is_wrong_settings(tmp_path: Path) -> None:
    """Whoever may not write to state_dir gets 2 and the folder's name, and no traceback."""
    box = Box(tmp_path)
    (tmp_path / "state").mkdir(mode=0o755)
    folder = brightness(tmp_path / "light")
    open_to_strangers(tmp_path)
    ended = subprocess.run(
        [
            *stranger(),
            *(sys.executable, "-m", "edge_agent"),
            *("add", str(folder), "--config", str(box.config)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert str(tmp_path / "state") in ended.stderr


def test_an_agent_runs_what_was_added(
    box: Box,
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """What the store has live wins over models_dirs; while an agent runs, `add` goes through it."""
    library = box.folder / "library"
    brightness(library / "light-9", "9")
    first = brightness(box.folder / "light-10", "10")
    second = brightness(box.folder / "light-11", "11")
    pictures = write_pictures(box.folder / "pictures", [plain(90)])
    pipeline = {"name": "door", "source": f"{pictures}?loop=1", "model": "light", "rate": 20}
    text = agent_settings(
        "adding",
        shared_broker.url,
        [pipeline],
        models_dirs=[str(library)],
        trial={"shadow_frames": 2, "probation_s": 0.2},
    )
    listener = listen(shared_broker.port, "edge/adding/#")

    def serves(model: str) -> None:
        def look(_: object) -> bool:
            results = listener.on("edge/adding/result/door")
            return bool(results) and results[-1]["model"] == model

        listener.wait_for(look, f"results by {model}")

    process = agent(text, "box")
    serves("light@9")
    assert process.stop() == 0
    box.config = process.config
    added = box.add(first)
    assert (added.code, added.err) == (0, "")
    process.restart()
    serves("light@10")
    added = box.add(second)
    assert (added.code, added.err) == (0, "")
    assert added.out.splitlines()[-1] == "light@11 is installed and live"
    serves("light@11")
    shutil.rmtree(second)
    assert process.stop() == 0
    pointers = json.loads((process.folder / "state/models/light/pointers.json").read_text())
    assert pointers["history"][-2:] == ["10", "11"]


@pytest.mark.parametrize("version", ["1", "2"])
def test_an_agent_starts_with_what_was_added_before_its_first_start(
    box: Box,
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    version: str,
) -> None:
    """The agent ended at each start, before the trial of what was added.

    The same version was in models_dirs, too; or one that is broken there.
    """
    library = box.folder / "library"
    brightness(library / "light", "1")
    brightness(box.folder / "light", version)
    if version == "2":
        (library / "light" / "model.onnx").write_bytes(b"garbage")
    pictures = write_pictures(box.folder / "pictures", [plain(90)])
    pipeline = {"name": "door", "source": f"{pictures}?loop=1", "model": "light", "rate": 20}
    device = f"early-{version}"
    text = agent_settings(device, shared_broker.url, [pipeline], models_dirs=[str(library)])
    box.config = box.folder / "box" / "config.toml"
    box.config.parent.mkdir()
    box.config.write_text(text)
    added = box.add(box.folder / "light")
    assert (added.code, added.err) == (0, "")
    listener = listen(shared_broker.port, f"edge/{device}/#")
    process = agent(text, "box")
    assert process.folder == box.config.parent
    listener.wait_for(lambda _: bool(listener.on(f"edge/{device}/result/door")), "a result")
    assert listener.on(f"edge/{device}/result/door")[0]["model"] == f"light@{version}"
    assert process.stop() == 0


def test_an_agent_ends_where_what_was_added_can_never_serve(
    box: Box, shared_broker: Mosquitto, agent: Callable[..., AgentProcess]
) -> None:
    """Of a pin on a broken version it said that it would try another one, and ended weeks later."""
    brightness(box.folder / "library" / "light", "1")
    (box.folder / "library" / "light" / "model.onnx").write_bytes(b"garbage")
    brightness(box.folder / "light", "2")
    pictures = write_pictures(box.folder / "pictures", [plain(90)])
    pipeline = {"name": "door", "source": str(pictures), "model": "light@1"}
    models = [str(box.folder / "library")]
    text = agent_settings("pinned", shared_broker.url, [pipeline], models_dirs=models)
    box.config = box.folder / "box" / "config.toml"
    box.config.parent.mkdir()
    box.config.write_text(text)
    assert box.add(box.folder / "light").code == 0
    process = agent(text, "box")
    assert process.wait() == 2
    assert "tries what was added" not in process.words()
