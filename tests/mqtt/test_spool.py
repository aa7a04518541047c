"""The file under what was promised: what lies in it, through kills, full disks and damage."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.core.errors import SpoolDamagedError, SpoolError
from edge_agent.mqtt.spool import Kind, Row, Spool, pack
from tests.helpers.small_disk import fill, small_disk
from tests.helpers.support import CHECKOUT

TOPIC = "edge/box/result/p"
messages = st.lists(st.binary(min_size=1).map(lambda b: b.replace(b"\n", b" ")), min_size=1)


def row(number: int, texts: list[bytes], kind: Kind = Kind.RESULT) -> tuple[Row, bytes]:
    """Make a row of messages."""
    body = pack(texts)
    return Row(number, kind, TOPIC, len(texts), len(body)), body


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """Make a spool, not opened yet."""
    spool = Spool(tmp_path / "spool.db")
    yield spool
    spool.close()


@given(rows=st.lists(messages, max_size=8), gone=st.sets(st.integers(1, 8)))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_there_for_the_next_run(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[bytes]], gone: set[int]
) -> None:
    """Rows are read again as they were, in order, by who opens the file later; removed ones not."""
    path = tmp_path_factory.mktemp("spool") / "spool.db"
    made = [row(number, texts) for number, texts in enumerate(rows, 1)]
    with closing(Spool(path)) as spool:
        assert spool.open() == []
        spool.write(made, [])
        spool.write([], gone)
    with closing(Spool(path)) as later:
        left = later.open()
        assert left == [kept for kept, _ in made if kept.id not in gone]
        for kept in left:
            read = later.read(kept)
            assert read is not None
            assert read[0] == rows[kept.id - 1]


def test_nothing_is_touched_before_it_is_needed(tmp_path: Path) -> None:
    """Making a spool creates no file, and neither that nor its import loads SQLite."""
    script = (
        "import sys; from pathlib import Path; from edge_agent.mqtt.spool import Spool\n"
        "spool = Spool(Path(sys.argv[1])); print(spool.exists(), 'sqlite3' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "spool.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.split() == ["False", "False"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_survives_the_death_of_the_process(spool: Spool) -> None:
    """A process that is killed right after `write` leaves the row for the next."""
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from edge_agent.mqtt.spool import Kind, Row, Spool, pack\n"
        "spool = Spool(Path(sys.argv[1])); spool.open(); body = pack([b'one', b'two'])\n"
        "spool.write([(Row(7, Kind.EVENT, 't', 2, len(body)), body)], [])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, str(spool.path)]
    done = subprocess.run(command, check=False, cwd=CHECKOUT)
    assert done.returncode == -signal.SIGKILL
    (left,) = spool.open()
    assert (left.id, left.kind, left.topic, left.count) == (7, Kind.EVENT, "t", 2)
    read = spool.read(left)
    assert read is not None
    assert read[0] == [b"one", b"two"]


def test_only_its_owner_reads_it(spool: Spool) -> None:
    """The file and SQLite's log beside it are for the agent's user alone."""
    spool.open()
    spool.write([row(1, [b"x"])], [])
    modes = {stat.S_IMODE(path.stat().st_mode) for path in spool.path.parent.iterdir()}
    assert modes == {0o600}


@pytest.mark.parametrize("content", [b"no database at all, but long enough" * 100, b"SQLite"])
def test_a_file_that_is_none_is_set_aside(spool: Spool, content: bytes) -> None:
    """What is no database is damaged; set aside it is kept whole, and a new file works."""
    spool.path.write_bytes(content)
    with pytest.raises(SpoolDamagedError, match=r"spool\.db"):
        spool.open()
    aside = spool.set_aside()
    assert aside.read_bytes() == content
    assert spool.open() == []
    spool.write([row(1, [b"x"])], [])
    assert spool.read(row(1, [b"x"])[0]) is not None


def test_a_table_with_holes_is_damaged(spool: Spool) -> None:
    """A database some of whose pages are overwritten says so where it is read or listed."""
    spool.open()
    spool.write([row(number, [os.urandom(3000)]) for number in range(1, 40)], [])
    spool.close()
    with spool.path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 8192)

    def use() -> None:
        for kept in spool.open():
            spool.read(kept)

    with pytest.raises(SpoolDamagedError, match="malformed"):
        use()


@pytest.mark.parametrize("other", ["TABLE waiting (id TEXT)", "VIEW waiting AS SELECT 1 AS id"])
def test_a_table_of_others_is_damaged(spool: Spool, other: str) -> None:
    """It had counted as a disk that fails: nothing was kept any more, also at later starts."""
    with closing(sqlite3.connect(spool.path)) as theirs:
        theirs.execute(f"CREATE {other}")
    with pytest.raises(SpoolDamagedError, match="is not this agent's"):
        spool.open()


def test_a_file_of_another_version_is_not_touched(spool: Spool) -> None:
    """A table that a later agent has made is not read as ours."""
    with closing(sqlite3.connect(spool.path)) as later:
        later.execute("PRAGMA user_version = 9")
    with pytest.raises(SpoolDamagedError, match="is of version 9, not 1"):
        spool.open()


def test_a_damaged_row_costs_that_row(spool: Spool) -> None:
    """A row whose content does not unpack, or is gone, reads as nothing; the others are there."""
    made = [row(1, [b"a"]), row(2, [b"b", b"c"]), row(3, [b"d"])]
    spool.open()
    spool.write(made, [])
    spool.close()
    with closing(sqlite3.connect(spool.path)) as other:
        other.execute("UPDATE waiting SET body = zeroblob(20) WHERE id = 1")
        other.execute("UPDATE waiting SET count = 3 WHERE id = 2")
        other.commit()
    first, second, third = spool.open()
    assert spool.read(first) is None
    assert spool.read(second) is None
    assert spool.read(third) is not None
    spool.write([], [3])
    assert spool.read(third) is None


def test_how_long_it_waited_is_known_over_a_restart_of_the_machine(spool: Spool) -> None:
    """Within one run of the machine the clock that cannot be set counts, after it the wall's."""
    made = row(1, [b"x"])
    spool.open()
    spool.write([made], [])
    spool.close()
    with closing(sqlite3.connect(spool.path)) as other:
        # Somebody sets the wall clock by a year; then the same of a former run of the machine.
        other.execute("UPDATE waiting SET since = since - 100, time = time - 31536000")
        other.commit()
    spool.open()
    same = spool.read(made[0])
    assert same is not None
    assert 100 <= same[1] < 31536000
    spool.close()
    with closing(sqlite3.connect(spool.path)) as other:
        other.execute("UPDATE waiting SET boot = 'another'")
        other.commit()
    spool.open()
    before = spool.read(made[0])
    assert before is not None
    assert before[1] >= 31536000


