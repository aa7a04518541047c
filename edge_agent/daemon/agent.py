"""The life cycle of the daemon: starts the frames, then all other services; closes in reverse.

The other services are built in `services`. A start without a plan reads the device and its models
before anything runs. A start from the last good start's plan, or from a draft, starts the frames
first; the plan's assumptions are checked after the first result, and if they no longer hold, the
agent restarts without the plan.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.overrides import FILE as OVERRIDES
from ..config.overrides import Overrides
from ..config.settings import Arm, Settings
from ..core import systemd
from ..core.codec import unpack
from ..core.containment import contained, reason
from ..core.errors import AgentError, EngineError, ModelError, UsageError, system_limit
from ..core.files import make_state_folder, replace_file
from ..core.flight_recorder import call_target, clear_starting, previous_crash, recorder
from ..core.logs import set_up
from ..core.owners import foreign
from ..core.text import counted
from ..core.threads import ShutdownQueue, Stop, stop_on_dead_threads, stop_on_signals
from ..core.timeline import Timeline
from ..inference.engines.registry import engine_words
from ..inference.model import Model
from ..inference.prepared.artifact import read
from ..models.store.agent_lock import hold_agent_lock
from ..runtime.pipelines.runner import Runner
from ..serving.open import open_prepared, open_quick
from .event_service import EventService
from .fast_start import readahead
from .fast_start.fingerprint import digest
from .fast_start.plan import forget
from .fast_start.preload import FIRST_SECONDS, Preload
from .fast_start.reexec import hold_signals, restart
from .hang_watch import HANG_SECONDS, HangWatch

if TYPE_CHECKING:
    from ..core.flight_recorder import PreviousCrash
    from ..serving.planned_model import PlannedModel
    from .control import Control
    from .fast_start.plan import Plan
    from .inventory import Inventory

log = logging.getLogger(__name__)

FIRST_RESULT_SECONDS = 10.0
"""How long requests, pushes, and health wait for an expected first result."""


class Restart(Exception):
    """Raised to start the agent again in the same process."""


class Agent:
    """One run of the daemon."""

    def __init__(
        self,
        settings: Settings,
        reread: Callable[[], Settings],
        timeline: Timeline,
        *,
        origins: tuple[str | None, str],
        planned: tuple[Plan, Preload, bool] | None = None,
    ) -> None:
        """Open the parts that can be opened without waiting.

        *planned*, for a start from a plan: the plan, what is already loading, and whether it is a
        draft.
        """
        make_state_folder(settings.state)
        overrides = Overrides(settings.state / OVERRIDES)
        if planned is None:  # already done for a plan's settings
            settings = overrides.lay_over(settings)
        for line in overrides.removed():
            log.info("%s", line)
        self._reread = reread
        self._timeline = timeline
        self._origins = origins
        self._planned = planned
        self._stops = ShutdownQueue()
        self._inventory: Inventory | None = None
        self._reading = threading.Lock()
        self._events = EventService()
        self._runner = Runner(
            settings,
            lanes=(planned[0] if planned else self._take_inventory(settings).loader.engines).lanes,
            catalog=lambda: self._take_inventory(self._runner.settings).catalog,
            loader=lambda: self._take_inventory(self._runner.settings).loader,
            stops=self._stops,
            timeline=timeline,
            stages=self._events.stage,
            overrides=overrides,
        )
        self._control: Control | None = None
        self._closing = False
        self._asked = False
        """Whether the end was requested; if not, whatever ends the agent is a failure."""
        self._last: PreviousCrash | None = None
        """How the last run ended, if abnormally."""
        self._reload_missed = False
        """Whether SIGHUP came before there was a control to reload."""
        self._changing = threading.Lock()
        """Held while the control is started or closed."""

    @property
    def left_behind(self) -> bool:
        """Whether a thread is still in native code."""
        return self._runner.threads.left_behind

    def _take_inventory(self, settings: Settings) -> Inventory:
        """Read the device and its models, once."""
        from .inventory import Inventory

        with self._reading:
            if self._inventory is None:
                self._inventory = Inventory(settings)
            return self._inventory

    def denied(self, problem: BaseException | None) -> AgentError | None:
        """Return the error of a state folder with another user's files, or None."""
        if not isinstance(problem, PermissionError):
            return None
        whose = foreign(self._runner.settings.state)
        return AgentError(f"{reason(problem)}: {whose}") if whose else None

    def run(self) -> Stop:
        """Run until something gives a reason to stop; close everything; return the reason."""
        runner = self._runner
        stop_on_signals(self._stops, self._reload)
        stop_on_dead_threads(self._stops)
        with ExitStack() as stack:
            stack.enter_context(hold_agent_lock(runner.settings.state))
            self._take_over(stack)
            stack.callback(runner.active.close)
            # Closed after the workers, which publish; closing publishes that the device is offline.
            stack.callback(self._close_client)
            stack.callback(self._close_transfers)
            stack.enter_context(runner.threads)
            stack.callback(self._close_control)
            stack.callback(runner.board.close)
            stack.callback(runner.halt)
            stack.callback(self._drain)
            if self._planned is None:
                # Before any model is loaded: a version that crashed the agent must not do so again.
                self._begin_control()
                runner.board.settled.set()
                runner.start()
            else:
                first = next(iter(self._planned[0].models), None)
                runner.start(first and Arm(first.name, first.version, 1).reference)
                runner.threads.spawn("first", partial(self._begin_quick, *self._planned))
            # Not in the thread group: it publishes until the group's last thread has ended.
            connecting = threading.Thread(
                target=self._guarded, args=("client", runner.client.run), name="client", daemon=True
            )
            connecting.start()
            stack.callback(systemd.notify, "STOPPING=1")
            systemd.notify("READY=1", f"STATUS={counted(len(runner.pipelines), 'pipeline')}")
            stop = self._stops.wait(self._ticker())
            self._asked = stop.asked
        if stop.restart:
            hold_signals()
            if self._stops.signaled is None:
                raise Restart
            return self._stops.signaled
        return stop

    def _take_over(self, stack: ExitStack) -> None:
        """Read how the last run in this folder ended, and start recording this one."""
        state = str(self._runner.settings.state)
        self._last = previous_crash(state)
        if self._last is not None:
            log.warning("the last run %s", self._last.why)
        recorder.open(state)
        clear_starting(state)
        stack.callback(recorder.close)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported, not swallowed
            self._stops.put(Stop(f"{name} crashed", error))

    # A start from a plan

    def _begin_quick(self, plan: Plan, early: Preload, drafted: bool) -> None:
        """Load the plan's models, wait for the first result, then start the rest."""
        self._runner.lazy(wanted=plan.lazy)
        for index, quick in enumerate(plan.models):
            if self._stops.begun:
                return
            try:
                with recorder.call("load", _place(quick)), contained(quick.name):
                    model = self._quick_model(quick, early.model(index))
            except AgentError as problem:
                # It is loaded in the usual way once the rest is there.
                if quick.form:
                    log.warning("model %s: not from its prepared form: %s", quick.name, problem)
                else:
                    # Problems of the model are reported when it is loaded in the usual way; a
                    # mistake of ours would appear nowhere else.
                    level = logging.DEBUG if problem.__cause__ is None else logging.INFO
                    words = "model %s: not loaded the quick way: %s"
                    log.log(level, words, quick.name, problem)
            else:
                arm = Arm(quick.name, quick.version, 1)
                self._runner.active.put(arm, quick.kind, model)
                if drafted:
                    told = arm.reference, model.id, engine_words(model.engine.label)
                    log.info("model %s is live as %s on %s", *told)
                # A camera may be offline; a recording's frames come, even if later than the model.
                comes = self._timeline.has("first_frame") or self._runner.reads_recording
                if index == 0 and comes:
                    self._timeline.first.wait(FIRST_SECONDS)
            early.first_is_served.set()
            self._runner.start_others()
        self._wait_for_result()
        self._runner.board.settled.set()
        self._learn(plan)
        early.restore_python()
        if self._stops.begun:
            return
        if self._holds(plan):
            self._begin_control()
            return
        forget(self._runner.settings.state)
        why = "settings, device or models are not as they were"
        self._stops.put(Stop(why, asked=True, restart=True))

    def _wait_for_result(self) -> None:
        """Leave the processor to the first result until the broker has it, or is not there."""
        inferred: float | None = None
        while self._runner.can_give_results() and self._timeline.age < FIRST_RESULT_SECONDS:
            if self._timeline.first.wait(0.1) or self._closing:
                return
            if self._timeline.has("first_inference") and not self._runner.client.connected:
                # Events, their actions and clips need no broker.
                inferred = inferred or self._timeline.age
                if self._timeline.age > inferred + FIRST_SECONDS:
                    return

    def _learn(self, plan: Plan) -> None:
        """Record which pages this start has accessed, before anything else is imported."""
        if not self._timeline.first.is_set() or readahead.is_known(plan.state, plan.origins):
            return
        content = readahead.list_touched(
            plan.origins, [plan.state, *self._runner.settings.models_dirs]
        )
        if content is not None:
            try:
                replace_file(Path(plan.state) / readahead.FILE, content)
            except OSError as problem:
                log.warning("%s: cannot be written: %s", readahead.FILE, problem.strerror)

    def _quick_model(self, quick: PlannedModel, begun: Any) -> Model:
        folder = unpack(quick.folder)
        choice = unpack(quick.choice)
        if quick.way == "quick":
            return open_quick(folder, choice, quick.kind, begun)
        if quick.form:
            model = open_prepared(folder, choice, begun or read(quick.form), quick.kind)
        else:
            # Checked when the plan was made, and unchanged since then.
            from ..inference.model import load_model

            model = load_model(folder, [choice], quick.kind, checked=True)
        if quick.unverified:
            from ..serving.reference_check import (
                attach_check,  # the previous run ended too soon to know
            )

            attach_check(model, quick.kind)
        return model

    def _holds(self, plan: Plan) -> bool:
        """Check all assumptions of the plan."""
        config, origins = self._origins
        try:
            settings = self._runner.overrides.lay_over(self._reread())
        except UsageError:
            if digest(config) == origins:
                raise
            # Changed since this start read them: a reload reports what is wrong.
            self._reload_missed = True
            return True
        if settings != self._runner.settings and digest(config) != origins:
            # Changed since then: applied as in a reload, which keeps running what it can.
            self._reload_missed = True
            settings = self._runner.settings
        inventory = self._take_inventory(settings)
        if settings != self._runner.settings or inventory.loader.engines.lanes != plan.lanes:
            return False
        if (inventory.match.profile.unload_idle_s > 0) != plan.lazy:
            return False
        catalog = inventory.catalog.now()
        try:
            return all(
                catalog.find(quick.name, quick.version) == unpack(quick.folder)
                for quick in plan.models
            )
        except ModelError:
            return False  # one of them is gone, or broken

    def _begin_control(self) -> None:
        from .services import compose

        inventory = self._take_inventory(self._runner.settings)
        if self._last is not None:
            self._last = self._last.for_use(self._runner.settings.served)
        inventory.blame(self._last)
        control = compose(
            self._runner,
            inventory,
            self._stops,
            self._reread,
            self._origins,
            events=self._events,
        )
        control.recover(self._last)
        with self._changing:
            if self._closing:
                return
            self._control = control
            control.start()
            if self._reload_missed:
                self._stops.call(control.reload)

    def _drain(self) -> None:
        if self._control is not None:
            self._control.drain()

    def _close_control(self) -> None:
        with self._changing:
            self._closing = True
        if self._control is not None:
            self._control.suspend()
        self._runner.end_results()  # before the rules are closed
        if self._control is not None:
            self._control.close()

    def _close_client(self) -> None:
        self._runner.client.close("stopped" if self._asked else "lost")

    def _close_transfers(self) -> None:
        if self._control is not None:
            self._control.close_transfers()

    def _reload(self) -> None:
        with self._changing:
            control = self._control
            self._reload_missed = control is None
        if control is not None:
            control.reload()

    def _ticker(self) -> Callable[[], float]:
        """Return the main thread's periodic work: watch, feed the watchdog, publish health."""
        runner = self._runner
        feed = systemd.watchdog_seconds()
        next_health = time.monotonic() + min(1.0, runner.settings.health.interval_s)
        next_feed = 0.0
        fed = 0
        limit = 2 * feed if feed is not None else HANG_SECONDS

        def end(words: str) -> None:
            self._stops.put(Stop(words, EngineError(f"{words}; start the agent again")))

        hangs = HangWatch(recorder, limit, end if feed is None else None)

        def tick() -> float:
            nonlocal next_health, next_feed, fed
            now = time.monotonic()
            # The box may have been given another time zone: libc looks again only when told to.
            time.tzset()
            runner.watch()
            recorder.remember_kills()
            hanging = hangs.check(now)
            if self._control is not None:
                self._control.tick()
            alive = feed is None or (runner.lanes_are_alive(2 * feed) and not hanging)
            if feed is not None and now >= next_feed and alive:
                systemd.notify("WATCHDOG=1")
                fed += 1
                next_feed = now + feed
            if now >= next_health and self._control is not None:
                next_health = max(next_health + runner.settings.health.interval_s, now)
                self._control.publish_health({"enabled": feed is not None, "fed": fed})
            return min(1.0, max(0.0, next_health - now), feed or 1.0)

        return tick


