"""The whole agent with `qos = 1` at 30 results a second, and a broker that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.small_disk import fill, small_disk
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    CHECKOUT,
    AgentProcess,
    Listener,
    Mosquitto,
    Relay,
    agent_settings,
    check_account,
    wait_until,
)


def away(*arguments: str) -> dict[str, Any]:
    """Run the script that does it; what it measures in time is not looked at here."""
    done = subprocess.run(
        [sys.executable, "scripts/soak/broker_away.py", "--rate", "30", "--json", *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    says: dict[str, Any] = json.loads(done.stdout)
    return says


def in_order(says: dict[str, Any]) -> None:
    """See that nothing was given up, copies say so, and live and replayed ones are in order."""
    assert says["dropped"] == 0
    assert says["unmarked_copies"] == 0
    assert says["live_in_order"] is True
    assert says["replayed_in_order"] is True


def test_no_promised_result_is_lost_to_a_broker_that_is_killed() -> None:
    """Every capture that was inferred arrives at least once; what waited says `replayed`."""
    says = away("--seconds", "5")
    in_order(says)
    assert says["missing"] == says["superseded"]
    assert says["sessions"] == 1
    assert says["replayed"] > 50


def test_a_killed_agent_hands_its_promises_to_the_next_run() -> None:
    """Killed while the broker is away, the agent's results of before arrive under their session."""
    says = away("--seconds", "6", "--kill")
    in_order(says)
    assert says["sessions"] == 2
    assert says["replayed_of_killed"] > 20


def test_a_full_disk_is_said_and_costs_no_result(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """With no room for the spool the agent goes on, is degraded for that reason, and loses nothing.

    Once there is room again it is well.
    """
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(i % 250) for i in range(300)], rate=30)
    pipeline = {"name": "p", "source": f"file:{clip}", "model": "light", "qos": 1}
    listener = listen(broker.port)
    relay = Relay(broker.port)
    health, result = "edge/box/health", "edge/box/result/p"

    def spool_is_named() -> bool:
        said = listener.last(health)
        return said is not None and any(reason.startswith("spool: ") for reason in said["why"])

    with small_disk(tmp_path / "disk", "16m") as disk:
        settings = agent_settings(
            *("box", relay.url, [pipeline]),
            models_dirs=[str(tmp_path / "models")],
            state_dir=str(disk / "state"),
        )
        running = agent(settings)
        listener.wait_for(lambda _: len(listener.on(result)) > 30, "results")
        relay.shut()
        relay.cut()
        filler = fill(disk)
        words = "the disk is full; free some space: messages for the broker wait in memory only"
        wait_until(lambda: words in running.words(), "the agent to say so")
        relay.open()
        wait_until(spool_is_named, "health to name the spool")
        assert listener.wait_state(health, state="degraded")
        listener.wait_state("edge/box/source/p", state="ended")
        filler.unlink()
        wait_until(lambda: not spool_is_named(), "the spool to be well again")
        last = listener.wait_for(
            lambda _: (h := listener.last(health)) and h["spool"]["waiting"] == 0 and h, "the rest"
        )
        account = last["pipelines"]["p"]
        check_account(account)
        assert len({each["seq"] for each in listener.on(result)}) == account["inferred"]
        assert (account["lost"], last["spool"]["dropped"]) == (0, 0)
        assert running.stop() == 0
    relay.shut()
    relay.cut()
