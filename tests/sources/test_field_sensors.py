"""Sensors as people report them from the field; each test is named after its report."""

from __future__ import annotations

import logging
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent import BUILD_DATE
from edge_agent.core.errors import ModelError, SampleError
from edge_agent.core.types import Reading
from edge_agent.inference.preprocess.windowing import Channels
from edge_agent.inference.readings import value_names
from edge_agent.models.manifest import InputSpec
from edge_agent.sources.continuity import Continuity, Rows
from edge_agent.sources.live_signal import Signal
from edge_agent.sources.mqtt_topic import Payload
from edge_agent.sources.serial_line import HEADERS, MAX_LINE, SerialLines
from edge_agent.sources.source import open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.small_models import plain


@pytest.mark.parametrize(
    ("text", "fields", "rows"),
    [
        ('{"SG":"1.0260","Temp":"74.0"}', (), [[1.026, 74.0]]),
        ('{"temperature":"20.0","humidity":50}', ("temperature", "humidity"), [[20.0, 50.0]]),
        ('"23.5"', (), [[23.5]]),
        ('{"v":"+23.5","w":".5","x":"5.","y":"023.5"}', (), [[23.5, 0.5, 5.0, 23.5]]),
        ('{"v": 1, "id": "17"}', (), [[1.0]]),
    ],
)
def test_tiltbridge_193_numbers_as_text(
    text: str, fields: tuple[str, ...], rows: list[list[float]]
) -> None:
    """A text that is nothing but a number is one where it is named, or where there is no other."""
    found, _, _ = Payload(fields).read(text.encode())
    assert found == pytest.approx(np.array(rows), rel=1e-6)


@pytest.mark.parametrize("text", ['{"v":"on"}', '{"v":"1_0"}', '{"v":"nan"}', '{"v":"1 2"}', '"x"'])
def test_other_texts_are_no_numbers(text: str) -> None:
    """What only looks a bit like a number is refused."""
    with pytest.raises(SampleError, match="expected"):
        Payload(("v",) if text.startswith("{") else ()).read(text.encode())


def rows_at(said: float, arrived: float, *values: float) -> Rows:
    """Make one reading that says the time *said*, seconds since 1970, and comes at *arrived*."""
    times = np.array([round(said * 1e9)], np.int64)
    return Rows(np.array([values], np.float32), round(arrived * 1e9), arrived, ("v",), times)


@pytest.mark.parametrize("said", [17.851, 17851.0, 86400.0 * 365, BUILD_DATE.timestamp() - 86401])
def test_openmqttgateway_1533_uptime_is_no_time(said: float) -> None:
    """A clock that counts from the device's own start is named, not taken for 1970."""
    with pytest.raises(
        SampleError, match=r"days before this agent was built; .* from its own start"
    ):
        Continuity(None).judge(rows_at(said, time.time(), 1.0))


def test_a_device_whose_own_clock_is_not_set_takes_the_times_of_sensors() -> None:
    """All were refused until the network was back, as if their clocks were wrong."""
    behind = iter([True, True, False])
    continuity, now = Continuity(None, None, lambda: next(behind)), time.time()
    for hours in (2, 1):  # it goes on from when it was switched off
        reading = continuity.judge(rows_at(now - 3600 * hours, now - 86400, 1.0))
        assert reading is not None
        assert reading.time_ns == round((now - 3600 * hours) * 1e9)
    for number in range(3):
        reading = continuity.judge(rows_at(now + number, 60.0 + number, 1.0))
        assert reading is not None
        assert reading.time_ns == round((now + number) * 1e9)
    with pytest.raises(SampleError, match=r"in the future.*names no zone is taken as local time"):
        continuity.judge(rows_at(now + 3600, now, 1.0))


