"""What is kept for the next start holds no password that came from outside the settings file."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.start_box import Box, own
from tests.helpers.support import Mosquitto, wait_until

__all__ = ["own"]

PASSWORD = "Wort-das-niemand-kennt"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Mosquitto]:
    """Run a broker that lets strangers listen, and lets nobody speak without the password."""
    passwords, rules = tmp_path / "passwords", tmp_path / "rules"
    program = shutil.which("mosquitto_passwd")
    assert program is not None, "mosquitto_passwd is not installed; scripts/test installs it"
    subprocess.run([program, "-b", "-c", str(passwords), "box", PASSWORD], check=True)
    rules.write_text("topic read edge/#\nuser box\ntopic readwrite edge/#\n")
    for path in (tmp_path, passwords, rules):
        path.chmod(0o755 if path.is_dir() else 0o644)
    broker = Mosquitto(tmp_path / "guarded", f"password_file {passwords}\nacl_file {rules}\n")
    yield broker
    broker.stop()


def as_credential(box: Box) -> dict[str, str]:
    """Lay the password out as systemd's LoadCredential= does, among other credentials."""
    folder = box.folder / "credentials"
    folder.mkdir()
    (folder / "broker.password").write_text(f"{PASSWORD}\n")
    (folder / "tls.key").write_text(PASSWORD)
    (folder / "!").write_text(PASSWORD)
    return {"CREDENTIALS_DIRECTORY": str(folder)}


def as_variable(_: Box) -> dict[str, str]:
    """Give the password in a variable."""
    return {"EDGE_AGENT_BROKER__PASSWORD": PASSWORD}


def as_small_variable(_: Box) -> dict[str, str]:
    """Give it in a variable in small letters, which counts as well."""
    return {"EDGE_AGENT_broker__password": PASSWORD}


def as_table(box: Box) -> dict[str, str]:
    """Give it in a variable that holds all of `[broker]`."""
    broker = {"url": box.broker.url, "username": "box", "password": PASSWORD}
    return {"EDGE_AGENT_BROKER": json.dumps(broker)}


def as_address(box: Box) -> dict[str, str]:
    """Give it within the broker's address."""
    return {"EDGE_AGENT_BROKER__URL": box.broker.url.replace("://", f"://box:{PASSWORD}@")}


@pytest.mark.parametrize(
    "give",
    [as_credential, as_variable, as_small_variable, as_table, as_address],
    ids=lambda give: give.__name__,
)
def test_no_password_is_written_down(
    give: Callable[[Box], dict[str, str]], own: Box, guarded: Mosquitto
) -> None:
    """A password from outside the file is in no file of the state folder, and is used all the same.

    At a start from the plan too: nothing is heard of an agent that comes without it.
    """
    own.broker = guarded
    if give is not as_address:
        own.more["broker"] = {"username": "box"}
    own.environ = give(own)
    own.ready()
    files = [path for path in own.state.rglob("*") if path.is_file()]
    assert own.plan in files
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
    assert own.plan.stat().st_mode & 0o777 == 0o600
    with own.start() as start:
        assert start.from_plan()
        assert start.all_right()
    assert (own.state / "pages.json").is_file()
    files = [path for path in own.state.rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_no_camera_of_the_environment_is_written_down(own: Box) -> None:
    """Where a variable has a camera's password, starts go without a plan, and that is said."""
    camera = {
        "name": "camera",
        "source": f"rtsp://viewer:{PASSWORD}@127.0.0.1:9/stream",
        "model": "numbers",
    }
    own.environ = {"EDGE_AGENT_PIPELINES": json.dumps([*own.pipelines, camera])}
    for _ in range(2):
        with own.start() as start:
            assert start.all_right()
            start.wait("model", "numbers", prepared="ready")
            wait_until(lambda start=start: "no plan for fast starts" in start.words(), "a word")  # type: ignore[misc]
            assert PASSWORD not in start.words()
        files = [path for path in own.state.rglob("*") if path.is_file()]
        assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
    # A file's options are no secret.
    own.environ = {"EDGE_AGENT_PIPELINES": json.dumps(own.pipelines)}
    own.ready()
    assert own.plan.is_file()
