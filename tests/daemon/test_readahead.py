"""What a start reads is learned, and read ahead at the next; a list that is wrong harms nothing."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.daemon.fast_start.readahead import (
    FILE,
    PAGE,
    SCHEMA,
    ReadAhead,
    is_known,
    list_touched,
    start_read_ahead,
)
from tests.helpers.support import PATIENCE

PAGES = 256
_libc = ctypes.CDLL(None, use_errno=True)


def resident(path: Path) -> set[int]:
    """List the pages of a file that are in memory: mincore(2)."""
    size = path.stat().st_size
    count = -(-size // PAGE)
    states = (ctypes.c_ubyte * count)()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        here = ctypes.c_char.from_buffer(mapped)
        done = _libc.mincore(
            ctypes.c_void_p(ctypes.addressof(here)), ctypes.c_size_t(size), ctypes.byref(states)
        )
        del here
    assert done == 0, os.strerror(ctypes.get_errno())
    return {index for index, state in enumerate(states) if state & 1}


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """Write a file of 256 pages and have the kernel forget it."""
    path = tmp_path / "library.so"
    path.write_bytes(os.urandom(PAGES * PAGE))
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
    if resident(path):
        pytest.skip("this file system keeps its files in memory")
    return path


def waited(reading: ReadAhead, *packages: str | None) -> None:
    """See that waiting comes to an end."""
    ended = threading.Event()

    def wait() -> None:
        for package in packages or (None,):
            reading.wait(package)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert ended.wait(PATIENCE), "it waits for ever"


def test_what_is_mapped_is_learned() -> None:
    """The list names the libraries and modules that this process uses, and pages within them."""
    content = list_touched("origins", ["/nowhere"])
    assert content is not None
    known = json.loads(content)
    assert (known["schema"], known["origins"]) == (SCHEMA, "origins")
    files: dict[str, list[list[int]]] = dict(known["files"])
    maps = Path("/proc/self/maps").read_text()
    libraries = [path for path in files if ".so" in path]
    assert any("_multiarray_umath" in path for path in libraries), np.__name__
    for path in libraries:
        assert path in maps
    # Of a module what Python reads, which is there only where it may write it.
    compiled = sys.modules["json.decoder"].__cached__
    assert (compiled in files) == Path(compiled).is_file()
    for path, ranges in files.items():
        size = Path(path).stat().st_size
        ends = [first + count for first, count in ranges]
        assert all(count > 0 for _, count in ranges)
        assert all(end <= first for end, (first, _) in zip(ends, ranges[1:], strict=False))
        assert (ends[-1] - 1) * PAGE < size, path


def test_what_is_not_to_be_learned_is_left_out() -> None:
    """Nothing below the folders that are named is in the list: models come by other ways."""
    folder = str(Path(np.__file__).parent)
    content = list_touched("origins", [folder])
    assert content is not None
    libraries = [path for path, _ in json.loads(content)["files"] if ".so" in path]
    assert libraries
    assert not [path for path in libraries if path.startswith(folder)]


def test_just_what_is_named_is_read(cold: Path) -> None:
    """Of a file that is not in memory, the pages that are named are read, and no others."""
    ranges = [[3, 2], [40, 1], [200, 17]]
    waited(ReadAhead([(str(cold), ranges)]))
    assert resident(cold) == {3, 4, 40, *range(200, 217)}


def test_more_than_there_is(cold: Path) -> None:
    """A range beyond the end of a file that has become shorter is read as far as there is any."""
    waited(ReadAhead([(str(cold), [[250, 1000]])]))
    assert resident(cold) == set(range(250, PAGES))


def test_each_package_is_waited_for(cold: Path, tmp_path: Path) -> None:
    """Who waits for a package gets it and all before it; for one that is not listed, nobody."""
    place = tmp_path / "site-packages" / "numpy" / "core.so"
    place.parent.mkdir(parents=True)
    cold.rename(place)
    reading = ReadAhead([("/gone/with/the/wind.so", [[0, 5]]), (str(place), [[1, 1]])])
    waited(reading, "numpy", "cv2", None)
    assert resident(place) == {1}


def write_list(state: Path, **known: Any) -> None:
    """Write a list as a start does."""
    (state / FILE).write_text(json.dumps({"schema": SCHEMA, "origins": "o", **known}))


def test_a_list_counts_for_its_own_start_only(cold: Path, tmp_path: Path) -> None:
    """It is of use while the files are not in memory, to a start of the same origins."""
    write_list(tmp_path, probe=[str(cold), 7 * PAGE], files=[[str(cold), [[7, 1]]]])
    assert is_known(str(tmp_path), "o")
    assert not is_known(str(tmp_path), "others")
    assert start_read_ahead(str(tmp_path), "others") is None
    reading = start_read_ahead(str(tmp_path), "o")
    assert reading is not None
    waited(reading)
    assert resident(cold) == {7}
    assert start_read_ahead(str(tmp_path), "o") is None, "it is in memory now"


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": bytes(range(256)),
    "half": b'{"schema": 1, "origins": "o", "fil',
    "brackets": b"[" * 200_000,
    "a list": b"[1, 2, 3]",
    "a number": b"7",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_list_that_is_none(content: bytes, tmp_path: Path) -> None:
    """Garbage in the list's place is as good as no list."""
    (tmp_path / FILE).write_bytes(content)
    assert start_read_ahead(str(tmp_path), "o") is None
    assert not is_known(str(tmp_path), "o")


def test_a_folder_in_the_lists_place(tmp_path: Path) -> None:
    """A list that cannot be read is as good as none."""
    (tmp_path / FILE).mkdir()
    assert start_read_ahead(str(tmp_path), "o") is None
    assert not is_known(str(tmp_path), "o")


@pytest.mark.parametrize(
    "files",
    [
        7,
        [7],
        [["/etc/hostname"]],
        [["/etc/hostname", None]],
        [["/etc/hostname", [[1]]]],
        [["/etc/hostname", [["a", "b"]]]],
        [["/etc/hostname", [[-5, 2]]]],
        [["/etc/hostname", [[0, 10**30]]]],
        [["/etc/hostname", [[10**30, 1]]]],
        [["/etc/host\0name", [[0, 1]]]],
        [["/etc", [[0, 1]]]],
        [["", [[0, 1]]]],
        [["/no/such/file", [[0, 1]]]],
    ],
    ids=str,
)
def test_wrong_entries(files: object, cold: Path, tmp_path: Path) -> None:
    """Whatever an entry is, nobody waits for it in vain."""
    write_list(tmp_path, probe=[str(cold), 0], files=files)
    reading = start_read_ahead(str(tmp_path), "o")
    if reading is not None:
        waited(reading, "numpy", None)


@pytest.mark.parametrize(
    "probe",
    [7, [], ["/no/such/file", 0], ["/etc/hostname", -1], ["/etc/hostname", 10**30], [None, 0]],
    ids=str,
)
def test_a_wrong_probe(probe: object, tmp_path: Path) -> None:
    """A probe that cannot be looked at means that there is nothing to be read."""
    # The kernel takes -1 for the place where a file that was just opened begins.
    Path("/etc/hostname").read_bytes()
    write_list(tmp_path, probe=probe, files=[])
    assert start_read_ahead(str(tmp_path), "o") is None
