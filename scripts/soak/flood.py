"""Ask far more than a box carries, beside its cameras, and exchange the model meanwhile.

    python scripts/soak/flood.py [--seconds 60] [--cameras 2] [--callers 64]

The agent runs cameras, and is asked over HTTP about a picture, by a model that one of the cameras
has, too. At first nobody asks; then 8 callers do, which gives what the box carries; then as many
as are wanted, in processes of the lowest priority, that do not heed `Retry-After`; then once more,
and amid that a new version goes live, whose trial takes the processor by itself.

Prints one JSON object; ends with 1 if a camera lost a frame or its ages' 99th percentile grew to
more than 1.5 times, if a request got no answer, or another one than a result or that it is too
much, if the new version did not answer, or if memory, threads or descriptors grew (see `soak.py`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import av
from soak import D, Ears, Stand, camera, judged

from tests.helpers.small_models import encode_jpeg
from tests.helpers.support import CHECKOUT, Mosquitto, free_port, run_cli

MODEL = CHECKOUT / "models" / "parts-inspection"
CLIP = CHECKOUT / "models" / "media" / "conveyor.mp4"
CARRIED = 8
"""Callers that show what the box carries."""
PROCESSES = 2
GROWTH = 1.5
ANSWERS = {200, 429}


class Ages(Ears):
    """Keeps the age of each result."""

    def __init__(self, port: int) -> None:
        self.ages: list[float] = []
        super().__init__(port)

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        super()._on_message(client, userdata, message)
        if message.topic.startswith(f"{D}/result/"):
            self.ages.append(self.latest[message.topic]["timing"]["age_ms"])


def ask(wire: socket.socket, request: bytes) -> tuple[int, bytes]:
    """Ask once on a connection."""
    wire.sendall(request)
    said = b""
    while (found := re.search(rb"content-length: (\d+).*?\r\n\r\n", said, re.DOTALL)) is None:
        if not (part := wire.recv(65536)):
            raise ConnectionError("the connection was closed")
        said += part
    while len(said) < found.end() + int(found[1]):
        said += wire.recv(65536)
    return int(said[9:12]), said[found.end() :]


def flood(port: int, request: bytes, callers: int, seconds: float, found: Any) -> None:
    """Ask from so many connections, and put the count of statuses and versions into *found*."""
    os.nice(19)
    until, counts = time.monotonic() + seconds, Counter[Any]()

    def call() -> None:
        mine = Counter[Any]()
        try:
            with socket.create_connection(("127.0.0.1", port), 60) as wire:
                while time.monotonic() < until:
                    status, body = ask(wire, request)
                    mine[status] += 1
                    if status == 200:
                        mine[json.loads(body)["model"]] += 1
        except OSError as problem:
            mine[str(problem)] += 1
        counts.update(mine)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.put(counts)


def p99(ages: list[float]) -> float:
    """Give the 99th percentile."""
    return sorted(ages)[int(len(ages) * 0.99)] if ages else 0.0


class Flood:
    """The run."""

    def __init__(self, stand: Stand, ages: Ages, options: argparse.Namespace) -> None:
        self.stand, self.ages, self.options = stand, ages, options
        self.port = free_port()
        with av.open(str(CLIP)) as container:
            body = encode_jpeg(next(container.decode(video=0)).to_ndarray(format="bgr24"))
        head = (
            f"POST /predict/{MODEL.name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        )
        self.request = f"{head}\r\n\r\n".encode() + body

    def asked(self, callers: int, seconds: float, swap: Path | None = None) -> Counter[Any]:
        """Have the box asked, look at it meanwhile, and give the counts."""
        context = multiprocessing.get_context("spawn")
        found = context.Queue()
        share = (self.port, self.request, callers // PROCESSES, seconds, found)
        processes = [context.Process(target=flood, args=share) for _ in range(PROCESSES)]
        for process in processes:
            process.start()
        began = time.monotonic()
        while any(process.exitcode is None for process in processes) and found.empty():
            time.sleep(1)
            if swap is None:
                continue
            self.stand.body.look()
            if time.monotonic() > began + seconds / 3 and swap.exists():
                done = run_cli("add", str(swap), "--config", str(self.stand.body.agent.config))
                if done.returncode:
                    self.stand.body.wrong.append(f"add: {done.stderr}")
                shutil.rmtree(swap)
        counts = sum((found.get() for _ in processes), Counter[Any]())
        for process in processes:
            process.join()
        return counts

    def run(self) -> dict[str, Any]:
        """Go through it."""
        stand, seconds = self.stand, self.options.seconds
        newer = stand.folder / "newer"
        shutil.copytree(MODEL, newer)
        manifest = (newer / "model.toml").read_text()
        (newer / "model.toml").write_text(manifest.replace('"3"', '"4"', 1))
        cameras = [
            camera(f"c{number}", f"file:{CLIP}?loop=1", model=MODEL.name, rate=5)
            for number in range(self.options.cameras)
        ]
        stand.start(
            cameras,
            engine="auto",
            infer={"models": [MODEL.name], "per_s": 100_000},
            http={"listen": f"127.0.0.1:{self.port}"},
            trial={"probation_s": 5},
        )
        for each in cameras:
            stand.results_go_on(each["name"])
        self.asked(CARRIED, 10)
        stand.body.look()  # waits for the children that prepare its form
        carried = self.asked(CARRIED, 10)[200] / 10
        before, ages = stand.check_accounts(), self.ages
        ages.ages.clear()
        time.sleep(seconds / 2)
        quiet = p99(ages.ages)
        ages.ages.clear()
        counts = self.asked(self.options.callers, seconds)
        busy, results = p99(ages.ages), len(ages.ages)
        ages.ages.clear()
        counts += self.asked(self.options.callers, seconds, newer)
        wrong, after = stand.body.wrong, stand.check_accounts()
        statuses = {key: n for key, n in counts.items() if key != f"{MODEL.name}@3"}
        new = statuses.pop(f"{MODEL.name}@4", 0)
        dropped = {name: _more(before[name], after[name]) for name in after}
        if busy > GROWTH * quiet:
            wrong.append(f"the 99th percentile of ages is {busy / quiet:.2f} times as high")
        if statuses.keys() - ANSWERS:
            wrong.append(f"requests were lost: {statuses}")
        if not new:
            wrong.append("the new version did not answer")
        if any(dropped.values()):
            wrong.append(f"frames were lost: {dropped}")
        return {
            "carried_s": carried,
            "asked_s": round(sum(statuses.values()) / seconds / 2, 1),
            "answers": {str(key): n for key, n in statuses.items()},
            "of_the_new_version": new,
            "p99_ms": {
                "quiet": quiet,
                "flood": busy,
                "ratio": round(busy / quiet, 2),
                "new_version": p99(ages.ages),
            },
            "results": results,
            "dropped": dropped,
        }


def _more(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """Count what was dropped between two accounts, but for what `rate` leaves out."""
    counts = Counter(after["dropped"])
    counts.subtract(before["dropped"])
    return {reason: count for reason, count in counts.items() if count and reason != "rate"}


def main() -> int:
    """Run it and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the flood")
    parser.add_argument("--cameras", type=int, default=2)
    parser.add_argument("--callers", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flood-") as place, ExitStack() as stack:
        folder = Path(place)
        shutil.copytree(MODEL, folder / "library" / MODEL.name)
        broker = Mosquitto(folder / "broker")
        stack.callback(broker.stop)
        ages = Ages(broker.port)
        stack.callback(ages.close)
        stand = Stand(folder, broker, ages, stack)
        return judged(stand, {}, Flood(stand, ages, options).run)


if __name__ == "__main__":
    sys.exit(main())
