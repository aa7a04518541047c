"""What the installed engines can run on, asked in child processes.

Looking for a GPU loads its driver, and drivers abort or hang. So each engine is asked in a child of
its own (`python -m edge_agent.inference.engines.probe NAME`); what becomes of it is told in words.
A machine without accelerators never needs this: `installed` reads versions without loading
anything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from .registry import ENGINES, capabilities


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine, as it sees this machine."""

    version: str | None
    """None: not installed, or it could not say."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """What it can run on, by the name a profile uses = the name for people."""
    problem: str | None = None
    """In words, why the above is not all there is to know."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of asking all engines."""

    engines: Mapping[str, EngineFacts]

    def lacks(self, engine: str, device: str) -> str | None:
        """Say why *engine* cannot run on *device*; None when it can, as far as it knows."""
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


def installed() -> dict[str, str]:
    """Give the version of each engine that is installed, without loading it."""
    versions = {}
    for engine in ENGINES:
        for name in capabilities(engine).distributions:
            with suppress(metadata.PackageNotFoundError):
                versions[engine] = metadata.version(name)
                break
    return versions


def probe(timeout_s: float = 20.0) -> Probe:
    """Ask every engine, all at once, what it can run on.

    Never raises: an engine that crashes, hangs or is not there is described by its `problem`.
    """
    deadline = time.monotonic() + timeout_s
    children = {engine: _start(engine) for engine in ENGINES}
    return Probe({engine: _finish(engine, child, deadline) for engine, child in children.items()})


def _start(engine: str) -> subprocess.Popen[bytes] | str:
    """Start the child; the reason in words where that fails."""
    package_root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    try:
        return subprocess.Popen(
            # -P: modules that happen to lie in the working directory are not imported.
            [sys.executable, "-P", "-m", "edge_agent.inference.engines.probe", engine],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # drivers are talkative; their end is told by the status
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    except OSError as problem:
        return f"probing {engine} could not be started: {problem.strerror}"


def _finish(engine: str, child: subprocess.Popen[bytes] | str, deadline: float) -> EngineFacts:
    """Wait for the child and say what came of it."""
    version = installed().get(engine)
    if isinstance(child, str):
        return EngineFacts(version, problem=child)
    try:
        output, _ = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(child)
        return EngineFacts(version, problem=f"probing {engine} devices hung and was killed")
    if child.returncode < 0:
        name = _signal_name(-child.returncode)
        return EngineFacts(version, problem=f"probing {engine} devices ended with {name}")
    return _parse(engine, output, child.returncode, version)


def _parse(engine: str, output: bytes, status: int, version: str | None) -> EngineFacts:
    """Read the child's last line; what a driver prints comes before it."""
    lines = output.decode("utf-8", "replace").splitlines()
    try:
        answer = json.loads(lines[-1])
        return EngineFacts(
            answer["version"] or version, dict(answer["devices"]), answer.get("problem")
        )
    except (IndexError, ValueError, KeyError, TypeError):
        return EngineFacts(
            version, problem=f"probing {engine} devices ended with status {status} and no answer"
        )


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and what it started; one that sits in a driver is left to the kernel."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1.0)
    if child.stdout is not None:
        child.stdout.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _main(engine: str) -> None:
    """Be the child: one line of JSON."""
    try:
        version, devices = capabilities(engine).survey()
        answer: dict[str, Any] = {"version": version, "devices": dict(devices)}
    except ImportError as problem:
        answer = {
            "version": None,
            "devices": {},
            "problem": f"{engine} is not installed: {problem}",
        }
    except RuntimeError as problem:
        line = next(iter(str(problem).splitlines()), type(problem).__name__)
        answer = {"version": None, "devices": {}, "problem": f"{engine}: {line}"}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1])
