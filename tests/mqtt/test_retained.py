"""Retained topics: published when they change, cleared when they are gone, also over restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from edge_agent.mqtt.retained import Retained
from edge_agent.mqtt.topics import Topics

MODEL = "edge/box/model/"
DISCOVERY = "homeassistant/device/edge-agent_box/"


class Sent:
    """What a client was asked to publish."""

    def __init__(self) -> None:
        self.all: list[tuple[str, bytes]] = []

    def __call__(self, topic: str, payload: bytes) -> None:
        self.all.append((topic, payload))

    def take(self) -> list[tuple[str, bytes]]:
        """Return what was published since the last time."""
        taken, self.all = self.all, []
        return taken


@pytest.fixture
def sent() -> Sent:
    """Make a client that only records."""
    return Sent()


def retained(sent: Sent, ledger: Path | None = None, **current: Iterable[str] | None) -> Retained:
    """Make an owner with the topics that there are of models, and of discovery."""
    made = Retained(sent, ledger, Topics("edge", "box"))
    if "models" in current:
        made.register(MODEL, lambda: current["models"])
    if "discovery" in current:
        made.register(DISCOVERY, lambda: current["discovery"])
    return made


def test_a_payload_is_published_when_it_changes(sent: Sent) -> None:
    """The same payload again is not published; another one is, also after something it replaced."""
    owner = retained(sent)
    for state in ("running", "running", "lost", "running"):
        owner.publish("edge/box/source/p", {"state": state})
    assert [json.loads(body)["state"] for _, body in sent.take()] == ["running", "lost", "running"]


def test_a_time_is_no_change(sent: Sent) -> None:
    """With `timestamp` the payload carries a time, and is published only if the rest differs."""
    owner = retained(sent)
    for groups in ([], [], ["lab"]):
        owner.publish("edge/box/info", {"groups": groups}, timestamp=True)
    bodies = [json.loads(body) for _, body in sent.take()]
    assert [body["groups"] for body in bodies] == [[], ["lab"]]
    assert all(body["time"].endswith("Z") for body in bodies)


def test_what_changes_within_a_payload_is_a_change(sent: Sent) -> None:
    """A part that the caller has changed in place is noticed."""
    owner = retained(sent)
    steps = {"imports": 1.0}
    owner.publish(f"{MODEL}a", {"cold_start": steps})
    steps["imports"] = 2.0
    owner.publish(f"{MODEL}a", {"cold_start": steps})
    assert len(sent.take()) == 2


def test_what_is_gone_is_cleared_once(sent: Sent, tmp_path: Path) -> None:
    """A topic that is no more is cleared; when it comes back it is published again."""
    models = [f"{MODEL}a", f"{MODEL}b"]
    owner = retained(sent, tmp_path / "announced.json", models=models)
    owner.publish(models[0], {"live": "1"})
    owner.clear_gone()
    sent.take()
    gone = models.pop(0)
    owner.clear_gone()
    owner.clear_gone()
    assert sent.take() == [(gone, b"")]
    owner.publish(gone, {"live": "1"})
    assert sent.take() == [(gone, b'{"live":"1"}')]


def test_topics_are_remembered_over_a_restart(sent: Sent, tmp_path: Path) -> None:
    """What a former run has left is cleared: if it is gone, and if nothing registers its prefix."""
    ledger = tmp_path / "announced.json"
    left = [f"{MODEL}a", f"{MODEL}b", f"{DISCOVERY}config"]
    retained(sent, ledger, models=left[:2], discovery=left[2:]).clear_gone()
    assert json.loads(ledger.read_text()) == sorted(left)
    retained(sent, ledger, models=[f"{MODEL}b"]).clear_gone()
    assert sorted(sent.take()) == [(f"{MODEL}a", b""), (f"{DISCOVERY}config", b"")]
    assert json.loads(ledger.read_text()) == [f"{MODEL}b"]


def test_what_the_broker_has_not_cleared_yet_is_cleared_by_the_next_run(
    sent: Sent, tmp_path: Path
) -> None:
    """The broker was away, and the power failed: the topic stayed on it for ever."""
    ledger, models, waiting = tmp_path / "announced.json", [f"{MODEL}a", f"{MODEL}b"], set[str]()
    owner = Retained(sent, ledger, Topics("edge", "box"), lambda: waiting)
    owner.register(MODEL, lambda: models)
    owner.clear_gone()
    gone = models.pop(0)
    waiting.add(gone)
    owner.clear_gone()
    assert sent.take() == [(gone, b"")]
    retained(sent, ledger, models=models).clear_gone()
    assert sent.take() == [(gone, b"")]
    waiting.clear()
    owner.clear_gone()
    retained(sent, ledger, models=models).clear_gone()
    assert sent.take() == []


def test_a_copied_state_folder_leaves_the_other_device_alone(
    sent: Sent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A card that was cloned for a second box cleared all of the first, discovery included."""
    ledger = tmp_path / "announced.json"
    left = [f"{MODEL}a", f"{DISCOVERY}config"]
    retained(sent, ledger, models=left[:1], discovery=left[1:]).clear_gone()
    clone = Retained(sent, ledger, Topics("edge", "box.2"))
    model = "edge/box.2/model/a"
    clone.register("edge/box.2/model/", lambda: [model])
    clone.clear_gone()
    assert sent.take() == []
    assert json.loads(ledger.read_text()) == [model]
    (said,) = caplog.messages
    assert "such as edge/box/model/a" in said
    Retained(sent, ledger, Topics("other", "box.2")).clear_gone()
    assert sent.take() == [(model, b"")], "of its own below another root"


@pytest.mark.parametrize("topic", ["x", "x/y", "/"])
def test_a_topic_of_nobody_in_the_file_is_left_alone(
    sent: Sent, tmp_path: Path, topic: str
) -> None:
    """It belongs to no device."""
    ledger = tmp_path / "announced.json"
    ledger.write_text(json.dumps([topic]))
    retained(sent, ledger).clear_gone()
    assert sent.take() == []


def test_nothing_is_cleared_that_is_not_known_yet(sent: Sent, tmp_path: Path) -> None:
    """Under a prefix whose topics are not known yet all stays; under others it does not."""
    ledger = tmp_path / "announced.json"
    left = [f"{MODEL}a", f"{DISCOVERY}config"]
    retained(sent, ledger, models=left[:1], discovery=left[1:]).clear_gone()
    retained(sent, ledger, models=None, discovery=[]).clear_gone()
    assert sent.take() == [(f"{DISCOVERY}config", b"")]
    assert json.loads(ledger.read_text()) == [f"{MODEL}a"]
