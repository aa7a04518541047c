"""From a complete package to the version that serves, and back if it fails on probation.

One thread takes candidates one after another through all steps; commands come from another. This
module has the steps and their order, and the trial in a child process for every kind of sample that
a candidate gets; the other steps are in separate modules.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing as closed_after
from queue import Empty, SimpleQueue
from typing import Any

from ...config.settings import Trial
from ...core.containment import contained
from ...core.errors import AgentError, ModelError
from ...core.files import disk_errors, fault
from ...core.flight_recorder import PreviousCrash
from ...core.plain_file import read_plain_bytes
from ...core.types import Kind
from ...device.headroom import bound, free_mb
from ...inference.model import Model
from ...models.manifest import ModelFolder
from ...models.packages.package import HEADER, SIGNATURE, PackageHeader
from ...models.store.catalog import Catalog
from ...models.store.pointers import same_version
from ...models.store.store import NOTES, Store
from ...serving.active import ActiveModels, Exchange
from ..trial.early_trial import EarlyTrial, begin_early
from ..trial.live_frames import LiveFrames
from ..trial.process import Verdict, run_trial
from .acceptance import bounds_of
from .commands import VersionCommands
from .ledger import Candidate, Interrupted, Ledger
from .recovery import Recovery
from .shadow import run_in_shadow
from .swap import Swap, exchange_details, log_live

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
WATCH_SECONDS = 0.05
"""Interval for checking versions on probation: each frame they fail on is lost."""
FIRST_SECONDS = 1.0
"""How long to wait for a new model's first live frame before reporting it without one."""


