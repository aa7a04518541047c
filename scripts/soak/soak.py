"""Long runs that show whether an agent can be left alone: what comes and goes leaves nothing.

    python scripts/soak/soak.py restarts [--restarts 50] [--settle 31] [--seed 7]
    python scripts/soak/soak.py absent   [--minutes 20]
    python scripts/soak/soak.py all      [--minutes 30] [--seed 7]

`restarts` kills (SIGKILL) and starts an RTSP server and the broker so many times, in turns.
`absent` gives the agent a camera that refuses, and one that takes the connection and never answers.
`all` loads every lane and, at random, pushes models, kills cameras and kills the broker, sometimes
in the middle of a push.

The agent is the whole daemon, in a process of its own. Its memory (resident), threads and file
descriptors are read from outside. Prints one JSON object; ends with 1 if the agent died or wrote a
traceback, if its memory grew by more than 5 % from the beginning to the end, if a thread or a
descriptor more was there at the end, if an account does not add up, or a push did not go live. The
end is the last third of the run, the beginning the third before that: in the first one libraries,
pools and the C library's arenas fill up. What leaks, leaks in the other two as well.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

from tests.helpers.cameras import MjpegServer, RtspServer, free_port, rtsp_missing
from tests.helpers.push import clip, manifest, model_folder, plain_package, send
from tests.helpers.small_models import encode_jpeg, plain
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings, wait_until

GROWTH = 1.05
LOST_SECONDS = 90.0
"""How long a camera or a broker that is back may stay unused: the longest pauses of the agent."""
D = "edge/box"
EVENTS = "push,push,torn push,rtsp,mjpeg,broker"


class Ears(Listener):
    """Keeps the last message of each topic and counts the rest: a long run says a lot."""

    def __init__(self, port: int) -> None:
        self.counts: Counter[str] = Counter()
        self.latest: dict[str, dict[str, Any]] = {}
        super().__init__(port)

    def _on_message(self, _client: Any, _userdata: Any, message: Any) -> None:
        self.counts[message.topic] += 1
        if message.payload and "/in/" not in message.topic:
            self.latest[message.topic] = json.loads(message.payload)

    def last(self, topic: str) -> dict[str, Any] | None:
        return self.latest.get(topic)


CHILD_SECONDS = 30.0
"""How long a reading waits for the agent's children to end."""
LEAST = 3
"""Readings: `Body.judge` takes them in thirds."""


@dataclass
class Body:
    """What an agent takes, read from outside, and what is wrong with it."""

    agent: AgentProcess
    rss_mb: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    kinds: list[Counter[str]] = field(default_factory=list)
    """What the descriptors are, for a reading in which there are too many."""
    at: list[float] = field(default_factory=list)
    """Seconds from the beginning."""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._process = psutil.Process(self.agent.process.pid)

    def look(self) -> None:
        """Read it once.

        Raises:
            RuntimeError: it is dead.

        """
        # A child that prepares a form has a thread and pipes of the agent's while it works.
        idle = time.monotonic() + CHILD_SECONDS
        while self._process.is_running() and self._process.children():
            if time.monotonic() > idle:
                break
            time.sleep(0.05)
        if self.agent.process.poll() is not None:
            raise RuntimeError(f"the agent ended with {self.agent.process.returncode}")
        with self._process.oneshot():
            self.rss_mb.append(self._process.memory_info().rss / 2**20)
            self.threads.append(self._process.num_threads())
            self.descriptors.append(self._process.num_fds())
        self.kinds.append(_kinds(self.agent.process.pid))
        self.at.append(time.monotonic() - self._began)

    def judge(self) -> dict[str, Any]:
        """Compare the last third of what was read with the one before."""
        skip = part = len(self.at) // 3
        early, late = slice(skip, skip + part), slice(-part, None)
        before, after = (statistics.median(self.rss_mb[each]) for each in (early, late))
        more = {
            # A trial, a connection, the spool have their own for a while; what is left over is
            # always there, and raises the fewest and the most alike.
            name: min(
                min(values[late]) - min(values[early]), max(values[late]) - max(values[early])
            )
            for name, values in (("threads", self.threads), ("descriptors", self.descriptors))
        }
        if after > GROWTH * before:
            self.wrong.append(f"memory grew from {before:.1f} to {after:.1f} MB")
        self.wrong += [f"{count} {name} more" for name, count in more.items() if count > 0]
        if more["descriptors"] > 0:
            self.wrong.append(f"descriptors: {dict(self.kinds[skip])}, then {dict(self.kinds[-1])}")
        if "Traceback" in self.agent.words():
            self.wrong.append("a traceback in its log")
        hours = [at / 3600 for at in self.at[skip:]]
        slope = statistics.linear_regression(hours, self.rss_mb[skip:]).slope
        return {
            "minutes": round(self.at[-1] / 60, 1),
            "readings": len(self.at),
            "rss_mb": {"begin": round(before, 1), "end": round(after, 1)},
            "growth": round(after / before, 4),
            "slope_mb_per_hour": round(slope, 2),
            "more_threads": more["threads"],
            "more_descriptors": more["descriptors"],
            "threads": self.threads[-1],
            "descriptors": self.descriptors[-1],
        }


