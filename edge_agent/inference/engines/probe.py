"""Devices that the installed engines can run on, found in child processes.

Looking for a GPU loads its driver, and drivers may abort or hang. So each engine is asked in its
own child process, which runs this module; if the child fails, the reason is reported.
A machine without accelerators never needs this: `installed` reads versions without loading
anything.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.child import Child, ChildError, answer_question
from .registry import ENGINES, capabilities, installed


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine reports about this machine."""

    version: str | None
    """None: it is not installed, or did not report one."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """The devices it can run on: the readable name by the name in profiles."""
    problem: str | None = None
    """Why the above is incomplete; None: it is complete."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The results of probing every engine."""

    engines: Mapping[str, EngineFacts]

    def lacks(self, engine: str, device: str) -> str | None:
        """Return why *engine* cannot run on *device*; None if it can, as far as is known."""
        facts = self.engines[engine]
        wanted = device.lower()
        # "AUTO:GPU,CPU" chooses among devices itself; "GPU" stands for the first of "GPU.0" ….
        known = {name.lower() for name in facts.devices}
        virtual = capabilities(engine).virtual_devices
        if wanted.partition(":")[0].upper() in virtual or wanted in known:
            return None
        if any(name.partition(".")[0] == wanted for name in known):
            return None
        if facts.problem is not None:
            return facts.problem
        return f"{engine} finds no {device} here; it has {', '.join(facts.devices) or 'nothing'}"


def probe(timeout_s: float = 20.0) -> Probe:
    """Ask all engines, in parallel, for the devices that they can run on.

    Never raises: an engine that crashes, hangs or is missing is described by its `problem`.
    """
    deadline = time.monotonic() + timeout_s
    children = {engine: _start(engine) for engine in ENGINES}
    return Probe({engine: _finish(engine, child, deadline) for engine, child in children.items()})


def _start(engine: str) -> Child | ChildError:
    try:
        # Drivers write much to stderr; the exit status shows whether they fail.
        return Child(__name__, engine, f"probing {engine} devices", stderr=subprocess.DEVNULL)
    except ChildError as problem:
        return problem


def _finish(engine: str, child: Child | ChildError, deadline: float) -> EngineFacts:
    """Wait for the child and return the result."""
    version = installed().get(engine)
    try:
        if isinstance(child, ChildError):
            raise child
        answer = child.answer(max(0.1, deadline - time.monotonic()))
    except ChildError as problem:
        return EngineFacts(version, problem=str(problem))
    return EngineFacts(answer["version"] or version, answer["devices"], answer.get("problem"))


def _describe(engine: str) -> dict[str, Any]:
    """Return an engine's version and devices; runs in the child."""
    try:
        version, devices = capabilities(engine).survey()
    except ImportError as problem:
        words = f"{engine} is not installed: {problem}"
    except RuntimeError as problem:
        line = next(iter(str(problem).splitlines()), type(problem).__name__)
        words = f"{engine}: {line}"
    else:
        return {"version": version, "devices": dict(devices)}
    return {"version": None, "devices": {}, "problem": words}


if __name__ == "__main__":
    answer_question(_describe)
