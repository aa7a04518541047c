"""Publishes the device's description and the serving models, on retained topics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..config.device_profile import unlisted
from ..config.settings import parse_route
from ..core.callbacks import Callbacks
from ..core.errors import ModelError
from ..delivery.protocol import OUTCOMES
from ..inference.engines.registry import engine_words, installed
from ..inference.prepared.fallback import is_streaming
from ..models.packages.blocks import MAX_BLOCK
from ..mqtt import payloads
from ..mqtt.paho_client import largest_packet
from ..runtime.pipelines.commands import states
from ..runtime.pipelines.device_mode import DEVICE
from .doubts import Doubts

if TYPE_CHECKING:
    from ..delivery.rollout.ledger import Ledger
    from ..inference.model import Model
    from ..models.store.catalog import Catalog
    from ..mqtt.client import Client
    from ..mqtt.topics import Topics
    from ..runtime.pipelines.runner import Runner
    from ..serving.active import Serving
    from .inventory import Inventory

log = logging.getLogger(__name__)

_FACTS = ("arch", "cpu", "cpus", "memory_mb", "board", "os", "kernel", "npu")


class PushStatus:
    """Publishes the progress of a transfer or deployment on its own topic."""

    def __init__(self, client: Client, topics: Topics, device: str) -> None:
        self._client = client
        self._topics = topics
        self._device = device
        self.on_state: Callable[[str, Mapping[str, Any]], object] = lambda _transfer, _says: None
        """Called with each state of a transfer."""

    def publish(self, transfer: str, payload: Mapping[str, Any]) -> bool:
        """Publish the state of a transfer; False without a connection.

        An outcome then waits for the next connection: its sender waits for it.
        """
        self.on_state(transfer, payload)
        body = {
            "schema": payloads.SCHEMA,
            "device": self._device,
            "transfer": transfer,
            **payload,
            "time": payloads.iso(time.time_ns()),
        }
        topic, encoded = self._topics.push(transfer), payloads.encode(body)
        if self._client.publish(topic, encoded, qos=1):
            return True
        if payload["state"] in OUTCOMES:
            self._client.publish_reply(topic, encoded)
        return False


class Announcements:
    """Publishes changes, and clears the topics of removed models and pipelines."""

    def __init__(
        self,
        runner: Runner,
        inventory: Inventory,
        ledger: Ledger,
        prepared: Callable[[str], str | None],
    ) -> None:
        self._runner = runner
        self._match = inventory.match
        self._facts = inventory.facts
        self._store = inventory.store
        self._catalog = inventory.catalog
        self._ledger = ledger
        self._prepared = prepared
        self._retained = runner.client.retained
        self._model_topics: list[str] | None = None
        """Topics of the present models; None: not known before they are loaded."""
        self._retained.register(runner.topics.model(""), lambda: self._model_topics)
        self._retained.register(
            runner.topics.pipeline(""),
            lambda: [runner.topics.pipeline(name) for name in (*list(runner.pipelines), DEVICE)],
        )
        self.on_pipelines = Callbacks()
        """Called after the pipelines' settable properties were published."""
        self._publishing = threading.RLock()
        self._streaming: set[str] = set()
        """Models whose streaming mode has been logged."""
        self._unlisted: dict[str, str] = {}
        """By reference: why a model serves on an engine that is not in the profile."""
        self._broken: dict[str, str] = {}
        """By name of each model that no pipeline runs, and whose live version is broken: how."""
        self.doubts = Doubts(runner)

    # The device

    def info(self) -> None:
        """Publish the description of this device, if it has changed."""
        with self._publishing:
            self._retained.publish(self._runner.topics.info, self._info(), timestamp=True)

    @cached_property
    def _engines(self) -> dict[str, str]:
        return installed()

    def _info(self) -> dict[str, Any]:
        runner, topics = self._runner, self._model_topics
        has = {} if topics is None else {"has": [each.rpartition("/")[2] for each in topics]}
        return {
            "schema": payloads.SCHEMA,
            "agent": __version__,
            "device": runner.settings.device_id,
            "session": runner.identity.session,
            "facts": {
                **{key: getattr(self._facts, key) for key in _FACTS},
                "gpus": sorted(self._facts.gpus),
            },
            "groups": list(runner.settings.groups),
            "allow_unsigned": runner.settings.trust.allow_unsigned,
            "profile": {"name": self._match.name, "why": self._match.reason},
            "engines": self._engines,
            "pipelines": [
                {
                    "name": pipeline.name,
                    "source": pipeline.spec.redacted,
                    "model": pipeline.settings.model,
                    "qos": pipeline.settings.qos,
                }
                for pipeline in runner.pipelines.values()
            ],
            "models": [
                {
                    "name": serving.reference,
                    "serves": serving.model.id if serving.model else None,
                    "engine": serving.model.engine.label if serving.model else None,
                    "passed_over": list(serving.passed),
                    "problem": serving.problem,
                }
                for serving in runner.active.all()
            ],
            **has,
            "subscriptions": sorted(
                {p.spec.topic for p in runner.pipelines.values() if p.spec.topic is not None}
            ),
            "limits": {
                "max_block_bytes": MAX_BLOCK,
                "max_message_bytes": largest_packet(),
            },
        }

    # Pipelines

    def pipelines(self) -> None:
        """Publish the settable properties of each pipeline if they have changed."""
        with self._publishing:
            for pipeline in list(self._runner.pipelines.values()):
                if self._runner.stopping():
                    return
                held = states(pipeline)
                enabled = "ON" if held["enabled"] else "OFF"
                payload = {"schema": payloads.SCHEMA, **held, "enabled": enabled}
                self._retained.publish(self._runner.topics.pipeline(pipeline.name), payload)
            if self._model_topics is not None:
                self.doubts.log()  # of settings that have just changed
            runner = self._runner
            if runner.common.mode.is_used(runner.settings):
                mode = {"schema": payloads.SCHEMA, "mode": runner.common.mode.current}
                self._retained.publish(runner.topics.pipeline(DEVICE), mode)
            self.on_pipelines()

    # Models

    def models(self) -> None:
        """Publish the live models, and clear the topics of removed ones."""
        runner = self._runner
        with self._publishing:
            if runner.stopping():
                return
            for serving in runner.active.all():
                self._check_engine(serving)
            names = {serving.arm.name for serving in runner.active.all()}
            names |= {*self._store.names(), *self._ledger.names()}
            catalog = self._catalog.now()
            names |= {name for name in self._asked() if catalog.versions(name)}
            now = []
            self._broken.clear()
            for name in sorted(names):
                if runner.stopping():
                    return
                now.append(runner.topics.model(name))
                self._retained.publish(now[-1], self._model_state(name, catalog))
            self._model_topics = now
            self._retained.clear_gone()
            self.info()
            self.pipelines()

    def _asked(self) -> set[str]:
        """Return the names of the models that are asked, of which no pipeline runs most."""
        settings = self._runner.settings
        asks = [ask.model for pipeline in settings.pipelines for ask in pipeline.ask]
        routes = [*settings.infer.models, *(model for model in asks if model is not None)]
        return {arm.name for route in routes for arm in parse_route(route)}

    def _model_state(self, name: str, catalog: Catalog) -> dict[str, Any]:
        runner = self._runner
        state: dict[str, Any] = {
            "schema": payloads.SCHEMA,
            "name": name,
            "live": None,
            "previous": self._store.pointers(name).previous,
            "versions": [entry.version for entry in catalog.versions(name)],
        }
        servings = runner.active.all()
        serving = next((s for s in servings if s.reference == name and s.model), None)
        if serving is not None and serving.model is not None:
            state["live"] = serving.model.manifest.version
            state["engine"] = serving.model.engine.label
            if is_streaming(serving.model):
                state["streaming"] = True
                self._log_streaming(serving.model)
            if serving.passed:
                state["passed_over"] = list(serving.passed)
            steps = runner.cold_start(serving.model)
            if steps is not None:
                state["cold_start"] = steps
        else:
            try:
                folder = catalog.live(name)
                state["live"] = folder.manifest.version
                broken = catalog.stands_in(folder)
                if broken is not None:
                    self._broken[name] = state["error"] = broken
            except ModelError:
                state["live"] = None
        prepared = self._prepared(name)
        if prepared is not None:
            state["prepared"] = prepared
        own = [s for s in servings if s.arm.name == name]
        problems = [s.problem or s.stands_in for s in own if s.problem or s.stands_in]
        if problems:
            state["error"] = problems[0]
        return state | self._ledger.describe(name)

    def _check_engine(self, serving: Serving) -> None:
        """Record, and log once, that a model does not run on any engine of the profile."""
        model, reference = serving.model, serving.reference
        why = None
        if model is not None:
            wanted = self._runner.settings.engine
            why = unlisted(self._match.profile, model.choice.engine, wanted)
        before = self._unlisted.pop(reference, None)
        passed = [words for words in serving.passed if words != before or words == why]
        serving.passed = passed if why is None or why in passed else [*passed, why]
        if model is None or why is None:
            return
        self._unlisted[reference] = why
        if before != why:
            name = engine_words(model.engine.label)
            log.warning("model %s: on %s, because %s", reference, name, why)

    def problems(self) -> list[str]:
        """Return a line for each model that is broken, though no pipeline runs it.

        And one for each filter, rule or second stage of a pipeline that its models cannot serve.
        """
        broken = [f"model {words}" for _, words in sorted(self._broken.items())]
        return broken + self.doubts.problems()

    def _log_streaming(self, model: Model) -> None:
        """Log once why a model is slow."""
        if model.id not in self._streaming:
            self._streaming.add(model.id)
            words = (
                "model %s runs in streaming mode, slowly: it is larger than memory_budget_mb = %d"
            )
            log.info(words, model.id, self._match.profile.memory_budget_mb)
