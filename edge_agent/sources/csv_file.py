"""Rows of a text file with numbers: CSV, with commas or other separators."""

from __future__ import annotations

import csv
import io
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping
from itertools import dropwhile, islice
from pathlib import Path
from typing import TextIO

import numpy as np

from ..core.errors import ModelError, SampleError, SourceError
from ..core.names import names_of
from ..core.text import naming
from ..core.types import Array

# A longer line is not CSV, and would have to be in memory as a whole.
MAX_LINE = 1024 * 1024
AHEAD = 100
"""Number of rows that decide which columns are text."""
# "1,5", but not "1,500.0".
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*", re.ASCII)
# A first line that states the separator for spreadsheets.
_SEPARATOR_LINE = re.compile(r"(?i)sep=.\r?\n?")
_LARGEST = float(np.finfo(np.float32).max)
_NAN = float("nan")
BLOCK = 64 * 1024
"""Characters read at once, except for the rest of the last line."""
# Everything allowed in the cells of a block, besides separators and line ends. Not included are
# quotes, comments, digits with "_", and characters that only loadtxt treats as a space.
_USUAL = {*b"\t", *range(ord(" "), 127)} - {*b'"#_'}

Record = tuple[int, list[str]]
"""Line number and cells; no cells: the last of the empty lines between two rows."""


