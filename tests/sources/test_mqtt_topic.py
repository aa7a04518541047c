"""What comes in messages of others: numbers and times without end are a reading's fault only."""

from __future__ import annotations

import itertools
import logging
import threading
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from edge_agent.cli.samples import Samples
from edge_agent.core.errors import SampleError
from edge_agent.core.names import ALONE
from edge_agent.models.manifest import InputSpec
from edge_agent.mqtt import subscriptions
from edge_agent.mqtt.connection import ReceivedMessage
from edge_agent.mqtt.subscriptions import Feeds
from edge_agent.sources.continuity import Rows
from edge_agent.sources.live_signal import EMPTY, UNREAD, Signal
from edge_agent.sources.mqtt_topic import Payload, TopicMessages, flaw
from edge_agent.sources.spec import parse_source
from tests.helpers.support import wait_until

ENDLESS = "9" * 400


@pytest.mark.parametrize(
    "text",
    [ENDLESS, f"[{ENDLESS}]", f"[[1, {ENDLESS}]]", f'{{"v": {ENDLESS}}}', "1e400", "-1e39"],
)
def test_a_number_that_no_float_holds_is_refused(text: str) -> None:
    """JSON's whole numbers know no end."""
    with pytest.raises(SampleError, match=r"expected (finite )?numbers, found|that holds numbers"):
        Payload(("v",) if text.startswith("{") else ()).read(text.encode())


@pytest.mark.parametrize(
    ("text", "column", "values"),
    [
        ('{"a": 1, "b": NaN}', "a", [1]),
        ('{"a": 1, "b": 1e999, "c": 2}', "c", [2]),
        ('{"a": 1, "b": [1, 2], "c": 2}', "a", [1]),
        ('{"a": [1, 2], "b": [3, 4], "c": [1, 2, 3]}', "b", [3, 4]),
        ('{"a": 1, "b": [0, "x"]}', "a", [1]),
        ("[null, 1]", 1, [1]),
        ('["x", 2]', 1, [2]),
        ("[[null, 1], [2, 3]]", 1, [1, 3]),
    ],
)
def test_what_a_model_does_not_read_costs_nothing(
    text: str, column: str | int, values: list[float]
) -> None:
    """Channels are picked first: what is no number is missing, and only where it is wanted."""
    rows, names, _ = Payload().read(text.encode())
    place = names.index(column) if isinstance(column, str) else column
    assert rows[:, place].tolist() == values
    assert np.isnan(rows).any()
    why = flaw(rows, names)
    assert why is not None
    assert str(why(0, 0)).startswith("expected a ")


def test_which_of_unequal_fields_belong_together_is_asked() -> None:
    """As many have one length as another."""
    with pytest.raises(SampleError, match=r"found \[1, 2\]; name with \?field="):
        Payload().read(b'{"a": 5, "b": [1, 2]}')
    rows, _, _ = Payload(format="f32", channels=2).read(np.array([np.nan, 5], "<f4").tobytes())
    assert rows[0, 1] == 5


@pytest.mark.parametrize("text", ["1" * 1_000_000 + "x", "1." + "0" * 1_000_000 + "x"])
def test_a_long_text_of_digits_is_refused_at_once(text: str) -> None:
    """Its digits were divided in all ways: a message of 900 kB stopped the agent for hours."""
    with pytest.raises(SampleError, match="expected numbers, found"):
        Payload(("v",)).read(f'{{"v": "{text}"}}'.encode())


@pytest.mark.parametrize(
    "when",
    [
        '"0001-01-01T00:00:00Z"',
        '"9999-12-31T23:59:59Z"',
        "10000000000",
        "99999999999",
        "-1",
        ENDLESS,
        '"soon"',
    ],
)
def test_a_time_that_no_clock_tells_is_refused(when: str) -> None:
    """As what has never been set: .NET's DateTime.MinValue, and its MaxValue."""
    with pytest.raises(SampleError, match="t: expected a time, found"):
        Payload(("v",), "t").read(f'{{"v": 1, "t": {when}}}'.encode())


