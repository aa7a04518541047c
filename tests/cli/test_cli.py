"""The command line: its words, its exit statuses, and the commands that only look."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from edge_agent import __version__
from edge_agent.cli.main import parser
from edge_agent.cli.terminal import brief, summary
from edge_agent.config.device_profile import default_dirs, load_profiles
from edge_agent.core.bundled import bundled
from edge_agent.core.names import safe_name
from tests.helpers.push import endless, model_folder
from tests.helpers.small_models import brightness, loudness, plain, write_clip, write_pictures
from tests.helpers.support import (
    PATIENCE,
    Listener,
    Mosquitto,
    call_cli,
    free_port,
    run_cli,
    wait_until,
)

BENCHES = ("pipeline", "push", "cold-start", "cameras", "infer")
COMMANDS = (
    "run",
    "demo",
    "try",
    "check",
    "profile",
    "tail",
    "evidence",
    "infer",
    "ui",
    "configure",
    "set",
    "push",
    "status",
    "models",
    "rollback",
    "rollout",
    "activate",
    "add",
    "pack",
    "describe",
    "convert",
    "quantize",
    "keygen",
    "bench",
    "schema",
    "install",
    "uninstall",
)


# Words and statuses


def test_the_version_is_printed() -> None:
    """--version prints it and ends with 0."""
    said = call_cli("--version")
    assert (said.code, said.out, said.err) == (0, f"edge-agent {__version__}\n", "")


def test_help_lists_every_command() -> None:
    """--help names each command of the public interface that this version has."""
    said = call_cli("--help")
    assert said.code == 0
    listed = {line.split()[0] for line in said.out.splitlines() if line.startswith("    ")}
    assert set(COMMANDS) <= listed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    """--help of each command gives its usage on stdout and ends with 0."""
    said = call_cli(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"usage: edge-agent {command} ")


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_a_locale_without_its_letters_gets_others(encoding: str) -> None:
    """What stdout cannot write is written in its own letters; JSON stays JSON."""
    said = run_cli("--help", environ={"PYTHONIOENCODING": encoding})
    assert (said.returncode, said.stderr) == (0, "")
    assert "... as a daemon" in said.stdout


def test_help_groups_the_commands_and_begins_with_daily_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each command is in one group, and nothing is wider than a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    said = call_cli("--help").out
    groups = re.findall(r"^([a-z -]+):$", said, re.MULTILINE)
    assert groups[-5:] == ["daily use", "models", "set-up", "measure", "examples"]
    listed = re.findall(r"^    ([a-z]+) ", said, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert max(len(line) for line in said.splitlines()) <= 80


@pytest.mark.parametrize(
    "command",
    [(), *((name,) for name in COMMANDS), *(("bench", kind) for kind in BENCHES)],
    ids=" ".join,
)
def test_every_help_ends_with_examples_that_can_be_typed(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line takes each example as it stands, and it is of the command explained."""
    monkeypatch.setenv("COLUMNS", "80")
    said = call_cli(*command, "--help").out.partition("\nexamples:\n")[2].splitlines()
    assert said
    for line in said:
        assert len(line) <= 80
        typed = re.split(r"  +|\|", line.strip())[0].removeprefix("sudo ")
        words = shlex.split(re.sub(r"^[A-Z_]+=\S+ ", "", typed))
        assert words[: 1 + len(command)] == ["edge-agent", *command]
        parser().parse_args(words[1:])


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("evidence get --device box EV", {"action": "get", "event": "EV", "device": "box"}),
        ("evidence --device box get EV", {"action": "get", "event": "EV", "device": "box"}),
        ("rollout status --json ID", {"id": "ID", "json": True}),
        ("set lamp a=1 --device box b=2", {"pipeline": "lamp", "changes": ["a=1", "b=2"]}),
        ("bench push --json M", {"models": ["M"], "json": True}),
    ],
)
def test_options_stand_before_between_and_behind(typed: str, found: dict[str, Any]) -> None:
    """One that may be left out had counted as left out where options stood before it."""
    assert vars(parser().parse_args(typed.split())).items() >= found.items()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["rnu"], "invalid choice: 'rnu'; did you mean 'run'?; see 'edge-agent --help'"),
        (["xyz"], "invalid choice: 'xyz' (choose from"),
        (["run", "now"], "unrecognized arguments: now; see 'edge-agent run --help'"),
        (
            ["bench", "push", "m", "--now"],
            "unrecognized arguments: --now; see 'edge-agent bench push --help'",
        ),
        (["run", "--config"], "argument --config: expected one argument"),
        (["tail", "-n", "0"], "argument -n: expected a whole number above 0, found '0'"),
        (["tail", "-n", "²"], "argument -n: expected a whole number above 0, found '²'"),
        (["tail", "--kind", "resutl"], "invalid choice: 'resutl'; did you mean 'result'?"),
        (["tail", "--device", "a/b"], "--device: 'a/b' is not a name"),
        (
            ["tail", "--broker", "broker:1883"],
            "--broker: begins with mqtt:// or mqtts:// and a host; as mqtt://localhost",
        ),
        (["demo", "--seconds", "-1"], "expected a number above 0, found '-1'"),
        (["bench", "pipeline", "m", "--rate", "-1"], "expected a number from 0, found '-1'"),
        (["bench", "pipeline", "m", "--rate", "nan"], "expected a number from 0, found 'nan'"),
        (["profile", "--config", "nope.toml"], "nope.toml: no such settings file"),
        (["add", "nope.onnx"], "PATH: 'nope.onnx': no such file or folder"),
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: list[str], line: str) -> None:
    """What cannot be meant is said in one line, with nothing on stdout."""
    said = call_cli(*arguments)
    assert (said.code, said.out) == (2, "")
    assert line in said.error


