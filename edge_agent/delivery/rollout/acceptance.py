"""What is asked of a candidate, and whether it gives it. Judges only, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ...config.settings import Trial
from ...core.errors import ModelError
from ...inference.model import Model
from ...models.manifest import ModelFolder
from ..trial.process import Verdict
from .candidate import Candidate
from .shadow import Comparison

MOST_ERRORS = 3
"""Frames that a version may not fail on while it is on probation."""
RECENT, FEWEST = 100, 10
"""Inferences whose median says how fast one is, and how many there must be at least."""


def bounds_of(folder: ModelFolder, device: Trial) -> Trial:
    """Lay the manifest's bounds over the device's: the stricter of the two."""
    own = folder.manifest.trial
    limits = [limit for limit in (device.max_infer_ms, own.max_infer_ms or 0.0) if limit > 0]
    return Trial(
        golden=device.golden or bool(own.golden),
        shadow_frames=max(device.shadow_frames, own.shadow_frames or 0),
        min_agreement=max(device.min_agreement, own.min_agreement or 0.0),
        max_infer_ms=min(limits, default=0.0),
        probation_s=max(device.probation_s, own.probation_s or 0.0),
        timeout_s=min(device.timeout_s, own.timeout_s or device.timeout_s),
    )


def check_verdict(candidate: Candidate, verdict: Verdict, bounds: Trial) -> None:
    """Judge what its child has found.

    Raises:
        ModelError: it has not passed.

    """
    if not verdict.passed:
        raise ModelError(candidate.blamed(verdict.why))
    if bounds.max_infer_ms and verdict.infer_ms > bounds.max_infer_ms:
        raise ModelError(
            f"{candidate.id}: too slow: {verdict.infer_ms:.1f} ms an inference, "
            f"at most {bounds.max_infer_ms:g} ms are allowed"
        )


def check_shadow(candidate: Candidate, shadow: Comparison, bounds: Trial) -> None:
    """Judge what it did beside the incumbent.

    Raises:
        ModelError: it has failed, does not agree or is too slow.

    """
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


def fault_of(models: Sequence[Model], bounds: Trial) -> str | None:
    """Say what is wrong with a version on probation; None: nothing."""
    for model in models:
        if model.errors >= MOST_ERRORS:
            return f"failed on {model.errors} frames during its probation"
        recent = sorted(list(model.infer_ms)[-RECENT:])
        limit = bounds.max_infer_ms
        if limit and len(recent) >= FEWEST and recent[len(recent) // 2] > limit:
            return f"too slow: {recent[len(recent) // 2]:.1f} ms, at most {limit:g} ms are allowed"
    return None
