"""The ledger of candidates: every version being deployed, its phase, and how the last one ended.

A candidate is one record, from the offer of its package to the end of its probation. `recovery`
continues with the records on disk after a kill. The thread that receives packages adds candidates,
the deployer's thread takes them through the phases, commands cancel them; any thread may query.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ...core.errors import ModelError
from ...core.files import disk_errors, fault
from ...core.names import is_name, is_version
from ...core.state_file import StateFile
from ...models.store.catalog import Catalog
from ...models.store.pointers import Trial as Mark
from ...models.store.pointers import same_version
from ...models.store.store import Store
from ...mqtt import payloads
from ..protocol import StatusTopic

if TYPE_CHECKING:
    from ...models.manifest import ModelFolder
    from ..protocol import Publish
    from ..trial.early_trial import EarlyTrial
    from .acceptance import Watch

log = logging.getLogger(__name__)

Phase = Literal["receiving", "verifying", "preparing", "trial", "shadow", "probation"]
Outcome = Literal["live", "rejected", "rolled-back", "replaced", "kept"]


PHASES: Mapping[str, frozenset[Phase | Outcome]] = {
    "receiving": frozenset({"verifying"}),
    "verifying": frozenset({"preparing", "rejected"}),
    # To probation: a candidate interrupted by the end of the agent.
    "preparing": frozenset({"trial", "probation", "rejected"}),
    "trial": frozenset({"shadow", "probation", "live", "rejected"}),
    "shadow": frozenset({"probation", "live", "rejected"}),
    "probation": frozenset({"live", "rolled-back", "replaced", "kept"}),
}
"""By phase: what may follow.

