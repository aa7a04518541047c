"""The commands carried out, so that none with `id` and `time` is carried out twice.

A command older than MAX_AGE_SECONDS is refused, so only that period must be remembered. Commands
that have changed something are remembered over restarts: one line each, appended to a file that is
rewritten once most of its lines are outdated.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import RequestError
from ..core.files import append_lines, put_aside, replace_file
from ..core.frozen import record
from ..core.json_text import read_own
from ..core.logs import Latch
from ..core.parameters import shown
from ..core.plain_file import NoPlainFileError, read_plain_bytes
from ..core.state_file import DAMAGED
from . import payloads

log = logging.getLogger(__name__)

MAX_AGE_SECONDS = 60.0
"""Greatest difference between a command's `time` and now, past or future, to carry it out."""
MOST = 1024
"""Most commands that change something per MAX_AGE_SECONDS; further ones are refused."""
MOST_UNCHANGING = 256
"""Most other commands remembered; the oldest are forgotten."""
SLACK = 64
"""Least number of outdated lines before the file is rewritten."""


@record
class Repeatable:
    """The identity of a command that has `id` and `time`."""

    id: str
    sent: float
    """The `time` of the command: seconds since 1970."""
    digest: str
    """Digest of verb and body."""

    def repeats(self, earlier: Repeatable | None) -> bool:
        """Whether it is *earlier* again.

        Raises:
            RequestError: it is another command with the same id.
        """
        if earlier is None or self.id != earlier.id:
            return False
        if self.digest != earlier.digest:
            raise RequestError(
                f"id: {self.id} was given to another command within the last "
                f"{MAX_AGE_SECONDS:.0f} s; use a new one"
            )
        return True


@record
class _Done:
    """A command that was carried out."""

    command: Repeatable
    reply: dict[str, Any]
    at: float
    """When it was sent, monotonic seconds: a clock that jumps ahead and back makes nothing old."""


