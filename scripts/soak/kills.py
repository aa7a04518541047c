"""Kills a busy agent at random moments, and looks at what it had promised.

    python scripts/soak/kills.py [--kills N] [--seed N] [--load N] [--keep DIR]

One agent with two pipelines of QoS 1: a line that parts cross, and a value that rises and falls.
Versions are pushed to it all the while, settings are kept by `set`, and the broker is away now and
then. It is killed within its first moments or some seconds later, again and again. In the end:
every change of the value whose results were heard has its event; what has begun has ended; nothing
came twice without saying so; totals are what the events say; the settings that were acknowledged
last hold; no version went back; nothing is left half done. Exit status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    CHECKOUT,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    run_cli,
    wait_until,
)

D = "edge/box"
LIGHT = 100.0
"""Gray level above which the lamp is on."""
BUSY = "while True: pass"


class Box:
    """The device, its broker, who listens, and who gives it work."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.broker = Mosquitto(folder / "broker", "persistence true\n" + _stored(folder))
        self.heard = Listener(self.broker.port, client_id="kills", clean_session=False)
        brightness(folder / "models" / "light")
        clip = write_clip(folder / "clip.avi", [plain(220)] * 20 + [plain(20)] * 20)
        on = {"name": "on", "when": "value", "value": "light", "above": LIGHT, "below": LIGHT}
        gate = {"name": "gate", "points": [[0.5, 1.0], [0.5, 0.0]], "anchor": "center"}
        belt = {
            "name": "belt",
            "source": f"file:{CHECKOUT / 'models' / 'media' / 'conveyor.mp4'}?loop=1",
            "model": "parts-inspection",
            "lines": [gate],
            "rules": [{"name": "passed", "when": "cross", "line": "gate"}],
            "qos": 1,
        }
        lamp = {"name": "lamp", "source": f"file:{clip}?loop=1", "model": "light", "qos": 1}
        settings = agent_settings(
            "box",
            self.broker.url,
            [belt, {**lamp, "rules": [on]}],
            models_dirs=[str(folder / "models")],
            trust={"allow_unsigned": True},
            trial={"probation_s": 3, "shadow_frames": 3},
        )
        self.agent = AgentProcess(folder / "box", settings)
        self.acknowledged: float | None = None
        """The rate that was kept last."""
        self.given_up = set[str]()
        """Versions whose sender has ended before they were live."""
        self.over = threading.Event()
        self.workers = [threading.Thread(target=each) for each in (self._push, self._set)]

    def _push(self) -> None:
        """Push one version after the other; what is cut off is no matter."""
        for version in itertools.count(2):
            if self.over.is_set():
                return
            folder = brightness(self.folder / "pushed" / "light")
            manifest = folder / "model.toml"
            text = manifest.read_text().replace('version = "1"', f'version = "{version}"')
            manifest.write_text(text)
            self.given_up.add(str(version))
            # Each step of a trial that begins anew gives it its time-out again.
            with suppress(subprocess.TimeoutExpired):
                done = run_cli(
                    *("push", str(folder), "--device", "box", "--broker", self.broker.url),
                    *("--wait", "--timeout", "20"),
                )
                if done.returncode == 0:
                    self.given_up.remove(str(version))
            shutil.rmtree(folder)

    def _set(self) -> None:
        """Keep a rate, and remember it once that was acknowledged."""
        for rate in itertools.cycle((30, 20)):
            if self.over.wait(0.5):
                return
            said = run_cli(
                *("set", "lamp", f"rate={rate}", "--device", "box", "--persist"),
                *("--broker", self.broker.url),
            )
            if said.returncode == 0:
                self.acknowledged = rate
            else:
                self.acknowledged = None  # it may have been carried out all the same

    def kill(self) -> None:
        """Kill the agent at a random moment; now and then while the broker is away."""
        if self.chance.random() < 0.3:
            self.over.wait(self.chance.uniform(0, 2))
        else:
            begun = len(self.heard.on(f"{D}/result/lamp"))
            wait_until(lambda: len(self.heard.on(f"{D}/result/lamp")) > begun, "a result", 120)
            self.over.wait(self.chance.uniform(0, 6))
        away = self.chance.random() < 0.1
        if away:
            self.broker.stop()
            self.over.wait(self.chance.uniform(0, 3))
        if self.agent.process.poll() not in {None, -signal.SIGKILL}:
            raise SystemExit(f"the agent ended by itself:\n{self.agent.words()[-3000:]}")
        self.agent.process.kill()
        self.agent.wait()
        if away:
            self.broker.start()
        self.agent.restart()

    def finish(self) -> None:
        """Let everything arrive, and end in good order."""
        if not all(each.is_alive() for each in self.workers):
            raise SystemExit("who pushes or sets has ended: the kills since were of an idle agent")
        self.over.set()
        for each in self.workers:
            each.join()
        mark = len(self.heard.heard)
        self.heard.wait_for(
            lambda heard: {h.topic for h in heard[mark:]} >= {f"{D}/result/belt", f"{D}/health"},
            "the last run",
        )
        wait_until(
            lambda: (self.heard.last(f"{D}/health") or {}).get("spool", {}).get("waiting", 1) == 0,
            "the spool to be empty",
        )
        status = self.agent.stop()
        if status:
            raise SystemExit(f"the agent ended with {status}:\n{self.agent.words()[-3000:]}")
        self.heard.catch_up()

    def wrong(self) -> Iterator[str]:
        """Yield what must not be, a line each."""
        lamp, belt = self.heard.on(f"{D}/event/lamp"), self.heard.on(f"{D}/event/belt")
        there = {(e["session"], e["seq"], e["state"]) for e in lamp}
        for session, seq, state in _turns(self.heard.on(f"{D}/result/lamp")):
            if (session, seq, state) not in there:
                yield f"no event: {state} of {session}, result {seq}"
        begun, ended = ({e["event"] for e in lamp if e["state"] == s} for s in ("begin", "end"))
        yield from (f"begun and not ended: {name}" for name in sorted(begun - ended))
        yield from (f"ended and not begun: {name}" for name in sorted(ended - begun))
        # What the broker sends us again, after its own restart, is no word of the agent.
        told = (h.json for h in self.heard.heard if "/event/" in h.topic and not h.again)
        first = Counter((e["event"], e["state"], e["seq"]) for e in told if not e.get("replayed"))
        yield from (f"twice without a word: {key}" for key, count in first.items() if count > 1)
        crossed = Counter(e["direction"] for e in {e["event"]: e for e in belt}.values())
        latest = (self.heard.last(f"{D}/count/belt") or {}).get("lines", {}).get("gate", {})
        totals = {way: sum(labels.values()) for way, labels in latest.items()}
        if {way: n for way, n in totals.items() if n} != dict(crossed):
            yield f"totals are {totals}, events say {dict(crossed)}"
        rate = (self.heard.last(f"{D}/pipeline/lamp") or {}).get("rate")
        if self.acknowledged is not None and rate != self.acknowledged:
            yield f"rate is {rate}, {self.acknowledged} was acknowledged"
        live = 0
        for state in self.heard.on(f"{D}/model/light"):
            now = int(state["live"] or 0)
            if now < live and state.get("last", {}).get("outcome") != "rolled-back":
                yield f"version {now} is live after {live}: {json.dumps(state)}"
            live = now
        for left in ("staging", "incoming"):
            place = self.folder / "box" / "state" / left
            for path in place.iterdir() if place.is_dir() else ():
                # What its sender has left is kept for a week, to be continued.
                package = path / "package.json"
                version = json.loads(package.read_text())["version"] if package.exists() else None
                if left == "staging" or version not in self.given_up:
                    yield f"left: {path}"
        if "Traceback" in self.agent.words():
            yield "a traceback in the log"

    def figures(self) -> str:
        """Sum up what has happened, in a line."""
        sessions = {e["session"] for e in self.heard.on(f"{D}/result/lamp")}
        events = [*self.heard.on(f"{D}/event/lamp"), *self.heard.on(f"{D}/event/belt")]
        live = [state["live"] for state in self.heard.on(f"{D}/model/light")]
        outcomes = Counter(
            state["last"]["outcome"]
            for state in self.heard.on(f"{D}/model/light")
            if "last" in state
        )
        return (
            f"{len(sessions)} runs with results, {len(events)} events, "
            f"{sum(bool(e.get('replayed')) for e in events)} of them replayed, "
            f"{len(set(live))} versions live, model states by outcome: {dict(outcomes)}"
        )


