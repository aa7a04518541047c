"""Publishes discovery if it is enabled, and clears removed entities."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..core.names import READINGS
from ..core.state_file import StateFile
from ..device.thermal import Thermometer
from ..models.decoders import SCORED
from ..mqtt.topics import object_id
from ..runtime.pipelines.device_mode import modes_of
from ..runtime.pipelines.pipeline import Pipeline
from ..runtime.pipelines.runner import Runner
from .discovery import PipelineView, payload, values_key

if TYPE_CHECKING:
    from ..config.settings import Pipeline as PipelineSettings
    from ..inference.model import Model


class Announcer:
    """Publishes the discovery payload of this device. Any thread may call it."""

    def __init__(self, runner: Runner, model: str, state: Path) -> None:
        self._runner = runner
        self._model = model
        self._file = StateFile(state / "homeassistant.json", "earlier entities")
        self._known: dict[str, str] | None = None
        """Platforms of the published entities by key; None: not read yet."""
        # At once: what nobody owns is cleared at the start, and Home Assistant takes a device whose
        # discovery is cleared for removed, and clears what is published right after that.
        runner.client.retained.register(f"{runner.settings.homeassistant.prefix}/", self._topics)

    def publish(self) -> None:
        """Publish the present entities if discovery is enabled and they have changed."""
        wanted = self._runner.settings.homeassistant
        if not wanted.enabled:
            return
        servings = [s for each in list(self._runner.pipelines.values()) for s in each.servings]
        if any(serving.model is None and serving.problem is None for serving in servings):
            # Entities depend on the models. Until then Home Assistant keeps the earlier ones.
            return
        made = self._payload()
        components = made["components"]
        now = {key: each["platform"] for key, each in components.items()}
        if self._known is None:
            self._known = self._file.read(dict) or {}
        # A merely omitted entity would stay: it must be listed without content, and always,
        # because it is unknown when Home Assistant reads it. But what a sensor has said before
        # may come again: removed, it would come back without the user's name, area and cards.
        pipelines = [each.settings for each in list(self._runner.pipelines.values())]
        stay = tuple(values_key(each.name) for each in pipelines if each.has_no_model)
        for key, platform in self._known.items():
            if not key.startswith(stay):
                components.setdefault(key, {"platform": platform})
        self._runner.client.retained.publish(self._topic(wanted.prefix), made)
        if not now.items() <= self._known.items():
            self._known |= now
            self._file.save(self._known)

    def _topics(self) -> list[str]:
        wanted = self._runner.settings.homeassistant
        return [self._topic(wanted.prefix)] if wanted.enabled else []

    def _topic(self, prefix: str) -> str:
        return f"{prefix}/device/{object_id(self._runner.topics)}/config"

    def _payload(self) -> dict[str, Any]:
        runner = self._runner
        pipelines = list(runner.pipelines.values())
        return payload(
            runner.topics,
            __version__,
            {"manufacturer": "edge-agent", "model": self._model},
            [_view(pipeline) for pipeline in pipelines],
            sorted({serving.arm.name for serving in runner.active.all()}),
            temperature=Thermometer().read().celsius is not None,
            rules=runner.settings.rules,
            modes=modes_of(runner.settings),
        )


def _view(pipeline: Pipeline) -> PipelineView:
    models = [serving.model for serving in pipeline.servings if serving.model is not None]
    labels = models[0].folder.finds if models else ()
    return PipelineView(
        pipeline.settings,
        tuple(labels),
        pipeline.spec.kind == "picture",
        all(model.manifest.task in SCORED for model in models),
        models[0].manifest.task if models else "",
        _values(models[0], pipeline.settings) if models else (),
    )


def _values(model: Model, settings: PipelineSettings) -> tuple[str, ...]:
    """Return the names of a regression's numbers in results."""
    if model.id == READINGS:
        # Named ones do not wait for the first reading, whose result would come before the entity.
        named = (*settings.units, *(r.value or "" for r in settings.rules if r.when == "value"))
        return tuple(dict.fromkeys((*model.folder.labels, *named)))
    if model.manifest.task != "regression":
        return ()
    names: list[str] = []
    for output in model.engine.outputs:
        count = prod(size or 1 for size in output.shape)
        names += [output.name] if count == 1 else [f"{output.name}[{n}]" for n in range(count)]
    return tuple(model.folder.labels) or tuple(names)
