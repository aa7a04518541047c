"""Windows out of rows."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError, SampleError
from edge_agent.core.types import Array, Reading, TensorSpec
from edge_agent.inference.preprocess.signal import transform_of
from edge_agent.inference.preprocess.windowing import Windower
from edge_agent.models.manifest import InputSpec
from edge_agent.models.transforms import Stats
from edge_agent.sources.continuity import Continuity, Rows

Floats = NDArray[np.float32]


def numbered(count: int, channels: int = 2) -> Floats:
    """Make rows of which every value is different: row * 100 + channel."""
    rows = np.arange(count, dtype=np.float32)[:, None] * 100
    return (rows + np.arange(channels, dtype=np.float32)).astype(np.float32)


def reading(
    rows: Array,
    time_ns: int = 1,
    since: float = 1.0,
    columns: tuple[str, ...] = (),
    **more: Any,
) -> Reading:
    return Reading(rows, time_ns, since, columns=columns, **more)


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
        found += [one.data for one in windower.push(reading(rows[start : start + length]))]
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
    used.push(reading(numbered(before) + 5e4))

    used.reset()

    assert used.rest == 0
    after = [one.data.tolist() for one in used.push(reading(numbered(50)))]
    assert after == [one.data.tolist() for one in new.push(reading(numbered(50)))]


def test_a_window_carries_the_time_of_its_last_sample() -> None:
    """A window that a push completes has that push's clocks."""
    windower = Windower(InputSpec(window=3))

    first = windower.push(reading(numbered(2), 10, 1.0))
    second = windower.push(reading(numbered(2), 20, 2.0))

    assert first == []
    assert [(one.time_ns, one.since) for one in second] == [(20, 2.0)]
    assert windower.rest == 1


def test_windows_are_the_callers_own() -> None:
    """What is pushed later changes no window given before, and the rows may be reused."""
    windower = Windower(InputSpec(window=4, hop=1))
    rows = numbered(4)
    kept = windower.push(reading(rows))[0].data
    before = kept.tolist()

    rows[:] = -1
    for _ in range(10):
        windower.push(reading(rows))

    assert kept.tolist() == before


def test_channels_by_name_and_number() -> None:
    """Channels come in the manifest's order, by the column's name or its number."""
    columns = ("time", "ax", "ay")

    by_name = Windower(InputSpec(channels=("ay", "ax"), window=2), columns)
    by_number = Windower(InputSpec(channels=(2, 1), window=2))

    rows = numbered(2, 3)
    assert by_name.push(reading(rows, columns=columns))[0].data.tolist() == [[2, 1], [102, 101]]
    assert by_number.push(reading(rows))[0].data.tolist() == [[2, 1], [102, 101]]


def test_an_unknown_name_lists_the_known() -> None:
    """A channel that the source has not is refused with the names that it has."""
    with pytest.raises(ModelError, match=r"'az' is not a column.*ax, ay"):
        Windower(InputSpec(channels=("ax", "az"), window=2), ("ax", "ay"))


@pytest.mark.parametrize("columns", [(), ("x",), ("accel",)])
def test_one_channel_is_taken_by_any_name(columns: tuple[str, ...]) -> None:
    """A model of one channel takes a source of one, whatever its name, if it has any."""
    windower = Windower(InputSpec(channels=("accel",), window=2), columns)
    assert windower.push(reading(numbered(2, 1), columns=columns))[0].data.tolist() == [[0], [100]]


@pytest.mark.parametrize("wanted", [("accel", "x"), (1,)])
def test_more_channels_or_a_number_are_not_guessed(wanted: tuple[int | str, ...]) -> None:
    """Which of several it is, and what has another number, is said by the manifest alone."""
    with pytest.raises(ModelError, match=r"input\.channels"):
        Windower(InputSpec(channels=wanted, window=2), ("y",))


