"""The service: its units as systemd judges them, and the parts of installing that need no root.

What needs a booted systemd is done by `scripts/machines/test-service`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from edge_agent.cli.commands import installation
from edge_agent.cli.commands.install import RETRY, UNIT, contents, proven, put_back
from edge_agent.cli.commands.install_bundle import EXTRAS
from edge_agent.cli.commands.install_settings import SKELETON, check, take
from edge_agent.cli.commands.installation import (
    COMPLETION,
    UNITS,
    Installation,
    installations,
    point_to,
    remove_unfinished,
    run,
    wheel_of,
)
from edge_agent.cli.saved import save
from edge_agent.cli.service_user import HIDDEN
from edge_agent.config.answers import parse_listen
from edge_agent.config.load import load
from edge_agent.core.bundled import constraints
from edge_agent.core.errors import AgentError, UsageError
from edge_agent.core.files import sync_folder
from edge_agent.models.importing import import_model
from edge_agent.sources.spec import parse_source
from tests.helpers.small_disk import durable_disk, small_disk
from tests.helpers.support import CHECKOUT, call_cli

PYTHON = Path(sys.executable)

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Give a folder with the units, of a program that is there."""
    for name in (UNIT, RETRY):
        text = (CHECKOUT / "systemd" / name).read_text()
        (tmp_path / name).write_text(re.sub(r"(?m)^(Exec\w+)=/opt\S+", r"\1=/bin/true", text))
    return tmp_path


def value(unit: str, key: str) -> str:
    """Give the one value of a key in a unit of the checkout."""
    (found,) = re.findall(rf"(?m)^{key}=(.*)$", (CHECKOUT / "systemd" / unit).read_text())
    return str(found)


def test_a_reload_of_wrong_settings_fails(tmp_path: Path) -> None:
    """The unit asks what the file is worth, as sshd's does, and `systemctl reload` says no."""
    text = (CHECKOUT / "systemd" / UNIT).read_text()
    (asks,) = re.findall(r"(?m)^ExecReload=/opt/\S+/edge-agent (.*)$", text)
    config = tmp_path / "config.toml"
    config.write_text('[broker]\nurl = "mqtt://localhost"\n')
    right = call_cli(*asks.replace("/etc/edge-agent/config.toml", str(config)).split())
    assert (right.code, right.out, right.err) == (0, "", "")
    config.write_text("nonsense = 1\n")
    wrong = call_cli(*asks.replace("/etc/edge-agent/config.toml", str(config)).split())
    assert wrong.code == 2
    assert f"{config}: nonsense: unknown key" in wrong.err


