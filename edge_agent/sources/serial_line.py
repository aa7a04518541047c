"""Readings that a device sends as text lines over a serial port: CSV, labeled, or JSON."""

from __future__ import annotations

import errno
import os
import re
import termios
import time
from contextlib import suppress
from functools import partial
from select import select
from typing import TYPE_CHECKING

import numpy as np

from ..core.containment import words
from ..core.errors import SampleError, SourceError, SourceInUseError
from .continuity import Rows
from .live_signal import LiveSignal, share
from .source import SourceContext
from .spec import SourceSpec

if TYPE_CHECKING:
    from serial import Serial

MAX_LINE = 64 * 1024
"""Most bytes of a line; a longer one is not a reading."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LABELED = re.compile(r"([^\W\d][\w /%°.-]*+)\s*[:=]\s*([+-]?[0-9.][0-9.eE+-]*)")
"""`t:3.2` or `h = 1.0`, like the format of Arduino's serial plotter."""
_NAME = re.compile(r"[^\W\d][^\s:=]*")
"""A name in a line after numbers: no number of another script, and no words of a message."""
HEADERS = 10
"""This many lines in a row without numbers are not channel names."""
UNREAD_SECONDS = 5.0
"""Seconds of bytes without a reading after which that is reported."""
_LINE_END = re.compile(rb"\r\n|\r(?!\n)|\n")
_LARGEST = float(np.finfo(np.float32).max)
_NO_PORT = frozenset({errno.ENOTTY, errno.EISDIR})
"""Errors from setting up anything but a serial port: a folder, a plain file, /dev/zero."""


class SerialLines:
    """The text lines of one port."""

    _other: tuple[str, ...] = ()
    """Other names than those of the channels, which came after numbers."""

    def __init__(self, spec: SourceSpec) -> None:
        """Open the port."""
        from serial import Serial, SerialException

        self._name = spec.redacted
        self._separator: str = spec.options["separator"]
        try:
            self._port: Serial = Serial(
                str(spec.local), spec.options["baud"], timeout=0, exclusive=True
            )
        except (SerialException, OSError, ValueError) as problem:
            if getattr(problem, "errno", None) in {errno.EAGAIN, errno.EBUSY}:
                raise SourceInUseError(
                    f"{self._name}: another program, or the agent, has it open"
                ) from None
            raise SourceError(f"{self._name}: {_reason(problem)}") from None
        self._errors = (SerialException, OSError, TypeError)
        self._rest = b""
        self._first = True
        self._too_long = False
        self._columns: tuple[str, ...] = ()
        self._headers = 0
        """Number of lines in a row without numbers."""
        self._seen = False
        """Whether numbers have arrived."""
        self._width = 0
        """How many were in the last line."""
        self._missing = False
        """Whether rows are missing before the next one."""
        self._unread: float | None = None
        """When the first bytes arrived that have given no reading so far."""

    def read(self, timeout: float) -> list[Rows | SampleError]:
        try:
            # Not with the port's own timeout: changing it reconfigures the whole port.
            ready, _, _ = select([self._port.fileno()], [], [], timeout)
            data = self._port.read(max(1, self._port.in_waiting)) if ready else b""
        except self._errors as problem:
            raise SourceError(f"{self._name}: is lost: {_reason(problem)}") from None
        return self.take(data, time.time_ns(), time.monotonic()) if data else []

    def take(self, data: bytes, time_ns: int, since: float) -> list[Rows | SampleError]:
        """Return the rows of the lines that *data* completes."""
        rest, headers = self._rest, self._headers
        *lines, self._rest = _LINE_END.split(self._rest + data)
        found: list[Rows | SampleError] = []
        rows: list[list[float]] = []
        columns, gap = self._columns, False

        def flush() -> None:
            if rows:
                made = np.array(rows, np.float64)
                why = partial(_flaw, columns) if np.isnan(made).any() else None
                found.append(Rows(made, time_ns, since, columns, gap=gap, flaw=why))
                rows.clear()

        for line in lines:
            if self._too_long:
                self._too_long = False
                continue
            if line.lstrip(b" \t\0")[:1] in {b"{", b"["}:
                flush()
                found += self._object(line, time_ns, since)
                continue
            try:
                row = self._parse(line)
            except SampleError as problem:
                flush()
                found.append(problem)
                continue
            if row is None:
                continue
            if self._missing or columns != self._columns or (rows and len(rows[-1]) != len(row)):
                flush()
            if not rows:
                columns, gap, self._missing = self._columns, self._missing, False
            rows.append(row)
        flush()
        if len(self._rest) > MAX_LINE:
            if not self._too_long:
                found.append(SampleError(f"a line of more than {MAX_LINE} bytes, expected numbers"))
            self._rest, self._too_long = b"", True
        if found:
            self._unread = None
        elif (rest and not lines) or (self._headers > headers and not self._seen):
            found += self._say_unread(self._rest or [rest, *lines][-1], since)
        return found

    def _say_unread(self, text: bytes, since: float) -> list[SampleError]:
        """Report after some seconds that bytes arrive without readings, even on a slow line."""
        self._unread = since if self._unread is None else self._unread
        if since - self._unread < UNREAD_SECONDS:
            return []
        self._unread = None
        shown = text.decode("utf-8", "replace")[:60]
        return [
            SampleError(f"expected lines of numbers, found {shown!r}; check ?baud= and ?separator=")
        ]

    def _object(self, line: bytes, time_ns: int, since: float) -> list[Rows | SampleError]:
        """Return the rows of a JSON line, each with its channel names."""
        from .mqtt_topic import Payload

        first, self._first = self._first, False
        if first:
            return []
        found = Payload().rows(line.strip(b" \t\0"), time_ns, since, gap=self._missing)
        if isinstance(found, Rows):
            self._missing = False
        return [found]

    def _parse(self, line: bytes) -> list[float] | None:
        """Return the numbers in a line; None if it is empty, a header, or possibly incomplete."""
        text = line.decode("utf-8", "replace").strip("\r\0 \t")
        first, self._first = self._first, False
        if not text or text.startswith("#"):
            return None
        cells = [
            cell.strip() for cell in text.split(None if self._separator == " " else self._separator)
        ]
        labeled = [_LABELED.fullmatch(cell) for cell in cells]
        names = tuple(found[1].rstrip() for found in labeled if found)
        if len(names) == len(cells):
            if first:
                return None
            if self._seen and names != self._columns:
                raise SampleError(f"expected {', '.join(self._columns)}, found {text[:60]!r}")
            self._columns = names
            cells = [found[2] for found in labeled if found]
        numbers = [_number(cell) for cell in cells]
        good = [number for number in numbers if number is not None]
        if good and self._other:
            if len(self._other) == len(cells):  # another device, or another sensor behind it
                self._columns, self._width, self._missing = self._other, len(cells), True
            self._other = ()
        if len(good) == len(cells):
            if first:
                return None  # the port may have been opened in the middle of this line
            if self._columns and len(cells) != len(self._columns):
                if self._seen:
                    raise SampleError(f"expected {len(self._columns)} numbers, found {text[:60]!r}")
                self._columns = ()  # it was not a header, but a startup message of the device
            self._seen, self._headers, self._width = True, 0, len(good)
            return good
        if self._seen and good and len(cells) == self._width:
            return [np.nan if number is None else number for number in numbers]
        header = not good and not any(_looks_wrong(cell) for cell in cells)
        self._headers += 1
        if header and self._seen and self._may_name(cells) and self._headers <= HEADERS:
            self._other = tuple(cells)
            return None
        if not header or (self._seen and tuple(cells) != self._columns) or self._headers > HEADERS:
            if first:
                return None
            raise SampleError(f"expected numbers, found {text[:60]!r}{_other_separator(cells)}")
        self._missing = self._seen  # the device has restarted
        self._columns, self._other = tuple(cells), ()
        return None

    def _may_name(self, cells: list[str]) -> bool:
        """Whether a line after numbers may name other channels than those of before."""
        if len(cells) < 2 or tuple(cells) == self._columns:
            return False
        if self._separator == " " and not {*cells} & {*self._columns}:
            return False  # it may be a sentence
        return all(cell in self._columns or _NAME.fullmatch(cell) for cell in cells)

    def close(self) -> None:
        with suppress(OSError):
            self._port.close()


