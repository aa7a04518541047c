"""The commands about pipelines: set, snapshot. Section 3 of the interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from ...config.settable import SETTABLE, read_bare
from ...core.errors import RequestError
from ...core.frozen import record
from ...core.parameters import Flag, Text, parse
from ...models.manifest import threshold_trouble
from ...mqtt.requests import Command
from .pipeline import Pipeline
from .runner import Runner


@record
class Set:
    """Change a pipeline until the next start; with `persist`, for good."""

    pipeline: Text
    enabled: Annotated[bool, SETTABLE["enabled"]] | None = None
    threshold: Annotated[float, SETTABLE["threshold"]] | None = None
    rate: Annotated[float, SETTABLE["rate"]] | None = None
    labels: Annotated[tuple[str, ...], SETTABLE["labels"]] | None = None
    thresholds: Annotated[Mapping[str, float], SETTABLE["thresholds"]] | None = None
    min_box: Annotated[tuple[int, ...], SETTABLE["min_box"]] | None = None
    masks: Annotated[tuple[Any, ...], SETTABLE["masks"]] | None = None
    persist: Flag = False

    @property
    def changes(self) -> dict[str, Any]:
        """The keys that are given."""
        given = {key: getattr(self, key) for key in SETTABLE}
        return {key: value for key, value in given.items() if value is not None}


@record
class Snapshot:
    """Request a picture of a pipeline's next frame."""

    pipeline: Text


class PipelineCommands:
    """Carried out by the thread of requests."""

    def __init__(self, runner: Runner, changed: Callable[[], object]) -> None:
        """Carry out nothing yet.

        Args:
            runner: has the pipelines.
            changed: called when something was set.

        """
        self._runner = runner
        self._changed = changed
        self.commands: tuple[Command[Any], ...] = (
            Command("set", Set, self.set),
            Command("snapshot", Snapshot, self.snapshot, changes=False),
        )

    def set(self, request: Set) -> Mapping[str, Any]:
        """Change a pipeline while it runs; return what can be set, as it holds."""
        pipeline = find_pipeline(self._runner, request.pipeline)
        changes = request.changes
        if not changes:
            raise RequestError(f"nothing to set: give {', '.join(SETTABLE)}")
        for serving in pipeline.servings:
            if serving.model is None:
                continue
            for key, threshold in _thresholds(request):
                trouble = threshold_trouble(serving.model.manifest.task, threshold)
                if trouble is not None:
                    raise RequestError(f"{key}: {trouble}")
        pipeline.apply(replace(pipeline.settings, **changes))
        self._runner.overrides.set_until_restart(pipeline.name, changes)
        try:
            if request.persist:
                self._runner.overrides.persist(pipeline.name, changes)
        finally:
            self._changed()
        return {"pipeline": pipeline.name, **states(pipeline)}

    def set_bare(self, name: str, key: str, payload: bytes) -> Mapping[str, Any]:
        """Set one key of a pipeline to a bare value, as phones and switches send it."""
        return self.set(parse(Set, {"pipeline": name, key: read_bare(key, payload)}))

    def snapshot(self, request: Snapshot) -> Mapping[str, Any]:
        """Request a picture of a pipeline's next frame; return the topic it will come on."""
        pipeline = find_pipeline(self._runner, request.pipeline)
        if pipeline.spec.kind != "picture":
            raise RequestError(
                f"pipeline: {pipeline.name} reads a signal, there is no picture of it"
            )
        if not pipeline.settings.enabled:
            raise RequestError(
                f"pipeline: {pipeline.name} is switched off, no picture comes; set its `enabled`"
            )
        if pipeline.state == "ended":
            raise RequestError(
                f"pipeline: the source of {pipeline.name} has ended, no picture comes"
            )
        if pipeline.state == "lost":
            raise RequestError(
                f"pipeline: the source of {pipeline.name} is lost: {pipeline.error}; "
                "ask again when it runs"
            )
        problems = [serving.problem for serving in pipeline.servings if serving.model is None]
        if problems and len(problems) == len(pipeline.servings) and all(problems):
            raise RequestError(f"pipeline: {pipeline.name} has no model: {problems[0]}")
        pipeline.snapshots.request()
        return {"topic": self._runner.topics.snapshot(pipeline.name)}


def find_pipeline(runner: Runner, name: str) -> Pipeline:
    """Find the pipeline that a request names.

    Raises:
        RequestError: there is none of this name.

    """
    pipelines = runner.pipelines
    if name not in pipelines:
        from ...core.schema import nearest  # seldom needed

        raise RequestError(f"pipeline: there is no {name!r}{nearest(name, pipelines)}")
    return pipelines[name]


def _thresholds(request: Set) -> list[tuple[str, float]]:
    """List the thresholds that a request gives, each with its key."""
    given = [(f"thresholds.{label}", value) for label, value in (request.thresholds or {}).items()]
    return given if request.threshold is None else [("threshold", request.threshold), *given]


def states(pipeline: Pipeline) -> dict[str, Any]:
    """Return what can be set of a pipeline, as it holds; JSON."""
    settings = pipeline.settings
    return {
        "enabled": settings.enabled,
        "threshold": pipeline.lowest,
        "rate": pipeline.rate,
        "labels": list(settings.labels),
        "thresholds": dict(settings.thresholds),
        "min_box": list(settings.min_box),
        "masks": [[list(point) for point in polygon] for polygon in settings.masks],
    }
