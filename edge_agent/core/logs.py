"""Log handlers: to the journal with fields, or to stderr as lines; repeated lines are held back.

A broken camera may cause the same line for days, and a flood of garbage thousands of similar lines:
`RateLimit` holds them back and logs their number. So code that logs need not remember what it has
logged; if the text of a lasting condition changes, it uses a `Latch`.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from .text import one_line

SOCKET = Path("/run/systemd/journal/socket")
"""Where journald accepts entries with fields; systemd, docs/JOURNAL_NATIVE_PROTOCOL.md."""
EVERY_SECONDS = 60.0
REMEMBERED = 256
"""Number of different lines that are remembered; the oldest are forgotten first."""
OF_A_KIND = 20
"""Different lines per minute from one place in the code."""
ALIKE = 3
"""Lines per minute from one place that differ only in what they quote."""
_QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)"""
_SAME = "same"
ANSWER: Mapping[str, bool] = {"answer": True}
"""The `extra` of a line that answers a request: such a line is never held back."""
MAX_MESSAGE = 16 * 1024
"""Most characters of one message; a datagram must fit in the socket's buffer."""


def set_up(*, verbose: bool, steady: bool) -> None:
    """Install the process's log handler."""
    handler = handler_for(sys.stderr, os.environ)
    if steady:
        handler = RateLimit(handler)
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level, handlers=[handler], force=True)


def handler_for(stream: TextIO, environ: Mapping[str, str]) -> logging.Handler:
    """Return a handler for the journal if *stream* leads there, or else for lines on *stream*."""
    if _is_journal(stream, environ):
        return Journal(stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    return handler


class Formatter(logging.Formatter):
    """One line per record, whatever the message quotes, with a traceback indented below it.

    So no outside input can pass for a separate line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {one_line(line)}" for line in lines)


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether *stream* is the connection to the journal that systemd has opened.

    The variable alone is no proof: it is inherited even if stderr is redirected (systemd.exec,
    "$JOURNAL_STREAM": device and inode of the stream, in decimal).
    """
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    if not (device.isdecimal() and inode.isdecimal()):
        return False
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (status.st_dev, status.st_ino) == (int(device), int(inode))


def priority_of(record: logging.LogRecord) -> int:
    """Return syslog's number for a record's level: 3 error, 4 warning, 6 info, 7 debug."""
    for level, priority in ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6)):
        if record.levelno >= level:
            return priority
    return 7


