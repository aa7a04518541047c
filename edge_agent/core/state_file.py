"""Small JSON files in the state folder: read at the start, replaced as a whole, safe to lose.

A damaged file counts as absent and is put aside, and a full or read-only disk does not stop the
agent: the content then stays in memory until the agent ends. Both are logged, with what is lost.
One that cannot be read may be whole: it stays as it is, and nothing replaces it before a restart.

For files that hold one value of the agent's own. Not used by `models/store/pointers` (damage is
published, not only logged), `daemon/fast_start/plan` and `readahead` (sealed, or read before
`pathlib` is imported) and `serving/tuning_results` (read again whenever it changes).
"""

from __future__ import annotations

import errno
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .files import put_aside, replace_file
from .json_text import read_own
from .logs import Latch
from .plain_file import NoPlainFileError, read_plain_bytes

T = TypeVar("T")

log = logging.getLogger(__name__)

DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError)
"""Errors raised by parsing if the content is not as the agent writes it."""
PAUSES_SECONDS = (0.1, 0.4)
_UNWRITTEN: dict[Path, tuple[StateFile, str]] = {}
"""Files that could not be read, or whose last content could not be written, and why."""
_seen: list[str] | None = None
"""What a process that only looks has found damaged; None: it does not only look."""


@contextmanager
def only_looking() -> Iterator[list[str]]:
    """Put nothing aside and save nothing until the context ends; for commands that only check.

    Yields texts about damaged files, which grow as files are read.
    """
    global _seen  # noqa: PLW0603 - of the process, whichever part of it reads files
    found: list[str] = []
    _seen = found
    try:
        yield found
    finally:
        _seen = None


def is_looking() -> bool:
    """Whether this process only looks."""
    return _seen is not None


class StateFile:
    """One JSON value in a file."""

    def __init__(
        self, path: Path, holds: str | None = None, mode: int = 0o644, beside: str | None = None
    ) -> None:
        """Create the object without touching the file.

        Args:
            path: the file; its folder must exist when the file is written.
            holds: what is lost with the file, a plural for the log; None: it can be determined
                again at the cost of time, so no loss is logged.
            mode: the permissions of the file.
            beside: the file that its owner writes to while this one cannot be read, for the log.
        """
        self.path = path
        self._mode = mode
        self._holds = holds
        self._beside = beside
        self._failing = Latch()
        self._lock = threading.Lock()
        self._unsaved: Any = None
        """Content that could not be written."""
        self.lost: str | None = None
        """What was lost with a damaged file, until it is written again."""
        self.unread: str | None = None
        """Why the file could not be read, although it may be whole."""

    def read(self, parse: Callable[[Any], T]) -> T | None:
        """Return the content as parsed by *parse*; None: it is missing, damaged or unreadable."""
        try:
            return parse(read_own(self._bytes()))
        except FileNotFoundError:
            return None
        except NoPlainFileError as problem:
            why = problem.strerror
        except OSError as problem:
            if self._holds is not None:
                self.leave(self.path, problem)
                return None
            why = "cannot be read"
        except DAMAGED:
            why = "damaged"
        if _seen is not None:
            if self._holds is not None:
                _seen.append(f"{self.path}: {why}; {self._holds} are forgotten at the next start")
            return None
        aside = put_aside(self.path)
        if self._holds is not None:
            self.lost = f"{self.path}: {why}; {self._holds} are forgotten{aside}"
            log.warning("%s", self.lost)
        return None

    def leave(self, path: Path, problem: OSError, done: str = "read") -> None:
        """Leave the file as it is, because *path*, a part of its content, cannot be read now.

        *done*: what cannot be done with it.
        """
        kept = "none is kept" if self._beside is None else f"new ones are kept in {self._beside}"
        why = (
            f"{path}: cannot be {done}: {problem.strerror or problem}; {self._holds} are not "
            f"known, and {kept}: restart once it can be {done}, or move it away and restart"
        )
        if _seen is not None:
            _seen.append(why)
            return
        self.unread = why
        _UNWRITTEN[self.path] = self, why
        log.warning("%s", why)

    def _bytes(self) -> bytes:
        """Read the file, again if that fails: some errors of a disk pass."""
        for pause in PAUSES_SECONDS:
            try:
                return read_plain_bytes(self.path)
            except (FileNotFoundError, NoPlainFileError):
                raise
            except OSError:
                time.sleep(pause)
        return read_plain_bytes(self.path)

    def write(self, content: Any) -> None:
        """Replace the content, durably.

        Raises:
            OSError: it cannot be written, or could not be read; the old content stays.
        """
        with self._lock:
            self._write(content)

    def _write(self, content: Any) -> None:
        if self.unread is not None:
            raise OSError(errno.EIO, self.unread)
        replace_file(self.path, json.dumps(content).encode(), self._mode)
        self._failing.begins(False)
        self.lost = self._unsaved = None
        _UNWRITTEN.pop(self.path, None)

    def save(self, content: Any) -> bool:
        """Replace the content; if that fails, log the first of a series of failures and go on.

        `unwritten` then tries again. A process that only looks replaces nothing.

        Returns:
            Whether it was replaced.
        """
        if _seen is not None or self.unread is not None:
            return False
        with self._lock:
            try:
                self._write(content)
            except OSError as problem:
                if self._holds is not None:
                    self._unsaved = content
                    self._report(problem)
                return False
            return True

    def _report(self, problem: OSError) -> None:
        why = problem.strerror or str(problem)
        _UNWRITTEN[self.path] = self, f"{self.path}: cannot be written: {why}"
        if self._failing.begins(True):
            words = "%s: cannot be written: %s; %s will be forgotten at the next start"
            log.warning(words, self.path, why, self._holds)

    def _save_again(self) -> None:
        with self._lock:
            if self._unsaved is not None:
                try:
                    self._write(self._unsaved)
                except OSError as problem:
                    self._report(problem)


def unwritten(folder: Path) -> list[str]:
    """Try again to write what `save` could not; return a line for each file that still cannot be.

    Of a file that could not be read, too.

    Called regularly, by one thread, for the files in the state folder.
    """
    for path, (file, _) in list(_UNWRITTEN.items()):
        if path.is_relative_to(folder):
            file._save_again()  # noqa: SLF001 - of this module
    return [why for path, (_, why) in list(_UNWRITTEN.items()) if path.is_relative_to(folder)]
