"""`edge-agent check` run by root: what the installed service's user may not read is said."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edge_agent.cli.service_user import UNIT
from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.support import CHECKOUT, PATIENCE, agent_settings

pytestmark = pytest.mark.slow

# The unit goes where systemd has it, and the test's folder where anybody may go: in a mount
# namespace of its own, so that the machine stays as it is.
APART = f"""
mount -t tmpfs tmpfs {UNIT.parent}
cp -r "$1/{UNIT.name}"* {UNIT.parent}
mount --bind "$1" /srv
cd /
shift
exec "$@"
"""


class Box:
    """A folder that is /srv for the command, and a unit that runs the agent on it as nobody."""

    def __init__(self, place: Path) -> None:
        place.chmod(0o755)
        self.place = place
        text = (CHECKOUT / "systemd" / UNIT.name).read_text()
        text = text.replace("User=edge-agent", "User=nobody").replace("Group=edge-agent\n", "")
        text = text.replace("/etc/edge-agent/config.toml", "/srv/config.toml")
        text = text.replace("[Install]", "ReadWritePaths=/srv/state\n\n[Install]")
        (place / UNIT.name).write_text(text)
        brightness(place / "models" / "light")
        write_pictures(place / "x", [plain(9)])
        for name in ("ca.pem", "door.pub"):
            (place / name).write_text("not looked into")
        self.settings(source="dir:x")
        self.state = place / "state"
        self.state.mkdir()
        if os.getuid() == 0:
            shutil.chown(self.state, "nobody")

    def settings(self, *, config: str = "config.toml", source: str) -> None:
        """Write settings that name a file of each kind."""
        pipeline = {"name": "p", "source": source, "model": "light"}
        text = agent_settings(
            "box",
            "mqtts://127.0.0.1:1",
            [pipeline],
            models_dirs=["models"],
            trust={"keys": ["door.pub"]},
            broker={"ca_file": "ca.pem"},
        )
        (self.place / config).write_text(text)

    def check(self, config: str = "config.toml") -> list[str]:
        """Run the command as root; give what it says of the service."""
        return [line for line in self.lines(config) if "service" in line]

    def lines(self, config: str = "config.toml") -> list[str]:
        """Run the command as root; give all that it says."""
        done = self.run(sys.executable, "-m", "edge_agent", "check", "--config", f"/srv/{config}")
        assert done.stdout, done.stderr
        return done.stdout.splitlines()

    def add_to_unit(self, text: str) -> None:
        """Change the service by a drop-in, as `systemctl edit` does."""
        changes = self.place / f"{UNIT.name}.d"
        changes.mkdir()
        (changes / "override.conf").write_text(f"[Service]\n{text}\n")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        if os.getuid() != 0 or shutil.which("unshare") is None or not UNIT.parent.is_dir():
            pytest.skip("a unit of its own takes root, unshare and a folder for units")
        apart = ["unshare", "--mount", "sh", "-ec", APART, "sh", str(self.place)]
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


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Make an installation whose user may read everything."""
    return Box(tmp_path)


def test_what_the_service_may_read_is_ok(box: Box) -> None:
    """Where nothing is kept from the user, one line says so."""
    assert box.check() == ["ok    service: its user, nobody, may read all that the settings name"]
    assert list(box.state.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "mode", "line"),
    [
        ("config.toml", 0o600, "FAIL  settings: /srv/config.toml: "),
        ("ca.pem", 0o600, "FAIL  broker.ca_file: /srv/ca.pem: "),
        ("door.pub", 0o600, "FAIL  trust.keys: /srv/door.pub: "),
        ("models/light/model.onnx", 0o600, "FAIL  models_dirs: /srv/models/light/model.onnx: "),
        ("models/light", 0o700, "FAIL  models_dirs: /srv/models/light: "),
        ("x", 0o700, "FAIL  pipeline p source: /srv/x: the service's user nobody may not "),
        ("x", 0o744, "FAIL  pipeline p source: /srv/x: "),
    ],
)  # fmt: skip
def test_what_the_service_may_not_read_fails(box: Box, path: str, mode: int, line: str) -> None:
    """Root may read it, and `check` says that the service may not: settings, models, keys, TLS."""
    (box.place / path).chmod(mode)
    said = box.check()
    assert len(said) == 1
    assert said[0].startswith(line)


