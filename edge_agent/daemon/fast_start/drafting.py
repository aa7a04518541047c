"""A plan drafted in a fork of this process, while this one imports what every start needs.

Settings, device and models are read by code that is not needed before the first result, and the
checks of a network take as long as the engine's import: on two processors all that costs a start
next to nothing. The fork comes before this process has any other thread.

Stays, though the same can be done in this process: a first start takes 355 ms instead of 490.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from mmap import ALLOCATIONGRANULARITY, PROT_READ, mmap
from pathlib import Path
from typing import Any, NoReturn

from ...core import errors
from ...core.codec import unpack
from ...core.errors import AgentError, EngineError
from ...inference.engines.engine import CheckedNetwork
from ...serving.planned_model import PlannedModel
from .plan import Plan

PATIENCE = 30.0
"""Seconds to wait for an answer: a disk may be slow, or never come back."""
KILLED_SECONDS = 1.0
"""To wait for a fork that was killed: one that sits in a driver is left to the kernel."""
BEHIND = 5
"""Niceness of the process that checks the other models while the first one is loaded."""
_PIECE = 2**26


class Drafting:
    """A plan that is being drafted, and the networks that it loads the quick way, checked."""

    def __init__(self, config: str, origins: str) -> None:
        memory = os.memfd_create("networks")
        read, write = os.pipe()
        ended, alive = os.pipe()
        # Neither ends by flushing what the other has in its buffers: the fork leaves by `_exit`.
        self._child = os.fork()
        if self._child == 0:
            os.close(read)
            os.close(alive)
            threading.Thread(target=_end_with, args=(ended,), daemon=True).start()
            _draft(config, origins, memory, write)
        os.close(write)
        os.close(ended)
        self._memory, self._answers, self._alive = memory, read, alive
        self._heard = b""
        self._reading = threading.Lock()
        self._said: dict[int, Any] = {}

    def plan(self) -> Plan | None:
        """Wait for the plan; None: everything has to be opened first, or is wrong."""
        given = self._hear()
        if given is None:
            return None
        given["models"] = [PlannedModel(*entry) for entry in given["models"]]
        return Plan(**given)

    def network(self, planned: PlannedModel, index: int) -> CheckedNetwork:
        """Wait until a model's network is checked; `plan` has been asked for."""
        with self._reading:
            while index not in self._said:
                said = self._hear()
                if said is None:
                    raise EngineError(f"{planned.name}: could not be checked while it was drafted")
                self._said[said["index"]] = said
            said = self._said[index]
        if "problem" in said:
            raise getattr(errors, said["kind"], AgentError)(said["problem"])
        return CheckedNetwork(
            unpack(planned.choice),
            Path(said["path"]),
            mmap(self._memory, said["size"], prot=PROT_READ, offset=said["at"]),
            os.pread(self._memory, said["graph"], said["at"] + said["size"]),
            said["exact"],
        )

    def _hear(self) -> Any:
        """Return the fork's next message, or None if there is none or it is cut off."""
        until = time.monotonic() + PATIENCE
        while b"\n" not in self._heard:
            ready = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))[0]
            piece = os.read(self._answers, 2**16) if ready else b""
            if not piece:
                return None
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            return None

    def close(self) -> None:
        """End the fork, if it has not ended by itself; may be called again, from a signal, too."""
        child, self._child = self._child, 0
        if child == 0:
            return
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            until = time.monotonic() + KILLED_SECONDS
            while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < until:
                time.sleep(0.002)
        for descriptor in (self._answers, self._alive, self._memory):
            os.close(descriptor)  # what is mapped of the memory stays


def _end_with(ended: int) -> None:
    """End the fork with the process that wants its answers.

    By the pipe that only that one holds: to ask the kernel (`core.child.die_with_parent`) takes an
    import of 10 ms, which the first result would wait for.
    """
    os.read(ended, 1)
    os._exit(0)


def _draft(config: str, origins: str, memory: int, answers: int) -> NoReturn:
    """Draft and answer, in the fork; whoever reads takes a missing answer for a refusal."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        from .draft import draft

        plan = draft(config, origins)
        _tell(answers, plan and {**plan._asdict(), "models": [list(each) for each in plan.models]})
        for index, planned in enumerate(() if plan is None else plan.models):
            if planned.way == "quick":
                _tell(answers, {"index": index, **_checked(planned, memory)})
                os.setpriority(os.PRIO_PROCESS, 0, BEHIND)  # the model that is loaded now first
    finally:
        os._exit(0)


def _tell(answers: int, said: Any) -> None:
    _write(answers, json.dumps(said).encode() + b"\n")


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _checked(planned: PlannedModel, memory: int) -> Mapping[str, Any]:
    from ...inference.engines.registry import check_quick

    at = -(-os.lseek(memory, 0, os.SEEK_END) // ALLOCATIONGRANULARITY) * ALLOCATIONGRANULARITY
    os.ftruncate(memory, at)
    os.lseek(memory, 0, os.SEEK_END)

    def read(network: Path) -> mmap:
        size = 0
        with network.open("rb") as file:
            while count := os.sendfile(memory, file.fileno(), None, _PIECE):
                size += count
        return mmap(memory, size, prot=PROT_READ, offset=at)

    try:
        checked = check_quick(unpack(planned.choice), unpack(planned.folder).network, read)
    except AgentError as problem:
        return {"problem": str(problem), "kind": type(problem).__name__}
    _write(memory, checked.graph)
    return {
        "path": str(checked.path),
        "at": at,
        "size": len(checked.data),
        "graph": len(checked.graph),
        "exact": checked.exact,
    }