def _place(quick: PlannedModel) -> str:
    """Return the name of a plan's model and engine, as in the flight recorder."""
    manifest, choice = quick.folder["manifest"], quick.choice
    network = None if quick.form else str(unpack(quick.folder).network)
    model = f"{manifest['name']}@{manifest['version']}"
    return call_target(model, choice["engine"], choice["device"], network)


def run(
    settings: Settings,
    reread: Callable[[], Settings],
    timeline: Timeline,
    origins: tuple[str | None, str],
) -> int:
    """Run the daemon; return the exit status of `edge-agent run`."""
    return _run(lambda: Agent(settings, reread, timeline, origins=origins))


def resume(
    plan: Plan, early: Preload, config: str, timeline: Timeline, *, drafted: bool, verbose: bool
) -> int:
    """Run the daemon from a plan, or from a draft; return the exit status of `edge-agent run`."""
    set_up(verbose=verbose, steady=True)
    settings: Settings = unpack(plan.settings)

    def reread() -> Settings:
        from ..config.load import load

        return load(Path(config))

    origins = (config, plan.origins)
    planned = plan, early, drafted
    return _run(lambda: Agent(settings, reread, timeline, origins=origins, planned=planned))


def _run(make: Callable[[], Agent]) -> int:
    agent = make()
    try:
        stop = agent.run()
    except Restart:
        log.info("restarting")
        restart()
    except (RuntimeError, OSError, ImportError) as problem:
        # From a new thread it comes as the error of the stop.
        raise (system_limit(problem) or agent.denied(problem) or problem) from None
    if stop.asked:
        log.info("stopped: %s", stop.reason)
        # Python does not finalize: an engine that is still building a network then aborts, and
        # others' libraries have been seen to hang.
        logging.shutdown()
        os._exit(0)
    told = system_limit(stop.error) or agent.denied(stop.error) or stop.error
    if agent.left_behind:
        # A thread that hangs in native code would keep Python from finalizing.
        why = f": {told}" if isinstance(told, AgentError) else ""
        log.error("stopped: %s%s", stop.reason, why, exc_info=None if why else stop.error)
        logging.shutdown()
        os._exit(1)
    if isinstance(told, AgentError):
        raise told
    log.error("stopped: %s", stop.reason, exc_info=stop.error)
    return 1
