"""Memory for pictures: whoever has one may keep it, and what nobody has is used again."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from edge_agent.core.types import Array
from edge_agent.sources.frame_pool import KEPT, KEPT_BYTES, FramePool
from tests.helpers.support import PATIENCE

SHAPE = (48, 64, 3)


def address(picture: Array) -> int:
    """Say where a picture lies."""
    return int(picture.ctypes.data)


def test_what_was_let_go_last_is_lent_first() -> None:
    """It is still in the cache."""
    pictures = FramePool()
    one, two = pictures.lend(SHAPE), pictures.lend(SHAPE)
    assert (one.shape, one.dtype.name) == (SHAPE, "uint8")
    assert one.flags.writeable
    assert one.flags.c_contiguous
    places = [address(one), address(two)]
    assert places[0] != places[1]
    del one, two
    again = [pictures.lend(SHAPE), pictures.lend(SHAPE)]
    assert [address(picture) for picture in again] == places[::-1]


def test_a_part_keeps_the_whole() -> None:
    """A crop, a view of a crop, and other readings of the same bytes."""
    pictures = FramePool()
    for part in (
        lambda picture: picture[3:9, 4:8],
        lambda picture: picture.reshape(-1)[7:],
        lambda picture: picture.view(np.int8)[::2],
        lambda picture: np.frombuffer(picture, np.uint8),
        lambda picture: picture.data,
    ):
        whole = pictures.lend(SHAPE)
        place = address(whole)
        kept = part(whole)
        del whole
        other = pictures.lend(SHAPE)
        assert address(other) != place
        del kept
        assert address(pictures.lend(SHAPE)) == place


def test_sizes_are_kept_apart() -> None:
    """A camera that changes its size gets pictures of the new one."""
    pictures = FramePool()
    small = pictures.lend(SHAPE)
    del small
    assert pictures.lend((2, 2, 3)).shape == (2, 2, 3)
    assert pictures.lend(SHAPE).shape == SHAPE


@pytest.mark.parametrize(("side", "kept"), [(1024, KEPT_BYTES // (3 * 1024**2)), (4096, KEPT)])
def test_no_more_is_kept_than_is_good_for_anything(side: int, kept: int) -> None:
    """After many pictures at a time their memory goes back to the system, all of it if wanted."""
    canvases = FramePool()
    many = [canvases.lend((side, side, 3)) for _ in range(20)]
    many.clear()
    (idle,) = canvases._idle.values()
    assert len(idle) == kept
    lent = canvases.lend((side, side, 3))
    canvases.forget()
    assert not idle
    place = address(lent)
    del lent
    assert address(canvases.lend((side, side, 3))) == place


def test_no_two_threads_are_lent_the_same() -> None:
    """What one writes is not written over by another as long as it has it."""
    pictures = FramePool()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(2000):
            picture = pictures.lend(SHAPE)
            picture[...] = number
            part = picture[5:9]
            del picture
            if not (part == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=partial(work, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong
