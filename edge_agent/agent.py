"""The composition root: opens everything, starts the crew, waits, closes in reverse.

The only place that knows everybody.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from . import __version__, systemd, wire
from .added import Added
from .announced import Announced
from .board import Board
from .bundled import bundled
from .crew import Crew, Stop, Stops, stop_on_dead_threads, stop_on_signals
from .deploy.candidate import Candidate
from .deploy.deployer import Deployer
from .deploy.transfers import Receiver, Transfers
from .durable import replace_file
from .errors import AgentError, ModelError, UsageError
from .facts import Facts, read_facts
from .health import Health
from .link import Link
from .model import Model
from .mqtt import Message
from .orders import Memory, Orders, positive, text
from .packages.keys import TrustedKeys
from .pipeline import Identity, Pipeline
from .profile import Match, choose, default_dirs, load_profiles
from .serving import Engines, Servings, unusable
from .settings import Pipeline as PipelineSettings
from .settings import Settings
from .sources import parse_source
from .store.catalog import Library
from .store.housekeeping import clean_leftovers
from .store.store import Store

log = logging.getLogger(__name__)

MAX_BLOCK_BYTES = 64 * 1024


class Restart(Exception):
    """The agent shall be started anew in the same place."""


def match_profile(settings: Settings) -> tuple[Match, Facts]:
    """Choose this device's profile.

    Raises:
        UsageError: the profile named is not there, or a profile is wrong.

    """
    facts = read_facts()
    return choose(load_profiles(default_dirs()), facts, settings.profile), facts


def library_of(settings: Settings, store: Store) -> Library:
    """Open the three places where models are."""
    return Library(store, [Path(folder) for folder in settings.models_dirs], bundled("models"))


class Agent:
    """One run of the daemon."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings]) -> None:
        """Open what can be opened without waiting for anyone.

        Args:
            settings: checked settings.
            reread: reads them again from where they came from.

        Raises:
            UsageError: something the settings name is not as it should be.

        """
        self._settings = settings
        self._reread = reread
        self._stops = Stops()
        self._session = str(uuid.uuid4())
        self._topics = wire.Topics(settings.broker.topic_root, settings.device_id)
        self._match, self._facts = match_profile(settings)
        self._engines = Engines(self._match.profile, self._facts, settings.engine)
        self._store = open_store(settings)
        self._library = library_of(settings, self._store)
        self._board: Board[Model] = Board()
        self._servings = Servings(self._library, self._engines, self._board)
        self._pipelines: dict[str, Pipeline] = {}
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._link = Link(
            settings.broker,
            f"edge-agent-{settings.device_id}",
            status_topic=self._topics.status,
            status=self._status(),
            inboxes=self._inboxes,
            inbox=self._inbox,
        )
        self._overrides = Overrides(settings.state / "overrides.json")
        self._announced = Announced(settings.state / "announced.json")
        self._health = Health(
            self._board,
            self._link,
            lambda: list(self._pipelines.values()),
            self._servings.all,
            settings.state,
        )
        self._orders = Orders(
            self._inbox,
            self._link,
            self._topics,
            lambda: self._settings.groups,
            Memory(settings.state / "requests.json"),
            self._count_malformed,
        )
        self._orders.verbs.update(
            ping=lambda _body: {"time": wire.iso(time.time_ns()), "session": self._session},
            set=self._set,
            snapshot=self._snapshot,
            restart=self._restart,
        )
        self._deployer = Deployer(
            self._store,
            self._library,
            self._servings,
            trial=lambda: self._settings.trial,
            swap=self._match.profile.swap,
            memory_budget_mb=self._match.profile.memory_budget_mb,
            say_push=self._say_push,
            on_change=self._say_models,
        )
        self._orders.verbs.update(
            rollback=self._deployer.rollback,
            activate=self._deployer.activate,
            delete=self._deployer.delete,
        )
        self._transfers = Transfers(
            self._store,
            self._library,
            Receiver(
                device=settings.device_id,
                profile=self._match.name,
                groups=lambda: self._settings.groups,
                trusted=lambda: TrustedKeys([Path(key) for key in self._settings.trust.keys]),
                allow_unsigned=lambda: self._settings.trust.allow_unsigned,
                quota_bytes=lambda: self._settings.quota_mb * 2**20,
                pinned=self._servings.pins,
            ),
            self._say_push,
            self._deployer.submit,
            self._deployer.standing,
            self._say_models,
        )
        self._added = Added(self._store)
        self._orders.deliveries = lambda place, message: self._transfers.message(
            place.levels, message
        )
        self._orders.idle = self._idle
        self._restarting = False
        self._said: dict[str, bytes] = {}
        """What was last said on each retained topic of a model."""
        self._said_info: dict[str, Any] = {}
        self._saying = threading.RLock()
        self._arranging = threading.Lock()
        """Held while pipelines come and go, so that no model is let go that one begins to need."""
        self._counted: dict[str, int] = {}
        """Of pipelines that are gone: how far they had counted."""
        self._beats: list[Beat] = []
        self._crew = Crew(self._stops)
        for pipeline in settings.pipelines:
            self._add(pipeline)

    # Life

    def run(self) -> Stop:
        """Run until something gives a reason to stop; close everything; return the reason."""
        stop_on_signals(self._stops, self._reload)
        stop_on_dead_threads(self._stops)
        with ExitStack() as stack:
            stack.enter_context(self._store.claim())
            stack.callback(self._servings.close)
            # Outlives the workers, who publish; on the way out it says goodbye.
            stack.callback(self._link.close)
            stack.callback(self._transfers.close)
            stack.enter_context(self._crew)
            stack.callback(self._inbox.put, None)
            stack.callback(self._deployer.close)
            stack.callback(self._deployer.suspend)
            stack.callback(self._board.close)
            stack.callback(self._halt)
            self._deployer.recover()
            self._servings.on_change = self._say_models
            self._servings.flows = self._flows
            self._say_info()
            # Not of the crew: it publishes until the last of them is done.
            connecting = threading.Thread(
                target=self._guarded, args=("link", self._link.run), daemon=True
            )
            connecting.start()
            stack.callback(systemd.notify, "STOPPING=1")
            self._crew.spawn("deploy", self._load_and_deploy)
            for pipeline in self._pipelines.values():
                pipeline.start(self._crew)
            for number in range(self._engines.lanes):
                beat = Beat()
                self._beats.append(beat)
                self._crew.spawn(f"lane-{number}", partial(self._lane, beat))
            self._crew.spawn("orders", self._take_orders)
            systemd.notify("READY=1", f"STATUS={len(self._pipelines)} pipelines")
            stop = self._stops.wait(self._ticker())
        if self._restarting:
            raise Restart
        return stop

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported, not swallowed
            self._stops.put(Stop(f"{name} crashed", error))

    def _halt(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.halt()

    def _load(self) -> None:
        self._servings.fill()
        self._say_models()
        problem = unusable(self._servings.all())
        if problem is not None:
            # Nothing of this can run, and all of it came with the settings, not over the air.
            self._stops.put(Stop(str(problem), UsageError(str(problem))))

    def _load_and_deploy(self) -> None:
        """Load what serves, then take care of what comes."""
        self._added.clear()
        self._load()
        # What is here now is here to stay. A collection that goes through all of it holds every
        # lane for 20 ms (measured), and each swap asks for one.
        gc.freeze()
        try:
            for line in clean_leftovers(self._store):
                log.info("%s", line)
        except ModelError as problem:
            self._health.notes.append(str(problem))
            log.error("%s", problem)  # noqa: TRY400 - one line, no traceback
        self._deployer.run()

    def _take_orders(self) -> None:
        # First, so that blocks which the broker has kept for us find their transfer.
        self._transfers.resume()
        self._orders.run()

    def _flows(self, name: str) -> bool:
        """Whether a source that feeds the live version of a model may still give something."""
        return any(
            pipeline.state in {None, "running"}
            and any(s.arm.name == name and s.arm.version is None for s in pipeline.servings)
            for pipeline in list(self._pipelines.values())
        )

    def _idle(self) -> None:
        """Do what is due on the receiving side, in the thread of the orders."""
        self._transfers.tick(time.monotonic())
        for name, version, request in self._added.requests():
            self._deployer.submit(
                Candidate(
                    name,
                    version,
                    None,
                    partial(self._library.find, name, version),
                    told=partial(self._added.answer, request),
                )
            )

    def _lane(self, beat: Beat) -> None:
        while (job := self._board.take()) is not None:
            beat.begin()
            job.slot.work(job)
            beat.end()

    def _ticker(self) -> Callable[[], float]:
        """Make what the main thread does between waits: watch, feed the watchdog, say how it is."""
        feed = systemd.watchdog_seconds()
        self._health.watchdog["enabled"] = feed is not None
        next_health = time.monotonic() + min(1.0, self._settings.health.interval_s)
        next_feed = 0.0

        def tick() -> float:
            nonlocal next_health, next_feed
            now = time.monotonic()
            for pipeline in self._pipelines.values():
                pipeline.watch(self._crew)
            if feed is not None and now >= next_feed and self._moves(now, 2 * feed):
                systemd.notify("WATCHDOG=1")
                self._health.watchdog["fed"] += 1
                next_feed = now + feed
            if now >= next_health:
                next_health = max(next_health + self._settings.health.interval_s, now)
                self._say_health()
            return min(1.0, max(0.0, next_health - now), feed or 1.0)

        return tick

    def _moves(self, now: float, limit: float) -> bool:
        """Whether no lane is stuck inside an engine."""
        return all(beat.since is None or now - beat.since < limit for beat in self._beats)

    # Pipelines

    def _add(self, settings: PipelineSettings) -> Pipeline:
        try:
            spec = parse_source(settings.source, self._settings.base)
        except UsageError as problem:
            raise UsageError(f"pipelines[{settings.name}].source: {problem}") from None
        pipeline = Pipeline(
            self._overrides.applied(settings),
            spec,
            [self._servings.need(arm, spec.kind) for arm in settings.arms],
            [
                (stage, self._servings.need(parse_one(stage.model), "picture"))
                for stage in settings.then
            ],
            identity=Identity(self._settings.device_id, self._session, self._topics),
            board=self._board,
            link=self._link,
        )
        self._pipelines[settings.name] = pipeline
        return pipeline

    def _reload(self) -> None:
        """Take over changed settings without touching pipelines that have not changed."""
        systemd.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            settings = self._reread()
            for pipeline in settings.pipelines:
                parse_source(pipeline.source, settings.base)
        except UsageError as problem:
            log.error("the settings stay as they were: %s", problem)  # noqa: TRY400 - one line, no traceback
            systemd.notify("READY=1")
            return
        fixed = ("device_id", "broker", "state_dir", "profile", "engine", "models_dirs")
        for key in fixed:
            if getattr(settings, key) != getattr(self._settings, key):
                log.warning("%s: changed, takes effect at the next start", key)
        kept = {key: getattr(self._settings, key) for key in fixed}
        before = {pipeline.name: pipeline for pipeline in self._settings.pipelines}
        after = {pipeline.name: pipeline for pipeline in settings.pipelines}
        regrouped = settings.groups != self._settings.groups
        self._settings = replace(settings, **kept)
        with self._arranging:
            for name in [name for name in before if after.get(name) != before[name]]:
                gone = self._pipelines.pop(name)
                gone.stop()
                self._counted[name] = gone.slot.seq
                if name not in after:
                    log.info("pipeline %s is gone", name)
            for name in [name for name in after if after[name] != before.get(name)]:
                new = self._add(after[name])
                # A number is given once in a session, whatever becomes of the pipeline.
                new.slot.seq = self._counted.get(name, 0)
                new.start(self._crew)
                log.info("pipeline %s is new or changed", name)
        self._clear_gone()
        self._crew.spawn("loader", self._reload_models)
        if regrouped:
            self._link.listen()
        self._say_info()
        log.info("settings read again: %d pipelines", len(self._pipelines))
        systemd.notify("READY=1", f"STATUS={len(self._pipelines)} pipelines")

    def _reload_models(self) -> None:
        self._servings.fill()
        with self._arranging:
            pipelines = self._pipelines.values()
            used = {(s.reference, s.kind) for p in pipelines for s in p.servings}
            used |= {(s.reference, s.kind) for p in pipelines for _, s in p.seconds}
            self._servings.release(used)
        self._say_models()

    # What the device says

    def _status(self) -> Callable[[str, str], bytes]:
        def status(state: str, reason: str) -> bytes:
            return wire.encode(
                {
                    "schema": wire.SCHEMA,
                    "state": state,
                    "session": self._session,
                    "reason": reason,
                    "time": wire.iso(time.time_ns()),
                }
            )

        return status

    def _inboxes(self) -> list[str]:
        return [
            f"{self._topics.inbox}/#",
            *(f"{self._topics.group_inbox(group)}/#" for group in self._settings.groups),
        ]

    def _say_info(self) -> None:
        info = self._info()
        if info != self._said_info:
            self._said_info = info
            now = {**info, "time": wire.iso(time.time_ns())}
            self._link.publish(self._topics.info, wire.encode(now), qos=1, retain=True)

    def _info(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {
            "schema": wire.SCHEMA,
            "agent": __version__,
            "device": self._settings.device_id,
            "session": self._session,
            "facts": {
                "arch": self._facts.arch,
                "cpu": self._facts.cpu,
                "cpus": self._facts.cpus,
                "memory_mb": self._facts.memory_mb,
                "board": self._facts.board,
                "os": self._facts.os,
                "kernel": self._facts.kernel,
                "gpus": sorted(self._facts.gpus),
                "npu": self._facts.npu,
            },
            "groups": list(self._settings.groups),
            "profile": {"name": self._match.name, "why": self._match.reason},
            "engines": {name: version(name) for name in ("openvino", "onnxruntime")},
            "pipelines": [
                {
                    "name": pipeline.name,
                    "source": pipeline.spec.redacted,
                    "model": pipeline.settings.model,
                    "qos": pipeline.settings.qos,
                }
                for pipeline in self._pipelines.values()
            ],
            "models": [
                {
                    "name": serving.reference,
                    "serves": serving.model.id if serving.model else None,
                    "engine": serving.model.engine.label if serving.model else None,
                    "passed_over": list(serving.passed),
                    "problem": serving.problem,
                }
                for serving in self._servings.all()
            ],
            "limits": {"max_block_bytes": MAX_BLOCK_BYTES},
        }

    def _say_models(self) -> None:
        """Say what is live, and clear the topics of models that are gone."""
        with self._saying:
            names = {serving.arm.name for serving in self._servings.all()}
            names |= {*self._store.names(), *self._transfers.progress(), *self._deployer.names()}
            now = {
                self._topics.model(name): wire.encode(self._model_state(name))
                for name in sorted(names)
            }
            for topic, payload in now.items():
                if self._said.get(topic) != payload:
                    self._link.publish(topic, payload, qos=1, retain=True)
            self._said = now
            self._clear_gone()
            self._say_info()

    def _clear_gone(self) -> None:
        """Clear the retained topics of pipelines and models that are no more."""
        with self._saying:
            sources = {self._topics.source(name) for name in list(self._pipelines)}
            for topic in self._announced.keep(sources | self._said.keys()):
                self._link.publish(topic, b"", qos=1, retain=True)

    def _model_state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = {
            "schema": wire.SCHEMA,
            "name": name,
            "live": None,
            "previous": self._store.pointers(name).previous,
            "versions": [entry.version for entry in self._library.versions(name)],
        }
        serving = next((s for s in self._servings.all() if s.reference == name and s.model), None)
        if serving is not None and serving.model is not None:
            state["live"] = serving.model.manifest.version
            state["engine"] = serving.model.engine.label
        else:
            try:
                state["live"] = self._library.live(name).manifest.version
            except ModelError:
                state["live"] = None
        problem = next(
            (s.problem for s in self._servings.all() if s.arm.name == name and s.problem), None
        )
        if problem is not None:
            state["error"] = problem
        receiving = self._transfers.progress().get(name)
        if receiving is not None:
            version, percent = receiving
            state["candidate"] = {"version": version, "phase": "receiving", "percent": percent}
        state |= self._deployer.state(name)
        return state

    def _say_push(self, transfer: str, payload: Mapping[str, Any]) -> bool:
        says = {
            "schema": wire.SCHEMA,
            "device": self._settings.device_id,
            "transfer": transfer,
            **payload,
            "time": wire.iso(time.time_ns()),
        }
        return self._link.publish(self._topics.push(transfer), wire.encode(says), qos=1)

    def _say_health(self) -> None:
        self._link.publish(self._topics.health, wire.encode(self._health.payload()))

    def _count_malformed(self) -> None:
        self._health.malformed += 1

    # What others ask for

    def _pipeline_of(self, body: Mapping[str, Any]) -> Pipeline:
        name = text(body, "pipeline")
        if name not in self._pipelines:
            raise ModelError(
                f"pipeline: there is no {name!r}; there are {', '.join(self._pipelines) or 'none'}"
            )
        return self._pipelines[name]

    def _set(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        pipeline = self._pipeline_of(body)
        threshold = positive(body, "threshold", zero=True)
        rate = positive(body, "rate", zero=False)
        if threshold is None and rate is None:
            raise ModelError("nothing to set: give threshold or rate")
        if threshold is not None:
            pipeline.threshold = threshold
        if rate is not None:
            pipeline.change_rate(rate)
        if body.get("persist") is True:
            self._overrides.keep(pipeline.name, threshold=threshold, rate=rate)
        return {"pipeline": pipeline.name, "threshold": pipeline.threshold, "rate": pipeline.rate}

    def _snapshot(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        pipeline = self._pipeline_of(body)
        if pipeline.spec.kind != "picture":
            raise ModelError(f"pipeline: {pipeline.name} reads a signal, there is no picture of it")
        pipeline.snapshot_wanted = True
        return {"topic": self._topics.snapshot(pipeline.name)}

    def _restart(self, _body: Mapping[str, Any]) -> Mapping[str, Any]:
        def stop() -> None:
            self._restarting = True
            self._stops.put(Stop("restart was asked for", asked=True))

        # After the reply is on its way.
        self._stops.call(stop)
        return {"session": self._session}


class Beat:
    """A lane's sign of life; written by the lane, read by the watchdog."""

    def __init__(self) -> None:
        self.since: float | None = None
        """When the present frame was begun; None: idle."""

    def begin(self) -> None:
        self.since = time.monotonic()

    def end(self) -> None:
        self.since = None


class Overrides:
    """What `set … persist` has changed, over restarts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes: dict[str, dict[str, float]] = {}
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            self._changes = {
                str(name): {
                    key: float(change[key]) for key in ("threshold", "rate") if key in change
                }
                for name, change in read.items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError):
            log.warning("%s: damaged; changes made by `set` are forgotten", path)

    def applied(self, settings: PipelineSettings) -> PipelineSettings:
        change: dict[str, Any] = dict(self._changes.get(settings.name, {}))
        return replace(settings, **change)

    def keep(self, name: str, *, threshold: float | None, rate: float | None) -> None:
        change = self._changes.setdefault(name, {})
        if threshold is not None:
            change["threshold"] = threshold
        if rate is not None:
            change["rate"] = rate
        try:
            replace_file(self._path, json.dumps(self._changes).encode())
        except OSError as problem:
            raise ModelError(
                f"set for now, but not kept: {self._path}: {problem.strerror}"
            ) from problem


def parse_one(route: str) -> Any:
    """Read a reference to exactly one model."""
    from .settings import parse_route

    return parse_route(route)[0]


def open_store(settings: Settings) -> Store:
    """Open the store, making its folder.

    Raises:
        UsageError: it cannot be made or written.

    """
    try:
        settings.state.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"state_dir: {settings.state}: {problem.strerror}") from None
    if not os.access(settings.state, os.W_OK | os.X_OK):
        raise UsageError(f"state_dir: {settings.state}: may not be written by this user") from None
    return Store(settings.state)


def run(settings: Settings, reread: Callable[[], Settings]) -> int:
    """Run the daemon; the exit status of `edge-agent run`."""
    try:
        stop = Agent(settings, reread).run()
    except Restart:
        log.info("restarting")
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - ourselves, as we were started
    if stop.asked:
        log.info("stopped: %s", stop.reason)
        return 0
    if isinstance(stop.error, AgentError):
        raise stop.error
    log.error("stopped: %s", stop.reason, exc_info=stop.error)
    return 1
