"""CSV that is read in blocks: whatever the lines are, as if they were read one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_agent.core.errors import SampleError, SourceError
from edge_agent.sources.csv_block import CHARACTERS, parse_block
from edge_agent.sources.csv_file import CsvRows

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


def read(path: Path, limit: int) -> list[object]:
    """Read a file twice, as a looped recording is; gives rows and what is said of bad ones."""
    found: list[object] = []
    try:
        rows = CsvRows(path, "rows", ",")
    except SourceError as problem:
        return [str(problem)]
    for _ in range(2):
        while True:
            try:
                some = rows.read(limit)
            except SampleError as problem:
                found.append(str(problem))
                continue
            except SourceError as problem:
                return [*found, str(problem)]
            if some is None:
                break
            found += map(str, some.tolist())
        rows.rewind()
    rows.close()
    return found


@settings(deadline=None)
@given(st.lists(lines, max_size=12), st.sampled_from(["\n", "\r\n"]), st.sampled_from([1, 3, 1024]))
@example([["a", "b"], ["1", "2"], ["", ""], ["3", "4"]], "\n", 1024)
@example([["1"], ["2"], [""], ["3"], [" "]], "\r\n", 3)
@example([["09:00:01", "1.5"], ["09:00:02", "2"], ["a#b", "3"]], "\n", 1024)
def test_a_block_gives_what_its_lines_give(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], end: str, limit: int
) -> None:
    """A comment at the end has all lines read one by one: rows and errors are the same.

    No quote is left open: the comment would be part of it.
    """
    folder = tmp_path_factory.mktemp("csv")
    text = "".join(",".join(line) + end for line in table)
    (folder / "block.csv").write_bytes(text.encode())
    (folder / "lines.csv").write_bytes(f"{text}# read one by one{end}".encode())
    assert read(folder / "block.csv", limit) == read(folder / "lines.csv", limit)


def test_a_bad_row_behind_blocks_has_its_own_line_number(tmp_path: Path) -> None:
    """Lines that were read at once are counted, and those behind a bad one are read again so."""
    values = np.random.default_rng(0).normal(size=(30_000, 2)).astype(np.float32)
    written = [f"{x!r},{y!r}" for x, y in values.tolist()]
    written[20_000] = "1,x"
    text = "a,b\n" + "\n".join(written) + "\n"
    assert len(text) > 10 * CHARACTERS
    path = tmp_path / "long.csv"
    path.write_text(text)
    rows = CsvRows(path, "rows")
    found = []
    said = []
    while True:
        try:
            some = rows.read(1000)
        except SampleError as problem:
            said.append(str(problem))
            continue
        if some is None:
            break
        found.append(some)
    rows.close()
    assert said == ["rows: line 20002, column 'b': expected a number, found 'x'"]
    assert np.array_equal(np.concatenate(found), np.delete(values, 20_000, axis=0))


def test_usual_lines_need_no_closer_look() -> None:
    """Numbers, time stamps and spaces beside the numbers are read at once; quotes are not."""
    rows = parse_block("1, 2.5\r\n-3e1,4", ",", [True, True])
    assert rows is not None
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 2.5], [-30, 4]]
    rows = parse_block("2026-01-01T00:00:00Z;1.5\n2026-01-01T00:00:01Z;2\n", ";", [False, True])
    assert rows is not None
    assert np.isnan(rows[:, 0]).all()
    assert rows[:, 1].tolist() == [1.5, 2]
    assert parse_block('"1",2\n', ",", [True, True]) is None