def _stored(folder: Path) -> str:
    (folder / "broker").mkdir(parents=True, exist_ok=True)
    return f"persistence_location {folder}/broker/\nautosave_interval 1\nautosave_on_changes true\n"


def _turns(results: list[dict[str, Any]]) -> Iterator[tuple[str, int, str]]:
    """Yield what began or ended by the results that were heard: k of n is two of three.

    Before that it had been otherwise for two at least: one result alone begins nothing to be ended.
    """
    sessions: dict[str, dict[int, bool]] = {}
    for each in results:
        sessions.setdefault(each["session"], {})[each["seq"]] = each["values"]["light"] > LIGHT
    for session, told in sessions.items():
        for seq, light in told.items():
            before = tuple(told.get(seq - n) for n in (1, 2, 3))
            if before == (light, not light, not light):
                yield session, seq, "begin" if light else "end"


def main() -> int:
    """Kill, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=int, default=2, help="processes that compute beside it")
    parser.add_argument("--keep", type=Path, help="a folder to leave everything in")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for _ in range(options.load):
            stack.callback(subprocess.Popen([sys.executable, "-c", BUSY]).kill)
        box = Box(folder.resolve(), options.seed)
        stack.callback(box.heard.close)
        stack.callback(box.broker.stop)
        stack.callback(box.agent.process.kill)
        stack.callback(box.over.set)
        for worker in box.workers:
            worker.start()
        for number in range(1, options.kills + 1):
            box.kill()
            if number % 10 == 0:
                print(f"{number} kills: {box.figures()}", flush=True)
        box.finish()
        wrong = list(box.wrong())
        print(box.figures())
        for line in wrong:
            print(f"WRONG {line}")
        print(f"{options.kills} kills, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