def _kinds(pid: int) -> Counter[str]:
    """Count what a process has open: files by name, sockets and the like by kind."""
    found: Counter[str] = Counter()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(path.readlink())
        except OSError:
            continue  # closed meanwhile
        found[target.split(":[", maxsplit=1)[0].rpartition("/")[2]] += 1
    return found


@dataclass
class Stand:
    """An agent, its broker and who hears it."""

    folder: Path
    broker: Mosquitto
    ears: Ears
    stack: ExitStack
    body: Body = field(init=False)

    def start(self, pipelines: list[dict[str, Any]], **settings: Any) -> None:
        """Start the agent."""
        models = {"models_dirs": [str(self.folder / "library")], "health": {"interval_s": 1}}
        text = agent_settings("box", self.broker.url, pipelines, **models, **settings)
        agent = AgentProcess(self.folder / "agent", text)
        self.stack.callback(agent.stop)
        self.body = Body(agent)

    def wait(self, claim: Callable[[], bool], what: str) -> None:
        """Wait for something, and read the agent's body meanwhile."""
        wait_until(claim, what, LOST_SECONDS)

    def source(self, pipeline: str) -> str | None:
        return (self.ears.last(f"{D}/source/{pipeline}") or {}).get("state")

    def results(self, pipeline: str) -> int:
        return self.ears.counts[f"{D}/result/{pipeline}"]

    def results_go_on(self, pipeline: str, more: int = 3) -> None:
        before = self.results(pipeline)
        self.wait(lambda: self.results(pipeline) >= before + more, f"results of {pipeline}")

    def restart_broker(self) -> None:
        """Kill the broker, start it, and wait until the agent and our ears are back."""
        subscribed = self.ears.subscribed
        self.broker.stop(9)
        self.ears.latest.pop(f"{D}/status", None)
        self.broker.start()
        self.wait(lambda: self.ears.subscribed > subscribed, "the listener to be back")

        def back() -> bool:
            return (self.ears.last(f"{D}/status") or {}).get("state") == "online"

        self.wait(back, "the agent to be back")

    def check_accounts(self) -> dict[str, Any]:
        """See that every account of the latest health adds up; gives them."""
        before = self.ears.counts[f"{D}/health"]
        self.wait(lambda: self.ears.counts[f"{D}/health"] > before, "a health payload")
        pipelines: dict[str, Any] = (self.ears.last(f"{D}/health") or {})["pipelines"]
        for name, account in pipelines.items():
            dropped = sum(account["dropped"].values())
            if account["captured"] != account["inferred"] + account["waiting"] + dropped:
                self.body.wrong.append(f"the account of {name} does not add up: {account}")
        return pipelines


def camera(name: str, url: str, **more: Any) -> dict[str, Any]:
    """Make a pipeline on a camera."""
    return {"name": name, "source": url, "model": "level", **more}


