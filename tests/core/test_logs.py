"""The log: entries with fields for the journal, and lines that do not repeat themselves."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.core.logs import (
    ALIKE,
    ANSWER,
    EVERY_SECONDS,
    MAX_MESSAGE,
    OF_A_KIND,
    REMEMBERED,
    Journal,
    Latch,
    RateLimit,
    encode_entry,
    handler_for,
)

LONG_AGO = time.mktime((2026, 5, 4, 3, 2, 1, 0, 0, -1))
"""When all that is logged here was logged: 03:02:01 of a day in May."""


def record(
    text: str, level: int = logging.WARNING, *arguments: object, line: int = 7
) -> logging.LogRecord:
    """Make what a logger hands to its handlers."""
    made = logging.LogRecord(
        "edge_agent.mqtt.client", level, "link.py", line, text, arguments, None, "run"
    )
    made.created = LONG_AGO
    return made


def decode_entry(data: bytes) -> dict[str, str]:
    """Read an entry as journald's documentation says."""
    fields: dict[str, str] = {}
    while data:
        head, _, rest = data.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if equals:
            data = rest
        else:
            length = int.from_bytes(rest[:8], "little")
            value, data = rest[8 : 8 + length], rest[8 + length :]
            assert data[:1] == b"\n"
            data = data[1:]
        fields[name.decode()] = value.decode("utf-8", "surrogateescape")
    return fields


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[socket.socket]:
    """Listen where journald would."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.settimeout(10)
        yield listening


def test_an_entry_has_its_fields(daemon: socket.socket) -> None:
    """Message, priority, logger, thread and place in the code arrive as fields of their own."""
    handler = Journal(StringIO(), Path(daemon.getsockname()))
    handler.emit(record("broker: %s", logging.WARNING, "gone"))
    handler.close()
    assert decode_entry(daemon.recv(65536)) == {
        "MESSAGE": "broker: gone",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "edge-agent",
        "LOGGER": "edge_agent.mqtt.client",
        "THREAD_NAME": "MainThread",
        "CODE_FILE": "link.py",
        "CODE_LINE": "7",
        "CODE_FUNC": "run",
    }


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, "7"), (logging.INFO, "6"), (logging.WARNING, "4"), (logging.CRITICAL, "3")],
)
def test_levels_become_priorities(daemon: socket.socket, level: int, priority: str) -> None:
    """Each level has the number that `journalctl -p` filters by."""
    handler = Journal(StringIO(), Path(daemon.getsockname()))
    handler.emit(record("x", level))
    handler.close()
    assert decode_entry(daemon.recv(65536))["PRIORITY"] == priority


@given(st.dictionaries(st.text("ABCDEFGHIJ_", min_size=1), st.text()))
def test_any_text_survives_the_journals_form(fields: dict[str, str]) -> None:
    """Whatever a value holds, line breaks and half a surrogate too, journald reads the same."""
    sane = {name: value for name, value in fields.items() if _is_writable(value)}
    assert decode_entry(encode_entry(sane)) == sane


def _is_writable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def test_a_traceback_is_one_entry(daemon: socket.socket) -> None:
    """An error with its traceback is one entry of many lines, not many entries."""
    handler = Journal(StringIO(), Path(daemon.getsockname()))
    try:
        raise ValueError("broken")
    except ValueError:
        entry = record("stopped", logging.ERROR)
        entry.exc_info = sys.exc_info()
    handler.emit(entry)
    handler.close()
    message = decode_entry(daemon.recv(65536))["MESSAGE"]
    assert message.startswith("stopped\n  Traceback")
    assert message.endswith("ValueError: broken")


def test_an_endless_message_is_cut(daemon: socket.socket) -> None:
    """A message that would not fit is cut, and says by how much."""
    handler = Journal(StringIO(), Path(daemon.getsockname()))
    handler.emit(record("x" * (MAX_MESSAGE + 5)))
    handler.close()
    message = decode_entry(daemon.recv(65536))["MESSAGE"]
    assert message == "x" * MAX_MESSAGE + "… (5 characters more)"


def test_without_journald_lines_go_to_stderr(tmp_path: Path) -> None:
    """Where nobody listens at the socket, each line goes to stderr with its priority in front."""
    stream = StringIO()
    handler = Journal(stream, tmp_path / "nobody")
    entry = record("first", logging.ERROR)
    entry.exc_info = (ValueError, ValueError("second"), None)
    handler.emit(entry)
    handler.close()
    assert stream.getvalue() == "<3>first\n<3>  ValueError: second\n"


FORGED = "x\n12:00:00 INFO    edge-agent: all is well\r\x1b[2J\x9b1m\u2028\u202e\x85<0>y\udc80"


@pytest.mark.parametrize("raised", [False, True])
def test_nothing_that_is_quoted_passes_for_a_line_of_its_own(raised: bool) -> None:
    """Line breaks, escape sequences and marks of direction are written out, in a traceback too."""
    stream = StringIO()
    handler = handler_for(stream, {})
    entry = record("tensor %r is unknown: %s", logging.WARNING, "y", FORGED)
    if raised:
        entry.exc_info = (ValueError, ValueError(FORGED), None)
    handler.emit(entry)
    first, *below = stream.getvalue().removesuffix("\n").split("\n")
    assert first.endswith(
        r"x\n12:00:00 INFO    edge-agent: all is well\r\x1b[2J\x9b1m\u2028\u202e\x85<0>y\udc80"
    )
    assert all(line.startswith("  ") for line in below)
    assert bool(below) is raised
    assert all(line.isprintable() for line in (first, *below))


def test_a_url_in_a_line_shows_no_password() -> None:
    """Whatever a library says of an address, user and password are taken out of it."""
    stream = StringIO()
    handler_for(stream, {}).emit(
        record("cannot open %s, trying again", 30, "rtsp://u:secret@cam/s")
    )
    assert stream.getvalue().endswith("cannot open rtsp://***@cam/s, trying again\n")


def test_only_the_journals_own_stream_counts(tmp_path: Path) -> None:
    """$JOURNAL_STREAM counts where it names stderr itself, not where that was redirected."""
    with (tmp_path / "log").open("w") as stream, (tmp_path / "other").open("w") as other:
        status = os.fstat(stream.fileno())
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert isinstance(handler_for(stream, environ), Journal)
        assert not isinstance(handler_for(other, environ), Journal)
        assert not isinstance(handler_for(stream, {}), Journal)
        assert not isinstance(handler_for(stream, {"JOURNAL_STREAM": "9:x"}), Journal)
        assert not isinstance(handler_for(StringIO(), environ), Journal)


class Kept(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.times: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self.times.append(record.created)


class Log:
    """A log that is held back, with a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self._kept = Kept()
        self.handler = RateLimit(self._kept, clock=lambda: self.now)

    @property
    def said(self) -> list[str]:
        return self._kept.said

    @property
    def times(self) -> list[float]:
        return self._kept.times

    def say(self, text: str, at: float, *, line: int = 7) -> None:
        self.now = at
        self.handler.handle(record(text, line=line))