def test_a_source_that_gives_now_this_and_now_that_is_read_by_name() -> None:
    """Of JSON objects with one number each one is the channel; no window mixes them."""
    windower = Windower(InputSpec(channels=("temperature",), window=2))
    battery, link, wanted = (numbered(1, 1) + base for base in (90.0, 7.0, 20.0))
    assert windower.push(reading(battery, columns=("battery",))) == []
    with pytest.raises(ModelError, match="'temperature' is not a column"):
        windower.push(reading(link, columns=("link",)))
    assert windower.push(reading(wanted, columns=("temperature",))) == []
    for _ in range(2):
        with pytest.raises(ModelError, match="'temperature' is not a column"):
            windower.push(reading(battery, columns=("battery",)))
    assert windower.push(reading(wanted, columns=("temperature",)))[0].data.tolist() == [[20], [20]]


def test_a_name_that_two_columns_have_is_refused() -> None:
    """Which of two columns is meant is not guessed."""
    with pytest.raises(ModelError, match="'a' is the name of several columns"):
        Windower(InputSpec(channels=("a",), window=2), ("a", "a"))


@pytest.mark.parametrize("number", [2, -1])
def test_a_number_beyond_the_channels_is_refused(number: int) -> None:
    """A channel's number counts from 0 and lies below their count."""
    windower = Windower(InputSpec(channels=(0, number), window=2))
    with pytest.raises(ModelError, match=f"{number} is not a channel of the source, which has 2"):
        windower.push(reading(numbered(4)))


def test_names_need_a_header() -> None:
    """A source without column names is told apart from one that lacks this name."""
    windower = Windower(InputSpec(channels=("ax",), window=2))
    with pytest.raises(ModelError, match="no names for its 2 channels"):
        windower.push(reading(numbered(4)))


def test_without_a_window_each_entry_is_an_input() -> None:
    """Where the manifest sets no window, the first axis counts ready inputs, of any shape."""
    cubes = np.arange(2 * 3 * 4 * 1, dtype=np.float32).reshape(2, 3, 4, 1)

    found = Windower(InputSpec(layout="tc")).push(reading(cubes, 5, 0.5))

    assert [one.data.shape for one in found] == [(3, 4, 1), (3, 4, 1)]
    assert [one.data.tolist() for one in found] == cubes.tolist()
    assert {(one.time_ns, one.since) for one in found} == {(5, 0.5)}


def test_without_a_window_channels_still_choose() -> None:
    """Of rows that are inputs themselves, the named channels are taken, every n-th row."""
    windower = Windower(InputSpec(channels=("b",), every=2), ("a", "b"))

    found = [
        *windower.push(reading(numbered(3), columns=("a", "b"))),
        *windower.push(reading(numbered(3), columns=("a", "b"))),
    ]

    assert [one.data.tolist() for one in found] == [[1.0], [201.0], [101.0]]
    assert windower.rest == 0


def test_ready_inputs_cannot_be_cut() -> None:
    """A window over data of more than two sizes is a contradiction that is said."""
    with pytest.raises(ModelError, match="ready inputs of 3 by 4"):
        Windower(InputSpec(window=2)).push(reading(np.zeros((2, 3, 4), np.float32)))


def test_a_source_that_changes_its_width_is_refused() -> None:
    """Rows of another number of channels cannot follow on those before."""
    windower = Windower(InputSpec(window=2))
    windower.push(reading(numbered(1, 2)))
    with pytest.raises(ModelError, match="changed"):
        windower.push(reading(numbered(1, 3)))


def test_the_readings_of_the_imu_recipe() -> None:
    """1500 rows, every 10th, windows of 150: one window, and nothing is left over."""
    windower = Windower(InputSpec(window=150, every=10))

    found = windower.push(reading(numbered(1500, 8)))

    assert [one.data.shape for one in found] == [(150, 8)]
    assert found[0].data[:, 0].tolist() == [row * 1000.0 for row in range(150)]
    assert windower.rest == 0


def test_a_window_knows_when_its_first_and_last_sample_were_taken() -> None:
    """Where rows have times, a window has those of its own first and last one."""
    windower = Windower(InputSpec(window=4, hop=3, every=2))
    times = np.arange(1, 21, dtype=np.int64) * 1000

    found = [
        *windower.push(reading(numbered(7), 7000, times=times[:7])),
        *windower.push(reading(numbered(13), 20000, times=times[7:])),
    ]

    assert [(one.began_ns, one.time_ns) for one in found] == [
        (1000, 7000),
        (7000, 13000),
        (13000, 19000),
    ]
    assert [one.follows for one in found] == [False, True, True]