def test_zigbee2mqtt_a_sensor_that_reports_now_and_then_has_no_gaps() -> None:
    """An eighth of its intervals were gaps, so that `for_s` of ten minutes hardly ever came.

    A long silence is one nevertheless, as the sensor may have been away.
    """
    continuity, since, gaps = Continuity(None), 1e6, []
    pauses = np.random.default_rng(3).exponential(2.0, 200)
    for pause in (*pauses, 60.0):
        since += pause
        reading = continuity.judge(Rows(np.ones((1, 1), np.float32), int(since * 1e9), since))
        assert reading is not None
        gaps.append(reading.gap)
    assert not any(gaps[20:200])
    assert gaps[200]


@pytest.mark.parametrize("timed", [False, True])
def test_a_sensor_that_begins_with_quick_messages_has_no_gaps_later(timed: bool) -> None:
    """Each reading was one for good, so that no `for_s` and no window ever came."""
    continuity, now, gaps = Continuity(None), time.time(), []
    for number, pause in enumerate([1.0] * 5 + [60.0] * 20 + [7200.0] + [60.0] * 20 + [900.0] * 20):
        now += pause
        rows = rows_at(now, now, float(number))
        reading = continuity.judge(rows if timed else replace(rows, times=None))
        assert reading is not None
        gaps.append(reading.gap)
    assert not any(gaps[10:25]), "five longer ones in a row are usual"
    assert gaps[25], "hours of silence"
    assert not any(gaps[26:46])
    assert not any(gaps[54:]), "of a longer interval that its owner has set"


@pytest.mark.parametrize(
    ("pauses", "most"),
    [
        ([1.0, 1.0, 30.0], 10),
        ([1.0] * 4 + [60.0], 10),
        ([600.0, 600.0, 600.0, 60.0], 5),
        ([1.0] * 40 + [60.0], 0),
    ],
)
def test_a_sensor_that_gives_some_readings_at_once_has_few_gaps(
    pauses: list[float], most: int
) -> None:
    """There was one at each pause; where these are rare, there still is."""
    continuity, now, gaps = Continuity(None), time.time(), []
    for pause in [60.0] * 8 + pauses * 60 if pauses[0] > 60 else pauses * 60:
        now += pause
        reading = continuity.judge(rows_at(now, now, now % 100))
        assert reading is not None
        gaps.append(reading.gap)
    assert sum(gaps) <= most if most else sum(gaps) == 60


def test_a_stream_in_blocks_keeps_its_interval_unless_it_has_another() -> None:
    """Whatever is lost now and then; a recorder whose owner had it send less often was cut up."""
    continuity, now, gaps = Continuity(None), time.time(), []
    for pause in [1.0] * 40 + ([1.0] * 3 + [5.0]) * 10 + [60.0] * 20:
        now += pause
        reading = continuity.judge(Rows(np.zeros((10, 1), np.float32), int(now * 1e9), now))
        assert reading is not None
        gaps.append(reading.gap)
    assert gaps[:80] == [False] * 40 + [False, False, False, True] * 10
    assert gaps[80:] == [True] * sum(gaps[80:]) + [False] * (20 - sum(gaps[80:]))
    assert 4 <= sum(gaps[80:]) <= 5


@pytest.mark.parametrize(("unit", "pause"), [(1.0, 0.2), (1.0, 0.05), (0.001, 0.0002)])
def test_tasmota_6068_times_of_whole_seconds(unit: float, pause: float) -> None:
    """Unlike readings of one time are all kept, in their order; the same one twice is one."""
    continuity = Continuity(None)
    begin = float(int(time.time()))
    readings: list[Reading] = []
    for number in range(30):
        now = begin + number * pause
        said = begin + int(number * pause / unit + 1e-6) * unit
        reading = continuity.judge(rows_at(said, now, float(number)))
        assert reading is not None
        readings.append(reading)
        assert continuity.judge(rows_at(said, now, float(number))) is None
    times = np.array([reading.time_ns for reading in readings])
    assert (np.diff(times) > 0).all()
    assert abs(times[-1] / 1e9 - (begin + 29 * pause)) < unit
    assert not any(reading.gap for reading in readings)
    assert (continuity.counts.samples, continuity.counts.doubled) == (30, 30)


