"""A source that several captures read: opened once, each with what waits for itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.bounds import Polygon
from edge_agent.core.errors import SampleError, SourceError
from edge_agent.core.types import Kind, Reading
from edge_agent.runtime.pipelines.masks import Masks
from edge_agent.sources.shared import Shared, Tap, Wanted, share
from edge_agent.sources.source import SourceContext
from edge_agent.sources.spec import parse_source
from tests.helpers.support import wait_until


class Frames:
    """A camera as a producer: each picture is decoded once, and must not be written to."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = 0
        self.fails = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def read(self, timeout: float, wanted: Wanted) -> list[Reading | SampleError]:
        """Return the next picture, whose pixels tell its number; a driver that hangs waits."""
        del timeout, wanted
        self.goes_on.wait(30)
        if self.fails:
            raise SourceError("the camera is gone")
        self.given += 1
        picture = np.full((4, 4, 3), self.given % 256, np.uint8)
        return [Reading(picture, time.time_ns(), time.monotonic())]

    def close(self) -> None:
        """Close it."""
        self.closed += 1


class Slot(Tap):
    """The smallest tap: the newest picture waits, an older one gives way."""

    kind: Kind = "picture"

    def offer(self, item: Reading | SampleError) -> None:
        """Take a picture instead of the one that waits."""
        self.waiting.clear()
        self.waiting.append(item)


class Street:
    """A camera that several captures want."""

    def __init__(self, stall_s: float = 10) -> None:
        self.spec = parse_source(f"rtsp://cam/street?stall_s={stall_s}", Path.cwd())
        self.context = SourceContext()
        self.opened: list[Frames] = []

    def tap(self, closing: threading.Event | None = None) -> Slot:
        """Open it as a capture would."""
        context = replace(self.context, closing=closing or threading.Event())

        def open_frames(_shared: Shared) -> Frames:
            self.opened.append(Frames())
            return self.opened[-1]

        def make(shared: Shared) -> Slot:
            return Slot(shared, context)

        return share(self.spec, context, open_frames, make)


def next_number(tap: Slot) -> int:
    """Give the number of the next picture."""
    assert tap.grab()
    return int(tap.retrieve().data[0, 0, 0])


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Run something in a thread of its own."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_two_captures_read_one_camera_each_at_its_own_pace() -> None:
    """It is opened once and closed by the last; who is slow gets the newest picture."""
    street = Street()
    quick, slow = street.tap(), street.tap()
    (camera,) = street.opened
    assert [next_number(quick) for _ in range(3)] == [1, 2, 3]
    assert next_number(slow) == 3
    quick.close()
    assert camera.closed == 0
    assert next_number(slow) == 4
    slow.close()
    assert camera.closed == 1
    assert next_number(street.tap()) == 1
    assert len(street.opened) == 2


def test_a_mask_of_one_pipeline_is_not_in_the_pictures_of_another() -> None:
    """Both have the same memory: who blackens takes a copy."""
    street = Street()
    masked, plain = street.tap(), street.tap()
    assert masked.grab()
    square: Polygon = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    assert not Masks([square]).apply(masked.retrieve().data).any()
    assert next_number(plain) == 1


def test_a_camera_that_is_lost_is_lost_for_all_and_opened_anew_once() -> None:
    """Each capture hears it; the first that comes again opens it."""
    street = Street()
    one, other = street.tap(), street.tap()
    street.opened[0].fails = True
    for tap in (one, other):
        with pytest.raises(SourceError, match="gone") as problem:
            tap.grab()
        tap.close()
    with pytest.raises(SourceError, match="gone"):
        street.tap()  # each would try it otherwise, and again, and again
    problem.value.again_at = 0.0
    again, beside = street.tap(), street.tap()
    assert next_number(again) == next_number(beside) == 1
    assert len(street.opened) == 2


def test_a_reader_that_hangs_in_a_driver_holds_up_the_others_only_until_it_is_given_up() -> None:
    """Its capture is abandoned by the watch over it; the others then open the camera anew."""
    street = Street(stall_s=1)
    closing = threading.Event()
    hanging, other = street.tap(closing), street.tap()
    street.opened[0].goes_on.clear()
    in_thread(hanging.grab)
    wait_until(lambda: hanging._shared._reader is hanging, "the driver")
    lost: list[SourceError] = []

    def read() -> None:
        try:
            other.grab()
        except SourceError as problem:
            lost.append(problem)

    waiting = in_thread(read)
    closing.set()
    waiting.join(10)
    assert len(lost) == 1
    other.close()
    lost[0].again_at = 0.0
    assert next_number(street.tap()) == 1
    assert len(street.opened) == 2
    street.opened[0].goes_on.set()
