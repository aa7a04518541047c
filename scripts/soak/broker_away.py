"""Take the broker away from an agent for a while, and see that no promised result is missing.

    python scripts/soak/broker_away.py [--seconds 60] [--rate 30] [--kill] [--json]

A live clip at `--rate` frames a second goes through a small model with `qos = 1`. The broker is
killed (SIGKILL) for `--seconds`; with `--kill` the agent too, half-way, and started again. Ends
with 1 unless every result has arrived at least once (of a killed agent's, all but the last write
batch), every second copy says `replayed`, live and replayed ones are each in order, and no live one
came more than a second late.

A frame that a newer one supersedes makes no result. What a killed agent superseded after its last
health was heard cannot be told from a loss: it counts as `unexplained`, and the run as failed. On a
machine that does nothing else there is none.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    AgentProcess,
    Heard,
    Listener,
    Mosquitto,
    Relay,
    agent_settings,
    wait_until,
)

TOPIC = "edge/box/result/p"
BATCH_SECONDS = 0.75
"""What may be lost with the process: 0.25 s to the write, and as long for the write and the log."""


class Ears(Listener):
    """Notes when each message was heard."""

    def __init__(self, port: int) -> None:
        self.times: list[float] = []
        super().__init__(port)

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        self.times.append(time.time())
        super()._on_message(client, userdata, message)


@dataclass
class Session:
    """What was heard of one run of the agent."""

    live: list[int] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    """Seconds from the frame to our ears, of live results."""
    last: float = 0.0
    """Wall clock of the newest frame."""
    unmarked_copies: int = 0

    @property
    def seqs(self) -> set[int]:
        return {*self.live, *self.replayed}

    def gaps(self, captured: int | None = None) -> int:
        """Count the captures that were not heard of: of the first so many, or up to the last."""
        up_to = captured if captured is not None else max(self.seqs, default=-1) + 1
        return len(set(range(up_to)) - self.seqs)


def main() -> int:
    """Run it and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="that the broker is away")
    parser.add_argument("--rate", type=float, default=30, help="results a second")
    parser.add_argument("--kill", action="store_true", help="kill the agent half-way")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="broker-away-") as place:
        says, good = measure(Path(place), options.seconds, options.rate, kill=options.kill)
    if options.json:
        print(json.dumps(says))
    else:
        for name, value in says.items():
            print(f"{name:28} {value}")
    return 0 if good else 1


def measure(
    folder: Path, seconds: float, rate: float, *, kill: bool
) -> tuple[dict[str, Any], bool]:
    """Go through it all; gives the figures, and whether they are as they should be."""
    brightness(folder / "models" / "light")
    clip = write_clip(folder / "clip.avi", [plain(i % 250) for i in range(300)], rate=rate)
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "light", "qos": 1}
    broker = Mosquitto(folder / "broker")
    relay = Relay(broker.port)
    ears = Ears(broker.port)
    settings = agent_settings("box", relay.url, [pipeline], models_dirs=[str(folder / "models")])
    agent = AgentProcess(folder / "agent", settings)
    pause = threading.Event()
    try:
        ears.wait_for(lambda heard: count(heard) > 3 * rate, "the first results")
        before = written(agent)
        relay.shut()
        broker.stop(signal.SIGKILL)
        gone = time.time()
        killed: float | None = None
        if kill:
            pause.wait(seconds / 2)
            killed, before = time.time(), written(agent) - before
            agent.process.kill()
            agent.process.wait()
            agent.restart()
            pause.wait(seconds / 2)
            if agent.process.poll() is not None:
                print(agent.words(), file=sys.stderr)
            before = written(agent) + before
        else:
            pause.wait(seconds)
            before = written(agent) - before
        spool = sum(path.stat().st_size for path in (folder / "agent/state").glob("spool.db*"))
        subscribed = ears.subscribed
        broker.start()
        wait_until(lambda: ears.subscribed > subscribed, "the listener to be back")
        relay.open()
        back = time.time()
        health: dict[str, Any] = ears.wait_for(
            lambda _: settled(ears), "all to have arrived", 70 + 3 * seconds
        )
        caught_up = time.time()
        pause.wait(2)
        agent.stop()
    finally:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
        relay.shut()
        relay.cut()
        ears.close()
        broker.stop()
    return judge(ears, health, rate, gone, killed, back, caught_up, before, spool)


