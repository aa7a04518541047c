"""The interface of all sources to the rest of the program, and how they are opened and read."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from importlib import import_module
from typing import Any, Protocol

from ..core.errors import SampleError, SourceError
from ..core.frozen import record
from ..core.types import Reading
from ..device.wall_clock import may_be_behind
from .opencv import HEAD_BYTES, refusal
from .spec import SourceSpec

_OTHERS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

OPEN_SECONDS = 30.0
"""Longest time to open a source; after that it counts as hung in a driver."""
SLACK = 1.0
"""Seconds of delay that a source catches up on at once; a longer delay shifts the schedule."""


class Topics(Protocol):
    """The messages published by others, by topic. See `mqtt.subscriptions`."""

    def open(self, topic: str, put: Callable[[bytes], None], *, held: bool) -> None:
        """Pass the payloads of a topic to *put*, which must not wait.

        *held*: also those that the broker has held while it could not be reached.
        """

    def close(self, topic: str, put: Callable[[bytes], None]) -> None:
        """Stop passing payloads to *put*."""


@record(eq=False)
class SourceContext:
    """The context that a source gets when it is opened."""

    closing: threading.Event = field(default_factory=threading.Event)
    """Once set, a `grab` that waits for its due time returns False. A read inside a camera's driver
    ignores it."""
    decode: str = "auto"
    """Decoder of streams: `auto` for any hardware, `software`, or the named hardware."""
    rate: Callable[[float], float] = lambda usual: usual
    """Returns the most readings per second that are wanted, given the usual number, for a source
    that is polled."""
    wanted: Callable[[float], bool] = lambda _at: True
    """Returns whether a picture of a shared source is wanted, given its seconds since the first
    one; called for each picture."""
    missed: Callable[[], object] = lambda: None
    """Called when a wanted picture is replaced by a newer one."""
    alive: Callable[[], object] = lambda: None
    """Called often while the reading thread is not inside a driver."""
    alone: str = ""
    """The pipeline that does not share the source; empty: it is shared."""
    clock_behind: Callable[[], bool] = may_be_behind
    """Returns whether this device's clock is no measure of a sender's that is ahead of it."""
    topics: Topics | None = None
    """Delivers the messages of others; None: not available."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Shared sources by `shared.sharing_key`; see `shared.Shared`."""
    sharing: threading.Lock = field(default_factory=threading.Lock)
    """Guards `shared`."""


class Source(Protocol):
    """One opened camera, clip, folder or recording. Used and closed by one thread."""

    @property
    def trouble(self) -> str | None:
        """Its trouble so far that did not end it, or None."""

    def grab(self) -> bool:
        """Wait for the next reading; False when the source has ended or must be closed.

        Cheap: the picture is not decoded or converted yet.

        Raises:
            SourceError: the source is lost; close it and open it again later.
        """

    def retrieve(self) -> Reading:
        """Decode the reading of the last `grab`; called at most once for each True `grab`.

        Raises:
            SourceError: the source is lost.
            SampleError: this reading cannot be used (a damaged picture); continue with the next.
        """

    def close(self) -> None:
        """Close the device or file; may be called twice."""


def open_source(spec: SourceSpec, context: SourceContext | None = None) -> Source:
    """Open the source of *spec*; without *context* only its owner can close it.

    Raises:
        SourceError: it does not exist, cannot be read, or delivers nothing.
    """
    if spec.scheme.address == "file":
        _check_is_file(spec)
    module = import_module(spec.scheme.module)
    source: Source = module.open_source(spec, context or SourceContext())
    return source


def readings(source: Source) -> Iterator[Reading | SampleError]:
    """Yield each reading of an open source, or its error, until the source ends.

    Raises:
        SourceError: the source is lost.
    """
    while source.grab():
        try:
            reading = source.retrieve()
        except SampleError as problem:
            yield problem
        else:
            yield reading


def wait_until(due: float, closing: threading.Event) -> bool:
    """Wait until the monotonic clock shows *due*; False once *closing* is set."""
    delay = due - time.monotonic()
    return not (closing.wait(delay) if delay > 0 else closing.is_set())


class Metronome:
    """Paces readings at a fixed rate, the first one at once."""

    def __init__(self, rate: float | None, closing: threading.Event) -> None:
        """Set up; *rate* is in readings per second, None: never wait."""
        self._period = 0.0 if rate is None else 1.0 / rate
        self._closing = closing
        self._due: float | None = None

    def wait(self, count: int = 1) -> bool:
        """Wait until *count* further readings are due; False once the source must be closed."""
        if self._period == 0.0:
            return not self._closing.is_set()
        now = time.monotonic()
        due = now if self._due is None else self._due + count * self._period
        self._due = due if due > now - SLACK else now
        return wait_until(self._due, self._closing)


def _check_is_file(spec: SourceSpec) -> None:
    """Check that a path is a file: a pipe could block forever, and cannot be rewound.

    Raises:
        SourceError: it is something else, or a picture of an unsupported kind. The source's own
            module reports a file that is missing or cannot be read.
    """
    try:
        mode = spec.local.stat().st_mode
        for is_other, what in _OTHERS:
            if is_other(mode):
                raise SourceError(f"{spec.redacted}: is {what}, expected a file")
        if spec.kind != "picture":
            return
        with spec.local.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return
    # Of a HEIC, FFmpeg would take the first tile for the whole picture.
    if why := refusal(head):
        raise SourceError(f"{spec.redacted}: {why}")
