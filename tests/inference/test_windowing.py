"""Windows out of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError
from edge_agent.inference.preprocess.windowing import Windower
from edge_agent.models.manifest import InputSpec

Floats = NDArray[np.float32]


def numbered(count: int, channels: int = 2) -> Floats:
    """Make rows of which every value is different: row * 100 + channel."""
    rows = np.arange(count, dtype=np.float32)[:, None] * 100
    return (rows + np.arange(channels, dtype=np.float32)).astype(np.float32)


def expected(rows: Floats, every: int, window: int, hop: int) -> tuple[list[Floats], int]:
    """Cut windows in the plainest way; also count what no window has and none skips."""
    kept = rows[::every]
    starts = range(0, len(kept) - window + 1, hop)
    covered = max((start + window for start in starts), default=0)
    following = starts[-1] + hop if starts else 0
    return [kept[start : start + window] for start in starts], max(
        0, len(kept) - max(covered, following)
    )


@given(
    pieces=st.lists(st.integers(0, 40), max_size=20),
    every=st.integers(1, 7),
    window=st.integers(1, 12),
    hop=st.none() | st.integers(1, 30),
)
@example(pieces=[5, 3, 1], every=1, window=4, hop=1)
@example(pieces=[5, 30, 1], every=2, window=3, hop=11)
def test_pieces_do_not_matter(pieces: list[int], every: int, window: int, hop: int | None) -> None:
    """However the rows are cut into pieces, the windows and the rest are those of the whole."""
    rows = numbered(sum(pieces))
    windower = Windower(InputSpec(window=window, hop=hop, every=every))

    found: list[Floats] = []
    start = 0
    for length in pieces:
        found += [data for data, _, _ in windower.push(rows[start : start + length], 1, 1.0)]
        start += length

    windows, rest = expected(rows, every, window, hop or window)
    assert [data.tolist() for data in found] == [data.tolist() for data in windows]
    assert all(data.shape == (window, 2) and data.dtype == np.float32 for data in found)
    assert windower.rest == rest


@given(
    window=st.integers(1, 9), hop=st.integers(1, 20), before=st.integers(0, 30),
    every=st.integers(1, 4),
)  # fmt: skip
def test_reset_forgets(window: int, hop: int, before: int, every: int) -> None:
    """After a reset the windows are those of a new windower: nothing spans the break."""
    spec = InputSpec(window=window, hop=hop, every=every)
    used, new = Windower(spec), Windower(spec)
    used.push(numbered(before) + 5e4, 1, 1.0)

    used.reset()

    assert used.rest == 0
    after = [data.tolist() for data, _, _ in used.push(numbered(50), 1, 1.0)]
    assert after == [data.tolist() for data, _, _ in new.push(numbered(50), 1, 1.0)]


def test_a_window_carries_the_time_of_its_last_sample() -> None:
    """A window that a push completes has that push's clocks."""
    windower = Windower(InputSpec(window=3))

    first = windower.push(numbered(2), 10, 1.0)
    second = windower.push(numbered(2), 20, 2.0)

    assert first == []
    assert [(time_ns, since) for _, time_ns, since in second] == [(20, 2.0)]
    assert windower.rest == 1


def test_windows_are_the_callers_own() -> None:
    """What is pushed later changes no window given before, and the rows may be reused."""
    windower = Windower(InputSpec(window=4, hop=1))
    rows = numbered(4)
    kept, _, _ = windower.push(rows, 1, 1.0)[0]
    before = kept.tolist()

    rows[:] = -1
    for _ in range(10):
        windower.push(rows, 1, 1.0)

    assert kept.tolist() == before


def test_channels_by_name_and_number() -> None:
    """Channels come in the manifest's order, by the column's name or its number."""
    columns = ("time", "ax", "ay")

    by_name = Windower(InputSpec(channels=("ay", "ax"), window=2), columns)
    by_number = Windower(InputSpec(channels=(2, 1), window=2))

    rows = numbered(2, 3)
    assert by_name.push(rows, 1, 1.0)[0][0].tolist() == [[2, 1], [102, 101]]
    assert by_number.push(rows, 1, 1.0)[0][0].tolist() == [[2, 1], [102, 101]]


