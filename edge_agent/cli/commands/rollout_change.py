"""`edge-agent rollout pause`, `resume`, `abort`, `finish`: a person's decisions on a roll-out."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import AgentError, MalformedError
from ...core.text import printable
from ...delivery.plan import Plan, read, read_own, seal
from ...delivery.sender import remove
from ...models.packages.keys import load_private
from ...mqtt.one_shot import OneShotClient
from ..broker_settings import broker_settings
from ..fleet import LOOK_SECONDS, Fleet, incomplete
from ..options import Options, add_broker
from ..roller import (
    Roller,
    after_wave,
    changed,
    ending,
    publish,
    rollout_filters,
    topic_of,
    who,
)

TRIES = 3
"""Most attempts if others change it at the same time."""
EXAMPLES = (
    "edge-agent rollout pause --key push.key",
    "edge-agent rollout resume parts-3f2a1c --key push.key",
    "edge-agent rollout abort --back --key push.key",
    "edge-agent rollout finish parts-3f2a1c --key push.key",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("id", nargs="?", metavar="ID", help="the roll-out, if there are several")
    parser.add_argument("--key", metavar="FILE", help="private key that the plan is signed with")
    verb = parser.prog.split()[-1]
    if verb == "abort":
        parser.add_argument("--back", action="store_true", help="devices that have it go back")
    if verb == "resume":
        words = "with the next wave, whatever the gate says"
        parser.add_argument("--next", action="store_true", help=words)
    add_broker(parser)


def main(options: Options) -> int:
    """Change a roll-out; `resume` leads it to its end."""
    settings = broker_settings(options)
    key = load_private(Path(options.key)) if options.key else None
    root = settings.broker.topic_root
    with OneShotClient(settings.broker, rollout_filters(root)) as client:
        fleet = Fleet(client, root)
        fleet.look()
        if options.rollout == "finish" and _is_transfer(options.id):
            _expect_unused(fleet, options.id)
            return 0 if _remove_package(client, root, options.id) else 1
        name = _name(fleet, options.id)
        try:
            plan = read_own(fleet.plans[name], key)
        except MalformedError as problem:
            if options.rollout == "finish" and _is_junk(fleet.plans[name]):
                return _clear(client, root, name)
            raise AgentError(f"roll-out {name}: {problem}") from None
        match options.rollout:
            case "resume":
                return Roller(client, fleet, root, key=key).lead(_resumed(plan, options))
            case "pause" if plan.state != "running":
                raise AgentError(f"roll-out {name} is {plan.state}")
            case "abort" if options.back and plan.settings is not None:
                raise AgentError("settings do not go back so; configure what held before")
            case "abort":
                # Once begun, going back is for all: some may have heard nothing of it yet.
                back = options.back or (plan.state == "aborted" and plan.back)
                plan = changed(plan, state="aborted", back=back, why=f"by {who()}")
            case "finish" if plan.state == "aborted":
                print("devices that have not heard that it was aborted will find nothing")
            case _:
                # For `finish`, too: whoever leads it stops, and no more devices begin.
                plan = changed(plan, state="paused", why=f"by {who()}")
        plan = put(client, root, plan, key)
        if options.rollout != "finish":
            print(printable(ending(plan)))
            return 0
        if plan.transfer in fleet.rolled_out(but=name):
            print("its package stays: it is of another roll-out, too")
        elif plan.settings is None and fleet.gap:
            print(f"its package {plan.transfer} stays for others: {incomplete(fleet)}")
        elif plan.settings is None:
            _remove_package(client, root, plan.transfer)
        return _clear(client, root, name)  # last, so that it can be repeated after a kill


def _is_junk(payload: bytes) -> bool:
    """Whether a payload cannot be a roll-out at all."""
    try:
        read(payload, None)
    except MalformedError:
        return True
    return False


def _clear(client: OneShotClient, root: str, name: str) -> int:
    client.wait_published([client.publish(topic_of(root, name), b"", retain=True)])
    print(f"roll-out {name} is removed from the broker")
    return 0


def _remove_package(client: OneShotClient, root: str, transfer: str) -> bool:
    """Remove a package, from a roll-out or left by a push; return whether it was there."""
    there = remove(client, root, transfer)
    print(f"package {transfer} {'is removed from the broker' if there else 'was not there'}")
    return there


def _expect_unused(fleet: Fleet, transfer: str) -> None:
    """Raise AgentError if a roll-out needs a package, or some may not have been seen."""
    if fleet.gap:
        raise AgentError(f"{incomplete(fleet)}; nothing was changed")
    if transfer in fleet.rolled_out():
        raise AgentError(f"package {transfer} is of a roll-out; name that instead")


def _is_transfer(text: str | None) -> bool:
    """Whether a text names a package, not a roll-out."""
    return text is not None and len(text) == 32 and not text.strip("0123456789abcdef")


def _name(fleet: Fleet, wanted: str | None) -> str:
    """Return the name of the roll-out meant; raise AgentError if that is not clear, or not seen."""
    if fleet.gap and (wanted is None or wanted not in fleet.plans):
        raise AgentError(f"{incomplete(fleet)}; nothing was changed")
    known = ", ".join(sorted(fleet.plans)) or "none"
    if wanted is None and len(fleet.plans) != 1:
        raise AgentError(f"name one as ID; on this broker: {known}")
    name = wanted or next(iter(fleet.plans))
    if name not in fleet.plans:
        raise AgentError(f"roll-out {name} is not on this broker; there: {known}")
    return name


def _resumed(plan: Plan, options: Options) -> Plan:
    if plan.state not in {"running", "paused"}:
        raise AgentError(f"roll-out {plan.id} is {plan.state}; start another one")
    if plan.expires_at <= time.time():
        raise AgentError(f"roll-out {plan.id} has expired at {plan.expires}; start another one")
    running = changed(plan, state="running")
    return after_wave(running, "good") if options.next else running


def put(client: OneShotClient, root: str, plan: Plan, key: Any) -> Plan:
    """Put a plan on the broker, with a serial above those of others meanwhile; return it.

    Raises:
        AgentError: others keep changing it.
    """
    topic = topic_of(root, plan.id)
    for _ in range(TRIES):
        sealed = seal(plan, key)
        client.wait_published([publish(client, root, plan, sealed)])
        found = client.read(topic, LOOK_SECONDS)
        if found == sealed:
            return plan
        try:
            serial = read_own(found or b"", key).serial
        except MalformedError:
            serial = plan.serial
        plan = replace(plan, serial=max(serial, plan.serial) + 1)
    raise AgentError(f"roll-out {plan.id}: somebody else writes on its topic; see the access list")
