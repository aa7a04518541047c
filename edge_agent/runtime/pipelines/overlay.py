"""What is drawn over a picture beside its findings: zones and lines, with their counts."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.frozen import record


@record
class Shape:
    """A zone or a line."""

    points: Sequence[Sequence[float]]
    """x, y in 0..1 of the frame."""
    closed: bool
    """A zone; False: a line, with its direction `in`."""
    text: str
