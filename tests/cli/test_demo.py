"""`edge-agent demo`: everything at once, with nothing set up."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from edge_agent.mqtt.loopback import FIRST_PORT, find_mosquitto, free_port
from tests.helpers.support import CHECKOUT, PATIENCE, call_cli, run_cli, wait_until


@contextmanager
def taken(port: int) -> Iterator[None]:
    """See that a port is taken, by whomever."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            assert not listener.connect_ex(("127.0.0.1", port)), "taken, but nobody listens"
        yield


def port_of(words: str) -> int:
    """Find the port that the demo printed."""
    found = re.search(r"on 127\.0\.0\.1:(\d+), started for this demo", words)
    assert found, words
    return int(found[1])


def test_results_arrive_and_it_ends_by_itself(tmp_path: Path) -> None:
    """It ends after the seconds given, with 0; a taken port is passed over, the next is printed."""
    with taken(FIRST_PORT):
        ended = run_cli(
            *("demo", "--pipeline", "conveyor", "--seconds", "1"),
            environ={"TMPDIR": str(tmp_path)},
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert port_of(ended.stdout) > FIRST_PORT
    assert f"mosquitto_sub -p {port_of(ended.stdout)}" in ended.stdout
    summary, after = ended.stdout.splitlines()[-2:]
    assert after.startswith("next     edge-agent try SOURCE MODEL")
    assert summary.startswith("conveyor: ")
    assert "parts-inspection@3 on " in summary
    assert re.search(r"age p50 [\d.]+ p95 [\d.]+ p99 [\d.]+ ms", summary)
    assert not list(tmp_path.glob("edge-agent*"))


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    """With --json every line of stdout is a result of one of both pipelines; the rest is on stderr.

    How long both take to give one is the machine's business: it runs until they have.
    """
    out, error = tmp_path / "out", tmp_path / "error"
    with out.open("wb") as stdout, error.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "edge_agent", "demo", "--json"], stdout=stdout, stderr=stderr
        )

    def results() -> list[Any]:
        whole = out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    try:
        wait_until(lambda: any("anomaly" in each for each in results()), "a result of a signal")
        wait_until(lambda: any(each.get("detections") for each in results()), "a detection")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert out.read_text().endswith("\n")
    for each in results():
        assert (each["schema"], each["device"]) == (1, "demo")
        found = {"conveyor": "detections", "vibration": "anomaly"}[each["pipeline"]]
        assert found in each
    assert port_of(error.read_text()) >= FIRST_PORT


