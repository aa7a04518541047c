"""The commands about events: reset, picture, fetch, evidence. Section 3 of the interface."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import Annotated, Any

from ..core.errors import RequestError
from ..core.frozen import record
from ..core.parameters import Name, Text, number, whole
from ..mqtt.requests import Command
from ..runtime.pipelines.commands import find_pipeline
from ..runtime.pipelines.runner import Runner
from .event_service import EventService

BLOCK_BYTES = 32 * 1024
"""Of a clip in one message; small enough for any broker."""
BYTES_PER_SECOND = 2 * 2**20
MOST_LISTED = 500
ENDING_SECONDS = 0.2
"""In which a thread ends that has sent its last block: who has it asks for the next clip."""


@record
class Reset:
    """Count the lines of a pipeline anew."""

    pipeline: Text


@record
class Picture:
    """Publish the picture of an event that was kept."""

    event: Name


@record
class Fetch:
    """Publish the clip of an event that was kept, in blocks."""

    event: Name
    first: Annotated[int, whole(0, 1_000_000)] = 0
    """Block to begin with."""
    count: Annotated[int, whole(1, 1_000_000)] | None = None
    """Blocks; None: all that follow."""


@record
class ListEvidence:
    """List the pictures and clips that are kept, the latest first."""

    pipeline: Name | None = None
    since: Annotated[float, number(0, 1e11)] = 0.0
    """Seconds since 1970."""


class EventCommands:
    """Carried out by the thread of requests."""

    def __init__(self, runner: Runner, events: EventService) -> None:
        self._runner = runner
        self._events = events
        self._sending: Thread | None = None
        self.commands: tuple[Command[Any], ...] = (
            Command("reset", Reset, self.reset),
            Command("picture", Picture, self.picture, changes=False),
            Command("fetch", Fetch, self.fetch, changes=False),
            Command("evidence", ListEvidence, self.list_evidence, changes=False),
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
        pipeline, data = self._find(request.event, "picture")
        topic = self._runner.topics.picture(pipeline, request.event)
        self._runner.client.publish(topic, data)
        return {"topic": topic}

    def fetch(self, request: Fetch) -> Mapping[str, Any]:
        """Have a thread publish a clip in blocks; return their topic."""
        pipeline, data = self._find(request.event, "clip")
        blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
        stop = len(blocks) if request.count is None else request.first + request.count
        topic = self._runner.topics.clip(pipeline, request.event)
        chosen = list(enumerate(blocks))[request.first : stop]
        if self._sending is not None:
            self._sending.join(ENDING_SECONDS)
            if self._sending.is_alive():
                raise RequestError("fetch: another clip is being sent; ask again when it has come")
        self._sending = Thread(target=self._send, args=(topic, chosen), name="fetch", daemon=True)
        self._sending.start()
        return {
            "topic": topic,
            "blocks": len(blocks),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }

    def list_evidence(self, request: ListEvidence) -> Mapping[str, Any]:
        """List the kept pictures and clips of events."""
        evidence = self._events.open(self._runner).evidence
        kept = evidence.list(pipeline=request.pipeline, since=request.since, most=MOST_LISTED)
        return {"kept": kept}

    def _find(self, event: str, kind: str) -> tuple[str, bytes]:
        kept = self._events.open(self._runner).evidence.find(event, kind)
        if kept is None:
            raise RequestError(
                f"event: there is no {kind} of {event}; "
                "those that are kept are bounded by evidence.keep_mb"
            )
        return kept

    def _send(self, topic: str, blocks: Sequence[tuple[int, bytes]]) -> None:
        for index, block in blocks:
            if not self._runner.client.publish(f"{topic}/{index}", block, qos=1):
                return  # whoever wants it asks again for what is missing
            # So that results and health go between.
            time.sleep(len(block) / BYTES_PER_SECOND)