class Journal(logging.Handler):
    """Entries with fields for journald.

    In addition to MESSAGE and PRIORITY: LOGGER, THREAD_NAME, CODE_FILE, CODE_LINE, CODE_FUNC. If
    journald does not accept them, lines that begin with their priority (sd-daemon(3)) go to
    stderr, which leads to the same journal.
    """

    def __init__(self, stream: TextIO, place: Path = SOCKET) -> None:
        super().__init__()
        self.setFormatter(Formatter())
        # Not needed to write lines.
        import socket

        self._stream = stream
        self._place = str(place)
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # Do not wait for a journal that lags.
        self._channel.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one entry."""
        try:
            message = self.format(record)
            if len(message) > MAX_MESSAGE:
                more = len(message) - MAX_MESSAGE
                message = f"{message[:MAX_MESSAGE]}… ({more} characters more)"
            try:
                self._channel.sendto(encode_entry(_fields(record, message)), self._place)
            except OSError:
                priority = priority_of(record)
                lines = [f"<{priority}>{line}\n" for line in message.split("\n")]
                self._stream.write("".join(lines))
                self._stream.flush()
        except Exception:  # noqa: BLE001 - logging's own way: printed on stderr, the program goes on
            self.handleError(record)

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()
        super().close()


def _fields(record: logging.LogRecord, message: str) -> dict[str, str]:
    return {
        "MESSAGE": message,
        "PRIORITY": str(priority_of(record)),
        "SYSLOG_IDENTIFIER": "edge-agent",
        "LOGGER": record.name,
        "THREAD_NAME": str(record.threadName),
        "CODE_FILE": record.pathname,
        "CODE_LINE": str(record.lineno),
        "CODE_FUNC": record.funcName or "",
    }


def encode_entry(fields: Mapping[str, str]) -> bytes:
    r"""Encode an entry as journald reads it.

    A value without a line break is written as "NAME=value\n"; any other as "NAME\n", its length in
    8 bytes little-endian, its bytes, "\n".
    """
    parts: list[bytes] = []
    for name, value in fields.items():
        data = value.encode("utf-8", "surrogateescape")
        if b"\n" in data:
            parts.append(f"{name}\n".encode() + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            parts.append(f"{name}=".encode() + data + b"\n")
    return b"".join(parts)


class Latch:
    """Passes only the first of a series: a condition that is checked often is logged once.

    For lines whose text changes while the condition lasts, and for lines where creating a log
    record each time costs too much; `RateLimit` handles identical repeated lines.
    """

    def __init__(self) -> None:
        self._holds = False

    def begins(self, holds: bool) -> bool:
        """Return whether the condition holds now but did not at the previous call."""
        begins = holds and not self._holds
        self._holds = holds
        return begins


class _Held:
    """Lines of which some were held back: identical ones, similar ones, or all of one place."""

    def __init__(self, since: float, record: logging.LogRecord) -> None:
        self.since = since
        """When the first of them was written."""
        self.record = record
        """The latest one."""
        self.said = 0
        self.held = 0


class RateLimit(logging.Handler):
    """Writes the same line once a minute, and few of one kind, with the number of those held back.

    Lines are of one kind if they come from the same place in the code: in a flood of garbage each
    line is slightly different. Even fewer are written of those that differ only in what they
    quote, so that another fault at that place is not held back with them.
    """

    def __init__(self, to: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._to = to
        self._clock = clock
        self._held: OrderedDict[tuple[Any, ...], _Held] = OrderedDict()
        """The lines by the part that they have in common, oldest first."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or hold it back and count it."""
        now, message = self._clock(), record.getMessage()
        self._let_go(now)
        if getattr(record, "answer", False):
            self._to.handle(record)
            return
        place = (record.pathname, record.lineno)
        counted = {}
        for key, most in (
            ((_SAME, record.levelno, message), 1),
            ((*place, re.sub(_QUOTED, "''", message)), ALIKE),
            (place, OF_A_KIND),
        ):
            counted[key] = held = self._held.get(key) or _Held(now, record)
            held.record = record
            if held.said >= most:
                held.held += 1
                return
        for held in counted.values():
            held.said += 1
        self._held |= counted
        while len(self._held) > len(counted) * REMEMBERED:
            self._say(*self._held.popitem(last=False))
        self._to.handle(record)

    def flush(self) -> None:
        """Write how many lines were held back when the program ends."""
        for key, held in self._held.items():
            self._say(key, held)
        self._to.flush()

    def close(self) -> None:
        """Write how many lines were held back, and close."""
        self.flush()
        self._to.close()
        super().close()

    def _let_go(self, now: float) -> None:
        """Write the counts of the last minute, and forget lines not seen for a minute."""
        while self._held:
            key, oldest = next(iter(self._held.items()))
            if now - oldest.since < EVERY_SECONDS:
                break
            del self._held[key]
            if oldest.held and key[0] == _SAME:
                again = self._held[key] = _Held(now, oldest.record)
                again.said = 1
            self._say(key, oldest)

    def _say(self, key: tuple[Any, ...], held: _Held) -> None:
        if not held.held:
            return
        message = held.record.getMessage()
        if key[0] == _SAME:
            at = time.strftime("%H:%M:%S", time.localtime(held.record.created))
            times = f"once, at {at}" if held.held == 1 else f"{held.held} times, last at {at}"
            text = f"{message} (again, {times})"
        else:
            lines = "1 more line" if held.held == 1 else f"{held.held} more lines"
            text = f"{lines} of the kind: {message}"
        held.held = 0
        # With the current time, like the lines around it: a log is read in order of time.
        said = {**held.record.__dict__, "msg": text, "args": (), "created": time.time()}
        self._to.handle(logging.makeLogRecord(said))
