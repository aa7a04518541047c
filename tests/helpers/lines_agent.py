"""The smallest sink, and an agent that it is given to and taken from while it runs.

Run as `python -m tests.helpers.lines_agent SETTINGS LINES`: writes lines until all that is wanted
is there, takes the sink away, and prints how many lines there were then, and some results later.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edge_agent.config.load import load
from edge_agent.core.threads import Stop
from edge_agent.core.timeline import Timeline
from edge_agent.core.types import Outcome, Sample
from edge_agent.daemon.agent import Agent
from edge_agent.daemon.fast_start.fingerprint import digest
from edge_agent.runtime.pipelines.pipeline import Pipeline
from edge_agent.runtime.pipelines.sinks import Sink, Stream


class Lines(Sink):
    """Writes what it is given to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.written: list[str] = []
        self._path = path

    def _write(self, kind: str, about: str) -> None:
        line = f"{kind} {about}"
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.written.append(line)

    def open(self, stream: Stream) -> None:
        """Write which pipeline is there."""
        self._write("open", stream.name)

    def close(self, stream: Stream) -> None:
        """Write which pipeline is gone."""
        self._write("close", stream.name)

    def result(self, stream: Stream, sample: Sample, outcome: Outcome) -> None:
        """Write which model has seen a frame."""
        del sample
        self._write("result", f"{stream.name} {outcome.model}")

    def wants_picture(self, stream: Stream) -> bool:
        """Want one picture."""
        del stream
        return not any(line.startswith("picture") for line in self.written)

    def picture(self, stream: Stream, jpeg: bytes, about: Mapping[str, str]) -> None:
        """Write what a picture begins with."""
        del about
        self._write("picture", f"{stream.name} {jpeg[:3].hex()}")

    def event(self, event: Mapping[str, Any], qos: int, *, replayed: bool) -> None:
        """Write which rule holds, or holds no longer."""
        del qos, replayed
        self._write("event", f"{event['rule']} {event['state']}")

    def counts(self, pipeline: str, counts: Mapping[str, Any]) -> None:
        """Write what is in the zones."""
        self._write("counts", f"{pipeline} {json.dumps(counts['zones'])}")

    def health(self, health: Mapping[str, Any]) -> None:
        """Write the state of the device."""
        self._write("health", health["state"])


WANTED = {
    *("open door", "result door finder@1", "picture door ffd8ff", "event person begin"),
    *('counts door {"yard": {"person": 1}}', "health ok"),
}


def is_running(pipeline: Pipeline, *, running: bool) -> bool:
    """Whether the source of a pipeline gives, or does not."""
    return (pipeline.state == "running") is running


def wait(claim: Callable[[], bool]) -> None:
    """Wait until something is so, half a minute at most."""
    until = time.monotonic() + 30
    while not claim() and time.monotonic() < until:
        time.sleep(0.02)


def main(settings: Path, lines: Path) -> None:
    """Run an agent, and lend it the sink for a while."""
    agent = Agent(
        load(settings), lambda: load(settings), Timeline(), origins=(None, digest(str(settings)))
    )
    runner = agent._runner

    def lend() -> None:
        runner.identity.timeline.first.wait(30)
        sink = Lines(lines)
        runner.sinks.add(sink)
        # What is in the zones and holds already was said before: the door is closed and opened.
        door = runner.pipelines["door"]
        for enabled in (False, True):
            door.apply(replace(door.settings, enabled=enabled))
            wait(partial(is_running, door, running=enabled))
        wait(lambda: set(sink.written) >= WANTED)
        runner.sinks.remove(sink)
        time.sleep(0.2)  # for a result that was on its way
        left = len(sink.written)
        accounts = runner.board.accounts()["door"].inferred
        wait(lambda: runner.board.accounts()["door"].inferred > accounts + 10)
        print(json.dumps({"left": left, "later": len(sink.written)}), flush=True)
        agent._stops.put(Stop("done", asked=True))

    threading.Thread(target=lend, name="lend").start()
    agent.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
