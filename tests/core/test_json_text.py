"""Untrusted JSON: how deep it may be nested does not depend on Python's parser."""

from __future__ import annotations

import pytest

from edge_agent.core.json_text import DEPTH, read_json


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"x": ', "}")])
@pytest.mark.parametrize("encoded", [False, True])
def test_more_levels_than_anything_needs_are_refused(
    opening: str, closing: str, *, encoded: bool
) -> None:
    """The parser takes ten times as many: what followed them ended every look at a fleet."""
    within, beyond = (opening * n + "1" + closing * n for n in (DEPTH, DEPTH + 1))
    assert read_json(within.encode() if encoded else within)
    with pytest.raises(RecursionError):
        read_json(beyond.encode() if encoded else beyond)


def test_brackets_in_strings_are_no_levels() -> None:
    """Of a text about JSON, or of many short rows."""
    text = "[" * 2 * DEPTH
    assert read_json(f'["{text}"]') == [text]
    assert read_json(str([[1]] * DEPTH * 2)) == [[1]] * DEPTH * 2


def test_brackets_in_strings_hide_no_levels() -> None:
    """A quick look that took away pairs took these for pairs."""
    levels = 2 * DEPTH
    with pytest.raises(RecursionError):
        read_json('["]",' * levels + "1" + ',"["]' * levels)
