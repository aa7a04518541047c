"""Rows of a text file of numbers: CSV, also with semicolons or tabs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from ..core.errors import SampleError, SourceError
from ..core.types import Array

# A longer line is no CSV, and would have to be held in memory whole.
MAX_LINE = 1024 * 1024
_LARGEST = float(np.finfo(np.float32).max)

Record = tuple[int, list[str]]
"""Number of a line, and its cells; none: it is the last of empty lines between two rows."""


class CsvRows:
    """The rows of one CSV file.

    The first line is a header when it has a text where the second has a number, or no number at
    all. A column that does not begin with a number (a time stamp, remarks) is text: its values are
    NaN, and the others can be used. A row of empty cells, or empty lines between two rows, are a
    reading that is missing: the next row does not follow on the one before. Empty lines before the
    first row and behind the last one are nothing.
    """

    columns: tuple[str, ...] = ()

    def __init__(self, path: Path, name: str) -> None:
        """Open the file and read its first lines; *name* is what errors call it."""
        self._name = name
        self._line = 0
        self._bad: SampleError | None = None
        self._records: Iterator[Record] = iter(())
        self._numeric: list[bool] = []
        try:
            # Names may be in another encoding; numbers never suffer from it.
            self._file = path.open(encoding="utf-8-sig", errors="replace", newline="")
        except OSError as problem:
            raise SourceError(f"{name}: {path}: {problem.strerror}") from None
        try:
            self._start()
        except SourceError:
            self._file.close()
            raise

    def read(self, limit: int) -> Array | None:
        """Read up to *limit* rows, ending before one that cannot be used."""
        rows: list[list[float]] = []
        if self._bad is not None:
            bad, self._bad = self._bad, None
            raise bad
        for record in self._records:
            try:
                rows.append(self._numbers(record))
            except SampleError as problem:
                if not rows:
                    raise
                self._bad = problem
                break
            if len(rows) == limit:
                break
        return np.array(rows, np.float32) if rows else None

    def rewind(self) -> None:
        """Go back to the first row."""
        self._start()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _start(self) -> None:
        """Read up to the first row: delimiter, header, which columns are numbers."""
        self._bad = None
        self._file.seek(0)
        records = self._read_records()
        first = next((record for record in records if _says(record[1])), None)
        if first is None:
            raise SourceError(f"{self._name}: is empty, expected rows of numbers")
        gaps: list[Record] = []
        second = None
        for record in records:
            if _says(record[1]):
                second = record
                break
            gaps.append(record)
        header = _is_header(first[1], second[1] if second else [])
        if header and second is None:
            raise SourceError(f"{self._name}: has a header and no rows of numbers")
        self.columns = tuple(cell.strip().lstrip("# ") for cell in first[1]) if header else ()
        # An empty line below a header parts it from the rows.
        ahead = [gap for gap in gaps if gap[1]] if header else [first, *gaps]
        ahead += [second] if second is not None else []
        line, cells = second if header and second is not None else first
        self._numeric = [_number(cell) is not None for cell in cells]
        self._all_numeric = all(self._numeric)
        if not any(self._numeric):
            raise SourceError(
                f"{self._name}: line {line} holds no number, expected rows of numbers"
            )
        if header and len(cells) != len(self.columns):
            raise SourceError(
                f"{self._name}: line {line} has {len(cells)} cells, but the header has "
                f"{len(self.columns)}"
            )
        self._records = chain(ahead, records)

    def _read_records(self) -> Iterator[Record]:
        lines = self._lines()
        first = next((line for line in lines if line.strip()), "")
        # The first of these, where none occurs.
        delimiter = max((",", ";", "\t"), key=first.count)
        reader = csv.reader(chain((first,), lines), delimiter=delimiter)
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
        before = ""
        while True:
            try:
                line = self._file.readline(MAX_LINE)
            except OSError as problem:
                raise SourceError(f"{self._name}: cannot be read: {problem.strerror}") from None
            if not line:
                return
            self._line += 1
            if len(line) == MAX_LINE:
                raise SourceError(
                    f"{self._name}: line {self._line} is longer than {MAX_LINE} characters, not CSV"
                )
            # "\r\r\n" is one end of a line, as programs on Windows write it by mistake.
            if not (line == "\r\n" and before.endswith("\r")):
                yield line
            before = line

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
        try:
            if self._all_numeric:
                row = [float(cell) for cell in cells]
            else:
                row = [
                    float(cell) if numeric else 0.0
                    for cell, numeric in zip(cells, self._numeric, strict=True)
                ]
        except ValueError:
            raise SampleError(self._blame(line, cells)) from None
        # Also false for NaN.
        if not all(-_LARGEST <= value <= _LARGEST for value in row):
            raise SampleError(self._blame(line, cells))
        if not self._all_numeric:
            row = [
                value if numeric else float("nan")
                for value, numeric in zip(row, self._numeric, strict=True)
            ]
        return row

    def _blame(self, line: int, cells: list[str]) -> str:
        """Name the first cell that is not a finite number."""
        for index, (cell, numeric) in enumerate(zip(cells, self._numeric, strict=True)):
            if numeric and _number(cell) is None:
                column = repr(self.columns[index]) if self.columns else str(index)
                found = repr(cell[:40]) if cell.strip() else "an empty cell"
                return (
                    f"{self._name}: line {line}, column {column}: expected a number, found {found}"
                )
        raise AssertionError("a row was refused that has no bad cell")


def _says(cells: list[str]) -> bool:
    """Whether a row has anything in it."""
    return any(cell.strip() for cell in cells)


def _number(cell: str) -> float | None:
    """Read a finite number that float32 can hold."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if -_LARGEST <= value <= _LARGEST else None


def _is_header(first: list[str], second: list[str]) -> bool:
    if all(_number(cell) is None for cell in first):
        return True
    return any(
        _number(above) is None and _number(below) is not None
        for above, below in zip(first, second, strict=False)
    )
