"""How commands that talk to a broker end: what is looked at first, and what Ctrl-C leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.push import model_folder
from tests.helpers.support import (
    CHECKOUT,
    PATIENCE,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
)

NOBODY = "mqtt://127.0.0.1:1"


@pytest.mark.parametrize("name", ["nope", "nope.tar", "nope.onnx"])
def test_the_path_of_a_push_is_looked_at_first(tmp_path: Path, name: str) -> None:
    """What is not there is said, with 2, before a broker or a device is looked for."""
    done = call_cli("push", str(tmp_path / name), "--device", "m1", "--broker", NOBODY)
    assert done.code == 2
    assert done.error == f"edge-agent: {tmp_path / name}: no such file or folder"


def test_what_is_no_model_is_said_before_a_device_is_looked_for(tmp_path: Path) -> None:
    """So are a folder that holds no model, and a key that is none."""
    (tmp_path / "empty").mkdir()
    done = call_cli("push", str(tmp_path / "empty"), "--device", "m1", "--broker", NOBODY)
    assert "model.toml" in done.error
    new = str(model_folder(tmp_path / "new", "2"))
    key = str(tmp_path / "no.key")
    done = call_cli("push", new, "--device", "m1", "--broker", NOBODY, "--key", key)
    assert done.code == 2
    assert done.error == f"edge-agent: {key}: no such file"
    done = call_cli("push", new, "--device", "m1", "--broker", NOBODY)
    assert done.code == 1
    assert f"{NOBODY} cannot be reached" in done.error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_push_that_is_interrupted_has_failed(
    broker: Mosquitto, listen: Callable[..., Listener], tmp_path: Path, number: int
) -> None:
    """Ctrl-C in a push ends it with 1 and a line that says how to go on."""
    listener = listen(broker.port)
    listener.publish("edge/ghost/status", b'{"schema": 1, "state": "online"}', retain=True)
    new = model_folder(tmp_path / "new", "2")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "edge_agent", "push", str(new)),
            *("--device", "ghost", "--broker", broker.url),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    listener.wait_for(lambda heard: any(h.topic.endswith("/offer") for h in heard), "the offer")
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert said.splitlines()[-1] == (
        "edge-agent: interrupted; the same push again goes on where it stopped"
    )
    assert "Traceback" not in said


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupts())
from edge_agent.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module", ["argparse", "edge_agent.cli.commands.describe", "edge_agent.models.importing"]
)
def test_ctrl_c_while_the_program_is_imported_is_one_line(module: str) -> None:
    """From its first moment on, before a command is known as while it is fetched."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, "describe", "models/parts-inspection"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "edge-agent: interrupted\n"


CLOSED = 'exec "$@" <&- >&- 2>&-'


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["describe", "models/parts-inspection"], 0),
        (["status", "--json"], 1),
        (["models", "--json"], 1),
        (["check"], 2),  # no settings
    ],
)
def test_commands_whose_streams_are_closed_end_as_otherwise(
    arguments: list[str], status: int
) -> None:
    """Cron jobs and daemons close them: "'NoneType' object has no attribute 'isatty'"."""
    command = [sys.executable, "-m", "edge_agent", *arguments]
    environ = {**os.environ, "EDGE_AGENT_BROKER__URL": NOBODY}
    done = subprocess.run(
        ["sh", "-c", CLOSED, "sh", *command],
        env=environ,
        cwd=CHECKOUT,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == status


def test_an_agent_whose_streams_are_closed_puts_nothing_in_their_place(
    broker: Mosquitto, listen: Callable[..., Listener], tmp_path: Path
) -> None:
    """A library's words on descriptor 2 went into the file that tells what a crash is blamed on."""
    config = tmp_path / "agent.toml"
    config.write_text(agent_settings("box", broker.url, [], state_dir=str(tmp_path / "state")))
    heard = listen(broker.port)
    command = [sys.executable, "-m", "edge_agent", "run", "--config", str(config)]
    running = subprocess.Popen(["sh", "-c", CLOSED, "sh", *command], cwd=CHECKOUT)
    try:
        heard.wait_state("edge/box/status", state="online")
        streams = [Path(f"/proc/{running.pid}/fd/{number}").readlink() for number in range(3)]
        assert streams == [Path(os.devnull)] * 3
    finally:
        running.terminate()
        assert running.wait(PATIENCE) == 0


@pytest.mark.parametrize("columns", ["0", "1", "2"])
def test_help_for_a_console_without_columns_is_laid_out(columns: str) -> None:
    """A serial console may say that it has one column: "invalid width 0 (must be > 0)"."""
    done = subprocess.run(
        [sys.executable, "-m", "edge_agent", "push", "--help"],
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout


def test_a_key_without_a_name_is_one_line() -> None:
    """An unset variable in a script: "PosixPath('.') has an empty name"."""
    said = call_cli("keygen", "")
    assert (said.code, said.out) == (2, "")
    assert said.err == "edge-agent: FILE: names no file; such as push.key\n"


def test_a_reload_that_the_agent_refuses_fails_for_systemd_too(tmp_path: Path) -> None:
    """`systemctl reload` was content with certificates for which the agent kept its settings."""
    config = tmp_path / "settings.toml"
    broker = 'state_dir = "state"\n[broker]\nurl = "mqtts://localhost"\nca_file = "ca.pem"\n'
    config.write_text(broker)
    (tmp_path / "ca.pem").write_text("no certificate")
    said = call_cli("check", "--settings-only", "--config", str(config))
    assert said.code == 2
    assert "broker.ca_file" in said.err
    config.write_text(broker.replace('ca_file = "ca.pem"', ""))
    assert call_cli("check", "--settings-only", "--config", str(config)).code == 0
