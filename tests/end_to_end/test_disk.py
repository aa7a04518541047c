"""The state folder on a disk that is full, or read-only: results go on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.device.pressure import disk_problems
from tests.helpers.small_disk import fill, small_disk
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.stranger import STRANGER, open_to_strangers, stranger
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
HEALTH, RESULT = "edge/box/health", "edge/box/result/p"


def command(listener: Listener, verb: str, request: str, **body: Any) -> dict[str, Any]:
    """Give a command and wait for its reply."""
    listener.publish(f"edge/box/in/command/{verb}", json.dumps({"id": request, **body}))
    reply: dict[str, Any] = listener.wait_state(f"edge/box/reply/{request}", id=request)
    return reply


def disk_reason(listener: Listener) -> list[str]:
    """Give what health says of the disk."""
    said = listener.last(HEALTH) or {"why": []}
    return [reason for reason in said["why"] if reason.startswith("disk: ")]


def results_go_on(listener: Listener) -> None:
    """Wait for five more results."""
    before = len(listener.on(RESULT))
    listener.wait_for(lambda _: len(listener.on(RESULT)) >= before + 5, "five more results")


def settings_on(disk: Path, broker: Mosquitto, tmp_path: Path) -> str:
    """Make a model and a clip, and settings whose state is on a disk."""
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(50)])
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "light"}
    state = {"models_dirs": [str(tmp_path / "models")], "state_dir": str(disk / "state")}
    return agent_settings("box", broker.url, [pipeline], **state)


def test_a_full_disk_stops_nothing(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Filled up at work, and full at a start: results, commands, a reason; room again: none.

    What cannot be kept is refused with a reason; what need not be is done all the same.
    """
    with small_disk(tmp_path / "disk", "16m") as disk:
        listener = listen(broker.port)
        running = agent(settings_on(disk, broker, tmp_path))
        results_go_on(listener)
        filler = fill(disk)
        listener.wait_for(lambda _: disk_reason(listener), "health to name the disk")
        results_go_on(listener)
        assert command(listener, "ping", "one")["ok"] is True
        kept = command(listener, "set", "two", pipeline="p", threshold=0.1, persist=True)
        assert kept["ok"] is False
        assert "set for now, but not kept" in kept["error"]
        assert running.words().count(f"MiB are free where {disk / 'state'} is") == 1
        assert running.stop() == 0

        listener.heard.clear()
        running.restart()
        results_go_on(listener)
        listener.wait_for(lambda _: disk_reason(listener), "health to name the disk again")
        filler.unlink()
        listener.wait_for(
            lambda _: listener.last(HEALTH) and not disk_reason(listener), "health to be well"
        )
        kept = command(listener, "set", "three", pipeline="p", threshold=0.1, persist=True)
        assert kept["ok"] is True
        assert running.stop() == 0
        assert "Traceback" not in running.words()