def test_an_installation_says_what_the_service_does_not_find_or_may_not_read(box: Box) -> None:
    """It was "installed and active", and had no model and nobody's key."""
    script = (
        "from pathlib import Path; from edge_agent.cli.commands import install; "
        "install.SETTINGS = Path('/srv/config.toml'); install._print_unread()"
    )
    done = box.run(sys.executable, "-c", script)
    assert (done.stdout, done.stderr) == ("", "")
    shutil.rmtree(box.place / "models")
    (box.place / "door.pub").chmod(0o600)
    done = box.run(sys.executable, "-c", script)
    assert done.stdout == (
        "note      models_dirs: /srv/models: is not there\n"
        "note      trust.keys: /srv/door.pub: the service's user nobody may not read it; "
        "give it the right, e.g. by chgrp and chmod g+r\n"
    )


def test_a_state_that_the_service_may_not_write_fails(box: Box) -> None:
    """Root may write it, and `check` says that the service may not, and what is in the way."""
    mend = "the service's user nobody may not write it; chown -R nobody: /srv/state"
    book = box.state / "flight"
    book.touch(0o600)
    assert box.check()[0] == f"FAIL  state_dir: /srv/state/flight: {mend}"
    book.unlink()
    if os.getuid() == 0:
        shutil.chown(box.state, "root")
    assert box.check()[0] == f"FAIL  state_dir: /srv/state: {mend}"


def test_a_state_that_the_unit_makes_read_only_fails(box: Box) -> None:
    """Rights are not all: the unit names the folders that the service may write to."""
    unit = box.place / UNIT.name
    unit.write_text(unit.read_text().replace("ReadWritePaths=", "# "))
    assert box.check()[0] == (
        "FAIL  state_dir: /srv/state: the service may only read it (ProtectSystem= of its unit); "
        "leave state_dir out, or: systemctl edit edge-agent, [Service] ReadWritePaths=/srv/state"
    )


def test_a_state_on_a_read_only_disk_is_no_matter_of_rights(box: Box) -> None:
    """A `chown` was named, which fails and mends nothing."""
    mounted = 'mount -t tmpfs -o ro tmpfs /srv/state; exec "$@"'
    check = [sys.executable, "-m", "edge_agent", "check", "--config", "/srv/config.toml"]
    done = box.run("sh", "-ec", mounted, "sh", *check)
    assert "FAIL  state_dir: /srv/state is read-only: nothing can be kept" in done.stdout
    assert "chown" not in done.stdout, done.stdout
    (box.place / "config.toml").write_text('state_dir = "/srv/state/new"\n')
    done = box.run("sh", "-ec", mounted, "sh", *check)
    assert "FAIL  state_dir: /srv/state/new: Read-only file system; mount -o" in done.stdout


def test_the_folder_in_the_way_is_named(box: Box) -> None:
    """A file that is readable by itself, below a folder that is not, is blamed on the folder."""
    write_pictures(box.place / "private" / "x", [plain(9)])
    (box.place / "private").chmod(0o700)
    box.settings(source="dir:private/x")
    (said,) = box.check()
    assert said.endswith(
        "/srv/private/x: the service's user nobody may not enter /srv/private; "
        "move it, or: chmod o+x /srv/private"
    )


def test_what_the_unit_hides_is_said(box: Box) -> None:
    """Folders that the unit takes out of the service's sight are no place for a source."""
    # Pytest's own folders may lie elsewhere.
    with TemporaryDirectory(dir="/tmp") as hidden:
        write_pictures(Path(hidden, "x"), [plain(9)])
        box.settings(source=f"dir:{hidden}/x")
        (said,) = box.check()
    assert said.startswith(f"FAIL  pipeline p source: {hidden}/x: the service does not see /tmp (")


@pytest.mark.parametrize(("major", "allowed"), [(188, True), (81, True), (240, False)])
def test_a_device_that_the_unit_denies_is_said(box: Box, major: int, allowed: bool) -> None:
    """Rights of the file are not all: the unit names the kinds of devices that may be used."""
    device = box.place / "ttyX0"
    try:
        os.mknod(device, stat.S_IFCHR, os.makedev(major, 0))
    except PermissionError:
        pytest.skip("this machine makes no devices")
    device.chmod(0o666)
    box.settings(source="serial:/srv/ttyX0")
    denied = [line for line in box.check() if "denies this kind of device" in line]
    assert bool(denied) is not allowed, denied
    assert all("DeviceAllow=/srv/ttyX0 rw" in line for line in denied)


def test_what_fsck_keeps_is_not_looked_into(box: Box) -> None:
    """The state folder may be a file system of its own, with a lost+found of root's."""
    (box.state / "lost+found").mkdir(mode=0o700)
    assert box.check() == ["ok    service: its user, nobody, may read all that the settings name"]


