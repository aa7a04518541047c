"""QoS 1 messages on disk: rows of compressed messages in one SQLite file.

For one thread at a time. Independent of connections and of the content of messages. `inflight` has
the index of the rows, so nothing is searched for here.

A row has up to ROW_MESSAGES payloads of one topic, one line each, compressed together: a result of
400 bytes then takes about 100 on disk. SQLite uses a write-ahead log (WAL): after `write` a row
survives a kill of the process, after `sync` also a power cut.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import SpoolDamagedError, SpoolError
from ..core.files import copy_owner, put_aside
from ..core.frozen import record
from ..core.plain_file import NO_PLAIN_FILE
from .message import Message

if TYPE_CHECKING:
    import sqlite3

VERSION = 1
"""Version of the table below; a file with another version is set aside."""
TABLE = (
    "CREATE TABLE IF NOT EXISTS waiting (id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, "
    "topic TEXT NOT NULL, count INTEGER NOT NULL, boot TEXT NOT NULL, since REAL NOT NULL, "
    "time REAL NOT NULL, body BLOB NOT NULL)"
)
COLUMNS = ["id", "kind", "topic", "count", "boot", "since", "time", "body"]
ROW_MESSAGES = 64
ROW_BYTES = 64 * 1024
"""Limits of a row before compression; a single message may be larger."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Kind(IntEnum):
    """Kinds of messages; if space is short, those with a lower value are dropped first."""

    RESULT = 0
    LOSSLESS = 1
    """A result of a lossless source, which waits for credit, so that there are only a few."""
    EVENT = 2


@record
class Row:
    """Some messages of one topic on disk, in publishing order."""

    id: int
    """Increases in publishing order."""
    kind: Kind
    topic: str
    count: int
    size: int
    """Size of the compressed messages, bytes."""

    @property
    def event(self) -> bool:
        return self.kind == Kind.EVENT


