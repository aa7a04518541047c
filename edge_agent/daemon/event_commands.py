"""The commands about events: reset, picture, fetch, evidence. Section 3 of the interface."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

from ..core.errors import RequestError
from ..core.frozen import record
from ..core.parameters import Name, Text, number, whole
from ..core.threads import start_thread
from ..mqtt.requests import Command
from ..runtime.pipelines.commands import find_pipeline
from ..runtime.pipelines.runner import Runner
from .event_service import EventService

log = logging.getLogger(__name__)

BLOCK_BYTES = 32 * 1024
"""Bytes of a clip in one message; small enough for any broker."""
BYTES_PER_SECOND = 2 * 2**20
MOST_LISTED = 500
ENDING_SECONDS = 0.2
"""Time for a thread to end after its last block, when the next clip may already be requested."""


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
    """The first block."""
    count: Annotated[int, whole(1, 1_000_000)] | None = None
    """Number of blocks; None: all that follow."""


@record
class ListEvidence:
    """List the pictures and clips that are kept, the latest first; at most 500 in one answer."""

    pipeline: Name | None = None
    since: Annotated[float, number(0, 1e11)] = 0.0
    """Seconds since 1970."""
    before: Text | None = None
    """The `before` of the answer that this one follows; it is null in the last."""


class EventCommands:
    """The commands, run by the request thread."""

    def __init__(self, runner: Runner, events: EventService) -> None:
        self._runner = runner
        self._events = events
        self._sending: Thread | None = None
        self._hashed: tuple[tuple[str, int], str] = (("", 0), "")
        """File and time of the last requested clip, and its SHA-256."""
        self.commands: tuple[Command[Any], ...] = (
            Command("reset", Reset, self.reset),
            Command("picture", Picture, self.picture, changes=False),
            Command("fetch", Fetch, self.fetch, changes=False),
            Command("evidence", ListEvidence, self.list_evidence, changes=False),
        )

    def reset(self, request: Reset) -> Mapping[str, Any]:
        """Set the totals of a pipeline's lines to 0."""
        dispatcher = self._events.dispatcher
        pipeline = find_pipeline(self._runner, request.pipeline)
        if dispatcher is None or not dispatcher.reset(pipeline.name):
            raise RequestError(f"pipeline: {pipeline.name} has no lines")
        doubts = [f"reset for now, but not kept: {why}" for why in dispatcher.unsaved()]
        done = {"topic": self._runner.topics.count(pipeline.name)}
        return {**done, "warnings": doubts} if doubts else done

    def picture(self, request: Picture) -> Mapping[str, Any]:
        """Publish a picture again; return its topic."""
        what = f"event: the picture of {request.event}"
        with _reading(what), self._open(request.event, "picture") as file:
            topic = self._runner.topics.picture(Path(file.name).parent.name, request.event)
            self._runner.client.publish(topic, file.read())
        return {"topic": topic}

    def fetch(self, request: Fetch) -> Mapping[str, Any]:
        """Have a thread publish a clip in blocks; return their topic."""
        if self._sending is not None:
            self._sending.join(ENDING_SECONDS)
            if self._sending.is_alive():
                raise RequestError("fetch: another clip is being sent; ask again when it has come")
        with _reading(f"event: the clip of {request.event}"):
            file = self._open(request.event, "clip")
            known = os.fstat(file.fileno())
            clip, size = (file.name, known.st_mtime_ns), known.st_size
            if self._hashed[0] != clip:  # a clip is requested in parts
                self._hashed = clip, hashlib.file_digest(file, "sha256").hexdigest()
            digest = self._hashed[1]
        blocks = -(-size // BLOCK_BYTES)
        stop = blocks if request.count is None else min(blocks, request.first + request.count)
        topic = self._runner.topics.clip(Path(file.name).parent.name, request.event)
        chosen = range(request.first, stop)
        sending = start_thread("fetch", partial(self._send, topic, file, chosen))
        if sending is None:
            file.close()
            raise RequestError("fetch: the system allows no thread at the moment; ask again")
        self._sending = sending
        return {"topic": topic, "blocks": blocks, "bytes": size, "sha256": digest}

    def list_evidence(self, request: ListEvidence) -> Mapping[str, Any]:
        """Return the list of kept pictures and clips of events."""
        evidence = self._events.open(self._runner).evidence
        with _reading("pictures and clips"):
            kept, before = evidence.page(
                MOST_LISTED, request.before, pipeline=request.pipeline, since=request.since
            )
            # Of a pipeline that is not in the settings any more there may be some.
            if request.pipeline and not (kept or evidence.list(pipeline=request.pipeline)):
                find_pipeline(self._runner, request.pipeline)
        return {"kept": kept, "before": before}

    def _open(self, event: str, kind: str) -> BufferedReader:
        kept = self._events.open(self._runner).evidence.find(event, kind)
        with suppress(FileNotFoundError):  # it may just have been removed
            if kept is not None:
                return kept.open("rb")
        raise RequestError(
            f"event: there is no {kind} of {event}; "
            "those that are kept are bounded by evidence.keep_mb"
        )

    def _send(self, topic: str, file: BufferedReader, blocks: range) -> None:
        try:
            with _reading(file.name), file:
                file.seek(blocks.start * BLOCK_BYTES)
                for index in blocks:
                    block = file.read(BLOCK_BYTES)
                    if not self._runner.client.publish(f"{topic}/{index}", block, qos=1):
                        return  # the receiver requests missing blocks again
                    # So that results and health can be sent in between.
                    time.sleep(len(block) / BYTES_PER_SECOND)
        except RequestError as problem:
            log.warning("fetch: %s", problem)
            self._hashed = (("", 0), "")  # so that the next request is answered with this error


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Convert an error of the disk to one of the request."""
    try:
        yield
    except OSError as problem:
        raise RequestError(f"{what} cannot be read: {problem.strerror}") from None