def restarts(stand: Stand, options: argparse.Namespace) -> dict[str, Any]:
    """Kill and start an RTSP server and the broker in turns."""
    port = free_port()
    servers = [RtspServer(port=port)]

    def end() -> None:
        servers[-1].kill()

    stand.stack.callback(end)
    stand.start([camera("p", servers[0].url(), qos=1)])
    stand.results_go_on("p")
    pause = threading.Event()
    for _ in range(options.restarts):
        servers[-1].kill()
        stand.wait(lambda: stand.source("p") == "lost", "the camera to be lost")
        servers.append(RtspServer(port=port))
        stand.wait(lambda: stand.source("p") == "running", "the camera to be back")
        stand.results_go_on("p")
        stand.restart_broker()
        stand.results_go_on("p")
        # A camera, or a broker, that goes at once each time is asked for less and less often.
        pause.wait(options.settle)
        stand.body.look()
    reconnects = stand.check_accounts() and (stand.ears.last(f"{D}/health") or {})["reconnects"]
    if reconnects != options.restarts:
        stand.body.wrong.append(f"{reconnects} reconnects counted, not {options.restarts}")
    return {"restarts": options.restarts, "reconnects": reconnects}


def absent(stand: Stand, options: argparse.Namespace) -> dict[str, Any]:
    """Wait for cameras that are not there."""
    silent = socket.create_server(("127.0.0.1", 0))
    stand.stack.callback(silent.close)
    taken: list[socket.socket] = []

    def welcome() -> None:
        while True:
            try:
                taken.append(silent.accept()[0])
            except OSError:
                return  # closed: the run is over

    threading.Thread(target=welcome, daemon=True).start()
    moving = clip(stand.folder / "clip.mp4")
    stand.start(
        [
            camera("refused", f"rtsp://127.0.0.1:{free_port()}/stream"),
            camera("silent", f"rtsp://127.0.0.1:{silent.getsockname()[1]}/stream"),
            camera("there", f"file:{moving}?loop=1", rate=5),
        ]
    )
    stand.results_go_on("there")

    def lost() -> bool:
        return {stand.source(name) for name in ("refused", "silent")} == {"lost"}

    # One that never answers is asked why, before it is said to be lost.
    stand.wait(lost, "both cameras to be lost")
    pause = threading.Event()
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end or len(stand.body.at) < LEAST:
        pause.wait(min(5.0, 6 * options.minutes))
        stand.body.look()
    if not lost():
        stand.body.wrong.append("a camera that is not there is not said to be lost")
    stand.check_accounts()
    stand.results_go_on("there")
    return {"connections_taken": len(taken), "results": stand.results("there")}


def everything(stand: Stand, options: argparse.Namespace) -> dict[str, Any]:
    """Load all lanes; push, kill cameras and kill the broker at random."""
    dice = random.Random(options.seed)
    moving = clip(stand.folder / "clip.mp4")
    port = free_port()
    server = RtspServer(port=port)
    jpegs = [encode_jpeg(plain(40 * i)) for i in range(6)]
    mjpeg = MjpegServer(jpegs, rate=15)

    def end_cameras() -> None:
        server.kill()
        mjpeg.cut()

    stand.stack.callback(end_cameras)
    stand.start(
        [
            camera("full", f"file:{moving}?loop=1&pace=max", qos=1),
            camera("rtsp", server.url(), qos=1),
            camera("mjpeg", mjpeg.url()),
            camera("clip", f"file:{moving}?loop=1"),
        ],
        trust={"allow_unsigned": True},
        trial={"shadow_frames": 3, "probation_s": 0.5, "timeout_s": 40},
    )
    for name in ("full", "rtsp", "mjpeg", "clip"):
        stand.results_go_on(name)
    done: Counter[str] = Counter()
    contents = [
        model_folder(stand.folder / f"new-{best}", "1", best=best, hidden=300, seed=best)
        for best in (1, 2)
    ]
    version = 1
    pause = threading.Event()
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        pause.wait(dice.uniform(1.0, 6.0))
        event = dice.choice(options.events.split(","))
        done[event] += 1
        match event:
            case "push" | "torn push":
                version += 1
                push(stand, contents[version % 2], str(version), torn=event == "torn push")
            case "rtsp":
                server.kill()
                pause.wait(dice.uniform(0.0, 4.0))
                server = RtspServer(port=port)
            case "mjpeg":
                address = mjpeg.port
                mjpeg.cut()
                pause.wait(dice.uniform(0.0, 4.0))
                mjpeg = MjpegServer(jpegs, rate=15, port=address)
            case "broker":
                stand.broker.stop(9)
                pause.wait(dice.uniform(0.0, 3.0))
                stand.broker.start()
        stand.body.look()
    for name in ("full", "rtsp", "mjpeg", "clip"):
        stand.results_go_on(name)
    accounts = stand.check_accounts()
    served = (stand.ears.last(f"{D}/model/level") or {}).get("live")
    if served != str(version):
        stand.body.wrong.append(f"version {served} serves, {version} was pushed last")
    lost = {name: account["lost"] for name, account in accounts.items()}
    if any(lost[name] for name in ("full", "rtsp")):
        stand.body.wrong.append(f"promised results were given up: {lost}")
    return {
        "seed": options.seed,
        "events": dict(done),
        "results": {name: stand.results(name) for name in accounts},
        "dropped": {name: account["dropped"] for name, account in accounts.items()},
        "lost": lost,
    }


