"""Totals of lines and counts, while others count, come and go."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.rules import Line
from edge_agent.config.settings import Pipeline
from edge_agent.core.types import Detections, Outcome, Sample, Timing
from edge_agent.mqtt.payloads import iso
from edge_agent.rules.engines import RuleEngines
from edge_agent.rules.totals import LineTotals, TotalsFile
from edge_agent.runtime.pipelines.sinks import Sink, Sinks
from tests.helpers.rule_engines import box, detections


class BusyLock:
    """A lock for which another thread waits: it goes on as soon as the lock is free."""

    def __init__(self, other: Callable[[], object]) -> None:
        self._lock = threading.RLock()
        self._others = [other]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        while self._others:
            thread = threading.Thread(target=self._others.pop())
            thread.start()
            thread.join()


def keep_busy(totals: LineTotals, other: Callable[[], object]) -> None:
    """Have something done by another thread when *totals* are used next."""
    lock: Any = BusyLock(other)
    totals._lock = lock


def test_what_crosses_while_the_totals_are_written_is_written_next(tmp_path: Path) -> None:
    """A crossing between the copy and its end is one that has changed them."""
    file = TotalsFile(tmp_path / "counts.json")
    totals = file.of("p")
    totals.add("gate", "in", "a")
    keep_busy(totals, lambda: totals.add("gate", "in", "a"))
    file.save()
    file.save()
    kept = TotalsFile(tmp_path / "counts.json").of("p").of(["gate"])
    assert kept["lines"] == {"gate": {"in": {"a": 2}, "out": {}}}


def test_totals_do_not_fall_behind_the_events_of_what_has_crossed(tmp_path: Path) -> None:
    """A kill between an event and the next write of the totals: the journal has them."""
    file = TotalsFile(tmp_path / "counts.json")
    totals = file.of("p")
    totals.add("gate", "in", "a")
    file.save()
    totals.add("gate", "in", "a")
    totals.add("gate", "out", "b")
    journaled = {"p": totals.content(), "new": LineTotals(None).content(), "odd": {"lines": 3}}
    kept = TotalsFile(tmp_path / "counts.json", journaled)
    assert kept.of("p").content() == totals.content()
    totals.add("gate", "in", "a")
    file.save()
    assert TotalsFile(tmp_path / "counts.json", journaled).of("p").content() == totals.content()
    totals.reset()
    file.save()
    assert TotalsFile(tmp_path / "counts.json", journaled).of("p").of(["gate"])["lines"] == {
        "gate": {"in": {}, "out": {}}
    }


def test_a_reset_holds_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """A kill between the reset and the next write: what began by the clock later had won.

    Totals of versions that did not count the resets are read, too.
    """
    ahead = {"lines": {"gate": {"in": {"a": 4}, "out": {}}}, "since": "2036-01-01T00:00:00.000Z"}
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"p": ahead}))
    totals = TotalsFile(path).of("p")
    assert totals.of(["gate"]) == ahead
    totals.reset()
    totals.add("gate", "out", "b")
    kept = TotalsFile(path, {"p": totals.content()})
    assert kept.of("p").content() == totals.content()
    kept.save()
    assert TotalsFile(path, {"p": ahead}).of("p").content() == totals.content()


def test_a_pipeline_that_comes_while_the_totals_are_written(tmp_path: Path) -> None:
    """A reload may add one at any moment."""
    file = TotalsFile(tmp_path / "counts.json")
    keep_busy(file.of("p"), lambda: file.of("q"))
    file.save()
    assert file.of("q").changed


def test_counts_of_a_pipeline_that_goes_while_they_are_written_are_not_published(
    tmp_path: Path,
) -> None:
    """Nobody would clear them once more."""
    totals = TotalsFile(tmp_path / "counts.json")
    counted: list[str] = []

    class Heard(Sink):
        def counts(self, pipeline: str, counts: Mapping[str, Any]) -> None:
            del counts
            counted.append(pipeline)

    engines = RuleEngines(
        totals,
        Sinks(Heard()),
        name_event=lambda: "e-1",
        emit=lambda _event: None,
        keep_totals=lambda _name: None,
    )
    gate = Line(name="gate", points=((0.0, 0.0), (1.0, 1.0)))
    settings = Pipeline(name="p", source="dir:.", model="m", lines=(gate,))
    engines.open(settings, apart=None)
    keep_busy(totals.of("p"), lambda: engines.close("p", "reloaded"))
    engines.publish_counts(at_once=True)
    assert counted == []
    engines.open(settings, apart=None)
    engines.publish_counts(at_once=True)
    assert counted == ["p"]
    engines.publish_counts(at_once=True)
    assert counted == ["p"], "nothing has changed"


def test_other_settings_begin_no_track_numbers_anew(tmp_path: Path) -> None:
    """Who counts by `track` took another object for the one before."""
    engines = RuleEngines(
        TotalsFile(tmp_path / "counts.json"),
        Sinks(),
        name_event=lambda: "e-1",
        emit=lambda _event: None,
        keep_totals=lambda _name: None,
    )
    settings = Pipeline(name="p", source="dir:.", model="m", track=True)
    seen = []
    for start in (0, 100):
        engine = engines.open(settings, apart=None)
        for seq in (1, 2):
            sample = Sample(np.zeros((100, 100, 3), np.uint8), start + seq, 0, start + seq / 10)
            outcome = Outcome("m@1", "none", detections([box(50, 50)]), Timing(0.0, 0.0, 0.0))
            found = engine.process(sample, outcome, None).findings
        assert isinstance(found, Detections)
        seen.append(found.tracks.tolist() if found.tracks is not None else None)
        engines.close("p", "reloaded")
    assert seen == [[1], [2]]


def test_totals_that_began_before_the_clock_was_set_say_so_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`since` stayed in 1970 for ever, without a mark."""
    released = 10**18

    def file() -> TotalsFile:
        return TotalsFile(tmp_path / "counts.json", credible=lambda time_ns: time_ns > released)

    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: 20 * 10**9)
        totals = file()
        totals.of("p").add("gate", "in", "a")
        assert totals.save() == {"p"}
        said = totals.of("p").of(["gate"])
        assert (said["since"], said["clock"]) == ("1970-01-01T00:00:20.000Z", "unset")
        totals = file()  # a restart
        assert totals.of("p").of(["gate"])["clock"] == "unset"
        totals.save()
    assert totals.save() == {"p"}, "it is published again"
    said = totals.of("p").of(["gate"])
    assert "clock" not in said
    assert iso(time.time_ns())[:4] == said["since"][:4]
    assert file().of("p").of(["gate"]) == said