@needs_analyze
def test_systemd_finds_nothing_wrong_with_the_units(units: Path) -> None:
    """`systemd-analyze verify` prints nothing: an unknown key it would only print."""
    done = subprocess.run(
        ["systemd-analyze", "verify", f"./{UNIT}", f"./{RETRY}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=units,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
def test_systemd_finds_nothing_wrong_with_the_unit_of_an_image(tmp_path: Path) -> None:
    """The unit that mounts an image names it and its folder, and is before the service."""
    installation = Installation(Path("/opt/edge-agent/1.2-20260102030405"))
    assert installation.version == "1.2"
    assert installation.image == Path("/opt/edge-agent/1.2-20260102030405.squashfs")
    text = installation.mount_unit()
    assert f" {installation.image} {installation.place}\n" in text
    assert f"Before={UNIT}\n" in text
    (tmp_path / "edge-agent-image.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "./edge-agent-image.service"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
def test_the_service_is_exposed_little(units: Path) -> None:
    """`systemd-analyze security` gives at most 1.5."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=15", f"./{UNIT}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=units,
    )
    assert done.returncode == 0, done.stdout[-200:]


def test_the_unit_is_one_that_systemd_252_knows() -> None:
    """No key or value of later versions, and none that takes an engine what it needs."""
    text = (CHECKOUT / "systemd" / UNIT).read_text()
    keys = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for later in ("notify-reload", "ImportCredential", "RestartSteps", "RestartMaxDelaySec"):
        assert later not in keys
    assert "MemoryDenyWriteExecute" not in keys  # OpenVINO compiles kernels as it runs
    assert "ProcSubset" not in keys  # the engines read /proc/cpuinfo
    assert value(UNIT, "SystemCallErrorNumber") == "EPERM"


def test_the_documented_socket_is_where_the_service_may_make_it() -> None:
    """Its folder was not there, and all else below /run is read-only for the service."""
    said = (CHECKOUT / "docs/answers.md").read_text()
    (listen,) = re.findall(r'(?m)^listen = .*"(unix:\S+)"$', said)
    folder = Path(parse_listen(listen).host).parent
    assert folder == Path("/run") / value(UNIT, "RuntimeDirectory")
    assert value(UNIT, "RuntimeDirectoryMode") == "0750"
    assert value(UNIT, "Group") in said
    assert "AF_UNIX" in value(UNIT, "RestrictAddressFamilies")
    made = (CHECKOUT / "scripts/Containerfile").read_text()
    assert re.search(rf"chown 10001:10001 .*{folder}$", made, re.MULTILINE)


def test_a_flood_of_connections_takes_no_files_from_the_rest() -> None:
    """Systemd's default is 1024, beyond which neither models nor cameras could be opened."""
    assert int(value(UNIT, "LimitNOFILE")) >= 16 * 1024


def test_ten_kills_in_a_row_are_within_the_limit() -> None:
    """The limit on restarts is above ten, and what is given up on is tried anew when it is over."""
    assert int(value(UNIT, "StartLimitBurst")) > 10
    assert value(UNIT, "OnFailure") == RETRY
    minutes = re.fullmatch(r"(\d+)min", value(RETRY, "OnActiveSec"))
    assert minutes is not None
    assert int(minutes[1]) * 60 > int(value(UNIT, "StartLimitIntervalSec"))
    assert value(RETRY, "PartOf") == UNIT


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_without_systemd_or_root_nothing_is_touched(command: str) -> None:
    """On a machine where it cannot be, one line says why, with exit status 2."""
    if Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs here; installing would change this machine")
    called = call_cli(command)
    assert called.code == 2
    assert called.out == ""
    assert re.search(r"needs systemd, which does not run here|run it with sudo", called.error)


def test_the_tested_versions_come_along() -> None:
    """`install` has the file of exact versions, in a checkout; a wheel takes it along."""
    pins = constraints().read_text()
    assert constraints() == CHECKOUT / "scripts/constraints.txt"
    wheel = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    taken = wheel["targets"]["wheel"]["force-include"]
    assert taken["scripts/constraints.txt"] == "edge_agent/_bundled/constraints.txt"
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in EXTRAS.strip("[]").split(",")]
    assert len(extras) == 4
    needed = [*project["dependencies"], *(each for extra in extras for each in extra)]
    names = {re.split(r"[<>=]", each)[0].lower().replace("_", "-") for each in needed}
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins.splitlines()}
    assert names <= pinned


def test_completion_and_the_man_page_follow_the_installation_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links lead to those of `current`; files of somebody else stay."""
    shared = {name: tmp_path / "share" / name / "edge-agent" for name in COMPLETION}
    monkeypatch.setattr(installation, "HOME", tmp_path / "opt")
    monkeypatch.setattr(installation, "COMMAND", tmp_path / "edge-agent")
    monkeypatch.setattr(installation, "COMPLETION", shared)
    shared["fish"].parent.mkdir(parents=True)
    shared["fish"].write_text("mine")
    for version in ("1-1", "2-2"):
        made = Installation(tmp_path / "opt" / version)
        made.completion.mkdir(parents=True)
        for name in COMPLETION:
            (made.completion / name).write_text(version)
        point_to(made)
        said = {name: path.read_text() for name, path in shared.items()}
        assert said == {**dict.fromkeys(COMPLETION, version), "fish": "mine"}


def test_a_power_cut_right_after_a_switch_leaves_a_whole_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`current` led to files of no content: names are on the disk at once, data later."""
    image, cut = tmp_path / "disk", tmp_path / "cut"
    with durable_disk(image, tmp_path / "opt") as disk:
        monkeypatch.setattr(installation, "HOME", disk)
        monkeypatch.setattr(installation, "COMMAND", tmp_path / "edge-agent")
        monkeypatch.setattr(installation, "COMPLETION", {})
        made = begin(disk / "2-2")
        for number in range(100):
            (made.place / f"{number}.py").write_text(f"number = {number}\n")
        point_to(made)
        (disk / "other").touch()
        sync_folder(disk)  # writes all names, as anything else on the machine does soon
        shutil.copyfile(image, cut)
    with durable_disk(cut, tmp_path / "later") as disk:
        (disk / "current").resolve(strict=True)
        found = {int(path.stem): path.read_text() for path in disk.glob("current/*.py")}
    assert found == {number: f"number = {number}\n" for number in range(100)}


KILLED = """
import os, signal, sys
from pathlib import Path
from edge_agent.cli.commands.installation import Installation
with Installation(Path(sys.argv[1])).being_made():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def begin(place: Path, *, units: bool = True) -> Installation:
    """Give an installation, as far as its folder goes."""
    made = Installation(place)
    made.place.mkdir()
    (made.place / "pyvenv.cfg").touch()
    if units:
        (made.place / "lib/python3.11/site-packages/edge_agent/_bundled/systemd").mkdir(
            parents=True
        )
    return made


def test_what_a_killed_install_has_left_is_none_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`install --previous` had chosen it, and the next install found no room beside it."""
    monkeypatch.setattr(installation, "HOME", tmp_path)
    earlier = begin(tmp_path / "1-1")
    begin(tmp_path / "1-2", units=False)  # by an install of before there were marks
    killed = begin(tmp_path / "1-3")
    subprocess.run([sys.executable, "-c", KILLED, str(killed.place)], check=False, cwd=CHECKOUT)
    begun = Installation(tmp_path / "1-4")  # not even its folder
    subprocess.run([sys.executable, "-c", KILLED, str(begun.place)], check=False, cwd=CHECKOUT)
    (tmp_path / "notes").mkdir()  # an operator's
    made = begin(tmp_path / "1-5")
    with made.being_made():
        assert installations() == [earlier]
        remove_unfinished()
    assert capsys.readouterr().err.count("cut off") == 3
    assert installations() == [earlier, made]
    assert {path.name for path in tmp_path.iterdir()} == {"1-1", "1-5", "notes"}


def test_an_install_killed_before_its_service_stayed_up_is_none_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next install had removed the last good one and kept the one never seen to run."""
    home = tmp_path / "link"  # as where /opt lies on another disk
    home.symlink_to(tmp_path)
    monkeypatch.setattr(installation, "HOME", home)
    good, killed = (begin(home / name) for name in ("1-1", "1-2"))
    (tmp_path / "current").symlink_to("1-1")
    assert proven() == good
    subprocess.run([sys.executable, "-c", KILLED, str(killed.place)], check=False, cwd=CHECKOUT)
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("1-2")
    assert proven() == good
    assert installations() == [good]
    good.remove()
    assert proven() is None
    killed.remove()
    remove_unfinished()
    assert killed.python.parent.parent.is_dir(), "what is in use was removed"


UNINSTALL = """
import sys
from pathlib import Path
from edge_agent.cli.commands import install, installation
def moved(path):
    return Path(sys.argv[1] + str(path))
for module in (install, installation):
    for name, value in list(vars(module).items()):
        if isinstance(value, Path):
            setattr(module, name, moved(value))
install.COMPLETION = {name: moved(path) for name, path in install.COMPLETION.items()}
install.uninstall(forget=False)
"""
SYSTEMCTL = """\
#!/bin/sh
case "$*" in
*image-1-1*) mkdir "$0.killed" 2>/dev/null && kill -KILL $PPID ;;
esac
exit 0
"""
"""Kills what has called it, once, where an image is unmounted."""


def test_an_uninstall_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    """The command had gone first: "command not found", and gigabytes stayed."""
    systemctl = tmp_path / "bin" / "systemctl"
    command, home, units = (
        tmp_path / name for name in ("usr/local/bin/edge-agent", "opt/edge-agent", str(UNITS)[1:])
    )
    for path in (systemctl, command, home / "1-1", units / "image"):
        path.parent.mkdir(parents=True)
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)
    for name in ("1-1", "1-2"):
        program = begin(home / name).place / "bin" / "edge-agent"
        program.parent.mkdir()
        program.touch()
    (units / "edge-agent-image-1-1.service").touch()
    (home / "current").symlink_to("1-2")
    command.symlink_to(home / "current" / "bin" / "edge-agent")
    words = (sys.executable, "-c", UNINSTALL, str(tmp_path))
    environ = {**os.environ, "PATH": f"{systemctl.parent}:{os.environ['PATH']}"}
    killed = subprocess.run(words, check=False, cwd=CHECKOUT, env=environ)
    assert killed.returncode == -signal.SIGKILL
    assert command.exists()
    subprocess.run(words, check=True, cwd=CHECKOUT, env=environ)
    assert not command.is_symlink()
    assert not home.exists()


def test_an_installation_packs_itself(tmp_path: Path) -> None:
    """What is installed becomes a wheel again: its files with their digests, nothing compiled."""
    info = tmp_path / "edge_agent-1.2.dist-info"
    files = {
        "edge_agent/__init__.py": b"version = 1\n",
        "edge_agent/_bundled/models/a.bin": bytes(range(256)),
        "edge_agent/__pycache__/__init__.cpython-311.pyc": b"compiled",
        f"{info.name}/METADATA": b"Metadata-Version: 2.1\nName: edge-agent\nVersion: 1.2\n",
        f"{info.name}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{info.name}/INSTALLER": b"pip\n",
        f"{info.name}/direct_url.json": b"{}",
        "../../../bin/edge-agent": b"#!",
    }
    for name, content in files.items():
        if not name.startswith(".."):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*files, f"{info.name}/RECORD"]))
    out = tmp_path / "out"
    out.mkdir()
    wheel = wheel_of(PathDistribution(info), out)
    assert wheel.name == "edge_agent-1.2-py3-none-any.whl"
    kept = {"__init__.py", "a.bin", "METADATA", "WHEEL"}
    with zipfile.ZipFile(wheel) as archive:
        assert {Path(name).name for name in archive.namelist()} == kept | {"RECORD"}
        rows = list(csv.reader(archive.read(f"{info.name}/RECORD").decode().splitlines()))
        for name, digest, size in rows[:-1]:
            content = archive.read(name)
            assert content == files[name]
            assert int(size) == len(content)
            wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            assert digest == f"sha256={wanted.decode()}"


def test_what_was_changed_is_put_back(tmp_path: Path) -> None:
    """After a failed upgrade files are as they were: changed ones, new ones, removed ones."""
    changed, new, removed, same = (
        tmp_path / name for name in ("changed", "new", "removed", "same")
    )
    for path in (changed, removed, same):
        path.write_text("before")
    kept = contents((changed, new, removed, same))
    changed.write_text("after")
    new.write_text("after")
    removed.unlink()
    before = same.stat().st_mtime_ns
    assert put_back(kept)
    assert [path.read_text() for path in (changed, removed, same)] == ["before"] * 3
    assert not new.exists()
    assert same.stat().st_mtime_ns == before
    assert not put_back(kept)  # nothing to restart the service for


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Give a file of the operator's, and the settings in place with what they name beside them."""
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    etc, home = tmp_path / "etc", tmp_path / "home"
    for folder in (etc / "tls", home):
        folder.mkdir(parents=True)
    (etc / "tls/ca.pem").write_text("a certificate")
    settings = etc / "config.toml"
    settings.write_text('device_id = "before"\n')
    config = home / "mine.toml"
    config.write_text('[broker]\nurl = "mqtts://b"\nca_file = "tls/ca.pem"\n')
    return config, settings


