"""Readings that others publish on the agent's own broker: JSON, or bare float32.

Independent of MQTT: `SourceContext.topics` delivers the messages of a topic.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import SampleError, SourceError
from ..core.frozen import record
from ..core.json_text import HalfLetterError, read_json
from ..core.types import Array
from .continuity import Rows
from .live_signal import LiveSignal, share
from .source import SourceContext, Topics
from .spec import SourceSpec

MAX_WAITING = 16 * 2**20
"""Most bytes of waiting messages; beyond that the oldest are dropped."""
MAX_BYTES = 1024 * 1024
"""Largest message, bytes."""
EMPTY = 10
"""So many messages in a row without any value are an error; fewer are of something else, as the
battery."""
LATEST_NS = 2**63
"""Greatest time of a 64-bit clock, nanoseconds since 1970: in 2262."""
_PLACE = re.compile("[0-9]{1,9}")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST = float(np.finfo(np.float32).max)


class EmptyError(SampleError):
    """A message is an object that holds none of the values, or only nulls."""

    def __init__(self, words: str, *, null: bool) -> None:
        """*null*: it holds one of them, of which nothing is known at the moment."""
        super().__init__(words)
        self.null = null


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

    def read(self, payload: bytes) -> tuple[Array, tuple[str, ...], NDArray[np.int64] | None]:
        """Return rows (n, channels), the names of the channels, and the sender's times, ns.

        Named fields that a message does not hold are NaN; it must hold one of them. So is what is
        no number among others, as a model may not take it: `flaw` is its error.

        Raises:
            EmptyError: it is an object without any of the values.
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
            raise SampleError(f"expected JSON, found {_cut(payload)}") from None
        if not isinstance(value, dict):
            if self.fields:
                raise SampleError(
                    f"expected an object with {', '.join(self.fields)}, found {_shown(value)}"
                )
            return _rows(_from_text(value), loose=True), (), None
        names = self.fields or tuple(
            key for key in value if key != self.time and _is_data(value[key])
        )
        # If all values are texts, use those that are plain numbers.
        names = names or tuple(
            key for key in value if key != self.time and _from_text(value[key]) is not value[key]
        )
        names = names or tuple(
            key for key in value if key != self.time and isinstance(value[key], bool)
        )
        if not names:
            null = any(value[key] is None for key in value if key != self.time)
            words = f"expected an object that holds numbers, found {_shown(value)}"
            raise EmptyError(words, null=null)
        columns = [_column_at(value, name, loose=not self.fields) for name in names]
        counts = Counter(len(column) for column in columns if column is not None)
        if not counts:
            words = f"expected a field {names[0]}, found {_shown(value)}"
            raise EmptyError(words, null=any(_holds(value, name) for name in names))
        (count, most), *others = counts.most_common()
        if others and (self.fields or others[0][1] == most):
            raise SampleError(
                f"expected as many values of each field, found {sorted(counts)}; name with ?field= "
                "those that belong together"
            )
        columns = [each if each is None or len(each) == count else None for each in columns]
        missing = np.full(count, np.nan)
        times = None
        if self.time is not None:
            said = _at(value, self.time)
            each = said if isinstance(said, list) else [said]
            times = np.array([_time_ns(one, self.time) for one in each], np.int64)
        rows = np.stack([missing if each is None else each for each in columns], axis=1)
        if times is not None and len(times) not in {1, len(rows)}:
            wanted = "1 time" if len(rows) == 1 else f"1 or {len(rows)} times"
            raise SampleError(f"{self.time}: expected {wanted}, found {len(times)}")
        return rows, names, times

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
        self._payload = payload
        self._messages: deque[tuple[bytes, int, float]] = deque()
        self._size = 0
        self._given_up = 0
        self._empty = EMPTY
        """Messages in a row without a value; as if there had been many before the first one."""
        self._null = False
        """Whether one of them has held a value that was null."""
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

    def read(self, timeout: float) -> list[Rows | SampleError]:
        with self._came:
            if not self._messages:
                self._came.wait(timeout)
            messages, self._messages, self._size = list(self._messages), deque(), 0
            given_up, self._given_up = self._given_up, 0
        found: list[Rows | SampleError] = []
        if given_up:
            found.append(SampleError(f"{given_up} messages waited too long and were given up"))
        for payload, time_ns, since in messages:
            try:
                data, columns, times = self._payload.read(payload)
            except EmptyError as problem:
                self._empty += 1
                self._null |= problem.null
                if self._empty >= EMPTY:
                    found.append(problem)
            except SampleError as problem:
                found.append(problem)
            else:
                why = flaw(data, columns)
                # No window may span what was null.
                found.append(Rows(data, time_ns, since, columns, times, gap=self._null, flaw=why))
                self._empty, self._null = 0, False
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


def _column(value: Any, name: str) -> Array:
    try:
        rows = _rows(value)
    except SampleError:
        raise SampleError(f"{name}: expected numbers, found {_shown(value)}") from None
    if rows.shape[0] > 1 and rows.shape[1] > 1:
        raise SampleError(f"{name}: expected one channel, found rows of {rows.shape[1]}")
    return rows.reshape(-1)


def _holds(value: Mapping[str, Any], path: str) -> bool:
    try:
        _at(value, path)
    except SampleError:
        return False
    return True


def _column_at(value: Mapping[str, Any], path: str, *, loose: bool) -> Array | None:
    """Return the values of a field; None if it is missing or null, or *loose* and no numbers."""
    try:
        found = _at(value, path)
    except SampleError:
        return None
    found = float(found) if isinstance(found, bool) else _from_text(found)
    try:
        return None if found is None else _column(found, path)
    except SampleError:
        if not loose:
            raise
        return None


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


def _at(value: Mapping[str, Any], path: str) -> Any:
    """Find a value by its path; keys may contain dots, and list indices start at 0."""
    if path in value:
        return value[path]
    found: Any = value
    for level in path.split("."):
        if isinstance(found, list) and _PLACE.fullmatch(level) and int(level) < len(found):
            found = found[int(level)]
        elif isinstance(found, dict) and level in found:
            found = found[level]
        else:
            raise SampleError(f"expected a field {path}, found {_shown(value)}")
    return found


def _time_ns(value: Any, name: str) -> int:
    """Parse a time: ISO 8601, or seconds, milliseconds, … since 1970, distinguished by magnitude.

    A text that is a number counts as a number, as it does for values.
    """
    found = None
    if isinstance(value, str):
        with suppress(ValueError, OverflowError, OSError):
            found = round(datetime.fromisoformat(value).astimezone().timestamp() * 1e9)
    number = _from_text(value)
    if found is None and _is_number(number) and 0 <= number < 1e20:
        # From 2001 to 5138 in each unit.
        for limit, unit in ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3), (1e20, 1)):
            if number < limit:
                found = int(number * unit if isinstance(number, int) else round(number * unit))
                break
    if found is not None and 0 <= found < LATEST_NS:
        return found
    raise SampleError(f"{name}: expected a time, found {_shown(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _from_text(value: Any) -> Any:
    """Return the number in a text; any other value unchanged."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    return value


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