def test_zeros_lead_the_first_window_and_the_first_one_after_a_gap() -> None:
    """`lead` makes the first window come earlier; what it adds is no sample that could be lost."""
    windower = Windower(InputSpec(window=5, hop=3, lead=2))
    rows = numbered(6, 1) + 1

    first = windower.push(reading(rows))
    assert [one.data[:, 0].tolist() for one in first] == [
        [0, 0, 1, 101, 201],
        [101, 201, 301, 401, 501],
    ]
    windower.reset()
    assert windower.rest == 0
    windower.push(reading(rows[:1]))
    assert windower.rest == 1
    (again,) = windower.push(reading(rows[1:3]))
    assert again.data[:, 0].tolist() == [0, 0, 1, 101, 201]
    assert not again.follows


def test_windows_that_overlap_share_their_samples() -> None:
    """A window costs no copy of what it has in common with the one before."""
    windower = Windower(InputSpec(window=100, hop=1))
    found = windower.push(reading(numbered(300)))
    assert len(found) == 201
    assert all(np.shares_memory(a.data, b.data) for a, b in itertools.pairwise(found[:50]))
    whole = numbered(300)
    assert all((one.data == whole[n : n + 100]).all() for n, one in enumerate(found))


def test_one_reading_of_another_width_costs_only_itself() -> None:
    """The rows after an odd one are judged by those before it."""
    windower = Windower(InputSpec(window=2))
    windower.push(reading(numbered(2, 3)))
    with pytest.raises(ModelError, match="changed from 3 values a row to 4 values"):
        windower.push(reading(numbered(2, 4)))
    assert len(windower.push(reading(numbered(2, 3)))) == 1


def test_another_rate_than_the_models_is_refused() -> None:
    """A recording of another rate is not taken for what the model knows."""
    windower = Windower(InputSpec(window=2, rate_hz=16000))
    with pytest.raises(
        ModelError, match=r"44100 samples a second, .*set input.resample_hz = 16000"
    ):
        windower.push(reading(numbered(4), rate_hz=44100))


def test_keys_of_an_object_may_come_in_any_order() -> None:
    """A model that names no channels got them swapped, and others, without a word."""
    windower = Windower(InputSpec(window=1))

    def picked(**values: float) -> list[float]:
        data = np.array([[*values.values()]], np.float32)
        (window,) = windower.push(reading(data, columns=tuple(values)))
        return [float(value) for value in window.data[0]]

    assert picked(a=1, b=2) == [1, 2]
    assert picked(b=2, a=1) == [1, 2]
    assert picked(c=9, b=2, a=1) == [1, 2]
    for _ in range(2):
        with pytest.raises(ModelError, match="the source changed from a, b to a, c"):
            picked(a=1, c=7)
        assert picked(a=1, b=2) == [1, 2]
    for _ in range(2):
        with pytest.raises(ModelError, match="changed from a, b to d, c"):
            picked(d=1, c=7)
    assert picked(d=1, c=7) == [1, 7], "a source that stays with other names has these"
    assert picked(c=7, d=1) == [1, 7]


@pytest.mark.parametrize(("before", "nulls"), [(12, 3), (12, 40), (0, 1), (0, 8)])
def test_a_value_that_was_null_for_a_while_is_a_channel_again(before: int, nulls: int) -> None:
    """Three messages without it, or the first one, lost it until the next start."""
    windower = Windower(InputSpec(window=2))

    def say(count: int, **values: float) -> list[list[list[float]]]:
        data, found = np.array([[*values.values()]], np.float32), []
        for _ in range(count):
            with suppress(ModelError):
                found += windower.push(reading(data, columns=tuple(values)))
        return [window.data.tolist() for window in found]

    say(before, t=20, h=50)
    say(nulls, h=50)
    say(3 if before > nulls else 11, h=50, t=20)
    row = [20, 50] if before else [50, 20]
    assert say(4, h=50, t=20) == [[row, row]] * 2
    assert say(2, h=50, t=20, battery=90) == [[row, row]]


