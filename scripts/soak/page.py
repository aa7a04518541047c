"""Measure what the page costs, in its server and in a browser, while a fleet of devices publishes.

    .venv/bin/python scripts/soak/page.py [--devices N] [--rate R] [--seconds S]

N simulated devices (500) publish R results a second each (5) and their health every ten seconds.
A headless Chromium shows all of them, and in the second half of the S seconds (600) one of them.
Time of processors and memory of both are printed every half a minute; the machine should have
nothing else to do. Exit status 1: more than a fifth of a core, or memory that grows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

import psutil  # noqa: E402
from playwright.sync_api import CDPSession, sync_playwright  # noqa: E402

from edge_agent.mqtt.payloads import iso  # noqa: E402
from tests.helpers.support import Listener, Mosquitto  # noqa: E402

MOST_SHARE = 0.2
"""Of a core, the server and the browser each."""
MOST_GROWTH_MB = 8.0
"""Between the second reading of a view and its last."""
READING = 30.0
HEALTH_SECONDS = 10.0
SLICE = 0.05
"""Seconds between two bursts of results."""


def health(number: int) -> dict[str, Any]:
    """Return what a device says of itself."""
    figures: dict[str, Any] = {
        "fps": 5.0,
        "captured": 500,
        "inferred": 500,
        "published": 500,
        "waiting": 0,
    }
    figures |= {"dropped": {}, "latency_ms": {"p50": 5.0, "p95": 8.0, "p99": 9.0 + number % 7}}
    return {
        "state": "ok",
        "why": [],
        "interval_s": HEALTH_SECONDS,
        "uptime_s": time.monotonic(),
        "rss_mb": 200.0 + time.time() % 3,
        "cpu_percent": 20.0 + time.time() % 5,
        "temperature_c": 50.0,
        "pipelines": {"door": figures},
    }


def result(number: int, seq: int) -> dict[str, Any]:
    """Return a result of two boxes."""
    box = {"label": "person", "score": 0.9, "box": [12.0, 30.5, 96.0, 131.5]}
    return {
        "session": "s",
        "pipeline": "door",
        "seq": seq,
        "model": "face@3",
        "engine": "openvino:CPU",
        "source": {"width": 640, "height": 480},
        "detections": [box, {**box, "label": "car", "score": 0.5 + number % 50 / 100}],
        "timing": {"age_ms": 9.8, "preprocess_ms": 0.6, "infer_ms": 6.1, "postprocess_ms": 0.4},
    }


class Fleet:
    """All devices, published by one thread."""

    def __init__(self, port: int, count: int, rate: float) -> None:
        """Say what is retained, and begin to publish."""
        self.published = 0
        self._client = Listener(port, "none").client
        self._count, self._rate = count, rate
        self._closing = threading.Event()
        info = {"groups": ["lab"], "pipelines": [{"name": "door", "source": "v4l2:/dev/video0"}]}
        for number in range(count):
            for kind, says in (
                ("status", {"state": "online", "reason": "started", "session": "s"}),
                ("info", info),
                ("model/face", {"name": "face", "live": "3", "versions": ["3"]}),
                ("source/door", {"state": "running"}),
                ("health", health(number)),
            ):
                self._say(number, kind, says, retain=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()

    def _say(self, number: int, kind: str, says: dict[str, Any], *, retain: bool = False) -> None:
        name = f"box-{number:04}"
        says = {"schema": 1, "device": name, "time": iso(time.time_ns()), **says}
        self._client.publish(f"edge/{name}/{kind}", json.dumps(says), retain=retain)
        self.published += 1

    def _run(self) -> None:
        """Publish in small bursts, each device in its turn."""
        begun, results, healths = time.monotonic(), 0, 0
        for burst in itertools.count(1):
            if self._closing.wait(max(0.0, begun + burst * SLICE - time.monotonic())):
                return
            passed = burst * SLICE
            while results < passed * self._rate * self._count:
                number, seq = results % self._count, results // self._count
                self._say(number, "result/door", result(number, seq))
                results += 1
            while healths < passed / HEALTH_SECONDS * self._count:
                number = healths % self._count
                self._say(number, "health", health(number), retain=True)
                healths += 1


def used(process: psutil.Process) -> tuple[float, float]:
    """Return seconds of processors and MB of memory of a process and all that it has started.

    Memory that several share is shared out among them.
    """
    seconds = megabytes = 0.0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            seconds += times.user + times.system
            megabytes += each.memory_full_info().pss / 2**20
    return seconds, megabytes


def heap_mb(session: CDPSession) -> float:
    """Return what the page's script holds once nothing is left to be collected."""
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 2**20


def watch(server: int, session: CDPSession, seconds: float) -> bool:
    """Print a line for each reading; return whether the bounds held."""
    own = psutil.Process().children(recursive=True)
    browser = next(each for each in own if each.name().startswith("chrom"))
    parts = {"server": psutil.Process(server), "browser": browser}
    shares: dict[str, list[float]] = {name: [] for name in parts}
    memory: dict[str, list[float]] = {"server": [], "heap": []}
    ends = time.monotonic() + seconds
    while time.monotonic() < ends - 1:
        before, at = [used(each)[0] for each in parts.values()], time.monotonic()
        time.sleep(min(READING, ends - time.monotonic()))
        now, span = [used(each) for each in parts.values()], time.monotonic() - at
        for name, old, new in zip(parts, before, now, strict=True):
            shares[name].append((new[0] - old) / span)
        memory["server"].append(now[0][1])
        memory["heap"].append(heap_mb(session))
        print(
            *(f"{name} {each[-1]:.1%} of a core," for name, each in shares.items()),
            f"server {now[0][1]:.1f} MB, browser {now[1][1]:.0f} MB,",
            f"of it the page's heap {memory['heap'][-1]:.1f} MB",
            flush=True,
        )
    grown = {name: each[-1] - each[min(1, len(each) - 1)] for name, each in memory.items()}
    print("grown by", *(f"{mb:.1f} MB ({name})" for name, mb in grown.items()), flush=True)
    return (
        max(median(each) for each in shares.values()) < MOST_SHARE
        and max(grown.values()) < MOST_GROWTH_MB
    )


def main() -> int:
    """Measure in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=500)
    parser.add_argument("--rate", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        broker = Mosquitto(Path(folder) / "broker")
        fleet = Fleet(broker.port, options.devices, options.rate)
        command = [sys.executable, "-m", "edge_agent", "ui", "--listen", "127.0.0.1:0"]
        server = subprocess.Popen(
            [*command, "--broker", broker.url], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
        )
        assert server.stdout is not None
        url = re.findall(r"http://\S+", server.stdout.readline())[0]
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        session = page.context.new_cdp_session(page)
        page.goto(url)
        page.get_by_role("link", name="box-0000").wait_for()
        begun, at = fleet.published, time.monotonic()
        print(f"all of {options.devices} devices:", flush=True)
        good = watch(server.pid, session, options.seconds / 2)
        page.goto(f"{url}/#/device/box-0007")
        page.locator(".chart canvas").first.wait_for()
        print("one device:", flush=True)
        good = watch(server.pid, session, options.seconds / 2) and good
        rate = (fleet.published - begun) / (time.monotonic() - at)
        print(f"{rate:.0f} messages a second were published")
        browser.close()
        server.terminate()
        code = server.wait(10)
        fleet.close()
        broker.stop()
    return 0 if good and code == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