class Deployer:
    """Makes all changes of the serving version."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        active: ActiveModels,
        ledger: Ledger,
        *,
        trial: Callable[[], Trial],
        check_trust: Callable[[bytes, bytes | None], object],
        swap: str,
    ) -> None:
        """Make the steps; nothing runs yet.

        *trial* returns the device's bounds, which may be reloaded; *check_trust* raises ModelError
        unless a package's header and signature are trusted now; *swap* is the profile's "overlap"
        or "replace".
        """
        self._check_trust = check_trust
        self._ledger = ledger
        self._queue: SimpleQueue[Candidate | None] = SimpleQueue()
        self._closing = threading.Event()
        self._swap = Swap(store, catalog, active, ledger, trial, overlap=swap != "replace")
        ledger.idle = self._swap.idle
        self._recovery = Recovery(self._swap)
        self.allowed: Callable[[str | None], bool] = lambda _transfer: True
        """Whether what came in a transfer may be deployed yet."""
        self._held: list[Candidate] = []
        """Those that may not."""
        self._early: EarlyTrial | None = None
        """The last one; there is only one at a time."""
        self.commands = VersionCommands(self._swap)
        self.failed = self._swap.failed
        """The operators' commands about versions."""

    def expect(self, header: PackageHeader) -> EarlyTrial | None:
        """Start the trial of a package that is about to arrive, if that is worthwhile."""
        if not self._swap.overlap or (self._early is not None and not self._early.over):
            return None  # two models may not be in memory at once
        self._early = begin_early(header, self._swap.store, self._swap.active)
        return self._early

    def submit(self, candidate: Candidate) -> None:
        """Queue a complete candidate; it is deployed after earlier ones."""
        self._ledger.add(candidate)
        self._queue.put(candidate)

    # Life

    def recover(self, last: PreviousCrash | None) -> None:
        """Find candidates in progress when the agent ended; call it before using the ledger."""
        for candidate in self._recovery.find_candidates(last):
            self.submit(candidate)

    def run(self) -> None:
        """Deploy candidates, until closed."""
        with self._swap.changing:
            self._recovery.resume_probations()
        while not self._closing.is_set():
            try:
                candidate = self._queue.get(timeout=POLL_SECONDS)
            except Empty:
                candidate = None
            candidate = self._release(candidate)
            if candidate is not None:
                try:
                    self._deploy(candidate)
                finally:
                    candidate.close_early_trial()

    def watch(self) -> None:
        """Check versions on probation, whatever is being deployed, until closed."""
        while not self._closing.wait(
            WATCH_SECONDS if self._ledger.on_probation() else POLL_SECONDS
        ):
            self._swap.check_probations()

    def _release(self, candidate: Candidate | None) -> Candidate | None:
        """Return a candidate that is not to wait, of those that were held before or *candidate*."""
        if candidate is not None:
            if candidate.canceled is not None or self.allowed(candidate.transfer):
                return candidate
            log.info("%s: waits until this device has seen its roll-out again", candidate.id)
            self._held.append(candidate)
        for held in self._held:
            if held.canceled is None and not self.allowed(held.transfer):
                continue
            self._held.remove(held)
            try:
                self._swap.store.check_not_older(held.name, held.version)  # others went before
            except ModelError as problem:
                held.canceled = held.canceled or str(problem)
            return held
        return None

    def suspend(self) -> None:
        """Record at a clean shutdown that the candidates did not cause it."""
        self._closing.set()
        with self._swap.changing:  # nothing goes live after this
            self._ledger.suspend()

    def close(self) -> None:
        """Ask the thread to end."""
        self._closing.set()
        self._queue.put(None)

    # One candidate, in the thread

    def _deploy(self, candidate: Candidate) -> None:
        """Run all steps of a candidate: install, trial, shadow, swap, probation."""
        folder = self._install(candidate)
        if folder is None or self._serves_already(candidate):
            return
        models: dict[Kind, Model] = {}
        """Loaded, but not serving yet."""
        try:
            with contained(candidate.id, ModelError):
                self._ledger.enter(candidate, "preparing")
                bounds = bounds_of(folder, self._swap.trial())
                self._ledger.enter(candidate, "trial")
                details = _try(
                    candidate,
                    folder,
                    bounds,
                    active=self._swap.active,
                    closing=self._closing,
                )
            fault("trial.passed")
            with self._swap.room_for(folder):
                replaces = self._swap.must_replace(folder)
                if not replaces:
                    models = self._swap.open(folder)
                    details |= run_in_shadow(
                        candidate,
                        models,
                        bounds,
                        active=self._swap.active,
                        ledger=self._ledger,
                        closing=self._closing,
                    )
                with self._swap.changing:
                    candidate.check_wanted(self._closing)
                    self._check_signature(candidate, folder)
                    self._swap.check_room(folder)
                    if replaces:
                        loaded, exchange = self._swap.replace(candidate, folder, bounds)
                        details["mode"] = "replace"
                    else:
                        loaded, exchange = models, self._swap.go_live(candidate, models, bounds)
                        models = {}
                    self._swap.end_probation(candidate.name, candidate.version)
                    self._record_live(candidate, loaded, exchange, details, bounds)
        except Interrupted:
            self._retire(models)
        except AgentError as problem:
            self._retire(models)
            self._reject(candidate, str(problem))

    def _install(self, candidate: Candidate) -> ModelFolder | None:
        """Install it under the name in its manifest; None: it was rejected."""
        self._ledger.start(candidate)
        try:
            with contained(candidate.id, ModelError):
                folder = candidate.install()
        except AgentError as problem:
            candidate.on_installed()
            on_trial = self._swap.store.pointers(candidate.name).on_trial
            if on_trial is not None and same_version(on_trial, candidate.version):
                self._ledger.clear_mark(candidate.name, candidate.version)  # it is of a start
                self._swap.active.load_all()  # says what is wrong with it
            log.warning("push %s: rejected: %s", candidate.transfer or candidate.id, problem)
            self._ledger.finish(candidate, "rejected", str(problem))
            return None
        candidate.name, candidate.version = folder.manifest.name, folder.manifest.version
        candidate.on_installed()
        return folder

    def _check_signature(self, candidate: Candidate, folder: ModelFolder) -> None:
        """Raise ModelError if what came over MQTT is no longer trusted: its key was removed."""
        with disk_errors(f"{candidate.id}: reading its signature"):
            notes = folder.path / NOTES
            signature = (
                read_plain_bytes(notes / SIGNATURE) if (notes / SIGNATURE).exists() else None
            )
            if signature is not None or candidate.unsigned:
                self._check_trust(read_plain_bytes(notes / HEADER), signature)

    def _serves_already(self, candidate: Candidate) -> bool:
        """Whether this version is live or on probation, as after a repeated push.

        It is then not tried again, and leaves the ledger.
        """
        phase = self._ledger.serving_phase(candidate.name, candidate.version)
        pointed = self._swap.store.pointers(candidate.name).live
        if phase is None or pointed is None or not same_version(pointed, candidate.version):
            return False
        self._ledger.remove(candidate)
        figures = self._ledger.figures(candidate.name, candidate.version)
        self._ledger.publish(candidate, phase, **figures)
        self._ledger.changed()
        return True

    def _record_live(
        self,
        candidate: Candidate,
        models: Mapping[Kind, Model],
        exchange: Exchange,
        details: Mapping[str, Any],
        bounds: Trial,
    ) -> None:
        """Record and publish that it serves, and begin its probation; the caller has the lock."""
        before = self._swap.store.pointers(candidate.name).previous
        loaded = list(models.values())
        if bounds.probation_s > 0:
            self._swap.begin_probation(candidate, bounds)
        else:
            self._ledger.remove(candidate)
        # Pipelines that name exactly this version may have waited for it.
        self._swap.active.load_all()
        self._wait_for_first(loaded)
        details = {**details, **exchange_details(exchange), **_first_inference(candidate, loaded)}
        candidate.figures = details
        self._ledger.record_last(candidate.name, candidate.version, "live", None, details)
        log_live(candidate.name, candidate.version, before, details)
        if (idle := self._swap.idle(candidate.name, candidate.version)) is not None:
            log.warning("%s: %s", candidate.id, idle)
        if bounds.probation_s > 0:
            self._ledger.publish(candidate, "probation", **details)
            self._ledger.changed()
        else:
            self._ledger.finish(candidate, "live", None, **details)
        self._swap.retire(exchange)

    def _wait_for_first(self, models: list[Model]) -> None:
        """Wait briefly for the first frame from a live source."""
        deadline = time.monotonic() + FIRST_SECONDS
        while (
            models
            and not any(model.first_at or model.stats.errors for model in models)
            and time.monotonic() < deadline
        ):
            self._closing.wait(0.005)

    def _reject(self, candidate: Candidate, why: str) -> None:
        """Remove a candidate from the store, and record and publish the reason."""
        name, version, active = candidate.name, candidate.version, self._swap.active
        with self._swap.changing:
            self._ledger.remove(candidate)
            place = self._swap.store.path(name, version)
            self._ledger.discard(name, version, why)
            gone: list[Model] = []
            if not self._swap.store.accepted(name, version):
                # A pipeline that names it may have loaded it before its trial began.
                gone = active.unload(lambda _serving, model: model.folder.path == place)
        # It may have hidden the same version in another place.
        active.load_all()
        for model in gone:
            active.retire(model)
        self._ledger.finish(candidate, "rejected", why)

    def _retire(self, models: dict[Kind, Model]) -> None:
        for model in models.values():
            self._swap.active.retire(model)


