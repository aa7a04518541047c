"""Readings that others publish on the agent's own broker: JSON, or bare float32.

Independent of MQTT: `SourceContext.topics` delivers the messages of a topic.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import SampleError, SourceError
from ..core.frozen import record
from ..core.json_text import HalfLetterError, read_json
from ..core.names import ALONE, names_of
from ..core.types import Array
from .continuity import Rows
from .live_signal import EmptyError, LiveSignal, share
from .source import SourceContext, Topics
from .spec import SourceSpec

log = logging.getLogger(__name__)

MAX_WAITING = 16 * 2**20
"""Most bytes of waiting messages; beyond that the oldest are dropped."""
MAX_BYTES = 1024 * 1024
"""Largest message, bytes."""
DEEP = 3
"""Levels of an object at which numbers are looked for that a setting has to name."""
LATEST_NS = 2**63
"""Greatest time of a 64-bit clock, nanoseconds since 1970: in 2262."""
_PLACE = re.compile("[0-9]{1,9}")
_WORDS = re.compile(rb"[A-Za-z][A-Za-z /_-]{0,39}")
"""What is said in place of a bare number: `unavailable`, `nan`, `N/A`."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST = float(np.finfo(np.float32).max)


@record
class Payload:
    """How to read the messages of a topic."""

    fields: tuple[str, ...] = ()
    """Paths of the values in an object, with dots between levels; none: all top-level numbers."""
    time: str | None = None
    """Path of the time of the last row, or of each row."""
    format: str = "json"
    channels: int = 1
    """Values per row of float32."""
    remark: Callable[[str, str], object] = lambda _path, _words: None
    """Called with a path, and what is wrong with its value where a message is read nevertheless."""

    def read(
        self, payload: bytes, wrong: dict[str, str] | None = None
    ) -> tuple[Array, tuple[str, ...], NDArray[np.int64] | None]:
        """Return rows (n, channels), the names of the channels, and the sender's times, ns.

        Named fields that a message does not hold are NaN; it must hold one of them. So is what is
        no number among others, as a model may not take it: `flaw` is its error. Of an object
        *wrong* gets what is no number, null included, with words for each.

        Raises:
            EmptyError: it has none of the values, or null or texts for them.
            SampleError: the payload is not as expected; the text has both.
        """
        if len(payload) > MAX_BYTES:
            raise SampleError(f"a message of {len(payload)} bytes, expected at most {MAX_BYTES}")
        if self.format == "f32":
            return self._floats(payload), (), None
        try:
            value = read_json(payload)
        except HalfLetterError as problem:
            raise SampleError(f"the message {problem}") from None
        except (ValueError, RecursionError):
            words = f"expected JSON, found {_cut(payload)}"
            if not self.fields and _WORDS.fullmatch(payload.strip()):
                raise EmptyError(words, {ALONE: words}, null=False) from None
            raise SampleError(words) from None
        if not isinstance(value, dict):
            if self.fields:
                raise SampleError(
                    f"expected an object with {', '.join(self.fields)}, found {_shown(value)}"
                )
            _check_is_known(value)
            return _rows(_plain(value), loose=True), (), None
        wrong = {} if wrong is None else wrong
        names = self.fields or self._names(value, wrong)
        columns = [_column_at(value, name, wrong) for name in names]
        counts = Counter(len(column) for column in columns if column is not None)
        if not counts:
            for name in wrong:
                if not _is_unknown(_find(value, name.split("."))[0]):
                    raise SampleError(wrong[name])
            words = f"expected a field {names[0]}, found {_shown(value)}"
            raise EmptyError(next(filter(None, wrong.values()), words), wrong, null=bool(wrong))
        (count, most), *others = counts.most_common()
        if others and (self.fields or others[0][1] == most):
            raise SampleError(
                f"expected as many values of each field, found {sorted(counts)}; name with ?field= "
                "those that belong together"
            )
        columns = [each if each is None or len(each) == count else None for each in columns]
        missing = np.full(count, np.nan)
        rows = np.stack([missing if each is None else each for each in columns], axis=1)
        times = None if self.time is None else self._times(value, self.time, count)
        for name in wrong if self.fields else ():
            if wrong[name]:
                self.remark(name, f"{wrong[name]}; the other fields are read")
        return rows, names, times

    def rows(
        self, payload: bytes, time_ns: int, since: float, *, gap: bool = False
    ) -> Rows | SampleError:
        """Return what `read` does of a message that came then, with what is not known, or why not.

        Not null beside numbers: another packet of the device may tell that value.
        """
        wrong: dict[str, str] = {}
        try:
            data, columns, times = self.read(payload, wrong)
        except SampleError as problem:
            problem.quiet_at = since if isinstance(problem, EmptyError) else None
            return problem
        unknown = {name: words for name, words in wrong.items() if words} if columns else None
        why = flaw(data, columns)
        return Rows(data, time_ns, since, columns, times, gap=gap, flaw=why, unknown=unknown)

    def _names(self, value: Mapping[str, Any], wrong: dict[str, str]) -> tuple[str, ...]:
        """Return the keys at the top with numbers; *wrong* gets those with null or a text.

        Raises:
            EmptyError: there are none.
        """
        others = {key: each for key, each in value.items() if key != self.time}
        wrong |= {key: _words(key, each) for key, each in others.items() if _is_unknown(each)}
        # If all values are texts, use those that are plain numbers.
        for fits in (_is_data, lambda each: _from_text(each) is not each, _is_boolean):
            if names := tuple(key for key, each in others.items() if fits(each)):
                if len(names) == 1 and (deeper := self._deeper(value)):
                    self.remark(names[0], f"only {names[0]} is read{deeper}")
                return names
        words = f"expected an object that holds numbers, found {_shown(value)}{self._deeper(value)}"
        raise EmptyError(words, wrong, null=any(value[key] is None for key in wrong))

    def _deeper(self, value: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
        """Return the words for numbers below the top of an object, which `field` has to name."""
        for key, below in value.items():
            here = (*path, key)
            if path and _is_number(below) and ".".join(here) != self.time:
                return f"; name what lies deeper, as ?field={'.'.join(here)}"
            if (
                isinstance(below, dict)
                and len(path) < DEEP
                and (found := self._deeper(below, here))
            ):
                return found
        return ""

    def _times(self, value: Mapping[str, Any], path: str, count: int) -> NDArray[np.int64]:
        """Return the time of each of *count* rows, or only of the last one."""
        said = _find(value, path.split("."))
        if not said:
            raise SampleError(f"expected a field {path}, found {_shown(value)}")
        each = said[0] if isinstance(said[0], list) else said
        if len(each) not in {1, count}:
            wanted = "1 time" if count == 1 else f"1 or {count} times"
            raise SampleError(f"{path}: expected {wanted}, found {len(each)}")
        return np.array([_time_ns(one, path, self.remark) for one in each], np.int64)

    def _floats(self, payload: bytes) -> Array:
        size = 4 * self.channels
        if not payload or len(payload) % size:
            raise SampleError(
                f"expected rows of {self.channels} float32 values ({size} bytes), found "
                f"{len(payload)} bytes"
            )
        return _finite(np.frombuffer(payload, "<f4").reshape(-1, self.channels), loose=True)


class TopicMessages:
    """The messages of one topic as they arrive."""

    def __init__(self, topics: Topics, topic: str, payload: Payload) -> None:
        """Subscribe to the topic."""
        self._topics = topics
        self._topic = topic
        self._payload = replace(payload, remark=self._remark)
        self._said: set[str] = set()
        """Paths of which there was a remark."""
        self._messages: deque[tuple[bytes, int, float]] = deque()
        self._size = 0
        self._given_up = 0
        self._came = threading.Condition()
        topics.open(topic, self._put, held=payload.time is not None)

    def _put(self, payload: bytes) -> None:
        """Queue a message; called by the connection's thread, so it must not wait."""
        now = (payload, time.time_ns(), time.monotonic())
        with self._came:
            self._messages.append(now)
            self._size += len(payload)
            while self._size > MAX_WAITING and len(self._messages) > 1:
                self._size -= len(self._messages.popleft()[0])
                self._given_up += 1
            self._came.notify()

    def _remark(self, path: str, words: str) -> None:
        """Log what stays as it is once."""
        if path not in self._said:
            self._said.add(path)
            log.warning("mqtt:%s: %s", self._topic, words)

    def read(self, timeout: float) -> list[Rows | SampleError]:
        with self._came:
            if not self._messages:
                self._came.wait(timeout)
            messages, self._messages, self._size = list(self._messages), deque(), 0
            given_up, self._given_up = self._given_up, 0
        found: list[Rows | SampleError] = []
        if given_up:
            found.append(SampleError(f"{given_up} messages waited too long and were given up"))
        found += [self._payload.rows(*message) for message in messages]
        return found

    def close(self) -> None:
        self._topics.close(self._topic, self._put)


def open_source(spec: SourceSpec, context: SourceContext) -> LiveSignal:
    """Subscribe to a topic."""
    topics, options = context.topics, spec.options
    if topics is None:
        raise SourceError(f"{spec.redacted}: there is no broker to read it from")
    payload = Payload(options["field"], options["time"], options["format"], options["channels"])
    # What comes while it is closed would be missed.
    return share(
        *(spec, context, lambda: TopicMessages(topics, spec.name, payload)), reopened=False
    )


def _rows(value: Any, *, loose: bool = False) -> Array:
    """Read a number, a reading, or rows of readings; if *loose*, what is no number is NaN."""
    try:
        return _read_rows(value)
    except SampleError:
        cells = _cells(value) if loose else None
        if cells is None:
            raise
        return cells
    except OverflowError:
        # Integers in JSON may have any size.
        raise SampleError(f"expected finite numbers, found {_shown(value)}") from None


def _read_rows(value: Any) -> Array:
    if _is_number(value):
        return _finite(np.array([[value]], np.float64))
    if isinstance(value, list) and value and all(map(_is_number, value)):
        return _finite(np.array([value], np.float64))
    if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
        widths = {len(row) for row in value}
        if (
            len(widths) == 1
            and 0 not in widths
            and all(_is_number(x) for row in value for x in row)
        ):
            return _finite(np.array(value, np.float64))
        if len(widths) > 1:
            raise SampleError(f"expected rows of equal length, found {sorted(widths)[:5]}")
    raise SampleError(f"expected a number, numbers, or rows of numbers, found {_shown(value)}")


def _cells(value: Any) -> Array | None:
    """Return rows of equal length with NaN for what is no number; None: they are not such."""
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    if not all(isinstance(row, list) for row in rows) or len({len(row) for row in rows}) != 1:
        return None
    cells = [[x if _is_number(x) and abs(x) <= _LARGEST else np.nan for x in row] for row in rows]
    made = np.array(cells, np.float64)
    return None if np.isnan(made).all() else made


def _column_at(value: Mapping[str, Any], path: str, wrong: dict[str, str]) -> Array | None:
    """Return the values of a field; None if it is missing, or no numbers: *wrong* says so.

    Raises:
        SampleError: it has several channels.
    """
    found = _find(value, path.split("."))
    if not found:
        return None
    try:
        rows = _rows(_plain(found[0]))
    except SampleError:
        wrong[path] = _words(path, found[0])
        return None
    if rows.shape[0] > 1 and rows.shape[1] > 1:
        raise SampleError(f"{path}: expected one channel, found rows of {rows.shape[1]}")
    return rows.reshape(-1)


def flaw(data: Array, columns: tuple[str, ...]) -> Callable[[int, int], SampleError] | None:
    """Return what makes the error for a model that takes a NaN of *data*; None: there is none."""
    return partial(_flaw, columns) if np.isnan(data).any() else None


def _flaw(columns: tuple[str, ...], row: int, column: int) -> SampleError:
    del row
    if not columns:
        return SampleError(f"expected a number at place {column} of each reading")
    return SampleError(
        f"expected a field {columns[column]} with a number for each reading, which the message "
        "does not hold"
    )


def _find(value: Any, levels: list[str]) -> list[Any]:
    """Return the value at these levels of a path, alone, or nothing.

    Keys may contain dots, and the longest one that leads to a value is taken; list indices start
    at 0.
    """
    if not levels:
        return [value]
    if isinstance(value, list) and _PLACE.fullmatch(levels[0]) and int(levels[0]) < len(value):
        return _find(value[int(levels[0])], levels[1:])
    for end in range(len(levels), 0, -1) if isinstance(value, dict) else ():
        key = ".".join(levels[:end])
        if key in value and (found := _find(value[key], levels[end:])):
            return found
    return []


def _time_ns(value: Any, name: str, remark: Callable[[str, str], object]) -> int:
    """Parse a time: ISO 8601, or seconds, milliseconds, … since 1970, distinguished by magnitude.

    A text that is a number counts as a number, as it does for values.
    """
    number, found = _from_text(value), None
    if _is_number(number):
        # From 2001 to 5138 in each unit.
        for limit, unit in ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3), (1e20, 1)):
            if 0 <= number < limit:
                found = int(number * unit if isinstance(number, int) else round(number * unit))
                break
    elif isinstance(value, str):
        with suppress(ValueError, OverflowError, OSError):
            when = datetime.fromisoformat(value)
            found = round(when.astimezone().timestamp() * 1e9)
            if when.tzinfo is None:
                zone = when.astimezone().tzname()
                words = f"{name}: {value!r} names no zone and is taken as local time here, {zone}"
                remark(name, f"{words}; have the sender add its own, as +01:00 or Z")
    if found is not None and 0 <= found < LATEST_NS:
        return found
    raise SampleError(f"{name}: expected a time, found {_shown(value)}")


