"""Root in another user's folder: what is given up is given up, and no link is followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.core.child import start_child
from edge_agent.core.files import copy_owner
from tests.helpers.small_models import brightness
from tests.helpers.stranger import open_to_strangers
from tests.helpers.support import CHECKOUT, wait_until

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")

OTHER = 12345
BECOME = """
import os, sys
from edge_agent.core.privileges import User, become
become(User(12345, 23456, (34567,)), reading=sys.argv[1] == "reading")
print(os.getresuid(), os.getresgid(), os.getgroups())
for back in (lambda: os.seteuid(0), lambda: open(sys.argv[2]), lambda: open(sys.argv[2], "a")):
    try:
        back()
        print("may")
    except PermissionError:
        print("may not")
"""


@pytest.mark.parametrize(("kept", "may_read"), [("nothing", "may not"), ("reading", "may")])
def test_who_has_become_another_user_stays_it(tmp_path: Path, kept: str, may_read: str) -> None:
    """Root is gone with all its rights; only reading stays, where that was asked for."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    ended = subprocess.run(
        [sys.executable, "-c", BECOME, kept, str(secret)],
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
    )
    who = "(12345, 12345, 12345) (23456, 23456, 23456) [34567]"
    assert ended.stdout.splitlines() == [who, "may not", may_read, "may not"], ended.stderr


def service_of_another(place: Path) -> tuple[Path, Path, Path]:
    """Make settings that only root may read, another user's state folder, and a model."""
    config, state = place / "config.toml", place / "state"
    config.write_text('state_dir = "state"\n')
    config.chmod(0o600)
    state.mkdir()
    os.chown(state, OTHER, OTHER)
    folder = brightness(place / "light")
    open_to_strangers(place)
    return config, state, folder


def test_giving_a_folder_away_follows_no_link(tmp_path: Path) -> None:
    """Whoever owns the place may have put a link where the folder was, or in it."""
    private, state = tmp_path / "private", tmp_path / "state"
    (private / "below").mkdir(parents=True)
    (state / "models" / "light").mkdir(parents=True)
    (state / "models" / "link").symlink_to(private)
    (state / "staging").symlink_to(private)
    os.chown(state, OTHER, OTHER)
    for name in ("models", "staging"):
        copy_owner(state / name, state)
    assert {path.lstat().st_uid for path in (private, *private.rglob("*"))} == {0}
    assert {path.lstat().st_uid for path in state.rglob("*")} == {OTHER}


def test_a_model_is_tried_by_the_user_of_the_state_folder(tmp_path: Path) -> None:
    """The settings may be root's alone; engines run on what that user has put there."""
    config, state, folder = service_of_another(tmp_path)
    question = {
        "config": str(config),
        "folder": str(folder),
        "variant": None,
        "kind": "picture",
        "user": (OTHER, OTHER, ()),
    }
    asked = tmp_path / "question"
    asked.write_text(json.dumps(question))
    with asked.open("rb") as stdin:
        child = start_child("edge_agent.cli.model_check", "trying", stdin.fileno())
    status = Path(f"/proc/{child.pid}/status")
    theirs = "\t".join(["Uid:", *[str(OTHER)] * 4])
    wait_until(lambda: theirs in status.read_text().splitlines(), "the child to give up root")
    output, _ = child.communicate()
    said = json.loads(output.splitlines()[-1])
    assert said["answer"]["choice"] in {"onnxruntime", "openvino"}
    assert list(state.iterdir()) == []


def test_a_model_is_tuned_by_the_user_of_the_state_folder(tmp_path: Path) -> None:
    """Root runs no engine on what that user has put there, and follows none of their links."""
    config, state, folder = service_of_another(tmp_path)
    command = [sys.executable, "-m", "edge_agent", "bench", "pipeline", str(folder), "--tune"]
    tuning = subprocess.Popen(
        [*command, "--config", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    status = Path(f"/proc/{tuning.pid}/status")
    theirs = "\t".join(["Uid:", *[str(OTHER)] * 4])
    wait_until(lambda: theirs in status.read_text().splitlines(), "it to give up root")
    _, said = tuning.communicate()
    assert tuning.returncode == 0, said
    made = list(state.rglob("*"))
    assert made
    assert {path.lstat().st_uid for path in made} == {OTHER}
