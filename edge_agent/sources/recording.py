"""Recorded sensor data, whatever the file: rows handed on as fast as asked for, or at a rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..core.errors import SampleError, SourceError
from ..core.types import Array, Reading
from .arrays import open_array
from .csv_file import CsvRows
from .source import Metronome, SourceContext
from .spec import SourceSpec

# Rows of one reading, where nothing asks for fewer: few enough to keep memory and latency small,
# many enough that what a reading costs is spread thin.
CHUNK = 1024
# At a rate, rows that fall within this time share a reading, seconds.
TOGETHER = 0.01


class Rows(Protocol):
    """A file of rows, read from the front."""

    columns: tuple[str, ...]
    rate_hz: float | None
    """Rows a second when they were recorded, where the file says it."""

    def read(self, limit: int) -> Array | None:
        """Read up to *limit* further rows, float32 or float64; NaN: what `flaw` tells of.

        Returns:
            (n, channels), or (n, …) of ready model inputs, n ≥ 1; None at the end.

        Raises:
            SampleError: the next row cannot be used; it has been passed over.
            SourceError: the file cannot be read on.
        """

    @property
    def flaw(self) -> Callable[[int, int], SampleError] | None:
        """What says why numbers are missing in the rows read last, or None if none ever is."""

    def rewind(self) -> None:
        """Go back to the first row."""

    def close(self) -> None:
        """Close the file; may be called twice."""


class Recording:
    """Rows of a file, once or for ever."""

    trouble = None

    def __init__(self, spec: SourceSpec, rows: Rows, closing: threading.Event) -> None:
        """Make a source of an opened file, which it owns from now on."""
        self._spec = spec
        self._rows = rows
        self._closing = closing
        self._loop: bool = spec.options["loop"]
        rate: float | None = spec.options["rate"]
        self._beat = Metronome(rate, closing)
        self._limit = CHUNK
        if rate is not None:
            self._limit = min(CHUNK, max(1, int(rate * TOGETHER)))
        self._data: Array | SampleError = SampleError("nothing was grabbed")

    def grab(self) -> bool:
        if self._closing.is_set():
            return False
        try:
            data = self._rows.read(self._limit)
            if data is None and self._loop:
                self._rows.rewind()
                data = self._rows.read(self._limit)
                if data is None:
                    raise SourceError(f"{self._spec.redacted}: holds no rows any more")
            if data is None:
                return False
            self._data, count = data, len(data)
        except SampleError as problem:
            # Kept for `retrieve`: a row that cannot be used is a reading all the same.
            self._data, count = problem, 1
        if not self._beat.wait(count):
            return False
        self._time_ns, self._since = time.time_ns(), time.monotonic()
        return True

    def retrieve(self) -> Reading:
        if isinstance(self._data, SampleError):
            raise self._data
        rows = self._rows
        return Reading(
            self._data,
            self._time_ns,
            self._since,
            columns=rows.columns,
            rate_hz=rows.rate_hz,
            flaw=rows.flaw,
        )

    def close(self) -> None:
        self._rows.close()


def open_source(spec: SourceSpec, context: SourceContext) -> Recording:
    """Open recorded sensor data."""
    rows: Rows
    scheme, options = spec.scheme.name, spec.options
    if scheme == "csv":
        rows = CsvRows(spec.local, spec.redacted, options["separator"])
    else:
        rows = open_array(spec.local, spec.redacted, scheme, options.get("channels", 0))
    return Recording(spec, rows, context.closing)