def lines(base: Path) -> SerialLines:
    """Make the reader of a port, without the port."""
    made = object.__new__(SerialLines)
    spec = parse_source("serial:/dev/ttyS9", base)
    made._name, made._separator = spec.redacted, spec.options["separator"]
    made._rest, made._first, made._too_long = b"", False, False
    made._columns, made._headers, made._seen, made._missing = (), 0, False, False
    made._unread, made._width = None, 0
    return made


@pytest.mark.parametrize(
    "text",
    [
        b"t:3.2,h:1.0\r\nt:3.5,h:1.0\r\n",
        b"t = 3.2, h = 1\rt=3.5,h=1e0\r",
        b"t:3.2,h:1\nt:3.5,h:1\n",
    ],
)
def test_victron_49357_labels_and_values(text: bytes, tmp_path: Path) -> None:
    """Each line says which value is which; lines may end with a carriage return alone."""
    found = [row for row in lines(tmp_path).take(text, 0, 0.0) if isinstance(row, Rows)]
    assert {row.columns for row in found} == {("t", "h")}
    assert np.concatenate([row.data for row in found]) == pytest.approx(
        np.array([[3.2, 1.0], [3.5, 1.0]])
    )


def test_bytes_without_the_end_of_a_line_are_said(tmp_path: Path) -> None:
    """As at a wrong baud rate; from the second 64 KiB on it ended in an index out of range."""
    port = lines(tmp_path)
    said = [
        str(found)
        for step in range(6)
        for found in port.take(b"1" * (MAX_LINE - 1), 0, 10.0 * step)
    ]
    assert said[0] == f"a line of more than {MAX_LINE} bytes, expected numbers"
    assert said[1].startswith("expected lines of numbers, found '1111")


def test_a_reading_of_very_many_values_has_its_names_at_once() -> None:
    """100,001 numbers in one message took a thread for minutes, while health said `ok`."""
    names = value_names((), 100_001)
    assert names[::100_000] == ("0", "100000")
    assert value_names(("a", "b", "a"), 3) == ("a[0]", "b", "a[2]")


def test_lines_of_json_name_their_channels(tmp_path: Path) -> None:
    """Objects, arrays and CSV; keys may come and go, and what is cut off costs itself."""
    text = (
        b'{"t": 3.2, "h": 1, "id": "a"}\r\n{"h": "1", "t": 3.5}\n'
        b'{"t": 3.6}\n{"t": \n[1, 2]\r{"id": "b"}\n{"t": NaN}\n7,8\n'
    )
    found = lines(tmp_path).take(text, 0, 0.0)
    rows = [(row.columns, row.data.tolist()) for row in found if isinstance(row, Rows)]
    assert rows == [
        (("t", "h"), [[3.2, 1.0]]),
        (("t",), [[3.5]]),
        (("t",), [[3.6]]),
        ((), [[1.0, 2.0]]),
        ((), [[7.0, 8.0]]),
    ]
    assert sum(isinstance(each, SampleError) for each in found) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"Time": "x", "AM2301": {"Temperature": 21.5}}', "as ?field=AM2301.Temperature"),
        ('{"method": "x", "params": {"switch:0": {"apower": 3}}}', "?field=params.switch:0.apower"),
        ('{"fields": {"usage_user": 1.5}, "timestamp": 1796171030}', "as ?field=fields.usage_user"),
    ],
    ids=["Tasmota", "Shelly", "Telegraf"],
)
def test_numbers_below_the_top_are_named_with_the_way_to_read_them(text: str, words: str) -> None:
    """Telegraf's only value was its time stamp, and a rule on the others waited for ever."""
    said: list[str] = []
    payload = Payload(remark=lambda _path, why: said.append(why))
    try:
        payload.read(text.encode())
    except SampleError as problem:
        said.append(str(problem))
    (line,) = said
    assert line.endswith(words)