@pytest.mark.parametrize("when", ['"2026-11-22T20:00:00Z"', "1795377600", "1795377600000", "0"])
def test_a_time_is_read_in_each_unit(when: str) -> None:
    """Seconds, milliseconds and ISO 8601 tell the same moment."""
    rows, names, times = Payload(("v",), "t").read(f'{{"v": 1.5, "t": {when}}}'.encode())
    assert (rows.tolist(), names) == ([[1.5]], ("v",))
    assert times is not None
    assert times.tolist() == [0 if when == "0" else 1795377600 * 10**9]


@pytest.mark.parametrize("said", ["1796122512345", "1795377600000"])
def test_milliseconds_in_a_text_are_no_date(said: str) -> None:
    """Where digits 5 to 8 of them are a month and a day, they were one of the year 1796."""
    _, _, times = Payload(("v",), "t").read(f'{{"v": 1, "t": "{said}"}}'.encode())
    assert times is not None
    assert times[0] == pytest.approx(int(said) * 10**6, abs=1000)


def test_a_time_without_a_zone_is_local_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Of a plug in another zone than this device's, hours were off in silence."""
    feeds = Feeds()
    sensor = TopicMessages(feeds, "z/plug", Payload(("v",), "t"))
    for when in ("2026-12-01T11:35:03+00:00", "2026-12-01T11:35:03", "2026-12-01T11:35:04"):
        message = f'{{"v": 1, "t": "{when}"}}'.encode()
        feeds.take(ReceivedMessage("z/plug", message, False, None, None, lambda: None, 0))
    with caplog.at_level(logging.WARNING):
        found = [item.times for item in sensor.read(0) if not isinstance(item, SampleError)]
    local = datetime(2026, 12, 1, 11, 35, 3).astimezone()
    assert found[1] is not None
    assert found[1].tolist() == [int(local.timestamp()) * 10**9]
    (words,) = [record.message for record in caplog.records]
    assert words.startswith("mqtt:z/plug: t: '2026-12-01T11:35:03' names no zone and is taken as")
    assert f"local time here, {local.tzname()};" in words


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (("contact",), {"contact": 1.0}),
        (("battery", "tamper"), {"battery": 97.0, "tamper": 0.0}),
        (("in.1",), {"in.1": 0.0}),
        ((), {"battery": 97.0}),
    ],
)
def test_a_boolean_is_one_or_zero_where_it_is_named(
    fields: tuple[str, ...], found: dict[str, float]
) -> None:
    """A door contact of zigbee2mqtt; who names no field gets the numbers, as before."""
    message = b'{"battery": 97, "contact": true, "tamper": false, "in": [true, false], "on": "ON"}'
    rows, names, _ = Payload(fields).read(message)
    assert dict(zip(names, rows[0].tolist(), strict=True)) == found


def test_booleans_are_taken_where_there_are_no_numbers() -> None:
    """As texts that are numbers are; a time is none of them, and a boolean is no time."""
    rows, names, _ = Payload().read(b'{"contact": false, "tamper": true, "name": "door"}')
    assert (names, rows.tolist()) == (("contact", "tamper"), [[0.0, 1.0]])
    with pytest.raises(SampleError, match="t: expected a time, found"):
        Payload((), "t").read(b'{"contact": false, "t": true}')
    assert [Payload().read(alone)[0].tolist() for alone in (b"true", b"false")] == [[[1]], [[0]]]


def test_a_field_is_one_of_the_values_of_an_array() -> None:
    """`v.2` is the third, so that a reading in one array has its channels; beyond it is none."""
    message = b'{"v": [1, 2, 3], "w": [{"x": 4}]}'
    rows, names, _ = Payload(("v.2", "v.0", "w.0.x")).read(message)
    assert (rows.tolist(), names) == ([[3, 1, 4]], ("v.2", "v.0", "w.0.x"))
    for path in ("v.3", "v.-1", "v.x", "v.0.0", "v." + "1" * 5000):
        with pytest.raises(SampleError, match=f"expected a field {path}, found"):
            Payload((path,)).read(message)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (b'{"values": {"Ch1.Dev1.Tag": 5, "Ch1": {"Dev1.Tag": 6}}}', "values.Ch1.Dev1.Tag"),
        (b'{"a.b": {"x": 1}, "a": {"b.c": [{"d.e": 5}], "b": {"c": [6]}}}', "a.b.c.0.d.e"),
        (b'{"a.b.c": 5, "a.b": {"c": 6}}', "a.b.c"),
    ],
)
def test_the_longest_key_that_leads_to_a_value_wins_at_each_level(
    message: bytes, path: str
) -> None:
    """Tags of an OPC UA gateway, which lie below another key, could not be named."""
    assert Payload((path,)).read(message)[0].tolist() == [[5]]