def test_a_read_only_disk_stops_nothing(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """An agent starts from a disk that has become read-only, says so, and writes when it may."""
    with small_disk(tmp_path / "disk", "16m") as disk:
        listener = listen(broker.port)
        running = agent(settings_on(disk, broker, tmp_path))
        results_go_on(listener)
        assert running.stop() == 0
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

        listener.heard.clear()
        running.restart()
        results_go_on(listener)
        reason = listener.wait_for(lambda _: disk_reason(listener), "health to name the disk")
        assert "is read-only: nothing can be kept over a restart" in reason[0]
        assert command(listener, "ping", "one")["ok"] is True
        kept = command(listener, "set", "two", pipeline="p", threshold=0.1, persist=True)
        assert "Read-only file system" in kept["error"]
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        listener.wait_for(
            lambda _: listener.last(HEALTH) and not disk_reason(listener), "health to be well"
        )
        kept = command(listener, "set", "three", pipeline="p", threshold=0.1, persist=True)
        assert kept["ok"] is True
        assert running.stop() == 0
        assert "Traceback" not in running.words()


LEFT_OVER = (
    ".counts.json.deadbeef",
    "added/light@1.answer",
    "added/light@1.request",
    "evidence/p/.picture.part",
    "evidence/p/.clip.mp4.part",
    "models/light/.pointers.json.deadbeef",
    "incoming/0123/offer.json",
    "staging/0123/file",
    "prepared/unfinished.json",
    "prepared/.0123.deadbeef",
    "spool.db-wal",
    "starting",
)
"""What kills leave in a state folder."""


def test_a_read_only_disk_with_what_kills_have_left_stops_nothing(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """A worn card becomes read-only in just that moment; what cannot be removed is left."""
    with small_disk(tmp_path / "disk", "16m") as disk:
        listener = listen(broker.port)
        running = agent(settings_on(disk, broker, tmp_path))
        results_go_on(listener)
        running.process.kill()
        running.process.wait()
        for name in LEFT_OVER:
            left = disk / "state" / name
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_text('{"name": "light", "version": "1", "state": "trial"}')
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        running.restart()
        listener.wait_for(lambda _: disk_reason(listener), "health to name the disk")
        results_go_on(listener)
        assert running.stop() == 0
        assert "Traceback" not in running.words()


def test_what_cannot_be_written_is_in_health_though_the_disk_has_room(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Not even one more file can be made; then only one file cannot be replaced."""
    with small_disk(tmp_path / "disk", "16m,nr_inodes=150") as disk:
        listener = listen(broker.port)
        running = agent(settings_on(disk, broker, tmp_path))
        results_go_on(listener)
        names = [disk / str(number) for number in range(100)]
        for name in names:
            name.touch()
        (reason,) = listener.wait_for(lambda _: disk_reason(listener), "health to name the disk")
        assert "more files can be made where" in reason
        for name in names:
            name.unlink()
        listener.wait_for(lambda _: not disk_reason(listener), "health to be well")
        in_the_way = disk / "state" / "mode.json"
        in_the_way.touch()
        subprocess.run(["mount", "--bind", str(in_the_way), str(in_the_way)], check=True)
        assert command(listener, "set", "one", pipeline="@device", mode="night")["ok"] is True
        (reason,) = listener.wait_for(lambda _: disk_reason(listener), "health to name the file")
        assert reason == f"disk: {in_the_way}: cannot be written: Device or resource busy"
        subprocess.run(["umount", str(in_the_way)], check=True)
        listener.wait_for(lambda _: not disk_reason(listener), "health to be well again")
        assert running.stop() == 0


def test_a_disk_that_the_kernel_has_given_up(tmp_path: Path) -> None:
    """An ext4 with an error is called writable and is not: that is said too."""
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    for line in (
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop,errors=remount-ro", str(image), str(place)],
    ):
        if subprocess.run(line, check=False, capture_output=True).returncode:
            pytest.skip("no ext4 can be mounted here")
    try:
        assert not any("read-only" in why for why in disk_problems(place))
        found = subprocess.run(
            ["findmnt", "-n", "-o", "SOURCE", str(place)],
            capture_output=True,
            text=True,
            check=True,
        )
        trigger = Path("/sys/fs/ext4", Path(found.stdout.strip()).name, "trigger_fs_error")
        trigger.write_text("a test")
        assert disk_problems(place) == [
            f"disk: {place} is read-only: nothing can be kept over a restart"
        ]
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take a file from another user")
def test_what_was_set_is_back_once_root_has_given_it_back(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Settings restored by root were moved away, and the chown that was asked for was in vain."""
    prefix = stranger(reading=False)
    open_to_strangers(tmp_path)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, STRANGER, STRANGER)
    listener = listen(broker.port)
    settings = settings_on(tmp_path, broker, tmp_path)
    process = agent(settings, environ={"HOME": str(state)}, prefix=prefix)
    results_go_on(listener)
    assert command(listener, "set", "keep", pipeline="p", rate=4, persist=True)["ok"]
    assert process.stop() == 0
    kept = state / "overrides.json"
    os.chown(kept, 0, 0)
    process.restart()
    results_go_on(listener)
    mend = f"{kept} belongs to root; sudo chown -R {STRANGER}: {state}"
    listener.wait_why(f"state_dir: {mend}")
    listener.wait_why(f"{kept}: cannot be read: Permission denied")
    refused = command(listener, "set", "lost", pipeline="p", rate=7, persist=True)
    assert "cannot be read: Permission denied" in str(refused)
    assert process.stop() == 0
    os.chown(kept, STRANGER, STRANGER)
    process.restart()
    results_go_on(listener)
    assert command(listener, "set", "again", pipeline="p", threshold=0.5)["result"]["rate"] == 4
    assert process.stop() == 0
