"""What a serving knows of a candidate that infers the same frames."""

from __future__ import annotations

from typing import Protocol

from ..core.types import Outcome, Sample
from ..inference.preprocess.placement import Region


class Shadow(Protocol):
    """Infers the frames of the incumbent, and compares."""

    def compare(
        self,
        sample: Sample,
        incumbent: Outcome | None,
        threshold: float | None,
        region: Region | None,
    ) -> None:
        """Compare on a frame that the incumbent has inferred, or None if it has failed on it."""
