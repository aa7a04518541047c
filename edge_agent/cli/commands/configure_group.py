"""`edge-agent configure --device @GROUP --persist`: signed settings retained on the broker.

Each member applies them once, on probation, whenever it connects. They are a plan of section 5 with
settings in place of a package, and one wave.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import AgentError, MalformedError, UsageError
from ...core.text import printable
from ...delivery.plan import ENDED, MAX_BYTES, Gate, Plan, Wave, read_own, seal, touched
from ...models.packages.keys import load_private
from ...mqtt.one_shot import OneShotClient
from ...mqtt.payloads import iso
from ..broker_settings import broker_settings
from ..fleet import Fleet, absence, check_target, incomplete, some_of
from ..options import Options
from ..roller import (
    JUDGE_SECONDS,
    MOST_SPREAD,
    SPREAD_SECONDS,
    Tally,
    new_time,
    rollout_filters,
    tally,
    trouble_lines,
    who,
)
from .rollout_change import put
from .rollout_start import lasting

if TYPE_CHECKING:
    from ...models.packages.keys import PrivateKey

MOST_PLANS = 32
"""Most plans on a broker: devices report no more at once."""


def configure_group(options: Options, pipelines: Mapping[str, Any]) -> int | None:
    """Put settings on the broker, and report how the online members apply them.

    Returns:
        0 if all of those have them, 1 if one does not; None: they cannot be retained there.
    """
    target: str = options.device
    check_target(target)
    lasts = lasting(options.expires, "--expires")
    settings = broker_settings(options)
    key = load_private(Path(options.key)) if options.key else None
    root = settings.broker.topic_root
    with OneShotClient(settings.broker, rollout_filters(root)) as client:
        fleet = Fleet(client, root)
        fleet.look()
        if fleet.gap:
            raise AgentError(f"{incomplete(fleet)}; nothing was sent to {target}")
        members = fleet.members(target[1:])
        if not members:
            raise AgentError(absence(fleet, target))
        unsigned = all(fleet.info[device].get("allow_unsigned") is True for device in members)
        if not client.retains or (key is None and not unsigned):
            why = "sign it with --key" if client.retains else "the broker keeps nothing retained"
            print(f"those that are offline do not get it later: {why}", file=sys.stderr)
            return None
        plan = _plan(target[1:], pipelines, fleet, lasts, key)
        if len(seal(plan, key)) > MAX_BYTES:
            raise UsageError(
                f"{options.file}: too large to lie signed on a broker; send it in parts"
            )
        begun = [name for name in members if fleet.online(name)]
        plan = put(client, root, plan, key)
        print(f"{plan.id} is on the broker; waiting for those online", file=sys.stderr)
        counts = _watch(client, fleet, plan, options.timeout)
    print("\n".join([printable(f"{target}: {counts}"), *trouble_lines(counts)]))
    if counts.offline:
        print(f"{plan.id} lies on the broker for those offline until {plan.expires}")
    asked = [name for name in members if name in begun or fleet.online(name)]
    states = {name: plan.word_in(fleet.rollouts.get(name, {})).get("state") for name in asked}
    pending = [name for name, state in states.items() if state not in ENDED]
    if lost := [name for name in pending if not fleet.online(name)]:
        words = "was lost meanwhile; it goes on when it is back"
        print(printable(f"edge-agent: device {some_of(lost)} {words}"), file=sys.stderr)
    if silent := [name for name in pending if name not in lost]:
        words = f"has not ended within {options.timeout:.0f} s; it may still take it over"
        print(printable(f"edge-agent: device {some_of(silent)} {words}"), file=sys.stderr)
    return 0 if all(state == "live" for state in states.values()) else 1


def _plan(
    group: str, pipelines: Mapping[str, Any], fleet: Fleet, lasts: float, key: PrivateKey | None
) -> Plan:
    """Make the plan, which replaces the last one for the same keys of the same group.

    Raises:
        AgentError: there are too many.
    """
    named = json.dumps([group, sorted(touched(pipelines))])
    name = f"settings-{hashlib.sha256(named.encode()).hexdigest()[:12]}"
    if len(fleet.plans.keys() - {name}) >= MOST_PLANS:
        raise AgentError(
            f"{MOST_PLANS} roll-outs lie on this broker; remove those that are through: "
            "edge-agent rollout status, rollout finish ID"
        )
    now, serial = time.time_ns(), 0
    with suppress(KeyError, MalformedError):  # higher than the serial from another clock
        serial = read_own(fleet.plans[name], key).serial + 1
    online = sum(map(fleet.online, fleet.members(group)))
    return Plan(
        id=name,
        settings=pipelines,
        created=iso(new_time(fleet.plans, key)),
        expires=iso(now + int(lasts * 1e9)),
        waves=(Wave(group=group),),
        gate=Gate(),
        on_failure="stop",
        spread_s=min(SPREAD_SECONDS * online, MOST_SPREAD),
        serial=max(serial, now // 1_000_000_000),
        time=iso(now),
        by=who(),
        state="done",
        wave=0,
    )


def _watch(client: OneShotClient, fleet: Fleet, plan: Plan, timeout: float) -> Tally:
    """Wait until all online devices have ended, or none reports for *timeout* seconds."""
    heard_at = now = time.monotonic()
    while True:
        until = now + JUDGE_SECONDS
        while (left := until - time.monotonic()) > 0:
            if (heard := client.next(left)) is not None:
                fleet.take(heard.topic, heard.payload)
                if heard.topic.endswith("/rollout") and not heard.retained:
                    heard_at = time.monotonic()
        counts, now = tally(plan, fleet, 0), time.monotonic()
        if counts.ended_online >= counts.online or now - heard_at > timeout:
            return counts
