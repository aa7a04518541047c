"""Health's reasons: the machine's and the pipelines', each in words while it holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.core.privileges import User, acting_as, hand_over
from edge_agent.health.report import Health
from edge_agent.inference.model import Model
from edge_agent.runtime.scheduler.board import Board
from tests.device.test_pressure import MIB, V2, group, proc
from tests.device.test_thermal import tree, zone
from tests.helpers.idle_parts import idle_pipeline, offline_client
from tests.helpers.stranger import STRANGER, open_to_strangers


class Device:
    """The parts that health reads of, none of them at work."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.now = 1000.0
        board: Board[Model] = Board()
        self.board = board
        link = offline_client()
        self.pipelines = [
            idle_pipeline(name, "rtsp://camera/stream", folder, board, link, qos=qos)
            for name, qos in (("kept", 1), ("live", 0))
        ]
        self.problems: list[Callable[[], list[str]]] = []
        self.health = Health(
            board,
            link,
            lambda: self.pipelines,
            list,
            folder,
            problems=self.problems,
            root=root,
            clock=lambda: self.now,
        )

    def why(self, *about: str) -> list[str]:
        """Give the reasons that begin with one of some words."""
        return [why for why in self.health.problems() if why.startswith(about)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give a machine of its own, roomy and cool."""
    return proc(tmp_path / "root", cgroup=V2)


@pytest.fixture
def device(tmp_path: Path, root: Path) -> Device:
    """Give a device on that machine."""
    return Device(tmp_path, root)


def test_a_roomy_and_cool_machine_is_no_reason(device: Device) -> None:
    """Nothing is said of memory, disk and heat while they are well; there is no temperature."""
    assert device.why("memory", "disk", "hot", "throttled") == []
    assert "temperature_c" not in device.health.payload()


def test_of_what_has_ended_all_is_counted(device: Device) -> None:
    """A source that gives its last frame and ends while health is being gathered."""
    kept = device.pipelines[0]
    device.board.add(kept.queue)
    kept.source.state = "running"

    def last_frame() -> list[str]:
        device.board.drop(kept.queue, "still")
        kept.stream.channel.published += 1
        kept.source.state = "ended"
        return []

    device.problems.append(last_frame)
    for source, count in (("running", 0), ("ended", 1)):
        seen = device.health.payload()["pipelines"]["kept"]
        assert (seen["source"], seen["captured"], seen["published"]) == (source, count, count)


def test_a_pipeline_that_is_made_again_has_no_rate_below_nought(
    device: Device, tmp_path: Path
) -> None:
    """A reload that changes its model replaces it, and the new one counts from 0."""
    old = device.pipelines[0]
    device.board.add(old.queue)
    old.queue.account.inferred = 100
    assert device.health.payload()["pipelines"]["kept"]["fps"] > 0
    device.board.remove(old.queue)
    link = offline_client()
    made = idle_pipeline("kept", "rtsp://camera/stream", tmp_path, device.board, link, qos=1)
    device.pipelines[0] = made
    device.board.add(made.queue)
    assert device.health.payload()["pipelines"]["kept"]["fps"] == 0
    made.queue.account.inferred = 5
    assert device.health.payload()["pipelines"]["kept"]["fps"] > 0


def test_the_first_rate_is_that_since_the_first_result(device: Device) -> None:
    """A start gives results before there is anybody to gather health."""
    kept = device.pipelines[0]
    device.board.add(kept.queue)
    kept.stream.began = time.monotonic() - 10
    kept.queue.account.inferred = 101
    assert device.health.payload()["pipelines"]["kept"]["fps"] == pytest.approx(10, rel=0.1)


def test_heat_and_throttling_are_said(tmp_path: Path, root: Path) -> None:
    """The hottest sensor is in the payload, and what is wrong about it in `why`."""
    zone(root, 0, "cpu-thermal", 83456, passive=80000)
    tree(root, **{"devices__platform__soc__soc:firmware__get_throttled": "4"})
    payload = Device(tmp_path, root).health.payload()
    assert payload["temperature_c"] == 83.5
    assert payload["state"] == "degraded"
    assert "hot: cpu-thermal 83.5 °C (slows down from 80)" in payload["why"]
    assert "throttled: the firmware slows the processor down" in payload["why"]


def test_memory_that_runs_short_is_said(device: Device, root: Path) -> None:
    """A cgroup near its limit is a reason."""
    group(
        root,
        "system.slice/edge-agent.service",
        memory_max=512 * MIB,
        memory_current=500 * MIB,
    )
    assert device.why("memory")[0].startswith("memory: 500 of 512 MiB")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_files_of_another_user_are_the_cause_of_what_is_denied(
    device: Device, tmp_path: Path
) -> None:
    """Beside the file that could not be read: whose it is, and what makes all right again."""
    open_to_strangers(tmp_path)
    hand_over(tmp_path, User(STRANGER, STRANGER))
    closed = tmp_path / "overrides.json"
    closed.touch(0o600)
    said: list[str] = []
    device.problems.append(lambda: said)
    with acting_as(User(STRANGER, STRANGER)):
        assert device.why("state_dir") == []
        said.append(f"{closed}: cannot be read: Permission denied")
        (why,) = device.why("state_dir")
    assert why == f"state_dir: {closed} belongs to root; sudo chown -R {STRANGER}: {tmp_path}"


def test_what_was_promised_and_dropped_is_said_for_a_minute(
    device: Device,
) -> None:
    """Results with qos = 1 that were given up are a reason, until none was for a minute.

    Those without are lost without a word: nobody promised them.
    """
    kept, live = device.pipelines
    assert device.why("pipeline") == []
    kept.stream.channel.lost, live.stream.channel.lost = 12, 99
    assert device.why("pipeline") == ["pipeline kept: 12 results with qos = 1 were dropped"]
    device.now += 50
    kept.stream.channel.lost = 15
    assert device.why("pipeline") == ["pipeline kept: 15 results with qos = 1 were dropped"]
    device.now += 59
    assert device.why("pipeline") == ["pipeline kept: 15 results with qos = 1 were dropped"]
    device.now += 1
    assert device.why("pipeline") == []
    kept.stream.channel.lost = 16
    assert device.why("pipeline") == ["pipeline kept: 1 result with qos = 1 was dropped"]


def test_a_broker_that_is_away_is_said(device: Device) -> None:
    """Before there is a connection, health is degraded and says so."""
    assert device.why("broker") == ["broker: not connected yet"]


def test_the_latest_payload_is_kept(device: Device) -> None:
    """Who reads health without asking for it anew gets what was said last."""
    assert device.health.latest is None
    payload = device.health.payload()
    assert device.health.latest is payload