class CsvRows:
    """The rows of one CSV file.

    The first line is a header if it has text where the second has a number, or has no numbers.
    Lines that begin with "#" are comments; the last one before the first row is the header if
    there is no other and it has the same number of cells. Empty lines before the first row and
    after the last one are ignored; between rows they count as a row without numbers.

    A number has ASCII digits and a decimal point. A decimal comma is accepted if the separator is
    given and is not a comma; otherwise it could separate two numbers. Anything else is NaN, which
    `flaw` explains: it matters only to readers of its column.
    """

    columns: tuple[str, ...] = ()
    rate_hz: float | None = None
    trouble: str | None = None

    def __init__(self, path: Path, name: str, separator: str | None = None) -> None:
        """Open the file and read its first lines.

        Args:
            path: the file.
            name: its name for errors.
            separator: the separator of cells; None: it is detected.

        Raises:
            SourceError: the file cannot be read, or has no rows of numbers.
        """
        self._name = name
        self._given = separator
        self._file = _open(path, name)
        self._latest: list[Record] = []
        self._ahead: list[Record] = []
        """Rows that were read to detect the file's format, and are still to be returned."""
        self._block: Array = np.empty((0, 0))
        """Rows that were read as a block, and are still to be returned."""
        self._refused = io.StringIO()
        """Lines that were read as a block, but must be parsed one by one."""
        self._records: Iterator[Record] = iter(())
        self._may_read_block = False
        """Whether the file has been read exactly to the end of a row."""
        self._separator = separator or ""
        try:
            self._start()
        except SourceError:
            self._file.close()
            raise

    def read(self, limit: int) -> Array | None:
        """Read up to *limit* rows (n, columns) float64; NaN where a cell is not a number."""
        if not len(self._block) and self._may_read_block:
            self._block = self._read_block()
        if len(self._block):
            rows, self._block = self._block[:limit], self._block[limit:]
            return rows
        self._latest, self._ahead = self._ahead[:limit], self._ahead[limit:]
        if not self._latest:
            self._latest = list(islice(self._records, limit))
        if not self._latest:
            return None
        # The row after empty lines has already been read. If spaces separate cells, there may be
        # several such lines.
        between = not self._ahead and bool(self._latest[-1][1])
        self._may_read_block = between and self._separator != " "
        rows = np.array([self._numbers(cells) for _, cells in self._latest], np.float64)
        rows[np.abs(rows) > _LARGEST] = _NAN
        return rows

    def unread(self) -> Mapping[str, str]:
        """Return the columns with cells and no number in the next rows, each with the first one."""
        whole = [(line, cells) for line, cells in self._ahead if len(cells) == self._width]
        numbers = np.array([self._numbers(cells) for _, cells in whole]).reshape(-1, self._width)
        names, found = names_of(self.columns, self._width), {}
        for column in map(int, np.flatnonzero(np.isnan(numbers).all(axis=0))):
            said = ((line, cells[column]) for line, cells in whole if cells[column].strip())
            if (first := next(said, None)) is not None:
                found[names[column]] = f"{self._name}: {self._blame(first[0], column, first[1])}"
        return found

    def rewind(self) -> None:
        """Go back to the first row."""
        self._start()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def flaw(self, row: int, column: int) -> SampleError:
        """Return why a column has no number in one of the rows read last.

        Raises:
            ModelError: the column is text, which no model accepts.
        """
        if column in self._texts:
            raise ModelError(
                f"input.channels: column {self._named(column)} of the source is text; name other "
                "channels in input.channels"
            )
        line, cells = self._latest[row]
        if not cells:
            return SampleError(f"{self._name}: line {line} is empty, expected a row of numbers")
        if len(cells) != self._width:
            return SampleError(
                f"{self._name}: line {line}: expected {self._width} cells, found {len(cells)}"
            )
        return SampleError(f"{self._name}: {self._blame(line, column, cells[column])}")

    @property
    def _decimal_comma(self) -> bool:
        """Whether "1,5" is read as a number."""
        return self._given not in {None, ","}

    def _start(self) -> None:
        """Read up to the first row: find the separator, the header and the text columns."""
        self._file.seek(0)
        self._block, self._refused = self._block[:0], io.StringIO()
        self._may_read_block = False
        self._separator = self._given or self._find_separator()
        self._file.seek(0)
        self._comment = ""
        """The last comment so far."""
        records = self._read_records()
        first = next((record for record in records if _says(record[1])), None)
        if first is None:
            raise SourceError(f"{self._name}: is empty, expected rows of numbers")
        comment = self._comment
        ahead = list(islice(records, AHEAD))
        second = next((cells for _, cells in ahead if _says(cells)), [])
        header = _is_header(first[1], second)
        names = first[1] if header else self._names_in(comment, len(first[1]))
        self.columns = tuple(cell.strip() for cell in names)
        self._width = len(first[1])
        # An empty line after a header separates it from the rows.
        rows = list(dropwhile(lambda record: not record[1], ahead)) if header else [first, *ahead]
        self._check_first(rows)
        self._texts = self._find_texts([cells for _, cells in rows])
        self._ahead, self._records = rows, records

    def _check_first(self, rows: list[Record]) -> None:
        """Check that the first rows have numbers and fit the header."""
        said = [record for record in rows if _says(record[1])]
        if not said:
            raise SourceError(f"{self._name}: has a header and no rows of numbers")
        line, cells = said[0]
        if not any(len(cells) == self._width for _, cells in said):
            raise SourceError(
                f"{self._name}: line {line} has {len(cells)} cells, but the header has "
                f"{self._width}"
            )
        likely = [cell for _, row in said for cell in row if _like_number(cell)]
        if any(self._decimal_comma or not _DECIMAL_COMMA.fullmatch(cell) for cell in likely):
            return
        for column, cell in enumerate(cells):
            if _DECIMAL_COMMA.fullmatch(cell):
                raise SourceError(f"{self._name}: {self._blame(line, column, cell)}")
        raise SourceError(
            f"{self._name}: line {line} holds no number, expected rows of numbers"
            + _other_separator(cells, self._given)
        )

    def _find_texts(self, rows: list[list[str]]) -> frozenset[int]:
        """Find the columns with texts and no numbers, not even malformed ones."""
        whole = [cells for cells in rows if len(cells) == self._width]
        return frozenset(
            column
            for column, cells in enumerate(zip(*whole, strict=True))
            if _says(list(cells)) and not any(map(_like_number, cells))
        )

    def _find_separator(self) -> str:
        """Return the separator that gives the most numbers in the second non-empty line.

        If two are equal, a comma may belong to the numbers.
        """
        lines = list(islice((line for line in self._lines() if line.strip()), 2))

        def fit(separator: str) -> tuple[float, bool]:
            try:
                cells = next(csv.reader(lines[-1:], delimiter=separator, skipinitialspace=True), [])
            except csv.Error:
                cells = []  # reported when it is read
            share = sum(map(_like_number, cells)) / max(len(cells), 1)
            return share, any(separator in line for line in lines)

        return max((";", "\t", ","), key=fit)

    def _names_in(self, comment: str, count: int) -> list[str]:
        """Return the names of *count* columns if a comment above the rows gives them."""
        if len(comment) > csv.field_size_limit():
            return []
        rows = csv.reader([comment], delimiter=self._separator, skipinitialspace=True)
        cells = next(rows, [])
        named = len(cells) == count and not any(map(_like_number, cells))
        return cells if named else []

    def _read_records(self) -> Iterator[Record]:
        lines = self._lines()
        spaces = self._separator == " "
        if spaces:
            lines = (line.rstrip() for line in lines)
        lines = dropwhile(lambda line: not line.strip(), lines)
        empty: Record | None = None
        try:
            for cells in csv.reader(lines, delimiter=self._separator, skipinitialspace=True):
                if len(cells) > 1 or _says(cells):
                    line = self._line
                    if empty is not None:
                        yield empty
                        empty = None
                    yield line, cells
                else:
                    empty = (self._line, [])
        except csv.Error:
            raise SourceError(
                f"{self._name}: line {self._line}: a cell is longer than {csv.field_size_limit()} "
                'characters, as after a quote (") that is never closed; correct the file, or name '
                "its ?separator="
            ) from None

    def _lines(self) -> Iterator[str]:
        """Read the lines that are not comments."""
        self._line = 0
        before = ""
        try:
            while line := self._refused.readline(MAX_LINE) or self._file.readline(MAX_LINE):
                self._line += 1
                if len(line) == MAX_LINE:
                    raise SourceError(
                        f"{self._name}: line {self._line} is longer than {MAX_LINE} characters, "
                        "not CSV"
                    )
                # "\r\r\n" is one line end, which programs on Windows write by mistake.
                rest = line == "\r\n" and before.endswith("\r")
                before = line
                if line.startswith("#"):
                    self._comment = line.lstrip("#").strip()
                elif not rest and not (self._line == 1 and _SEPARATOR_LINE.fullmatch(line)):
                    yield line
        except OSError as problem:
            raise self._unreadable(problem) from None

    def _read_block(self) -> Array:
        """Read many rows at once: none if lines must be parsed singly, or at the end."""
        if self._refused.tell() < len(self._refused.getvalue()):
            return self._block
        try:
            text = self._file.read(BLOCK)
            if not text.endswith("\n"):
                text += self._file.readline(MAX_LINE)
        except OSError as problem:
            raise self._unreadable(problem) from None
        numbers = [column for column in range(self._width) if column not in self._texts]
        values = _parse_block(text, self._separator, self._width, numbers)
        if values is None:
            self._refused = io.StringIO(text, newline="")
            return self._block
        self._line += len(values)
        if len(numbers) == self._width:
            return values
        rows = np.full((len(values), self._width), _NAN)
        rows[:, numbers] = values
        return rows

    def _unreadable(self, problem: OSError) -> SourceError:
        return SourceError(f"{self._name}: cannot be read: {problem.strerror}")

    def _numbers(self, cells: list[str]) -> list[float]:
        """Convert a row's cells to numbers; NaN for other cells, all NaN if cells are missing."""
        if len(cells) != self._width:
            return [_NAN] * self._width
        text = "".join(cells)
        if self._decimal_comma and "," in text:
            cells = [_with_point(cell) for cell in cells]
        # Python also accepts digits of other scripts, and "_" between digits.
        if text.isascii() and "_" not in text:
            try:
                return list(map(float, cells))
            except ValueError:
                pass
        return [_number(cell) for cell in cells]

    def _named(self, column: int) -> str:
        return repr(self.columns[column]) if self.columns else str(column)

    def _blame(self, line: int, column: int, cell: str) -> str:
        """Return a description of a cell that is not a number."""
        found = repr(cell[:40]) if cell.strip() else "an empty cell"
        mend = ""
        if _DECIMAL_COMMA.fullmatch(cell):
            name = "tab" if self._separator == "\t" else self._separator
            mend = ", a decimal comma; " + (
                "write a decimal point"
                if name == ","
                else f"to have it read as one, name the separator: ?separator={name}"
            )
        elif _like_number(cell):
            mend = ", which is not written in the digits 0 to 9 alone"
        return f"line {line}, column {self._named(column)}: expected a number, found {found}{mend}"


