"""Checks whether cameras send far more than their models need, and what that costs here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ..core.errors import AgentError, SourceError
from ..core.frozen import record
from ..inference.fit import input_size
from ..models.describing import inspect_network

if TYPE_CHECKING:
    from ..config.settings import Pipeline
    from ..models.manifest import ModelFolder
    from ..sources.source import Source

FAR = 2.0
"""Factor in width and height that is far too much: half the size would do for every model."""
FRAMES = 5
SECONDS = 2.0
"""Most time to wait for those frames."""


@record
class Stream:
    """A pipeline's stream: the size from its source, and the size needed."""

    source: str
    """The source as in the settings."""
    name: str
    """The source without secrets."""
    size: tuple[int, int]
    """Width and height."""
    needed: tuple[int, int] | None
    """Width and height that are enough for every model; None: unknown, or all of it."""
    cost_ms: float
    """Processor time for reading a frame."""


def reading_cost(opened: Source, closing: threading.Event) -> float:
    """Return the processor time for reading a frame, in ms, summed over threads; 0: none came."""
    from ..sources.source import readings

    timer = threading.Timer(SECONDS, closing.set)
    timer.start()
    begin, count = time.process_time(), 0
    try:
        for _ in islice(readings(opened), FRAMES):
            count += 1
    except SourceError:
        count = 0
    finally:
        timer.cancel()
    return (time.process_time() - begin) / count * 1e3 if count else 0.0


def needed_of(
    pipeline: Pipeline, size: tuple[int, int], folders: Sequence[ModelFolder | None]
) -> tuple[int, int] | None:
    """Return the size of the stream that a pipeline's models need."""
    if pipeline.then or not folders:
        return None  # crops use every pixel
    width, height = 0, 0
    for folder in folders:
        try:
            found = None if folder is None else input_size(folder, inspect_network(folder.network))
        except AgentError:
            found = None
        if found is None:
            return None
        width, height = max(width, found[0]), max(height, found[1])
    x1, y1, x2, y2 = pipeline.roi
    if x2 > x1:
        # Only the region is needed, but the whole stream is read.
        width, height = width * size[0] // (x2 - x1), height * size[1] // (y2 - y1)
    return width, height


def oversized(streams: Iterable[Stream]) -> Iterator[tuple[str, str]]:
    """Yield each source that sends far more than its models need, and a line about it."""
    by_source: dict[str, list[Stream]] = {}
    for stream in streams:
        by_source.setdefault(stream.source, []).append(stream)
    for several in by_source.values():
        width, height = several[0].size
        needed = [each.needed for each in several if each.needed is not None]
        if len(needed) < len(several):
            continue
        wide, high = max(one[0] for one in needed), max(one[1] for one in needed)
        if width < FAR * wide or height < FAR * high:
            continue
        cost = max(each.cost_ms for each in several)
        took = f"; reading a frame takes {cost:.3g} ms of a processor here" if cost else ""
        yield (
            several[0].name,
            (
                f"{width}x{height} is far more than the models on it take ({wide}x{high} at "
                f"most){took}; have it send less, or take its second stream"
            ),
        )
