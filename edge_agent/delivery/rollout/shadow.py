"""A candidate beside the incumbent, on the same live frames; nobody sees what it finds."""

from __future__ import annotations

import threading
import time
from typing import Any

from ...core.errors import EngineError, ModelError, SampleError
from ...core.types import Outcome, Sample
from ...inference.compare import compare_findings
from ...inference.model import Model, Region
from ...mqtt.payloads import percentiles

SHARE = 0.5
"""Of one lane's time, at most: the incumbent's frames come first."""


class Comparison:
    """Counts how far a candidate agrees with the incumbent."""

    def __init__(self, model: Model, wanted: int) -> None:
        """Prepare.

        Args:
            model: the candidate.
            wanted: how many frames to look at.

        """
        self.model = model
        self.wanted = wanted
        self.frames = 0
        self.compared = 0
        self.agreed = 0
        self.errors = 0
        self.error: str | None = None
        self.disagreement: str | None = None
        self.infer_ms: list[float] = []
        self.done = threading.Event()
        self._busy = threading.Lock()
        self._rest_until = 0.0

    def compare(
        self,
        sample: Sample,
        incumbent: Outcome | None,
        threshold: float | None,
        region: Region | None,
    ) -> None:
        """Run the candidate on the same frame."""
        if self.done.is_set() or time.monotonic() < self._rest_until:
            return
        if not self._busy.acquire(blocking=False):
            return  # another lane is at it
        try:
            if self.done.is_set():
                return
            start = time.monotonic()
            self._compare(sample, incumbent, threshold, region)
            self.frames += 1
            now = time.monotonic()
            self._rest_until = now + (now - start) * (1 / SHARE - 1)
            if self.frames >= self.wanted or self.errors:
                self.done.set()
        finally:
            self._busy.release()

    def _compare(
        self,
        sample: Sample,
        incumbent: Outcome | None,
        threshold: float | None,
        region: Region | None,
    ) -> None:
        try:
            outcome = self.model.infer(sample, threshold=threshold, region=region)
        except (SampleError, EngineError, ModelError) as problem:
            self.errors += 1
            self.error = str(problem)
            return
        self.infer_ms.append(outcome.timing.infer_ms)
        if incumbent is None:
            return
        self.compared += 1
        agreement = compare_findings(
            incumbent.findings, outcome.findings, self.model.manifest.trial.tolerance
        )
        self.agreed += agreement.passed
        if not agreement.passed and self.disagreement is None:
            self.disagreement = agreement.why

    def stop(self) -> None:
        """End it; after this no lane is inside the candidate."""
        self.done.set()
        with self._busy:
            pass

    @property
    def agreement(self) -> float:
        """Share of the frames that both dealt with, on which they found the same."""
        return self.agreed / self.compared if self.compared else 1.0

    def payload(self) -> dict[str, Any]:
        return {
            "frames": self.frames,
            "agreement": round(self.agreement, 4),
            "errors": self.errors,
            "infer_ms": percentiles(self.infer_ms),
        }