def _open(path: Path, name: str) -> TextIO:
    try:
        with path.open("rb") as file:
            wide = file.read(2) in {BOM_UTF16_LE, BOM_UTF16_BE}
        # Names may have another encoding, which does not affect numbers, except in UTF-16 (the
        # Unicode text of spreadsheets) with two bytes per character.
        encoding = "utf-16" if wide else "utf-8-sig"
        return path.open(encoding=encoding, errors="replace", newline="")
    except OSError as problem:
        raise SourceError(f"{naming(name, path)}: {problem.strerror}") from None


def _parse_block(text: str, separator: str, width: int, numbers: list[int]) -> Array | None:
    """Return the columns *numbers* of whole lines, float64 (lines, numbers).

    None: the lines have something that must be parsed line by line.
    """
    # csv refuses longer cells.
    if not text.isascii() or len(text) > 2 * BLOCK:
        return None
    lines = text.replace("\r\n", "\n").removesuffix("\n")
    count = lines.count("\n") + 1
    parted = lines.encode().translate(None, bytes(_USUAL - {*separator.encode()}))
    if not lines.strip() or parted != ((separator * (width - 1) + "\n") * count).encode()[:-1]:
        return None
    try:
        if len(numbers) == width:
            # As one long line: this takes half the time.
            cells = [lines.replace("\n", separator)]
            values = np.loadtxt(cells, delimiter=separator, comments=None, ndmin=1)
        else:
            rows = lines.split("\n")
            values = np.loadtxt(rows, delimiter=separator, comments=None, usecols=numbers, ndmin=2)
    except ValueError:
        return None
    if values.size != count * len(numbers) or not (np.abs(values) <= _LARGEST).all():
        return None
    return values.reshape(count, -1)