def push(stand: Stand, folder: Path, version: str, *, torn: bool) -> None:
    """Push a version until it serves, through a broker that may go in between."""
    (folder / "model.toml").write_text(manifest(version))
    package = plain_package(folder, "level", version, cut=20_000)
    tries = [0]

    def attempt() -> None:
        tries[0] += 1
        end = send(stand.broker.port, "box", package)
        if end["state"] == "rejected":
            stand.body.wrong.append(f"version {version} was rejected: {end.get('why')}")

    if torn:
        # The sender is torn too: it waits in vain, and sends the same again.
        waiting = threading.Thread(target=_quietly(attempt), daemon=True)
        waiting.start()
        waiting.join(0.2)
        stand.broker.stop(9)
        stand.broker.start()

    def live() -> bool:
        return (stand.ears.last(f"{D}/model/level") or {}).get("live") == version

    deadline = time.monotonic() + 2 * LOST_SECONDS
    while not live():
        if time.monotonic() > deadline:
            stand.body.wrong.append(f"version {version} did not go live within two minutes")
            return
        again = threading.Thread(target=_quietly(attempt), daemon=True)
        again.start()
        again.join(10)


def _quietly(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except (OSError, AssertionError):
            return  # the broker was gone: it is sent again

    return run


def judged(stand: Stand, found: dict[str, Any], run: Callable[[], dict[str, Any]]) -> int:
    """Run it, print what was *found* as JSON and what went wrong; return the exit status."""
    try:
        found |= run()
        found |= stand.body.judge()
    except (RuntimeError, AssertionError) as problem:
        stand.body.wrong.append(str(problem))
    except BaseException as problem:
        # How `pytest.fail`, by which the tests' helpers give up, arrives here.
        if type(problem).__name__ != "Failed":
            raise
        stand.body.wrong.append(str(problem))
    found["wrong"] = stand.body.wrong
    if stand.body.wrong:
        print(stand.body.agent.words()[-4000:], file=sys.stderr)
    print(json.dumps(found))
    return 1 if stand.body.wrong else 0


def main() -> int:
    """Run one of them and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("restarts")
    one.add_argument("--restarts", type=int, default=50)
    one.add_argument("--settle", type=float, default=31.0, help="seconds between two rounds")
    one.set_defaults(run=restarts)
    two = commands.add_parser("absent")
    two.add_argument("--minutes", type=float, default=20.0)
    two.set_defaults(run=absent)
    three = commands.add_parser("all")
    three.add_argument("--minutes", type=float, default=30.0)
    three.add_argument("--seed", type=int, default=7)
    three.add_argument("--events", default=EVENTS, help="what happens at random; to find a cause")
    three.set_defaults(run=everything)
    options = parser.parse_args()
    why = rtsp_missing() if options.run is not absent else None
    if why is not None:
        print(f"soak: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="soak-") as place, ExitStack() as stack:
        folder = Path(place)
        model_folder(folder / "library" / "level", "1")
        broker = Mosquitto(folder / "broker")
        stack.callback(broker.stop)
        ears = Ears(broker.port)
        stack.callback(ears.close)
        stand = Stand(folder, broker, ears, stack)
        found: dict[str, Any] = {"command": options.command}
        return judged(stand, found, lambda: options.run(stand, options))


if __name__ == "__main__":
    sys.exit(main())