While a candidate is received, `incoming/<transfer>/` is on the disk, with the list and the blocks
that have come; later that or, once installed, its folder in the store; from preparing on also
`trial` in the model's `pointers.json`, and on probation `watched`, which is changed in one write
with the live pointer. "replaced": another version went live before its probation was over; "kept":
it has failed, and nothing else can serve. Of both only the sender is told. After a kill a transfer
is resumed, a trial starts again, and a probation continues, unless the candidate caused the end.
Another outcome is stored in `deployments.json`, and "live" and "rolled-back" before that in the
model's pointers. A transfer that is aborted or not admitted, and a version that already serves,
leave the ledger without an outcome."""


class Interrupted(ModelError):
    """The agent ends; the trial starts again at its next start."""


def _incomplete() -> ModelFolder:
    raise ModelError("its package is not complete")


@dataclass(slots=True, eq=False)
class Candidate:
    """One version of one model."""

    name: str
    """"?" while it is unknown: for a tar made by hand, until it is unpacked."""
    version: str
    transfer: str | None
    """The transfer it came in; None: it was made by hand."""
    install: Callable[[], ModelFolder] = _incomplete
    """Puts it into the store once its package is complete; raises ModelError."""
    unsigned: bool = False
    """Whether its package came over MQTT without a signature, which the settings must allow."""
    on_installed: Callable[[], object] = lambda: None
    """Called when it is in the store, or will not be."""
    on_state: Callable[[str, str | None], None] = lambda _state, _why: None
    """Called at every step with the state and, for a rejection, the reason."""
    phase: Phase = "verifying"
    percent: float = 100.0
    """Percentage of its blocks that have come."""
    starts: int = 0
    """How often the agent has started since its trial began."""
    push: str | None = None
    """The push that it came in, if an earlier run received it; see `Ledger.push_of`."""
    began: float = field(default_factory=time.monotonic)
    first_result_at: float | None = None
    """Monotonic time when its trial had inferred a live frame."""
    canceled: str | None = None
    """Why it must stop, or None."""
    early_trial: EarlyTrial | None = None
    """Its trial, if it began while the package was arriving."""
    interrupted: Mark | None = None
    """Mark of its probation, if the end of the agent interrupted it, until models are loaded."""
    watch: Watch | None = None
    """Judges it on probation."""
    figures: Mapping[str, Any] | None = None
    """Figures from its trial and its swap; None: it does not serve, or they are not yet published.
    """

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    def check_wanted(self, closing: threading.Event) -> None:
        """Check that it is still wanted.

        Raises:
            Interrupted: the agent ends.
            ModelError: a command has canceled it.
        """
        if closing.is_set():
            raise Interrupted(self.id)
        if self.canceled is not None:
            raise ModelError(self.canceled)

    def blamed(self, why: str) -> str:
        """Return a reason that begins with the name of the candidate."""
        return why if why.startswith(self.id) else f"{self.id}: {why}"

    def close_early_trial(self) -> None:
        """End the child of its early trial unless it was taken over; may be called twice."""
        if self.early_trial is not None:
            self.early_trial.close()
            self.early_trial = None


class Ledger:  # noqa: PLR0904 - one for each change of a candidate
    """All candidates, in the order in which they came, and each model's last outcome."""

    def __init__(
        self, store: Store, catalog: Catalog, publish: Publish, on_change: Callable[[], None]
    ) -> None:
        """Read how earlier candidates ended.

        *publish* is for the topic of a transfer; *on_change* is called when the result of
        `describe` has changed.
        """
        self._store = store
        self._catalog = catalog
        self.status = StatusTopic(publish)
        self.changed = on_change
        self.idle: Callable[[str, str], str | None] = lambda _name, _version: None
        """Returns why nothing runs a version of a model that serves, or None."""
        self._lock = threading.Lock()
        self._candidates: list[Candidate] = []
        """Replaced, never changed, so that it can be read without the lock."""
        self._current: Candidate | None = None
        """The one in the deployer, which takes one candidate at a time."""
        self._file = StateFile(store.root / "deployments.json", "outcomes of earlier pushes")
        self._last = self._file.read(_parse) or {}

    # From phase to phase

    def add(self, candidate: Candidate) -> None:
        """Add a candidate that is offered, complete or in the store; may be called twice."""
        with self._lock:
            if candidate not in self._candidates:
                self._candidates = [*self._candidates, candidate]

    def start(self, candidate: Candidate) -> None:
        """Record that the deployer has started on it; its model's topic shows it from now on."""
        self._current = candidate
        self.changed()

    def advance(self, candidate: Candidate, phase: Phase) -> None:
        """Record its new phase; the caller publishes it."""
        _check_step(candidate, phase)
        candidate.phase = phase
        if phase == "probation" and self._current is candidate:
            self._current = None

    def enter(self, candidate: Candidate, phase: Phase) -> None:
        """Record and publish its new phase.

        Raises:
            ModelError: the mark of its trial cannot be written: the disk is full or broken.
        """
        self.advance(candidate, phase)
        log.info("%s: %s", candidate.id, phase)
        self.publish(candidate, phase)
        self.changed()
        if phase == "preparing":
            push = self.push_of(candidate)
            mark = Mark(candidate.version, phase, time.time(), candidate.starts, push=push)
            self._store.set_trial(candidate.name, mark)
            fault("trial.marked")

    def publish(self, candidate: Candidate, state: str, **more: Any) -> None:
        """Publish a state to the sender, or to `edge-agent add`."""
        candidate.on_state(state, more.get("why"))
        if candidate.transfer is not None:
            model = {"model": candidate.name, "version": candidate.version}
            if state in {"live", "probation"}:
                more["why"] = self.idle(candidate.name, candidate.version) or more.get("why")
            self.status.publish(candidate.transfer, state, have=1, total=1, **model, **more)

    def answer(self, candidate: Candidate) -> None:
        """Publish a candidate's progress to a sender that offers it again."""
        if candidate.phase == "probation" and candidate.figures is None:
            return  # it is about to be published in full
        if candidate.transfer is not None:
            more = {
                **(candidate.figures or {}),
                "why": self.idle(candidate.name, candidate.version),
            }
            self.status.publish(candidate.transfer, candidate.phase, have=1, total=1, **more)

    def figures(self, name: str, version: str) -> dict[str, Any]:
        """Return the figures from trial and swap if this version went live last, else {}."""
        last = self._last.get(name, {})
        if (last.get("version"), last.get("outcome")) != (version, "live"):
            return {}
        apart = {"version", "outcome", "why", "time"}
        return {key: value for key, value in last.items() if key not in apart}

    def finish(
        self, candidate: Candidate, outcome: Outcome, why: str | None, **details: Any
    ) -> None:
        """Remove a candidate and publish how it ended; only a rejection is recorded here.

        That a version is live, or was rolled back, is recorded when it happens; here only *why* it
        is live without having been tried.
        """
        _check_step(candidate, outcome)
        self.remove(candidate)
        name, version = candidate.name, candidate.version
        if outcome == "live" and why is not None:
            self.record_last(name, version, outcome, why, self.figures(name, version))
        if outcome == "rejected" and is_name(name):
            self.record_last(name, version, outcome, why, push=self.push_of(candidate))
        self.publish(candidate, "live" if outcome == "live" else "rejected", why=why, **details)
        self.changed()

    def end_replaced(self, candidate: Candidate, version: str) -> None:
        """Tell the sender of a version on probation that *version* went live in its place."""
        why = f"replaced by {version} before its probation was over"
        log.warning("%s: %s", candidate.id, why)
        self.finish(candidate, "replaced", why, replaced_by=version)

    def remove(self, candidate: Candidate) -> None:
        """Remove a candidate without an outcome; may be called twice."""
        with self._lock:
            self._candidates = [other for other in self._candidates if other is not candidate]
            if self._current is candidate:
                self._current = None

    def cancel(self, name: str, why: str) -> None:
        """Stop the candidate of a model that is in the deployer, if there is one."""
        current = self._current
        if current is not None and current.name == name:
            current.canceled = why

    def cancel_transfer(self, transfer: str, why: str) -> bool:
        """Stop the candidate that came in a transfer; return whether it serves already."""
        candidate = self.by_transfer(transfer)
        if candidate is None:
            return False
        candidate.canceled = why
        return candidate.phase == "probation" or candidate.interrupted is not None

    # Questions

    def push_of(self, candidate: Candidate) -> str | None:
        """Return the push that a candidate came in, the latest if several have offered it."""
        offered = candidate.transfer and self.status.push(candidate.transfer)
        return offered or candidate.push

    def refusal(self, name: str, version: str, push: str | None) -> str | None:
        """Return why a version was rejected or rolled back that came in this very push, or None."""
        last = self._last.get(name, {})
        if push is None or last.get("push") != push or last["version"] != version:
            return None
        if self.serving_phase(name, version) is not None:
            return None  # an operator has activated it since
        return str(last.get("why"))

    def by_transfer(self, transfer: str) -> Candidate | None:
        """Find the candidate that came in a transfer."""
        return next((each for each in self._candidates if each.transfer == transfer), None)

    def on_probation(self, name: str | None = None) -> list[Candidate]:
        """List the candidates on probation, of one model or of all."""
        return [
            each
            for each in self._candidates
            if each.phase == "probation" and name in {None, each.name}
        ]

    def interrupted(self) -> list[Candidate]:
        """List candidates whose probation was interrupted by the end of the agent."""
        return [each for each in self._candidates if each.interrupted is not None]

    def has_complete(self, name: str) -> bool:
        """Whether a complete version of a model is being deployed or on probation."""
        return any(each.name == name and each.phase != "receiving" for each in self._candidates)

    def phase(self, name: str, version: str) -> Phase | Literal["live"] | None:
        """Return the phase of a complete version, as in section 5, or None if it has none."""
        for each in self._candidates:
            if (
                each.name == name
                and each.phase != "receiving"
                and same_version(each.version, version)
            ):
                return each.phase
        return self.serving_phase(name, version)

    def serving_phase(self, name: str, version: str) -> Literal["live", "probation"] | None:
        """Return "live" or "probation" if a version serves, else None."""
        if any(same_version(each.version, version) for each in self.on_probation(name)):
            return "probation"
        try:
            live = self._catalog.live(name).manifest.version
        except ModelError:
            return None
        return "live" if same_version(live, version) else None

    def describe(self, name: str) -> dict[str, Any]:
        """Return `candidate` and `last` for a model's topic; waiting candidates are not shown.

        If there are several, the one in the deployer has priority, then the one on probation, then
        the one being received.
        """
        shown = self._shown(name)
        state: dict[str, Any] = {}
        if shown is not None:
            percent = round(shown.percent, 1)
            state["candidate"] = {
                "version": shown.version,
                "phase": shown.phase,
                "percent": percent,
            }
        if name in self._last:
            state["last"] = self._last[name]
        return state

    def _shown(self, name: str) -> Candidate | None:
        current = self._current
        if current is not None and current.name == name:
            return current
        receiving = [
            each for each in self._candidates if each.name == name and each.phase == "receiving"
        ]
        return next(iter([*self.on_probation(name), *reversed(receiving)]), None)

    def names(self) -> set[str]:
        """Return the names of the models for which `describe` returns something."""
        names = {each.name for each in self._candidates if is_name(each.name)}
        shown = {name for name in names if self._shown(name) is not None}
        return shown | (set(self._last) & set(self._store.names()))

    # Marks in the pointers of a model

    def clear_mark(self, name: str, version: str) -> None:
        """Clear the marks in a model's pointers that are for this version.

        If the disk is full, it stays until the next change of the pointers.
        """
        try:
            self._store.clear_marks(name, version)
        except ModelError as problem:
            log.error("model %s: mark of the trial not cleared: %s", name, problem)  # noqa: TRY400 - one line, no traceback

    def suspend(self) -> None:
        """Write into all marks at a clean shutdown that the candidates did not cause it."""
        for name in {each.name for each in self._candidates}:
            if not is_name(name):
                continue
            pointers = self._store.pointers(name)
            trial, watched = pointers.trial, pointers.watched
            try:
                if trial is not None:
                    self._store.set_trial(name, replace(trial, starts=trial.starts - 1))
                if watched is not None:
                    self._store.set_watched(name, replace(watched, starts=-1))
            except ModelError as problem:
                log.error("model %s: trial not suspended: %s", name, problem)  # noqa: TRY400 - one line, no traceback
            fault("probation.suspended")

    def discard(self, name: str, version: str, why: str) -> None:
        """Remove a rejected version and its mark, unless it had been accepted before."""
        log.warning("%s@%s: rejected: %s", name, version, why)
        self.clear_mark(name, version)
        try:
            with disk_errors(f"{name}@{version}: removing it"), self._store.locked():
                if not self._store.accepted(name, version):
                    self._store.discard(name, version)
        except ModelError as problem:
            log.error("%s@%s: not removed: %s", name, version, problem)  # noqa: TRY400 - one line, no traceback

    # How the last candidate of each model ended

    def record_last(
        self,
        name: str,
        version: str,
        outcome: Outcome,
        why: str | None,
        details: Mapping[str, Any] | None = None,
        *,
        push: str | None = None,
    ) -> None:
        """Record how a version ended; if the disk is full, only until the agent ends.

        *push*, in which it came, is given for a failure: it then is not tried again.
        """
        reason = {} if why is None else {"why": why}
        failed = {} if push is None else {"push": push}
        made = {
            "version": version,
            "outcome": outcome,
            **reason,
            **failed,
            **(details or {}),
            "time": payloads.iso(time.time_ns()),
        }
        with self._lock:  # the threads of commands, trials and probations come here
            self._last = {**self._last, name: made}
            self._file.save(self._last)


def _parse(content: Any) -> dict[str, dict[str, Any]]:
    known = {name: dict(last) for name, last in content.items()}
    for name, last in known.items():
        if not (is_name(name) and is_version(last["version"]) and isinstance(last["outcome"], str)):
            raise ValueError("no outcome")
    return known


def _check_step(candidate: Candidate, step: Phase | Outcome) -> None:
    if step not in PHASES[candidate.phase]:
        raise RuntimeError(f"{candidate.id}: {step} does not follow {candidate.phase}")