def test_an_unknown_name_lists_the_known() -> None:
    """A channel that the source has not is refused with the names that it has."""
    with pytest.raises(ModelError, match=r"'az' is not a column.*ax, ay"):
        Windower(InputSpec(channels=("ax", "az"), window=2), ("ax", "ay"))


def test_a_name_that_two_columns_have_is_refused() -> None:
    """Which of two columns is meant is not guessed."""
    with pytest.raises(ModelError, match="'a' is the name of several columns"):
        Windower(InputSpec(channels=("a",), window=2), ("a", "a"))


@pytest.mark.parametrize("number", [2, -1])
def test_a_number_beyond_the_channels_is_refused(number: int) -> None:
    """A channel's number counts from 0 and lies below their count."""
    windower = Windower(InputSpec(channels=(0, number), window=2))
    with pytest.raises(ModelError, match=f"{number} is not a channel of the source, which has 2"):
        windower.push(numbered(4), 1, 1.0)


def test_names_need_a_header() -> None:
    """A source without column names is told apart from one that lacks this name."""
    windower = Windower(InputSpec(channels=("ax",), window=2))
    with pytest.raises(ModelError, match="no names for its 2 channels"):
        windower.push(numbered(4), 1, 1.0)


def test_a_column_of_text_is_refused_by_name() -> None:
    """A text column, which sources give as NaN, never reaches a model."""
    rows = numbered(4, 3)
    rows[:, 0] = np.nan
    columns = ("time", "ax", "ay")
    windower = Windower(InputSpec(window=2), columns)
    chosen = Windower(InputSpec(window=2, channels=("ax",)), columns)

    with pytest.raises(ModelError, match="column 'time' of the source is text"):
        windower.push(rows, 1, 1.0)
    assert len(chosen.push(rows, 1, 1.0)) == 2


def test_without_a_window_each_entry_is_an_input() -> None:
    """Where the manifest sets no window, the first axis counts ready inputs, of any shape."""
    cubes = np.arange(2 * 3 * 4 * 1, dtype=np.float32).reshape(2, 3, 4, 1)

    found = Windower(InputSpec(layout="tc")).push(cubes, 5, 0.5)

    assert [data.shape for data, _, _ in found] == [(3, 4, 1), (3, 4, 1)]
    assert [data.tolist() for data, _, _ in found] == cubes.tolist()
    assert {(time_ns, since) for _, time_ns, since in found} == {(5, 0.5)}


def test_without_a_window_channels_still_choose() -> None:
    """Of rows that are inputs themselves, the named channels are taken, every n-th row."""
    windower = Windower(InputSpec(channels=("b",), every=2), ("a", "b"))

    found = windower.push(numbered(3), 1, 1.0) + windower.push(numbered(3), 1, 1.0)

    assert [data.tolist() for data, _, _ in found] == [[1.0], [201.0], [101.0]]
    assert windower.rest == 0


def test_ready_inputs_cannot_be_cut() -> None:
    """A window over data of more than two sizes is a contradiction that is said."""
    with pytest.raises(ModelError, match="ready inputs of 3 by 4"):
        Windower(InputSpec(window=2)).push(np.zeros((2, 3, 4), np.float32), 1, 1.0)


def test_a_source_that_changes_its_width_is_refused() -> None:
    """Rows of another number of channels cannot follow on those before."""
    windower = Windower(InputSpec(window=2))
    windower.push(numbered(1, 2), 1, 1.0)
    with pytest.raises(ModelError, match="changed"):
        windower.push(numbered(1, 3), 1, 1.0)


def test_the_readings_of_the_imu_recipe() -> None:
    """1500 rows, every 10th, windows of 150: one window, and nothing is left over."""
    windower = Windower(InputSpec(window=150, every=10))

    found = windower.push(numbered(1500, 8), 1, 1.0)

    assert [data.shape for data, _, _ in found] == [(150, 8)]
    assert found[0][0][:, 0].tolist() == [row * 1000.0 for row in range(150)]
    assert windower.rest == 0
