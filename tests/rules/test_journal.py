"""The journal: what a killed agent has left is published, whenever that becomes possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_agent.rules.journal import Journal
from tests.helpers.scenes import desk_without_broker


def begun(**more: Any) -> dict[str, Any]:
    """Make the first message of an event that lasts."""
    return {
        "schema": 1,
        "device": "box",
        "session": "s",
        "pipeline": "p",
        "seq": 1,
        "time": "2026-11-21T03:26:50.123Z",
        "event": "s-1",
        "rule": "r",
        "when": "dwell",
        "state": "begin",
        "began": "2026-11-21T03:26:50.123Z",
        **more,
    }


def test_what_was_left_is_kept_through_runs_that_meet_no_broker(tmp_path: Path) -> None:
    """Killed while the broker is away, then stopped before it is back: begin and end are there."""
    Journal(tmp_path / "events.json").add([(begun(), 1)])
    for _ in range(3):
        desk = desk_without_broker(tmp_path)
        desk.close()
        desk.run()
    left = Journal(tmp_path / "events.json").left()
    assert [each["state"] for each in left] == ["begin", "end"]
    assert left[1]["why"] == "stopped"


def test_how_long_an_event_has_lasted_does_not_go_by_a_clock_that_is_set_meanwhile(
    tmp_path: Path,
) -> None:
    """It began before the clock of a box without a battery was set, and the power went after."""
    Journal(tmp_path / "events.json").add([(begun(began="1970-01-01T00:00:09.000Z"), 0)])
    [end] = Journal(tmp_path / "events.json").left()
    assert end["state"] == "end"
    assert 0 <= end["seconds"] < 60
