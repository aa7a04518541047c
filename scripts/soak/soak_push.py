"""Push many models in a row to one agent, and see that its memory does not grow.

    python scripts/soak/soak_push.py [--pushes 100] [--hidden 1300] [--json]

The contents of two models alternate under rising versions, while a clip at 30 frames a second runs.
Resident memory after the last push is compared with that after the tenth; ends with 1 when it is
more than 10 % larger, or a frame was dropped for a push.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.helpers.push import Box, manifest, model_folder, plain_package, send, start_box
from tests.helpers.support import AgentProcess, Listener, Mosquitto

EARLY = 10
GROWTH = 1.10


def main() -> int:
    """Run it and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pushes", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=1300, help="3 KiB each; 1300 make 4 MB")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-push-") as place:
        folder = Path(place)
        broker = Mosquitto(folder / "broker")
        listener = Listener(broker.port)
        agents: list[AgentProcess] = []

        def start(settings: str, name: str) -> AgentProcess:
            agents.append(AgentProcess(folder / name, settings))
            return agents[-1]

        try:
            box = start_box(
                folder,
                broker,
                listener,
                start,
                "edge-01",
                trust={"allow_unsigned": True},
                trial={"probation_s": 0},
            )
            return soak(box, options.pushes, options.hidden, as_json=options.json)
        finally:
            for agent in agents:
                agent.stop()
            listener.close()
            broker.stop()


def soak(box: Box, pushes: int, hidden: int, *, as_json: bool) -> int:
    """Push, and compare."""
    contents = [
        model_folder(box.folder / str(best), "1", best=best, hidden=hidden, seed=best)
        for best in (1, 2)
    ]
    resident: list[float] = []
    dropped = 0
    for number in range(pushes):
        folder, version = contents[number % 2], str(number + 2)
        (folder / "model.toml").write_text(manifest(version))
        end = send(box.broker.port, box.device, plain_package(folder, "level", version, cut=60_000))
        if end["state"] != "live":
            print(f"version {version}: {end['state']}: {end.get('why')}", file=sys.stderr)
            return 1
        box.wait_live(version)
        dropped += box.wait_settled(outcome="live", version=version)["last"]["frames_dropped"]
        resident.append(float(box.health()["rss_mb"]))
        if not as_json and (number + 1) % EARLY == 0:
            print(f"{number + 1:4d} pushes  {resident[-1]:7.1f} MB", flush=True)
        # What has been heard would fill our own memory.
        del box.listener.heard[:-2000]
    early = resident[min(EARLY, pushes) - 1]
    growth = resident[-1] / early
    says = {
        "pushes": pushes,
        "rss_mb_after_10": early,
        "rss_mb_at_end": resident[-1],
        "growth": round(growth, 4),
        "frames_dropped": dropped,
    }
    print(json.dumps(says) if as_json else f"growth {growth - 1:+.1%}, frames dropped {dropped}")
    return 0 if growth <= GROWTH and dropped == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