def test_the_users_settings_do_not_get_into_it() -> None:
    """Variables meant for the installed agent do not lead the demo's agent elsewhere."""
    ended = run_cli(
        *("demo", "--pipeline", "bearing", "--seconds", "1"),
        environ={
            "EDGE_AGENT_BROKER__URL": "mqtt://127.0.0.1:9",
            "EDGE_AGENT_PROFILE": "nonsense",
            "EDGE_AGENT_DEVICE_ID": "somebody",
        },
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "bearing: " in ended.stdout
    assert "conveyor" not in ended.stdout


def test_an_unknown_pipeline_is_wrong_usage() -> None:
    """--pipeline names the ones there are."""
    ended = call_cli("demo", "--pipeline", "door")
    assert ended.code == 2
    assert ended.error.endswith("there is no 'door'; there are conveyor, vibration, bearing")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_it_leaves_nothing_running(number: int, tmp_path: Path) -> None:
    """Ctrl-C and a closed terminal end broker and agent with it, with 0."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_agent", "demo", "--pipeline", "bearing"],
        stdout=(tmp_path / "out").open("wb"),
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": str(tmp_path)},
    )
    try:
        wait_until(lambda: "bearing #" in (tmp_path / "out").read_text(), "the first result")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert not [child for child in children if child.is_running()]
    assert not list(tmp_path.glob("edge-agent*"))
    words = (tmp_path / "out").read_text()
    assert "Traceback" not in words
    assert re.search(r"^bearing: \d+ results?", words, re.MULTILINE)


def test_what_the_page_lacks_is_said_once(tmp_path: Path) -> None:
    """Where the page's libraries are missing, `demo --ui` ends with how to install them."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['websockets'] = None\n")
    ended = run_cli(
        *("demo", "--ui", "--seconds", "1"),
        environ={"PYTHONPATH": f"{tmp_path}:{CHECKOUT}", "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == 1
    assert re.fullmatch(
        r"edge-agent: --ui: the page needs the extra `ui`; run: \S+ -m pip install .* websockets\n",
        ended.stderr,
    )


def test_what_makes_the_environment_of_the_demo_brings_the_page(tmp_path: Path) -> None:
    """`scripts/demo --ui` stands on the first page; it ended with an extra that was missing."""
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    (tmp_path / "scripts").symlink_to(CHECKOUT / "scripts")
    (tmp_path / "pyproject.toml").symlink_to(CHECKOUT / "pyproject.toml")
    lines = f"cd {CHECKOUT}; . scripts/environment.sh; root={tmp_path} venv=$root/.venv"
    lines += " python=$venv/bin/python; install_project base"
    ended = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    (extras,) = re.findall(r"-e \S+\[(.*)\]", ended.stderr)
    assert {"ui", "metrics", "http"} <= set(extras.split(","))


# The broker


def test_the_next_free_port_is_taken() -> None:
    """Where somebody listens the next port is tried."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert free_port(port) > port


def test_mosquitto_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PATH's first counts; where only root's PATH leads is looked at too."""
    program = tmp_path / "mosquitto"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin")
    assert find_mosquitto() == str(program)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    there = next((p for p in ("/usr/sbin", "/usr/local/sbin") if Path(p, "mosquitto").exists()), "")
    assert find_mosquitto() == (f"{there}/mosquitto" if there else None)


HIDE = """
for program in $(which -a mosquitto) /usr/sbin/mosquitto /usr/local/sbin/mosquitto; do
    if [ -e "$program" ]; then mount --bind /dev/null "$program"; fi
done
exec "$@"
"""


def without_mosquitto(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command where there is no mosquitto: in a mount namespace of its own."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("hiding mosquitto takes root and unshare")
    apart = ["unshare", "--mount", "sh", "-ec", HIDE, "sh"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounts, not even in a namespace")
    return subprocess.run(
        [*apart, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * PATIENCE,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )


def test_without_any_broker_the_mend_is_said() -> None:
    """With neither mosquitto nor amqtt it ends with 2 and both ways to get one."""
    # None in sys.modules is how Python marks a module that must not be found.
    program = (
        "import sys; sys.modules['amqtt'] = None; from edge_agent.cli.main import main; "
        "sys.exit(main(['demo', '--seconds', '1']))"
    )
    ended = without_mosquitto(sys.executable, "-c", program)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "edge-agent: demo needs a broker: install mosquitto (apt install mosquitto), "
        f"or amqtt ({sys.executable} -m pip install amqtt)\n"
    )


@pytest.mark.skipif(importlib.util.find_spec("amqtt") is None, reason="amqtt is not installed")
def test_amqtt_stands_in_for_mosquitto() -> None:
    """Where there is no mosquitto, amqtt carries the demo."""
    ended = without_mosquitto(sys.executable, "-m", "edge_agent", "demo", "--seconds", "1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "amqtt on 127.0.0.1:" in ended.stdout
    assert "conveyor: " in ended.stdout


def test_two_that_start_at_once_have_a_broker_each(tmp_path: Path) -> None:
    """Whichever is later to take the port takes the next one, and neither hears the other."""
    demos = [
        subprocess.Popen(
            [sys.executable, "-m", "edge_agent", "demo", "--seconds", "1", "--json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [demo.communicate(timeout=PATIENCE * 2) for demo in demos]
    assert [demo.returncode for demo in demos] == [0] * 4, said
    assert len({port_of(words) for _, words in said}) == 4
    sessions = [{json.loads(line)["session"] for line in out.splitlines()} for out, _ in said]
    assert [len(each) for each in sessions] == [1] * 4
