"""All that is not the way of a frame: orders, pushes, health, and what the device says.

Meets the frames at frame boundaries only. Comes to life after the first result.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..config.overrides import read_change
from ..config.settings import Settings
from ..core.errors import ModelError, UsageError
from ..core.flight_recorder import recorder
from ..core.threads import Stop, Stops
from ..delivery.local_requests import Added
from ..delivery.receive.router import Receiver, Transfers
from ..delivery.rollout.candidate import Candidate
from ..delivery.rollout.deployer import Deployer
from ..device.resources import give_back_large_blocks
from ..health.report import Health
from ..inference.prepared.build import collect
from ..models.packages.keys import TrustedKeys
from ..models.store.housekeeping import clean_leftovers
from ..mqtt import payloads
from ..mqtt.requests import Memory, Orders, text
from ..runtime.pipelines.pipeline import Pipeline
from ..runtime.pipelines.runner import Frames
from ..runtime.serving.active import unusable
from ..runtime.serving.crash_ledger import GOOD_SECONDS, CrashLedger
from ..runtime.serving.loader import ModelLoader, library_of, match_profile, open_store
from ..runtime.upkeep.order import Upkeep
from ..sources.frame_pool import CANVASES
from .announcements import Says
from .fast_start.plan_writer import Planner
from .reload import Reloading

if TYPE_CHECKING:
    from ..core.flight_recorder import LastWords
    from ..health.prometheus import Exposed
    from ..runtime.serving.planned_model import PlannedModel

log = logging.getLogger(__name__)


class Opened:
    """What is known of the device and its models, read from disk."""

    def __init__(self, settings: Settings) -> None:
        """Look at everything.

        Raises:
            UsageError: something the settings name is not as it should be.

        """
        self.match, self.facts = match_profile(settings)
        self.store = open_store(settings)
        self.catalog = library_of(settings, self.store)
        self.crashes = CrashLedger(settings.state)
        self.loader = ModelLoader(
            self.match.profile,
            self.facts,
            settings.engine,
            self.store,
            batching=settings.batching,
            crashes=self.crashes,
        )

    def look_back(self, last: LastWords | None) -> None:
        """Hold against models what they did to the last run; before any is loaded."""
        if last is not None:
            self.crashes.add(last)


class Control:
    """Orders, pushes and health; settings that are read again are `reloading`'s."""

    def __init__(
        self,
        frames: Frames,
        opened: Opened,
        stops: Stops,
        reread: Callable[[], Settings],
        origins: tuple[str | None, str],
    ) -> None:
        """Prepare.

        Args:
            frames: what this has a say over.
            opened: device and models.
            stops: where reasons to stop are left.
            reread: reads the settings again from where they came from.
            origins: the settings file and the digest of what the settings were made from.

        """
        self._frames = frames
        self._opened = opened
        self._stops = stops
        self._restarting = False
        self._exposed: Exposed | None = None
        self._idle_s = opened.match.profile.unload_idle_s
        frames.lazy(wanted=self._idle_s > 0)
        give_back_large_blocks()
        self._planner = Planner(
            frames,
            opened.store,
            opened.catalog,
            opened.loader.lanes,
            lazy=self._idle_s > 0,
            origins=origins,
            quick=self._planned,
        )
        store, library, active = opened.store, opened.catalog, frames.active
        self.says = Says(frames, opened.match, opened.facts, store, library)
        self.health = Health(
            frames.board,
            frames.client,
            lambda: list(frames.pipelines.values()),
            active.all,
            frames.settings.state,
        )
        self.health.credible = frames.wall.credible
        self._deployer = Deployer(
            store,
            library,
            active,
            trial=lambda: frames.settings.trial,
            swap=opened.match.profile.swap,
            memory_budget_mb=opened.match.profile.memory_budget_mb,
            say_push=self.says.push,
            on_change=self._changed,
        )
        self._upkeep = Upkeep(
            active,
            opened.loader,
            frames.board,
            store,
            quota=lambda: frames.settings.quota_mb * 2**20,
            watched=self._deployer.watches,
            present=frames.present,
            forget=CANVASES.forget,
            prepared=self._prepared,
            plan=self._planner,
        )
        self.health.others = [recorder.why, opened.crashes.why, self._upkeep.problems]
        self._transfers = Transfers(
            store,
            library,
            Receiver(
                device=frames.settings.device_id,
                profile=opened.match.name,
                groups=lambda: frames.settings.groups,
                trusted=lambda: TrustedKeys([Path(key) for key in frames.settings.trust.keys]),
                allow_unsigned=lambda: frames.settings.trust.allow_unsigned,
                quota_bytes=lambda: frames.settings.quota_mb * 2**20,
                pinned=active.pins,
            ),
            self.says.push,
            self._deployer.submit,
            self._deployer.standing,
            self._changed,
            expect=self._deployer.expect,
        )
        self.says.deployer, self.says.transfers = self._deployer, self._transfers
        self.says.prepared = self._upkeep.prepared
        self._added = Added(store)
        self._orders = self._make_orders()
        self._reloading = Reloading(
            frames,
            self._planner,
            self.says,
            reread,
            file=origins[0],
            lazy=self._idle_s > 0,
            exposed=self._expose,
            changed=self._reloaded,
        )

    def _make_orders(self) -> Orders:
        frames = self._frames
        orders = Orders(
            frames.inbox,
            frames.client,
            frames.topics,
            lambda: frames.settings.groups,
            Memory(frames.settings.state / "requests.json"),
            self._count_malformed,
            credible=frames.wall.credible,
        )
        orders.verbs.update(
            ping=lambda _body: {"time": payloads.iso(time.time_ns()), "session": frames.session},
            set=self._set,
            snapshot=self._snapshot,
            restart=self._restart,
            rollback=self._deployer.commands.rollback,
            activate=self._deployer.commands.activate,
            delete=self._deployer.commands.delete,
        )
        orders.deliveries = lambda place, message: self._transfers.message(place.levels, message)
        orders.idle = self._idle
        return orders

    # Life

    def recover(self) -> None:
        """See what was under way when the agent ended; before any model is loaded."""
        self._deployer.recover()

    def start(self) -> None:
        """Start the threads."""
        self._frames.active.on_change(self._changed)
        self._frames.inbox.on_drop = self._count_malformed
        if self._frames.settings.health.metrics_port:
            self._expose().answer_on(self._frames.settings.health.metrics_port)
        self.says.info()
        self._frames.crew.spawn("deploy", self._load_and_deploy)
        self._frames.crew.spawn("orders", self._take_orders)
        for name, run in self._upkeep.threads():
            self._frames.crew.spawn(name, run)

    def reload(self) -> None:
        """Take over changed settings without touching pipelines that have not changed."""
        self._reloading.run()

    def _expose(self) -> Exposed:
        """Give the port for metrics, which most devices do not have."""
        if self._exposed is None:
            from ..health.prometheus import Exposed

            device = self._frames.settings.device_id
            self._exposed = Exposed(device, __version__, lambda: self.health.latest)
            self.health.others.append(self._exposed.why)
        return self._exposed

    def suspend(self) -> None:
        """Let no probation end while the agent does."""
        self._deployer.suspend()

    def close(self) -> None:
        """Have the threads end."""
        if self._exposed is not None:
            self._exposed.close()
        self._upkeep.close()
        self._planner.close()
        self._deployer.close()
        self._frames.inbox.put(None)

    def close_transfers(self) -> None:
        """Write down how far transfers are; after the threads have ended."""
        self._transfers.close()

    @property
    def restarting(self) -> bool:
        """Whether the agent shall be started anew in the same place."""
        return self._restarting

    def _load_and_deploy(self) -> None:
        """Load what serves, then take care of what comes."""
        self._added.clear()
        self._load()
        # What is here now is here to stay. A collection that goes through all of it holds every
        # lane for 20 ms (measured), and each swap asks for one.
        gc.freeze()
        try:
            for line in clean_leftovers(self._opened.store, derived=collect):
                log.info("%s", line)
        except ModelError as problem:
            self.health.notes.append(str(problem))
            log.error("%s", problem)  # noqa: TRY400 - one line, no traceback
        self._deployer.run()

    def _load(self) -> None:
        active = self._frames.active
        active.load_all()
        self._see_thresholds()
        self._changed()
        problem = unusable(active.all())
        if problem is not None:
            # Nothing of this can run, and all of it came with the settings, not over the air.
            self._stops.put(Stop(str(problem), UsageError(str(problem))))

    def _reloaded(self) -> None:
        self._see_thresholds()
        self._changed()

    def _see_thresholds(self) -> None:
        """Say which thresholds can find nothing; what `set` has kept of that kind does not count.

        Only now, when there are models, is it known what they find.
        """
        given = {pipeline.name: pipeline.threshold for pipeline in self._frames.settings.pipelines}
        for pipeline in list(self._frames.pipelines.values()):
            why = pipeline.unfit()
            if why is not None and self._frames.overrides.pass_over_threshold(pipeline.name, why):
                pipeline.threshold = given.get(pipeline.name)
                why = pipeline.unfit()
            if why is not None:
                log.warning("pipeline %s: %s", pipeline.name, why)

    def _take_orders(self) -> None:
        # First, so that blocks which the broker has kept for us find their transfer.
        self._transfers.resume()
        self._orders.run()

    def _idle(self) -> None:
        """Do what is due on the receiving side, in the thread of the orders."""
        self._transfers.tick(time.monotonic())
        for name, version, request in self._added.requests():
            self._deployer.submit(
                Candidate(
                    name,
                    version,
                    None,
                    partial(self._opened.catalog.find, name, version),
                    told=partial(self._added.answer, request),
                )
            )

    def _changed(self) -> None:
        """See to what depends on which model serves."""
        self.says.models()
        self._planner.changed()
        self._upkeep.wake()

    def _planned(self) -> list[PlannedModel]:
        return self._upkeep.planned()

    def _prepared(self) -> None:
        """Have the next start use a form that is ready, then say so."""
        self._planner.keep()
        self.says.models()

    def tidy(self) -> None:
        """Do what is due now and then: called every second or so."""
        if self._frames.clock.age > GOOD_SECONDS:
            self._opened.crashes.forgive()

    def say_health(self) -> None:
        """Publish how the device is."""
        self._frames.client.publish(
            self._frames.topics.health, payloads.encode(self.health.payload())
        )

    def _count_malformed(self) -> None:
        self.health.malformed += 1

    # What others ask for

    def _pipeline_of(self, body: Mapping[str, Any]) -> Pipeline:
        name = text(body, "pipeline")
        pipelines = self._frames.pipelines
        if name not in pipelines:
            raise ModelError(
                f"pipeline: there is no {name!r}; there are {', '.join(pipelines) or 'none'}"
            )
        return pipelines[name]

    def _set(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        pipeline = self._pipeline_of(body)
        models = [serving.model for serving in pipeline.servings]
        change = read_change(body, [m.manifest.task for m in models if m is not None])
        if change.threshold is not None:
            pipeline.threshold = change.threshold
        if change.rate is not None:
            pipeline.change_rate(change.rate)
        self._frames.overrides.note(pipeline.name, change)
        if change.persist:
            self._frames.overrides.keep(pipeline.name, threshold=change.threshold, rate=change.rate)
        return {"pipeline": pipeline.name, "threshold": pipeline.threshold, "rate": pipeline.rate}

    def _snapshot(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        pipeline = self._pipeline_of(body)
        if pipeline.spec.kind != "picture":
            raise ModelError(f"pipeline: {pipeline.name} reads a signal, there is no picture of it")
        if pipeline.state == "ended":
            raise ModelError(f"pipeline: the source of {pipeline.name} has ended, no picture comes")
        if pipeline.state == "lost":
            raise ModelError(
                f"pipeline: the source of {pipeline.name} is lost: {pipeline.error}; "
                "ask again when it runs"
            )
        problems = [serving.problem for serving in pipeline.servings if serving.model is None]
        if problems and len(problems) == len(pipeline.servings) and all(problems):
            raise ModelError(f"pipeline: {pipeline.name} has no model: {problems[0]}")
        pipeline.snapshot_wanted = True
        return {"topic": self._frames.topics.snapshot(pipeline.name)}

    def _restart(self, _body: Mapping[str, Any]) -> Mapping[str, Any]:
        def stop() -> None:
            self._restarting = True
            self._stops.put(Stop("restart was asked for", asked=True))

        # After the reply is on its way.
        self._stops.call(stop)
        return {"session": self._frames.session}
