"""Some hundred devices, as the public interface has them, on a mosquitto as it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from edge_agent.cli import fleet, roller
from edge_agent.cli.fleet import Fleet
from edge_agent.config.settings import Broker
from edge_agent.delivery.plan import read
from edge_agent.mqtt.one_shot import OneShotClient
from tests.helpers.boxes import Boxes
from tests.helpers.push import model_folder
from tests.helpers.support import Called, Lacking, Listener, Mosquitto, call_cli, wait_until

COUNT = 300
GATE = {"hold_s": 0.1, "timeout_s": 60}


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mosquitto]:
    """Run a mosquitto as it comes."""
    broker = Mosquitto(tmp_path / "stock", "max_queued_messages 1000\n")
    monkeypatch.setenv("EDGE_AGENT_BROKER__URL", broker.url)
    yield broker
    broker.stop()


def packed(folder: Path, version: str) -> Path:
    """Make a signed package of some blocks."""
    key = folder / "push.key"
    if not key.exists():
        assert call_cli("keygen", str(key)).code == 0
    made = model_folder(folder / version, version, hidden=60)
    tar = folder / f"{version}.tar"
    assert call_cli("pack", str(made), "-o", str(tar), "--key", str(key)).code == 0
    return tar


def rollout(verb: str, folder: Path, *more: str) -> Called:
    """Run `edge-agent rollout`."""
    key = () if verb == "status" else ("--key", str(folder / "push.key"))
    return call_cli("rollout", verb, *more, *key)


def sent(listener: Listener) -> int:
    """Add up the blocks that were put on the broker."""
    listener.catch_up()
    return sum(len(h.payload) for h in listener.heard if "/block/" in h.topic and not h.retained)


def test_a_push_and_roll_outs_reach_all_of_a_fleet(tmp_path: Path, stock: Mosquitto) -> None:
    """A package is sent once however many draw it; a look is complete.

    A wave in which a tenth reject takes all back; who was away installs nothing of that, and is
    caught up with the next one.
    """
    listener = Listener(stock.port)
    with Boxes(stock.port, COUNT) as boxes:
        looked = call_cli("status", "--not-well")
        assert (looked.code, looked.out) == (0, f"{COUNT} devices: {COUNT} ok\n")
        first = packed(tmp_path, "2")
        size = first.stat().st_size
        pushed = call_cli("push", str(first), "--device", "@lab")
        assert pushed.code == 0, pushed.err
        assert f"{COUNT} devices live\n" in pushed.out
        assert {box.live for box in boxes.all.values()} == {"2"}
        assert sent(listener) <= size
        drawn = {box.received for box in boxes.all.values()}
        assert drawn == {sent(listener)}

        away = [f"box-{number:04}" for number in range(COUNT - COUNT // 8, COUNT)]
        boxes.do(lambda: boxes.remove(away))
        boxes.rejects = lambda name, version: version == "3" and int(name[4:]) % 10 == 0
        waves = [{"devices": ["box-0001"]}, {"group": "lab", "share": 0.3}, {"group": "lab"}]
        plan = tmp_path / "plan.toml"
        # Of a tenth that reject, chance decides who is in which wave.
        gate = {**GATE, "max_rejected": 0.02}
        tables = {"waves": waves, "gate": gate, "on_failure": "back"}
        plan.write_text(tomli_w.dumps({**tables, "package": packed(tmp_path, "3").name}))
        ended = rollout("start", tmp_path, str(plan))
        assert ended.code == 1, ended.err
        assert "rejected it, at most 2% may" in ended.out
        assert "wave 3 of 3" not in ended.out
        assert "wave 1 of 3 (box-0001): 1 device: 1 rolled-back\n" in ended.out
        assert {box.live for box in boxes.all.values()} == {"2"}
        aborted = json.loads(rollout("status", tmp_path, "--json").out)
        assert aborted["state"] == "aborted"
        boxes.do(lambda: boxes.add(away[:10]))
        wait_until(lambda: boxes.states(aborted["id"])["aborted"] >= 10, "those that come late")
        assert {boxes.all[name].live for name in away[:10]} == {"1"}
        assert rollout("finish", tmp_path).code == 0

        plan.write_text(tomli_w.dumps({**tables, "package": packed(tmp_path, "4").name}))
        ended = rollout("start", tmp_path, str(plan))
        assert ended.code == 0, ended.out + ended.err
        boxes.do(lambda: boxes.add(away[10:]))
        wait_until(lambda: {b.live for b in boxes.all.values()} == {"4"}, "all to be caught up")
        done = json.loads(rollout("status", tmp_path, "--json").out)
        assert sum(wave["states"].get("live", 0) for wave in done["waves"]) == COUNT
        # A push of the same package leaves it to the roll-out, which still needs it.
        assert call_cli("push", str(tmp_path / "4.tar"), "--device", "@lab").code == 0
        assert rollout("finish", tmp_path).code == 0
    listener.close()


def test_a_look_finds_a_device_that_one_node_of_a_cluster_lacks(
    stock: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node knows it."""
    node = Lacking(stock.port, b"edge/box-0001/status")
    monkeypatch.setenv("EDGE_AGENT_BROKER__URL", json.dumps([node.url, stock.url]))
    with Boxes(stock.port, 3):
        looked = call_cli("status")
    node.shut()
    assert (looked.code, looked.out.splitlines()[0]) == (0, "3 devices: 3 ok")


