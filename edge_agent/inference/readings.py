"""Readings without a model: a sensor's values are the result, by the names of its channels.

A pipeline with model = "readings" uses this in place of a model, so that its readings take the same
path as frames. Nothing is loaded, and the models that serve are not affected.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np

from ..core.callbacks import Callbacks
from ..core.errors import EngineError, ModelError, SampleError
from ..core.names import READINGS
from ..core.types import (
    Array,
    Findings,
    Outcome,
    Reading,
    Request,
    Sample,
    Tensors,
    TensorSpec,
    Timing,
    Values,
)
from ..models.manifest import InputSpec, Manifest, ModelFolder
from .engines.engine import EngineChoice
from .folding.fold import Fold
from .model import Model
from .preprocess.window_stats import WindowStats
from .preprocess.windowing import UNCOUNTED, Windower, moments

ONLY = "value"
"""The name of a single value that has none."""
MOST_NAMES = 100
"""Most names of values that are remembered for listing."""
SINGLE, DOUBLE = 7, 15
"""Significant digits shown of a 32-bit and a 64-bit float."""


class _NoEngine:
    """Takes the place of a model's engine."""

    label = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    fold: Fold | None = None
    prepared = widened = None

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        del tensors
        raise EngineError("readings have no network")

    def close(self) -> None:
        pass


class _AsTheyAre:
    """Takes the place of a model's preprocessing."""

    size = None

    def __call__(self, data: Array, *, stream: bool = False) -> tuple[dict[str, Array], None]:
        del stream
        return {"": data}, None


class Readings(Model):
    """Returns the values of each sample unchanged."""

    def __init__(self, spec: InputSpec, on_names: Callbacks) -> None:
        """Start with no names known; *on_names* is called when they change."""
        super().__init__(folder_of(spec), EngineChoice(""), _NoEngine(), _AsTheyAre(), _decode)
        self._last: tuple[tuple[tuple[str, ...], int], tuple[str, ...]] = (((), 0), ())
        """Names and number of the channels in the last reading, and the names of their values.

        Replaced as a whole: several lanes read it.
        """
        self._naming = threading.Lock()
        self._on_names = on_names

    def windower(self, columns: tuple[str, ...]) -> Windower:
        spec = self.manifest.input
        return (EachReading if spec.window is None else Windower)(spec, columns)

    def _infer(self, request: Request) -> Outcome:
        start = time.perf_counter()
        sample = request.sample
        row, spec = sample.data, self.manifest.input
        names = self._names(sample.names, sample.data.shape[-1])
        if spec.stats is not None:
            rate = spec.resample_hz or spec.rate_hz
            row = WindowStats(sample.data.shape, spec.stats.of, rate)(row).reshape(-1)
        digits = DOUBLE if row.dtype == np.float64 else SINGLE
        each = dict(zip(names, row.tolist(), strict=True))
        known = {name: value for name, value in each.items() if not isnan(value)}
        unknown = each.keys() - known.keys() if sample.unknown is None else sample.unknown
        found = Values(known, digits, frozenset(unknown))
        self.stats.add(0.0)
        return Outcome(READINGS, "", found, Timing((time.perf_counter() - start) * 1e3, 0.0, 0.0))

    def _names(self, columns: tuple[str, ...], count: int) -> tuple[str, ...]:
        """Return the names of the values of *count* channels, all different."""
        channels, names = self._last
        if channels == (columns, count):
            return names
        stats = self.manifest.input.stats
        names = value_names(columns, count, () if stats is None else stats.of)
        with self._naming:
            known = self.folder.labels
            before = set(known)
            new = [name for name in names if name not in before]
            if new and len(known) < MOST_NAMES:
                self.folder = replace(self.folder, labels=(*known, *new)[:MOST_NAMES])
            else:
                new = []
            self._last = (columns, count), names
        if new:
            self._on_names()
        return names


def folder_of(spec: InputSpec, names: tuple[str, ...] = ()) -> ModelFolder:
    """Return a model folder for readings without a model; its labels name the values."""
    manifest = Manifest(name=READINGS, version="", task="regression", file="", input=spec)
    return ModelFolder(Path(), manifest, names)


def value_names(columns: tuple[str, ...], count: int, of: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a name for each of *count* channels: its own, else its number from 0.

    If several have the same name, "[number]" is appended. If *of* names statistics, each channel
    has one name per statistic: "ax.rms", or just "rms" for a single channel without a name.
    """
    if not columns and count == 1:
        return of or (ONLY,)
    named = [column or str(place) for place, column in enumerate(columns or [""] * count)]
    times = Counter(named)
    each = tuple(
        name if times[name] == 1 else f"{name}[{place}]" for place, name in enumerate(named)
    )
    return tuple(f"{channel}.{name}" for channel in each for name in of) if of else each


def names_in(spec: InputSpec, reading: Reading) -> tuple[str, ...]:
    """Return the names of the values of readings like this one.

    Raises:
        ModelError: it has none of the wanted channels.
    """
    of = () if spec.stats is None else spec.stats.of
    (taken,) = (part for part in EachReading(spec).usable(reading) if isinstance(part, Reading))
    return value_names(taken.columns, taken.data.shape[1], of)


class EachReading(Windower):
    """Takes each row by itself, whatever channels it has."""

    def usable(self, reading: Reading) -> Iterator[Reading | SampleError]:
        """Yield errors for rows without any number, and the reading with the wanted channels.

        Raises:
            ModelError: the readings are not rows of numbers.
        """
        rows = reading.data
        if rows.ndim != 2:
            shape = " by ".join(str(size) for size in rows.shape[1:]) or "1"
            raise ModelError(f"it gives ready inputs of {shape}, which have no names")
        places, wanted = list(range(rows.shape[1])), self._spec.channels
        if wanted:
            columns = reading.columns or tuple(map(str, places))
            places = [place for place in places if place in wanted or columns[place] in wanted]
            if not places:
                expected, found = ", ".join(map(str, wanted)), ", ".join(columns[:20])
                raise ModelError(f"input.channels: expected {expected}, found {found}")
            rows = rows[:, places]
            names = tuple(columns[place] for place in places)
            reading = replace(reading, data=rows, columns=names)
        empty = np.isnan(rows).all(axis=1)
        if reading.flaw is not None:
            for row in map(int, np.flatnonzero(empty)):
                for column in places:
                    with suppress(ModelError):  # a column of texts cannot be wrong
                        yield reading.flaw(row, column)
                        break
        yield reading

    def push(self, reading: Reading) -> list[Sample]:
        rows, times = reading.data, reading.times
        clocks = [reading.time_ns] * len(rows) if times is None else times.tolist()
        measured = moments(reading, clocks)
        found = []
        for place in map(int, np.flatnonzero(~np.isnan(rows).all(axis=1))):
            # A copy: a view would keep the whole piece alive while one row waits.
            row, clock, at = np.array(rows[place]), clocks[place], measured[place]
            found.append(
                Sample(
                    *(row, UNCOUNTED, clock, reading.since),
                    picture=False,
                    follows=self._follows,
                    names=reading.columns,
                    at=at,
                    unknown=reading.unknown,
                )
            )
            self._follows = True
        return found


def _decode(outputs: Tensors, inputs: Tensors, threshold: float) -> Findings:
    del outputs, inputs, threshold
    raise EngineError("readings have no network")