def _words(path: str, value: Any) -> str:
    """Return what is wrong; "": null or NaN, which devices send for what another message tells."""
    nothing = value is None or _is_nan(value)
    return "" if nothing else f"{path}: expected numbers, found {_shown(value)}"


def _is_unknown(value: Any) -> bool:
    """Whether a value is one of which the sender says that it is not known."""
    return value is None or _is_nan(value) or isinstance(_from_text(value), str)


def _check_is_known(value: Any) -> None:
    """Raise EmptyError where all of a payload that is no object is null, or texts."""
    cells = value if isinstance(value, list) else [value]
    if cells and all(map(_is_unknown, cells)):
        words = f"expected a number, numbers, or rows of numbers, found {_shown(value)}"
        said = [words if isinstance(cell, str) else "" for cell in cells]
        unknown = dict(zip(names_of((), len(cells)), said, strict=True))
        raise EmptyError(words, unknown, null=not all(unknown.values()))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _from_text(value: Any) -> Any:
    """Return the number in a text; any other value unchanged."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    return value


def _plain(value: Any) -> Any:
    """Return a boolean as 1 or 0, and the number in a text; any other value unchanged."""
    return float(value) if isinstance(value, bool) else _from_text(value)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_data(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, list) and bool(value) and _is_number(value[0]))


def _finite(values: Array, *, loose: bool = False) -> Array:
    good = np.abs(values) <= _LARGEST  # also false for NaN
    if loose and good.any():
        return values if good.all() else np.where(good, values, np.nan)
    if not good.all():
        bad = values[tuple(np.argwhere(~good)[0])]
        raise SampleError(f"expected finite numbers, found {bad}")
    return values


def _shown(value: Any) -> str:
    try:
        return _cut(json.dumps(value).encode())
    except (ValueError, RecursionError):
        return type(value).__name__


def _cut(payload: bytes) -> str:
    text = payload[:60].decode("utf-8", "backslashreplace")
    return repr(text) + ("…" if len(payload) > 60 else "")
