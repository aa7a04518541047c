"""Rows of a text file of numbers: CSV, also with other separators than a comma."""

from __future__ import annotations

import csv
import io
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np

from ..core.errors import SampleError, SourceError
from ..core.text import naming
from ..core.types import Array
from .csv_block import CHARACTERS, parse_block

# A longer line is no CSV, and would have to be held in memory whole.
MAX_LINE = 1024 * 1024
# "1,5", but not "1,500.0".
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*", re.ASCII)
_LARGEST = float(np.finfo(np.float32).max)

Record = tuple[int, list[str]]
"""Number of a line, and its cells; none: it is the last of empty lines between two rows."""


class CsvRows:
    """The rows of one CSV file.

    The first line is a header when it has a text where the second has a number, or no number at
    all. A column that does not begin with a number (a time stamp, remarks) is text: its values are
    NaN, and the others can be used. A row of empty cells, or empty lines between two rows, are a
    reading that is missing: the next row does not follow on the one before. Empty lines before the
    first row and behind the last one are nothing. Lines that begin with "#" are comments; the last
    one before the first row is the header where there is no other and it has as many cells.

    A number is written in ASCII digits with a decimal point. A decimal comma is read as one where
    the separator is given and is not a comma itself; elsewhere it could part two numbers.
    """

    columns: tuple[str, ...] = ()
    rate_hz: float | None = None

    def __init__(self, path: Path, name: str, separator: str | None = None) -> None:
        """Open the file and read its first lines.

        Args:
            path: of the file.
            name: what errors call it.
            separator: of the cells of a line; None: found out.

        Raises:
            SourceError: it cannot be read, or holds no rows of numbers.

        """
        self._name = name
        self._given = separator
        self._decimal_comma = separator not in {None, ","}
        self._separator = separator or ""
        self._comment = ""
        """The last comment so far."""
        self._line = 0
        self._bad: SampleError | None = None
        self._ahead: deque[Record] = deque()
        """Records that were read to find out what the file holds."""
        self._records: Iterator[Record] = iter(())
        self._between = False
        """Whether `_records` holds no line back."""
        self._before = ""
        """The line before, where it was read by itself."""
        self._block: Array = np.empty((0, 0), np.float32)
        """Rows that were read at once and are still to be handed on."""
        self._refused: io.StringIO | None = None
        """Lines that could not be read at once, to be read one by one."""
        self._numeric: list[bool] = []
        try:
            with path.open("rb") as file:
                wide = file.read(2) in {BOM_UTF16_LE, BOM_UTF16_BE}
            # Names may be in another encoding; numbers never suffer from it, but in UTF-16 (the
            # Unicode text of spreadsheets) each is two bytes wide.
            encoding = "utf-16" if wide else "utf-8-sig"
            self._file = path.open(encoding=encoding, errors="replace", newline="")
        except OSError as problem:
            raise SourceError(f"{naming(name, path)}: {problem.strerror}") from None
        try:
            self._start()
        except SourceError:
            self._file.close()
            raise

    def read(self, limit: int) -> Array | None:
        """Read up to *limit* rows, ending before one that cannot be used."""
        if self._bad is not None:
            bad, self._bad = self._bad, None
            raise bad
        pieces: list[Array] = []
        rows: list[list[float]] = []
        left = limit
        while left:
            if not len(self._block) and self._may_read_block:
                self._read_block()
            if len(self._block):
                if rows:
                    pieces.append(np.array(rows, np.float32))
                    rows = []
                piece, self._block = self._block[:left], self._block[left:]
                pieces.append(piece)
                left -= len(piece)
                continue
            record = self._next_record()
            if record is None:
                break
            try:
                rows.append(self._numbers(record))
            except SampleError as problem:
                if not rows and not pieces:
                    raise
                self._bad = problem
                break
            left -= 1
        if rows:
            pieces.append(np.array(rows, np.float32))
        if len(pieces) > 1:
            return np.concatenate(pieces)
        return pieces[0] if pieces else None

    def rewind(self) -> None:
        """Go back to the first row."""
        self._start()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def _may_read_block(self) -> bool:
        """Whether the file has been read up to the end of a row, and no further.

        Several spaces may separate two cells: such lines are always read one by one.
        """
        unread = self._ahead or self._refused is not None
        return self._between and not unread and self._separator != " "

    def _read_block(self) -> None:
        """Read many lines at once, or keep them for `_records`, which reads one by one."""
        try:
            text = self._file.read(CHARACTERS)
            if not text.endswith("\n"):
                text += self._file.readline(MAX_LINE)
        except OSError as problem:
            raise self._unreadable(problem) from None
        rows = parse_block(text, self._separator, self._numeric)
        if rows is None:
            self._refused = io.StringIO(text, newline="")
            return
        self._block = rows
        self._line += len(rows)
        self._before = ""

    def _next_record(self) -> Record | None:
        if self._ahead:
            return self._ahead.popleft()
        self._between = False
        record = next(self._records, None)
        # Of empty lines, the row behind them has been read already.
        self._between = record is not None and bool(record[1])
        return record

    def _start(self) -> None:
        """Read up to the first row: separator, header, which columns are numbers."""
        self._bad = None
        self._block, self._refused = self._block[:0], None
        self._separator = self._given or self._find_separator()
        self._file.seek(0)
        self._comment = ""
        records = self._read_records()
        first = next((record for record in records if _says(record[1])), None)
        if first is None:
            raise SourceError(f"{self._name}: is empty, expected rows of numbers")
        comment = self._comment
        gaps: list[Record] = []
        second = None
        for record in records:
            if _says(record[1]):
                second = record
                break
            gaps.append(record)
        header = self._is_header(first[1], second[1] if second else [])
        if header and second is None:
            raise SourceError(f"{self._name}: has a header and no rows of numbers")
        names = first[1] if header else self._names_in(comment, len(first[1]))
        self.columns = tuple(cell.strip() for cell in names)
        # An empty line below a header parts it from the rows.
        ahead = [gap for gap in gaps if gap[1]] if header else [first, *gaps]
        ahead += [second] if second is not None else []
        line, cells = second if header and second is not None else first
        self._numeric = [self._like_number(cell) for cell in cells]
        self._all_numeric = all(self._numeric)
        if not any(self._numeric):
            raise SourceError(
                f"{self._name}: line {line} holds no number, expected rows of numbers"
                + _other_separator(cells, self._given)
            )
        if header and len(cells) != len(self.columns):
            raise SourceError(
                f"{self._name}: line {line} has {len(cells)} cells, but the header has "
                f"{len(self.columns)}"
            )
        if not self._decimal_comma and any(map(_DECIMAL_COMMA.fullmatch, cells)):
            raise SourceError(self._blame(line, cells))
        self._ahead, self._records, self._between = deque(ahead), records, True

    def _find_separator(self) -> str:
        """Return the separator that makes the most numbers of the second line with anything in it.

        Where two are as good, a comma may belong to the numbers.
        """
        self._file.seek(0)
        lines = list(islice((line for line in self._lines() if line.strip()), 2))

        def fit(separator: str) -> tuple[float, bool]:
            try:
                cells = next(csv.reader(lines[-1:], delimiter=separator), [])
            except csv.Error:
                cells = []  # said when it is read
            share = sum(map(self._like_number, cells)) / max(len(cells), 1)
            return share, any(separator in line for line in lines)

        return max((";", "\t", ","), key=fit)

    def _names_in(self, comment: str, count: int) -> list[str]:
        """Return the names of *count* columns where a comment above the rows gives them."""
        rows = csv.reader([comment], delimiter=self._separator, skipinitialspace=True)
        cells = next(rows, [])
        named = len(cells) == count and not any(map(self._like_number, cells))
        return cells if named else []

    def _is_header(self, first: list[str], second: list[str]) -> bool:
        if not any(map(self._like_number, first)):
            return True
        return any(
            self._like_number(below) and not self._like_number(above)
            for above, below in zip(first, second, strict=False)
        )

    def _like_number(self, cell: str) -> bool:
        """Whether a cell is meant to be a number; it may be written wrong."""
        if _DECIMAL_COMMA.fullmatch(cell):
            return True
        try:
            return -_LARGEST <= float(cell) <= _LARGEST
        except ValueError:
            return False

    def _read_records(self) -> Iterator[Record]:
        lines = self._lines()
        spaces = self._separator == " "
        if spaces:
            lines = (line.rstrip() for line in lines)
        first = next((line for line in lines if line.strip()), "")
        reader = csv.reader(
            chain((first,), lines), delimiter=self._separator, skipinitialspace=spaces
        )
        empty: Record | None = None
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return  # empty lines at the end are none between two rows
            except csv.Error as problem:
                raise SourceError(f"{self._name}: line {self._line}: {problem}") from None
            if len(cells) > 1 or _says(cells):
                line = self._line
                if empty is not None:
                    yield empty
                    empty = None
                yield line, cells
            else:
                empty = (self._line, [])

    def _lines(self) -> Iterator[str]:
        self._line = 0
        self._before = ""
        while True:
            line = self._read_line()
            if not line:
                return
            self._line += 1
            if len(line) == MAX_LINE:
                raise SourceError(
                    f"{self._name}: line {self._line} is longer than {MAX_LINE} characters, not CSV"
                )
            # "\r\r\n" is one end of a line, as programs on Windows write it by mistake.
            rest = line == "\r\n" and self._before.endswith("\r")
            self._before = line
            if line.startswith("#"):
                self._comment = line.lstrip("#").strip()
            elif not rest:
                yield line

    def _read_line(self) -> str:
        """Return the next line, first of those that were not read at once; "" at the end."""
        if self._refused is not None:
            line = self._refused.readline(MAX_LINE)
            if line:
                return line
            self._refused = None
        try:
            return self._file.readline(MAX_LINE)
        except OSError as problem:
            raise self._unreadable(problem) from None

    def _unreadable(self, problem: OSError) -> SourceError:
        return SourceError(f"{self._name}: cannot be read: {problem.strerror}")

    def _numbers(self, record: Record) -> list[float]:
        """Make numbers of a row's cells.

        Raises:
            SampleError: one is not a number, or there are too few or many.

        """
        line, cells = record
        if not cells:
            raise SampleError(f"{self._name}: line {line} is empty, expected a row of numbers")
        if len(cells) != len(self._numeric):
            raise SampleError(
                f"{self._name}: line {line}: expected {len(self._numeric)} cells, "
                f"found {len(cells)}"
            )
        numeric = cells
        if not self._all_numeric:
            numeric = [cell for cell, wanted in zip(cells, self._numeric, strict=True) if wanted]
        if self._decimal_comma:
            numeric = [_with_point(cell) for cell in numeric]
        try:
            row = [float(cell) for cell in numeric]
        except ValueError:
            raise SampleError(self._blame(line, cells)) from None
        # Python also reads digits of other scripts, and "_" between digits.
        text = "".join(numeric)
        odd = "_" in text or not text.isascii()
        # Also false for NaN.
        if odd or not all(-_LARGEST <= value <= _LARGEST for value in row):
            raise SampleError(self._blame(line, cells))
        if not self._all_numeric:
            values = iter(row)
            row = [next(values) if wanted else float("nan") for wanted in self._numeric]
        return row

    def _blame(self, line: int, cells: list[str]) -> str:
        """Name the first cell that is not a finite number."""
        for index, (cell, numeric) in enumerate(zip(cells, self._numeric, strict=True)):
            if numeric and _number(_with_point(cell) if self._decimal_comma else cell) is None:
                column = repr(self.columns[index]) if self.columns else str(index)
                found = repr(cell[:40]) if cell.strip() else "an empty cell"
                mend = ""
                if _DECIMAL_COMMA.fullmatch(cell):
                    mend = f", a decimal comma; {self._comma_mend()}"
                elif self._like_number(cell):
                    mend = ", which is not written in the digits 0 to 9 alone"
                return (
                    f"{self._name}: line {line}, column {column}: expected a number, "
                    f"found {found}{mend}"
                )
        raise AssertionError("a row was refused that has no bad cell")

    def _comma_mend(self) -> str:
        if self._separator == ",":
            return "write a decimal point"
        name = "tab" if self._separator == "\t" else self._separator
        return f"to have it read as one, name the separator: ?separator={name}"


def _says(cells: list[str]) -> bool:
    """Whether a row has anything in it."""
    return any(cell.strip() for cell in cells)


def _number(cell: str) -> float | None:
    """Read a finite number that float32 can hold, in ASCII digits."""
    if "_" in cell or not cell.isascii():
        return None
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if -_LARGEST <= value <= _LARGEST else None


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell


def _other_separator(cells: list[str], given: str | None) -> str:
    """Return the mend where the only cell of a line is several numbers, separated otherwise."""
    if given is not None and len(cells) == 1:
        return f"; ?separator={given} parts nothing in it: without it the separator is found out"
    for name, separator in (("space", None), ("|", "|")):
        parts = cells[0].split(separator) if len(cells) == 1 else []
        if len(parts) > 1 and any(_number(part) is not None for part in parts):
            return f"; if this is what separates them, write ?separator={name}"
    return ""