def test_other_settings_than_the_services_get_a_note(box: Box) -> None:
    """Root may run the agent on settings of its own; the service's user is only mentioned."""
    box.settings(config="mine.toml", source="dir:x")
    (box.place / "x").chmod(0o700)
    (said,) = box.check("mine.toml")
    assert said.startswith("note  pipeline p source: /srv/x: ")


# What the unit gives to the service beside its settings file

ADDED = """\
Environment=EDGE_AGENT_DEVICE_ID=%H-77 "EDGE_AGENT_BROKER__URL=mqtts://127.0.0.1:2" \\
    OTHER=1
EnvironmentFile=-/srv/none
EnvironmentFile=/srv/more.env
LoadCredential=broker.password:/srv/password
ExecStart=
ExecStart=/opt/edge-agent/current/bin/edge-agent run --config /srv/config.toml"""
ASK = """
import json
from pathlib import Path
from edge_agent.cli.service_settings import service_config, service_environment
from edge_agent.config.load import load
config = service_config(Path("/etc/edge-agent/config.toml"))
with service_environment() as (environ, unread):
    read = load(config, environ)
    folder = Path(environ["CREDENTIALS_DIRECTORY"])
broker = read.broker
print(json.dumps([str(config), read.device_id, broker.url, broker.username, broker.password]))
print(json.dumps([unread, folder.exists()]))
"""


def test_what_a_drop_in_sets_is_what_the_service_has(box: Box) -> None:
    """`uninstall --forget` had cleared the device of the file, and said that it was done."""
    (box.place / "more.env").write_text("# ours\nEDGE_AGENT_BROKER__USERNAME='box 7'\n")
    (box.place / "password").write_text("secret\n")
    box.add_to_unit(ADDED)
    done = box.run(sys.executable, "-c", ASK)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    device = f"{socket.gethostname()}-77"
    assert said == [
        ["/srv/config.toml", device, "mqtts://127.0.0.1:2", "box 7", "secret"],
        [[], False],
    ], done.stderr


LOOK = """
from argparse import Namespace
from edge_agent.cli.broker_settings import broker_settings
for url in (None, "mqtts://box%207@127.0.0.1:3", "mqtts://viewer@127.0.0.1:3"):
    print(broker_settings(Namespace(config="/srv/config.toml", broker=url)).broker.password)
"""


@pytest.mark.parametrize("given", ["LoadCredential=broker.password:/srv/password", "SetCredential"])
def test_root_talks_to_the_broker_as_the_service_does(box: Box, given: str) -> None:
    """`status` on an installed box blamed the password that the service had connected with."""
    (box.place / "password").write_text("secret\n")
    read = given.startswith("Load")
    box.add_to_unit(
        'Environment="EDGE_AGENT_BROKER__USERNAME=box 7" EDGE_AGENT_BROKER__URL=mqtts://127.0.0.1:3'
        f"\n{given if read else 'SetCredential=broker.password:secret'}"
    )
    done = box.run(sys.executable, "-c", LOOK)
    assert done.stdout.split() == ["secret" if read else "None"] * 2 + ["None"], done.stderr
    notes = [line for line in done.stderr.splitlines() if "only systemd can read it" in line]
    assert len(notes) == (0 if read else 1)

    own = "EDGE_AGENT_BROKER__PASSWORD=other"
    done = box.run("env", own, sys.executable, "-c", LOOK)
    assert done.stdout.split() == ["other", "other", "None"]
    assert done.stderr == ""


def test_check_looks_at_the_settings_of_the_service(box: Box) -> None:
    """Root checks the service with what its unit adds, and says what only systemd can read."""
    box.add_to_unit("Environment=EDGE_AGENT_STATE_DIR=/srv/other\nSetCredential=broker.password:x")
    lines = box.lines()
    assert "ok    state_dir: /srv/other, made by the first run" in lines
    assert not any(line.startswith("note  disk") for line in lines)
    unread = f"SetCredential= of {UNIT.name}: only systemd can read it"
    assert f"note  settings: {unread}" in lines
    box.settings(config="mine.toml", source="dir:x")
    assert not any("/srv/other" in line for line in box.lines("mine.toml"))


def test_root_adds_a_model_where_the_service_looks_for_it(box: Box) -> None:
    """A drop-in may name another state folder than the file does; `add` went by the file."""
    other = box.place / "other"
    other.mkdir()
    if os.getuid() == 0:
        shutil.chown(other, "nobody")
    box.add_to_unit("Environment=EDGE_AGENT_STATE_DIR=/srv/other")
    add = [sys.executable, "-m", "edge_agent", "add", "/srv/models/light"]
    done = box.run(*add, "--config", "/srv/config.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (other / "models").iterdir()] == ["light"]
    assert list(box.state.iterdir()) == []
