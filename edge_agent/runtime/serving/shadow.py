"""What a candidate on shadow is given, as a serving sees it."""

from __future__ import annotations

from typing import Protocol

from ...core.types import Outcome, Sample
from ...inference.model import Region


class Shadow(Protocol):
    """Looks at the frames of an incumbent."""

    def compare(
        self,
        sample: Sample,
        incumbent: Outcome | None,
        threshold: float | None,
        region: Region | None,
    ) -> None:
        """Look at a frame that the incumbent has dealt with; None: has failed on."""
