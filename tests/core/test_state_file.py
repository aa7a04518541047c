"""Small JSON files of the state folder: damage and full disks cost what they hold, no more."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edge_agent.core.state_file import StateFile, unwritten


def names(read: object) -> set[str]:
    """Parse a list of names."""
    if not isinstance(read, list):
        raise TypeError
    return {str(name) for name in read}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """A value comes back; a file that is not there is empty, and nothing is logged of it."""
    file = StateFile(tmp_path / "names.json", "names")
    assert file.read(names) is None
    file.write(["a", "b"])
    assert StateFile(tmp_path / "names.json").read(names) == {"a", "b"}
    assert [path.name for path in tmp_path.iterdir()] == ["names.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"\xff\xfe\xfa", b'{"a": 1}', b"null", b"7"]
)
def test_damage_is_logged_and_empty(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged file counts as empty, with one line that names it and what is lost."""
    path = tmp_path / "names.json"
    path.write_bytes(content)
    assert StateFile(path, "names").read(names) is None
    assert [entry.getMessage() for entry in caplog.records] == [
        f"{path}: damaged; names are forgotten; it is kept as names.json.damaged"
    ]


def test_damage_of_what_can_be_found_out_again_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a name for what is lost nothing is logged."""
    path = tmp_path / "names.json"
    path.write_bytes(b"{")
    assert StateFile(path).read(names) is None
    StateFile(tmp_path / "away" / "names.json").save(["a"])
    assert not caplog.records


def test_what_cannot_be_read_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One passing error of a disk at a start moved the totals of years away: they began anew."""
    path = tmp_path / "names.json"
    path.symlink_to(path)  # as many errors on the way as the system follows
    file = StateFile(path, "names")
    assert file.read(names) is None
    assert not file.save(["b"])
    with pytest.raises(OSError, match="cannot be read: Too many levels"):
        file.write(["b"])
    assert [each.name for each in tmp_path.iterdir()] == ["names.json"]
    line = (
        f"{path}: cannot be read: Too many levels of symbolic links; names are not known, and none "
        "is kept: restart once it can be read, or move it away and restart"
    )
    assert caplog.messages == unwritten(tmp_path) == [line]
    path.unlink()
    path.write_text('["a"]')
    assert not file.save(["b"])
    assert StateFile(path, "names").read(names) == {"a"}


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    """It is told until then, and only the last content is written."""
    folder = tmp_path / "state"
    file = StateFile(folder / "names.json", "names")
    assert file.save(["a"]) is False
    assert file.save(["b"]) is False
    assert unwritten(tmp_path) == [f"{file.path}: cannot be written: No such file or directory"]
    folder.mkdir()
    assert unwritten(tmp_path) == []
    assert file.read(names) == {"b"}


def test_a_write_that_fails_is_logged_once_in_a_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first failure is logged, those after it are not; after a success the next one is."""
    caplog.set_level(logging.WARNING)
    folder = tmp_path / "state"
    file = StateFile(folder / "names.json", "names")
    file.save(["a"])
    file.save(["a"])
    (line,) = caplog.messages
    assert line.startswith(f"{file.path}: cannot be written: No such file or directory; names will")
    folder.mkdir()
    file.save(["a"])
    file.path.unlink()
    folder.rmdir()
    file.save(["a"])
    assert len(caplog.records) == 2
    with pytest.raises(FileNotFoundError):
        file.write(["a"])