def test_the_same_line_is_said_once_a_minute() -> None:
    """Of ten lines within a minute the first is said, and after it how often it came again."""
    log = Log()
    for second in range(10):
        log.say("camera: refused", second)
    assert log.said == ["camera: refused"]
    log.say("camera: refused", EVERY_SECONDS)
    assert log.said[1:] == ["camera: refused (again, 9 times, last at 03:02:01)"]


def test_an_answer_is_never_held_back() -> None:
    """Who reloads twice within a minute is told twice, in the same words."""
    log = Log()
    for second in range(3):
        log.now = second
        answer = record("settings read again")
        answer.__dict__.update(ANSWER)
        log.handler.handle(answer)
    log.handler.close()
    assert log.said == ["settings read again"] * 3


def test_a_line_that_never_stops_is_said_every_minute() -> None:
    """Over ten minutes, one a second: eleven lines, and their counts make up the rest."""
    log = Log()
    for second in range(601):
        log.say("camera: refused", second)
    log.handler.close()
    assert len(log.said) == 11 + 1
    counts = [int(line.partition("again, ")[2].split()[0]) for line in log.said[1:-1]]
    assert log.said[-1] == "camera: refused (again, once, at 03:02:01)"
    assert 1 + sum(counts) + 1 == 601


def test_another_line_brings_out_what_was_held_back() -> None:
    """A line that stopped coming is accounted for as soon as anything else is said."""
    log = Log()
    for second in range(5):
        log.say("broker: lost", second)
    log.say("settings read again", EVERY_SECONDS + 1)
    assert log.said == [
        "broker: lost",
        "broker: lost (again, 4 times, last at 03:02:01)",
        "settings read again",
    ]


