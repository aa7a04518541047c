"""The command `configure`: changes pipelines remotely, on probation.

A patch is checked by the request thread, and applied by the main thread, like a reload.
It is not stored before its probation is over: if the agent ends earlier, the old settings return,
and the next run reports it, or the outcome if the agent ended before reporting that.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from ..config.configured import Patch, described, digest, read_patch
from ..core.errors import AgentError, ModelError, NotNowError, RequestError
from ..core.frozen import record
from ..core.parameters import Flag, Kind, Text, shown
from ..core.threads import ShutdownQueue
from ..mqtt import payloads
from ..mqtt.requests import Command, Later, Requests
from ..runtime.pipelines.runner import Runner

if TYPE_CHECKING:
    from ..config.overrides import Before
    from ..inference.model import Model
    from ..runtime.scheduler.queue import Account, FrameQueue
    from .reload import SettingsReload

log = logging.getLogger(__name__)

ENDED = "the agent has ended before the probation was over; the settings before are back"


def _pipelines(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"expected an object by names of pipelines, found {shown(value)}")
    return value


@record
class Configure:
    """Change the settings of pipelines; with `persist`, for good."""

    pipelines: Annotated[Mapping[str, Any], Kind(_pipelines, {"type": "object"})]
    if_: Text | None = None
    """Hash of the settings that the patch is based on."""
    persist: Flag = False


@record(eq=False)
class _Probation:
    """A patch that was applied and is being watched."""

    patch: Patch
    persist: bool
    before: Before
    expected: Mapping[str, tuple[FrameQueue[Model], Account]]
    """The pipelines that must give results, each with its queue and account before."""
    began: float
    """When it began, monotonic seconds, like the next."""
    until: float
    later: Later


class Configuration:
    """Applies patches, one after another, and publishes the pipelines in effect."""

    def __init__(
        self,
        runner: Runner,
        stops: ShutdownQueue,
        reload: SettingsReload,
        changed: Callable[[], object],
    ) -> None:
        self._runner = runner
        self._stops = stops
        self._reload = reload
        self._changed = changed
        self._publishing = threading.Lock()
        self._applying = False
        self._probation: _Probation | None = None
        self._last: dict[str, Any] | None = None
        """How the last patch ended."""
        self._latest: Later | None = None
        if (interrupted := runner.overrides.interrupted) is not None:
            names, kept = interrupted["pipelines"], interrupted.get("kept") is True
            outcome, why = ("live", None) if kept else ("rolled-back", ENDED)
            words = "is kept; the agent has ended before it could say so" if kept else ENDED
            log.warning("configure: %s: %s", ", ".join(names), words)
            self._last = _outcome(outcome, names, why)
        self.commands: tuple[Command[Any], ...] = (Command("configure", Configure, self.configure),)

    # The settings in effect

    def publish(self) -> None:
        """Publish the settings in effect of all pipelines, if they have changed."""
        with self._publishing:  # so that older settings are not published later
            if not self._applying:
                topic = self._runner.topics.config
                self._runner.client.retained.publish(topic, self._payload())

    @contextmanager
    def _published_whole(self) -> Iterator[None]:
        """Have a change published with its outcome or probation, by whatever thread publishes."""
        with self._publishing:
            self._applying = True
        try:
            yield
        finally:
            self._applying = False
        self.publish()

    def _payload(self) -> dict[str, Any]:
        runner = self._runner
        tables = self._tables()
        told = runner.overrides.from_file()
        probation = self._probation
        payload: dict[str, Any] = {
            "schema": payloads.SCHEMA,
            "hash": digest(tables),
            "pipelines": tables,
            "from": "file" if told is not None and described(told) == tables else "remote",
        }
        if probation is not None:
            payload["pending"] = {
                "pipelines": sorted(probation.patch.changes),
                "expected": sorted(probation.expected),
                "persist": probation.persist,
                "probation_s": round(probation.until - probation.began, 3),
            }
        if self._last is not None:
            payload["last"] = self._last
        return payload

    def _tables(self) -> dict[str, dict[str, Any]]:
        return described([each.settings for each in list(self._runner.pipelines.values())])

    # The command

    def answer_interrupted(self, requests: Requests) -> None:
        """Answer the patch that the last run did not answer, if somebody waits."""
        interrupted = self._runner.overrides.interrupted
        if interrupted is not None and interrupted["reply_to"] is not None:
            kept = interrupted.get("kept") is True
            outcome = self._result(interrupted["pipelines"]) if kept else RequestError(ENDED)
            requests.answer_unfinished(interrupted["reply_to"], outcome)

    def settle(self) -> None:
        """Forget the note of a patch once its outcome was reported; for the request thread."""
        latest = self._latest
        # A roll-out gets no reply and checks the outcome itself.
        told = latest is None or (latest.answered if latest.reply_to else latest.told)
        if told and self._runner.client.connected:
            self._runner.overrides.note(None)

    def keep(self, pipelines: Mapping[str, Any], rollout: str) -> Later:
        """Check settings of a roll-out, and have them applied permanently; for the request thread.

        Raises:
            NotNowError: others are on probation, or the file has not been read yet.
            AgentError: they are refused.
        """
        if self._runner.overrides.from_file() is None:
            raise NotNowError("the settings file has not been read yet")
        later = self.configure(Configure(pipelines, persist=True), rollout)
        later.begin()
        return later

    def configure(self, request: Configure, rollout: str | None = None) -> Later:
        """Check a patch, and have it applied; for the request thread.

        *rollout* is the mark of the roll-out that it is from.
        """
        runner = self._runner
        if self._latest is not None and not self._latest.told:
            raise NotNowError("another change is on probation; ask again when it is over")
        present = digest(self._tables())
        if request.if_ is not None and request.if_ != present:
            raise RequestError(
                f"if: the settings have changed since: their hash is {present}, not "
                f"{shown(request.if_)}; read them again on {runner.topics.config}"
            )
        held = {name: each.settings for name, each in list(runner.pipelines.items())}
        patch = read_patch(request.pipelines, held, runner.settings.remote.may)
        runner.overrides.tried(patch)
        later = Later(ENDED, lambda: self._note(patch, request.persist, present, later, rollout))
        self._latest = later
        return later

    def _note(
        self, patch: Patch, persist: bool, judged: str, later: Later, rollout: str | None
    ) -> None:
        """Note a patch for the next run, in case this one ends, and have it applied."""
        names = sorted(patch.changes)
        note = {"pipelines": names, "reply_to": later.reply_to}
        self._runner.overrides.note(note if rollout is None else {**note, "rollout": rollout})
        self._stops.call(lambda: self._begin(patch, persist, judged, later))

    def _begin(self, patch: Patch, persist: bool, judged: str, later: Later) -> None:
        """Apply a patch; called in the main thread."""
        runner = self._runner
        expected = self._expected(patch)
        try:
            if digest(self._tables()) != judged:
                raise NotNowError("the settings have changed meanwhile; ask again")
            settings, before = runner.overrides.configure(patch)
        except AgentError as problem:
            later.tell(problem)
            return
        began, span = time.monotonic(), settings.trial.probation_s
        with self._published_whole():
            self._probation = _Probation(
                patch, persist, before, expected, began, began + span, later
            )
            log.info("configure: %s: on probation", ", ".join(patch.changes) or "nothing")
            self._reload.change(settings, patch.touched)
        self.tick()

    def _expected(self, patch: Patch) -> dict[str, tuple[FrameQueue[Model], Account]]:
        """Return the changed pipelines that should give results during the probation."""
        span = self._runner.settings.trial.probation_s
        since = time.monotonic() - span
        found = {}
        for name, change in patch.changes.items():
            pipeline = self._runner.pipelines.get(name)
            if pipeline is None or change is None or change.get("enabled") is False:
                continue
            rate = change.get("rate", pipeline.settings.rate)
            slow = isinstance(rate, int | float) and rate * span < 1
            if pipeline.state == "running" and pipeline.stream.latest >= since and not slow:
                found[name] = pipeline.queue, pipeline.queue.account.copy()
        return found

    def tick(self) -> None:
        """Decide about the patch on probation; called every second or so by the main thread."""
        probation = self._probation
        if probation is None:
            return
        now = time.monotonic()
        silent = [name for name in probation.expected if not self._gives(name, probation)]
        if not silent:
            self._pass(probation)
        elif now >= probation.until:
            missing = [name for name in silent if not self._is_quiet(name, probation)]
            if missing:
                self._return(probation, missing)
            else:
                self._pass(probation)

    def _is_quiet(self, name: str, probation: _Probation) -> bool:
        """Whether a source is open and has given nothing since, as a sensor that reports seldom.

        The patch may be well then, unless it has changed the source.
        """
        pipeline, change = self._runner.pipelines.get(name), probation.patch.changes.get(name)
        if pipeline is None or change is None or "source" in change:
            return False
        queue, before = probation.expected[name]
        known = before.captured if pipeline.queue is queue else 0
        return pipeline.state == "running" and pipeline.queue.account.captured == known

    def _gives(self, name: str, probation: _Probation) -> bool:
        """Whether a pipeline has given a result for a frame captured since, or is idle."""
        pipeline = self._runner.pipelines.get(name)
        if pipeline is None or not pipeline.settings.enabled:
            return True  # removed from the file meanwhile, or switched off
        _, before = probation.expected[name]
        still = pipeline.queue.account.dropped["still"]  # motionless frames show that it works
        at_rest = pipeline.served and still > 0 and still != before.dropped["still"]
        return at_rest or pipeline.stream.latest >= probation.began

    def _pass(self, probation: _Probation) -> None:
        runner, patch = self._runner, probation.patch
        kept: AgentError | None = None
        if probation.persist:
            try:
                runner.overrides.keep(patch)
            except ModelError as problem:
                kept = problem
        with self._published_whole():
            self._end(probation, "live", None if kept is None else str(kept))
        self._changed()
        if kept is not None:
            probation.later.tell(kept)
            return
        touched = [p for n, p in runner.pipelines.items() if n in patch.touched]
        doubts = [f"pipelines[{p.name}]: {line}" for p in touched for line in p.doubts()]
        for pipeline in touched:
            if (why := pipeline.threshold_problem()) is not None:
                doubts.append(f"pipelines[{pipeline.name}]: {why}")
            at, words = pipeline.errors.latest or (-math.inf, "")
            if at >= probation.began:
                doubts.append(f"pipelines[{pipeline.name}]: an error in these seconds: {words}")
        result = self._result(patch.changes)
        probation.later.tell({**result, "warnings": doubts} if doubts else result)

    def _result(self, names: Iterable[str]) -> dict[str, Any]:
        tables = self._tables()
        return {"hash": digest(tables), "pipelines": {name: tables.get(name) for name in names}}

    def _return(self, probation: _Probation, silent: list[str]) -> None:
        span = probation.until - probation.began
        names = ", ".join(silent)
        known = [reason for name in silent if (reason := self._reason(name))]
        why = (
            f"{names}: gave results before and none within {span:g} s"
            f"{f' ({known[0]})' if known else ''}; the settings before are back"
        )
        log.warning("configure: %s", why)
        settings = self._runner.overrides.restore(probation.before)
        with self._published_whole():
            self._reload.change(settings, probation.patch.touched)
            self._end(probation, "rolled-back", why)
        self._changed()
        probation.later.tell(RequestError(why))

    def _reason(self, name: str) -> str | None:
        """Return why a pipeline gives nothing, if its source or a model reports it."""
        pipeline = self._runner.pipelines.get(name)
        if pipeline is None:
            return None
        problems = [each.problem for each in pipeline.servings if each.problem]
        return next(iter(problems), None) or pipeline.error

    def _end(self, probation: _Probation, outcome: str, why: str | None) -> None:
        self._probation = None
        self._last = _outcome(outcome, sorted(probation.patch.changes), why)


def _outcome(outcome: str, pipelines: Sequence[str], why: str | None) -> dict[str, Any]:
    """Return the outcome of a patch as published."""
    told = {"outcome": outcome, "pipelines": [*pipelines], "time": payloads.iso(time.time_ns())}
    return told if why is None else {**told, "why": why}
