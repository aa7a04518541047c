"""Tracks beside those of another implementation of ByteTrack, on the same boxes.

`bytetrack.txt` has the boxes of objects that move, meet and are missed in one frame of twelve, made
from a seed, and the tracks that ByteTrackTracker of the package `trackers` gave them
(lost_track_buffer 30, frame_rate 30, thresholds 0.5, minimum_consecutive_frames 2,
minimum_iou_threshold 0.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import lap
import numpy as np

from tests.helpers.rule_engines import Box, Stage

CASE = Path(__file__).with_name("bytetrack.txt")
THRESHOLD = 0.5


def idf1(found: Iterable[tuple[int, int]]) -> float:
    """Return the identity F1 of pairs of object and track; 0 stands for none."""
    pairs = [*found]
    objects = sorted({one for one, _ in pairs if one})
    tracks = sorted({track for _, track in pairs if track})
    size = max(len(objects), len(tracks))
    together = np.zeros((size, size))
    for (one, track), count in Counter(pairs).items():
        if one and track:
            together[objects.index(one), tracks.index(track)] = count
    _, chosen, _ = lap.lapjv(together.max() - together)
    hits = float(together[np.arange(size), chosen].sum())
    return 2 * hits / (sum(one > 0 for one, _ in pairs) + sum(track > 0 for _, track in pairs))


def test_tracks_are_as_good_as_those_of_another_bytetrack() -> None:
    """IDF1 within 0.02 of it, on boxes of which the truth is known."""
    rows = [line.split() for line in CASE.read_text().splitlines() if not line.startswith("#")]
    frames: dict[int, list[list[str]]] = {}
    for row in rows:
        frames.setdefault(int(row[0]), []).append(row)
    stage = Stage(rate=30, size=(640, 360))
    ours: list[tuple[int, int]] = []
    theirs: list[tuple[int, int]] = []
    for number in range(max(frames) + 1):
        sure: list[tuple[int, Box]] = []
        weak: list[Box] = []
        for row in frames.get(number, []):
            x1, y1, x2, y2 = map(float, row[3:7])
            found: Box = ("a", float(row[2]), (x1, y1, x2, y2))
            if found[1] < THRESHOLD:
                weak.append(found)
                continue
            sure.append((int(row[1]), found))
            theirs.append((int(row[1]), int(row[7])))
        sure.sort(key=lambda each: -each[1][1])
        tracks = stage.show(*(each for _, each in sure), weak=weak).tracks
        assert tracks is not None
        ours += zip((one for one, _ in sure), tracks.tolist(), strict=True)
    assert idf1(ours) >= idf1(theirs) - 0.02
    assert idf1(theirs) > 0.95, "the case is one that can be solved"
