"""A plan drafted in a fork of this process, while this one imports what every start needs.

Settings, device, and models are read by code that is not needed before the first result, and the
checks of a network take as long as the engine's import: on two processors all this costs a start
almost nothing. The fork happens before this process has any other thread.

Kept, though the same could be done in this process: a first start takes 355 ms instead of 490.
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
"""How long to wait for a killed fork: one blocked in a driver is left to the kernel."""
BEHIND = 5
"""Niceness of the process that checks the other models while the first one is loaded."""
_PIECE = 2**26


class Drafting:
    """A plan that is being drafted, and the checked networks that it loads the quick way."""

    def __init__(self, config: str, origins: str) -> None:
        memory = os.memfd_create("networks")
        read, write = os.pipe()
        ended, alive = os.pipe()
        # The fork leaves through `_exit`, so that buffers are not flushed by both processes.
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
        """Wait for the plan; None: everything must be opened first, or is wrong."""
        given = self._hear()
        if given is None:
            return None
        given["models"] = [PlannedModel(*entry) for entry in given["models"]]
        return Plan(**given)

    def network(self, planned: PlannedModel, index: int) -> CheckedNetwork:
        """Wait until a model's network has been checked; call `plan` before."""
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
        """Return the fork's next message, or None if there is none or it is truncated."""
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
        """End the fork if it has not ended by itself; may be called again, even from a signal."""
        child, self._child = self._child, 0
        if child == 0:
            return
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            until = time.monotonic() + KILLED_SECONDS
            while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < until:
                time.sleep(0.002)
        for descriptor in (self._answers, self._alive, self._memory):
            os.close(descriptor)  # mappings of the memory stay


def _end_with(ended: int) -> None:
    """End the fork when the process that wants its answers ends.

    Detected by a pipe that only that process holds: asking the kernel
    (`core.child.die_with_parent`) needs an import of 10 ms, which would delay the first result.
    """
    os.read(ended, 1)
    os._exit(0)


def _draft(config: str, origins: str, memory: int, answers: int) -> NoReturn:
    """Draft and answer, in the fork; the reader treats a missing answer as a refusal."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        from .draft import draft

        plan = draft(config, origins)
        _tell(answers, plan and {**plan._asdict(), "models": [list(each) for each in plan.models]})
        for index, planned in enumerate(() if plan is None else plan.models):
            if planned.way == "quick":
                _tell(answers, {"index": index, **_checked(planned, memory)})
                os.setpriority(os.PRIO_PROCESS, 0, BEHIND)  # the model loading now comes first
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