def test_settings_are_judged_where_they_will_be(places: tuple[Path, Path]) -> None:
    """What relative paths name beside the service's settings counts, if it is there."""
    config, settings = places
    check(config, settings, PYTHON)
    assert settings.read_text() == 'device_id = "before"\n'
    take(config, settings, PYTHON)
    assert settings.read_bytes() == config.read_bytes()
    assert settings.stat().st_mode & 0o777 == 0o600
    assert settings.with_suffix(".toml.before").read_text() == 'device_id = "before"\n'
    assert {path.name for path in settings.parent.iterdir()} == {
        "config.toml",
        "config.toml.before",
        "tls",
    }


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("nonsense = 1\n", "nonsense: unknown key"),
        ('[broker]\nurl = "mqtts://b"\nca_file = "none.pem"\n', "broker.ca_file: .*none.pem"),
        ("device_id =\n", "mine.toml"),
    ],
)
def test_wrong_settings_are_not_taken(places: tuple[Path, Path], wrong: str, says: str) -> None:
    """One line that names the operator's file; what is in place stays, and nothing else is left."""
    config, settings = places
    config.write_text(wrong)
    with pytest.raises(UsageError, match=says) as problem:
        take(config, settings, PYTHON)
    assert str(config) in str(problem.value)
    assert "\n" not in str(problem.value)
    assert settings.read_text() == 'device_id = "before"\n'
    assert {path.name for path in settings.parent.iterdir()} == {"config.toml", "tls"}