def _says(cells: list[str]) -> bool:
    """Whether a row is not empty."""
    return any(cell.strip() for cell in cells)


def _is_header(first: list[str], second: list[str]) -> bool:
    if not any(map(_like_number, first)):
        return True
    return any(
        above.strip() and _like_number(below) and not _like_number(above)
        for above, below in zip(first, second, strict=False)
    )


def _like_number(cell: str) -> bool:
    """Whether a cell is meant to be a number, possibly a malformed one."""
    if _DECIMAL_COMMA.fullmatch(cell):
        return True
    try:
        return -_LARGEST <= float(cell) <= _LARGEST
    except ValueError:
        return False


def _number(cell: str) -> float:
    """Read a number in ASCII digits, or return NaN for any other text."""
    if "_" in cell or not cell.isascii():
        return _NAN
    try:
        return float(cell)
    except ValueError:
        return _NAN


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell


def _other_separator(cells: list[str], given: str | None) -> str:
    """Return a fix if the only cell of a line is several numbers with another separator."""
    if given is not None and len(cells) == 1:
        return f"; ?separator={given} parts nothing in it: without it the separator is found out"
    for name, separator in (("space", None), ("|", "|")):
        parts = cells[0].split(separator) if len(cells) == 1 else []
        if len(parts) > 1 and any(map(_like_number, parts)):
            return f"; if this is what separates them, write ?separator={name}"
    return ""
