"""The trial of a candidate: loaded and run in a child process, for every kind of sample it gets."""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from typing import Any

from ...config.settings import Trial
from ...core.errors import ModelError
from ...core.types import Kind
from ...device.headroom import free_mb
from ...models.manifest import ModelFolder
from ...runtime.serving.active import ActiveModels, Serving
from ..trial.live_frames import LiveFrames
from ..trial.process import Verdict, run_trial
from .ledger import Candidate, Ledger

log = logging.getLogger(__name__)


class Trials:
    """Runs them in the deployer's thread, one after the other."""

    def __init__(
        self, active: ActiveModels, ledger: Ledger, closing: threading.Event, budget_mb: int
    ) -> None:
        """Keep what is needed.

        Args:
            active: what serves.
            ledger: of candidates.
            closing: set when the agent ends.
            budget_mb: what models may take; 0: no bound.
        """
        self._active = active
        self._ledger = ledger
        self._closing = closing
        self._budget_mb = budget_mb

    def run(self, candidate: Candidate, folder: ModelFolder, bounds: Trial) -> dict[str, Any]:
        """Try a candidate; return the result for its model's topic.

        Raises:
            ModelError: it has not passed, or shall not go on.
        """
        self._ledger.enter(candidate, "trial")
        details: dict[str, Any] = {}
        loader = self._active.loader
        for kind in sorted(self._kinds(folder)):
            choices = loader.choices_for(folder)
            with closing(LiveFrames(self._serving(folder, kind), folder.path)) as frames:
                verdict = run_trial(
                    folder.path,
                    choices,
                    kind,
                    golden=bounds.golden,
                    timeout_s=bounds.timeout_s,
                    memory_mb=self._budget_mb or free_mb(),
                    stopped=lambda: (
                        "the agent ends" if self._closing.is_set() else candidate.canceled
                    ),
                    process=candidate.take_child(kind),
                    oversize=loader.out_of_core(folder),
                    frame=frames.inputs,
                )
            candidate.close_early_trial()
            for number, why in verdict.wrong:
                wrong = choices[number]
                log.warning(
                    "%s: does not run on %s:%s: %s", candidate.id, wrong.engine, wrong.device, why
                )
                if loader.doubts is not None:
                    loader.doubts.add(folder.path, wrong, why)
            if verdict.passed and verdict.proven is not None and loader.doubts is not None:
                # Else a witness would answer for it again.
                loader.doubts.clear(folder.path, choices[verdict.proven])
            if verdict.streamed:
                log.info("%s: run while it arrived: %s", candidate.id, verdict.streamed)
            candidate.first_result_at = candidate.first_result_at or verdict.first_at
            candidate.check_wanted(self._closing)
            _check(candidate, verdict, bounds)
            details["trial"] = {
                "why": verdict.why,
                "engine": verdict.engine,
                "infer_ms": verdict.infer_ms,
                **({"streamed": verdict.streamed} if verdict.streamed else {}),
            }
        return details

    def _serving(self, folder: ModelFolder, kind: Kind) -> Serving | None:
        """Return what serves samples of a kind under the model's name; None: nothing does."""
        servings = self._active.servings_of(folder.manifest.name)
        return next((serving for serving in servings if serving.kind == kind), None)

    def _kinds(self, folder: ModelFolder) -> set[Kind]:
        """Return the kinds of sample that the model will be given here."""
        kinds: set[Kind] = {
            serving.kind for serving in self._active.servings_of(folder.manifest.name)
        }
        return kinds or {folder.manifest.input.kind}


def _check(candidate: Candidate, verdict: Verdict, bounds: Trial) -> None:
    """Check what the child of its trial has found.

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
