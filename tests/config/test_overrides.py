"""What `set` may change, and what of it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.config.overrides import Overrides
from edge_agent.config.settable import SETTABLE, read_bare
from edge_agent.config.settings import Pipeline
from edge_agent.core.errors import RequestError

DOOR = Pipeline(name="door", source="dir:.", model="m")


@pytest.mark.parametrize("label", ["\ud800", "a\0", "\x1b[31m", "\x9b"])
def test_labels_that_nobody_could_write_are_refused(label: str) -> None:
    """Half letters and control characters, in `labels` and as keys of `thresholds`."""
    for key, value in (("labels", [label]), ("thresholds", {label: 0.5})):
        with pytest.raises(ValueError, match=r"half of a letter|control character"):
            SETTABLE[key].parse(value)


def test_a_bare_value_with_half_of_a_letter_is_refused() -> None:
    """Its escape is named."""
    with pytest.raises(RequestError, match=r"labels: holds half of a letter, .ud800"):
        read_bare("labels", rb'["\ud800"]')


def test_kept_changes_that_are_not_valid_are_ignored_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others hold, and no content of the file stops a start."""
    path = tmp_path / "overrides.json"
    kept = {"door": {"labels": ["\ud800"], "thresholds": {"\ud800": 0.5}, "rate": 3}}
    path.write_text(json.dumps(kept))
    found = Overrides(path).applied(DOOR)
    assert (found.labels, found.thresholds, found.rate) == ((), {}, 3.0)
    assert "door: labels: '\\ud800' holds half of a letter" in caplog.text
    assert "door: thresholds: '\\ud800' holds half of a letter" in caplog.text
    for damaged in ("[1]", '{"door": 3}', "{", '"x"', "[" * 100_000):
        path.write_text(damaged)
        overrides = Overrides(path)
        assert overrides.applied(DOOR) == DOOR
        assert overrides.lost is not None
        assert "changes made by `set` and `configure` are forgotten; it is kept" in overrides.lost
        assert Overrides(path).lost is None, "the file has been put aside"
