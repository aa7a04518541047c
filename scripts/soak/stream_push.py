"""Push a model through a proxy that limits the rate; measure when it first infers a live frame.

    python scripts/soak/stream_push.py MODEL [--rate-mbps 5 25 100] [--runs 5] [--engine NAME]
        [--json]

A real broker, a real agent that plays a clip with the model's first version, and a proxy between
the two. Each run pushes a version of which every block is new, in turns with and without streaming.
`first` is last.first_inference_ms: from the arrival of the offer to the first correct inference of
the new version on a live frame. Beside it stands what it may take: the transfer + 1.3 inferences +
50 ms, by the transfer of the same push and by bytes ÷ rate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from edge_agent.bench.push.versions import versions
from edge_agent.config.settings import Broker
from edge_agent.core.bundled import bundled
from edge_agent.delivery.sender import Sender
from edge_agent.models.packages.build import Package
from edge_agent.mqtt.loopback import Loopback, broker
from edge_agent.mqtt.one_shot import OneShotClient

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "bench"
PATIENCE = 300.0
QUIET_LOOKS = 15
INFERENCES, EXTRA_MS = 1.3, 50.0
# The agent as it is, and one that has never heard of a model that runs while it arrives.
AGENT = "import sys; from edge_agent.cli.main import main; sys.exit(main(sys.argv[1:]))"
WITHOUT = (
    "from edge_agent.delivery.rollout.deployer import Deployer; Deployer.expect = lambda *_: None;"
    + AGENT
)
PROXY = """\
import socket, sys, threading, time
port, target, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
def pump(one, other, rate):
    due = time.perf_counter()
    while data := one.recv(1 << 16 if rate > 3e7 else 1 << 13):
        if rate:
            # No more credit than a few packets of silence.
            due = max(due, time.perf_counter() - 0.002) + len(data) / rate
            pause = due - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)
listener = socket.create_server(("127.0.0.1", port))
print("ready", flush=True)
while True:
    near, _ = listener.accept()
    far = socket.create_connection(("127.0.0.1", target))
    for each in (near, far):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=pump, args=(far, near, rate), daemon=True).start()
    threading.Thread(target=pump, args=(near, far, 0), daemon=True).start()