def test_what_a_device_says_now_and_then_is_no_channel() -> None:
    """Though its first message has it: the names that it stays with are those of the channels."""
    windower = Windower(InputSpec(window=1))
    whole, usual = ("t", "h", "battery"), ("t", "h")
    windower.push(reading(numbered(1, 3), columns=whole))
    for step in range(40):
        columns = whole if step % 10 in {8, 9} else usual
        piece = reading(numbered(1, len(columns)), columns=columns)
        if step < 2:
            with pytest.raises(ModelError, match="changed from t, h, battery to t, h"):
                windower.push(piece)
        else:
            assert [window.data.tolist() for window in windower.push(piece)] == [[[0, 1]]]


def test_every_nth_sample_has_another_rate() -> None:
    """Frequencies were taken for `every` times what they are, and no setting was right."""
    wave = np.sin(2 * np.pi * 100 * np.arange(2000) / 1000).astype(np.float32)[:, None]
    stats = Stats(of=("band:90-110", "band:190-210"))
    wrong = InputSpec(window=500, every=2, transform="stats", stats=stats, rate_hz=1000.0)
    for spec in (replace(wrong, rate_hz=500.0), replace(wrong, resample_hz=1000.0)):
        (window, *_) = Windower(spec).push(reading(wave, rate_hz=1000))
        of = transform_of(spec, TensorSpec("x", (1, 1, 2), "float32"))
        assert of is not None
        assert of(window.data).reshape(-1) == pytest.approx([0.5**0.5, 0], abs=0.01)
    with pytest.raises(ModelError, match=r"every = 2 keeps 500, .* set input.rate_hz = 500"):
        Windower(wrong).push(reading(wave, rate_hz=1000))
    plain = InputSpec(window=500, every=2, rate_hz=1000.0)
    assert len(Windower(plain).push(reading(wave, rate_hz=1000))) == 2, "no frequency matters"


def test_a_row_that_is_an_input_has_its_own_time() -> None:
    """All rows of a message had the time of the last one; after a gap the first begins anew."""
    windower = Windower(InputSpec(every=2))
    times = np.arange(1, 6, dtype=np.int64) * 10**9

    def cut(rows: int = 5) -> list[tuple[int, float | None, bool]]:
        piece = reading(numbered(rows), int(times[-1]), 20.0, times=times[-rows:], at=105.0)
        return [(one.time_ns, one.at, one.follows) for one in windower.push(piece)]

    assert cut() == [
        (10**9, 101.0, False),
        (3 * 10**9, 103.0, True),
        (5 * 10**9, 105.0, True),
    ]
    windower.skip()
    assert [follows for *_, follows in cut()] == [True, True, True]
    windower.reset()
    assert [follows for *_, follows in cut()] == [False, True, True]


@pytest.mark.parametrize("more", [{}, {"window": 2, "hop": 2}, {"resample_hz": 1.0}])
def test_rows_behind_one_that_is_left_out_keep_their_times(more: dict[str, Any]) -> None:
    """They had those of the first rows of the message; resampled, the pipeline lost its source."""
    windower = Windower(InputSpec(**more))
    rows = numbered(7, 1)
    rows[2] = np.nan
    times = np.arange(7, dtype=np.int64) * 10**9
    whole = reading(
        rows, int(times[-1]), times=times, at=6.0, flaw=lambda _row, _column: SampleError("none")
    )
    found = []
    for part in windower.usable(whole):
        if isinstance(part, SampleError):
            windower.skip()
        else:
            found += windower.push(part)
    assert found
    for one in found:
        assert one.data.reshape(-1)[-1] == one.time_ns / 10**9 * 100
        assert one.at == one.time_ns / 10**9


@pytest.mark.parametrize("step_s", [-3600, 3600, 30 * 86400])
def test_a_clock_that_is_set_neither_silences_nor_invents_resampled_readings(step_s: int) -> None:
    """Set back, none came until it had caught up; set forward, all of that time was made up."""
    continuity, windower = Continuity(None), Windower(InputSpec(resample_hz=50.0))
    made = []
    for count in range(20):
        wall = 1_800_000_000 + 0.2 * count + (step_s if count >= 10 else 0)
        judged = continuity.judge(Rows(numbered(10, 1), int(wall * 1e9), 100 + 0.2 * count))
        assert judged is not None
        found = windower.push(judged)
        made.append(len(found))
        assert all(0 <= wall - one.time_ns / 1e9 < 0.3 for one in found[-9:])
    assert sum(made) == pytest.approx(191, abs=2)
    assert max(made) <= 20


