"""A plan drafted in a fork: what is checked there is what is loaded here, or nothing is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.bundled import bundled
from tests.helpers.start_box import numbers

SCRIPT = """
import json, sys
from pathlib import Path

from edge_agent.core.errors import AgentError
from edge_agent.daemon.fast_start.drafting import Drafting

drafting = Drafting(sys.argv[1], "origins")
plan = drafting.plan()
said = {"plan": plan and len(plan.models)}
for index, model in enumerate(plan.models if plan else ()):
    try:
        network = drafting.network(model, index)
        said["same"] = network.data[:] == network.path.read_bytes()
        said["graph"] = len(network.graph)
    except AgentError as problem:
        said["problem"] = [type(problem).__name__, str(problem)]
drafting.close()
drafting.close()
print(json.dumps(said))
"""


def draft(folder: Path, script: str = SCRIPT) -> dict[str, Any]:
    """Draft the plan of settings with one pipeline, in a process of its own."""
    config = folder / "edge-agent.toml"
    config.write_text(
        'state_dir = "state"\nmodels_dirs = ["models"]\n'
        '[[pipelines]]\nname = "p"\nsource = "dir:pictures"\nmodel = "numbers"\n'
    )
    (folder / "pictures").mkdir(exist_ok=True)
    command = [sys.executable, "-c", script, str(config)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=folder).stdout
    said: dict[str, Any] = json.loads(output)
    return said


def test_a_network_comes_as_it_was_checked(tmp_path: Path) -> None:
    numbers(tmp_path / "models" / "numbers")
    said = draft(tmp_path)
    assert said["plan"] == 1
    assert said["same"]
    assert 0 < said["graph"] < (tmp_path / "models/numbers/model.onnx").stat().st_size


def test_a_network_that_is_refused(tmp_path: Path) -> None:
    """The words of the check arrive, and with them its class."""
    network = numbers(tmp_path / "models" / "numbers") / "model.onnx"
    network.write_bytes(network.read_bytes()[:1000])
    kind, words = draft(tmp_path)["problem"]
    assert kind == "ModelError"
    assert "not a valid ONNX file" in words


def test_wrong_settings(tmp_path: Path) -> None:
    """There is no plan: the normal start says what is wrong."""
    assert draft(tmp_path) == {"plan": None}


@pytest.mark.parametrize("after", ["", "plan = drafting.plan()\n"], ids=["plan", "network"])
def test_a_fork_that_is_killed(after: str, tmp_path: Path) -> None:
    """As by the kernel where memory runs out: what is missing is not waited for."""
    numbers(tmp_path / "models" / "numbers")
    fork = 'drafting = Drafting(sys.argv[1], "origins")\n'
    kill = "import os, signal\nos.kill(drafting._child, signal.SIGKILL)\n"
    wait = "os.waitid(os.P_PID, drafting._child, os.WEXITED | os.WNOWAIT)\n"
    # What it had said by then may have been all there is to say.
    script = SCRIPT.replace(fork, fork + after.replace("plan =", "_ =") + kill + wait)
    script = script.replace("plan = drafting.plan()", "plan = _", 1) if after else script
    said = draft(tmp_path, script)
    assert said["plan"] in {None, 1}
    assert said["plan"] is None or said.get("same") or "could not be checked" in said["problem"][1]


def test_no_library_is_needed_for_a_draft(tmp_path: Path) -> None:
    """NumPy alone takes as long to import as all of the draft and its checks."""
    folder = shutil.copytree(bundled("models") / "parts-inspection", tmp_path / "numbers")
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "import edge_agent.daemon.fast_start.draft\n"
        "from edge_agent.inference.engines.engine import EngineChoice\n"
        "from edge_agent.inference.quick_check import check_quick\n"
        "check_quick(EngineChoice('onnxruntime'), Path(sys.argv[1]))\n"
        "print(*({'numpy', 'onnxruntime', 'onnx', 'cv2', 'paho'} & {*sys.modules}))\n"
    )
    command = [sys.executable, "-c", script, str(folder / "model.onnx")]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=dict(os.environ))
    assert output.stdout.split() == []
