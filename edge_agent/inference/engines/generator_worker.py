"""The child process of a language model; see `generator_process` for its messages."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...core.child import die_with_parent, run_in_background
from ...core.containment import converted
from ...core.errors import AgentError, SampleError
from ...core.types import Array, Outcome
from ...models.manifest import load
from .generator import Generator

MOST_BYTES = 1 << 16
"""Of a record."""


class Channel(logging.Handler):
    """Messages between the agent and the child; log records are sent, too."""

    def __init__(self) -> None:
        super().__init__()
        self._questions = socket.socket(fileno=os.dup(0))
        self._answers = os.fdopen(os.dup(1), "w")
        self._sending = threading.Lock()
        os.dup2(2, 1)  # native libraries print, too

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Wait for a record; return it with the descriptors that came with it."""
        record, descriptors, *_ = socket.recv_fds(self._questions, MOST_BYTES, 1)
        if not record:
            os._exit(1)  # the agent has ended
        return json.loads(record), descriptors

    def send(self, **what: Any) -> None:
        """Send a message to the agent."""
        try:
            with self._sending:
                self._answers.write(json.dumps(what) + "\n")
                self._answers.flush()
        except OSError:
            os._exit(1)  # the agent has ended

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record to the log of the agent."""
        self.send(log=[record.name, record.levelno, self.format(record)])


class Questions:
    """Passes questions to the model, and its answers back."""

    def __init__(self, channel: Channel, generator: Generator) -> None:
        self._channel = channel
        self._generator = generator
        self._asked: dict[int, Future[Outcome]] = {}

    def listen(self) -> None:
        """Receive questions until the agent ends."""
        while True:
            heard, descriptors = self._channel.receive()
            if "ask" in heard:
                self._ask(heard, *descriptors)
            elif "cancel" in heard:
                asked = self._asked.get(heard["cancel"])
                if asked is not None:
                    asked.cancel()
            else:
                self._generator.close()

    def _ask(self, heard: Mapping[str, Any], memory: int) -> None:
        number = heard["ask"]
        tell = partial(self._tell, number) if heard["told"] else None
        try:
            data, pictures = _read(memory, heard["size"], heard["pictures"])
            future = self._generator.submit(data, pictures, tell)
        except AgentError as problem:
            self._fail(number, problem)
        except Exception as problem:  # noqa: BLE001 - bad bytes only fail their question
            self._fail(number, converted(problem, "the question", SampleError))
        else:
            self._asked[number] = future
            future.add_done_callback(partial(self._done, number))

    def _tell(self, number: int, _model: str, piece: str) -> None:
        self._channel.send(id=number, piece=piece)

    def _done(self, number: int, future: Future[Outcome]) -> None:
        self._asked.pop(number)
        if future.cancelled():
            self._fail(number, AgentError("is not wanted any more"))
        elif isinstance(problem := future.exception(), AgentError):
            self._fail(number, problem)
        else:
            outcome = future.result()
            found: Any = outcome.findings
            answer = [found.text, found.tokens, found.finish, found.prompt_tokens]
            self._channel.send(id=number, answer=answer, ms=outcome.timing.infer_ms)

    def _fail(self, number: int, problem: AgentError) -> None:
        self._channel.send(id=number, error=str(problem), kind=type(problem).__name__)


def _read(memory: int, size: int, shapes: list[list[int]]) -> tuple[bytes, list[Array]]:
    """Return the bytes of a question and its pictures; closes *memory*."""
    try:
        data, at = os.pread(memory, size, 0), size
        pictures: list[Array] = []
        for shape in shapes:
            pixels = os.pread(memory, prod(shape), at)
            pictures.append(np.frombuffer(pixels, np.uint8).reshape(shape))
            at += len(pixels)
    finally:
        os.close(memory)
    return data, pictures


def main() -> None:
    """Load the model of the first record, and answer questions."""
    die_with_parent()
    run_in_background()
    # A service is stopped by a signal to all of its processes; the agent says when this one ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel()
    wanted, _ = channel.receive()
    logging.basicConfig(level=wanted.pop("level"), handlers=[channel], format="%(message)s")
    try:
        generator = Generator(load(Path(wanted.pop("folder"))), **wanted)
    except AgentError as problem:
        channel.send(problem=str(problem))
        os._exit(0)
    channel.send(loaded=True)
    questions = Questions(channel, generator)
    threading.Thread(target=questions.listen, name="questions", daemon=True).start()
    generator.join()
    if generator.problem is not None:
        channel.send(problem=f"{generator.id}: {generator.problem}")
    # Engines may crash at exit, which says nothing about the answers.
    os._exit(0)


if __name__ == "__main__":
    main()
