"""What the device says of itself and of its models, on retained topics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..config.device_profile import Match, unlisted
from ..config.lint import doubts
from ..core.errors import ModelError
from ..device.hardware import Facts
from ..inference.prepared.fallback import is_streaming
from ..mqtt import payloads
from ..mqtt.retained import Announced

if TYPE_CHECKING:
    from ..delivery.receive.router import Transfers
    from ..delivery.rollout.deployer import Deployer
    from ..inference.model import Model
    from ..models.store.catalog import Library
    from ..models.store.store import Store
    from ..runtime.pipelines.runner import Frames
    from ..runtime.serving.active import Serving

log = logging.getLogger(__name__)

MAX_BLOCK_BYTES = 64 * 1024


class Says:
    """Says what has changed, and clears the topics of what is gone."""

    def __init__(
        self,
        frames: Frames,
        match: Match,
        facts: Facts,
        store: Store,
        library: Library,
    ) -> None:
        self._frames = frames
        self._match = match
        self._facts = facts
        self._store = store
        self._library = library
        self._announced = Announced(frames.settings.state / "announced.json")
        self._said: dict[str, bytes] = {}
        """What was last said on each retained topic of a model."""
        self._streaming: set[str] = set()
        """Models of which it has been said that they are in streaming mode."""
        self._unlisted: dict[str, str] = {}
        """By reference: what serves on an engine that the profile does not list, and the words."""
        self._doubted: set[str] = set()
        """What has been said of pipelines that ask for what cannot come about."""
        self._said_info: dict[str, Any] = {}
        self._saying = threading.RLock()
        self.deployer: Deployer
        self.transfers: Transfers
        self.prepared: Callable[[str], str | None] = lambda _name: None
        """How far the prepared form of a model's live version is."""

    # The device

    def info(self) -> None:
        """Say what this device is, if that has changed."""
        with self._saying:
            info = self._info()
            if info != self._said_info:
                self._said_info = info
                now = {**info, "time": payloads.iso(time.time_ns())}
                topic = self._frames.topics.info
                self._frames.client.publish(topic, payloads.encode(now), qos=1, retain=True)

    @cached_property
    def _engines(self) -> dict[str, str]:
        return {name: version(name) for name in ("openvino", "onnxruntime")}

    def _info(self) -> dict[str, Any]:
        frames = self._frames
        return {
            "schema": payloads.SCHEMA,
            "agent": __version__,
            "device": frames.settings.device_id,
            "session": frames.session,
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
            "groups": list(frames.settings.groups),
            "profile": {"name": self._match.name, "why": self._match.reason},
            "engines": self._engines,
            "pipelines": [
                {
                    "name": pipeline.name,
                    "source": pipeline.spec.redacted,
                    "model": pipeline.settings.model,
                    "qos": pipeline.settings.qos,
                }
                for pipeline in frames.pipelines.values()
            ],
            "models": [
                {
                    "name": serving.reference,
                    "serves": serving.model.id if serving.model else None,
                    "engine": serving.model.engine.label if serving.model else None,
                    "passed_over": list(serving.passed),
                    "problem": serving.problem,
                }
                for serving in frames.active.all()
            ],
            "limits": {"max_block_bytes": MAX_BLOCK_BYTES},
        }

    # Models

    def models(self) -> None:
        """Say what is live, and clear the topics of models that are gone."""
        frames = self._frames
        with self._saying:
            for serving in frames.active.all():
                self._see_engine(serving)
            self._see_doubts()
            names = {serving.arm.name for serving in frames.active.all()}
            names |= {*self._store.names(), *self.transfers.progress(), *self.deployer.names()}
            library = self._library.now()
            now = {
                frames.topics.model(name): payloads.encode(self._model_state(name, library))
                for name in sorted(names)
            }
            for topic, payload in now.items():
                if self._said.get(topic) != payload:
                    frames.client.publish(topic, payload, qos=1, retain=True)
            self._said = now
            self.clear_gone()
            self.info()

    def clear_gone(self) -> None:
        """Clear the retained topics of pipelines and models that are no more."""
        frames = self._frames
        with self._saying:
            sources = {frames.topics.source(name) for name in list(frames.pipelines)}
            for topic in self._announced.keep(sources | self._said.keys()):
                frames.client.publish(topic, b"", qos=1, retain=True)

    def _model_state(self, name: str, library: Library) -> dict[str, Any]:
        frames = self._frames
        state: dict[str, Any] = {
            "schema": payloads.SCHEMA,
            "name": name,
            "live": None,
            "previous": self._store.pointers(name).previous,
            "versions": [entry.version for entry in library.versions(name)],
        }
        serving = next((s for s in frames.active.all() if s.reference == name and s.model), None)
        if serving is not None and serving.model is not None:
            state["live"] = serving.model.manifest.version
            state["engine"] = serving.model.engine.label
            if is_streaming(serving.model):
                state["streaming"] = True
                self._say_streaming(serving.model)
            if serving.passed:
                state["passed_over"] = list(serving.passed)
            steps = frames.cold_start(serving.model)
            if steps is not None:
                state["cold_start"] = steps
        else:
            try:
                state["live"] = library.live(name).manifest.version
            except ModelError:
                state["live"] = None
        prepared = self.prepared(name)
        if prepared is not None:
            state["prepared"] = prepared
        problem = next(
            (s.problem for s in frames.active.all() if s.arm.name == name and s.problem), None
        )
        if problem is not None:
            state["error"] = problem
        receiving = self.transfers.progress().get(name)
        if receiving is not None:
            candidate, percent = receiving
            state["candidate"] = {"version": candidate, "phase": "receiving", "percent": percent}
        state |= self.deployer.state(name)
        return state

    def _see_engine(self, serving: Serving) -> None:
        """Note, and say in the log once, that a model runs on no engine of the profile."""
        model, reference = serving.model, serving.reference
        why = None
        if model is not None:
            wanted = self._frames.settings.engine
            why = unlisted(self._match.profile, model.choice.engine, wanted)
        before = self._unlisted.get(reference)
        if before is not None and before != why:
            del self._unlisted[reference]
            serving.passed = [words for words in serving.passed if words != before]
        if model is None or why is None:
            return
        if why not in serving.passed:
            serving.passed = [*serving.passed, why]
        if before != why:
            self._unlisted[reference] = why
            log.warning("model %s: on %s, because %s", reference, model.engine.label, why)

    def _see_doubts(self) -> None:
        """Say in the log, once, what pipelines ask for that cannot come about."""
        now = set()
        for pipeline in list(self._frames.pipelines.values()):
            firsts = [serving.model for serving in pipeline.servings]
            seconds = [serving.model for _, serving in pipeline.seconds]
            for line in doubts(
                pipeline.settings,
                [None if model is None else model.folder for model in firsts],
                [None if model is None else model.folder for model in seconds],
            ):
                now.add(f"pipeline {pipeline.name}: {line}")
        for line in sorted(now - self._doubted):
            log.warning("%s", line)
        self._doubted = now

    def _say_streaming(self, model: Model) -> None:
        """Say in the log, once, why a model is slow."""
        if model.id not in self._streaming:
            self._streaming.add(model.id)
            budget = self._match.profile.memory_budget_mb
            log.info(
                "model %s runs in streaming mode, slowly: it is larger than memory_budget_mb = %d",
                model.id,
                budget,
            )

    def push(self, transfer: str, payload: Mapping[str, Any]) -> bool:
        """Say how far a transfer is; False without a connection."""
        frames = self._frames
        says = {
            "schema": payloads.SCHEMA,
            "device": frames.settings.device_id,
            "transfer": transfer,
            **payload,
            "time": payloads.iso(time.time_ns()),
        }
        return frames.client.publish(frames.topics.push(transfer), payloads.encode(says), qos=1)
