"""Picks the channels of a signal that a manifest names, from rows of a source."""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import ModelError
from ...core.types import Array, Reading
from ...models.manifest import InputSpec

ODD = 3
"""Readings in a row of another number of channels after which that is what the source gives."""


class Channels:
    """What of a source's rows a model takes, and where that lies in them."""

    def __init__(
        self, spec: InputSpec, columns: tuple[str, ...], restart: Callable[[], None]
    ) -> None:
        """Prepare for a source whose channels have these names, if any.

        Args:
            spec: the manifest's `[input]`.
            columns: names of the source's channels.
            restart: called where what was picked so far is no part of the channel.

        Raises:
            ModelError: the manifest names a channel that the source has not.
        """
        self._cut = spec.window is not None
        self._wanted = spec.channels
        self._columns = columns
        self._restart = restart
        self._picked: list[int] | None = None
        """None: all, in their order."""
        self._only: tuple[str, ...] | None = None
        """Name of the only channel, where another name is wanted; () if it has none."""
        self._named = False
        """Whether the source has given the names that are wanted."""
        self._shape: tuple[int, ...] | None = None
        self._odd = 0
        if columns:
            self._picked = self._pick(columns, len(columns))

    def pick(self, reading: Reading) -> Array:
        """Return the rows of a reading, (n, channels wanted) or (n, …) of ready inputs.

        Raises:
            ModelError: they do not fit the manifest.
        """
        columns = reading.columns
        if columns != self._columns:
            self._picked = self._pick(columns, len(columns)) if columns else None
            self._columns = columns
        rows = reading.data
        if columns and self._wanted and rows.ndim == 2:
            # What else comes, now and then, decides nothing.
            rows = rows if self._picked is None else rows[:, self._picked]
            self._check(rows)
            return rows
        self._check(rows)
        return rows[:, self._picked] if rows.ndim == 2 and self._picked is not None else rows

    def number(self, place: int) -> int:
        """Return which of the source's channels is the *place*-th that was picked."""
        return place if self._picked is None else self._picked[place]

    def _check(self, rows: Array) -> None:
        """Check the first rows, and those whose shape changes, against the manifest."""
        if rows.shape[1:] == self._shape:
            self._odd = 0
            return
        if self._cut and rows.ndim != 2:
            shape = " by ".join(str(size) for size in rows.shape[1:])
            raise ModelError(
                f"input.window: the source gives ready inputs of {shape}, which cannot be cut "
                "into windows; leave `window` out of the manifest"
            )
        if self._shape is not None:
            self._odd += 1
            before = self._shape
            if self._odd >= ODD:
                self._shape, self._odd = None, 0
            raise ModelError(
                f"the source changed from {_values(before)} a row to {_values(rows.shape[1:])}"
            )
        if rows.ndim == 2 and self._wanted and not self._columns:
            self._picked = self._pick((), rows.shape[1])
        self._shape = rows.shape[1:]

    def _pick(self, columns: tuple[str, ...], count: int) -> list[int] | None:
        """Find the channels that the manifest names among *count*."""
        if not self._wanted:
            return None
        if self._is_only(columns, count):
            return [0]
        picked = [self._find(channel, columns, count) for channel in self._wanted]
        if self._only is not None:
            # What was taken for the channel, before it came by its name, is no part of it.
            self._restart()
            self._only = None
        self._named = bool(columns)
        return None if picked == list(range(count)) else picked

    def _is_only(self, columns: tuple[str, ...], count: int) -> bool:
        """Whether the one channel that is wanted is the one that there is, by whatever name.

        Not where the source gives now this and now that, as objects of JSON may: their names tell.
        """
        if count != 1 or len(self._wanted) != 1 or not isinstance(self._wanted[0], str):
            return False
        if columns == self._wanted or self._named or self._only not in {None, columns}:
            return False
        self._only = columns
        return True

    def _find(self, channel: int | str, columns: tuple[str, ...], count: int) -> int:
        if isinstance(channel, int):
            if 0 <= channel < count:
                return channel
            raise ModelError(
                f"input.channels: {channel} is not a channel of the source, which has {count}, "
                "counted from 0"
            )
        if not columns:
            raise ModelError(
                f"input.channels: the source has no names for its {count} channels, so that "
                f"{channel!r} cannot be found; use numbers, counted from 0"
            )
        places = [place for place, name in enumerate(columns) if name == channel]
        if len(places) != 1:
            what = "is the name of several columns" if places else "is not a column"
            raise ModelError(
                f"input.channels: {channel!r} {what} of the source, which has {', '.join(columns)}"
            )
        return places[0]


def _values(shape: tuple[int, ...]) -> str:
    return " by ".join(map(str, shape)) + (" value" if shape == (1,) else " values")