def _first_inference(candidate: Candidate, models: list[Model]) -> dict[str, Any]:
    known = (candidate.first_result_at, *(model.first_at for model in models))
    firsts = [at for at in known if at is not None]
    if not firsts:
        return {"first_inference_ms": None}
    return {"first_inference_ms": round((min(firsts) - candidate.began) * 1e3, 1)}


def _try(
    candidate: Candidate,
    folder: ModelFolder,
    bounds: Trial,
    *,
    active: ActiveModels,
    closing: threading.Event,
) -> dict[str, Any]:
    """Try a candidate; return the result for its model's topic."""
    details: dict[str, Any] = {}
    engines = active.loader.engines
    servings = active.servings_of(folder.manifest.name)
    kinds: set[Kind] = {each.kind for each in servings} or {folder.manifest.input.kind}
    generates = folder.manifest.task == "generate"  # then a process serves it once it is asked
    serves = generates or any(not each.lazy for each in servings)
    for kind in sorted(kinds):
        streamed = engines.streamed(folder, serves=serves)
        choices = engines.choices_for(folder) if streamed is None else [streamed]
        serving = next((each for each in servings if each.kind == kind), None)
        early = candidate.early_trial
        with closed_after(LiveFrames(serving, folder.path)) as frames:
            verdict = run_trial(
                folder.path,
                choices,
                kind,
                golden=bounds.golden,
                timeout_s=bounds.timeout_s,
                # What it takes while it is tried; the budget is of what serves.
                memory_mb=free_mb(),
                bound=bound(),
                stopped=lambda: "the agent ends" if closing.is_set() else candidate.canceled,
                process=early.take() if early and early.kind in {kind, None} else None,
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
            # Otherwise it would be checked again on its first frames.
            engines.verdicts.mark_correct(folder.path, choices[verdict.proven])
        if verdict.streamed:
            log.info("%s: run while it arrived: %s", candidate.id, verdict.streamed)
        candidate.first_result_at = candidate.first_result_at or verdict.first_at
        candidate.check_wanted(closing)
        _check_verdict(candidate, verdict, bounds)
        details["trial"] = {
            "why": verdict.why,
            "engine": verdict.engine,
            "infer_ms": verdict.infer_ms,
            **({"streamed": verdict.streamed} if verdict.streamed else {}),
        }
    return details


def _check_verdict(candidate: Candidate, verdict: Verdict, bounds: Trial) -> None:
    """Raise ModelError if the child's verdict is that a candidate fails."""
    if not verdict.passed:
        raise ModelError(candidate.blamed(verdict.why))
    if bounds.max_infer_ms and verdict.infer_ms > bounds.max_infer_ms:
        raise ModelError(
            f"{candidate.id}: too slow: {verdict.infer_ms:.1f} ms an inference, "
            f"at most {bounds.max_infer_ms:g} ms are allowed"
        )
