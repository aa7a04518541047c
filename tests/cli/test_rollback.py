"""`edge-agent rollback`: one device, or all of a group that are online."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.helpers.push import model_folder, start_box
from tests.helpers.support import AgentProcess, Listener, Mosquitto, call_cli, run_cli


def test_a_group_goes_back_together(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """Each online member goes back; one that cannot makes it 1, one that is offline is listed."""
    listener = listen(broker.port)
    first, second = (
        start_box(
            tmp_path, broker, listener, agent, device, groups=["lab"],
            trust={"allow_unsigned": True},
        )
        for device in ("edge-01", "edge-02")
    )  # fmt: skip
    new = str(model_folder(tmp_path / "new", "2", best=2))
    back = ("rollback", "level", "--device", "@lab", "--broker", broker.url)
    done = run_cli("push", new, "--device", "edge-01", "--broker", broker.url)
    assert done.returncode == 0, done.stderr

    # Only the first has a version to go back to.
    done = run_cli(*back)
    assert done.returncode == 1
    assert done.stdout == "edge-01: level is back at version 1\n"
    assert done.stderr.startswith("edge-agent: device edge-02: ")
    first.wait_live("1")

    # One that is offline is not asked, and does not count.
    assert second.agent.stop() == 0
    new = str(model_folder(tmp_path / "newer", "3", best=1))
    done = run_cli("push", new, "--device", "edge-01", "--broker", broker.url)
    assert done.returncode == 0, done.stderr
    done = run_cli(*back)
    assert (done.returncode, done.stderr) == (0, "")
    one, other = done.stdout.splitlines()
    assert one == "edge-01: level is back at version 1"
    assert other.startswith("edge-02: offline since ")


def test_the_way_forward_after_a_rollback_is_the_same_push_again(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """The version that was gone back from is live again, and none of its blocks is sent."""
    box = start_box(
        tmp_path, broker, listen(broker.port), agent, "edge-01", trust={"allow_unsigned": True}
    )
    new = str(model_folder(tmp_path / "new", "2", best=2))
    push = ("push", new, "--device", box.device, "--broker", broker.url)
    assert run_cli(*push).returncode == 0
    back = run_cli("rollback", "level", "--device", box.device, "--broker", broker.url)
    assert back.stdout == f"{box.device}: level is back at version 1\n"
    box.wait_live("1")
    del box.listener.heard[:]
    again = run_cli(*push)
    assert again.returncode == 0, again.stderr
    assert f"{box.device}: live" in again.stdout
    box.wait_live("2")
    assert not [heard for heard in box.listener.heard if "/block/" in heard.topic]


def test_a_group_without_a_member_that_is_online_is_1_at_once(
    broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """Nobody is asked, and who is offline is named."""
    listener = listen(broker.port)
    listener.publish("edge/box/info", json.dumps({"groups": ["lab"]}), retain=True)
    listener.publish("edge/box/status", json.dumps({"state": "offline"}), retain=True)
    said = call_cli("rollback", "level", "--device", "@lab", "--broker", broker.url)
    assert said.code == 1
    assert "no online device is in group @lab (offline: box)" in said.error
    listener.catch_up()
    assert not [heard for heard in listener.heard if "/in/" in heard.topic]


def test_a_device_that_does_not_answer_may_still_go_back_and_that_is_said(
    broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """A time-out takes nothing back of what the broker, or the device, has."""
    listener = listen(broker.port)
    listener.publish("edge/box/status", json.dumps({"state": "online"}), retain=True)
    back = ("rollback", "level", "--device", "box", "--timeout", "0.1", "--broker", broker.url)
    said = call_cli(*back)
    assert said.code == 1
    assert "has not answered within 0 s; it may still go back; if it never answers" in said.error
    assert "may lack `read edge/box/in/#` for the device" in said.error
    listener.catch_up()
    assert [heard for heard in listener.heard if heard.topic == "edge/box/in/command/rollback"]