def test_a_count_bears_the_time_at_which_it_is_said() -> None:
    """Lines of a log come in the order of their times; when it was last so stands in the text."""
    log = Log()
    begin = time.time()
    for second in range(2):
        log.say("broker: lost", second)
    log.handler.close()
    assert log.times[0] == LONG_AGO
    assert log.times[1] >= begin


def test_a_line_is_new_after_a_quiet_minute() -> None:
    """Once a minute has passed without it, a line is said at once and as it is."""
    log = Log()
    log.say("broker: lost", 0)
    log.say("broker: lost", 2 * EVERY_SECONDS)
    assert log.said == ["broker: lost", "broker: lost"]


def test_the_end_accounts_for_everything() -> None:
    """What is held back when the program ends is said."""
    log = Log()
    for second in range(3):
        log.say("broker: lost", second)
    log.handler.close()
    assert log.said == ["broker: lost", "broker: lost (again, 2 times, last at 03:02:01)"]


def test_different_lines_pass_and_memory_stays_bounded() -> None:
    """Lines of different places are all said; of those long unheard the counts are not lost."""
    log = Log()
    log.say("first", 0)
    log.say("first", 0)
    for number in range(REMEMBERED):
        log.say(f"line {number}", 1, line=number)
    assert log.said.count("first (again, once, at 03:02:01)") == 1
    assert len(log.said) == REMEMBERED + 2


def test_a_flood_of_one_kind_is_cut_and_counted() -> None:
    """Of a thousand lines from one place that all differ a few are said, then how many there were.

    Another place has its say meanwhile, and after a minute so has this one.
    """
    log = Log()
    for number in range(1000):
        log.say(f"push {number}: rejected", number / 100)
    log.say("broker: lost", 10, line=8)
    assert len(log.said) == OF_A_KIND + 1
    log.say("push 1000: rejected", EVERY_SECONDS + 1)
    assert log.said[OF_A_KIND:] == [
        "broker: lost",
        f"{1000 - OF_A_KIND} more lines of the kind: push 999: rejected",
        "push 1000: rejected",
    ]


def test_another_fault_is_said_beside_a_flood_that_only_quotes_something_else() -> None:
    """Readings of the wrong kind do not hide the first one that is broken otherwise."""
    log = Log()
    for number in range(1000):
        log.say(f"press: expected a number, found '\\'{number}\\''", number / 100)
    log.say("press: expected JSON, found '1;2'", 11)
    assert len(log.said) == ALIKE + 1
    assert log.said[-1] == "press: expected JSON, found '1;2'"
    log.handler.close()
    more = f"{1000 - ALIKE} more lines of the kind: press: expected a number, found '\\'999\\''"
    assert log.said[-1] == more


def test_a_latch_lets_the_first_of_a_row_through() -> None:
    """A condition is logged when it begins, and again when it begins once more."""
    latch = Latch()
    holds = [False, True, True, False, False, True]
    assert [latch.begins(each) for each in holds] == [False, True, False, False, False, True]
