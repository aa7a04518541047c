"""The MQTT commands about pipelines and the agent itself: ping, set, snapshot, restart.

Those about versions (rollback, activate, delete) are the deployer's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..config.overrides import read_change
from ..core.errors import ModelError
from ..core.threads import Stop, Stops
from ..mqtt import payloads
from ..mqtt.requests import text
from ..runtime.pipelines.pipeline import Pipeline
from ..runtime.pipelines.runner import Runner

Body = Mapping[str, Any]


class AgentCommands:
    """Each method takes the request's body and returns the result of the reply."""

    def __init__(self, runner: Runner, stops: Stops) -> None:
        self._runner = runner
        self._stops = stops

    def ping(self, _body: Body) -> Body:
        """Return the time and the session."""
        return {"time": payloads.iso(time.time_ns()), "session": self._runner.session}

    def set(self, body: Body) -> Body:
        """Change a pipeline's threshold or rate, for good if `persist` asks for it."""
        pipeline = self._pipeline_of(body)
        models = [serving.model for serving in pipeline.servings]
        change = read_change(body, [m.manifest.task for m in models if m is not None])
        if change.threshold is not None:
            pipeline.threshold = change.threshold
        if change.rate is not None:
            pipeline.change_rate(change.rate)
        overrides = self._runner.overrides
        overrides.note(pipeline.name, change)
        if change.persist:
            overrides.keep(pipeline.name, threshold=change.threshold, rate=change.rate)
        return {"pipeline": pipeline.name, "threshold": pipeline.threshold, "rate": pipeline.rate}

    def snapshot(self, body: Body) -> Body:
        """Request a picture of a pipeline's next frame; returns the topic it will come on."""
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
        pipeline.snapshots.request()
        return {"topic": self._runner.topics.snapshot(pipeline.name)}

    def restart(self, _body: Body) -> Body:
        """Restart the agent once the reply is on its way."""
        stop = Stop("restart was asked for", asked=True, restart=True)
        self._stops.call(lambda: self._stops.put(stop))
        return {"session": self._runner.session}

    def _pipeline_of(self, body: Body) -> Pipeline:
        name = text(body, "pipeline")
        pipelines = self._runner.pipelines
        if name not in pipelines:
            raise ModelError(
                f"pipeline: there is no {name!r}; there are {', '.join(pipelines) or 'none'}"
            )
        return pipelines[name]
