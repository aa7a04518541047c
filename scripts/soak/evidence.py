"""Fifty events a second with their pictures, beside a million that are kept already.

    python scripts/soak/evidence.py [--files N] [--seconds S]

One agent with 200 rules on the brightness of a lamp: each frame begins or ends two events, with a
picture each. The folder of evidence is above its limit, so that the oldest go meanwhile. Exit
status 1: events come later than a second (p99), the stop takes 5 s, or an event is lost.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from edge_agent.mqtt.payloads import seconds_of
from tests.helpers.small_models import Picture, brightness, plain, write_clip
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings

RULES, PIPELINES = 200, 4
LEAST, STEP = 30, 2
"""Gray level of the first rule, each next one is one higher; levels from frame to frame."""
FILE_BYTES = 20_000


class Late(Listener):
    """Notes how late each event comes."""

    def __init__(self, port: int) -> None:
        self.late: list[float] = []
        super().__init__(port, client_id="evidence")

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        now = time.time()
        super()._on_message(client, userdata, message)
        if message.topic.startswith("edge/box/event/"):
            self.late.append(now - seconds_of(self.heard[-1].json["time"]))


def lamp() -> Iterator[Picture]:
    """Yield frames that rise and fall over the levels of all rules."""
    levels = range(LEAST - 5, LEAST + RULES + 5, STEP)
    for level in (*levels, *reversed(levels)):
        yield plain(level)


def fill(folder: Path, count: int) -> None:
    """Make pictures of events, each with no content but of the size of one."""
    folder.mkdir(parents=True)
    for number in range(count):
        descriptor = os.open(folder / f"old-{number}.jpg", os.O_CREAT | os.O_WRONLY, 0o644)
        os.truncate(descriptor, FILE_BYTES)
        os.close(descriptor)


def measure(folder: Path, count: int, seconds: float) -> bool:
    """Run the agent; return whether it kept to its bounds."""
    kept = folder / "box" / "state" / "evidence" / "lamp-0"
    fill(kept, count)
    broker = Mosquitto(folder / "broker")
    heard = Late(broker.port)
    brightness(folder / "models" / "light")
    rules = [
        {"name": f"over-{level}", "when": "value", "value": "light", "picture": "frame"}
        | {"above": float(level), "below": float(level)}
        for level in range(LEAST, LEAST + RULES)
    ]
    source = f"file:{write_clip(folder / 'clip.avi', lamp())}?loop=1"
    lamps = [
        {"name": f"lamp-{n}", "source": source, "model": "light", "rules": rules[n::PIPELINES]}
        for n in range(PIPELINES)
    ]
    settings = agent_settings(
        *("box", broker.url, lamps),
        models_dirs=[str(folder / "models")],
        evidence={"keep_mb": count * FILE_BYTES * 10 // 11 // 2**20},
    )
    agent = AgentProcess(folder / "box", settings)
    heard.wait_for(lambda _: len(heard.late) > 100, "events", 120)
    begun = len(heard.late)
    time.sleep(seconds)
    late = sorted(heard.late[begun:])
    health = heard.last("edge/box/health") or {}
    stopping = time.monotonic()
    status = agent.stop()
    stopped = time.monotonic() - stopping
    heard.catch_up()
    states: dict[str, Counter[str]] = {}
    for event in (h.json for h in heard.heard if h.topic.startswith("edge/box/event/")):
        states.setdefault(event["event"], Counter())[event["state"]] += 1
    whole = [each for each in states.values() if each["begin"] == each["end"] == 1]
    left = sum(1 for _ in os.scandir(kept))
    p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
    print(f"{len(late) / seconds:.0f} events a second, late by p50 {p50:.3f} s, p99 {p99:.3f} s")
    print(f"stopped in {stopped:.1f} s with {status}; {left} files of {count} and new ones left")
    print(f"{len(whole)} of {len(states)} events whole; {health['rss_mb']} MB; {health.get('why')}")
    heard.client.disconnect()
    broker.stop()
    return p99 < 1 and stopped < 5 and status == 0 and len(whole) == len(states)


def main() -> int:
    """Measure in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if measure(Path(folder), options.files, options.seconds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