class Spool:
    """The spool file. It is opened, and SQLite is imported, only when needed.

    If a disk operation fails, SpoolError is raised, and the file keeps its content.
    """

    def __init__(self, path: Path) -> None:
        """Set up without touching the file; its folder must exist."""
        self.path = path
        self.bytes = 0
        """Bytes in use on disk, in whole pages; the file may also have free pages, and SQLite's
        log next to it may take about 4 MiB."""
        self._database: sqlite3.Connection | None = None
        self._boot = ""

    def exists(self) -> bool:
        """Whether the file exists; an earlier run leaves one if it has undelivered messages."""
        return self.path.exists()

    def open(self) -> list[Row]:
        """Open or create the file; return its rows, oldest first."""
        with self._errors() as database:
            found = database.execute(
                "SELECT id, kind, topic, count, length(body) FROM waiting ORDER BY id"
            ).fetchall()
            try:
                return [
                    Row(int(id_), Kind(kind), str(topic), int(count), int(size))
                    for id_, kind, topic, count, size in found
                ]
            except (TypeError, ValueError) as problem:
                raise SpoolDamagedError(f"{self.path}: {problem}") from problem

    def write(self, rows: Sequence[tuple[Row, bytes]], gone: Collection[int]) -> None:
        """Add rows with their packed messages and remove the rows *gone*, all or nothing."""
        boot, since, now = self._boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        with self._errors() as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany("DELETE FROM waiting WHERE id = ?", [(id_,) for id_ in gone])
            database.executemany(
                "INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (row.id, int(row.kind), row.topic, row.count, boot, since, now, body)
                    for row, body in rows
                ],
            )
            database.execute("COMMIT")
            self._measure(database)

    def read(self, row: Row) -> tuple[list[bytes], float] | None:
        """Return a row's messages and their seconds on disk; None: it is missing or damaged."""
        with self._errors() as database:
            found = database.execute(
                "SELECT boot, since, time, body FROM waiting WHERE id = ?", (row.id,)
            ).fetchone()
        if found is None:
            return None
        boot, since, written, body = found
        try:
            messages = zlib.decompress(body).split(b"\n")
        except (TypeError, zlib.error):
            return None
        if len(messages) != row.count:
            return None
        # The wall clock may have been set meanwhile, often by years after a start without network;
        # the monotonic clock is valid until the machine restarts.
        if boot == self._boot_id():
            waited = time.clock_gettime(time.CLOCK_BOOTTIME) - since
        else:
            waited = time.time() - written
        return messages, max(0.0, waited)

    def sync(self) -> None:
        """Sync all writes, so that they survive a power cut."""
        try:
            # Not the database file itself: closing it would release SQLite's lock on it.
            descriptor = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return  # all of it is in the database
        except OSError as problem:
            raise SpoolError(f"{self.path}: {problem.strerror}") from problem

    def close(self) -> None:
        """Close the file. It is opened again when needed."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def discard(self) -> None:
        """Remove the empty file."""
        self.close()
        self.bytes = 0
        # If it cannot be removed, it stays, still empty.
        with suppress(OSError):
            for part in ("", "-wal"):
                Path(f"{self.path}{part}").unlink(missing_ok=True)

    def set_aside(self) -> Path:
        """Move a damaged file aside, replacing an earlier one; return its new path."""
        self.close()
        self.bytes = 0
        aside = self.path.with_name(f"{self.path.name}.damaged")
        try:
            for part in ("-wal", ""):
                if Path(f"{aside}{part}").is_dir():
                    put_aside(Path(f"{aside}{part}"))
                Path(f"{aside}{part}").unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    Path(f"{self.path}{part}").rename(f"{aside}{part}")
        except OSError as problem:
            raise SpoolError(
                f"{self.path}: is damaged and cannot be moved away: {problem.strerror}"
            ) from problem
        return aside

    # The database

    @contextmanager
    def _errors(self) -> Iterator[sqlite3.Connection]:
        """Open the file if it is not open; convert SQLite's errors."""
        import sqlite3

        try:
            if self._database is None:
                self._database = self._connect()
            yield self._database
        except sqlite3.Error as problem:
            # The transaction is rolled back; a connection that has failed is not used again.
            with suppress(sqlite3.Error):
                self.close()
            code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
            if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                raise SpoolDamagedError(f"{self.path}: {problem}") from problem
            full = code == sqlite3.SQLITE_FULL
            raise SpoolError(f"{self.path}: {self._explain(full) or problem}") from problem
        except OSError as problem:
            raise SpoolError(f"{self.path}: {problem.strerror}") from problem

    def _connect(self) -> sqlite3.Connection:
        import sqlite3

        for part in ("", "-wal"):
            path = Path(f"{self.path}{part}")
            if path.exists() and not path.is_file():
                raise SpoolDamagedError(f"{path}: {NO_PLAIN_FILE}")
        if not self.exists():
            # Results may be private; SQLite gives its log the same mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            copy_owner(self.path, self.path.parent)
        database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            # There is only one process: no shared memory file, which a full disk could not hold.
            # For a new file: a row is a few hundred bytes, and whole pages are written.
            database.execute("PRAGMA page_size = 1024")
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA cache_size = -256")
            database.execute("PRAGMA journal_size_limit = 4194304")
            version = int(database.execute("PRAGMA user_version").fetchone()[0])
            if version not in {0, VERSION}:
                raise SpoolDamagedError(f"{self.path}: is of version {version}, not {VERSION}")
            if version == 0:
                database.execute(TABLE)
                database.execute(f"PRAGMA user_version = {VERSION}")
            found = [name for _, name, *_ in database.execute("PRAGMA table_info(waiting)")]
            if found != COLUMNS:
                raise SpoolDamagedError(f"{self.path}: its table is not this agent's")
            self._measure(database)
        except BaseException:
            with closing(database):
                raise
        return database

    def _measure(self, database: sqlite3.Connection) -> None:
        pages, free, size = (
            int(database.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        self.bytes = (pages - free) * size

    def _explain(self, full: bool) -> str | None:
        """Return why the disk fails; SQLite reports less than the file system."""
        try:
            disk = os.statvfs(self.path.parent)
        except OSError as problem:
            return problem.strerror
        if disk.f_flag & os.ST_RDONLY:
            return "the disk is read-only; see the kernel's messages (dmesg)"
        if full or disk.f_bavail == 0:
            return "the disk is full; free some space"
        return None

    def _boot_id(self) -> str:
        """Return the machine's boot id."""
        if not self._boot:
            self._boot = BOOT_ID.read_text(encoding="ascii").strip()
        return self._boot


def pack(messages: Sequence[bytes]) -> bytes:
    """Compress the messages of a row; encoded JSON contains no line breaks."""
    return zlib.compress(b"\n".join(messages), 6)


def kind_of(message: Message) -> Kind:
    """Return the kind of a message."""
    if message.event:
        return Kind.EVENT
    return Kind.LOSSLESS if message.channel.lossless else Kind.RESULT
