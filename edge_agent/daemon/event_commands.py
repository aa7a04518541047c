"""The commands about events: reset, picture. Section 3 of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import RequestError
from ..core.frozen import record
from ..core.parameters import Name, Text
from ..mqtt.requests import Command
from ..runtime.pipelines.commands import find_pipeline
from ..runtime.pipelines.runner import Runner
from .event_service import EventService


@record
class Reset:
    """Count the lines of a pipeline anew."""

    pipeline: Text


@record
class Picture:
    """Publish the picture of an event that was kept."""

    event: Name


class EventCommands:
    """Carried out by the thread of requests."""

    def __init__(self, runner: Runner, events: EventService) -> None:
        self._runner = runner
        self._events = events
        self.commands: tuple[Command[Any], ...] = (
            Command("reset", Reset, self.reset),
            Command("picture", Picture, self.picture, changes=False),
        )

    def reset(self, request: Reset) -> Mapping[str, Any]:
        """Set the totals of a pipeline's lines to nothing."""
        dispatcher = self._events.dispatcher
        pipeline = find_pipeline(self._runner, request.pipeline)
        if dispatcher is None or not dispatcher.engines.reset(pipeline.name):
            raise RequestError(f"pipeline: {pipeline.name} has no lines")
        return {"topic": self._runner.topics.count(pipeline.name)}

    def picture(self, request: Picture) -> Mapping[str, Any]:
        """Publish a picture again; return its topic."""
        dispatcher = self._events.dispatcher
        kept = None if dispatcher is None else dispatcher.evidence.find(request.event)
        if kept is None:
            raise RequestError(
                f"event: there is no picture of {request.event}; "
                "those that are kept are bounded by evidence.keep_mb"
            )
        pipeline, data = kept
        topic = self._runner.topics.picture(pipeline, request.event)
        self._runner.client.publish(topic, data)
        return {"topic": topic}