def test_a_sender_whose_clock_is_set_at_once_does_not_fill_the_memory() -> None:
    """With its usual interval not known yet, a month had been interpolated: 3 GB."""
    continuity, windower = Continuity(None), Windower(InputSpec(resample_hz=50.0, window=2))
    now = 1_800_000_000
    made = []
    for count, said in enumerate((now - 30 * 86400, now, now + 1)):
        times = np.array([said * 10**9], np.int64)
        judged = continuity.judge(Rows(numbered(1, 1), (now + 2) * 10**9, 100.0 + count, (), times))
        assert judged is not None
        made += windower.push(judged)
    assert len(made) == 25
    assert [one.follows for one in made[:2]] == [False, True]
    both = np.array([now - 86400, now + 2], np.int64) * 10**9
    judged = Continuity(None).judge(Rows(numbered(2, 1), (now + 3) * 10**9, 1.0, (), both))
    assert judged is not None
    with pytest.raises(ModelError, match="between two rows"):
        Windower(InputSpec(resample_hz=50.0)).push(judged)


def test_a_rate_far_below_the_source_s_is_refused() -> None:
    """The filter of a rate with a wrong exponent took all memory, and the source was blamed."""
    rows = Reading(np.zeros((10, 1), np.float32), 0, 0.0)
    with pytest.raises(ModelError, match=r"1e-09 is too low for a source of 6400 .* at least 0.12"):
        Windower(InputSpec(resample_hz=1e-9, rate_hz=6400.0, window=2)).push(rows)


def test_a_microphone_is_resampled_as_a_recording_of_it() -> None:
    """By lines along its times of arrival, 12 kHz came back as 4 kHz."""
    t = np.arange(48000) / 48000
    sound = np.sin(2 * np.pi * 12000 * t).astype(np.float32)[:, None]
    spec = InputSpec(resample_hz=16000.0, rate_hz=16000.0, window=1000)
    continuity, live, recorded = Continuity(None), Windower(spec), Windower(spec)
    heard, now = [], 1_800_000_000 * 10**9
    for count, piece in enumerate(np.array_split(sound, 10)):
        late = (count % 3) * 0.02
        rows = Rows(
            piece, now + int((count / 10 + late) * 1e9), 5 + count / 10 + late, (), None, 48000
        )
        judged = continuity.judge(rows)
        assert judged is not None
        heard += live.push(judged)
    kept = recorded.push(reading(sound, now, rate_hz=48000.0))
    assert [one.data.tolist() for one in heard] == [one.data.tolist() for one in kept]
    # The filter needs some samples after each.
    steps = np.diff([one.time_ns / 1e9 for one in heard])
    assert np.abs(steps - 1000 / 16000).max() < 0.05


def test_a_key_that_a_sensor_gains_is_no_channel_of_a_model_that_has_run_without_it() -> None:
    """As long after as it had run before, the model got a fourth channel, and nothing more."""
    windower = Windower(InputSpec(window=4, hop=4))
    names = ("x", "y", "z")
    found = []
    for count in range(400):
        columns = names if count < 100 else (*names, "battery")
        found += windower.push(reading(numbered(1, len(columns)), columns=columns))
    assert {one.data.shape for one in found} == {(4, 3)}
    assert len(found) == 100


def test_what_a_device_said_at_its_start_does_not_come_and_go() -> None:
    """Three messages of all values, then two values, and the third now and then."""
    windower, whole = Windower(InputSpec()), ("t", "h", "battery")
    for count in range(200):
        columns = whole if count < 3 or count % 40 < 4 else whole[:2]
        with suppress(ModelError):
            windower.push(reading(numbered(1, len(columns)), columns=columns))
    (last,) = windower.push(reading(numbered(1, 3), columns=whole))
    assert last.data.shape == (2,)