def count(heard: list[Heard]) -> int:
    """Give the number of results."""
    return sum(message.topic == TOPIC for message in heard)


def is_health(heard: Heard) -> bool:
    """Whether it is one that tells of the pipeline."""
    return heard.topic == "edge/box/health" and "p" in heard.json["pipelines"]


def settled(ears: Ears) -> dict[str, Any] | None:
    """Give the health that says that nothing waits any more, after the reconnection."""
    health = ears.last("edge/box/health")
    status = ears.last("edge/box/status")
    alive = status is not None and status["state"] == "online"
    done = alive and health is not None and health["spool"]["replayed"]
    return health if done and health and health["spool"]["waiting"] == 0 else None


def written(agent: AgentProcess) -> int:
    """Bytes that the agent has had written to its disk."""
    return int(psutil.Process(agent.process.pid).io_counters().write_bytes)


def sort_out(ears: Ears, back: float) -> dict[str, Session]:
    """Tell live results from replayed ones, and first copies from second ones."""
    sessions: dict[str, Session] = defaultdict(Session)
    for heard, at in zip(ears.heard, ears.times, strict=True):
        if heard.topic != TOPIC:
            continue
        result = heard.json
        session = sessions[result["session"]]
        seq, taken = result["seq"], datetime.fromisoformat(result["time"]).timestamp()
        session.last = max(session.last, taken)
        if result.get("replayed"):
            if seq not in session.replayed:
                session.replayed.append(seq)
            continue
        session.unmarked_copies += seq in session.seqs
        session.live.append(seq)
        if at > back:
            session.late.append(at - taken)
    return sessions


def judge(  # noqa: PLR0917 - one thing after the other
    ears: Ears,
    health: dict[str, Any],
    rate: float,
    gone: float,
    killed: float | None,
    back: float,
    caught_up: float,
    disk: int,
    spool: int,
) -> tuple[dict[str, Any], bool]:
    """Turn what was heard into figures."""
    sessions = sort_out(ears, back)
    *earlier, last = sessions.values() if len(sessions) > 1 else [*sessions.values()]
    replayed = sum(len(session.replayed) for session in sessions.values())
    lost = 0
    if killed is not None and earlier:
        lost = max(0, round((killed - earlier[0].last) * rate) - 1)
    # Frames that no result was made of. What a killed agent had counted when it was last heard.
    tellings = [(h.json, at) for h, at in zip(ears.heard, ears.times, strict=True) if is_health(h)]
    before = [telling for telling, at in tellings if at < (killed or 0)][-1:]
    final = tellings[-1][0]["pipelines"]["p"]
    accounts = [*(telling["pipelines"]["p"] for telling in before), final]
    superseded = sum(account["dropped"]["superseded"] for account in accounts)
    missing = sum(session.gaps() for session in earlier) + last.gaps(final["captured"])
    everyone = list(sessions.values())
    says = {
        "sessions": len(sessions),
        "away_s": round(back - gone, 1),
        "results": sum(len(session.seqs) for session in everyone),
        "replayed": replayed,
        "replayed_of_killed": sum(len(session.replayed) for session in earlier),
        "replayed_in_s": round(caught_up - back, 1),
        "missing": missing,
        "superseded": superseded,
        "unexplained": max(0, missing - superseded),
        "lost_at_kill": lost,
        "unmarked_copies": sum(session.unmarked_copies for session in everyone),
        "live_in_order": all(s.live == sorted(s.live) for s in everyone),
        "replayed_in_order": all(s.replayed == sorted(s.replayed) for s in everyone),
        "live_latest_ms": round(1e3 * max((max(s.late) for s in everyone if s.late), default=0)),
        "dropped": health["spool"]["dropped"],
        "spool_bytes": spool,
        "disk_bytes_per_replayed": round(disk / max(1, replayed)),
        "disk_bytes_a_second": round(disk / (back - gone)),
    }
    good = (
        missing <= superseded
        and says["lost_at_kill"] <= BATCH_SECONDS * rate
        and not says["unmarked_copies"]
        and says["live_in_order"]
        and says["replayed_in_order"]
        and says["live_latest_ms"] < 1000
        and not says["dropped"]
        and replayed > 0
        and len(sessions) == (1 if killed is None else 2)
        and bool(last.live)
    )
    return says, good


if __name__ == "__main__":
    sys.exit(main())