class CommandMemory:
    """The commands of the last minute and their replies. For use by one thread."""

    def __init__(
        self,
        path: Path,
        *,
        credible: Callable[[], bool] = lambda: True,
        may_be_behind: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the commands that the last run remembered.

        Until the clock is *credible*, the age of a command is unknown: none is refused, and none
        is forgotten until there are MOST. While it *may_be_behind*, only one that is too old by it
        is refused.
        """
        self._path = path
        self._credible = credible
        self._may_be_behind = may_be_behind
        self._clock = clock
        self._monotonic = monotonic
        self._changed: OrderedDict[str, _Done] = OrderedDict()
        self._others: OrderedDict[str, _Done] = OrderedDict()
        self._unidentified: deque[float] = deque()
        """When those without `id` or `time` came in the last MAX_AGE_SECONDS, monotonic seconds."""
        self._lines = 0
        self._whole = True
        """Whether the file may be replaced: all that it holds has been read."""
        self._failing = Latch()
        self._read()

    def identify(
        self, verb: str, body: Mapping[str, Any], request: str | None
    ) -> Repeatable | None:
        """Check the `time` of a command; return its identity, or None if it may be repeated.

        Raises:
            RequestError: its time is invalid, or too far in the past or future.
        """
        written = body.get("time")
        if written is None:
            return None
        try:
            sent = payloads.seconds_of(written)
        except (TypeError, ValueError, OverflowError):
            raise RequestError(f"time: {shown(written)} is not ISO 8601") from None
        if self._credible():
            age = self._clock() - sent
            if age > MAX_AGE_SECONDS:
                raise RequestError(
                    f"expired: sent {age:.0f} s ago, taken for {MAX_AGE_SECONDS:.0f} s"
                )
            if -age > MAX_AGE_SECONDS and not self._may_be_behind():
                raise RequestError(
                    f"time: {shown(written)} is {-age:.0f} s ahead of this device's clock; "
                    "set the sender's clock, and give the time in UTC with Z"
                )
        if request is None:
            return None
        content = json.dumps([verb, body], sort_keys=True).encode()
        return Repeatable(request, sent, hashlib.sha256(content).hexdigest()[:32])

    def find(self, asked: Repeatable) -> dict[str, Any] | None:
        """Return the reply to a command that was carried out before, or None if it was not.

        Raises:
            RequestError: another command has its id, or there are too many to remember.
        """
        self._forget_old()
        known = self._changed.get(asked.id) or self._others.get(asked.id)
        if known is not None and asked.repeats(known.command):
            return known.reply
        if len(self._changed) >= MOST:
            raise _too_many()
        return None

    def count_unidentified(self) -> None:
        """Count a command that changes something and may be repeated.

        Raises:
            RequestError: there are too many.
        """
        now = time.monotonic()
        while self._unidentified and self._unidentified[0] < now - MAX_AGE_SECONDS:
            self._unidentified.popleft()
        if len(self._unidentified) >= MOST:
            raise _too_many()
        self._unidentified.append(now)

    def add(self, done: Repeatable, reply: dict[str, Any], *, durable: bool) -> None:
        """Remember a reply; *durable*: over restarts, if the disk can be written."""
        if not durable:
            self._others[done.id] = self._done(done, reply)
            while len(self._others) > MOST_UNCHANGING:
                self._others.popitem(last=False)
            return
        self._changed[done.id] = self._done(done, reply)
        try:
            self._write(done, reply)
        except OSError as problem:
            if self._failing.begins(True):
                log.warning(
                    "%s: cannot be written: %s; a command that is repeated after a restart would "
                    "be carried out again",
                    self._path,
                    problem.strerror or problem,
                )
        else:
            self._failing.begins(False)

    def _forget_old(self) -> None:
        """Forget commands that would be refused as expired."""
        if not self._credible() or self._may_be_behind():
            while len(self._changed) >= MOST:
                self._changed.popitem(last=False)
            return
        since = self._monotonic() - MAX_AGE_SECONDS
        for replies in (self._changed, self._others):
            for request in [request for request, done in replies.items() if done.at < since]:
                del replies[request]

    def _done(self, command: Repeatable, reply: dict[str, Any]) -> _Done:
        ahead = min(command.sent - self._clock(), MAX_AGE_SECONDS)  # the clock may be unset
        return _Done(command, reply, self._monotonic() + ahead)

    def _write(self, done: Repeatable, reply: Mapping[str, Any]) -> None:
        full = self._lines == 0 or self._lines >= 2 * len(self._changed) + SLACK
        if full and self._whole:
            content = b"".join(_line(done.command, done.reply) for done in self._changed.values())
            replace_file(self._path, content)
            self._lines = len(self._changed)
            return
        append_lines(self._path, _line(done, reply))
        self._lines += 1

    def _read(self) -> None:
        try:
            lines = read_plain_bytes(self._path).splitlines()
        except FileNotFoundError:
            return
        except NoPlainFileError as problem:
            log.warning("%s: %s%s", self._path, problem.strerror, put_aside(self._path))
            return
        except OSError as problem:
            log.warning("%s: cannot be read: %s", self._path, problem.strerror or problem)
            self._whole = False
            return
        self._lines = len(lines)
        for line in lines:
            try:
                request, sent, digest, reply = read_own(line)
                done = Repeatable(str(request), float(sent), str(digest))
                self._changed[done.id] = self._done(done, {**reply, "id": done.id})
            except DAMAGED:
                continue  # the last line, cut off by a power cut


def _line(done: Repeatable, reply: Mapping[str, Any]) -> bytes:
    # The line break first: it ends a line that a power cut has left unfinished.
    return b"\n" + json.dumps([done.id, done.sent, done.digest, reply]).encode()


def _too_many() -> RequestError:
    return RequestError(
        f"more than {MOST} commands that change something within {MAX_AGE_SECONDS:.0f} s; "
        "ask again later"
    )