def test_a_clock_set_back_makes_no_negative_wait(spool: Spool) -> None:
    """A row from the future, as an unset clock sees it, has waited no time."""
    made = row(1, [b"x"])
    spool.open()
    spool.write([made], [])
    spool.close()
    with closing(sqlite3.connect(spool.path)) as other:
        future = time.time() + 1e6
        other.execute("UPDATE waiting SET boot = 'another', time = ?", (future,))
        other.commit()
    spool.open()
    read = spool.read(made[0])
    assert read is not None
    assert read[1] == 0.0


def test_a_full_disk_says_so_and_takes_more_once_it_can(tmp_path: Path) -> None:
    """Writing to a full disk fails as a whole and names the reason; what was there is there."""
    with (
        small_disk(tmp_path / "disk", "1m") as folder,
        closing(Spool(folder / "spool.db")) as spool,
    ):
        spool.open()
        spool.write([row(1, [b"first"])], [])
        filler = fill(folder)
        big = [row(number, [os.urandom(30_000)]) for number in range(2, 30)]
        with pytest.raises(SpoolError, match="the disk is full; free some space"):
            spool.write(big, [])
        assert [kept.id for kept in spool.open()] == [1]
        filler.unlink()
        spool.write(big[:5], [])
        assert [kept.id for kept in spool.open()] == [1, 2, 3, 4, 5, 6]


def test_a_full_disk_does_not_even_take_the_file(tmp_path: Path) -> None:
    """Where the file cannot be made the reason is named, and later it is made."""
    with (
        small_disk(tmp_path / "disk", "64k") as folder,
        closing(Spool(folder / "spool.db")) as spool,
    ):
        filler = fill(folder)
        with pytest.raises(SpoolError, match="the disk is full; free some space"):
            spool.open()
        filler.unlink()
        spool.open()
        spool.write([row(1, [b"x"])], [])


def test_a_disk_that_became_read_only_says_so(tmp_path: Path) -> None:
    """After an error many a file system goes read-only: that is the reason given."""
    with (
        small_disk(tmp_path / "disk", "1m") as folder,
        closing(Spool(folder / "spool.db")) as spool,
    ):
        spool.open()
        spool.close()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with pytest.raises(SpoolError, match="the disk is read-only"):
            spool.write([row(1, [b"x"])], [])


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Without its folder the file cannot be made, and the line says which."""
    spool = Spool(tmp_path / "none" / "spool.db")
    with pytest.raises(SpoolError, match=r"none/spool\.db: No such file or directory"):
        spool.open()


def test_an_empty_file_can_be_removed(spool: Spool) -> None:
    """`discard` leaves nothing, and the spool can be used again after it."""
    spool.open()
    spool.write([row(1, [b"x"])], [])
    spool.sync()
    spool.write([], [1])
    spool.discard()
    assert list(spool.path.parent.iterdir()) == []
    assert spool.bytes == 0
    spool.open()
    spool.write([row(2, [b"y"])], [])
    assert [kept.id for kept in spool.open()] == [2]


def test_a_result_takes_little(spool: Spool) -> None:
    """A result of some 400 bytes, eight of them a write, takes less than 250 on disk."""
    spool.open()
    written = 0
    for number in range(1, 126):
        texts = [result(8 * number + index) for index in range(8)]
        written += sum(map(len, texts))
        spool.write([row(number, texts)], [])
    assert written / 1000 > 380
    assert spool.bytes / 1000 < 250


def result(seq: int) -> bytes:
    """Give a result with two detections whose numbers all differ."""
    box = ",".join(f"{seq * factor % 640:.1f}" for factor in (3.17, 5.31, 7.93, 9.71))
    found = f'{{"label":"good","score":{seq % 9973 / 9973:.4f},"box":[{box}]}}'
    return (
        f'{{"schema":1,"device":"edge-01","session":"2173e62b-26b3-48e6-a005-337749e38829",'
        f'"pipeline":"door","seq":{seq},"time":"2026-11-21T03:26:{seq % 60:02d}.{seq % 1000:03d}Z",'
        f'"model":"parts@1","engine":"openvino:CPU","source":{{"width":640,"height":384}},'
        f'"detections":[{found},{found}],"timing":{{"age_ms":{seq * 7.31 % 90:.2f},'
        f'"infer_ms":{seq * 3.77 % 9:.3f}}},"replayed":true}}'
    ).encode()