@pytest.mark.parametrize("text", ['"unavailable"', '"21,5"', "{}", "1e999", '[1, "x"]'])
def test_a_field_that_is_no_number_costs_itself_and_is_said_once(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While a probe was dead, the humidity beside it was lost as well."""
    feeds = Feeds()
    sensor = TopicMessages(feeds, "z/air", Payload(("t", "h")))
    for _ in range(3):
        message = f'{{"t": {text}, "h": 51}}'.encode()
        feeds.take(ReceivedMessage("z/air", message, False, None, None, lambda: None, 0))
    with caplog.at_level(logging.WARNING):
        found = [item.data for item in sensor.read(0) if not isinstance(item, SampleError)]
    assert np.concatenate(found) == pytest.approx(np.array([[np.nan, 51]] * 3), nan_ok=True)
    (words,) = [record.message for record in caplog.records]
    assert words.startswith("mqtt:z/air: t: expected numbers, found ")
    with pytest.raises(SampleError, match="t: expected numbers, found"):
        Payload(("t", "h")).read(f'{{"t": {text}, "h": null}}'.encode())


def test_a_message_without_one_of_the_fields_still_gives_the_others() -> None:
    """A plug that reports its power alone was not heard, and its event went on."""
    payload = Payload(("e.power", "e.voltage"))
    for message in (b'{"e": {"power": 50}}', b'{"e": {"power": 50, "voltage": null}}'):
        rows, names, _ = payload.read(message)
        assert names == ("e.power", "e.voltage")
        assert rows[0, 0] == 50
        assert np.isnan(rows[0, 1])
    for message, words in ((b'{"e": {}}', "a field e.power"), (b'{"e": {"power": null}}', "null")):
        with pytest.raises(SampleError, match=words):
            payload.read(message)


def test_a_message_about_something_else_is_no_error() -> None:
    """A door contact that reported its battery alone made the device degraded for a minute."""
    feeds = Feeds()
    spec = parse_source("mqtt:z/door?gap_s=60", Path())
    sensor = Signal(spec, TopicMessages(feeds, "z/door", Payload(("contact",))), None)

    def read(*messages: bytes) -> list[str]:
        for message in messages:
            feeds.take(ReceivedMessage("z/door", message, False, None, None, lambda: None, 0))
        return [
            str(item).removeprefix("mqtt:z/door?gap_s=60: ")
            if isinstance(item, SampleError)
            else "rows"
            for item in sensor.read(0, lambda _at: True)
            if not isinstance(item, SampleError) or item.quiet_at is None
        ]

    words = "expected a field contact, found '{\"battery\": 3}'"
    assert read(b'{"battery": 3}') == [words]  # it may be misspelled
    assert read(b'{"contact": true}', b'{"battery": 3}', b'{"contact": null}') == ["rows"]
    assert read(b'{"contact": "perhaps"}') == []
    assert read(b'{"contact": {}}') == ["contact: expected numbers, found '{}'"]


@pytest.mark.parametrize(
    ("gap_s", "other", "refused"),
    [(60, b'{"power": 3}', 1), (60, b'{"tC": null}', 4), (0.001, b'{"power": 3}', 4)],
)
def test_what_a_message_is_about_decides_whether_it_is_an_error(
    gap_s: float, other: bytes, refused: int, tmp_path: Path
) -> None:
    """A Shelly that sent its power each second took its temperature for missing.

    It is where none has come yet, where it is null, and once it is silent for longer than usual.
    """
    feeds = Feeds()
    spec = parse_source(f"mqtt:z/shelly?field=tC&gap_s={gap_s}", tmp_path)
    signal = Signal(spec, TopicMessages(feeds, "z/shelly", Payload(("tC",))), None)

    def read(*messages: bytes) -> None:
        for message in messages:
            feeds.take(ReceivedMessage("z/shelly", message, False, None, None, lambda: None, 0))
        signal.read(0, lambda _at: True)

    read(b'{"power": 3}', b'{"tC": 9.5}')
    if gap_s < 1:
        wait_until(signal.continuity.is_silent, "a gap")
    read(*[other] * (EMPTY + 2))
    assert (signal.continuity.counts.samples, signal.continuity.counts.refused) == (1, refused)


@pytest.mark.parametrize("fields", [("t", "h"), ()])
@pytest.mark.parametrize("said", [b'{"t": "52,5", "h": 40}', b'{"t": "52,5"}'])
def test_a_value_that_message_after_message_does_not_know_is_named_until_it_is(
    fields: tuple[str, ...], said: bytes, tmp_path: Path
) -> None:
    """A sensor with a decimal comma never raised its alarm, and all was well.

    Not one that is away for a moment, nor one that has nothing to say of it.
    """
    feeds = Feeds()
    spec = parse_source("mqtt:z/air?gap_s=60", tmp_path)
    signal = Signal(spec, TopicMessages(feeds, "z/air", Payload(fields)), None)

    def read(*messages: bytes) -> dict[str, str]:
        for message in messages:
            feeds.take(ReceivedMessage("z/air", message, False, None, None, lambda: None, 0))
        found = signal.read(0, lambda _at: True)
        assert not any(isinstance(item, SampleError) and item.quiet_at is None for item in found)
        return signal.unread

    number, other = b'{"t": 21, "h": 40}', b'{"h": 40}'
    assert read(number, *[said] * (UNREAD - 1), number, said, other, said, other) == {}
    words = "mqtt:z/air?gap_s=60: t: expected numbers, found '\"52,5\"'"
    assert read(said, other) == {"t": words}
    assert read(number) == {}
    assert read(*[b'{"t": null, "h": 40}'] * 5) == {}, "another packet tells it"
    assert signal.continuity.counts.refused == 0


@pytest.mark.parametrize(
    ("fields", "message", "unknown"),
    [
        (("t", "h"), b'{"t": null, "h": 40}', set()),
        (("t", "h"), b'{"t": NaN, "h": 40}', set()),
        (("t", "h"), b'{"t": "unknown", "h": 40, "on": "x"}', {"t"}),
        (("t", "h"), b'{"h": 40}', set()),
        ((), b'{"t": null, "h": 40}', set()),
        ((), b'{"t": "unavailable", "h": 40}', {"t"}),
        ((), b'{"t": ["x"], "e": {"p": 1}, "h": 40}', set()),
    ],
)
def test_what_a_message_says_is_not_known_is_not_what_it_does_not_mention(
    fields: tuple[str, ...], message: bytes, unknown: set[str]
) -> None:
    """Both were NaN, so that the last value held for what had none.

    A door contact whose next packet has null for the contact, beside its battery, stays open.
    """
    feeds = Feeds()
    sensor = TopicMessages(feeds, "z/air", Payload(fields))
    feeds.take(ReceivedMessage("z/air", message, False, None, None, lambda: None, 0))
    (rows,) = sensor.read(0)
    assert isinstance(rows, Rows)
    assert rows.unknown is not None
    assert set(rows.unknown) == unknown


@pytest.mark.parametrize(
    ("fields", "value", "null", "other"),
    [
        (("x",), b'{"x": 1}', b'{"x": null}', b'{"battery": 3}'),
        ((), b'{"x": 1}', b'{"x": null}', b'{"state": "on"}'),
        ((), b'{"x": 1}', b'{"x": "unavailable"}', b'{"state": "on"}'),
        (("x",), b'{"x": 1}', b'{"x": NaN}', b'{"battery": 3}'),
        ((), b"1", b"null", b"{}"),
        ((), b"1", b"unavailable", b"{}"),
        ((), b"1", b'"unknown"', b"{}"),
        ((), b"1", b"NaN", b"{}"),
        ((), b"[1, 2]", b"[null, NaN]", b"{}"),
    ],
)
def test_readings_that_are_null_end_a_window(
    fields: tuple[str, ...], value: bytes, null: bytes, other: bytes
) -> None:
    """An accelerometer that said null while it was saturated gave windows of two halves."""
    feeds = Feeds()
    spec = parse_source("mqtt:z/press?gap_s=60", Path())
    sensor = Signal(spec, TopicMessages(feeds, "z/press", Payload(fields)), None)

    for message in (value, other, value, null, other, value):
        feeds.take(ReceivedMessage("z/press", message, False, None, None, lambda: None, 0))
    found = sensor.read(0, lambda _at: True)
    quiet = [isinstance(item, SampleError) and item.quiet_at for item in found]
    assert list(map(bool, quiet)) == [False, False, True, False]


def test_a_reading_has_one_time() -> None:
    """None, or two, are as many too few or too many, and say so."""
    with pytest.raises(SampleError, match="t: expected 1 time, found 0"):
        Payload(("v",), "t").read(b'{"v": 1, "t": []}')


@pytest.mark.parametrize("readers", [1, 2])
def test_what_has_waited_comes_before_what_comes(readers: int) -> None:
    """Amid what waited, newer readings went past it, and time went back."""
    feeds, got, over = Feeds(), list[int](), threading.Event()
    feeds.connected()
    feeds.expect("z/press", readers)

    def go_on() -> None:
        for number in itertools.count():
            payload = b"%d" % number
            feeds.take(ReceivedMessage("z/press", payload, False, None, None, lambda: None, 1))
            if over.is_set():
                return

    broker = threading.Thread(target=go_on)
    broker.start()
    feeds.open("z/press", lambda payload: got.append(int(payload)), held=True)
    feeds.release(lambda _topic: True)
    wait_until(lambda: len(got) > 1000, "some readings")
    over.set()
    broker.join()
    assert got == list(range(len(got)))


def test_what_comes_while_a_source_is_opened_again_is_kept() -> None:
    """A sensor that was given up for its silence spoke again, and nobody listened for 30 s."""
    feeds, got = Feeds(), list[bytes]()
    feeds.connected()
    feeds.expect("z/press")
    feeds.open("z/press", got.append, held=True)
    feeds.close("z/press", got.append)
    message = ReceivedMessage("z/press", b"1", False, None, None, lambda: None, 1)
    assert feeds.take(message)
    feeds.open("z/press", got.append, held=True)
    assert got == [b"1"]


def test_what_waits_for_a_reader_is_acknowledged_once_it_is_read() -> None:
    """A stop in the first seconds lost all that the broker had held until then."""
    feeds, got, acknowledged = Feeds(), list[bytes](), list[bytes]()
    feeds.expect("z/press", 2)

    def send(payload: bytes) -> None:
        def ack() -> None:
            acknowledged.append(payload)

        assert feeds.take(ReceivedMessage("z/press", payload, False, None, None, ack, 1))

    send(b"1")
    feeds.disconnected()  # it is sent again
    send(b"1")
    feeds.connected()
    feeds.open("z/press", got.append, held=True)
    send(b"2")
    assert (got, acknowledged) == ([], [])
    feeds.open("z/press", got.append, held=True)
    send(b"3")
    assert got == [b"1", b"1", b"2", b"2", b"3", b"3"]
    assert acknowledged == [b"1", b"2", b"3"]
    feeds.close("z/press", got.append)
    send(b"4")
    feeds.halt()
    send(b"5")
    assert acknowledged[3:] == [], "the next run gets them"


def test_what_waits_for_long_takes_no_place_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a source that never opens the broker would hold back all that it sends us, for ever."""
    monkeypatch.setattr(subscriptions, "EARLY_SECONDS", 0.0)
    feeds, got, acknowledged = Feeds(), list[bytes](), list[bool]()
    feeds.expect("z/press")

    def send(payload: bytes) -> None:
        def ack() -> None:
            acknowledged.append(True)

        assert feeds.take(ReceivedMessage("z/press", payload, False, None, None, ack, 1))

    send(b"1")
    feeds.release(lambda _topic: False)
    send(b"2")
    assert len(acknowledged) == 2
    feeds.disconnected()
    feeds.open("z/press", got.append, held=True)
    feeds.connected()
    assert (got, len(acknowledged)) == ([b"1", b"2"], 2)


def test_who_reads_without_times_gets_nothing_old() -> None:
    """Beside a pipeline with `time`, it took last night's readings for readings of now."""
    feeds, plain, timed = Feeds(), list[bytes](), list[bytes]()
    feeds.expect("z/press")
    feeds.open("z/press", plain.append, held=False)

    def send(payload: bytes) -> None:
        assert feeds.take(ReceivedMessage("z/press", payload, False, None, None, list, 1))

    send(b"1")
    feeds.release(lambda _topic: True)
    feeds.open("z/press", timed.append, held=True)
    send(b"2")
    feeds.connected()
    send(b"3")
    assert (plain, timed) == ([], [b"1", b"2", b"3"])


def test_what_comes_while_pipelines_are_replaced_is_kept() -> None:
    """A reload lost the readings of the moment, and took away the subscription."""
    feeds, got, asked, left = Feeds(), list[bytes](), list[str](), list[str]()
    feeds.connected()
    feeds.on_open, feeds.on_close = asked.append, left.append
    feeds.expect("z/press")
    feeds.open("z/press", got.append, held=True)
    feeds.expect("z/press")  # the reload
    feeds.expect("z/press", -1)
    feeds.close("z/press", got.append)
    assert feeds.take(ReceivedMessage("z/press", b"1", False, None, None, list, 1))
    feeds.expect("z/press")
    feeds.open("z/press", got.append, held=True)
    feeds.expect("z/press", -1)
    feeds.release(lambda _topic: True)
    assert (got, left) == ([b"1"], [])
    feeds.open("z/press", got.append, held=False)
    feeds.expect("z/press", -1)
    del asked[:]
    feeds.close("z/press", got.append)
    assert (asked, left) == ([], ["z/press"])


def test_nothing_is_held_for_who_reads_without_times_alone() -> None:
    """Once the pipeline with times had gone, what the broker held passed for readings of now."""
    feeds, asked = Feeds(), list[int]()
    feeds.on_open = lambda topic: asked.append(feeds.qos(topic))
    plain, timed = list[bytes](), list[bytes]()
    feeds.open("z/press", plain.append, held=False)
    feeds.expect("z/press")
    feeds.open("z/press", timed.append, held=True)
    feeds.expect("z/press", -1)
    feeds.close("z/press", timed.append)
    assert asked == [0, 1, 0]


def test_what_comes_before_a_source_is_opened_or_after_it_is_closed_is_of_nobody_else() -> None:
    """Of a resumed session each was warned of, and counted as malformed."""
    feeds, got, left = Feeds(), list[bytes](), list[str]()
    feeds.on_close = left.append
    feeds.expect("z/press", held=False)

    def send(payload: bytes) -> bool:
        return feeds.take(ReceivedMessage("z/press", payload, False, None, None, list, 0))

    assert send(b"1")
    feeds.connected()
    feeds.open("z/press", got.append, held=False)
    assert send(b"2")
    feeds.halt()
    feeds.close("z/press", got.append)
    assert send(b"3")
    assert (got, left) == ([b"2"], ["z/press"])
    feeds.expect("z/press", -1, held=False)
    assert not send(b"4")


def test_a_bare_text_in_place_of_the_only_value_is_named(tmp_path: Path) -> None:
    """Home Assistant's statestream says `unavailable`: nobody was told."""
    feeds = Feeds()
    spec = parse_source("mqtt:z/bare?gap_s=60", tmp_path)
    signal = Signal(spec, TopicMessages(feeds, "z/bare", Payload()), None)
    for text in (b"50", *[b"unavailable"] * UNREAD):
        feeds.take(ReceivedMessage("z/bare", text, False, None, None, lambda: None, 0))
    signal.read(0, lambda _at: True)
    assert signal.unread == {ALONE: "mqtt:z/bare?gap_s=60: expected JSON, found 'unavailable'"}
    feeds.take(ReceivedMessage("z/bare", b'{"t": 1}', False, None, None, lambda: None, 0))
    signal.read(0, lambda _at: True)
    assert signal.unread == {}


def test_what_a_command_tries_spans_no_null_either() -> None:
    """`try` showed windows, and `quantize` took some, that a device never has."""
    feeds, said = Feeds(), list[str]()
    spec = parse_source("mqtt:z/press?field=t", Path())
    shape = InputSpec(window=4, hop=1)
    closing = threading.Event()
    with Samples(spec, shape, closing, topics=feeds, tell=said.append) as samples:
        for value in ("1", "2", "null", "null", "3", "4", "5", "6"):
            text = f'{{"t": {value}}}'.encode()
            feeds.take(ReceivedMessage("z/press", text, False, None, None, lambda: None, 0))
        window = samples.first()
    assert window is not None
    assert window.data.reshape(-1).tolist() == [3, 4, 5, 6]
    assert said == []
