"""The settings: where they come from, which of them wins, and what becomes of wrong ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from edge_agent.config.address import parse_url
from edge_agent.config.load import find_file, load
from edge_agent.config.locations import default_state
from edge_agent.config.settings import Arm, Settings, parse_route
from edge_agent.core.errors import UsageError
from tests.helpers.support import CHECKOUT, call_cli, run_cli

PIPELINE = '[[pipelines]]\nname = "door"\nsource = "file:clip.mp4"\nmodel = "face"\n'
SECRET = "hunter2-geheim"


def write(folder: Path, text: str | bytes) -> Path:
    """Write a settings file."""
    file = folder / "config.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def read(folder: Path, text: str, **env: str) -> Settings:
    """Read settings of a text and an environment alone."""
    return load(write(folder, text), {"HOME": str(folder), **env})


# Where they come from


def test_a_key_that_nobody_sets_is_as_the_interface_says(tmp_path: Path) -> None:
    """The defaults are those of the public interface."""
    found = read(tmp_path, PIPELINE)
    assert (found.profile, found.engine, found.quota_mb) == ("auto", "auto", 2048)
    assert (found.broker.url, found.broker.topic_root, found.broker.protocol) == (
        "mqtt://localhost:1883",
        "edge",
        5,
    )
    assert found.health.interval_s == 10
    assert (found.trial.shadow_frames, found.trial.probation_s, found.trial.timeout_s) == (
        30,
        30,
        60,
    )
    assert not found.trust.allow_unsigned
    (door,) = found.pipelines
    assert (door.rate, door.threshold, door.qos, door.roi) == (None, None, 0, (0, 0, 0, 0))


def test_the_example_of_the_interface_is_read(tmp_path: Path) -> None:
    """Every key of the documented example is known, also those of a second stage."""
    text = """
        device_id = "edge-01"
        groups = ["lab"]
        engine = "openvino"
        quota_mb = 512
        [broker]
        url = "mqtt://broker.lan"
        username = "edge-01"
        [trust]
        allow_unsigned = true
        [trial]
        min_agreement = 0.5
        [[pipelines]]
        name = "door"
        source = "rtsp://cam-1/stream"
        model = "face@3:90,face@4:10"
        rate = 5
        roi = [0, 0, 640, 480]
        [[pipelines.then]]
        name = "landmarks"
        model = "face-landmarks"
        labels = ["face"]
        limit = 4
        """
    found = read(tmp_path, text)
    (door,) = found.pipelines
    assert door.arms == (Arm("face", "3", 90), Arm("face", "4", 10))
    assert (door.then[0].name, door.then[0].limit, door.then[0].margin) == ("landmarks", 4, 0.0)


def test_environment_wins_over_credential_over_file_over_default(tmp_path: Path) -> None:
    """Each of the four layers is overruled by the one above it, key by key."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "broker.password").write_text("\ufeffof-the-credential\r\n", newline="")
    (credentials / "broker.username").write_text("credential")
    text = '[broker]\npassword = "of-the-file"\nusername = "file"\ntopic_root = "plant"\n'
    env = {"CREDENTIALS_DIRECTORY": str(credentials), "EDGE_AGENT_BROKER__USERNAME": "variable"}
    broker = read(tmp_path, text, **env).broker
    assert (broker.username, broker.password) == ("variable", "of-the-credential")
    assert (broker.topic_root, broker.url) == ("plant", "mqtt://localhost:1883")
    assert read(tmp_path, text).broker.password == "of-the-file"


def test_a_credential_that_is_none_of_ours_is_let_be(tmp_path: Path) -> None:
    """A unit's TLS key, or anything else systemd lays out, is no setting."""
    (tmp_path / "tls-key").write_bytes(b"\xff\x00")
    (tmp_path / "broker.nonsense").write_text("x")
    assert read(tmp_path, "", CREDENTIALS_DIRECTORY=str(tmp_path)).broker.password is None


