"""A box that is given another time zone while the agent runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    wait_until,
)

ZONES = Path("/usr/share/zoneinfo/Etc")
BIND = 'mount --bind "$1" "$(readlink -f /etc/localtime)" && shift && exec "$@"'


@pytest.mark.skipif(
    os.geteuid() != 0 or not (ZONES / "UTC").exists(),
    reason="only root may give a process a time zone of its own, and tzdata has them",
)
def test_hours_follow_the_time_zone_that_the_box_is_given(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """`timedatectl set-timezone`: rules kept the hours of before until the agent was restarted."""
    zone = tmp_path / "zone"
    zone.write_bytes((ZONES / "UTC").read_bytes())
    hour = time.gmtime().tm_hour
    elsewhere = f"{(hour + 11) % 24:02}:00-{(hour + 14) % 24:02}:00"
    rule = {"when": "value", "value": "v", "above": 5.0, "frames": "1/1"}
    rules = [{**rule, "name": "always"}, {**rule, "name": "night", "during": elsewhere}]
    pipeline = {"name": "t", "source": "mqtt:s/t", "model": "readings", "rules": rules}
    heard = listen(broker.port)
    prefix = ("unshare", "-m", "sh", "-c", BIND, "sh", str(zone))
    agent(agent_settings("box", broker.url, [pipeline]), prefix=prefix)

    def began(name: str) -> bool:
        heard.publish("s/t", json.dumps({"v": 9.0}))
        return any(each["rule"] == name for each in heard.on("edge/box/event/t"))

    wait_until(lambda: began("always"), "a rule without hours")
    assert not began("night")
    with zone.open("r+b") as file:
        file.write((ZONES / "GMT-12").read_bytes())
        file.truncate()
    os.utime(zone, (0, 0))
    wait_until(lambda: began("night"), "a rule in the hours of the new zone")