def test_the_program_gives_the_same_status() -> None:
    """`python -m edge_agent` ends as `main` does, also where the reader has gone."""
    ended = run_cli()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "edge-agent: the following arguments are required: COMMAND; see 'edge-agent --help'\n"
    )


def test_an_error_of_the_system_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no room for temporary files the place is named, without a traceback."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    folder = brightness(tmp_path / "light")
    (tmp_path / "config.toml").write_text('state_dir = "state"\n')
    said = call_cli(
        "add", str(folder), "--name", "other", "--config", str(tmp_path / "config.toml")
    )
    assert (said.code, said.out) == (1, "")
    assert said.error.startswith(f"edge-agent: {tmp_path}/nowhere/")
    assert said.error.endswith(": No such file or directory")


def test_no_command_needs_engines_to_explain_itself() -> None:
    """Start-up time is a feature: neither engine, OpenCV nor MQTT is loaded for the parser."""
    program = (
        "import sys; from edge_agent.cli.main import parser; parser(); "
        "print([m for m in ('openvino', 'onnxruntime', 'cv2', 'paho', 'numpy', 'pydantic') "
        "if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


def test_every_command_has_its_module() -> None:
    """The parser names only modules that are there."""
    (commands,) = [a for a in parser()._actions if a.dest == "command"]
    assert commands.choices is not None
    assert set(COMMANDS) <= set(commands.choices)


# profile


def test_the_profile_says_what_and_why() -> None:
    """Facts, match, reason and the engines in their order are printed, one a line."""
    said = call_cli("profile")
    assert (said.code, said.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in said.out.splitlines()]
    heads = [line[0] for line in lines]
    for head in ("device", "machine", "flags", "profile", "why", "serves"):
        assert heads.count(head) == 1, head
    assert {line[1].split()[0] for line in lines if line[0] == "engine"} == {
        "openvino",
        "onnxruntime",
    }


def test_the_list_says_of_each_profile_why_not() -> None:
    """--list names every profile once; one of them is the one that matches."""
    said = call_cli("profile", "--list")
    assert said.code == 0
    listed = said.out.split("\n\n")[1].splitlines()
    assert sorted(line.split()[0] for line in listed) == sorted(load_profiles(default_dirs()))
    assert [line.split()[1] for line in listed].count("yes:") == 1


def test_a_forced_engine_is_shown(tmp_path: Path) -> None:
    """`profile` shows what the settings force, and that it serves first."""
    config = tmp_path / "config.toml"
    config.write_text('engine = "onnxruntime"\nprofile = "generic"\n')
    said = call_cli("profile", "--config", str(config))
    assert "serves    onnxruntime:CPU" in said.out
    assert "openvino:" not in said.out
    assert "named in the settings" in said.out


# check


def settings(folder: Path, broker: str, **more: Any) -> str:
    """Write settings with one pipeline."""
    brightness(folder / "library" / "light")
    source = write_pictures(folder / "pictures", [plain(90)])
    table = {
        "device_id": "looking",
        "state_dir": "state",
        "models_dirs": ["library"],
        "broker": {"url": broker},
        "pipelines": [{"name": "door", "source": source, "model": "light"}],
        **more,
    }
    (folder / "config.toml").write_text(tomli_w.dumps(table))
    return str(folder / "config.toml")


def test_a_good_setup_checks_out(tmp_path: Path, shared_broker: Mosquitto) -> None:
    """`check` says of everything that it is fit, ends with 0, and makes nothing."""
    said = call_cli("check", "--config", settings(tmp_path, shared_broker.url))
    assert (said.code, said.err) == (0, "")
    subjects = [line[6:].split(": ")[0] for line in said.out.splitlines() if line[:2] == "ok"]
    assert subjects == [
        *("settings", "profile", "engine", "engine", "state_dir", "broker", "models_dirs"),
        *("pipeline door source", "pipeline door model light"),
    ]
    assert "FAIL" not in said.out
    assert not (tmp_path / "state").exists()


def test_damaged_state_is_said_and_left_as_it_is(tmp_path: Path, shared_broker: Mosquitto) -> None:
    """It is the agent that puts it aside, and then forgets; `check` had done that beside it."""
    config, state = settings(tmp_path, shared_broker.url), tmp_path / "state"
    state.mkdir()
    for name in ("overrides.json", "engines.json"):
        (state / name).write_text("{")
    said = call_cli("check", "--config", config)
    assert (said.code, said.err) == (0, "")
    holds = {
        "overrides.json": "changes made by `set` and `configure`",
        "engines.json": "what is known of models on engines",
    }
    for name, what in holds.items():
        why = f"damaged; {what} are forgotten at the next start"
        assert f"note  {state}/{name}: {why}" in said.out.splitlines()
    assert {path.name: path.read_text() for path in state.iterdir()} == dict.fromkeys(holds, "{")


def test_a_sensor_that_says_nothing_is_no_failure(tmp_path: Path, shared_broker: Mosquitto) -> None:
    """`check` opens a serial line, does not wait for it without end, and hears no lost broker."""
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    pipelines = [
        {"name": "line", "source": f"serial:{name}", "model": "bearing-vibration"},
        {"name": "topic", "source": "mqtt:plant/silent", "model": "bearing-vibration"},
    ]
    said = call_cli("check", "--config", settings(tmp_path, shared_broker.url, pipelines=pipelines))
    os.close(ours)
    os.close(theirs)
    assert said.code == 0, said.out + said.err
    assert f"ok    pipeline line source: serial:{name}, open; it gave nothing for 3 s" in said.out
    assert "ok    pipeline topic source: mqtt:plant/silent, subscribed" in said.out
    assert "lost" not in said.err


def test_a_recording_that_does_not_fit_its_model_is_a_failure(
    tmp_path: Path, shared_broker: Mosquitto
) -> None:
    """`check` said ok, and `run` lost the source for good: another rate, other names, no names."""
    for name, line in (("named", 'channels = ["b"]'), ("sound", "rate_hz = 16000")):
        manifest = loudness(tmp_path / "library" / name, 4) / "model.toml"
        manifest.write_text(manifest.read_text().replace("[input]", f"[input]\n{line}"))
    (tmp_path / "fits.csv").write_text("a,b\n" + "1,2\n" * 8)
    (tmp_path / "names.csv").write_text("a,c\n" + "1,2\n" * 8)
    np.save(tmp_path / "rows.npy", np.ones((8, 2), np.float32))
    with wave.open(str(tmp_path / "slow.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(400))
    sources = {
        "fits": ("csv:fits.csv", "named"),
        "names": ("csv:names.csv", "named"),
        "rows": ("npy:rows.npy", "named"),
        "slow": ("wav:slow.wav", "sound"),
    }
    pipelines = [
        {"name": name, "source": source, "model": model}
        for name, (source, model) in sources.items()
    ]
    said = call_cli("check", "--config", settings(tmp_path, shared_broker.url, pipelines=pipelines))
    assert said.code == 1
    failures = [line for line in said.out.splitlines() if line.startswith("FAIL")]
    expected = {
        "names": "named: named@1 does not fit this source: input.channels: 'b' is not a column",
        "rows": "named: named@1 does not fit this source: input.channels: the source has no names",
        "slow": "sound: sound@1 does not fit this source: input.rate_hz: the source gives 8000",
    }
    for line, (name, words) in zip(failures, expected.items(), strict=True):
        assert line.startswith(f"FAIL  pipeline {name} model {words}")


def test_bundled_models_check_out_by_their_golden_cases(
    tmp_path: Path, shared_broker: Mosquitto
) -> None:
    """`check` compares a model's golden cases too."""
    media = bundled("models") / "media"
    pipelines = [
        {"name": "a", "source": f"file:{media}/conveyor.mp4", "model": "parts-inspection"},
        {"name": "b", "source": f"csv:{media}/bearing.csv", "model": "bearing-vibration"},
    ]
    said = call_cli("check", "--config", settings(tmp_path, shared_broker.url, pipelines=pipelines))
    assert said.code == 0, said.out
    assert said.out.count("cases agree") == 2


def test_a_recording_that_is_played_at_another_speed_is_noted(
    tmp_path: Path, shared_broker: Mosquitto
) -> None:
    """Of a sensor's recording `?rate=` is how fast it is read, which is no error."""
    source = f"csv:{bundled('models')}/media/bearing.csv?rate=3200"
    pipeline = {"name": "b", "source": source, "model": "bearing-vibration"}
    said = call_cli(
        "check", "--config", settings(tmp_path, shared_broker.url, pipelines=[pipeline])
    )
    assert said.code == 0, said.out
    note = "note  pipeline b source: ?rate=3200 plays it at 0.5 times the 6400 readings a second"
    assert note in said.out


def test_check_says_who_is_trusted(tmp_path: Path, shared_broker: Mosquitto) -> None:
    """A key that is fit is named, one that is not is a failure with its reason, none is said."""

    def said(name: str, **more: Any) -> list[str]:
        config = settings(tmp_path / name, shared_broker.url, pipelines=[], **more)
        lines = call_cli("check", "--config", config).out.splitlines()
        return [line for line in lines if line[6:].startswith("trust: ")]

    (none,) = said("none")
    assert none.startswith("note")
    assert "no key is trusted" in none
    folder = tmp_path / "trusted"
    folder.mkdir()
    assert call_cli("keygen", str(folder / "ci")).code == 0
    (folder / "old.pub").write_text("-----BEGIN PUBLIC KEY-----\nnonsense\n")
    bad, good = said("keys", trust={"keys": [str(folder)]})
    assert bad.startswith("FAIL")
    assert "old.pub: is no PEM public key" in bad
    assert good == "ok    trust: keys: ci.pub"
    assert any("allow_unsigned" in line for line in said("anyone", trust={"allow_unsigned": True}))


def test_a_folder_without_models_is_no_library(tmp_path: Path, shared_broker: Mosquitto) -> None:
    """One that is a model itself fails with the mend, one that holds none is no `ok`."""

    def looked(name: str, other: str) -> list[str]:
        config = settings(tmp_path / name, shared_broker.url, models_dirs=["library", other])
        lines = call_cli("check", "--config", config).out.splitlines()
        return [line for line in lines if line[6:].startswith("models_dirs: ")]

    library = tmp_path / "a" / "library"
    words = f"{library}/light: is a model itself; name the folder that it is in, {library}"
    assert looked("a", "library/light") == [
        f"ok    models_dirs: {library}, 1 model",
        f"FAIL  models_dirs: {words}",
    ]
    _, second = looked("b", "pictures")
    assert second.startswith(f"note  models_dirs: {tmp_path}/b/pictures has no model")


def test_a_port_of_metrics_that_is_taken_is_said(tmp_path: Path, shared_broker: Mosquitto) -> None:
    """Perhaps by the agent itself, so that it is no failure."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = settings(tmp_path, shared_broker.url, health={"metrics_port": port})
        said = call_cli("check", "--config", config)
    assert said.code == 0
    assert f"note  health.metrics_port: {port}: address already in use; " in said.out


def test_everything_that_is_wrong_is_said(tmp_path: Path) -> None:
    """`check` goes on behind the first thing that is wrong, and ends with 1."""
    port = free_port()
    config = settings(
        tmp_path,
        f"mqtt://127.0.0.1:{port}",
        models_dirs=["library", "nowhere"],
        trust={"keys": ["no-keys"]},
        pipelines=[
            {"name": "a", "source": "dir:nowhere", "model": "lihgt"},
            {"name": "b", "source": "dir:pictures", "model": "light@9"},
            {"name": "c", "source": "dir:pictures", "model": "light", "roi": [64, 0, 99, 48]},
            {"name": "d", "source": "dir:pictures", "model": "light", "roi": [63, 0, 99, 99]},
        ],
    )
    said = call_cli("check", "--config", config)
    assert (said.code, said.err) == (1, "")
    failed = {
        line[6:].partition(": ")[0]: line for line in said.out.splitlines() if line[:4] == "FAIL"
    }
    assert set(failed) == {
        "broker",
        "models_dirs",
        "pipeline a source",
        "pipeline a model lihgt",
        "pipeline b model light@9",
        "pipeline c source",
        "trust",
    }
    assert (
        f"127.0.0.1:{port} cannot be reached: connection refused; start a broker"
        in failed["broker"]
    )
    assert failed["pipeline a model lihgt"].count("lihgt") == 1
    assert "did you mean 'light'?" in failed["pipeline a model lihgt"]
    assert (
        "roi [64, 0, 99, 48] lies wholly outside the picture, which is 64x48"
        in (failed["pipeline c source"])
    )


@pytest.mark.parametrize("command", ["check", "add"])
def test_a_model_that_computes_for_ever_ends_neither_check_nor_add(
    command: str, tmp_path: Path, shared_broker: Mosquitto
) -> None:
    """It runs in a child, which is killed when the time of a trial is over; the mend is said."""
    folder = model_folder(tmp_path / "library" / "level", "2")
    endless(folder)
    pipelines = [{"name": "door", "source": "dir:pictures", "model": "level"}]
    config = settings(tmp_path, shared_broker.url, pipelines=pipelines, trial={"timeout_s": 3.0})
    given = [str(folder)] if command == "add" else []
    said = call_cli(command, *given, "--config", config)
    assert said.code == 1
    assert (
        "level@2: loading and running it gave no answer within 3 s and was killed; "
        "if it is only slow, raise trial.timeout_s" in said.out + said.err
    )


# tail


class Talk:
    """A device's words on a broker, retained, under a topic root of their own."""

    def __init__(self, listener: Listener, root: str) -> None:
        self.listener = listener
        self.root = root

    def say(self, topic: str, payload: Any) -> None:
        data = payload if isinstance(payload, bytes | str) else json.dumps(payload)
        self.listener.publish(f"{self.root}/{topic}", data, retain=True)


@pytest.fixture
def talk(
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Talk:
    """Give a broker's corner where two devices have said something."""
    root = safe_name(request.node.name)
    monkeypatch.setenv("EDGE_AGENT_BROKER__TOPIC_ROOT", root)
    monkeypatch.setenv("EDGE_AGENT_BROKER__URL", shared_broker.url)
    made = Talk(listen(shared_broker.port, f"{root}/#"), root)
    time = "2026-11-21T03:26:50.123Z"
    for device in ("box-1", "box-2"):
        made.say(f"{device}/status", {"state": "online", "reason": "started", "time": time})
    made.say(
        "box-1/result/door",
        {
            "schema": 1,
            "seq": 41,
            "time": time,
            "model": "face@3",
            "detections": [{"label": "face", "score": 0.981, "box": [1, 2, 3, 4]}],
            "timing": {"age_ms": 9.8},
        },
    )
    made.say("box-1/model/face", {"name": "face", "live": "3", "previous": None, "time": time})
    return made


@pytest.mark.usefixtures("talk")
def test_results_are_one_line_each() -> None:
    """A result reads as when, who, which, what, by which model and how old."""
    said = call_cli("tail", "-n", "1")
    assert (said.code, said.err) == (0, "")
    assert said.out == "03:26:50.123 box-1 result door: #41 face 0.98 · face@3 · 10 ms\n"


@pytest.mark.usefixtures("talk")
def test_a_tail_that_misses_messages_says_how_many() -> None:
    """An exit code of 1 without a word made one look for an error."""
    said = call_cli("tail", "--kind", "model", "-n", "3", "--timeout", "0.5")
    assert said.code == 1
    assert said.err == "edge-agent: 1 of 3 messages came within 0.5 s\n"


def test_a_score_without_a_threshold_is_no_verdict() -> None:
    """While a threshold is learned a result says how far that is."""
    learning = {"score": 7.25, "threshold": None, "anomalous": False, "learning": 0.125}
    assert summary({"anomaly": learning}) == "score 7.25 (learns its threshold, 12%)"
    assert brief({"anomaly": learning}) == "score 7.25, learns its threshold, 12%"
    held = {"score": 7.25, "threshold": 2.0, "anomalous": False}
    assert brief({"anomaly": held}) == "normal 7.25 > 2"


@pytest.mark.usefixtures("talk")
def test_kinds_are_told_apart() -> None:
    """--kind shows that kind alone, and `all` shows all."""
    said = call_cli("tail", "--kind", "status", "-n", "2")
    assert said.out.splitlines() == [
        "03:26:50.123 box-1 status: online (started)",
        "03:26:50.123 box-2 status: online (started)",
    ]
    said = call_cli("tail", "--kind", "model", "-n", "1")
    assert said.out == "03:26:50.123 box-1 model face: live 3, previous none\n"
    said = call_cli("tail", "--kind", "all", "-n", "4")
    assert len(said.out.splitlines()) == 4


def test_health_without_pipelines_says_so(talk: Talk) -> None:
    """A device that has nothing to do yet is one line without a hole."""
    talk.say("box-4/health", {"state": "ok", "pipelines": {}, "rss_mb": 56.5})
    said = call_cli("tail", "--kind", "health", "--device", "box-4", "-n", "1")
    assert said.out.strip() == "box-4 health: ok · no pipelines · 56.5 MB"


@pytest.mark.usefixtures("talk")
def test_one_device_can_be_followed() -> None:
    """--device shows that one's messages alone."""
    said = call_cli("tail", "--kind", "status", "--device", "box-2", "-n", "1")
    assert said.out == "03:26:50.123 box-2 status: online (started)\n"


@pytest.mark.usefixtures("talk")
def test_waiting_for_a_message_has_an_end() -> None:
    """With --timeout what does not come is 1 with -n; without, it is no failure."""
    said = call_cli("tail", "-n", "1", "--device", "nobody", "--timeout", "1")
    assert (said.code, said.out) == (1, "")
    said = call_cli("tail", "--kind", "status", "--timeout", "1")
    assert (said.code, len(said.out.splitlines())) == (0, 2)


def test_a_device_that_nobody_knows_is_named(talk: Talk) -> None:
    """Who waits for a device that is not there is told which ones are; it may still come."""
    tail = subprocess.Popen(
        [sys.executable, "-m", "edge_agent", "tail", "--device", "box-9", "-n", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stderr is not None
    said = tail.stderr.readline()
    assert said == "edge-agent: device box-9 is unknown; known: box-1, box-2; waits for it\n"
    talk.say("box-9/result/gate", {"seq": 1, "model": "face@3", "detections": []})
    out, err = tail.communicate(timeout=PATIENCE)
    assert (tail.returncode, err) == (0, "")
    assert "box-9 result gate" in out


def test_json_is_one_object_a_line(talk: Talk) -> None:
    """--json prints the payloads with their topics, and nothing else on stdout."""
    said = call_cli("tail", "--kind", "all", "--json", "-n", "4")
    assert said.code == 0
    payloads = [json.loads(line) for line in said.out.splitlines()]
    topics = {payload["topic"].removeprefix(f"{talk.root}/") for payload in payloads}
    assert topics == {"box-1/status", "box-2/status", "box-1/result/door", "box-1/model/face"}


@pytest.mark.parametrize(
    "payload", [b"\xff\x00", b"plain words", b"[1, 2]", b'{"detections": 5}', b'{"time": 5}', b"5"]
)
def test_what_others_publish_does_not_stop_it(payload: bytes, talk: Talk) -> None:
    """Words that are no payload of ours are shown as they are, on one line."""
    talk.say("box-3/result/door", payload)
    said = call_cli("tail", "--device", "box-3", "-n", "1")
    assert (said.code, said.err) == (0, "")
    assert said.out.count("\n") == 1
    said = call_cli("tail", "--device", "box-3", "-n", "1", "--json")
    assert json.loads(said.out)["topic"] == f"{talk.root}/box-3/result/door"


def test_a_broker_that_is_not_there_is_one_line_and_1() -> None:
    """An unreachable broker is named, without the password that its URL holds."""
    port = free_port()
    said = call_cli("tail", "--broker", f"mqtt://me:geheim@127.0.0.1:{port}", "-n", "1")
    assert (said.code, said.out) == (1, "")
    assert f"mqtt://127.0.0.1:{port} cannot be reached" in said.error
    assert "geheim" not in said.err


def test_tail_outlives_a_restart_of_the_broker(
    broker: Mosquitto, listen: Callable[..., Listener], tmp_path: Path
) -> None:
    """It ended with 1 before its N or S; now it says so and goes on, as mosquitto_sub does."""
    listener = listen(broker.port)
    listener.publish("edge/box/status", json.dumps({"state": "online"}), retain=True)
    process, out = start_tail(tmp_path, broker, "-n", "2")
    broker.stop()
    lost = r"(?m)^edge-agent: the connection to the broker is lost: .+; connecting again$"
    wait_until(lambda: bool(re.search(lost, out.read_text())), "a word about it")
    broker.start()
    listener = listen(broker.port)
    listener.publish("edge/box/status", json.dumps({"state": "offline"}), retain=True)
    assert process.wait(PATIENCE) == 0
    again, last = out.read_text().splitlines()[-2:]
    assert again == "edge-agent: connected again"
    assert "box status" in last


def test_ctrl_c_ends_it_without_a_word(
    shared_broker: Mosquitto, tmp_path: Path, listen: Callable[..., Listener]
) -> None:
    """SIGINT is the way to end `tail`: at once, with 0, without a traceback."""
    listener = listen(shared_broker.port)
    listener.publish("edge/box/status", json.dumps({"state": "online"}), retain=True)
    process, out = start_tail(tmp_path, shared_broker)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert "Traceback" not in out.read_text()
    assert "edge-agent:" not in out.read_text()
    listener.publish("edge/box/status", b"", retain=True)


def start_tail(folder: Path, broker: Mosquitto, *more: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `tail` and wait until it has shown something."""
    out = folder / "out"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "edge_agent", "tail"),
            *("--broker", broker.url, "--kind", "status", "--device", "box", *more),
        ],
        stdout=out.open("wb"),
        stderr=subprocess.STDOUT,
        env=dict(os.environ),
    )
    wait_until(lambda: "box status" in out.read_text(), "the first line")
    return process, out


def test_a_stream_far_larger_than_its_models_need_is_said(
    tmp_path: Path, shared_broker: Mosquitto
) -> None:
    """Of all pipelines that share it: one that looks at a small part needs all of it."""
    clip = f"file:{write_clip(tmp_path / 'clip.avi', [plain(9)] * 9)}"
    whole = {"name": "whole", "source": clip, "model": "light"}
    part = {**whole, "name": "part", "roi": [0, 0, 20, 20]}
    note = f"note  source {clip}: 64x48 is far more than the models on it take (16x16 at most)"
    for pipelines, said in (([whole], True), ([whole, part], False)):
        file = settings(tmp_path / str(said), shared_broker.url, pipelines=pipelines)
        found = call_cli("check", "--config", file)
        assert found.code == 0, found.out
        assert (note in found.out) is said
        assert ("ms of a processor here" in found.out) is said
