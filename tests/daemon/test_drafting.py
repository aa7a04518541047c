"""A plan drafted in a fork: what is checked there is what is loaded here, or nothing is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.bundled import bundled
from tests.helpers.start_box import numbers
from tests.helpers.support import wait_until

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


def printed(script: str, tmp_path: Path) -> list[str]:
    """Run a script on the network of a bundled model; return the words that it prints."""
    folder = shutil.copytree(bundled("models") / "parts-inspection", tmp_path / "numbers")
    command = [sys.executable, "-c", script, str(folder / "model.onnx")]
    output = subprocess.run(command, check=True, capture_output=True, text=True)
    return output.stdout.split()


def test_no_library_is_needed_for_a_draft(tmp_path: Path) -> None:
    """NumPy alone takes as long to import as all of the draft and its checks."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "import edge_agent.daemon.fast_start.draft\n"
        "from edge_agent.inference.engines.engine import EngineChoice\n"
        "from edge_agent.inference.engines.registry import check_quick\n"
        "check_quick(EngineChoice('onnxruntime'), Path(sys.argv[1]))\n"
        "print(*({'numpy', 'onnxruntime', 'onnx', 'cv2', 'paho'} & {*sys.modules}))\n"
    )
    assert printed(script, tmp_path) == []


def test_a_session_is_opened_before_the_rest_is_imported(tmp_path: Path) -> None:
    """What a model is made of besides is imported meanwhile, not before."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from edge_agent.inference.engines.engine import EngineChoice\n"
        "from edge_agent.serving.open import begin_quick\n"
        "from edge_agent.inference.engines.registry import check_quick\n"
        "begin_quick(check_quick(EngineChoice('onnxruntime'), Path(sys.argv[1])))\n"
        "late = ('inference.model', 'inference.engines.ort', 'models.manifest')\n"
        "print(*({f'edge_agent.{name}' for name in late} & {*sys.modules}))\n"
    )
    assert printed(script, tmp_path) == []


def test_a_fork_that_hangs(tmp_path: Path) -> None:
    """As on a network disk that is gone: after a while it is given up, and killed."""
    numbers(tmp_path / "models" / "numbers")
    fork = 'drafting = Drafting(sys.argv[1], "origins")\n'
    stop = "import os, signal\nos.kill(drafting._child, signal.SIGSTOP)\n"
    short = "from edge_agent.daemon.fast_start import drafting as module\nmodule.PATIENCE = 0.2\n"
    assert draft(tmp_path, SCRIPT.replace(fork, short + fork + stop)) == {"plan": None}


def test_a_plan_that_ends_in_the_middle(tmp_path: Path) -> None:
    """Half a plan is none."""
    numbers(tmp_path / "models" / "numbers")
    fork = 'drafting = Drafting(sys.argv[1], "origins")\n'
    half = (
        "import os\n"
        "read, write = os.pipe()\n"
        "os.write(write, b'{\"state\": ')\n"
        "os.close(write)\n"
        "os.dup2(read, drafting._answers)\n"
    )
    assert draft(tmp_path, SCRIPT.replace(fork, fork + half)) == {"plan": None}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_the_fork_ends_with_its_parent(number: int, tmp_path: Path) -> None:
    """Whoever ends the agent in the middle of a start ends all of it."""
    numbers(tmp_path / "models" / "numbers")
    script = (
        "import os, sys\n"
        "from edge_agent.daemon import planned_start\n"
        "from edge_agent.daemon.fast_start import draft\n"
        "from edge_agent.daemon.fast_start.drafting import Drafting\n"
        "planned_start._mind_signals()\n"
        "draft.draft = lambda *_: os.read(os.open(sys.argv[2], os.O_RDONLY), 1)\n"
        "planned_start._forks.append(Drafting(sys.argv[1], 'origins'))\n"
        "print(planned_start._forks[0]._child, flush=True)\n"
        "planned_start._forks[0].plan()\n"
    )
    never = tmp_path / "never"
    os.mkfifo(never)
    command = [sys.executable, "-c", script, "edge-agent.toml", str(never)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the fork to end")
