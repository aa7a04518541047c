"""The composition root of everything apart from the frames: builds each part from others.

Parts are built from the bottom up, each with all it needs in its constructor. A new background
service is one more entry of `Services` in `compose`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from .. import __version__
from ..answers.answers import Answers
from ..answers.http_listener import HttpListener
from ..answers.mqtt_door import MqttDoor
from ..answers.own_questions import generate
from ..config.settings import Settings
from ..core.callbacks import Callbacks
from ..core.flight_recorder import recorder
from ..core.threads import ShutdownQueue
from ..delivery.local_requests import LocalRequests
from ..delivery.receive.admission import DeviceIdentity
from ..delivery.receive.followed import Presence
from ..delivery.receive.rollouts import Rollouts
from ..delivery.receive.router import Router
from ..delivery.receive.transfer import Drawing
from ..delivery.rollout.deployer import Deployer
from ..delivery.rollout.ledger import Ledger
from ..health.prometheus import MetricsPort
from ..health.report import Health
from ..homeassistant.announcer import Announcer
from ..models.packages.keys import TrustedKeys
from ..mqtt.command_memory import CommandMemory
from ..mqtt.connection import ReceivedMessage
from ..mqtt.requests import Command, Requests
from ..mqtt.subscriptions import Handler
from ..mqtt.tls import Renewal
from ..runtime.pipelines.commands import PipelineCommands
from ..runtime.pipelines.runner import Runner
from ..serving.tasks import Upkeep
from ..sources.frame_pool import FRAME_POOL
from .announcements import Announcements, PushStatus
from .commands import AgentCommands
from .configure import Configuration
from .control import Control, Services
from .deployment import Deployment, Probations
from .event_commands import EventCommands
from .event_service import EventService
from .fast_start.plan_writer import PlanWriter
from .inventory import Inventory
from .reload import SettingsReload
from .request_loop import RequestLoop


def compose(
    runner: Runner,
    inventory: Inventory,
    stops: ShutdownQueue,
    reread: Callable[[], Settings],
    origins: tuple[str | None, str],
    events: EventService,
) -> Control:
    """Build everything that runs apart from the frames; nothing is started."""
    lazy = inventory.match.profile.unload_idle_s > 0
    runner.lazy(wanted=lazy)
    local = LocalRequests(inventory.store)
    ledger, deployer, transfers, rollouts = _versions(runner, inventory, lambda: health.latest)
    form_ready = Callbacks()
    plan_writer, upkeep = _upkeep(runner, inventory, ledger, form_ready, origins, lazy=lazy)
    announcements = _announcements(runner, inventory, ledger, upkeep, stops)
    answers = Answers(runner, inventory.catalog, deployer.failed)
    events.ask_by(partial(generate, answers))
    ports = _ports(runner, answers, lambda: health.latest)
    reload = SettingsReload(
        *(runner, plan_writer, announcements, *ports, reread),
        file=origins[0],
        lazy=lazy,
        gone=events.forget,
        answers=answers,
    )
    configuration = Configuration(runner, stops, reload, plan_writer.changed)
    rollouts.configure = configuration.keep
    announcements.on_pipelines.add(configuration.publish)
    requests = _requests(
        *(runner, announcements, _deliveries(runner, transfers, answers)),
        AgentCommands(runner, stops).commands,
        EventCommands(runner, events).commands,
        *(configuration.commands, deployer.commands.commands),
    )
    configuration.answer_interrupted(requests)
    deployer.commands.answer_interrupted(requests)
    loop = RequestLoop(
        *(runner.inbox, requests, transfers, local, deployer, inventory.catalog),
        rollouts=rollouts,
        configuration=configuration,
    )
    deployment = Deployment(runner, inventory.store, deployer, local, stops, origins[1])
    background = Services([*ports, events, deployment, Probations(deployer), loop, *upkeep.threads])
    health = _health(
        *(runner, inventory, requests), (background, reload, announcements), *(events, answers)
    )
    runner.active.on_change.add(announcements.models, plan_writer.changed, upkeep.wake)
    form_ready.add(plan_writer.write, announcements.models)
    return Control(
        runner,
        inventory,
        deployer=deployer,
        transfers=transfers,
        services=background,
        announcements=announcements,
        health=health,
        settings_reload=reload,
        configuration=configuration,
        answers=answers,
    )


def _versions(
    runner: Runner, inventory: Inventory, latest: Callable[[], Mapping[str, Any] | None]
) -> tuple[Ledger, Deployer, Router, Rollouts]:
    """Build the receiver of versions, and the deployer; *latest* returns the health."""
    store, catalog, active = inventory.store, inventory.catalog, runner.active
    push_status = PushStatus(runner.client, runner.topics, runner.settings.device_id)
    ledger = Ledger(store, catalog, push_status.publish, active.on_change)
    identity = _device_identity(runner, inventory)
    deployer = Deployer(
        *(store, catalog, active, ledger),
        trial=lambda: runner.settings.trial,
        check_trust=identity.check_trust,
        swap=inventory.match.profile.swap,
    )
    client, packages = runner.client, runner.topics.packages
    drawing = Drawing(packages, client.ask, client.leave, client.leave_node)
    transfers = Router(
        *(store, catalog, identity, ledger, drawing),
        submit=deployer.submit,
        expect=deployer.expect,
    )
    runner.subscriptions.register(packages, transfers.drawn, drawing.topics)
    topics = runner.topics
    rollouts = Rollouts(
        runner.settings.state / "rollouts.json",
        transfers,
        say=lambda word: client.retained.publish(topics.rollout, word, timestamp=True),
        stop=deployer.commands.stop,
        rollback=deployer.commands.undo,
        health=lambda: (latest() or {}).get("state"),
        presence=Presence(client.ask, client.subscribing.granted, client.leave),
    )
    rollouts.kept(runner.overrides.kept_rollout)
    push_status.on_state = rollouts.heard
    deployer.allowed = rollouts.allows
    transfers.on_push = rollouts.pushed
    active.on_change.add(rollouts.look)
    runner.subscriptions.register(topics.rollouts, rollouts.take)
    client.ask([f"{topics.rollouts}/#"])
    return ledger, deployer, transfers, rollouts


def _upkeep(
    runner: Runner,
    inventory: Inventory,
    ledger: Ledger,
    form_ready: Callbacks,
    origins: tuple[str | None, str],
    *,
    lazy: bool,
) -> tuple[PlanWriter, Upkeep]:
    """Build the upkeep of the serving models and of the next start."""
    loader, store = inventory.loader, inventory.store
    plan_writer = PlanWriter(
        *(runner, store, inventory.catalog, loader.engines.lanes),
        lazy=lazy,
        origins=origins,
        models=lambda: upkeep.planned(),  # noqa: PLW0108 - called by upkeep, which is made below
    )
    upkeep = Upkeep(
        *(runner.active, loader, runner.board, store),
        quota=lambda: runner.settings.quota_mb * 2**20,
        watched=ledger.has_complete,
        present=runner.in_memory,
        forget=FRAME_POOL.forget,
        prepared=form_ready,
        plan=plan_writer,
    )
    return plan_writer, upkeep


def _announcements(
    runner: Runner, inventory: Inventory, ledger: Ledger, upkeep: Upkeep, stops: ShutdownQueue
) -> Announcements:
    """Build the device's announcements."""
    announcements = Announcements(runner, inventory, ledger, upkeep.prepared)
    machine = inventory.facts.board or inventory.facts.cpu
    announcements.on_pipelines.add(Announcer(runner, machine, runner.settings.state).publish)
    # Not in the lane that learned it, because publishing may wait for a disk.
    runner.learned.thresholds.on_put.add(lambda: stops.call(announcements.pipelines))
    runner.common.on_values.add(lambda: stops.call(announcements.models))
    return announcements


