"""A push that runs before all of it is there: a real agent, a real broker, a sender not our own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.delivery.test_early import folder_of, wait
from tests.helpers.push import Box, PlainSender, plain_package, send, start_box
from tests.helpers.support import AgentProcess, Listener, Mosquitto

Boxes = Callable[..., Box]


@pytest.fixture
def box(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> Box:
    """Start a box that serves version 1 and asks for no shadow."""
    return start_box(
        tmp_path,
        broker,
        listen(broker.port),
        agent,
        "edge-01",
        engine="onnxruntime",
        trust={"allow_unsigned": True},
        trial={"shadow_frames": 0, "probation_s": 0},
    )


def trials(box: Box) -> list[psutil.Process]:
    """List the children in which the agent tries models."""
    found = []
    for child in psutil.Process(box.agent.process.pid).children():
        try:
            if "edge_agent.delivery.trial.worker" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def test_first_inference_is_the_trials(box: Box, tmp_path: Path) -> None:
    """What arrives is run in stages on a live frame, and that moment is told; the push goes on."""
    new = folder_of(tmp_path / "new", quantized=True, blocks=10)
    end = send(box.broker.port, box.device, plain_package(new, "level", "2"))
    assert end["state"] == "live", end
    last = box.wait_settled(outcome="live", version="2")["last"]
    assert "stages, bit for bit as the whole" in last["trial"]["streamed"]
    assert last["first_inference_ms"] > 0
    box.results_go_on("2")
    wait(lambda: not trials(box), "the end of the trial")


def test_end_of_the_network_is_asked_for_first(box: Box, tmp_path: Path) -> None:
    """The last blocks, where the network says what it takes, are asked for before their turn.

    Also where something follows the network; each block is asked for once.
    """
    new = folder_of(tmp_path / "new", quantized=True, blocks=10)
    (new / "notes.txt").write_bytes(bytes(range(256)) * 1000)
    package = plain_package(new, "level", "2")
    content = b"".join(package.blocks)
    end = content.rindex((new / "model.onnx").read_bytes()[-100:]) + 100
    with PlainSender(box.broker.port, box.device, package, stop_after=40) as sender:
        sender.offer()
        sender.wait_sent(40)

        def asked() -> bool:
            return any(
                first <= (end - 1) // 20_000 <= last
                for says in sender.said
                for first, last in says.get("need", [])
            )

        wait(asked, "the end of the network")
        assert 60 not in sender.sent
    end_state = send(box.broker.port, box.device, package)
    assert end_state["state"] == "live", end_state


def test_damaged_block_ends_it_all(box: Box, tmp_path: Path) -> None:
    """A block that is not what the list says rejects the push, and its child is gone."""
    new = folder_of(tmp_path / "new", quantized=True, blocks=10)
    package = plain_package(new, "level", "2")
    end = send(box.broker.port, box.device, package, damage=len(package.blocks) // 2)
    assert end["state"] == "rejected"
    assert "SHA-256" in end["why"]
    wait(lambda: not trials(box), "the end of the child")
    box.results_go_on("1")


def test_push_that_went_on_after_a_break_is_the_same(box: Box, tmp_path: Path) -> None:
    """A transfer that was broken off by the agent's end goes on, and is run in stages, too."""
    new = folder_of(tmp_path / "new", quantized=True, blocks=10)
    package = plain_package(new, "level", "2")
    with PlainSender(box.broker.port, box.device, package, stop_after=40) as sender:
        sender.offer()
        sender.wait_sent(40)
        box.agent.signal(signal.SIGKILL)
        box.agent.wait()
    box.agent.restart()
    end = send(box.broker.port, box.device, package)
    assert end["state"] == "live", end