def test_where_there_is_no_room_for_settings_is_said(tmp_path: Path) -> None:
    """It was "No space left on device" alone."""
    config = tmp_path / "mine.toml"
    config.write_text('device_id = "box"\n')
    with small_disk(tmp_path / "etc", "64k") as etc:
        with suppress(OSError):
            (etc / "others").write_bytes(bytes(1 << 17))
        with pytest.raises(OSError, match="No space left") as problem:
            check(config, etc / "config.toml", PYTHON)
    assert problem.value.filename == str(etc / ".config.toml.new")


MOVED = """
state_dir = "state"
models_dirs = ["models", "/opt/models", "~/more"]
[broker]
url = "mqtts://b"
ca_file = "ca.pem"
[trust]
keys = ["push.key.pub", "trust.d"]
[[servers]]
name = "big"
url = "https://big.lan/v1"
model = "m"
ca_file = "big.pem"
[[pipelines]]
name = "belt"
source = "file:the%20clip.mp4?loop=1"
model = "m"
[[pipelines]]
name = "gate"
source = "rtsp://gate/stream"
model = "m"
[[pipelines]]
name = "hall"
source = "dir:/srv/hall"
model = "m"
"""


def test_settings_that_point_elsewhere_where_the_service_reads_them_are_refused(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were taken, and the service ran without models, keys and clips; all is said at once."""
    config, settings = places
    home = config.parent
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("models", "push.key.pub", "ca.pem", "big.pem", "the clip.mp4"):
        (home / name).touch()
    config.write_text(MOVED)
    unseen = ", ".join(
        str(each) for each in HIDDEN if home.is_relative_to(each) or each == Path("/home")
    )
    said = (
        f"{config}: the service reads it in {settings.parent}, from where relative paths lead "
        f"elsewhere; move what is below {unseen}, which the service does not see; "
        f"write absolute paths (broker.ca_file: {home}/ca.pem, "
        f"models_dirs: {home}/models, models_dirs: /home/me/more, trust.keys: {home}/push.key.pub, "
        f"servers[big].ca_file: {home}/big.pem, pipeline belt source: {home}/the clip.mp4); "
        "leave state_dir out, the service has its own"
    )
    for judge in (check, take):
        with pytest.raises(UsageError) as problem:
            judge(config, settings, PYTHON)
        assert str(problem.value) == said
    mended = MOVED.replace('state_dir = "state"', "").replace("file:the", f"file:{home}/the")
    for name in ("models", "push.key.pub", "ca.pem", "big.pem"):
        mended = mended.replace(f'"{name}"', f'"{home}/{name}"')
    config.write_text(mended.replace("~/more", "/home/me/more"))
    take(config, settings, PYTHON)
    assert settings.read_bytes() == config.read_bytes()


def test_settings_in_their_place_may_have_relative_paths(places: tuple[Path, Path]) -> None:
    """An upgrade, and `--config` with the service's own file: nothing moves."""
    _, settings = places
    settings.write_text('models_dirs = ["models"]\nstate_dir = "state"\n')
    check(settings, settings, PYTHON)


def test_what_try_saves_can_be_installed_as_install_says(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    """It ended with "state: Read-only file system" after minutes, which led nowhere."""
    _, settings = places
    folder = tmp_path / "line"
    folder.mkdir()
    bearing = CHECKOUT / "models" / "bearing-vibration"
    with import_model(bearing) as imported:
        config = save(folder, imported, parse_source("csv:vibration.csv", tmp_path))
    with pytest.raises(UsageError) as problem:
        check(config, settings, PYTHON)
    (models,) = re.findall(r"\(models_dirs: (\S+)\); leave state_dir out", str(problem.value))
    assert (Path(models) / "bearing-vibration" / "model.toml").is_file()
    text = re.sub(r"(?m)^state_dir = .*$", "", config.read_text())
    config.write_text(text.replace('["models"]', f'["{models}"]'))
    take(config, settings, PYTHON)
    assert load(settings, {}).models_dirs == (models,)


def test_settings_are_checked_by_this_version_in_an_older_environment(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed environment lends its libraries, but its older code does not judge."""
    config, settings = places
    older = tmp_path / "older" / "edge_agent"
    older.mkdir(parents=True)
    (older / "__init__.py").write_text("raise SystemExit('an older version knows no such key')")
    monkeypatch.setenv("PYTHONPATH", str(older.parent))
    check(config, settings, PYTHON, CHECKOUT)
    config.write_text("nonsense = 1\n")
    with pytest.raises(UsageError, match=r"mine\.toml: nonsense: unknown key"):
        check(config, settings, PYTHON, CHECKOUT)


# A machine with systemd and an installation, as far as `install` looks before it builds.
INSTALLED = """
cp -a /etc "$1/etc-copy"
mount --bind "$1/etc-copy" /etc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /opt
mkdir -p /run/systemd/system /etc/edge-agent
cp "$1/config.toml" /etc/edge-agent/
shift
"$@" || status=$?
find /opt /etc/edge-agent -mindepth 1
exit $status
"""


def run_installed(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on such a machine."""
    if os.getuid() != 0 or shutil.which("unshare") is None or shutil.which("systemctl") is None:
        pytest.skip("a system of its own takes root, unshare and systemctl")
    if Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs here; installing would change this machine")
    apart = ["unshare", "--mount", "sh", "-ec"]
    if subprocess.run([*apart, "mount -t tmpfs tmpfs /opt"], check=False).returncode != 0:
        pytest.skip("this machine does not allow mounts, not even in a namespace")
    return subprocess.run(
        [*apart, INSTALLED, "sh", str(folder), *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )


SWITCH = """
import sys
from pathlib import Path
from edge_agent.cli.commands import install, installation
from edge_agent.cli.main import main
installation.COMMAND, installation.COMPLETION = Path("/opt/command"), {}
install.STEADY_SECONDS = 0.0
sys.exit(main(["install", "--previous"]))
"""
SERVICE = """\
#!/bin/sh
echo "$1" >> "$0.asked"
case "$*" in
is-enabled*) cat "$0.enabled" ;;
restart*) echo active > "$0.state" ;;
*ActiveState) cat "$0.state" ;;
*NRestarts) echo 0 ;;
esac
"""
"""A systemctl with one service."""


@pytest.mark.parametrize(
    ("enabled", "state", "asks"),
    [
        ("disabled", "inactive", set()),
        ("disabled", "active", {"restart"}),
        ("enabled", "inactive", {"enable", "restart"}),
    ],
)
def test_a_disabled_service_stays_disabled(
    tmp_path: Path, enabled: str, state: str, asks: set[str]
) -> None:
    """Cameras that somebody had turned off for good filmed again after an upgrade."""
    (tmp_path / "config.toml").touch()
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(SERVICE)
    systemctl.chmod(0o755)
    systemctl.with_suffix(".enabled").write_text(f"{enabled}\n")
    systemctl.with_suffix(".state").write_text(f"{state}\n")
    for version in ("1-1", "1-2"):
        made = begin(tmp_path / version)
        (made.place / "bin").mkdir()
        made.python.write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
        made.python.chmod(0o755)
        for each in (CHECKOUT / "systemd").iterdir():
            shutil.copy(each, made.units)
    (tmp_path / "current").symlink_to("1-2")
    switch = f"mkdir /opt/edge-agent; cp -a {tmp_path}/1-* {tmp_path}/current /opt/edge-agent/"
    path = f"PATH={systemctl.parent}:$PATH"
    done = run_installed(
        tmp_path, "sh", "-ec", f'{switch}; {path} "$@"', "sh", sys.executable, "-c", SWITCH
    )
    assert done.returncode == 0, done.stderr
    assert "edge-agent 1 is back and " in done.stdout
    asked = set(systemctl.with_suffix(".asked").read_text().split())
    assert asked & {"enable", "start", "restart"} == asks
    assert ("the service stays disabled, as it was; " in done.stdout) == (enabled == "disabled")


@pytest.mark.parametrize(
    "words", [("install",), ("install", "--previous"), ("uninstall",), ("uninstall", "--forget")]
)
def test_two_installs_at_once_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Each had removed what the other had just made, and both ended well; the service was gone."""
    (tmp_path / "config.toml").touch()
    locked = ("flock", "--verbose", str(installation.LOCK), sys.executable, "-m", "edge_agent")
    done = run_installed(tmp_path, *locked, *words)
    assert done.returncode == 1
    assert done.stderr == (
        "edge-agent: another install or uninstall is under way; nothing was changed\n"
    )
    assert "/opt" not in done.stdout


def test_an_upgrade_with_wrong_settings_ends_before_it_builds(tmp_path: Path) -> None:
    """`install` again, with settings in place that are wrong, says so and changes nothing."""
    (tmp_path / "config.toml").write_text("piplines = []\n")
    done = run_installed(tmp_path, sys.executable, "-m", "edge_agent", "install")
    assert done.returncode == 2
    assert done.stderr == (
        "edge-agent: /etc/edge-agent/config.toml: "
        "piplines: unknown key; did you mean 'pipelines'?; "
        "nothing was changed\n"
    )
    assert done.stdout == "/etc/edge-agent/config.toml\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rat = 5\n", "rat: unknown key; "),
        ('models_dirs = ["models"]\n', "write absolute paths (models_dirs: "),
    ],
)
def test_a_first_install_with_wrong_settings_ends_before_it_builds(
    tmp_path: Path, text: str, says: str
) -> None:
    """They were found wrong when the whole environment was made, or not at all."""
    (tmp_path / "config.toml").touch()
    (tmp_path / "mine.toml").write_text(text)
    first = 'rm -r /etc/edge-agent; "$@" || status=$?; mkdir /etc/edge-agent; exit $status'
    words = ("install", "--config", str(tmp_path / "mine.toml"))
    done = run_installed(
        tmp_path, "sh", "-ec", first, "sh", sys.executable, "-m", "edge_agent", *words
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"edge-agent: {tmp_path}/mine.toml: ")
    assert says in done.stderr
    assert done.stderr.endswith("; nothing was changed\n")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_an_installer_without_libraries_refuses_settings_that_point_elsewhere(
    places: tuple[Path, Path],
) -> None:
    """A bundle's has the standard library alone; right settings are read by that."""
    config, settings = places
    (settings.parent / "tls/ca.pem").unlink()
    bare = settings.parent / "python"
    bare.write_text(f'#!/bin/sh\nexec {PYTHON} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(UsageError, match=r"broker\.ca_file: /\S+/home/tls/ca\.pem"):
        check(config, settings, bare)


def test_the_skeleton_is_right(tmp_path: Path) -> None:
    """What an installation without settings begins with can be loaded, also with its example."""
    plain, full = tmp_path / "plain.toml", tmp_path / "full.toml"
    skeleton = SKELETON.replace("/etc/edge-agent/trust.d", str(tmp_path))
    plain.write_text(skeleton)
    assert load(plain, {}).pipelines == ()
    full.write_text(re.sub(r"(?m)^# (?=\[\[|\w+ +=)", "", skeleton))
    settings = load(full, {})
    assert (settings.device_id, settings.broker.username) == ("edge-01", "edge-01")
    assert [pipeline.name for pipeline in settings.pipelines] == ["door"]


def test_no_network_is_said_instead_of_a_conflict_of_versions() -> None:
    """Pip's last word where it reaches no index is that nothing matches."""
    pip = (sys.executable, "-m", "pip", "--isolated", "install", "--quiet")
    nowhere = ("--retries", "1", "--index-url", "http://127.0.0.1:9/simple", "no-such-package")
    with pytest.raises(AgentError, match="pip reaches no index"):
        run(*pip, *nowhere, unreached="pip reaches no index")
    with pytest.raises(AgentError, match="No matching distribution"):
        run(*pip, *nowhere)


def test_a_package_missing_in_the_folder_is_said_instead_of_a_conflict(tmp_path: Path) -> None:
    """The tested versions are given, which one that is not there contradicts, as pip sees it."""
    (tmp_path / "tested.txt").write_text("no-such-package==1\n")
    pip = (sys.executable, "-m", "pip", "--isolated", "install", "--quiet", "--no-index")
    with pytest.raises(AgentError, match="some are missing there: scripts/bundle makes"):
        run(*pip, "-c", str(tmp_path / "tested.txt"), "no-such-package")
