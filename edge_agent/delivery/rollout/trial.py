"""The trial of a candidate: loaded and run in a child process, for every kind of sample it gets."""

from __future__ import annotations

import logging
import threading
from contextlib import closing as closed_after
from typing import Any

from ...config.settings import Trial
from ...core.errors import ModelError
from ...core.types import Kind
from ...device.headroom import free_mb
from ...models.manifest import ModelFolder
from ...serving.active import ActiveModels
from ..trial.live_frames import LiveFrames
from ..trial.process import Verdict, run_trial
from .ledger import Candidate

log = logging.getLogger(__name__)


def try_candidate(
    candidate: Candidate,
    folder: ModelFolder,
    bounds: Trial,
    *,
    active: ActiveModels,
    budget_mb: int,
    closing: threading.Event,
) -> dict[str, Any]:
    """Try a candidate; return the result for its model's topic.

    Args:
        candidate: that is in its phase "trial".
        folder: of the version.
        bounds: what it must keep to.
        active: what serves, on whose frames it is tried.
        budget_mb: what models may take; 0: no bound.
        closing: set when the agent ends.

    Raises:
        ModelError: it has not passed, or shall not go on.
    """
    details: dict[str, Any] = {}
    engines = active.loader.engines
    servings = active.servings_of(folder.manifest.name)
    kinds: set[Kind] = {each.kind for each in servings} or {folder.manifest.input.kind}
    for kind in sorted(kinds):
        streamed = engines.streamed(folder)
        choices = engines.choices_for(folder) if streamed is None else [streamed]
        serving = next((each for each in servings if each.kind == kind), None)
        with closed_after(LiveFrames(serving, folder.path)) as frames:
            verdict = run_trial(
                folder.path,
                choices,
                kind,
                golden=bounds.golden,
                timeout_s=bounds.timeout_s,
                memory_mb=budget_mb or free_mb(),
                stopped=lambda: "the agent ends" if closing.is_set() else candidate.canceled,
                process=candidate.take_child(kind),
                forms=None if streamed is None else active.loader.forms,
                frame=frames.inputs,
            )
        candidate.close_early_trial()
        for number, why in verdict.wrong:
            wrong = choices[number]
            log.warning(
                "%s: does not run on %s:%s: %s", candidate.id, wrong.engine, wrong.device, why
            )
            if engines.verdicts is not None:
                engines.verdicts.mark_wrong(folder.path, wrong, why)
        if verdict.passed and verdict.proven is not None and engines.verdicts is not None:
            # Else it would be checked again on its first frames.
            engines.verdicts.mark_correct(folder.path, choices[verdict.proven])
        if verdict.streamed:
            log.info("%s: run while it arrived: %s", candidate.id, verdict.streamed)
        candidate.first_result_at = candidate.first_result_at or verdict.first_at
        candidate.check_wanted(closing)
        _check(candidate, verdict, bounds)
        details["trial"] = {
            "why": verdict.why,
            "engine": verdict.engine,
            "infer_ms": verdict.infer_ms,
            **({"streamed": verdict.streamed} if verdict.streamed else {}),
        }
    return details


def _check(candidate: Candidate, verdict: Verdict, bounds: Trial) -> None:
    """Raise ModelError if the child has found that a candidate does not pass."""
    if not verdict.passed:
        raise ModelError(candidate.blamed(verdict.why))
    if bounds.max_infer_ms and verdict.infer_ms > bounds.max_infer_ms:
        raise ModelError(
            f"{candidate.id}: too slow: {verdict.infer_ms:.1f} ms an inference, "
            f"at most {bounds.max_infer_ms:g} ms are allowed"
        )