def _flaw(columns: tuple[str, ...], row: int, column: int) -> SampleError:
    del row
    name = f" ({columns[column]})" if column < len(columns) else ""
    return SampleError(f"expected a number at place {column}{name} of each line")


def _number(cell: str) -> float | None:
    if _NUMBER.fullmatch(cell) is None:
        return None
    value = float(cell)
    return value if -_LARGEST <= value <= _LARGEST else None


def _other_separator(cells: list[str]) -> str:
    """Return a fix if the only cell of a line is several numbers with another separator."""
    for name, separator in (("space", None), (";", ";"), ("|", "|"), (",", ",")):
        parts = cells[0].split(separator) if len(cells) == 1 else []
        if len(parts) > 1 and all(_number(part.strip()) is not None for part in parts):
            return f"; write ?separator={name}"
    return ""


def _looks_wrong(cell: str) -> bool:
    """Whether a cell cannot be a channel name."""
    return not cell or not cell.isprintable() or cell.lower() in {"nan", "inf", "-inf"}


def _reason(problem: Exception) -> str:
    """Return why a port is unusable, in the system's words without pyserial's."""
    number = getattr(problem, "errno", None)
    cause = problem.__context__
    if number is None and isinstance(cause, termios.error):
        number = cause.args[0]
    if number in _NO_PORT:
        return "is not a serial port"
    if number is not None:
        return os.strerror(number)
    return words(problem) or type(problem).__name__


def open_source(spec: SourceSpec, context: SourceContext) -> LiveSignal:
    """Open a serial port."""
    return share(spec, context, lambda: SerialLines(spec))
