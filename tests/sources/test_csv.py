"""CSV: whatever the lines are, rows come as they stand, in pieces of any length."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_agent.core.errors import ModelError, SampleError, SourceError
from edge_agent.sources.csv_file import AHEAD, CsvRows

GOOD = ("1", "-2.5", "+3e5", ".5", "7.", "1e-400", "3.4028235e38", "12345678901234567890", " 4\t")
ODD = (
    *("nan", "-inf", "Infinity", "", "x", "1_0", "1,5", "1e39", "\u0663", "1 2", '"8"', '"9,9"'),
    *("0x1", "1e", "--1", "1\x00", "#2", "\x1c4", "\xa05", "1\r2", '"a\nb"', '1"2', "1d5"),
)
cells = (
    st.sampled_from(GOOD)
    | st.sampled_from((*GOOD, *ODD))
    | st.text("0123456789.eE+-_ ,x", max_size=9)
)
lines = st.lists(cells, min_size=1, max_size=3)


def read(path: Path, limit: int) -> list[str]:
    """Read a file twice, as a looped recording is; gives rows and what is said of bad cells."""
    found: list[str] = []
    try:
        rows = CsvRows(path, "rows", ",")
        for _ in range(2):
            while (some := rows.read(limit)) is not None:
                found += map(str, some.tolist())
                for row, column in np.argwhere(np.isnan(some)).tolist():
                    try:
                        found.append(str(rows.flaw(row, column)))
                    except ModelError as problem:
                        found.append(str(problem))
            rows.rewind()
        rows.close()
    except SourceError as problem:
        return [*found, str(problem)]
    return found


def test_a_line_that_tells_spreadsheets_the_separator_is_no_header(tmp_path: Path) -> None:
    """The columns are named by the line below it."""
    (tmp_path / "rows.csv").write_text("sep=;\na;b\n1;2\n")
    rows = CsvRows(tmp_path / "rows.csv", "rows")
    assert (rows.columns, rows.read(9).tolist()) == (("a", "b"), [[1, 2]])  # type: ignore[union-attr]
    rows.close()


@settings(deadline=None)
@given(st.lists(lines, max_size=12), st.sampled_from(["\n", "\r\n"]))
@example([["a", "b"], ["1", "2"], ["", ""], ["3", "4"]], "\n")
@example([["1"], ["2"], [""], ["3"], [" "]], "\r\n")
@example([["09:00:01", "1.5"], ["09:00:02", "2"], ["a#b", "3"]], "\n")
def test_pieces_of_any_length_give_the_same(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], end: str
) -> None:
    """Row by row or all at once: the numbers and what is said of each bad cell are the same."""
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes("".join(",".join(line) + end for line in table).encode())
    assert sorted(read(path, 1)) == sorted(read(path, 1024))


@settings(deadline=None)
@given(st.lists(lines, min_size=1, max_size=12), st.sampled_from(["\n", "\r\n"]))
@example([["1"], ["2"], [""], ["3"], [" "]], "\r\n")
@example([["3", "4"], ["a\n5", "6"], ['"7"', "8"]], "\n")
def test_rows_far_behind_the_first_are_read_as_those_in_front(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], end: str
) -> None:
    """What is read at once is what reading line by line gives, and so is what is said of it."""
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    good = ",".join("7" for _ in table[0]) + end
    tail = "".join(",".join(line) + end for line in table)
    found = []
    for before in (1, 2 * AHEAD):
        path.write_bytes((good * before + tail).encode())
        said = sorted(re.sub(r"line \d+", "line", line) for line in read(path, 64))
        for _ in range(2 * before):
            if (row := str([7.0] * len(table[0]))) in said:
                said.remove(row)
        found.append(said)
    assert found[0] == found[1]


def test_a_quote_that_is_never_closed_is_said(tmp_path: Path) -> None:
    """It makes one cell of the rest of the file; a comment of that length is only a comment."""
    path = tmp_path / "open.csv"
    path.write_text("#" + "x" * 200_000 + "\na,b\n" + "1,2\n" * 200 + '1,"' + "3,4\n" * 50_000)
    rows = CsvRows(path, "rows")

    def read_all() -> None:
        while rows.read(1000) is not None:
            pass

    with pytest.raises(
        SourceError, match=r"rows: line \d+: a cell is longer than 131072 char"
    ) as at:
        read_all()
    assert "that is never closed; correct the file" in str(at.value)


def test_a_bad_row_has_its_own_line_number(tmp_path: Path) -> None:
    """Each number of a long file is the one that was written, and a bad cell is named."""
    values = np.random.default_rng(0).normal(size=(30_000, 2)).astype(np.float32)
    written = [f"{x!r},{y!r}" for x, y in values.tolist()]
    written[20_000] = "1,x"
    path = tmp_path / "long.csv"
    path.write_text("a,b\n" + "\n".join(written) + "\n")
    rows = CsvRows(path, "rows")
    found = []
    said: list[SampleError] = []
    while (some := rows.read(1000)) is not None:
        said += [rows.flaw(row, column) for row, column in np.argwhere(np.isnan(some)).tolist()]
        found.append(some[~np.isnan(some).any(axis=1)])
    rows.close()
    assert list(map(str, said)) == ["rows: line 20002, column 'b': expected a number, found 'x'"]
    assert np.array_equal(np.concatenate(found), np.delete(values, 20_000, axis=0))


def test_a_column_without_numbers_is_named_where_the_settings_want_it(tmp_path: Path) -> None:
    """A rule on temperatures with a decimal comma never began, and nothing said why."""
    path = tmp_path / "rows.csv"
    path.write_text("time;temp;hum;note\n1;20,5;40;\n2;21,5;41;\n")
    assert CsvRows(path, "rows").unread() == {
        "temp": "rows: line 2, column 'temp': expected a number, found '20,5', a decimal comma; to "
        "have it read as one, name the separator: ?separator=;"
    }
    assert CsvRows(path, "rows", ";").unread() == {}
