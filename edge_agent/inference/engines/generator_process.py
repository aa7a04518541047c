"""A language model in a child process, so that no frame waits while the model loads or speaks.

The child runs `generator_worker` at a lower priority. It receives records of JSON on a socket, its
stdin; a question's bytes and pictures come in shared memory, whose descriptor is passed with the
record. It sends lines of JSON on its stdout.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...core import errors
from ...core.child import ChildError, kill_group, signal_name, start_child
from ...core.errors import AgentError, ModelError, RequestError
from ...core.text_findings import Generated
from ...core.types import Array, Outcome, Timing
from ...device.headroom import counted_as_own
from ...models.manifest import ModelFolder
from .generator import LABEL, Tell

log = logging.getLogger(__name__)

WORKER = "edge_agent.inference.engines.generator_worker"
HANGS_SECONDS = 60.0
"""Time after which a child that does not let go of a question counts as hung."""


class FullError(RequestError):
    """Too many questions are waiting already."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A question that the child has been given."""

    tell: Tell | None
    future: Future[Outcome] = field(default_factory=Future)
    given_up: float | None = None
    """When the answer was no longer wanted, monotonic seconds."""


class GeneratorProcess:
    """A loaded model. Any thread may `submit`; its own thread starts and hears the child."""

    def __init__(
        self,
        folder: ModelFolder,
        lost: Callable[[str], None],
        *,
        kv_cache_mb: int,
        max_tokens: int,
        max_waiting: int,
        golden: bool,
    ) -> None:
        """Load a model; may take long. *lost* is called if its child ends by itself, with why.

        Raises:
            ModelError: it cannot be loaded, or does not give its golden answers.
        """
        self.folder = folder
        self.id = folder.manifest.id
        self._lost = lost
        self._max_waiting = max_waiting
        self._asked: dict[int, _Asked] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        """Guards the questions."""
        self._closing = threading.Event()
        self._loaded: Future[None] = Future()
        self._problem: str | None = None
        """Why the child cannot load it, in its own words."""
        self._process: Any = None
        self._channel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)  # a question never waits for a child that hangs
        wanted = {
            "folder": str(folder.path),
            "kv_cache_mb": kv_cache_mb,
            "max_tokens": max_tokens,
            "golden": golden,
            "level": log.getEffectiveLevel(),
        }
        name = f"text-{self.id}"
        self._thread = threading.Thread(
            target=self._run, args=(end, wanted), name=name, daemon=True
        )
        self._thread.start()
        self._loaded.result()

    def submit(
        self, data: bytes, pictures: Sequence[Array] = (), tell: Tell | None = None
    ) -> Future[Outcome]:
        """Ask a question, as `Generator.submit`; if it is malformed, the outcome is the error.

        *tell* is called in the thread that listens to the child.

        Raises:
            FullError: too many are waiting.
        """
        asked = _Asked(tell)
        with self._lock:
            if self._closing.is_set():
                raise FullError(f"{self.id}: is being unloaded; ask again")
            if len(self._asked) >= self._max_waiting:
                waiting = f"{len(self._asked)} questions wait, as text.max_waiting allows"
                raise FullError(f"{self.id}: {waiting}; ask again later")
            number = next(self._numbers)
            self._asked[number] = asked
        shapes = [picture.shape for picture in pictures]
        try:
            with open(os.memfd_create("question"), "wb") as memory:  # noqa: PTH123 - a descriptor
                memory.writelines([data, *(picture.tobytes() for picture in pictures)])
                memory.flush()
                what = {"ask": number, "size": len(data), "pictures": shapes, "told": bool(tell)}
                self._send(what, memory.fileno())
        except OSError:
            with self._lock:
                self._asked.pop(number, None)
            raise FullError(f"{self.id}: takes no question at the moment; ask again") from None
        asked.future.add_done_callback(partial(self._give_up, number))
        return asked.future

    def _give_up(self, number: int, future: Future[Outcome]) -> None:
        """If a question is canceled, have the child let go of it; until then it counts."""
        with self._lock:
            asked = self._asked.get(number)
        if asked is not None and future.cancelled():
            asked.given_up = time.monotonic()
            with suppress(OSError):  # the child has ended, or is answered for by `tick`
                self._send({"cancel": number})

    def tick(self) -> None:
        """Kill a child that hangs; called every second or so."""
        late = time.monotonic() - HANGS_SECONDS
        with self._lock:
            hangs = any(
                each.given_up is not None and each.given_up < late for each in self._asked.values()
            )
        if hangs:
            self._kill()

    def close(self) -> None:
        """Stop taking questions; end the child once those in progress are answered."""
        with self._lock:
            self._closing.set()
        with suppress(OSError):  # it has ended
            self._send({"close": True})

    @property
    def closed(self) -> bool:
        """Whether it takes no more questions: `close` was called, or its child has ended."""
        return self._closing.is_set()

    def join(self, seconds: float) -> None:
        """Wait up to *seconds* until the child has ended; then kill it."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._kill()
            self._thread.join(1.0)

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            kill_group(self._process.pid)

    def _send(self, what: Mapping[str, Any], *descriptors: int) -> None:
        """Send a record.

        Raises:
            OSError: the child has ended, or does not read.
        """
        socket.send_fds(self._channel, [json.dumps(what).encode()], descriptors)

    # The thread

    def _run(self, end: socket.socket, wanted: Mapping[str, Any]) -> None:
        """Start the child and listen to it; the kernel ends it with this thread."""
        try:
            with end:
                child: Any = start_child(WORKER, self.id, end.fileno())
                self._process = child
        except ChildError as problem:
            self._end(str(problem))
            return
        with suppress(OSError):  # it has ended, with a status that says more
            self._send(wanted)
        with counted_as_own(child.pid), child.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):  # else it was killed while it wrote
                    self._take(json.loads(line))
            status = child.wait()
        if self._problem is None and not (self._closing.is_set() and status == 0):
            how = signal_name(status) or f"status {status}"
            short = "; was there too little memory?" if how == "SIGKILL" else ""
            self._end(f"{self.id}: its process ended with {how}{short}")
        else:
            self._end(self._problem)

    def _take(self, said: Mapping[str, Any]) -> None:
        """Take a message of the child."""
        if "log" in said:
            name, level, text = said["log"]
            logging.getLogger(name).log(level, "%s", text)
        elif "loaded" in said:
            self._loaded.set_result(None)
        elif "problem" in said:
            self._problem = said["problem"]
        elif "piece" in said:
            asked = self._asked.get(said["id"])
            if asked is not None and asked.tell is not None:  # may come after it let go
                asked.tell(self.id, said["piece"])
        else:
            self._settle(said)

    def _settle(self, said: Mapping[str, Any]) -> None:
        with self._lock:
            future = self._asked.pop(said["id"]).future
        if not future.set_running_or_notify_cancel():
            return
        if "answer" in said:
            timing = Timing(0.0, said["ms"], 0.0)
            future.set_result(Outcome(self.id, LABEL, Generated(*said["answer"]), timing))
        else:
            future.set_exception(getattr(errors, said["kind"], AgentError)(said["error"]))

    def _end(self, why: str | None) -> None:
        """Answer what is left when the child has ended; *why* is None if it was meant to."""
        with self._lock:
            self._closing.set()
            left = [each.future for each in self._asked.values()]
            self._asked.clear()
        if why is not None and self._loaded.done():
            self._lost(why)
        if not self._loaded.done():
            self._loaded.set_exception(ModelError(why or f"{self.id}: is being unloaded"))
        for future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(RequestError(f"{why}; ask again"))
        self._channel.close()
