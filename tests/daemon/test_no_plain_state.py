"""Pipes and folders in place of files: never waited for; said, put aside, and replaced."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_agent.core.plain_file import NoPlainFileError, open_plain, read_plain_bytes
from edge_agent.core.state_file import StateFile
from edge_agent.models.store import pointers
from edge_agent.mqtt.command_memory import CommandMemory, Repeatable
from tests.helpers.start_box import Box
from tests.helpers.support import PATIENCE, Called, Mosquitto, call_cli, wait_until

SAID = {
    *("announced.json", "commands.jsonl", "counts.json", "deployments.json", "drift.json"),
    *("engines.json", "events.json", "events.log", "homeassistant.json", "mode.json"),
    *("overrides.json", "spool.db", "tuning.json"),
}
"""Files that hold what would be missed, or that should be used."""
QUIET = {"flight", "pages.json", "served.json", "start.json"}
"""Files that only make a start faster, or tell of the last one."""


def replace(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "more").write_text("of the user's")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "endless":  # as a repaired file system leaves it
        path.touch()
        os.truncate(path, 2**30)
    else:
        with socket.socket(socket.AF_UNIX) as place:
            place.bind(str(path))


def test_settings_of_any_length_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """5 GiB of them took as much memory, and a minute, to be called larger than 256 KiB."""
    config = tmp_path / "edge-agent.toml"
    config.touch()
    os.truncate(config, 2**33)
    program = [sys.executable, "-m", "edge_agent", "run", "--config", str(config)]
    done = subprocess.run(
        ["prlimit", f"--as={2**32}", *program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "larger than 256 KiB" in done.stderr


@pytest.mark.parametrize("kind", ["pipe", "folder", "endless"])
def test_nothing_in_the_state_folder_is_waited_for(
    kind: str, broker: Mosquitto, tmp_path: Path
) -> None:
    """Every file at once is something else: the agent starts, says so, and writes them anew."""
    (tmp_path / "box").mkdir()
    own = Box(tmp_path / "box", broker)
    csv = own.folder / "s.csv"
    csv.write_text("heat\n" + "1\n9\n" * 50)
    rule = {"name": "hot", "when": "value", "value": "heat", "above": 5}
    own.pipelines[0]["qos"] = 1
    own.pipelines.append(
        {"name": "s", "source": f"csv:{csv}?rate=20&loop=1", "model": "readings", "rules": [rule]}
    )
    own.more["homeassistant"] = {"enabled": True}
    own.verbose = True
    with own.start() as start:
        start.wait("status", state="online")
        start.planned()
    for name in sorted(SAID | QUIET):
        replace(own.state / name, kind)
    forms = own.state.glob("prepared/*/*")
    for path in (*forms, own.state / "agent.lock", own.state / "store.lock"):
        replace(path, kind)
    with own.start() as start:
        start.wait("status", state="online")
        start.wait("event", "s", state="begin")
        # Recordings pause while the broker is away, and some results are needed for this one.
        wait_until(lambda: "drift.json" in start.words(), "the log to name drift.json")
        own.broker.stop()  # for the spool
        wait_until(lambda: all(name in start.words() for name in SAID), "the log to name them")
        own.broker.start()
        assert start.all_right()
    left = {name for name in (SAID | QUIET) - {"tuning.json"} if not plain(own.state / name)}
    assert not left, left


def plain(path: Path) -> bool:
    """Whether there is a file again, or nothing."""
    return path.is_file() or not path.exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device", "endless"])
def test_what_is_no_plain_file_is_put_aside(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a damaged file, with one line; and again beside what was put aside before."""
    path = tmp_path / "names.json"
    for end in ("", "2"):
        replace(path, kind)
        assert StateFile(path, "names").read(list) is None
        words = {"folder": "is a folder", "endless": "is larger than 64 MiB"}
        what = words.get(kind, "is no plain file")
        kept = "names.json.damaged" + (end if kind == "folder" else "")
        assert caplog.messages == [f"{path}: {what}; names are forgotten; it is kept as {kept}"]
        caplog.clear()
    StateFile(path).write(["a"])
    assert StateFile(path).read(list) == ["a"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device"])
def test_a_file_that_became_another_is_replaced(kind: str, tmp_path: Path) -> None:
    """Pointers of a model and commands are written while a pipe or folder has their name."""
    replace(tmp_path / pointers.FILE, kind)
    assert "pointers.json" in str(pointers.read(tmp_path).damage)
    pointers.write(tmp_path, pointers.Pointers(("1",)))
    assert pointers.read(tmp_path).live == "1"
    path = tmp_path / "commands.jsonl"
    replace(path, kind)
    memory = CommandMemory(path)
    memory.add(Repeatable("a", time.time(), "00"), {"ok": True}, durable=True)
    assert json.loads(path.read_text())[0] == "a"
    replace(path, kind)
    with pytest.raises(NoPlainFileError):
        read_plain_bytes(path)
    with pytest.raises(NoPlainFileError):
        open_plain(path, os.O_RDWR | os.O_APPEND)


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize(
    "table",
    [
        'broker = {{ url = "mqtts://127.0.0.1:1", ca_file = "{path}" }}',
        'broker = {{ url = "mqtts://127.0.0.1:1", cert_file = "{path}", key_file = "{path}" }}',
        'trust = {{ keys = ["{path}.d"] }}',
    ],
)
def test_a_file_that_settings_name_gives_a_line(kind: str, table: str, tmp_path: Path) -> None:
    """One line that names it, and no wait."""
    path, config = tmp_path / "it", tmp_path / "config.toml"
    (tmp_path / "it.d").mkdir()
    for each in (path, tmp_path / "it.d" / "it.pub"):
        replace(each, kind)
    config.write_text('state_dir = "state"\n' + table.format(path=path))
    called: Called = call_cli("check", "--config", str(config))
    lines = [line for line in (called.out + called.err).splitlines() if str(path) in line]
    assert called.code in {1, 2}
    assert lines, called
    replace(config, kind)
    assert str(config) in call_cli("check", "--config", str(config)).error
