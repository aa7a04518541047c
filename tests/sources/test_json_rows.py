"""What comes in messages of others: numbers and times without end are a reading's fault only."""

from __future__ import annotations

import pytest

from edge_agent.core.errors import SampleError
from edge_agent.sources.json_rows import Payload

ENDLESS = "9" * 400


@pytest.mark.parametrize(
    "text",
    [ENDLESS, f"[{ENDLESS}]", f"[[1, {ENDLESS}]]", f'{{"v": {ENDLESS}}}', "1e400", "-1e39"],
)
def test_a_number_that_no_float_holds_is_refused(text: str) -> None:
    """JSON's whole numbers know no end."""
    with pytest.raises(SampleError, match=r"expected (finite )?numbers, found|that holds numbers"):
        Payload(("v",) if text.startswith("{") else ()).read(text.encode())


@pytest.mark.parametrize(
    "when",
    [
        '"0001-01-01T00:00:00Z"',
        '"9999-12-31T23:59:59Z"',
        "10000000000",
        "99999999999",
        "-1",
        ENDLESS,
        '"soon"',
    ],
)
def test_a_time_that_no_clock_tells_is_refused(when: str) -> None:
    """As what has never been set: .NET's DateTime.MinValue, and its MaxValue."""
    with pytest.raises(SampleError, match="t: expected a time, found"):
        Payload(("v",), "t").read(f'{{"v": 1, "t": {when}}}'.encode())


@pytest.mark.parametrize("when", ['"2026-11-22T20:00:00Z"', "1795377600", "1795377600000", "0"])
def test_a_time_is_read_in_each_unit(when: str) -> None:
    """Seconds, milliseconds and ISO 8601 tell the same moment."""
    rows, names, times = Payload(("v",), "t").read(f'{{"v": 1.5, "t": {when}}}'.encode())
    assert (rows.tolist(), names) == ([[1.5]], ("v",))
    assert times is not None
    assert times.tolist() == [0 if when == "0" else 1795377600 * 10**9]
