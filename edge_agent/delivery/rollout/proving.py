"""A candidate proves itself: apart, in a process of its own, then beside the incumbent.

Nobody sees what it finds. Used by the deployer's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...config.settings import Trial
from ...core.files import fault
from ...core.types import Kind
from ...device.headroom import free_mb
from ...inference.model import Model
from ...models.manifest import ModelFolder
from ...runtime.serving.active import ActiveModels
from ..trial.process import run_trial
from .acceptance import check_shadow, check_verdict
from .candidate import Candidate
from .reports import Reports
from .shadow import Comparison

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02


class Proving:
    """Gives what is to be reported of a candidate that has passed."""

    def __init__(
        self, active: ActiveModels, reports: Reports, closing: threading.Event, budget_mb: int
    ) -> None:
        """Prepare.

        Args:
            active: what serves.
            reports: hears of each phase.
            closing: set when the agent ends.
            budget_mb: what models may take; 0: no bound.

        """
        self._active = active
        self._reports = reports
        self._closing = closing
        self._budget_mb = budget_mb

    def apart(self, candidate: Candidate, folder: ModelFolder, bounds: Trial) -> dict[str, Any]:
        """Have it tried in a child process, with every kind of sample that it will be given.

        Raises:
            ModelError: it has not passed, or shall not go on.

        """
        self._reports.phase(candidate, "trial")
        details: dict[str, Any] = {}
        for kind in sorted(self._kinds(folder)):
            verdict = run_trial(
                folder.path,
                self._active.loader.choices_for(folder),
                kind,
                golden=bounds.golden,
                timeout_s=bounds.timeout_s,
                memory_mb=self._budget_mb or free_mb(),
                stopped=lambda: "the agent ends" if self._closing.is_set() else candidate.aborted,
                process=candidate.child(kind),
                oversize=self._active.loader.out_of_core(folder),
            )
            candidate.leave()
            if verdict.streamed:
                log.info("%s: %s", candidate.id, verdict.streamed)
            candidate.first_at = candidate.first_at or verdict.first_at
            candidate.check_wanted(self._closing)
            check_verdict(candidate, verdict, bounds)
            details["trial"] = {
                "why": verdict.why,
                "engine": verdict.engine,
                "infer_ms": verdict.infer_ms,
                **({"streamed": verdict.streamed} if verdict.streamed else {}),
            }
        return details

    def beside(
        self,
        candidate: Candidate,
        models: Mapping[Kind, Model],
        bounds: Trial,
        meanwhile: Callable[[], None],
    ) -> dict[str, Any]:
        """Let it look at live frames beside the incumbent, where there is one.

        Args:
            candidate: whose turn it is.
            models: the candidate, loaded.
            bounds: what it must keep to.
            meanwhile: called again and again while it looks.

        Raises:
            ModelError: it fails, is too slow or does not agree, or shall not go on.

        """
        servings = [
            s
            for s in self._active.servings_of(candidate.name)
            if s.model is not None and s.kind in models
        ]
        if not servings or bounds.shadow_frames == 0:
            return {}
        self._reports.phase(candidate, "shadow")
        serving = servings[0]
        shadow = Comparison(models[serving.kind], bounds.shadow_frames)
        serving.shadow = shadow
        fault("shadow.begun")
        deadline = time.monotonic() + bounds.timeout_s
        try:
            while not shadow.done.wait(POLL_SECONDS):
                if (
                    time.monotonic() > deadline
                    or self._closing.is_set()
                    or candidate.aborted is not None
                    or not self._active.flows(candidate.name)
                ):
                    break
                meanwhile()
        finally:
            serving.shadow = None
            shadow.stop()
        candidate.check_wanted(self._closing)
        check_shadow(candidate, shadow, bounds)
        return {"shadow": shadow.payload()}

    def _kinds(self, folder: ModelFolder) -> set[Kind]:
        """Say what the model will be given here."""
        kinds: set[Kind] = {
            serving.kind for serving in self._active.servings_of(folder.manifest.name)
        }
        return kinds or {"signal" if folder.manifest.input.is_signal else "picture"}