def test_what_a_node_of_a_cluster_lacks_is_read_over_another(
    tmp_path: Path, stock: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who leads waits for nobody who has said that it is live, whatever its own node knows."""
    monkeypatch.setattr(roller, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(roller, "RETURN_SECONDS", 0.5)
    node = Lacking(stock.port, b'"live"')
    monkeypatch.setenv("EDGE_AGENT_BROKER__URL", json.dumps([stock.url, node.url]))
    plan = tmp_path / "plan.toml"
    tables = {"waves": [{"devices": ["box-0000"]}], "gate": {**GATE, "timeout_s": 20}}
    plan.write_text(tomli_w.dumps({**tables, "package": packed(tmp_path, "2").name}))
    with Boxes(stock.port, 1):
        ended = rollout("start", tmp_path, str(plan))
    assert ended.code == 0, ended.out + ended.err
    assert "over this node" in ended.err
    node.shut()


def test_what_a_broker_does_to_a_device_does_not_fail_the_gate(
    tmp_path: Path, stock: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as lost only when it is not back for a while; what else is wrong does count."""
    plan = tmp_path / "plan.toml"
    tables = {"waves": [{"group": "lab"}], "gate": GATE}
    plan.write_text(tomli_w.dumps({**tables, "package": packed(tmp_path, "2").name}))
    with Boxes(stock.port, 2):
        assert rollout("start", tmp_path, str(plan)).code == 0
        client = OneShotClient(Broker(url=stock.url), roller.rollout_filters("edge"))
        seen = Fleet(client, "edge")
        seen.look()
    client.close()
    (payload,) = seen.plans.values()
    lost = {"schema": 1, "state": "offline", "reason": "lost", "session": "s"}
    seen.take("edge/box-0000/status", json.dumps(lost).encode())
    counts = roller.tally(read(payload, None), seen, 0)
    assert (counts.degraded, counts.may_return) == (0, ["box-0000"])
    monkeypatch.setattr(fleet, "RETURN_SECONDS", 0.0)
    counts = roller.tally(read(payload, None), seen, 0)
    assert (counts.degraded, counts.may_return) == (1, [])

    for why, degraded in ((["broker: refused it"], 1), (["broker: refused it", "door: dark"], 2)):
        health = {"schema": 1, "state": "degraded", "why": why}
        seen.take("edge/box-0001/health", json.dumps(health).encode())
        assert roller.tally(read(payload, None), seen, 0).degraded == degraded


def test_settings_reach_all_of_a_fleet(tmp_path: Path, stock: Mosquitto) -> None:
    """One message for all of them; who was away has them when it is back, and once."""
    listener = Listener(stock.port)
    packed(tmp_path, "2")
    patch = tmp_path / "door.toml"
    with Boxes(stock.port, 50) as boxes:
        assert call_cli("status").code == 0
        away = [f"box-{number:04}" for number in range(40, 50)]
        boxes.do(lambda: boxes.remove(away))
        for rate in (5, 6):
            patch.write_text(tomli_w.dumps({"pipelines": [{"name": "door", "rate": rate}]}))
            key = ("--key", str(tmp_path / "push.key"))
            done = call_cli("configure", str(patch), "--device", "@lab", "--persist", *key)
            assert done.code == 0, done.err
            assert "@lab: 50 devices: 40 live, 10 offline\n" in done.out
        behind = call_cli("status", "--device", "@lab", "--not-well")
        assert "10 of them behind\n" in behind.out
        boxes.do(lambda: boxes.add(away))
        wait_until(lambda: all(box.settings for box in boxes.all.values()), "the settings")
        taken = [[each["door"]["rate"] for each in box.settings] for box in boxes.all.values()]
        assert taken == [[5, 6]] * 40 + [[6]] * 10
        listener.catch_up()
        assert sum("/@rollout/" in h.topic for h in listener.heard) == 2
    listener.close()
