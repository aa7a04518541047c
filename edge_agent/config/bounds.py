"""Bounds of the numbers in settings."""

from __future__ import annotations

from typing import Annotated

from ..core.constraints import Ge, Le, Plain

# Bounded to refuse infinity and typing errors; NaN is never within bounds.
Seconds = Annotated[float, Plain(), Ge(0), Le(366 * 86400)]
Milliseconds = Annotated[float, Plain(), Ge(0), Le(1e9)]
Share = Annotated[float, Plain(), Ge(0), Le(1)]
THRESHOLDS = (-1e9, 1e9)
"""For any task; for tasks with scores from 0 to 1 see `models.decoders.threshold_trouble`."""
Threshold = Annotated[float, Plain(), Ge(THRESHOLDS[0]), Le(THRESHOLDS[1])]
Flag = Annotated[bool, Plain()]
Polygon = tuple[tuple[Share, ...], ...]
"""Corners x, y, each 0 to 1 of the frame."""
