"""Bundles: what is begun from one, and what of a wrong one is said; nothing is installed here.

Installing takes a booted systemd: `scripts/machines/test-bundle`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_agent.cli.commands.install_bundle import HEAD, Bundle, open_bundle, this_system
from edge_agent.core.errors import UsageError
from tests.cli.test_install import run_installed
from tests.helpers.support import CHECKOUT, call_cli

NOTHING = "nothing was changed"


def _maker() -> Any:
    """Import what `scripts/bundle` runs."""
    spec = importlib.util.spec_from_file_location(
        "make_bundle", CHECKOUT / "scripts/make_bundle.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = _maker()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Give a wheel of this very code, and stand-ins for pip and a library."""
    folder = tmp_path_factory.mktemp("wheels")
    made = []
    for name in (
        "edge_agent-1.2-py3-none-any.whl",
        "pip-99-py3-none-any.whl",
        "lib-3-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl",
    ):
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("of", name)
            for file in (CHECKOUT / "edge_agent").rglob("*.py"):
                if name.startswith("edge_agent"):
                    archive.write(file, file.relative_to(CHECKOUT))
        made.append(folder / name)
    return made


@pytest.fixture
def bundle(wheels: list[Path], tmp_path: Path) -> Path:
    """Give a bundle for this system."""
    path = tmp_path / "edge-agent.bundle"
    MAKER.write(wheels, path, this_system())
    return path


