"""Large JSON is read like small JSON; a text among numbers takes no room for each of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edge_agent.answers.numbers_json import LARGE, LONG, read_large, to_numbers


def test_large_json_holds_what_small_json_does_with_arrays_for_its_long_lists() -> None:
    """Pictures as lists take half a second and much memory; short lists stay lists."""
    rows = [[0.5, number] for number in range(100_000)]
    content = {"readings": rows, "columns": ["a"] * LONG, "shape": [1, 2], "uneven": [[1], [2, 3]]}
    text = json.dumps(content).encode()
    assert len(text) > LARGE
    found = read_large(text)
    readings = found.pop("readings")
    assert isinstance(readings, np.ndarray)
    assert readings.tolist() == rows
    assert found == {key: value for key, value in content.items() if key != "readings"}


@pytest.mark.parametrize("text", [b"[" * 2 * LARGE, b"[1" + b" " * LARGE, b"\xff" * 2 * LARGE])
def test_what_is_large_and_not_json_is_refused_as_such(text: bytes) -> None:
    """Nested too deeply, cut short, not UTF-8."""
    with pytest.raises(ValueError, match="not JSON"):
        read_large(text)


def test_a_long_text_among_numbers_takes_no_room_for_each_of_them() -> None:
    """One question of 1 MB had taken 18 GB: an array has room for its longest text everywhere."""
    assert to_numbers([0.1, "a" * 2**20] + [0.1] * 10**5) is None
    assert to_numbers([[1, 2], [3]]) is None
    assert to_numbers([2**70]) is None
    found = to_numbers([[1, 2], [3, 4]])
    assert found is not None
    assert found.tolist() == [[1, 2], [3, 4]]
