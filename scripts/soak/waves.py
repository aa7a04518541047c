"""Roll a package out to six agents in three waves, on a NATS cluster that loses a node in each.

    .venv/bin/python scripts/soak/waves.py

Nodes, agents and the command that leads are real, all on loopback. Ends with 1 unless every agent
serves the new version and not one of its results, of QoS 1, is missing. Takes about two minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tomli_w

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from edge_agent.delivery.plan import read  # noqa: E402
from tests.helpers.nats import Nats, takes  # noqa: E402
from tests.helpers.small_models import brightness, plain, write_pictures  # noqa: E402
from tests.helpers.support import (  # noqa: E402
    AgentProcess,
    Listener,
    agent_settings,
    run_cli,
    wait_until,
)

BOXES = [f"box-{number}" for number in range(6)]
WAVES = ({"devices": BOXES[:1]}, {"devices": BOXES[1:3]}, {"group": "lab"})
KILLED = (0, 1, 0)
"""In each wave; the third hears everything."""
GATE = {"hold_s": 10, "timeout_s": 300}
PATIENCE = 300.0


def main() -> int:
    """Go through it, and print a line for each thing seen."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster, agents = Nats(folder / "nats"), []
        try:
            agents = [start(folder, cluster, number) for number in range(len(BOXES))]
            return go_through(folder, cluster, agents)
        finally:
            for agent in agents:
                agent.stop()
            for number in range(len(cluster.nodes)):
                cluster.kill(number)


def start(folder: Path, cluster: Nats, number: int) -> AgentProcess:
    """Start an agent that numbers what it reads and leaves out nothing."""
    home, key = folder / BOXES[number], folder / "push.key"
    brightness(home / "models" / "light")
    pictures = write_pictures(home / "pictures", [plain(gray) for gray in (50, 200)])
    pipeline = {"name": "p", "source": f"{pictures}/?loop=1&rate=10", "model": "light", "qos": 1}
    if not key.exists():
        run_cli("keygen", str(key))
    first = number % len(cluster.urls)
    settings = agent_settings(
        BOXES[number],
        "",
        [pipeline],
        models_dirs=[str(home / "models")],
        broker={"url": cluster.urls[first:] + cluster.urls[:first]},
        groups=["lab"],
        trust={"keys": [f"{key}.pub"]},
        trial={"shadow_frames": 3, "probation_s": 2},
        health={"interval_s": 2},
    )
    return AgentProcess(home, settings)


def go_through(folder: Path, cluster: Nats, agents: list[AgentProcess]) -> int:
    """Roll out, kill and look."""
    listener = Listener(cluster.ports[2])
    for box in BOXES:
        listener.wait_for(lambda _h, box=box: numbers(listener, box), f"results of {box}", PATIENCE)  # type: ignore[misc]
    package, plan = folder / "2.tar", folder / "plan.toml"
    key = ("--key", str(folder / "push.key"))
    done = run_cli("pack", str(brightness(folder / "light", "2")), "-o", str(package), *key)
    assert done.returncode == 0, done.stderr
    plan.write_text(tomli_w.dumps({"package": package.name, "waves": WAVES, "gate": GATE}))
    began = time.monotonic()
    config = ("--config", str(agents[0].config))
    command = [sys.executable, "-m", "edge_agent", "rollout", "start", str(plan), *key, *config]
    roller = subprocess.Popen(command)
    for wave, node in enumerate(KILLED):
        listener.wait_for(lambda _h, wave=wave: has_begun(listener, wave), f"wave {wave}", PATIENCE)  # type: ignore[misc]
        if wave:
            cluster.start(KILLED[wave - 1])
        cluster.kill(node)
        print(f"{time.monotonic() - began:.0f} s: wave {wave + 1}, node {node} killed", flush=True)
    status = roller.wait(PATIENCE)
    print(f"{time.monotonic() - began:.0f} s: rollout start ends with {status}", flush=True)
    cluster.start(KILLED[-1])
    for port in cluster.ports:
        wait_until(lambda port=port: takes(port), "the cluster", 90)  # type: ignore[misc]
    bad = [box for box in BOXES if not has_all(listener, box)]
    listener.close()
    return 1 if bad or status else 0


def has_begun(listener: Listener, wave: int) -> bool:
    """Whether the plan has come so far."""
    plans = [h.payload for h in listener.heard if "/@rollout/" in h.topic and h.payload]
    return any(read(each, None).wave >= wave for each in plans)


def numbers(listener: Listener, box: str) -> set[int]:
    """Give the numbers of an agent's results that were heard."""
    return {says["seq"] for says in listener.on(f"edge/{box}/result/p")}


def has_all(listener: Listener, box: str) -> bool:
    """Wait for every result up to now; print what is missing, and the version that serves."""
    last = max(numbers(listener, box)) + 20
    deadline = time.monotonic() + 60
    while missing := set(range(last)) - numbers(listener, box):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    model = listener.on(f"edge/{box}/result/p")[-1]["model"]
    print(f"{box}: {model}, {last} results, {len(missing)} missing {sorted(missing)[:20]}")
    return model == "light@2" and not missing


if __name__ == "__main__":
    sys.exit(main())