def test_json_lines_that_do_not_know_their_value_are_no_gap(tmp_path: Path) -> None:
    """ArduinoJson writes NaN as null: a DHT22 that failed to be read now and then never alarmed."""

    class Port:
        """Gives what a port has read."""

        def read(self, timeout: float) -> list[Rows | SampleError]:
            since = time.monotonic() + timeout
            return [
                each
                for step, value in enumerate(("50", "null", "50", '"unavailable"', "50"))
                for each in port.take(f'{{"t": {value}}}\n'.encode(), 0, since + step)
            ]

        def close(self) -> None:
            pass

    port = lines(tmp_path)
    signal = Signal(parse_source("serial:/dev/ttyS9?gap_s=60", tmp_path), Port(), None)
    found = signal.read(0, lambda _at: True)
    quiet = [isinstance(item, SampleError) and item.quiet_at is not None for item in found]
    assert quiet == [False, True, False, True, False]
    assert not any(isinstance(item, Reading) and item.gap for item in found)
    assert signal.continuity.counts.refused == 0


@pytest.mark.parametrize(("gap_s", "told"), [(2, 1), (60, 0)])
def test_a_gap_s_shorter_than_each_interval_is_told(
    gap_s: int, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule with for_s never began, while health said ok."""
    port = lines(tmp_path)

    class Port:
        """Gives a line each ten seconds."""

        def read(self, timeout: float) -> list[Rows | SampleError]:
            taken = (port.take(b"50\n", 0, timeout + 10 * step) for step in range(20))
            return [each for rows in taken for each in rows]

        def close(self) -> None:
            pass

    signal = Signal(parse_source(f"serial:/dev/ttyS9?gap_s={gap_s}", tmp_path), Port(), None)
    assert len(signal.read(0, lambda _at: True)) == 20
    words = (
        f"serial:/dev/ttyS9?gap_s={gap_s}: each reading comes after a gap, so that no for_s passes "
        "and no window spans two of them: gap_s is shorter than the usual silence"
    )
    assert [each.message for each in caplog.records if "gap_s" in each.message] == [words] * told


@pytest.mark.parametrize(("before", "after"), [("t,h", "h,t"), ("t,h", "h,p,t"), ("", "t,h")])
@pytest.mark.parametrize("first", ["", "nan,50\n"])
def test_a_device_that_comes_back_with_another_header(
    before: str, after: str, first: str, tmp_path: Path
) -> None:
    """Its values were published, and rules fired, under the names of before, or were refused."""
    text = f"x\n{before}\n20,50\n20,50\n{after}\n"
    count = after.count(",") + 1
    rest = [1.0 + place for place in range(count)]
    text += first if count == 2 else ""
    text += (",".join(map(str, rest)) + "\n") * 2
    found = [each for each in lines(tmp_path).take(text.encode(), 0, 0.0) if isinstance(each, Rows)]
    assert [(each.columns, each.gap) for each in found] == [
        (tuple(before.split(",")) if before else (), False),
        (tuple(after.split(",")), True),
    ]
    assert found[0].data.tolist() == [[20, 50]] * 2
    assert found[1].data[-2:].tolist() == [rest] * 2


@pytest.mark.parametrize(
    "message", ["lost", "sensor lost,trying again", "a,b,c", "nan,nan", "t,h", "a,b\nt,h"]
)
def test_what_a_device_says_between_its_numbers_names_nothing(message: str, tmp_path: Path) -> None:
    """A message in words, or names without numbers to them; the header of before is a gap."""
    text = f"x\nt,h\n1,2\n{message}\n1,2\n".encode()
    for parts in ([text], [line + b"\n" for line in text.splitlines()]):
        port = lines(tmp_path)
        said = [each for part in parts for each in port.take(part, 0, 0.0)]
        rows = [each for each in said if isinstance(each, Rows)]
        told = [(each.columns, bool(each.gap)) for each in rows for _ in each.data]
        assert told == [(("t", "h"), False), (("t", "h"), message.endswith("t,h"))]


@pytest.mark.parametrize("line", ["٣,٤", "t:१,h:2"])
def test_digits_of_other_scripts_are_no_numbers_of_a_serial_port(line: str, tmp_path: Path) -> None:
    """Such a line is refused and said, as in a CSV file; those around it are readings."""
    good = "t:1,h:2" if ":" in line else "1,2"
    said = lines(tmp_path).take(f"{good}\n{good}\n{line}\n{good}\n".encode(), 0, 0.0)
    assert [len(each.data) for each in said if isinstance(each, Rows)] == [2, 1]
    (wrong,) = [str(each) for each in said if isinstance(each, SampleError)]
    assert wrong.endswith(f"found {line!r}")


@pytest.mark.parametrize("cell", ["x", "", "nan", "४", "1e999"])
def test_what_a_model_does_not_read_of_a_line_costs_nothing(cell: str, tmp_path: Path) -> None:
    """Channels are picked first: only who takes that one hears of it."""
    (rows,) = lines(tmp_path).take(f"1,2\n1,2\n{cell},3\n4,5\n".encode(), 0, 0.0)
    assert isinstance(rows, Rows)
    assert rows.data[:, 1].tolist() == [2, 2, 3, 5]
    assert np.isnan(rows.data[:, 0]).tolist() == [False, False, True, False]
    assert rows.flaw is not None
    assert str(rows.flaw(2, 0)) == "expected a number at place 0 of each line"


def test_what_a_line_says_is_not_known_is_told_apart(tmp_path: Path) -> None:
    """Of an object by its keys; of a row each place without a number is one."""
    said = lines(tmp_path).take(b'{"t": "off", "h": 40}\n{"h": 40}\n1,2\nnan,2\n', 0, 0.0)
    found = [item.unknown for item in said if isinstance(item, Rows)]
    assert found == [{"t": "t: expected numbers, found '\"off\"'"}, {}, None]


@pytest.mark.parametrize("line", ["1" * 60_000 + "x", "t" + " " * 60_000 + "x"])
def test_a_long_line_of_noise_is_refused_at_once(line: str, tmp_path: Path) -> None:
    """Trying each division of it took minutes, in which no pipeline had a result."""
    said = lines(tmp_path).take(f"t:1\nt:1\n{line}\nt:1\n".encode(), 0, 0.0)
    assert [len(each.data) for each in said if isinstance(each, Rows)] == [2, 1]
    assert sum(isinstance(each, SampleError) for each in said) == 1


@pytest.mark.parametrize("text", [b"\xff\xf8", b"1;2\n", b"t:3.2C\n"])
def test_a_slow_device_whose_bytes_make_no_reading_is_said_within_10_s(
    text: bytes, tmp_path: Path
) -> None:
    """No line end, as at a wrong baud rate, or another separator: not only after many lines."""
    reader = lines(tmp_path)
    said = [each for second in range(10) for each in reader.take(text, 0, float(second))]
    assert str(said[0]).endswith("check ?baud= and ?separator=")
    # Names, and the first half of a line much later, are as they should be.
    reader = lines(tmp_path)
    assert [reader.take(part, 0, at) for part, at in ((b"t,h\n", 0.0), (b"1,", 60.0))] == [[], []]
    assert isinstance(reader.take(b"2\n", 0, 60.1)[0], Rows)


def test_lines_without_numbers_are_said(tmp_path: Path) -> None:
    """A device that never sends a number is not taken for one that sends names for ever."""
    reader = lines(tmp_path)
    said = reader.take(b"".join(b"state,%c\n" % (97 + i % 26) for i in range(HEADERS + 5)), 0, 0.0)
    assert len(said) == 5
    assert all(isinstance(each, SampleError) for each in said)


@pytest.mark.parametrize(("line", "name"), [("8.0 10", "space"), ("9.5;11; 3.1e+00", ";")])
def test_lines_with_another_separator_are_refused_with_its_name(
    line: str, name: str, tmp_path: Path
) -> None:
    """It said "expected numbers, found '8.0 10'"."""
    said = lines(tmp_path).take(f"{line}\n".encode() * (HEADERS + 2), 0, 0.0)
    assert str(said[0]).endswith(f"expected numbers, found {line!r}; write ?separator={name}")


@pytest.mark.parametrize("kind", [b"RF64", b"BW64"])
def test_imftool_21_rf64(kind: bytes, tmp_path: Path) -> None:
    """A long recording has its lengths in a part of its own."""
    samples = (np.arange(100) * 100).astype("<i2").tobytes()
    layout = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    data = kind + b"\xff\xff\xff\xffWAVE"
    data += b"ds64" + struct.pack("<IQQQI", 28, 72 + len(samples), len(samples), 100, 0)
    data += b"fmt " + struct.pack("<I", 16) + layout
    data += b"data\xff\xff\xff\xff" + samples + b"LIST" + struct.pack("<I", 4) + b"INFO"
    (tmp_path / "long.wav").write_bytes(data)
    source = open_source(parse_source("wav:long.wav", tmp_path))
    assert source.grab()
    assert source.retrieve().data[:, 0] == pytest.approx(np.arange(100) * 100 / 32768)
    assert not source.grab()
    source.close()


def test_photoprism_3705_pictures_that_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`.jfif` and `.jpe` are JPEG; of what cannot be read one line says so."""
    from edge_agent.sources.opencv import load

    data = load().imencode(".jpg", plain(90))[1].tobytes()
    for name in ("a.jfif", "b.jpe", "c.HEIC", "d.avif"):
        (tmp_path / name).write_bytes(data)
    with caplog.at_level(logging.WARNING):
        source = open_source(parse_source(f"dir:{tmp_path}?loop=1", tmp_path))
        names = []
        for _ in range(4):
            assert source.grab()
            names.append(source.retrieve().file)
    assert names == ["a.jfif", "b.jpe"] * 2
    said = [record.message.partition("passes over ")[2] for record in caplog.records]
    assert said == ["2 pictures of a kind that it cannot read (.avif, .heic)"]


def test_core_48851_keys_that_come_in_some_messages_only() -> None:
    """Channels that the manifest names are read whatever else a message holds."""
    spec = InputSpec(channels=("humidity", "temperature"))
    channels = Channels(spec, (), lambda: None)
    for text in (
        '{"temperature":20,"humidity":50,"linkquality":100}',
        '{"battery":90,"temperature":20,"humidity":50}',
        '{"temperature":20,"humidity":50}',
    ) * 2:
        rows, columns, _ = Payload().read(text.encode())
        reading = Reading(rows, 0, 0.0, columns=columns)
        assert channels.pick(reading).tolist() == [[50.0, 20.0]]
    rows, columns, _ = Payload().read(b'{"temperature":20}')
    with pytest.raises(ModelError, match="'humidity' is not a column"):
        channels.pick(Reading(rows, 0, 0.0, columns=columns))


@pytest.mark.parametrize("text", ["1700000000.5", "1700000000500"])
def test_a_time_may_be_a_number_in_a_text(text: str) -> None:
    """As a value may be; its unit is told by its size, as of any number."""
    message = f'{{"v": "1", "t": "{text}"}}'.encode()
    _, _, times = Payload(("v",), "t").read(message)
    assert times is not None
    assert times.tolist() == [1_700_000_000_500_000_000]


def test_the_first_batches_with_one_time_are_not_drawn_together() -> None:
    """How far apart the rows of the first message are is not known; nothing is made across them."""
    continuity, start = Continuity(None), time.time() - 10
    readings = []
    for second in range(4):
        at = start + second * 0.1
        rows = np.arange(100, dtype=np.float32)[:, None]
        times = np.array([round(at * 1e9)], np.int64)
        found = continuity.judge(Rows(rows, round(at * 1e9), at, ("v",), times))
        assert found is not None
        assert found.times is not None
        readings.append(found)
    assert [each.gap for each in readings] == [False, True, False, False]
    for each in readings[1:]:
        assert each.times is not None
        assert np.diff(each.times) == pytest.approx(np.full(99, 1e6), rel=0.01)