"""


def main() -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rate-mbps", type=float, nargs="+", default=[5, 25, 100], help="MB/s")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--frames", type=float, default=5, help="frames a second of the pipeline")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    held = True
    with tempfile.TemporaryDirectory(prefix="stream-push-") as name:
        place = Path(name)
        with broker(place) as loopback:
            for rate in options.rate_mbps:
                report = _measure(place / f"{rate:g}", loopback, rate, options)
                held &= report["held"]
                print(json.dumps(report) if options.json else _table(report), flush=True)
    return 0 if held else 1


def _measure(place: Path, loopback: Loopback, rate: float, options: Any) -> dict[str, Any]:
    """Push the versions through a proxy of a rate."""
    place.mkdir()
    runs: dict[str, list[dict[str, float]]] = {"streamed": [], "whole": []}
    packages = versions(options.model, place)
    first = next(packages)
    for way, program in (("streamed", AGENT), ("whole", WITHOUT)):
        with (
            _proxy(loopback.port, rate) as port,
            _agent(place / way, port, loopback, first, program, options) as (client, agent),
        ):
            _push(client, first)
            for number in range(options.runs):
                package = next(packages)
                _settle(agent)
                run, last = _push(client, package)
                run["ideal_ms"] = package.header.size / rate / 1e3
                run["inference_ms"] = last["trial"]["infer_ms"]
                run["first_ms"] = last["first_inference_ms"]
                runs[way].append(run)
                print(
                    f"{rate:g} MB/s, {way}, run {number + 1}: transfer {run['transfer_ms']:.0f} ms,"
                    f" first {run['first_ms']} ms, live {run['live_ms']:.0f} ms;"
                    f" {last['trial'].get('streamed', '')}",
                    file=sys.stderr,
                    flush=True,
                )
    return _report(rate, runs)


def _settle(agent: psutil.Process) -> None:
    """Wait until what the last version has left to do in the background is done."""
    deadline = time.monotonic() + PATIENCE
    quiet = 0
    while quiet < QUIET_LOOKS and time.monotonic() < deadline:
        quiet = 0 if agent.children() else quiet + 1
        time.sleep(0.1)


def _report(rate: float, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    report: dict[str, Any] = {"rate_mb_s": rate}
    inference = statistics.median(r["inference_ms"] for r in runs["streamed"])
    extra = INFERENCES * inference + EXTRA_MS
    for way, found in runs.items():
        report[way] = {
            key: _spread([run[key] for run in found])
            for key in ("transfer_ms", "ideal_ms", "first_ms", "live_ms")
        }
        report[way]["beyond_transfer_ms"] = _spread(
            [run["first_ms"] - run["transfer_ms"] for run in found]
        )
    plain = report["whole"]["transfer_ms"]["median"]
    report["inference_ms"] = inference
    report["allowed_beyond_ms"] = extra
    report["beyond_plain_transfer_ms"] = report["streamed"]["first_ms"]["median"] - plain
    report["held"] = report["streamed"]["beyond_transfer_ms"]["median"] <= extra
    return report


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "min": round(min(values), 1),
        "median": round(statistics.median(values), 1),
        "max": round(max(values), 1),
    }


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['rate_mb_s']:g} MB/s; one inference {report['inference_ms']:.1f} ms"]
    for way in ("streamed", "whole"):
        cells = [
            f"{key.removesuffix('_ms')} {value['median']} ({value['min']} to {value['max']})"
            for key, value in report[way].items()
        ]
        lines.append(f"  {way:9}" + ", ".join(cells))
    verdict = "held" if report["held"] else "NOT held"
    lines.append(
        f"  allowed beyond the transfer: {report['allowed_beyond_ms']:.1f} ms: {verdict};"
        f" beyond the transfer without streaming: {report['beyond_plain_transfer_ms']:.1f} ms"
    )
    return "\n".join(lines)


def _push(client: OneShotClient, package: Package) -> tuple[dict[str, float], dict[str, Any]]:
    """Push; gives ms from the offer, and what the device says of how it ended."""
    name, version = package.header.name, package.header.version
    state = f"edge/{DEVICE}/model/{name}"
    client.subscribe([f"edge/+/push/{package.transfer}", state])
    listening = _Listening(client, state)
    sender = Sender(listening, "edge", DEVICE, [DEVICE], package)  # type: ignore[arg-type]
    progress = sender.progress[DEVICE]
    start = time.perf_counter()
    run: dict[str, float] = {}
    sender.offer()
    while listening.last.get("version") != version:
        sender.step(0.2)
        now = time.perf_counter() - start
        if "transfer_ms" not in run and progress.state not in {"offered", "need"}:
            run["transfer_ms"] = now * 1e3
        if now > PATIENCE or progress.state == "rejected":
            raise SystemExit(f"the push of {name} ended as {progress.state}: {progress.why}")
    run["live_ms"] = (time.perf_counter() - start) * 1e3
    return run, listening.last


class _Listening:
    """A connection that also keeps what the device says of a model's last version."""

    def __init__(self, client: OneShotClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self.last: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def next(self, timeout: float) -> Any:
        heard = self._client.next(timeout)
        if heard is not None and heard.topic == self._topic and heard.payload:
            self.last = json.loads(heard.payload).get("last", {})
        return heard


@contextmanager
def _proxy(target: int, rate: float) -> Iterator[int]:
    from edge_agent.mqtt.loopback import free_port

    port = free_port(target + 1)
    command = [sys.executable, "-c", PROXY, str(port), str(target), str(rate * 1e6)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or "ready" not in process.stdout.readline():
                raise SystemExit("the proxy does not start")
            yield port
        finally:
            process.kill()


@contextmanager
def _agent(
    place: Path, port: int, loopback: Loopback, first: Package, program: str, options: Any
) -> Iterator[tuple[OneShotClient, psutil.Process]]:
    """Run an agent behind a proxy; gives a connection to the broker itself, and the agent."""
    place.mkdir()
    clip = bundled("models") / "media" / "conveyor.mp4"
    source = f"file:{quote(str(clip))}?loop=1"
    settings = place / "edge-agent.toml"
    settings.write_text(
        f'device_id = "{DEVICE}"\nstate_dir = "state"\nengine = "{options.engine}"\n'
        f'[broker]\nurl = "mqtt://127.0.0.1:{port}"\n'
        "[trust]\nallow_unsigned = true\n[trial]\nprobation_s = 0\nshadow_frames = 0\n"
        f'[[pipelines]]\nname = "clip"\nsource = "{source}"\nmodel = "{first.header.name}"\n'
        f"rate = {options.frames}\n"
    )
    log = place / "agent.log"
    with OneShotClient(Broker(url=loopback.url), [f"edge/{DEVICE}/status"]) as client:
        with log.open("wb") as output:
            command = [sys.executable, "-c", program, "run", "--config", str(settings)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            agent = subprocess.Popen(command, stderr=output, env=environment, cwd=place)
        try:
            deadline = time.monotonic() + PATIENCE
            while (heard := client.next(1.0)) is None or (
                heard.retained or json.loads(heard.payload)["state"] != "online"
            ):
                if agent.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the agent does not start: {log.read_text()[-2000:]}")
            yield client, psutil.Process(agent.pid)
        except BaseException:
            print(log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            agent.terminate()
            agent.wait()


if __name__ == "__main__":
    sys.exit(main())
