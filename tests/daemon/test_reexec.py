"""Starting anew by `execv`, and signals that come at just that moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.test_fast_start_signals import await_moment, has
from tests.helpers.start_box import Box, kept, planned
from tests.helpers.support import CHECKOUT, wait_until

__all__ = ["kept", "planned"]

TWICE = """
import os, signal, sys
from edge_agent.daemon.fast_start import reexec
number = signal.Signals(int(sys.argv[1]))
if "_AGAIN" not in os.environ:
    os.environ["_AGAIN"] = "1"
    signal.signal(number, lambda *_: print("too early", flush=True))
    reexec.hold_signals()
    os.kill(os.getpid(), number)
    reexec.restart()
print("anew", flush=True)
signal.signal(number, lambda *_: print("heard", flush=True))
reexec.release_signals()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_waits_until_the_new_program_minds_it(number: int) -> None:
    """What comes between the decision to start anew and the new handlers is heard by those."""
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(int(number))],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "anew\nheard\n", "")


def test_told_to_end_while_it_restarts(planned: Box) -> None:
    """SIGTERM in the middle of a `restart` that was asked for: it ends, with 0, and stays away."""
    with planned.start() as start:
        session = start.wait("status", state="online")["session"]
        start.wait("health")
        start.listener.client.publish(planned.topic("in", "command", "restart"), '{"id": "r"}', 1)
        start.wait("status", state="offline", reason="stopped")
        start.agent.signal(signal.SIGTERM)
        assert start.agent.wait() == 0
        online = [h.json for h in start.heard("status") if h.json["state"] == "online"]
        assert {status["session"] for status in online} == {session}


@pytest.mark.skipif(
    "resource" in sys.builtin_module_names, reason="this Python maps no file for the moment"
)
def test_told_to_reload_just_before_somebody_can(planned: Box) -> None:
    """SIGHUP after a start has read the settings, and before orders are taken, is not forgotten."""
    with planned.start() as start:
        # Imported with the control, when the settings have been read for the last time.
        await_moment(start.agent.process.pid, has("/resource."))
        planned.config.write_text(planned.settings().replace('"p"', '"q"'))
        start.agent.signal(signal.SIGHUP)
        assert start.all_right(pipeline="q")
        wait_until(lambda: "settings read again" in start.words(), "the reload")


@pytest.fixture
def gone(tmp_path: Path) -> list[str]:
    """Give a command line that runs the rest of it in a folder that has been removed."""
    folder = tmp_path / "gone"
    folder.mkdir()
    return ["sh", "-c", f'cd "{folder}" && rmdir "{folder}" && exec "$@"', "sh"]


@pytest.mark.parametrize("words", [["run"], ["run", "--config", "/etc/hostname"], ["profile"]])
def test_a_folder_that_has_been_removed(gone: list[str], words: list[str]) -> None:
    """Started where there is nothing any more, every command says so in one line, with 2."""
    done = subprocess.run(
        [*gone, sys.executable, "-m", "edge_agent", *words],
        env={"PYTHONPATH": str(CHECKOUT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "edge-agent: the working directory has been removed; change to another one, e.g. cd /\n"
    )


def test_a_signal_that_came_with_the_one_being_handled_is_handled_before_others_are_held() -> None:
    """SIGTERM 3 ms after SIGHUP was lost: Python handles one after the other, and none was left."""
    script = """
import os, signal
from edge_agent.daemon.fast_start.reexec import hold_signals

def anew(*_):
    hold_signals()
    os.write(1, b"held")

signal.signal(signal.SIGHUP, anew)
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"ended "))
both = {signal.SIGHUP, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, both)
for number in both:
    os.kill(os.getpid(), number)
signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    assert done.stdout == "ended held"
