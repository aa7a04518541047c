"""The commands about pipelines: set, snapshot. Section 3 of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from ...config.settings import RATES, THRESHOLDS
from ...core.errors import RequestError
from ...core.frozen import record
from ...core.parameters import Flag, Number, Text
from ...models.manifest import threshold_trouble
from ...mqtt.requests import Command
from .pipeline import Pipeline
from .runner import Runner


@record
class Set:
    """Change a pipeline until the next start; with `persist`, for good."""

    pipeline: Text
    threshold: Annotated[float, Number(*THRESHOLDS)] | None = None
    rate: Annotated[float, Number(*RATES)] | None = None
    persist: Flag = False

    @property
    def changes(self) -> dict[str, float]:
        """The keys that are given."""
        given = {"threshold": self.threshold, "rate": self.rate}
        return {key: value for key, value in given.items() if value is not None}


@record
class Snapshot:
    """Request a picture of a pipeline's next frame."""

    pipeline: Text


class PipelineCommands:
    """Carried out by the thread of requests."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.commands: tuple[Command[Any], ...] = (
            Command("set", Set, self.set),
            Command("snapshot", Snapshot, self.snapshot, changes=False),
        )

    def set(self, request: Set) -> Mapping[str, Any]:
        """Change a pipeline's threshold or rate; return both as they hold."""
        pipeline = self._find(request.pipeline)
        changes = request.changes
        if not changes:
            raise RequestError("nothing to set: give threshold or rate")
        for serving in pipeline.servings:
            if serving.model is not None and request.threshold is not None:
                trouble = threshold_trouble(serving.model.manifest.task, request.threshold)
                if trouble is not None:
                    raise RequestError(f"threshold: {trouble}")
        if request.threshold is not None:
            pipeline.threshold = request.threshold
        if request.rate is not None:
            pipeline.change_rate(request.rate)
        self._runner.overrides.set_until_restart(pipeline.name, changes)
        if request.persist:
            self._runner.overrides.persist(pipeline.name, changes)
        return {"pipeline": pipeline.name, "threshold": pipeline.threshold, "rate": pipeline.rate}

    def snapshot(self, request: Snapshot) -> Mapping[str, Any]:
        """Request a picture of a pipeline's next frame; return the topic it will come on."""
        pipeline = self._find(request.pipeline)
        if pipeline.spec.kind != "picture":
            raise RequestError(
                f"pipeline: {pipeline.name} reads a signal, there is no picture of it"
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

    def _find(self, name: str) -> Pipeline:
        """Find a pipeline.

        Raises:
            RequestError: there is none of this name.

        """
        pipelines = self._runner.pipelines
        if name not in pipelines:
            raise RequestError(
                f"pipeline: there is no {name!r}; there are {', '.join(pipelines) or 'none'}"
            )
        return pipelines[name]