def begin(*command: str | Path) -> tuple[int, str, str]:
    """Run the file as somebody does who has nothing else; gives status, output and error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("shell", [True, False], ids=["sh", "python"])
def test_a_bundle_starts_the_installer_in_it(bundle: Path, shell: bool) -> None:
    """`sh FILE` and `python FILE` both run `install` from the wheel inside, with its options."""
    start = ("sh", bundle) if shell else (sys.executable, "-I", bundle)
    status, out, _ = begin(*start, "--help")
    assert status == 0
    assert "--offline BUNDLE" in out


def test_a_bundle_is_the_same_bytes_again(bundle: Path, wheels: list[Path], tmp_path: Path) -> None:
    """Of the same wheels the same file is written, so that its digest says what is in it."""
    MAKER.write(wheels, tmp_path / "again", this_system())
    assert (tmp_path / "again").read_bytes() == bundle.read_bytes()


def test_every_wheel_is_pinned_by_its_digest(wheels: list[Path]) -> None:
    """Each has its version and SHA-256 in the requirements; pip itself is not installed."""
    lines = MAKER.requirements(wheels).splitlines()
    assert [line.split("==")[0] for line in lines] == ["edge_agent", "lib"]
    assert all(len(line.partition("--hash=sha256:")[2]) == 64 for line in lines)
    assert MAKER.glibc(wheels) == "2.17"


@pytest.mark.parametrize("left", [0, 200, 900, HEAD, HEAD + 1, -1])
def test_what_is_cut_off_is_not_begun(bundle: Path, left: int) -> None:
    """Wherever a copy ends too early: exit status 2, and nothing of it is run."""
    whole = bundle.read_bytes()
    bundle.write_bytes(whole[:left])
    with pytest.raises(UsageError, match=NOTHING) as problem:
        open_bundle(bundle)
    assert str(bundle) in str(problem.value)
    if left >= 900 or left < 0:  # else there is no script, or not all of its one function
        status, out, error = begin("sh", bundle, "--help")
        assert (status, out) == (2, "")
        assert error == (
            f"edge-agent: {bundle}: expected {len(whole)} bytes, "
            f"found {len(whole[:left])}; copy it again; {NOTHING}\n"
        )


@pytest.mark.parametrize("at", [HEAD, HEAD + 1000, -1])
def test_what_was_altered_is_not_begun(bundle: Path, at: int) -> None:
    """One byte that differs anywhere in the archive: one line, exit status 2."""
    content = bytearray(bundle.read_bytes())
    content[at] ^= 1
    bundle.write_bytes(content)
    says = f"{bundle}: its content was altered; copy it again; {NOTHING}"
    with pytest.raises(UsageError) as problem:
        open_bundle(bundle)
    assert str(problem.value) == says
    assert begin("sh", bundle, "--help") == (2, "", f"edge-agent: {says}\n")


@pytest.mark.parametrize("what", ["bundle.json", "wheels/edge_agent", "wheels/pip"])
def test_what_was_altered_inside_is_refused(bundle: Path, tmp_path: Path, what: str) -> None:
    """Also where the digest of the whole was made to match: a traceback was all that was said."""
    content = bundle.read_bytes()
    with zipfile.ZipFile(bundle) as archive:
        (member,) = (each for each in archive.infolist() if each.filename.startswith(what))
        at = member.header_offset + 30 + len(member.filename) + 1
    altered = bytearray(content)
    altered[at] ^= 1
    before, after = (hashlib.sha256(each[HEAD:]).hexdigest() for each in (content, altered))
    bundle.write_bytes(bytes(altered).replace(before.encode(), after.encode(), 1))
    opened = open_bundle(bundle)
    read = opened.check_fits if what == "bundle.json" else partial(opened.unpack, tmp_path / "out")
    with pytest.raises(UsageError, match=rf"is damaged inside \(.*\); make it again; {NOTHING}"):
        read()
    if "edge_agent" in what:
        status, out, error = begin("sh", bundle, "--help")
        assert (status, out) == (2, "")
        assert "is damaged inside" in error
        assert len(error.splitlines()) == 1


def test_a_full_folder_for_temporary_files_is_named(bundle: Path, tmp_path: Path) -> None:
    """The installer in it is unpacked there."""
    mount = 'mount -t tmpfs -o size=64k tmpfs "$TMPDIR"'
    full = tmp_path / "full"
    full.mkdir()
    environ = {**os.environ, "TMPDIR": str(full)}
    apart = ["unshare", "--mount", "sh", "-ec"]
    if os.getuid() != 0 or subprocess.run([*apart, mount], check=False, env=environ).returncode:
        pytest.skip("a file system that is full takes root and mounts")
    done = subprocess.run(
        [*apart, f'{mount}; exec sh "$0" --help', bundle],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"edge-agent: {bundle}: cannot be unpacked in {full}: No space left on device; "
        f"make room there, or name another folder by TMPDIR=; {NOTHING}\n"
    )


def test_a_full_disk_is_named(bundle: Path, tmp_path: Path) -> None:
    """Where there is no room, and what to do."""
    (tmp_path / "config.toml").touch()
    full = ("sh", "-ec", 'mount -o remount,size=200k /opt; exec "$@"', "sh")
    install = (sys.executable, "-I", str(bundle))
    done = run_installed(tmp_path, *full, *install)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert said[1:] == ["edge-agent: /opt/edge-agent: No space left on device; make room there"]
    assert done.stdout.splitlines() == ["/opt/edge-agent", "/etc/edge-agent/config.toml"]


@pytest.mark.parametrize(
    ("what", "wanted", "found"),
    [("machine", "riscv64", this_system()["machine"]), ("glibc", "9.1", this_system()["glibc"])],
)
def test_a_bundle_for_another_system_is_refused(
    wheels: list[Path], tmp_path: Path, what: str, wanted: str, found: str
) -> None:
    """Wheels for another processor, or a newer C library: said before anything is made."""
    path = tmp_path / "other.bundle"
    MAKER.write(wheels, path, this_system() | {what: wanted})
    with pytest.raises(UsageError, match=rf"is for {what} {wanted}.* found {found}; .*{NOTHING}"):
        open_bundle(path).check_fits()


def test_a_bundle_for_this_system_fits(wheels: list[Path], tmp_path: Path) -> None:
    """One for an older C library, too."""
    path = tmp_path / "older.bundle"
    MAKER.write(wheels, path, this_system() | {"glibc": "2.9"})
    open_bundle(path).check_fits()


def test_a_bundle_for_another_python_is_refused(wheels: list[Path], tmp_path: Path) -> None:
    """It says so itself, whichever Python begins it."""
    path = tmp_path / "other.bundle"
    MAKER.write(wheels, path, this_system() | {"python": "3.99"})
    found = this_system()["python"]
    says = f"{path}: is for Python 3.99, found {found}; make one on a system like this; {NOTHING}"
    assert begin(sys.executable, "-I", path) == (2, "", f"edge-agent: {says}\n")


def test_without_python_a_bundle_says_so(bundle: Path, tmp_path: Path) -> None:
    """On a system without Python the script itself names what is missing."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("wc", "tail", "sha256sum"):
        found = next(
            Path(each) / name for each in ("/usr/bin", "/bin") if Path(each, name).exists()
        )
        (tools / name).symlink_to(found)
    done = subprocess.run(
        ["/bin/sh", bundle],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tools)},
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"edge-agent: {bundle}: needs Python {this_system()['python']}, "
        f"and there is none; install python3; {NOTHING}\n"
    )


def test_a_program_knows_whether_it_came_from_a_bundle(bundle: Path) -> None:
    """A version that is installed leaves a bundle to the installer in it."""
    assert not Bundle(bundle).is_running()


@pytest.mark.parametrize(
    "words",
    [
        ("--offline", "a", "--previous"),
        ("--previous", "--image"),
        ("--offline", "/nowhere/edge-agent.bundle"),
    ],
)
def test_what_cannot_be_together_is_refused(words: tuple[str, ...]) -> None:
    """One line, exit status 2: here at the latest for want of systemd."""
    if os.getuid() == 0 and Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs here; installing would change this machine")
    called = call_cli("install", *words)
    assert called.code == 2
    assert len(called.error.splitlines()) == 1
