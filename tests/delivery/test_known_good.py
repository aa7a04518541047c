"""Whatever goes live was checked since it was last known good: a version on the disk may rot.

All with real agents. The damage gives another label with full confidence, and no error.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import ModelError
from edge_agent.models.manifest import load
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.install import install_folder
from edge_agent.models.store.store import NOTES, Store
from tests.delivery.test_deployer import failing
from tests.helpers.push import Box, golden, model_folder, plain_package, send, start_box
from tests.helpers.support import AgentProcess, Heard, Listener, Mosquitto

Boxes = Callable[..., Box]
CHANGED = "model.onnx has changed on the disk since it was installed"


@pytest.fixture
def box(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> Boxes:
    """Start a box that has been pushed versions 2 and 3, of which 3 serves."""

    def start(**settings: Any) -> Box:
        trust = {"trust": {"allow_unsigned": True}}
        one = start_box(
            tmp_path, broker, listen(broker.port), agent, "edge-01", **{**trust, **settings}
        )
        for version, best in (("2", 1), ("3", 2)):
            new = model_folder(tmp_path / version, version, best=best)
            end = send(broker.port, "edge-01", plain_package(new, "level", version))
            assert end["state"] in {"live", "probation"}, end
            one.wait_settled(outcome="live", version=version)
        one.wait_live("3")
        return one

    return start


def damage(network: Path) -> None:
    """Move the bias of a `classifier` from one label to the next, where it lies on the disk."""
    for index in range(3):
        bias, other = (np.roll([2.0, -2.0, -2.0], index + by).astype("<f4") for by in (0, 1))
        content = network.read_bytes()
        if bias.tobytes() in content:
            network.write_bytes(content.replace(bias.tobytes(), other.tobytes()))
            return
    pytest.fail("no bias")


def stored(one: Box, version: str) -> Path:
    """Give the network of a version in the store."""
    return one.state / "models" / "level" / version / "model.onnx"


def test_a_damaged_version_does_not_come_back_by_command(box: Boxes, tmp_path: Path) -> None:
    """Rollback, activate and a push of the very same package are refused, with the file's name.

    What serves goes on serving; a whole version comes back as before.
    """
    one = box(trial={"probation_s": 0})
    damage(stored(one, "2"))
    for verb, more in (("rollback", {}), ("activate", {"version": "2"})):
        reply = one.command(verb, verb, model="level", **more)
        assert not reply["ok"], reply
        assert reply["error"].startswith("level@2: "), reply
        assert CHANGED in reply["error"], reply
        assert "mind the disk" in reply["error"]
    again = plain_package(tmp_path / "2", "level", "2")
    end = send(one.broker.port, "edge-01", again)
    assert end["state"] == "rejected"
    assert CHANGED in end["why"] or "is older than 3" in end["why"]
    one.results_go_on("3")
    assert one.model()["live"] == "3"
    assert one.command("activate", "first", model="level", version="1")["ok"]
    one.wait_live("1")


def test_golden_outputs_count_when_a_version_comes_back(box: Boxes, tmp_path: Path) -> None:
    """A version of a read-only library came in no blocks: there its golden outputs are looked at.

    As long as they hold, it comes back.
    """
    catalog = tmp_path / "library" / "level"
    scores = np.exp([[2.0, -2.0, -2.0]]) / np.exp([2.0, -2.0, -2.0]).sum()
    catalog.mkdir(parents=True)
    golden(catalog, {"scores": scores.astype(np.float32)})
    one = box(trial={"probation_s": 0})
    assert one.command("activate", "whole", model="level", version="1")["ok"]
    one.wait_live("1")
    assert one.command("activate", "back", model="level", version="3")["ok"]
    one.wait_live("3")
    damage(catalog / "model.onnx")
    reply = one.command("activate", "damaged", model="level", version="1")
    assert not reply["ok"], reply
    assert reply["error"].startswith("level@1: golden: case 0: best class mid, expected low")
    one.results_go_on("3")


def test_a_damaged_version_does_not_come_back_out_of_probation(box: Boxes, tmp_path: Path) -> None:
    """Where the one before is damaged, it goes further back; a failing version had stayed live."""
    one = box(trial={"shadow_frames": 0, "probation_s": 1})
    damage(stored(one, "3"))
    send(one.broker.port, "edge-01", failing(tmp_path, "4"))
    state = one.wait_settled(outcome="rolled-back", version="4")
    assert (state["live"], state["previous"]) == ("2", "1")
    assert "level: does not go back to 3: level@3: model.toml or model.onnx" in one.agent.words()
    one.results_go_on("2")


def test_a_damaged_version_does_not_come_back_after_a_crash(box: Boxes, tmp_path: Path) -> None:
    """Crashed during a probation, with the version before damaged: the one before that serves."""
    one = box(trial={"probation_s": 2})
    new = model_folder(tmp_path / "4", "4", best=0, trial={"probation_s": 600})
    assert send(one.broker.port, "edge-01", plain_package(new, "level", "4"))["state"] == (
        "probation"
    )
    one.wait_live("4")
    one.agent.signal(signal.SIGABRT)
    one.agent.wait()
    damage(stored(one, "3"))
    one.agent.restart()
    state = one.wait_settled(outcome="rolled-back", version="4")
    assert (state["live"], state["previous"]) == ("2", "1")
    assert "level: does not go back to 3: level@3: model.toml or model.onnx" in one.agent.words()
    one.results_go_on("2")


@pytest.mark.parametrize("victim", ["model.onnx", "model.toml", f"{NOTES}/package.blocks"])
def test_any_file_that_has_changed_is_found(tmp_path: Path, victim: str) -> None:
    """Of the model and of what is kept beside it; a file that is gone, too."""
    store = Store(tmp_path / "state")
    installed = install_folder(store, load(model_folder(tmp_path / "1", "1")))
    store.activate("level", "1")
    catalog = Catalog(store)
    assert catalog.find_unchanged("level", "1") == installed
    path = installed.path / victim
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelError, match=r"level@1"):
        catalog.find_unchanged("level", "1")
    path.unlink()
    with pytest.raises(ModelError, match=r"level"):
        catalog.find_unchanged("level", "1")


def restarted(one: Box, change: Callable[[], object], words: str) -> str:
    """Stop the agent, change something on its disk, start it; give the reason with these words."""
    assert one.agent.stop() == 0
    change()
    started = len(one.listener.heard)
    one.agent.restart()

    def degraded(heard: list[Heard]) -> str | None:
        states = [each.json for each in heard[started:] if each.topic == one.topic("health")]
        return next((why for state in states for why in state["why"] if words in why), None)

    reason: str = one.listener.wait_for(degraded, f"a reason with {words!r}")
    return reason


def test_what_stands_in_for_a_broken_version_is_said(box: Boxes) -> None:
    """A start whose live version is broken serves the one before; health names both, each time."""
    one = box(trial={"probation_s": 0})
    manifest = stored(one, "3").with_name("model.toml")
    whole = manifest.read_bytes()
    why = restarted(one, lambda: manifest.write_text("name ="), "level@3")
    assert why.startswith("model level@3 is live, but is broken (")
    assert why.endswith("; 2 runs in its place: push it again")
    one.wait_live("2")
    assert restarted(one, lambda: None, "level@3") == why
    assert one.agent.stop() == 0
    manifest.write_bytes(whole)
    one.agent.restart()
    one.wait_live("3")
    assert one.health()["state"] == "ok"


def test_a_damaged_version_does_not_stand_in(box: Boxes) -> None:
    """Where the version before is damaged, too, the one before that runs."""
    one = box(trial={"probation_s": 0})

    def ruin() -> None:
        stored(one, "3").with_name("model.toml").unlink()
        damage(stored(one, "2"))

    results = len(one.listener.on(one.topic("result", "door")))
    why = restarted(one, ruin, "level@3")
    assert why.endswith("; 1 runs in its place: push it again")
    one.wait_live("1")
    later = one.listener.on(one.topic("result", "door"))[results:]
    assert "level@2" not in {each["model"] for each in later}


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    """Leave a file as long as it was, of zeros, as after a power cut."""
    path.write_bytes(bytes(path.stat().st_size))


def empty(folder: Path) -> None:
    """Leave nothing in a folder."""
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "cut": ("model.onnx", cut),
    "empty": ("model.onnx", lambda path: path.write_bytes(b"")),
    "zeros": ("model.onnx", zero),
    "one byte": ("model.onnx", damage),
    "gone": ("model.onnx", Path.unlink),
    "short labels": ("labels.txt", cut),
    "other labels": ("labels.txt", lambda path: path.write_text("low\nmid\nhigg\n")),
    "manifest": ("model.toml", zero),
    "another threshold": (
        "model.toml",
        lambda path: path.write_text(path.read_text().replace("255", "254")),
    ),
    "all": ("model.toml", lambda path: empty(path.parent)),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_live_version_that_is_damaged_gives_way_to_the_one_before(
    box: Boxes, tmp_path: Path, kind: str
) -> None:
    """However its files were damaged, the one before serves and that is said, until a push mends.

    The model's topic names what serves, and why. The same version, pushed again, goes live.
    """
    one = box(trial={"probation_s": 0})
    new = model_folder(tmp_path / "4", "4", best=0)
    (new / "labels.txt").write_text("low\nmid\nhigh\n")
    manifest = (new / "model.toml").read_text()
    listed = manifest[manifest.index("labels = ") : manifest.index("]", manifest.index("labels"))]
    (new / "model.toml").write_text(manifest.replace(listed + "]", 'labels = "labels.txt"'))
    package = plain_package(new, "level", "4")
    assert send(one.broker.port, "edge-01", package)["state"] == "live"
    one.wait_live("4")
    name, ruin = DAMAGES[kind]
    why = restarted(one, lambda: ruin(stored(one, "4").parent / name), "level@4")
    assert why.startswith("model level@4 is live, but is broken ("), why
    assert "3 runs in its place" in why
    assert "push it again" in why
    one.wait_live("3")
    assert one.model()["error"] == why.removeprefix("model ")
    heard = one.listener.on(one.topic("result", "door"))
    session = heard[-1]["session"]
    assert {each["model"] for each in heard if each["session"] == session} == {"level@3"}
    assert send(one.broker.port, "edge-01", package)["state"] == "live"
    one.wait_live("4")
    assert "error" not in one.model()
    assert one.agent.stop() == 0
    one.agent.restart()
    one.wait_live("4")
    assert one.health()["state"] == "ok"


def test_a_power_cut_that_damages_a_version_on_probation_rolls_it_back(
    box: Boxes, tmp_path: Path
) -> None:
    """What serves in its place must not pass the probation for it; pushed again, it goes live."""
    one = box(trial={"probation_s": 1})
    new = model_folder(tmp_path / "4", "4", best=0, trial={"probation_s": 600})
    package = plain_package(new, "level", "4")
    assert send(one.broker.port, "edge-01", package)["state"] == "probation"
    one.wait_live("4")
    one.agent.signal(signal.SIGKILL)
    one.agent.wait()
    damage(stored(one, "4"))
    one.agent.restart()
    state = one.wait_settled(outcome="rolled-back", version="4")
    assert CHANGED in state["last"]["why"]
    assert state["live"] == "3"
    one.wait_live("3")
    assert send(one.broker.port, "edge-01", package)["state"] == "probation"
    one.wait_live("4")


def test_a_damaged_version_that_no_pipeline_runs_is_said(box: Boxes, tmp_path: Path) -> None:
    """As of a model that is only asked now and then: topic and health tell before it is asked."""
    one = box(trial={"probation_s": 0})
    for version in ("1", "2"):
        new = model_folder(tmp_path / f"spare-{version}", version, "spare")
        assert send(one.broker.port, "edge-01", plain_package(new, "spare", version))["state"] == (
            "live"
        )
    why = restarted(one, lambda: cut(one.state / "models/spare/2/model.onnx"), "spare@2")
    assert why.startswith("model spare@2 is live, but is broken ("), why
    state = one.model("spare")
    assert (state["live"], state["error"]) == ("1", why.removeprefix("model "))
