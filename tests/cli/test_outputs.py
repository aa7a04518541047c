"""What a command writes to a path that its user names: never another thing than was there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from tests.helpers.push import model_folder
from tests.helpers.support import PATIENCE, call_cli

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making devices needs root")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Make a model to pack."""
    return str(model_folder(tmp_path / "model", "1"))


def check_package(path: Path) -> None:
    """See that a file is a package."""
    with tarfile.open(path) as archive:
        assert archive.getnames()[0] == "package.json"


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(model: str, tmp_path: Path) -> None:
    """No other name is left beside it; another name of the old file keeps the old content."""
    out, other = tmp_path / "out" / "x.tar", tmp_path / "other"
    out.parent.mkdir()
    out.write_bytes(b"old")
    out.chmod(0o640)
    other.hardlink_to(out)
    assert call_cli("pack", model, "-o", str(out)).code == 0
    check_package(out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert other.read_bytes() == b"old"
    assert list(out.parent.iterdir()) == [out]


def test_a_link_to_a_file_stays_a_link(model: str, tmp_path: Path) -> None:
    """The file that it leads to gets the content, as with cp."""
    real, link = tmp_path / "real" / "x.tar", tmp_path / "link.tar"
    real.parent.mkdir()
    real.write_bytes(b"old")
    link.symlink_to("real/x.tar")
    assert call_cli("pack", model, "-o", str(link)).code == 0
    assert link.readlink() == Path("real/x.tar")
    check_package(real)
    assert list(real.parent.iterdir()) == [real]


@pytest.mark.parametrize("target", ["nowhere", "link.tar"])
def test_a_link_to_nothing_is_refused(model: str, tmp_path: Path, target: str) -> None:
    """Also one that leads to itself."""
    link = tmp_path / "link.tar"
    link.symlink_to(target)
    done = call_cli("pack", model, "-o", str(link))
    assert done.code in {1, 2}
    assert str(link) in done.error
    assert link.readlink() == Path(target)
    assert not (tmp_path / "nowhere").exists()


def test_a_named_pipe_is_written_to(model: str, tmp_path: Path) -> None:
    """Whoever reads it gets the package; it is a pipe afterward."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert call_cli("pack", model, "-o", str(pipe)).code == 0
    reader.join(PATIENCE)
    copy = tmp_path / "copy.tar"
    copy.write_bytes(read[0])
    check_package(copy)
    assert pipe.is_fifo()


def test_standard_output_gets_the_package_and_nothing_else(model: str, tmp_path: Path) -> None:
    """What else there is to say goes to stderr."""
    # A name of its own, so that a mistake does not cost this machine its /dev/stdout.
    out = tmp_path / "stdout"
    out.symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-m", "edge_agent", "pack", model, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"package.json\0")
    assert done.stdout.endswith(bytes(1024))
    assert b"level@1" in done.stderr
    assert out.is_symlink()


@needs_root
@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [(stat.S_IFCHR, (1, 3), 0), (stat.S_IFCHR, (1, 7), 1), (stat.S_IFBLK, (7, 250), 2)],
    ids=["/dev/null", "/dev/full", "a disk"],
)
def test_a_device_stays_a_device(
    model: str, tmp_path: Path, kind: int, number: tuple[int, int], code: int
) -> None:
    """Written to, or refused in one line: a disk is never what somebody means."""
    device = tmp_path / "device"
    os.mknod(device, kind | 0o600, os.makedev(*number))
    done = call_cli("pack", model, "-o", str(device))
    assert done.code == code
    if code:
        assert done.error.startswith(f"edge-agent: {device}: ")
    assert stat.S_IFMT(device.lstat().st_mode) == kind


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_key_is_written_to_nothing_that_is_there(tmp_path: Path, kind: str) -> None:
    """`keygen` makes new files and nothing else."""
    place = tmp_path / "push.key"
    if kind == "link":
        place.symlink_to("nowhere")
    else:
        os.mkfifo(place)
    done = call_cli("keygen", str(place))
    assert (done.code, done.error) == (
        2,
        f"edge-agent: {place}: is there already; a key is never overwritten",
    )
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("date", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_a_date_that_no_calendar_has_is_wrong_usage(model: str, tmp_path: Path, date: str) -> None:
    """In UTC it lies beyond the years that there are; one line says what to write."""
    done = call_cli("pack", model, "-o", str(tmp_path / "x.tar"), "--expires", date)
    assert done.code == 2
    assert done.error == f"edge-agent: --expires: '{date}' is not a date; write 2027-06-30"
    assert not (tmp_path / "x.tar").exists()
