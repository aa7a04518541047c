"""Shadow: the candidate runs beside the incumbent on the same live frames, unpublished."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from ...config.settings import Trial
from ...core.containment import contained
from ...core.errors import AgentError, ModelError
from ...core.files import fault
from ...core.types import Kind, Outcome, Sample
from ...inference.agreement import compare_findings, margin_of
from ...inference.model import Model
from ...inference.preprocess.placement import Region
from ...inference.preprocess.windowing import windows_apart
from ...mqtt.payloads import percentiles
from ...serving.active import ActiveModels
from .ledger import Candidate, Ledger

log = logging.getLogger(__name__)

SHARE = 0.5
"""Most of one lane's time that it may take: the incumbent's frames have priority."""
POLL_SECONDS = 0.02


class Comparison:
    """Counts on how many frames a candidate agrees with the incumbent."""

    def __init__(self, model: Model, wanted: int) -> None:
        self.model = model
        """The candidate."""
        self.wanted = wanted
        """How many frames to compare."""
        self.frames = 0
        self.compared = 0
        self.agreed = 0
        self.empty = 0
        """Frames in which neither finds anything."""
        self.errors = 0
        self.error: str | None = None
        self.disagreement: str | None = None
        self.infer_ms: list[float] = []
        self.done = threading.Event()
        self._busy = threading.Lock()
        self._pause_until = 0.0

    def compare(
        self,
        sample: Sample,
        incumbent: Outcome | None,
        threshold: float | None,
        region: Region | None,
    ) -> None:
        """Run the candidate on the same frame, unless another lane is comparing."""
        if time.monotonic() < self._pause_until or not self._busy.acquire(blocking=False):
            return
        try:
            if self.done.is_set():
                return
            start = time.monotonic()
            try:
                outcome = self.model.infer(sample, threshold=threshold, region=region)
                self.infer_ms.append(outcome.timing.infer_ms)
                # The incumbent's state includes earlier windows, which the candidate has not seen.
                if incumbent is not None and not self.model.in_order:
                    self._judge(incumbent, outcome, threshold)
            except AgentError as problem:
                self.errors += 1
                self.error = str(problem)
            self.frames += 1
            now = time.monotonic()
            self._pause_until = now + (now - start) * (1 / SHARE - 1)
            if self.frames >= self.wanted or self.errors:
                self.done.set()
        finally:
            self._busy.release()

    def _judge(self, incumbent: Outcome, outcome: Outcome, threshold: float | None) -> None:
        with contained(self.model.id):
            margin = margin_of(self.model, threshold)
            agreement = compare_findings(incumbent.findings, outcome.findings, margin)
        self.compared += 1
        self.agreed += agreement.passed
        self.empty += incumbent.findings.best_score == outcome.findings.best_score == 0
        if not agreement.passed and self.disagreement is None:
            self.disagreement = agreement.why

    def stop(self) -> None:
        """Stop comparing; after this no lane is using the candidate."""
        self.done.set()
        with self._busy:
            pass

    @property
    def agreement(self) -> float:
        """Share of the frames inferred by both on which they agree."""
        return self.agreed / self.compared if self.compared else 1.0

    def payload(self) -> dict[str, Any]:
        payload = {
            "frames": self.frames,
            "compared": self.compared,
            "errors": self.errors,
            "infer_ms": percentiles(self.infer_ms),
        }
        if self.compared:
            payload["agreement"] = round(self.agreement, 4)
        if self.empty:
            payload["empty"] = self.empty
        if self.disagreement is not None:
            payload["disagreement"] = self.disagreement
        return payload


def run_in_shadow(
    candidate: Candidate,
    models: Mapping[Kind, Model],
    bounds: Trial,
    *,
    active: ActiveModels,
    ledger: Ledger,
    closing: threading.Event,
) -> dict[str, Any]:
    """Run a candidate in shadow, if there is an incumbent; return the result for its topic.

    Raises:
        ModelError: it fails, is too slow, does not agree, or was canceled.
    """
    servings = [
        s for s in active.servings_of(candidate.name) if s.model is not None and s.kind in models
    ]
    if not servings or bounds.shadow_frames == 0:
        return {}
    serving = servings[0]
    incumbent = serving.model
    model = models[serving.kind]
    keys = incumbent and windows_apart(incumbent.manifest.input, model.manifest.input)
    if bounds.min_agreement > 0 and (keys or model.in_order):
        why = f"takes other windows ({keys})" if keys else "keeps a state from window to window"
        raise ModelError(
            f"{candidate.id}: {why}, so its agreement with the version before cannot be judged; "
            "without min_agreement in [trial] its probation judges it"
        )
    if keys:
        words = (
            "%s: no shadow, as it takes other windows (%s); any that wait at the swap are dropped"
        )
        log.info(words, candidate.id, keys)
        return {}
    ledger.enter(candidate, "shadow")
    shadow = Comparison(model, bounds.shadow_frames)
    serving.shadow = shadow
    fault("shadow.begun")
    deadline = time.monotonic() + bounds.timeout_s
    try:
        while not shadow.done.wait(POLL_SECONDS):
            if (
                time.monotonic() > deadline
                or closing.is_set()
                or candidate.canceled is not None
                or not active.flows(candidate.name)
            ):
                break
    finally:
        serving.shadow = None
        shadow.stop()
    candidate.check_wanted(closing)
    _check(candidate, shadow, bounds)
    return {"shadow": shadow.payload()}


def _check(candidate: Candidate, shadow: Comparison, bounds: Trial) -> None:
    """Raise ModelError if a candidate has failed in shadow, disagrees, or is too slow."""
    if shadow.errors:
        raise ModelError(f"{candidate.id}: shadow: failed on a live frame: {shadow.error}")
    if bounds.min_agreement > 0:
        if shadow.frames < shadow.wanted:
            raise ModelError(
                f"{candidate.id}: shadow: only {shadow.frames} of {shadow.wanted} frames came"
                f" within {bounds.timeout_s:g} s, too few to judge its agreement"
            )
        if shadow.agreement < bounds.min_agreement:
            raise ModelError(
                f"{candidate.id}: shadow: agrees on {shadow.agreement:.0%} of {shadow.frames}"
                f" frames, {bounds.min_agreement:.0%} wanted ({shadow.disagreement})"
            )
    p95 = shadow.payload()["infer_ms"]["p95"]
    if bounds.max_infer_ms and p95 > bounds.max_infer_ms:
        raise ModelError(
            f"{candidate.id}: shadow: too slow: p95 {p95:.1f} ms,"
            f" at most {bounds.max_infer_ms:g} ms are allowed"
        )