def test_lists_and_tables_are_json_in_the_environment(tmp_path: Path) -> None:
    """Groups, pipelines and whole tables can be given as variables; single values as they are."""
    found = read(
        tmp_path,
        'groups = ["file"]\n' + PIPELINE,
        EDGE_AGENT_GROUPS='["lab", "hall-2"]',
        EDGE_AGENT_PIPELINES='[{"name": "a", "source": "file:a", "model": "m", "qos": 1}]',
        EDGE_AGENT_HEALTH='{"interval_s": 3}',
        EDGE_AGENT_BROKER__PROTOCOL="4",
        EDGE_AGENT_TRUST__ALLOW_UNSIGNED="true",
        EDGE_AGENT_TRIAL__PROBATION_S="0.5",
        EDGE_AGENT_DEVICE_ID="7",
    )
    assert found.groups == ("lab", "hall-2")
    assert [(p.name, p.qos) for p in found.pipelines] == [("a", 1)]
    assert (found.health.interval_s, found.broker.protocol) == (3, 4)
    assert (found.trust.allow_unsigned, found.trial.probation_s) == (True, 0.5)
    assert found.device_id == "7"


def test_a_single_variable_has_its_way_within_a_table(tmp_path: Path) -> None:
    """EDGE_AGENT_BROKER__URL wins over the same key in EDGE_AGENT_BROKER, and the rest stays."""
    found = read(
        tmp_path,
        '[broker]\nusername = "file"\n',
        EDGE_AGENT_BROKER='{"url": "mqtt://table", "topic_root": "table"}',
        EDGE_AGENT_BROKER__URL="mqtt://single",
    )
    assert (found.broker.url, found.broker.topic_root) == ("mqtt://single", "table")
    assert found.broker.username == "file"


@pytest.mark.parametrize("text", ["true", "1", "yes", "On"])
def test_a_boolean_in_the_environment_is_a_word(text: str, tmp_path: Path) -> None:
    """What has no types is read as people write it; in a file only true and false are booleans."""
    assert read(tmp_path, "", EDGE_AGENT_TRUST__ALLOW_UNSIGNED=text).trust.allow_unsigned is True
    with pytest.raises(UsageError, match=r"ALLOW_UNSIGNED: .*true or false, found 'perhaps'"):
        read(tmp_path, "", EDGE_AGENT_TRUST__ALLOW_UNSIGNED="perhaps")


def test_numbers_in_the_environment_are_text(tmp_path: Path) -> None:
    """A variable has no types: numbers are read from their digits, within the same bounds."""
    env = {
        "EDGE_AGENT_QUOTA_MB": "100",
        "EDGE_AGENT_HEALTH__INTERVAL_S": "0.5",
        "EDGE_AGENT_TRIAL__TIMEOUT_S": "5",
    }
    settings = load(write(tmp_path, ""), env)
    assert settings.quota_mb == 100
    assert settings.health.interval_s == 0.5
    assert settings.trial.timeout_s == 5
    for text in ("many", "true", "0.5", "0", ""):
        with pytest.raises(UsageError, match="environment EDGE_AGENT_QUOTA_MB: quota_mb: expected"):
            load(write(tmp_path, ""), {"EDGE_AGENT_QUOTA_MB": text})


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Settings that an editor on Windows has saved are read."""
    file = write(tmp_path, b'\xef\xbb\xbfdevice_id = "box"\n')
    assert load(file, {"HOME": str(tmp_path)}).device_id == "box"


def test_other_programs_variables_are_let_be(tmp_path: Path) -> None:
    """Only what begins with EDGE_AGENT_ is looked at."""
    assert read(tmp_path, "", EDGE_AGENT="x", BROKER__URL="x", EDGE_AGENTS_X="1").groups == ()


def test_relative_paths_count_from_the_files_folder(tmp_path: Path) -> None:
    """Where the agent is started from does not change what the settings mean."""
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).touch()
    text = """
        state_dir = "state"
        models_dirs = ["models", "/opt/models"]
        [broker]
        url = "mqtts://broker"
        ca_file = "ca.pem"
        cert_file = "me.pem"
        key_file = "me.key"
        [trust]
        keys = ["trust.d"]
        """
    found = read(tmp_path, text)
    assert found.state == tmp_path / "state"
    assert found.models_dirs == (str(tmp_path / "models"), "/opt/models")
    assert found.trust.keys == (str(tmp_path / "trust.d"),)
    assert found.broker.ca_file == str(tmp_path / "ca.pem")
    assert (found.broker.cert_file, found.broker.key_file) == (
        str(tmp_path / "me.pem"),
        str(tmp_path / "me.key"),
    )
    assert found.base == tmp_path


def test_the_state_goes_where_systemd_says(tmp_path: Path) -> None:
    """$STATE_DIRECTORY is the state_dir where the settings name none; a list's first counts."""
    assert read(tmp_path, "", STATE_DIRECTORY="/var/lib/a:/var/lib/b").state == Path("/var/lib/a")
    assert read(tmp_path, 'state_dir = "/x"', STATE_DIRECTORY="/var/lib/a").state == Path("/x")