def _requests(
    runner: Runner,
    announcements: Announcements,
    deliveries: Handler,
    *commands: tuple[Command[Any], ...],
) -> Requests:
    """Build the handler of requests over MQTT."""
    pipelines = PipelineCommands(runner, announcements.pipelines)
    return Requests(
        runner.inbox,
        runner.client,
        runner.topics,
        runner.subscriptions,
        CommandMemory(
            runner.settings.state / "commands.jsonl",
            credible=runner.identity.credible,
            may_be_behind=runner.identity.may_be_behind,
        ),
        commands=chain(*commands, pipelines.commands),
        deliveries=deliveries,
        set_bare=pipelines.set_bare,
    )


def _ports(
    runner: Runner, answers: Answers, latest: Callable[[], Mapping[str, Any] | None]
) -> tuple[MetricsPort, HttpListener]:
    """Build the Prometheus port, which shows the latest health, and the listener for questions."""
    port, device = runner.settings.health.metrics_port, runner.settings.device_id
    return (
        MetricsPort(port, device, __version__, latest),
        HttpListener(lambda: runner.settings.http, answers, device, latest),
    )


def _deliveries(runner: Runner, transfers: Router, answers: Answers) -> Handler:
    """Return a handler for messages below `in/` other than commands."""
    door = MqttDoor(answers, runner.client, runner.topics)

    def take(levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        if levels[:1] == ("infer",) and len(levels) > 1:
            return door.message(levels[1:], message)
        return transfers.message(levels, message)

    return take


def _health(
    runner: Runner,
    inventory: Inventory,
    requests: Requests,
    told: Sequence[Services | SettingsReload | Announcements],
    events: EventService,
    answers: Answers,
) -> Health:
    """Build the report on the device's health."""
    active = runner.active
    return Health(
        *(runner.board, runner.client),
        lambda: list(runner.pipelines.values()),
        active.all,
        runner.settings.state,
        malformed=lambda: requests.malformed + runner.inbox.dropped,
        credible=runner.identity.credible,
        problems=(
            recorder.problems,
            runner.threads.problems,
            inventory.verdicts.problems,
            runner.sinks.problems,
            answers.models.problems,
            Renewal(lambda: runner.settings.broker).problems,
            *(each.problems for each in told),
            lambda: inventory.other_variants(s.model.folder for s in active.all() if s.model),
        ),
        events=events.health,
        answers=answers.health,
    )


def _device_identity(runner: Runner, inventory: Inventory) -> DeviceIdentity:
    """Return the identity that packages are checked against, from the current settings."""
    return DeviceIdentity(
        device=runner.settings.device_id,
        profile=inventory.match.name,
        here=inventory.here,
        groups=lambda: runner.settings.groups,
        trusted=lambda: TrustedKeys([Path(key) for key in runner.settings.trust.keys]),
        allow_unsigned=lambda: runner.settings.trust.allow_unsigned,
        quota_bytes=lambda: runner.settings.quota_mb * 2**20,
        pinned=runner.active.pins,
        credible=runner.identity.credible,
        may_be_behind=runner.identity.may_be_behind,
    )
