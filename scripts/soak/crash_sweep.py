"""Kills the agent, the pusher and the broker at every step of a push, and looks at what is left.

    python scripts/soak/crash_sweep.py [--cases N] [--seed N] [--jobs N] [--only REGEX] [--keep DIR]

Every case has a real agent, a real mosquitto and a real `edge-agent push`, and ends with the same
questions: did the device run the old version or the new one and nothing else; did the push complete
when it was repeated, without sending again what was durable; is anything left that does not belong.
The agent dies in the fault points of `edge_agent.core.files`; pusher and broker die when a certain
block or state is seen on the wire. One line a case; exit status 1 if any failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pytest

from edge_agent.models.manifest import load
from edge_agent.models.packages.blocks import BlockList
from edge_agent.models.packages.build import Package, open_package, pack
from edge_agent.models.store.install import install_folder
from edge_agent.models.store.local_blocks import read_front
from edge_agent.models.store.store import NOTES, Store
from tests.helpers.fault_points import DEPLOY_POINTS, STORE_POINTS
from tests.helpers.support import AgentProcess, Heard, Listener, Mosquitto, agent_settings
from tests.helpers.tiny_networks import node, save_onnx

NAME = "part"
MANIFEST = """\
name = "part"
version = "{version}"
task = "raw"
file = "model.onnx"
[input]
channels = [0, 1, 2, 3]
window = 1
hop = 1
rate_hz = 50
layout = "flat-tc"
[output]
decoder = "raw"
"""
WIDTH = 170_000
"""Columns of the weights: 2.7 MB, more than one window of blocks."""
BLOCKS = 43
"""At least so many are sent; a few small ones are on the device already."""
DEADLINE = 60.0
"""Seconds that one case may take; never reached when all is well."""
BELONGS = frozenset({"store.lock", "agent.lock", "deployments.json", "announced.json"}) | {
    "commands.jsonl",
    "overrides.json",
    "models",
    "incoming",
    "staging",
    "prepared",
    "start.json",
    "starting",
    "flight",
    "engines.json",
    "served.json",
    "drift.json",
    "pages.json",
}

# What mosquitto_pub -q 1 does, which is not everywhere.
PUBLISH = """\
import pathlib, sys
from paho.mqtt import publish
topic, file, port = sys.argv[1:]
publish.single(topic, pathlib.Path(file).read_bytes(), 1, hostname="127.0.0.1", port=int(port))
"""

# How often each point is reached in one push; where often, only some of the times.
HITS: dict[str, tuple[int, ...]] = dict.fromkeys((*STORE_POINTS, *DEPLOY_POINTS), (1,))
HITS |= {
    "block.written": (1, 2, 5, 16, 17, 31, 32, 33, 40, 43),
    # How many there are depends on the disk: what arrives while it is busy is written together.
    "block.durable": (1, 2),
    "install.file": (1, 2),
    "pointers.written": (1, 2, 3, 4, 5),
    "pointers.renamed": (1, 2, 3, 4, 5),
}
# Not on the way of a push that goes well.
ELSEWHERE = frozenset({"rollback.done", "probation.suspended", "probation.resumed"})
# By the form of a case: what ends the agent on probation, and how it says that it ended.
ON_PROBATION = {
    "restart": (signal.SIGTERM, 0),
    "crash": (signal.SIGABRT, -signal.SIGABRT),
}
RECOVERY = ("pointers.written:1", "pointers.renamed:1", "rollback.done:1")
STATES = ("verifying", "preparing", "trial", "shadow", "probation")


@dataclass(frozen=True, slots=True)
class Case:
    """Who dies, and when."""

    label: str
    faults: tuple[str, ...] = ()
    """Where one life of the agent after the other ends."""
    agent: str | None = None
    """block:N or state:NAME, seen on the wire: when the agent is killed from outside."""
    pusher: str | None = None
    """When the pusher is killed; "with": together with the agent."""
    broker: str | None = None
    """When the broker is killed; "with": while the agent is dead."""
    form: str = "push"
    """push; whole: one message on in/model; rollback: the command; restart: SIGTERM on probation;
    crash: SIGABRT on probation."""
    fresh: bool = False
    """The device has no version yet."""


def all_cases(seed: int) -> list[Case]:
    """List every case; the seed chooses blocks."""
    chance = random.Random(seed)
    cases: list[Case] = []
    points = [
        f"{point}:{hit}" for point, hits in HITS.items() if point not in ELSEWHERE for hit in hits
    ]
    for point in points:
        cases += [
            Case(f"agent {point}", (point,)),
            Case(f"agent {point}, pusher with it", (point,), pusher="with"),
            Case(f"agent {point}, broker with it", (point,), broker="with"),
        ]
    arriving = [p for p in points if p.split(".")[0] in {"receive", "block", "install", "commit"}]
    serving = [p for p in points if p.split(".")[0] in {"accept", "trial", "swap", "pointers"}]
    for point in (*chance.sample(arriving, 6), *serving):
        cases.append(Case(f"fresh device, agent {point}", (point,), fresh=True))
    for point in [p for p in points if p.split(".")[0] not in {"receive", "block", "shadow"}]:
        if not point.startswith(("pointers", "delete")):
            cases.append(Case(f"in/model, agent {point}", (point,), form="whole"))
    for number in chance.sample(range(1, BLOCKS), 24):
        cases.append(Case(f"pusher block {number}", pusher=f"block:{number}"))
    for number in chance.sample(range(1, BLOCKS), 16):
        cases.append(Case(f"broker block {number}", broker=f"block:{number}"))
    for number in chance.sample(range(1, BLOCKS), 8):
        cases.append(Case(f"agent block {number}", agent=f"block:{number}"))
    for state in STATES:
        cases.append(Case(f"agent {state}", agent=f"state:{state}"))
        cases.append(Case(f"broker {state}", broker=f"state:{state}"))
        cases.append(Case(f"pusher {state}", pusher=f"state:{state}"))
    for second in RECOVERY:
        cases.append(Case(f"crash on probation, agent {second}", ("", second), form="crash"))
        cases.append(Case(f"rollback, agent {second}", (second,), form="rollback"))
    for first, second in (
        ("block.written:20", "block.written:3"),
        ("block.durable:2", "block.durable:1"),
        ("commit.renamed:1", "delete.renamed:1"),
        ("trial.marked:1", "trial.marked:1"),
        ("trial.passed:1", "shadow.begun:1"),
        ("swap.activated:1", "pointers.renamed:1"),
    ):
        cases.append(Case(f"agent {first} then {second}", (first, second)))
    cases.append(Case("crash on probation", ("",), form="crash"))
    for second in ("probation.resumed:1", "probation.passed:1", "pointers.written:1"):
        first = "swap.exchanged:1"
        cases.append(Case(f"agent {first} then {second}", (first, second)))
        cases.append(Case(f"restarted on probation, {second}", ("", second), form="restart"))
    cases.append(
        Case(
            "restarted on probation, agent probation.suspended:1",
            ("probation.suspended:1",),
            form="restart",
        )
    )
    return cases


class Wrong(Exception):
    """What a case has shown that must not be."""


@dataclass(slots=True)
class Prepared:
    """What all cases begin with."""

    root: Path
    packages: dict[str, Package]

    def state(self, *, fresh: bool, rollback: bool) -> Path:
        return self.root / ("fresh" if fresh else "both" if rollback else "old")


def prepare(root: Path) -> Prepared:
    """Make two versions of a tiny model, and state folders that have none, the old one, or both."""
    packages = {}
    for version in "12":
        folder = root / version
        folder.mkdir(parents=True)
        chance = np.random.default_rng(int(version))
        weights = chance.standard_normal((4, WIDTH), np.float32)
        save_onnx(
            folder / "model.onnx",
            [node("MatMul", ["x", "w"], ["wide"]), node("ReduceMean", ["wide"], ["y"], axes=[1])],
            [("x", "float32", (1, 4))],
            [("y", "float32", (1, 1))],
            {"w": weights},
        )
        (folder / "model.toml").write_text(MANIFEST.format(version=version))
        pack(folder, root / f"{version}.tar")
        opened = open_package(root / f"{version}.tar")
        assert opened is not None
        packages[version] = opened
    np.save(root / "signal.npy", np.random.default_rng(0).standard_normal((400, 4), np.float32))
    for name, versions in (("fresh", ""), ("old", "1"), ("both", "12")):
        store = Store(root / name)
        for version in versions:
            install_folder(store, load(root / version))
            store.activate(NAME, version)
    return Prepared(root, packages)


@dataclass(slots=True)
class Run:
    """One case under way."""

    case: Case
    prepared: Prepared
    broker: Mosquitto
    folder: Path
    device: str
    agent: AgentProcess
    listener: Listener
    began: float = field(default_factory=time.monotonic)
    pusher: subprocess.Popen[bytes] | None = None
    pushes: int = 0
    lives: int = 1
    deaths: list[str] = field(default_factory=list)
    durable: dict[int, datetime] = field(default_factory=dict)
    """By block: when it was seen on the disk first."""
    """Blocks that were on the disk at some death."""
    rolled_back: bool = False
    """A crash on probation has brought the old version back."""
    done: set[str] = field(default_factory=set)
    """Triggers that have fired."""

    @property
    def package(self) -> Package:
        return self.prepared.packages["2"]

    @property
    def store(self) -> Store:
        return Store(self.folder / "state")

    @property
    def words(self) -> Path:
        return self.folder / "push.log"

    # What is on the wire

    def sent(self) -> Counter[int]:
        """Count how often each block was sent."""
        return Counter(
            int(heard.topic.rpartition("/")[2])
            for heard in list(self.listener.heard)
            if "/block/" in heard.topic
        )

    def asked_again(self) -> set[int]:
        """List the blocks that the device has asked for when they were on its disk already.

        A sender may send what it was not asked for twice, when an answer is long in coming.
        """
        found = set()
        for heard in list(self.listener.heard):
            if f"/{self.device}/push/" not in heard.topic or not heard.payload:
                continue
            said = datetime.fromisoformat(heard.json["time"])
            for first, last in heard.json.get("need", []):
                blocks = range(first, last + 1)
                found |= {n for n in blocks if n in self.durable and said > self.durable[n]}
        return found

    def results(self, since: int = 0) -> Iterator[dict[str, str]]:
        for heard in list(self.listener.heard)[since:]:
            if "/result/" in heard.topic:
                yield heard.json

    def seen(self, trigger: str | None) -> bool:
        """Whether a trigger fires now, for the first time."""
        if trigger is None or trigger == "with" or trigger in self.done:
            return False
        kind, _, what = trigger.partition(":")
        if kind == "block":
            fires = sum(self.sent().values()) >= int(what)
        else:
            fires = any(
                heard.json.get("state") == what
                for heard in list(self.listener.heard)
                if f"/{self.device}/push/" in heard.topic
            )
        if fires:
            self.done.add(trigger)
        return fires

    # Who does what

    def push(self) -> None:
        """Begin, or repeat, what is asked of the device."""
        self.pushes += 1
        if self.pushes > 8:
            raise Wrong(f"the push did not complete in 8 attempts: {self.last_words()}")
        arguments = [str(self.prepared.root / "2.tar"), "--timeout", "20", "--wait"]
        command = [sys.executable, "-m", "edge_agent", "push", *arguments]
        match self.case.form:
            case "rollback":
                command = [sys.executable, "-m", "edge_agent", "rollback", NAME, "--timeout", "5"]
            case "whole":
                command = [sys.executable, "-c", PUBLISH, f"edge/{self.device}/in/model"]
                command += [str(self.prepared.root / "2.tar"), str(self.broker.port)]
        if self.case.form != "whole":
            command += ["--device", self.device, "--broker", self.broker.url]
        with self.words.open("ab") as output:
            self.pusher = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def last_words(self) -> str:
        return " / ".join(self.words.read_text().splitlines()[-2:]) if self.words.exists() else ""

    def kill_pusher(self) -> None:
        if self.pusher is not None:
            self.pusher.kill()
            self.pusher.wait()
            self.pusher = None
            self.deaths.append("pusher")

    def kill_broker(self) -> None:
        self.broker.stop(signal.SIGKILL)
        self.deaths.append("broker")
        self.note_durable()
        self.broker.start()

    def note_durable(self) -> None:
        """Note which blocks are on the disk: of the transfer, or all when it is installed."""
        store = self.store
        try:
            if store.transfer(NAME, "2") == self.package.transfer:
                for index in range(len(self.package.blocks)):
                    self.durable.setdefault(index, datetime.now(UTC))
                return
            folder = store.incoming / self.package.transfer
            blocks = BlockList.read(read_front(folder).block_list)
            data = (folder / "data").read_bytes()
        except FileNotFoundError:
            return
        for index, (offset, length) in enumerate(zip(blocks.offsets, blocks.lengths, strict=True)):
            if hashlib.sha256(data[offset : offset + length]).digest() == blocks.digests[index]:
                self.durable.setdefault(index, datetime.now(UTC))

    def bury(self) -> None:
        """Let others die with the agent, look at what is there, start it again."""
        status = self.agent.wait(10)
        if self.case.form == "crash" and status == -signal.SIGSEGV:
            # As faulthandler writes where the threads are, it may read a frame that is gone.
            status = -signal.SIGABRT
        if status not in {-signal.SIGKILL, ON_PROBATION.get(self.case.form, (0, None))[1]}:
            raise Wrong(f"the agent ended with {status}: {self.agent.words()[-400:]}")
        self.deaths.append("agent")
        self.note_durable()
        first = "agent" in self.deaths and self.deaths.count("agent") == 1
        if first and self.case.pusher == "with":
            self.kill_pusher()
        if first and self.case.broker == "with":
            self.kill_broker()
        self.set_fault()
        since = len(self.listener.heard)
        before = self.store.pointers(NAME)
        self.agent.restart()
        self.lives += 1
        if before.live is None:
            return
        # Before anybody repeats anything, it runs: the old one or the new one; where the new one
        # was on probation, the old one after a crash and the new one after any other end.
        wanted = {f"{NAME}@1", f"{NAME}@2"}
        undone = None
        if before.on_probation is not None:
            undone = before.previous if status == -signal.SIGABRT else None
            wanted = {f"{NAME}@{undone or before.live}"}
        while self.agent.process.poll() is None:
            if any(result["model"] in wanted for result in self.results(since)):
                self.rolled_back |= wanted == {f"{NAME}@{undone}"}
                return
            self.tick(f"results of {wanted} after {', '.join(self.deaths)}")

    def set_fault(self) -> None:
        number = self.lives
        fault = self.case.faults[number] if number < len(self.case.faults) else ""
        self.agent.environ = {"EDGE_AGENT_FAULT": fault} if fault else {}

    def tick(self, what: str) -> None:
        if time.monotonic() - self.began > DEADLINE:
            dead = ", ".join(self.deaths) or "nobody"
            raise Wrong(f"waited in vain for {what} (died: {dead}); {self.last_words()}")
        threading.Event().wait(0.02)

    # The case

    def go(self) -> None:
        """Let it happen, and go on until the device has settled."""
        online = f"edge/{self.device}/status"
        while self.case.form in {"rollback", "whole"}:
            if self.agent.process.poll() is not None:
                self.bury()  # a start writes files, too
            if any(
                h.topic == online and h.json.get("state") == "online" for h in self.listener.heard
            ):
                break
            self.tick("the device to be online")
        self.push()
        while not self.settled():
            if self.agent.process.poll() is not None:
                self.bury()
            if self.seen(self.case.agent):
                self.agent.signal(signal.SIGKILL)
            if self.seen(self.case.pusher):
                self.kill_pusher()
                self.note_durable()
            if self.seen(self.case.broker):
                self.kill_broker()
            if self.case.form in ON_PROBATION and self.seen("state:probation"):
                self.agent.signal(ON_PROBATION[self.case.form][0])
            ended = self.pusher is None or self.pusher.poll() is not None
            if ended and self.due():
                self.push()
            self.tick("the device to settle")

    def due(self) -> bool:
        """Whether what was asked for has to be asked for again."""
        if self.agent.process.poll() is not None:
            return False
        pointers = self.store.pointers(NAME)
        if self.case.form == "rollback":
            return pointers.live == "2"
        # In one message: the broker has it, unless that died too. It is sent again then, or when
        # it was rolled back.
        delivered = self.pusher is not None and self.pusher.returncode == 0
        lost = "broker" in self.deaths or self.rolled_back
        if self.case.form == "whole" and delivered and not lost:
            return False
        return pointers.live != "2" and (not pointers.marks or self.pusher is None)

    def settled(self) -> bool:
        """Whether what should run runs, unwatched, and nobody is at work any more."""
        wanted = "1" if self.case.form == "rollback" else "2"
        pointers = self.store.pointers(NAME)
        if pointers.live != wanted or pointers.marks:
            return False
        if self.pusher is not None and self.pusher.poll() is None:
            return False
        if len(self.deaths) < self.expected_deaths() or self.agent.process.poll() is not None:
            return False
        last: list[Heard] = [h for h in list(self.listener.heard) if "/result/" in h.topic][-1:]
        return bool(last) and last[0].json["model"] == f"{NAME}@{wanted}"

    def expected_deaths(self) -> int:
        case = self.case
        others = [who for who in (case.agent, case.pusher, case.broker) if who is not None]
        return len(case.faults) + len(others)

    def check(self) -> None:
        """Look at what is left.

        Raises:
            Wrong: something is not as it should be.

        """
        if self.agent.stop() != 0:
            raise Wrong(f"SIGTERM: {self.agent.words()[-300:]}")
        models = {result["model"] for result in self.results()}
        if not models <= {f"{NAME}@1", f"{NAME}@2"}:
            raise Wrong(f"results of {models}")
        again = sorted(self.asked_again())
        if again:
            raise Wrong(f"blocks {again} were durable and asked for again")
        store = self.store
        left = [*store.staging.iterdir(), *store.incoming.iterdir()]
        left += [path for path in store.root.iterdir() if path.name not in BELONGS]
        expected = {"pointers.json", *(("2",) if self.case.fresh else ("1", "2"))}
        found = {path.name for path in (store.models / NAME).iterdir()}
        if left or found != expected:
            raise Wrong(f"left over: {[str(p.relative_to(store.root)) for p in left]} {found}")
        for version in expected - {"pointers.json"}:
            for path in (self.prepared.root / version).iterdir():
                if (store.models / NAME / version / path.name).read_bytes() != path.read_bytes():
                    raise Wrong(f"{version}/{path.name} is not what was pushed")
            if not (store.models / NAME / version / NOTES / "accepted").is_file():
                raise Wrong(f"version {version} is not marked as accepted")


def run_case(
    case: Case, number: int, prepared: Prepared, broker: Mosquitto, place: Path
) -> tuple[bool, str]:
    """Run one case; gives whether all was well, and what there is to say."""
    folder = place / f"{number:03d}"
    state = prepared.state(fresh=case.fresh, rollback=case.form == "rollback")
    shutil.copytree(state, folder / "state")
    device = f"crash-{number}"
    listener = Listener(broker.port, f"edge/{device}/#")
    pipeline = {
        "name": "signal",
        "source": f"npy:{prepared.root / 'signal.npy'}?loop=1&rate=50",
        "model": NAME,
    }
    settings = agent_settings(
        device,
        broker.url,
        [pipeline],
        trust={"allow_unsigned": True},
        trial={"probation_s": 0.6, "shadow_frames": 3, "timeout_s": 20},
    )
    fault = case.faults[0] if case.faults else ""
    agent = AgentProcess(folder, settings, {"EDGE_AGENT_FAULT": fault} if fault else {})
    run = Run(case, prepared, broker, folder, device, agent, listener)
    try:
        run.go()
        run.check()
    except (Wrong, pytest.fail.Exception, subprocess.TimeoutExpired) as problem:
        return False, str(problem)
    finally:
        for process in (run.pusher, agent.process):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        listener.close()
    return True, "ok, rolled back" if run.rolled_back else "ok"


def main() -> int:
    """Run them; 1 if any failed."""
    parser = argparse.ArgumentParser(description="kill agent, pusher and broker at every step")
    parser.add_argument("--cases", type=int, help="a sample of so many; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="at a time; default 2")
    parser.add_argument("--only", default="", help="cases whose label matches this expression")
    parser.add_argument("--keep", type=Path, help="leave logs and folders of failed cases here")
    parser.add_argument("--list", action="store_true", help="only name the cases")
    options = parser.parse_args()
    cases = [case for case in all_cases(options.seed) if re.search(options.only, case.label)]
    if options.cases is not None and options.cases < len(cases):
        cases = random.Random(options.seed).sample(cases, options.cases)
    if options.list:
        print("\n".join(case.label for case in cases))
        return 0
    failed = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edge-agent-crash-") as name:
        place = Path(name)
        prepared = prepare(place / "prepared")
        brokers = [Mosquitto(place / f"broker-{job}") for job in range(options.jobs)]
        idle = list(brokers)
        printing = threading.Lock()

        def one(numbered: tuple[int, Case]) -> bool:
            nonlocal failed
            number, case = numbered
            with printing:
                broker = idle.pop()
            start = time.monotonic()
            good, words = run_case(case, number, prepared, broker, place)
            folder = place / f"{number:03d}"
            if not good and options.keep is not None:
                shutil.copytree(folder, options.keep / folder.name, dirs_exist_ok=True)
            shutil.rmtree(folder)
            with printing:
                idle.append(broker)
                took = time.monotonic() - start
                print(f"{number:3d} {took:5.1f} s  {case.label}: {words}", flush=True)
            return good

        try:
            with ThreadPoolExecutor(options.jobs) as pool:
                failed = sum(not good for good in pool.map(one, enumerate(cases)))
        finally:
            for broker in brokers:
                broker.stop()
    counts = json.dumps({"cases": len(cases), "failed": failed, "seed": options.seed})
    print(f"{counts} in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