def test_without_a_file_named_the_present_folders_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """./edge-agent.toml is found where /etc has none; a file that is named must be there."""
    if Path("/etc/edge-agent/config.toml").exists():
        pytest.skip("this machine has settings of its own in /etc")
    monkeypatch.chdir(tmp_path)
    assert find_file(None) is None
    Path("edge-agent.toml").touch()
    assert find_file(None) == Path("edge-agent.toml")
    with pytest.raises(UsageError, match=r"nope\.toml: no such settings file"):
        find_file("nope.toml")
    with pytest.raises(UsageError, match="is not a file"):
        find_file(str(tmp_path))
    Path("there").symlink_to("here")
    Path("here").symlink_to("there")
    with pytest.raises(UsageError, match="here: cannot be read: Too many levels of symbolic links"):
        find_file("here")


@pytest.mark.parametrize("command", ["run", "check"])
def test_without_settings_the_places_are_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` and `check` with nothing to go by end with 2 and say where they looked."""
    if Path("/etc/edge-agent/config.toml").exists():
        pytest.skip("this machine has settings of its own in /etc")
    monkeypatch.chdir(tmp_path)
    ended = call_cli(command)
    assert ended.code == 2
    assert "neither /etc/edge-agent/config.toml nor edge-agent.toml is there" in ended.error
    assert "--config" in ended.error


def test_readings_may_be_another_devices_results(tmp_path: Path) -> None:
    """Only the topics of this device itself are refused, not those that begin like its name."""
    for topic in ("edge/box2/result/door", "edge/@hall/in/x", "plant/edge/box/result/door"):
        pipeline = PIPELINE.replace("file:clip.mp4", f"mqtt:{topic}?field=value")
        read(tmp_path, f'device_id = "box"\ngroups = ["lab"]\n{pipeline}')


# What is wrong

BROKER = "[broker]\n"
WRONG: dict[str, tuple[str | bytes, str, str]] = {
    # what is wrong: the file, the key as the error names it, and a piece of the mend
    "unknown key": ("pipelin = 3\n", "pipelin", "did you mean 'pipelines'?"),
    "unknown key in a table": (BROKER + 'ulr = "mqtt://x"\n', "broker.ulr", "did you mean 'url'?"),
    "unknown key in a pipeline": (
        PIPELINE + "thresold = 0.4\n",
        "pipelines[door].thresold",
        "did you mean 'threshold'?",
    ),
    "unknown key in a second stage": (
        PIPELINE + '[[pipelines.then]]\nname = "two"\nmodel = "m"\nmargn = 1\n',
        "pipelines[door].then[two].margn",
        "did you mean 'margin'?",
    ),
    "key of another table": ('url = "mqtt://x"\n', "url", "it goes below [broker]"),
    "key of a pipeline": ("rate = 5\n", "rate", "it goes below [[pipelines]]"),
    "neither true nor a table": (
        PIPELINE + "snapshot = 1\n",
        "pipelines[door].snapshot",
        "expected true or false or a table, found 1",
    ),
    "unknown key in what may also be true": (
        PIPELINE + "snapshot = { widht = 640 }\n",
        "pipelines[door].snapshot.widht",
        "did you mean 'width'?",
    ),
    "list for a table in a pipeline": (
        PIPELINE + "thresholds = [0.5]\n",
        "pipelines[door].thresholds",
        "write its keys below a line [pipelines.thresholds]",
    ),
    "table for a list in a rule": (
        PIPELINE + '[[pipelines.rules]]\nname = "r"\nwhen = "enter"\ndo = { publish = "x" }\n',
        "pipelines[door].rules[r].do",
        "in double brackets, [[pipelines.rules.do]]",
    ),
    "crossing no line": (
        PIPELINE + '[[pipelines.rules]]\nname = "r"\nwhen = "cross"\n',
        "pipelines[door].rules[r].line",
        'a rule of when = "cross" needs a line; give one in [[pipelines.lines]]',
    ),
    "text for a number": ('quota_mb = "many"\n', "quota_mb", "a whole number, found 'many'"),
    "text for a list": ('groups = "lab"\n', "groups", "a list, found 'lab'"),
    "number for text": ("device_id = 7\n", "device_id", "a text in quotes, found 7"),
    "text for true": (PIPELINE + 'motion = "perhaps"\n', "pipelines[door].motion", "true or false"),
    "text for a table": ('health = "often"\n', "health", "below a line [health]"),
    "single brackets": ('[pipelines]\nname = "a"\n', "pipelines", "[[pipelines]]"),
    "not a number": ("[trial]\nprobation_s = nan\n", "trial.probation_s", "at most"),
    "infinite": (PIPELINE + "threshold = inf\n", "pipelines[door].threshold", "at most"),
    "rate of 0": (PIPELINE + "rate = 0\n", "pipelines[door].rate", "at least 0.00001, found 0"),
    "rate of nearly 0": (PIPELINE + "rate = 1e-300\n", "pipelines[door].rate", "at least 0.00001"),
    "rate of too much": (PIPELINE + "rate = 1e308\n", "pipelines[door].rate", "at most 100000"),
    "yes for true": (PIPELINE + 'motion = "yes"\n', "pipelines[door].motion", "found 'yes'"),
    "1 for true": ("[trust]\nallow_unsigned = 1\n", "trust.allow_unsigned", "true or false"),
    "true for a number": ("[batching]\nmax_batch = true\n", "batching.max_batch", "found True"),
    "text of digits": (PIPELINE + 'rate = "5"\n', "pipelines[door].rate", "a number, found '5'"),
    "5.0 for 5": (PIPELINE + "priority = 5.0\n", "pipelines[door].priority", "a whole number"),
    "too large": (f"quota_mb = {10**30}\n", "quota_mb", "at most"),
    "missing key": (
        '[[pipelines]]\nname = "a"\nsource = "file:x"\n',
        "pipelines[a].model",
        "is missing",
    ),
    "bad URL": (BROKER + 'url = "http://broker"\n', "broker.url", "mqtt://"),
    "bad port": (BROKER + 'url = "mqtt://broker:99999"\n', "broker.url", "1 to 65535"),
    "path in URL": (BROKER + 'url = "mqtt://broker/x"\n', "broker.url", "after host and port"),
    "space in URL": (BROKER + 'url = "mqtt://bro ker"\n', "broker.url", "%20"),
    "TLS on one node": (BROKER + 'url = ["mqtt://a", "mqtts://b"]\n', "broker.url", "one cluster"),
    "no node": (BROKER + "url = []\n", "broker.url", "a list of them"),
    "bad node": (BROKER + 'url = ["mqtt://a", "b"]\n', "broker.url", "begins with mqtt://"),
    "nodes that are none": (BROKER + "url = [1]\n", "broker.url", "text"),
    "no MQTT 3": (BROKER + "protocol = 3\n", "broker.protocol", "at least 4, found 3"),
    "wildcard in root": (BROKER + 'topic_root = "a/#"\n', "broker.topic_root", "without"),
    "Home Assistant's prefix among requests": (
        '[homeassistant]\nprefix = "edge/a3/in/ha"\n',
        "homeassistant.prefix",
        "is below 'in/' of 'edge'",
    ),
    "two models as one": (
        '[infer]\nmodels = ["a:3,b:4"]\n',
        "infer.models",
        "expected versions of one model",
    ),
    "one model twice": ('[infer]\nmodels = ["a", "a@3"]\n', "infer.models", "listed twice"),
    "no requests a second": ("[infer]\nper_s = 0\n", "infer.per_s", "above 0"),
    "HTTP nowhere": ('[http]\nlisten = "here"\n', "http.listen", "127.0.0.1:8001"),
    "HTTP for anybody": ('[http]\nlisten = "0.0.0.0:8001"\n', "http.listen", "set http.token"),
    "half of mutual TLS": (
        BROKER + 'url = "mqtts://b"\ncert_file = "x"\n',
        "broker.cert_file",
        "needs key_file too",
    ),
    "CA without TLS": (BROKER + 'ca_file = "x.pem"\n', "broker.ca_file", "mqtts://"),
    "missing CA": (
        BROKER + 'url = "mqtts://b"\nca_file = "x.pem"\n',
        "broker.ca_file",
        "No such file",
    ),
    "bad device name": ('device_id = "a b"\n', "device_id", "is not a name (letters"),
    "reserved group": ('groups = ["rollout"]\n', "groups", "is no name for a group"),
    "bad group": ('groups = ["@lab"]\n', "groups", "is not a name"),
    "bad pipeline name": (
        PIPELINE.replace("door", "a/b"),
        "pipelines[0].name",
        "'a/b' is not a name",
    ),
    "two of one name": (PIPELINE + PIPELINE, "pipelines[door].name", "each needs its own"),
    "unknown profile": ('profile = "intel-cpu-vni"\n', "profile", "did you mean 'intel-cpu-vnni'?"),
    "unknown engine": ('engine = "openvno"\n', "engine", "did you mean 'openvino'?"),
    "unknown source": (
        PIPELINE.replace("file:", "fiel:"),
        "pipelines[door].source",
        "did you mean 'file:'?",
    ),
    "source without form": (
        PIPELINE.replace("file:clip", "clip"),
        "pipelines[door].source",
        "did you mean 'file:clip.mp4'?",
    ),
    "unknown option of a source": (
        PIPELINE.replace("clip.mp4", "clip.mp4?lop=1"),
        "pipelines[door].source",
        "'lop'",
    ),
    "source of own results": (
        'device_id = "box"\n'
        + PIPELINE.replace("file:clip.mp4", "mqtt:edge/box/result/door?field=x"),
        "pipelines[door].source",
        "is this device's own, below 'edge/box/'",
    ),
    "source of own commands": (
        'device_id = "box"\n' + PIPELINE.replace("file:clip.mp4", "mqtt:edge/box/in/command/%73et"),
        "pipelines[door].source",
        "is this device's own, below 'edge/box/'",
    ),
    "source of a group's commands": (
        'groups = ["lab"]\n' + PIPELINE.replace("file:clip.mp4", "mqtt:edge/@lab/in/command/set"),
        "pipelines[door].source",
        "is this device's own, below 'edge/@lab/in/'",
    ),
    "bad model": (PIPELINE.replace('"face"', '"face@@3"'), "pipelines[door].model", "name@3"),
    "half a split": (
        PIPELINE.replace('"face"', '"face@3:90,face@4"'),
        "pipelines[door].model",
        "a share of the frames",
    ),
    "inside-out roi": (PIPELINE + "roi = [9, 9, 1, 1]\n", "pipelines[door].roi", "x1 < x2"),
    "short roi": (PIPELINE + "roi = [0, 0, 9]\n", "pipelines[door].roi", "[x1, y1, x2, y2]"),
    "negative roi": (PIPELINE + "roi = [-1, 0, 9, 9]\n", "pipelines[door].roi[0]", "at least 0"),
    "bad TOML": ("a = = b\n", "not valid TOML", "line 1"),
    "key twice": ("quota_mb = 1\nquota_mb = 2\n", "not valid TOML", "line 2"),
    "number without end": (f"quota_mb = {'9' * 5000}\n", "not valid TOML", "limit"),
    "too deep": ("a = " + "[" * 4000 + "]" * 4000, "not valid TOML", "recursion"),
    "not text": (b'device_id = "\xff"\n', "is not UTF-8 text", ""),
    "not a settings file": (b"#" * 300_000, "larger than 256 KiB", ""),
    "two lines in a key": ('"a\\nb" = 1\n', "a\\nb", "unknown key"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_settings_end_with_2_and_one_line(kind: str, tmp_path: Path) -> None:
    """`run` and `check` name file, key and mend in one line on stderr, and nothing on stdout."""
    text, key, mend = WRONG[kind]
    file = write(tmp_path, text)
    for command in ("run", "check"):
        ended = call_cli(command, "--config", str(file))
        assert (ended.code, ended.out) == (2, "")
        assert ended.error.startswith(f"edge-agent: {file}: {key}"), ended.err
        assert mend in ended.error
        assert "Traceback" not in ended.err


ENVIRONMENT = {
    "unknown variable": ({"EDGE_AGENT_BROKR__URL": "x"}, "did you mean 'EDGE_AGENT_BROKER__URL'?"),
    "unknown key in a table": (
        {"EDGE_AGENT_BROKER__ULR": "x"},
        "did you mean 'EDGE_AGENT_BROKER__URL'?",
    ),
    "a table of what is none": (
        {"EDGE_AGENT_QUOTA_MB__X": "1"},
        "did you mean 'EDGE_AGENT_QUOTA_MB'?",
    ),
    "text for a number": ({"EDGE_AGENT_QUOTA_MB": "many"}, "a whole number, found 'many'"),
    "a list without JSON": ({"EDGE_AGENT_GROUPS": "lab,hall"}, '["a", "b"]'),
    "a list of the wrong": ({"EDGE_AGENT_GROUPS": "[1]"}, "a text in quotes, found 1"),
    "a table of the wrong": ({"EDGE_AGENT_BROKER": "[]"}, "JSON object"),
    "a bad URL": ({"EDGE_AGENT_BROKER__URL": "broker:1883"}, "mqtt://"),
    "a bad name": ({"EDGE_AGENT_DEVICE_ID": "a/b"}, "is not a name"),
    "a bad pipeline": (
        {"EDGE_AGENT_PIPELINES": '[{"name": "a", "source": "x", "model": "m"}]'},
        "has no form",
    ),
    "an unknown profile": ({"EDGE_AGENT_PROFILE": "nope"}, "there is no profile 'nope'"),
}


@pytest.mark.parametrize("kind", ENVIRONMENT)
def test_a_wrong_variable_is_named_rather_than_the_file(kind: str, tmp_path: Path) -> None:
    """The one line says which variable is wrong, though there is a file too."""
    env, mend = ENVIRONMENT[kind]
    with pytest.raises(UsageError) as caught:
        read(tmp_path, "quota_mb = 5\n", **env)
    (variable,) = env
    assert str(caught.value).startswith(f"environment {variable}: ")
    assert mend in str(caught.value)


def test_wrong_settings_end_the_program_without_a_traceback(tmp_path: Path) -> None:
    """The whole program, as a user starts it, ends with 2 and the one line."""
    file = write(tmp_path, "pipelin = 3\n")
    ended = run_cli("run", "--config", str(file))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"edge-agent: {file}: pipelin: unknown key; did you mean 'pipelines'?\n"
    )
    ended = run_cli(
        "check", "--config", str(write(tmp_path, "")), environ={"EDGE_AGENT_QUOTA_MB": "x"}
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "edge-agent: environment EDGE_AGENT_QUOTA_MB: quota_mb: "
        "expected a whole number, found 'x'\n"
    )


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_credential_that_cannot_be_used_is_named(content: bytes | None, tmp_path: Path) -> None:
    """A credential that is not text, or a folder, is one line that names the credential."""
    place = tmp_path / "broker.password"
    if content is None:
        place.mkdir()
    else:
        place.write_bytes(content)
    with pytest.raises(UsageError, match=r"^credential broker\.password: "):
        read(tmp_path, "", CREDENTIALS_DIRECTORY=str(tmp_path))


def test_a_wrong_value_in_a_credential_is_blamed_on_it(tmp_path: Path) -> None:
    """Not the file but the credential is named where the value came from there."""
    (tmp_path / "broker.url").write_text("nonsense")
    with pytest.raises(UsageError, match=r"^credential broker\.url: broker\.url: begins with mqtt"):
        read(tmp_path, "", CREDENTIALS_DIRECTORY=str(tmp_path))


@pytest.mark.parametrize(
    ("text", "env"),
    [
        (f'[broker]\nurl = "http://me:{SECRET}@broker"\n', {}),
        (f'[broker]\nurl = "mqtt://me:{SECRET}@broker:0"\n', {}),
        (f'[broker]\nurl = "mqtt://me:a/{SECRET}@broker"\n', {}),
        (f'[broker]\nurl = "mqtt://me:{SECRET}@bro ker"\n', {}),
        (f'broker = "mqtt://me:{SECRET}@broker"\n', {}),
        (f'[broker]\npassword = ["{SECRET}"]\n', {}),
        (f'[broker]\npasword = "{SECRET}"\n', {}),
        (f'[broker]\npassword = "{SECRET}"\nprotocol = 9\n', {}),
        (PIPELINE.replace("file:clip.mp4", f"rtps://me:{SECRET}@cam/1"), {}),
        (PIPELINE.replace("file:clip.mp4", f"rtsp://me:a/{SECRET}@cam/1"), {}),
        (PIPELINE.replace("file:clip.mp4", f"rtsp://cam:x/1?pwd={SECRET}"), {}),
        ("", {"EDGE_AGENT_BROKER": f'{{"password": "{SECRET}"'}),
        ("", {"EDGE_AGENT_BROKER": f'{{"password": ["{SECRET}"]}}'}),
        ("", {"EDGE_AGENT_BROKER__PASWORD": SECRET}),
        ("", {"EDGE_AGENT_BROKER__PASSWORD__X": SECRET}),
        ("", {"EDGE_AGENT_BROKER__URL": f"mqtt://me:{SECRET}@broker:x"}),
    ],
)
def test_no_error_shows_a_password(text: str, env: dict[str, str], tmp_path: Path) -> None:
    """Whatever is wrong around a password, the line about it does not hold it."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text, **env)
    assert SECRET not in str(caught.value)


def test_settings_do_not_show_their_password_when_printed(tmp_path: Path) -> None:
    """A log line that prints the settings, or an address, does not give the password away."""
    found = read(tmp_path, f'[broker]\nurl = "mqtt://a:{SECRET}@b"\npassword = "{SECRET}"\n')
    assert SECRET not in repr(found.broker.address)
    assert SECRET not in str(found.broker.address)
    assert f"password={SECRET!r}" not in repr(found.broker)


# Pieces


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("mqtt://broker.lan", "broker.lan", 1883, False),
        ("mqtts://broker.lan", "broker.lan", 8883, True),
        ("mqtt://127.0.0.1:99/", "127.0.0.1", 99, False),
        ("mqtt://[::1]:99", "::1", 99, False),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, tls: bool) -> None:
    """Host, port and TLS come out of a URL, with the usual ports where it names none."""
    address = parse_url(url)
    assert (address.host, address.port, address.tls) == (host, port, tls)


def test_a_password_in_a_url_may_hold_anything_percent_encoded() -> None:
    """User and password of a URL are percent-decoded."""
    address = parse_url("mqtt://me%40home:a%2Fb%3Ac@broker")
    assert (address.username, address.password) == ("me@home", "a/b:c")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:90",
        "a@:9,b:1",
        "a:1,b:0",
        "a:x,b:1",
        "a:1,a:2",
        "a@v1",
        "a,b",
        "a:1,,b:1",
        "a:1,b:-1",
        "face@1.0:50,face@1:50",
    ],
)
def test_a_route_that_cannot_be_split_is_refused(text: str) -> None:
    """Shares are whole numbers above 0, for each of several models, none of them twice."""
    with pytest.raises(UsageError):
        parse_route(text)


@pytest.mark.parametrize("text", ["a:5000,b:1", "a:0.5,b:0.5", "a:0,b:1", "a:-1,b:1", "a:²,b:1"])
def test_what_a_share_may_be_is_said(text: str) -> None:
    """The error names the bounds of a share, whatever is wrong with it."""
    with pytest.raises(UsageError, match="a share of the frames is a whole number from 1 to 1000"):
        parse_route(text)


def test_a_share_of_a_lone_model_is_said() -> None:
    """There is nothing to share with; the mend is to leave it out."""
    with pytest.raises(UsageError, match=r"one of several models; write 'face@3'"):
        parse_route("face@3:90")


# Any settings at all

KEYS = st.sampled_from(
    [
        "device_id", "groups", "profile", "engine", "state_dir", "models_dirs", "quota_mb",
        "broker", "health", "trust", "trial", "pipelines", "url", "topic_root", "password",
        "ca_file", "cert_file", "key_file", "protocol", "keys", "name", "source", "model", "rate",
        "roi", "then", "base", "x", "",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(
        [
            "mqtt://a", "mqtts://a:1", "mqtt://[", "mqtt://a:b", "file:x", "rtsp://a", "dir:%00",
            "face@3", "a:1,b:2", "~nobody-of-this-name/x", "\0", "edge", "auto", "openvino", "4",
        ]
    ),
)  # fmt: skip
SCALARS = st.one_of(
    TEXTS,
    st.integers(),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.datetimes(),
    st.lists(st.integers(-5, 700), min_size=4, max_size=4),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(KEYS | TEXTS, inner, max_size=4)
    ),
    max_leaves=12,
)
QUICK = examples(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def refusal(file: Path | None, env: dict[str, str], home: Path) -> str | None:
    """Read settings; give the line that refuses them. Any other exception is the caller's."""
    try:
        found = load(file, {"HOME": str(home), **env})
    except UsageError as problem:
        return str(problem)
    assert found.state.is_absolute()
    return None


@QUICK
@given(table=st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_table_is_read_or_refused_in_one_line(table: dict[str, Any], tmp_path: Path) -> None:
    """No settings, however mad, end in anything but settings or the error that names the file."""
    file = write(tmp_path, tomli_w.dumps(table))
    line = refusal(file, {}, tmp_path)
    assert line is None or line.startswith(f"{file}: ")


@QUICK
@given(content=st.binary(max_size=200))
def test_any_file_is_read_or_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    """No bytes end in anything but settings or the error that names the file."""
    file = write(tmp_path, content)
    line = refusal(file, {}, tmp_path)
    assert line is None or line.startswith(f"{file}: ")


NAMES = st.lists(KEYS, min_size=1, max_size=3).map(lambda keys: "__".join(keys).upper())


@QUICK
@given(
    variables=st.dictionaries(
        NAMES, TEXTS | VALUES.map(lambda value: json.dumps(value, default=str)), max_size=4
    )
)
def test_any_environment_is_read_or_refused_in_one_line(
    variables: dict[str, str], tmp_path: Path
) -> None:
    """No variables end in anything but settings or an error that names one of them."""
    env = {f"EDGE_AGENT_{name}": text for name, text in variables.items()}
    line = refusal(None, env, tmp_path)
    assert line is None or any(line.startswith(f"environment {name}: ") for name in env)


def test_the_fuzz_above_would_see_other_errors() -> None:
    """What is not a mapping of text makes `load` fail otherwise, so that the net is one."""
    with pytest.raises(AttributeError):
        load(None, {"EDGE_AGENT_QUOTA_MB": "1", 5: "x"})  # type: ignore[dict-item]


def test_no_settings_of_this_machine_get_into_the_tests() -> None:
    """The tests of defaults above would not mean anything with EDGE_AGENT_ variables set."""
    assert not [name for name in os.environ if name.startswith("EDGE_AGENT_")]
    assert not (CHECKOUT / "edge-agent.toml").exists()


def test_commands_beside_the_service_mean_its_state(tmp_path: Path) -> None:
    """Where systemd does not name the state folder, settings of the service mean the service's.

    Other settings do not, nor does a box on which the service has never run.
    """
    config, state = str(tmp_path / "config.toml"), tmp_path / "state"
    service = (config, str(state))
    usual = "~/.local/state/edge-agent"
    assert default_state(config, {}, service) == usual
    state.mkdir()
    assert default_state(config, {}, service) == str(state)
    assert default_state(str(tmp_path / "other.toml"), {}, service) == usual
    assert default_state(None, {}, service) == usual
    given = {"STATE_DIRECTORY": "/one:/two"}
    assert default_state(config, given, service) == "/one"
