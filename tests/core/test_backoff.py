"""Pauses between attempts."""

from __future__ import annotations

from edge_agent.core.backoff import Backoff


def test_pauses_grow_and_differ() -> None:
    """Each pause is between half and all of a bound that doubles, up to the most, until reset."""
    backoff = Backoff(first=1.0, most=16.0)
    pauses = [backoff.pause() for _ in range(8)]
    for pause, bound in zip(pauses, (1, 2, 4, 8, 16, 16, 16, 16), strict=True):
        assert bound / 2 <= pause <= bound
    assert len(set(pauses)) == len(pauses)
    backoff.reset()
    assert backoff.pause() <= 1.0
