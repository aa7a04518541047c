"""How commands that talk to a broker end: what is looked at first, and what Ctrl-C leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.push import model_folder
from tests.helpers.support import PATIENCE, Listener, Mosquitto, call_cli

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
