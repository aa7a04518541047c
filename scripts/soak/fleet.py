"""Measure what a fleet of simulated devices costs a mosquitto as it comes.

    .venv/bin/python scripts/soak/fleet.py [COUNT] [DRAWING]

COUNT devices (2,000) in one process are looked at and get a change of settings; DRAWING of them
(1,000) get a package of 4 MB by `push @group`. The machine should have nothing else to do, and
`ulimit -n` be above COUNT. Nothing leaves loopback.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from tests.helpers.boxes import Boxes  # noqa: E402
from tests.helpers.push import model_folder  # noqa: E402
from tests.helpers.support import Listener, Mosquitto  # noqa: E402


def memory_mb(broker: Mosquitto) -> str:
    """Return what the broker has in memory, and has had at most."""
    assert broker.process is not None
    lines = Path(f"/proc/{broker.process.pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines if "kB" in line}
    return f"broker {found['VmRSS']} MB, at most {found['VmHWM']} MB"


def command(broker: Mosquitto, *words: str) -> str:
    """Run a command of edge-agent; return its status, time and last line."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "edge_agent", *words, "--broker", broker.url],
        check=False,
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
    )
    took = time.monotonic() - began
    said = (done.stdout.splitlines() or [""]) + done.stderr.splitlines()[-1:]
    return f"exit {done.returncode} after {took:.1f} s: {said[0]} {said[-1] if done.stderr else ''}"


def sent(listener: Listener, *parts: str) -> int:
    """Add up the bytes that were published on topics with a part in their name."""
    listener.catch_up()
    said = [h for h in listener.heard if any(p in h.topic for p in parts) and not h.retained]
    return sum(len(h.topic) + len(h.payload) for h in said)


def main(count: int, drawing: int) -> int:
    """Measure, and print a line for each."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key, tar, patch = folder / "push.key", folder / "2.tar", folder / "door.json"
        broker = Mosquitto(folder / "broker", "max_queued_messages 1000\n")
        program = [sys.executable, "-m", "edge_agent"]
        subprocess.run([*program, "keygen", str(key)], check=True, capture_output=True)
        made = str(model_folder(folder / "2", "2", hidden=1350))
        pack = [*program, "pack", made, "-o", str(tar), "--key", str(key)]
        subprocess.run(pack, check=True, capture_output=True)
        patch.write_text(json.dumps({"door": {"rate": 5, "threshold": 0.5}}))
        listener = Listener(broker.port)
        with Boxes(broker.port, count) as boxes:
            print(f"{count} devices at rest: {memory_mb(broker)}")
            print(f"status: {command(broker, 'status', '--not-well')}; {memory_mb(broker)}")
            signed = ("--persist", "--key", str(key))
            said = command(broker, "configure", str(patch), "--device", "@lab", *signed)
            print(f"configure: {said}; {memory_mb(broker)}")
            size = sent(listener, "/@rollout/"), sent(listener, "/rollout")
            print(f"  {size[0]} bytes for all, {size[1]} bytes of words of the devices")
            boxes.do(lambda: boxes.remove(list(boxes.all)))
        with Boxes(broker.port, drawing) as boxes:
            listener.heard.clear()
            said = command(broker, "push", str(tar), "--device", "@lab", "--timeout", "300")
            print(f"push to {drawing}: {said}; {memory_mb(broker)}")
            bytes_sent, drawn = (
                sent(listener, "/@package/"),
                {b.received for b in boxes.all.values()},
            )
            print(f"  package {tar.stat().st_size} bytes, sent {bytes_sent}, drawn by each {drawn}")
            print(f"  {sent(listener, '/push/')} bytes of what devices said")
        listener.close()
        broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3] or (2000, 1000))))
