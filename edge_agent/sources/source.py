"""The interface of every source to the rest of the program, and how one is opened and read."""

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
from .spec import SourceSpec

_OTHERS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

OPEN_SECONDS = 30.0
"""Most that an opening takes; a longer one hangs in a driver."""
SLACK = 1.0
"""Seconds that a source which was held up makes up for at once; beyond it, the beat moves."""


class Topics(Protocol):
    """The messages that others publish, by topic. See `mqtt.subscriptions`."""

    def open(self, topic: str, put: Callable[[bytes], None]) -> None:
        """Hand the payloads of a topic to *put*, which must not wait."""

    def close(self, topic: str, put: Callable[[bytes], None]) -> None:
        """Hand it no more."""


@record(eq=False)
class SourceContext:
    """The context that the program gives a source when opening it."""

    closing: threading.Event = field(default_factory=threading.Event)
    """Once set, a `grab` that waits for a reading to be due returns False. A read inside a camera's
    driver does not see it."""
    decode: str = "auto"
    """Decoder of streams: hardware where there is any, `software`, or hardware of this name."""
    rate: Callable[[float], float] = lambda usual: usual
    """Returns how many readings a second are wanted at most, given what is usual, of a source that
    has to be asked for each."""
    wanted: Callable[[float], bool] = lambda _at: True
    """Called for each picture of a source that is shared, with the seconds since the first one:
    returns whether it is wanted."""
    missed: Callable[[], object] = lambda: None
    """Called when a picture that was wanted gives way to a newer one."""
    alive: Callable[[], object] = lambda: None
    """Called every moment while the reading thread is not inside a driver."""
    alone: str = ""
    """Who shares the source with nobody; empty: whoever reads the same shares it."""
    topics: Topics | None = None
    """Where messages of others come from; None: nowhere."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Sources that pipelines share, by `shared.sharing_key`; see `shared.Shared`."""
    sharing: threading.Lock = field(default_factory=threading.Lock)
    """Held while `shared` is looked into."""


class Source(Protocol):
    """One opened camera, clip, folder or recording. Used by one thread, closed by the same."""

    @property
    def trouble(self) -> str | None:
        """Its trouble so far, though it could go on, or None."""

    def grab(self) -> bool:
        """Wait for the next reading; False when the source has ended or is to be closed.

        Cheap: the picture is not yet decoded or converted.

        Raises:
            SourceError: the source is lost; close it and open it again later.
        """

    def retrieve(self) -> Reading:
        """Decode the reading that `grab` waited for; called at most once for each True `grab`.

        Raises:
            SourceError: the source is lost.
            SampleError: this one reading cannot be used (a damaged picture); go on with the next.
        """

    def close(self) -> None:
        """Close the device or file; may be called twice."""


def open_source(spec: SourceSpec, context: SourceContext | None = None) -> Source:
    """Open the source that *spec* names; without *context* it is closed by its owner only.

    Raises:
        SourceError: it is not there, cannot be read, or gives nothing.
    """
    if spec.scheme.address == "file":
        _check_is_file(spec)
    module = import_module(spec.scheme.module)
    source: Source = module.open_source(spec, context or SourceContext())
    return source


def readings(source: Source) -> Iterator[Reading | SampleError]:
    """Yield each reading of an open source, or why it cannot be used, until it ends.

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
    """Gives the beat for readings at a fixed rate, the first at once."""

    def __init__(self, rate: float | None, closing: threading.Event) -> None:
        """Prepare; *rate* is in readings a second, None for no waiting at all."""
        self._period = 0.0 if rate is None else 1.0 / rate
        self._closing = closing
        self._due: float | None = None

    def wait(self, count: int = 1) -> bool:
        """Wait until *count* further readings are due; False once the source is to be closed."""
        if self._period == 0.0:
            return not self._closing.is_set()
        now = time.monotonic()
        due = now if self._due is None else self._due + count * self._period
        self._due = due if due > now - SLACK else now
        return wait_until(self._due, self._closing)


def _check_is_file(spec: SourceSpec) -> None:
    """Check that a file is one: a pipe would be waited for without end, and cannot be rewound.

    Raises:
        SourceError: it is something else. One that is missing is left to the source's own module.
    """
    try:
        mode = spec.local.stat().st_mode
    except OSError:
        return
    for is_other, what in _OTHERS:
        if is_other(mode):
            raise SourceError(f"{spec.redacted}: is {what}, expected a file")
